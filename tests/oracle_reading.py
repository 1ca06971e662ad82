"""How the oracle reads a record: JSON, types, times and partitioners, each rule written out.

A value is judged here only as far as one record tells; what it means for its key is in
`tests.oracle`. Danger: a rule that is copied from the core proves nothing.
"""

import json
import math
import zlib
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_NESTING = 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """One row of the log."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Event:
    """A record that was understood; `key` is None for a heartbeat."""

    record: Record
    key: str | None
    time: int
    id: str | None = None
    type: str | None = None
    values: dict[str, Any] = field(default_factory=dict)


class RefusedError(Exception):
    """The record leaves as a reject for this reason."""


def parse_object(value: bytes) -> dict[str, Any]:
    """Reads one JSON object; of duplicate names the last wins."""
    try:
        text = value.decode("utf-8")
        if nesting(text) > MAX_NESTING:
            raise RefusedError("malformed")
        decoded = json.loads(
            text, parse_constant=refuse_constant, parse_int=parse_int, object_pairs_hook=dict
        )
    except ValueError as error:
        raise RefusedError("malformed") from error
    if type(decoded) is not dict:
        raise RefusedError("malformed")
    return decoded


def refuse_constant(literal: str) -> Any:
    """NaN, Infinity and -Infinity are not JSON, wherever they stand."""
    raise ValueError(literal)


def parse_int(digits: str) -> int | float:
    """An integer of over 400 digits is as far from any declared type as infinity is."""
    return int(digits) if len(digits) <= 400 else math.inf


def nesting(text: str) -> int:
    """How many arrays and objects are open at once at most, the outermost one included."""
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def check_type(value: Any, declared: str) -> Any:
    """Returns the value as its declared type, or refuses the record."""
    if value is None and declared.endswith("?"):
        return None
    kind = declared.removesuffix("?")
    if kind == "str" and type(value) is str and is_text(value):
        return value
    if kind == "bool" and type(value) is bool:
        return value
    if kind == "int" and type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return value
    if kind == "float" and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise RefusedError("malformed")


def is_text(value: str) -> bool:
    """Whether the string has no lone surrogate (json has joined the pairs)."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def event_time_ms(value: Any, time: dict[str, Any]) -> int:
    """The event time in milliseconds, floored; refuses what is not a time in the unit."""
    unit = time["unit"]
    if unit == "iso8601":
        return iso8601_ms(value, time.get("offset"))
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        raise RefusedError("malformed")
    if unit == "s":
        milliseconds = value * 1000
    else:
        milliseconds = value // {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    if not INT64_MIN <= milliseconds <= INT64_MAX:
        raise RefusedError("malformed")
    return milliseconds


def iso8601_ms(value: Any, offset: str | None) -> int:
    """The time of an ISO 8601 text with a time part and a zone, its own or the spec's."""
    if type(value) is not str or not is_text(value):
        raise RefusedError("malformed")
    if not value.isascii() or not value.isprintable():
        raise RefusedError("malformed")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise RefusedError("malformed") from error
    if is_date_only(value):
        raise RefusedError("malformed")
    if moment.tzinfo is None:
        if offset is None:
            raise RefusedError("malformed")
        moment = moment.replace(tzinfo=datetime.fromisoformat(f"2000-01-01T00:00{offset}").tzinfo)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def is_date_only(value: str) -> bool:
    """Whether the text is a date without a time of day."""
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def home_partition(key: str, partitioner: str, partitions: int) -> int | None:
    """The partition that the producers' partitioner sends the key to; None where unknown."""
    if partitioner == "murmur2":
        return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
    if partitioner == "crc32":
        return zlib.crc32(key.encode()) % partitions
    return None


def murmur2(data: bytes) -> int:
    """The 32-bit hash of the Java Kafka clients, as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little")
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = h * m & mask
        h ^= k
    rest = data[whole:]
    if rest:
        h ^= int.from_bytes(rest, "little")
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ (h >> 15)
