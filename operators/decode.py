"""Bytes to columns: decodes a batch of records and says which break the schema.

Two readers give one verdict. The fast one decodes the whole batch with msgspec; what it takes is
right by construction. What it refuses goes, record by record, to the slow one, which reads JSON
as the rules say (the last of duplicate names wins, only declared fields are judged) and names the
field.

Danger: a verdict must not depend on the batch. So the fast reader may only ever accept what the
slow one accepts, with equal values; nesting is bounded by a count, not by the stack that happens
to be left.
"""

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from operators.features import RawColumn, raw_columns
from operators.json_reading import (
    INT64,
    MAX_NESTING,
    Refused,
    document_of,
    is_utf8,
    malformed,
    typed,
)
from operators.policy import Int64s, Reason
from schemas.event_time import iso8601_ms, offset_zone
from schemas.spec import Delta, FieldFeature, Previous, Spec

Float64s = NDArray[np.float64]

#: Events decoded at a time: their objects fit the processor's cache, and are reused from it.
_CHUNK = 1024
_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_FAST_TYPES: dict[str, Any] = {
    "str": str,
    "int": Annotated[int, Meta(ge=INT64[0], le=INT64[1])],
    "float": float,
    "bool": bool,
}


@dataclass(slots=True)
class Columns:
    """A decoded batch; rows of refused records hold zeros and None.

    Attributes:
        refused: reason and detail by row.
        heartbeat: rows that are heartbeats, shape (n,).
        times: event times in milliseconds, int64, shape (n,).
        keys: stream keys.
        ids: event ids, None where the event has none; None altogether where the spec names no id.
        raw: the numbers features are made of, float64, shape (n, columns), NaN where missing.
        terminal: rows whose type finishes the key, shape (n,).
    """

    refused: dict[int, Refused]
    heartbeat: NDArray[np.bool_]
    times: Int64s
    keys: list[str]
    ids: list[str | None] | None
    raw: Float64s
    terminal: NDArray[np.bool_]


class Decoder:
    """Reads the events of one spec.

    Args:
        spec: the job spec.
        dtype: the dtype of the model's input, which a scaled field must be finite in.
    """

    def __init__(self, spec: Spec, dtype: np.dtype[Any]) -> None:
        event = spec.event
        self._dtype = dtype
        self._key, self._time, self._id, self._type = (
            event.key,
            event.time.field,
            event.id,
            event.type,
        )
        self._unit = event.time.unit
        self._zone = offset_zone(event.time.offset) if event.time.offset else None
        self._heartbeat = event.heartbeat
        self._terminal = frozenset(event.terminal)
        self._types = spec.field_types | {self._time: "str" if self._unit == "iso8601" else "int"}
        self._attribute = {name: f"f{i}" for i, name in enumerate(self._types)}
        self._get = {name: attrgetter(attribute) for name, attribute in self._attribute.items()}
        self._struct = msgspec.defstruct(
            "Event",
            [self._fast_field(name, declared) for name, declared in self._types.items()],
            rename={attribute: name for name, attribute in self._attribute.items()},
            kw_only=True,
            gc=False,
        )
        self._fast = msgspec.json.Decoder(self._struct)
        self._raw: list[RawColumn] = raw_columns(spec)
        self._scaled = [f for f in spec.features if isinstance(f, FieldFeature | Previous | Delta)]
        self._scaled_columns = [
            next(i for i, c in enumerate(self._raw) if c.field == f.field and c.codes is None)
            for f in self._scaled
        ]

    def _fast_field(self, name: str, declared: str) -> tuple[str, Any] | tuple[str, Any, None]:
        kind = _FAST_TYPES[declared.rstrip("?")]
        # A missing key has a reject reason of its own, so the fast reader lets it pass.
        if declared.endswith("?") or name == self._key:
            return self._attribute[name], kind | None, None
        return self._attribute[name], kind

    def decode(self, values: list[bytes]) -> Columns:
        """Decodes values that are not null, n of them, into columns of n rows."""
        columns = self._in_chunks(values)
        self._refuse_not_finite(columns)
        return columns

    def _in_chunks(self, values: list[bytes]) -> Columns:
        if len(values) <= _CHUNK:
            return self._decode(values)
        pieces = [self._decode(values[at : at + _CHUNK]) for at in range(0, len(values), _CHUNK)]
        return Columns(
            {
                at * _CHUNK + i: r
                for at, piece in enumerate(pieces)
                for i, r in piece.refused.items()
            },
            np.concatenate([piece.heartbeat for piece in pieces]),
            np.concatenate([piece.times for piece in pieces]),
            list(chain.from_iterable(piece.keys for piece in pieces)),
            list(chain.from_iterable(piece.ids or () for piece in pieces)) if self._id else None,
            np.concatenate([piece.raw for piece in pieces]),
            np.concatenate([piece.terminal for piece in pieces]),
        )

    def _decode(self, values: list[bytes]) -> Columns:
        refused: dict[int, Refused] = {}
        events, heartbeats = self._read(values, refused)
        n = len(values)
        heartbeat = np.zeros(n, np.bool_)
        times, bad_times = self._times(events)
        for i, error in bad_times.items():
            refused.setdefault(i, error)
        for i, time in heartbeats.items():
            heartbeat[i] = True
            times[i] = time
        keys = self._column(events, self._key, "")
        if None in keys or "" in keys:
            for i, key in enumerate(keys):
                keys[i] = key or ""
                if not key and i not in heartbeats and events[i] is not None:
                    refused[i] = Refused(Reason.NO_KEY, f"{self._key}: missing, null or empty")
        raw = np.empty((n, len(self._raw)))
        for j, column in enumerate(self._raw):
            raw[:, j] = column.numbers(self._column(events, column.field, None))
        terminal = np.zeros(n, np.bool_)
        if self._terminal and self._type:
            kinds = self._column(events, self._type, None)
            terminal[:] = list(map(self._terminal.__contains__, kinds))
        return Columns(
            refused,
            heartbeat,
            times,
            keys,
            self._column(events, self._id, None) if self._id else None,
            raw,
            terminal,
        )

    def _column(self, events: list[Any], name: str, default: Any) -> list[Any]:
        get = self._get[name]
        try:
            return list(map(get, events))
        except AttributeError:  # some rows are None: heartbeats and refused records
            return [default if event is None else get(event) for event in events]

    def _read(
        self, values: list[bytes], refused: dict[int, Refused]
    ) -> tuple[list[Any], dict[int, int]]:
        """Returns one event (or None) a row, and the event time of each heartbeat."""
        blob = b"\n".join(values)
        plain = blob.isascii() or is_utf8(blob)
        # What is nested too deep is longer than its brackets.
        nested = max(map(len, values), default=0) > 2 * MAX_NESTING and (
            # Every record that can pass has a bracket of its own; one too deep has 100 more.
            blob.count(b"{") + blob.count(b"[") - len(values) >= MAX_NESTING
        )
        heartbeats: dict[int, int] = {}
        events: list[Any] = []
        # Only then is a line one record: the newlines are those between records, and each of them
        # stands between two objects. Two objects on a line and a blank one would add up, too.
        one_each = (
            blob.count(b"\n") == blob.count(b"}\n{") == len(values) - 1
            and blob.startswith(b"{")
            and blob.endswith(b"}")
        )
        if plain and not nested and one_each:
            try:
                events = self._fast.decode_lines(blob)
            except (msgspec.DecodeError, RecursionError):
                events = []
        if len(events) != len(values):
            events = [self._read_one(i, v, refused, heartbeats) for i, v in enumerate(values)]
        elif self._heartbeat is not None and self._type:
            kinds = self._column(events, self._type, None)
            if self._heartbeat in kinds:
                for i, kind in enumerate(kinds):
                    if kind == self._heartbeat:
                        events[i] = self._read_one(i, values[i], refused, heartbeats)
        return events, heartbeats

    def _read_one(
        self, row: int, value: bytes, refused: dict[int, Refused], heartbeats: dict[int, int]
    ) -> Any:
        # Depth is at most the count of opening brackets; a value over it is measured exactly.
        shallow = value.count(b"{") + value.count(b"[") <= MAX_NESTING
        if shallow and (value.isascii() or is_utf8(value)):
            try:
                event = self._fast.decode(value)
            except msgspec.DecodeError:
                pass
            else:
                if self._heartbeat is None or self._value(event, self._type) != self._heartbeat:
                    return event
        try:
            return self._judge(value)
        except _Heartbeat as beat:
            heartbeats[row] = beat.time
        except Refused as error:
            refused[row] = error
        return None

    def _value(self, event: Any, name: str | None) -> Any:
        return getattr(event, self._attribute[name]) if name else None

    def _judge(self, value: bytes) -> Any:
        """Reads one value by the rules: returns the event, or raises what it is instead."""
        document = document_of(value)
        if self._type and self._heartbeat and document.get(self._type) == self._heartbeat:
            time = document.get(self._time)
            raise _Heartbeat(self._time_ms(typed(self._time, self._types[self._time], time)))
        key = document.get(self._key)
        if key is None or key == "":
            raise Refused(Reason.NO_KEY, f"{self._key}: missing, null or empty")
        fields = {
            self._attribute[name]: typed(name, declared, document.get(name))
            for name, declared in self._types.items()
        }
        self._time_ms(fields[self._attribute[self._time]])
        return self._struct(**fields)

    def _times(self, events: list[Any]) -> tuple[Int64s, dict[int, Refused]]:
        stamps = self._column(events, self._time, None)
        bad: dict[int, Refused] = {}
        if self._unit != "iso8601":
            whole = np.array([0 if stamp is None else stamp for stamp in stamps], np.int64)
            if self._unit != "s":
                return whole // _PER_MS[self._unit], bad
            if len(whole) == 0 or max(int(whole.max()), -int(whole.min())) <= INT64[1] // 1_000:
                return whole * 1_000, bad
        times = np.zeros(len(events), np.int64)
        for i, stamp in enumerate(stamps):
            if stamp is None:
                continue
            try:
                times[i] = self._time_ms(stamp)
            except Refused as error:
                # A missing key goes before a bad time, as in the slow reader.
                if self._value(events[i], self._key):
                    bad[i] = error
        return times, bad

    def _time_ms(self, stamp: Any) -> int:
        if self._unit == "iso8601":
            try:
                return iso8601_ms(stamp, self._zone)
            except ValueError as error:
                raise malformed(self._time, f"{stamp!r} is no event time: {error}") from None
        ms = int(stamp * 1_000 if self._unit == "s" else stamp // _PER_MS[self._unit])
        if not INT64[0] <= ms <= INT64[1]:
            raise malformed(
                self._time, f"{stamp} {self._unit} is out of range for int64 milliseconds"
            )
        return ms

    def _refuse_not_finite(self, columns: Columns) -> None:
        raw, refused = columns.raw, columns.refused
        for feature, j in zip(self._scaled, self._scaled_columns, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = ((raw[:, j] - feature.shift) * feature.scale).astype(self._dtype)
            bad = ~np.isfinite(scaled) & ~np.isnan(raw[:, j])
            for i in np.flatnonzero(bad).tolist():
                detail = f"{float(raw[i, j])} is not finite after scale and cast to {self._dtype}"
                refused.setdefault(i, malformed(feature.field, detail))


class _Heartbeat(Exception):
    def __init__(self, time: int) -> None:
        super().__init__(time)
        self.time = time
