"""How a spec is refused: the file, the key path, both values, and the remedy."""

from typing import Any

import msgspec


class SpecError(ValueError):
    """A spec that is refused: names the file, the key path, what was found, and the remedy."""

    def __init__(self, where: str, problem: str, remedy: str, file: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        self.file = file
        super().__init__(str(self))

    def __str__(self) -> str:
        prefix = f"{self.file}: " if self.file else ""
        return f"{prefix}{self.where}: {self.problem}\n  remedy: {self.remedy}"


def explained(
    error: msgspec.ValidationError, raw: dict[str, Any], file: str, field_type: Any
) -> SpecError:
    """Turns a validation error into a refusal that shows the key path and the value found there."""
    said = str(error).replace(" - at `key` in `$", " (a name) - at `$")
    message, _, pointer = said.partition(" - at `$")
    where = _entry(pointer.rstrip("`").lstrip("."), raw, field_type) or "top level"
    found = _value_at(raw, where)
    if "unknown field" in message:
        remedy = "remove it, or correct its spelling; the spec's JSON Schema lists every setting"
    elif "missing required field" in message:
        remedy = "add it"
    else:
        remedy = "give a value that the spec's JSON Schema allows"
        if found is not None:
            message = f"{message}, found {found!r}"
    return SpecError(where, message, remedy, file)


def _entry(where: str, raw: dict[str, Any], field_type: Any) -> str:
    """Returns a key path whose last part is the entry of a mapping that its type refuses."""
    table, mapping, _ = where.partition("[...]")
    kinds: dict[str, Any] = {
        "event.fields": field_type,
        "source.properties": str,
        "sink.properties": str,
    }
    if mapping:
        group, _, name = table.partition(".")
        for entry, value in raw[group][name].items():
            try:
                msgspec.convert(value, kinds[table])
            except msgspec.ValidationError:
                return f"{table}.{entry}"
    return where


def _value_at(raw: Any, where: str) -> Any:
    for part in where.replace("[", ".").replace("]", "").split("."):
        if isinstance(raw, dict):
            raw = raw.get(part)
        elif isinstance(raw, list) and part.isdigit() and int(part) < len(raw):
            raw = raw[int(part)]
        else:
            return None
    return None if isinstance(raw, (dict, list)) else raw
