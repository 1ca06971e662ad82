"""State to bytes and back: what the engine checkpoints.

Each key is one value: header, events, model state, then what varies in size. The events are the
base and the kept ones; only the state after the first of them is stored, and the others are
stepped again when a shard is restored, so the bytes hold each fact once. The shard itself is one
more value, JSON: position, greatest event time, and everything the state was made under, so that
a job under another spec is refused.

Danger: bytes outlive the code that wrote them. Any change of layout raises `VERSION`.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Rows
from operators.policy import NEVER
from operators.state import Shard

VERSION = 2
#: What the bytes of a shard begin with, so that they can be found in a savepoint's files.
SHARD_MARK = b'{"tidegate_shard":'

_HEADER = np.dtype(
    [
        ("version", "u1"),
        ("finished", "u1"),
        ("events", "<u4"),
        ("held", "<u4"),
        ("late_seen", "<u4"),
        ("state", "<u4"),  # bytes of the state row
        ("count", "<u8"),  # of the first event
        ("first_time", "<i8"),
        ("sequence", "<u8"),
        ("epoch", "<i8"),
        ("marker", "<i8"),
    ]
)
_HELD = np.dtype([("offset", "<i8"), ("timestamp", "<i8"), ("key", "<i4"), ("value", "<i4")])
_NULL = 0xFFFFFFFF
_SHARD: dict[str, type | tuple[type, ...]] = {
    "partition": int,
    "last_offset": int,
    "max_event_time": (int, type(None)),
    "spec": dict,
    "models": list,
}


class StateRefused(ValueError):
    """State that this job must not go on with: names what differs, both values, and the remedy."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What decides the layout of a key's bytes.

    Attributes:
        raw_columns: numbers kept of each event.
        state_bytes: bytes of a state row.
        with_ids: whether events carry ids.
    """

    raw_columns: int
    state_bytes: int
    with_ids: bool

    @property
    def event(self) -> np.dtype[Any]:
        """The dtype of one stored event."""
        return np.dtype([("time", "<i8"), ("offset", "<i8"), ("raw", "<f8", (self.raw_columns,))])


def encode_keys(shard: Shard, slots: Rows, horizon: int, layout: Layout) -> list[bytes]:
    """Encodes what is kept of some keys, one bytes object each."""
    keys, pool = shard.keys, shard.pool
    rows, counts = pool.chains(keys.heads[slots], horizon)
    ends = np.cumsum(counts)
    begins = ends - counts
    alive = counts > 0
    first = rows[begins[alive]]
    header = np.zeros(len(slots), _HEADER)
    header["version"] = VERSION
    header["finished"] = keys.finished[slots]
    header["events"] = counts
    header["held"] = keys.held[slots]
    header["late_seen"] = keys.late_seen[slots]
    header["state"][alive] = layout.state_bytes
    header["count"][alive] = pool.counts[first]
    header["first_time"][alive] = pool.first_times[first]
    header["sequence"] = keys.sequences[slots]
    header["epoch"] = keys.epochs[slots]
    header["marker"] = keys.markers[slots]
    events = np.zeros(len(rows), layout.event)
    events["time"] = pool.times[rows]
    events["offset"] = pool.offsets[rows]
    events["raw"] = pool.raw[rows]
    states = pool.state[first].tobytes()
    heads, body = header.tobytes(), events.tobytes()
    ids = _encode_ids(pool.ids[rows], pool.times[rows] >= horizon) if layout.with_ids else None
    held = _encode_held(shard, slots)
    head_size, event_size, state_size = _HEADER.itemsize, layout.event.itemsize, layout.state_bytes
    out, state_at = [], 0
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        parts = [
            heads[i * head_size : (i + 1) * head_size],
            body[begin * event_size : end * event_size],
        ]
        if end > begin:
            parts.append(states[state_at : state_at + state_size])
            state_at += state_size
        if ids is not None:
            parts.extend(ids[begin:end])
        if held:
            parts.extend(held.get(i, ()))
        out.append(b"".join(parts))
    return out


def _encode_ids(ids: NDArray[np.object_], kept: NDArray[np.bool_]) -> list[bytes]:
    """Encodes ids as length and text; an id below the horizon is not needed any more."""
    null = _NULL.to_bytes(4, "little")
    texts = [
        event_id.encode() if keep and event_id is not None else None
        for event_id, keep in zip(ids.tolist(), kept.tolist(), strict=True)
    ]
    return [null if t is None else len(t).to_bytes(4, "little") + t for t in texts]


def _encode_held(shard: Shard, slots: Rows) -> dict[int, list[bytes]]:
    """Encodes held events as they came: by index into `slots`, by event time and offset."""
    if not len(shard.held):
        return {}
    place = np.full(shard.keys.size, -1, np.int64)
    place[slots] = np.arange(len(slots))
    found: dict[int, list[tuple[int, int, bytes]]] = {}
    for table, rows in shard.held.of(place >= 0):
        for row in rows.tolist():
            key, value = table.kafka_keys[row], table.values[row]
            head = np.array(
                [
                    (
                        table.offsets[row],
                        table.timestamps[row],
                        -1 if key is None else len(key),
                        len(value),
                    )
                ],
                _HELD,
            )
            record = head.tobytes() + (key or b"") + value
            found.setdefault(int(place[table.slots[row]]), []).append(
                (int(table.times[row]), int(table.offsets[row]), record)
            )
    return {i: [record for *_, record in sorted(records)] for i, records in found.items()}


@dataclass(slots=True)
class DecodedKeys:
    """What `decode_keys` found.

    Attributes:
        header: one row a key.
        events: stored events, key by key, oldest first.
        states: state rows after the first event of each key that has one.
        ids: event ids, one a stored event, or None.
        held: key index, offset, timestamp, Kafka key and value of each held event.
    """

    header: NDArray[Any]
    events: NDArray[Any]
    states: NDArray[np.uint8]
    ids: list[str | None] | None
    held: list[tuple[int, int, int, bytes | None, bytes]]


def decode_keys(names: list[str], values: list[bytes], layout: Layout) -> DecodedKeys:
    """Decodes what `encode_keys` made.

    Raises:
        StateRefused: bytes of another version, or that do not fit the layout.
    """
    head_size, event_size = _HEADER.itemsize, layout.event.itemsize
    for name, value in zip(names, values, strict=True):
        if value and value[0] != VERSION:
            raise StateRefused(
                f"state of key {name!r}: layout version {value[0]}, this is {VERSION}\n  remedy: "
                "restore with the release that wrote it, or rerun the log under a new generation"
            )
        if len(value) < head_size:
            raise _damaged(name, f"{len(value)} bytes, a header has {head_size}")
    header = np.frombuffer(b"".join([v[:head_size] for v in values]), _HEADER)
    counts = header["events"].astype(np.int64)
    states_at = head_size + counts * event_size
    states_end = states_at + header["state"].astype(np.int64)
    for name, value, end in zip(names, values, states_end.tolist(), strict=True):
        if len(value) < end:
            raise _damaged(name, f"{len(value)} bytes, its header says at least {end}")
    at, ends = states_at.tolist(), states_end.tolist()
    events = np.frombuffer(
        b"".join([v[head_size:a] for v, a in zip(values, at, strict=True)]), layout.event
    )
    # As wide as the widest model of the job that wrote it: since then, one may have come or gone.
    width = layout.state_bytes
    states = b"".join(
        [
            v[a:end][:width].ljust(width, b"\0")
            for v, a, end, n in zip(values, at, ends, counts.tolist(), strict=True)
            if n
        ]
    )
    ids: list[str | None] | None = [] if layout.with_ids else None
    held: list[tuple[int, int, int, bytes | None, bytes]] = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        end = ends[i]
        try:
            if ids is not None:
                end = _decode_ids(value, end, int(counts[i]), ids)
            end = _decode_held(value, end, i, int(header["held"][i]), held)
        except ValueError as error:
            raise _damaged(name, str(error)) from None
        if end != len(value):
            raise _damaged(name, f"{len(value)} bytes, its header says {end}")
    rows = np.frombuffer(states, np.uint8).reshape(int(np.count_nonzero(counts)), width)
    return DecodedKeys(header, events, rows, ids, held)


def _damaged(name: str, found: str) -> StateRefused:
    return StateRefused(
        f"state of key {name!r}: {found}\n"
        "  remedy: restore from an earlier savepoint; this one is damaged"
    )


def _decode_ids(value: bytes, at: int, n: int, ids: list[str | None]) -> int:
    for _ in range(n):
        size = int.from_bytes(value[at : at + 4], "little")
        at += 4
        if size == _NULL:
            ids.append(None)
        else:
            ids.append(value[at : at + size].decode())
            at += size
    return at


def _decode_held(
    value: bytes, at: int, i: int, n: int, held: list[tuple[int, int, int, bytes | None, bytes]]
) -> int:
    for _ in range(n):
        offset, timestamp, key_size, value_size = np.frombuffer(value, _HELD, 1, at)[0].tolist()
        at += _HELD.itemsize
        key = None if key_size < 0 else value[at : at + key_size]
        at += max(key_size, 0)
        held.append((i, offset, timestamp, key, value[at : at + value_size]))
        at += value_size
    return at


def encode_shard(shard: Shard, made_under: dict[str, Any]) -> bytes:
    """Encodes a shard's position and what its state was made under."""
    meta = json.dumps(
        {
            "partition": shard.partition,
            "last_offset": shard.last_offset,
            "max_event_time": None if shard.max_event_time == NEVER else shard.max_event_time,
            **made_under,
        },
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    return b"%b%d,%b" % (SHARD_MARK, VERSION, meta[1:])


def decode_shard(data: bytes) -> dict[str, Any]:
    """Decodes what `encode_shard` made.

    Raises:
        StateRefused: bytes of another version, or that cannot be read.
    """
    try:
        meta = json.loads(data)
        version = meta["tidegate_shard"]
        if version == VERSION:
            found = {name: meta[name] for name in _SHARD}
            if all(isinstance(found[name], kinds) for name, kinds in _SHARD.items()):
                return found
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise StateRefused(
            "state of the shard cannot be read\n  remedy: restore from an earlier savepoint"
        ) from None
    raise StateRefused(
        f"state of the shard: layout version {version}, this is {VERSION}\n  remedy: restore "
        "with the release that wrote it, or rerun the log under a new generation"
    )
