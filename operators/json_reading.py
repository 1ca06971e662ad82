"""The slow reader: one JSON value by the rules, naming the field that breaks them.

The last of duplicate names wins, only declared fields are judged, NaN and Infinity are no numbers,
text holds no lone surrogate. `decode` reads whole batches faster, and comes here with what that
refuses.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from operators.policy import Reason

INT64 = (-(2**63), 2**63 - 1)
MAX_NESTING = 100


class Refused(Exception):
    """A record the schema refuses: the reason and, for people, what is wrong."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def malformed(field: str, detail: str) -> Refused:
    """Returns the refusal of a value that breaks the schema; an empty field means the whole."""
    return Refused(Reason.MALFORMED, f"{field}: {detail}" if field else detail)


def is_utf8(data: bytes) -> bool:
    """Tells whether bytes are UTF-8 text."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def document_of(value: bytes) -> dict[str, Any]:
    """Reads a JSON object; whatever is none raises `Refused`."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed("", f"not UTF-8 at byte {error.start}") from None
    if _nesting(text) > MAX_NESTING:
        raise malformed("", f"nested deeper than {MAX_NESTING}")
    try:
        document = json.loads(text, parse_constant=_no_constant, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise malformed("", f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise malformed("", f"not a JSON object but {_kind_name(document)}")
    return document


def _nesting(text: str) -> int:
    """Returns the depth of brackets outside strings, without recursion."""
    if text.count("{") + text.count("[") <= MAX_NESTING:
        return 0
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _integer(digits: str) -> int | float:
    # Python refuses to convert very long digit strings; they are out of every range anyway.
    return int(digits) if len(digits) <= 400 else math.inf


def _kind_name(value: Any) -> str:
    names: list[tuple[Any, str]] = [
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _text(name: str, value: Any) -> Any:
    if type(value) is not str:
        raise malformed(name, f"expected str, got {_kind_name(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise malformed(name, "holds a lone surrogate") from None
    return value


def _whole(name: str, value: Any) -> Any:
    if type(value) is not int:
        raise malformed(name, f"expected int, got {_kind_name(value)}")
    if not INT64[0] <= value <= INT64[1]:
        raise malformed(name, f"{value} is out of range for int64")
    return value


def _number(name: str, value: Any) -> Any:
    if type(value) not in (int, float):
        raise malformed(name, f"expected float, got {_kind_name(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise malformed(name, "the number is not finite as a 64-bit float")
    return number


def _truth(name: str, value: Any) -> Any:
    if type(value) is not bool:
        raise malformed(name, f"expected bool, got {_kind_name(value)}")
    return value


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "str": _text,
    "int": _whole,
    "float": _number,
    "bool": _truth,
}


def typed(name: str, declared: str, value: Any) -> Any:
    """Returns a field's value if it is of its declared type.

    Raises:
        Refused: it is not.
    """
    if value is None:
        if declared.endswith("?"):
            return None
        raise malformed(name, "missing or null")
    return _READERS[declared.rstrip("?")](name, value)
