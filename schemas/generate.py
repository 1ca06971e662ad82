"""JSON Schemas of the job spec and of every record, generated from the classes.

Editors complete and check a spec by its schema; consumers in other languages read records by
theirs. The files lie beside this module and are part of the package; a test fails when they
drift.
"""

from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import UnsetType
from msgspec.structs import fields

from schemas.log_manifest import Manifest
from schemas.records import Prediction, Reject
from schemas.run_record import Run
from schemas.spec import Spec

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCHEMAS: dict[str, type[Any]] = {
    "spec": Spec,
    "prediction": Prediction,
    "reject": Reject,
    "manifest": Manifest,
    "run": Run,
}


def schema_texts() -> dict[str, str]:
    """Returns the text of every schema by file name."""
    texts = {}
    for name, record in _SCHEMAS.items():
        schema = {"$schema": _DRAFT, "title": name, **msgspec.json.schema(record)}
        # A field that may be unset is left out of a record, wherever it stands in the class.
        unset = {f.encode_name for f in fields(record) if UnsetType in get_args(f.type)}
        definition = schema["$defs"][record.__name__]
        definition["required"] = [n for n in definition["required"] if n not in unset]
        texts[f"{name}.schema.json"] = (
            msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
        )
    return texts


def write_schemas(folder: Path) -> list[Path]:
    """Writes every schema into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in schema_texts().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
