"""Admitted events to operations: who waits, who is released, what needs a closer look.

Under `on_event` every admitted event is one operation. Under `on_watermark` an on-time event is
held, and becomes an operation when a later record moves the watermark past it. An operation whose
outcome may hang on another one of its key (an id seen before, a tombstone, a finished key) is
marked careful; all others are plain. The mark may be set too often, at the cost of speed; never too
seldom.
"""

import numpy as np
from numpy.typing import NDArray

from operators.admit import Admitted
from operators.columnar import Rows
from operators.held import HeldEvents
from operators.operations import Action, Operations
from operators.policy import Bools, Int64s, Policy, Reason
from operators.rejects import Rejects
from operators.state import Shard

_COLUMNS = (
    "action",
    "released",
    "position",
    "late",
    "lateness",
    "life",
    "horizon",
    "watermark",
    "careful",
    "checked",
    "stays",
)


class Planner:
    """Turns admitted events into operations.

    Args:
        policy: the spec's times and choices.
        raw_columns: numbers kept of each event.
    """

    def __init__(self, policy: Policy, raw_columns: int) -> None:
        self._policy = policy
        self._raw_columns = raw_columns

    def plan(self, shard: Shard, admitted: Admitted, rejects: Rejects) -> tuple[Operations, Rows]:
        """Plans a batch; what needs no operation is rejected or held at once.

        Returns:
            The operations, sorted by slot and then by the order they happen; and the order in which
            their records are emitted.
        """
        policy = self._policy
        _count_mismatches(shard, admitted)
        arrivals = _Arrivals(shard, admitted, policy.hold)
        touchy = np.zeros(shard.keys.size, np.bool_)
        touchy[[slot for _, slot in admitted.tombstones]] = True
        arrivals.careful = arrivals.checked | touchy[arrivals.slots]
        keep = np.ones(len(arrivals.slots), np.bool_)
        held = np.zeros(0, np.int64)
        if policy.hold:
            plain = ~arrivals.late & ~arrivals.careful
            forgotten = plain & (arrivals.times <= shard.keys.markers[arrivals.slots])
            arrivals.reject(forgotten, Reason.FORGOTTEN, rejects)
            held = np.flatnonzero(plain & ~forgotten)
            keep[plain] = False
        if policy.drop_late and arrivals.late.any():
            settled = arrivals.late & ~arrivals.careful & arrivals.unfinished(shard)
            settled &= arrivals.times > shard.keys.markers[arrivals.slots]
            arrivals.reject(settled, Reason.LATE, rejects)
            keep[settled] = False
        kept = np.flatnonzero(keep)
        if not policy.hold and not admitted.tombstones:
            # Events are in the order they happen; one stable sort puts them key by key.
            by_key = kept[np.argsort(arrivals.slots[kept], kind="stable")]
            return self._arriving(arrivals, by_key), np.argsort(by_key)
        parts = [self._arriving(arrivals, kept)]
        if policy.hold:
            parts.append(self._releases(shard, arrivals, held, keep, touchy))
        if admitted.tombstones:
            parts.append(self._forgets(admitted))
        return _in_order(_concatenate(parts))

    def released_at_end(self, shard: Shard) -> tuple[Operations, Rows]:
        """Plans the end of a bounded log: releases all held events."""
        watermark = shard.max_event_time - self._policy.out_of_orderness_ms
        released = shard.held.release(2**63 - 1)
        n = released.size
        _unhold(shard, released.slots[:n])
        return _in_order(_releasing(released, np.zeros(n, np.int64), np.full(n, watermark)))

    def _arriving(self, arrivals: "_Arrivals", rows: Rows) -> Operations:
        """Returns the operations of arriving events, in the given order."""
        policy = self._policy
        late, before = arrivals.late[rows], arrivals.before[rows]
        action = np.full(len(rows), Action.HOLD if policy.hold else Action.APPLY, np.int8)
        action[late] = Action.REJECT_LATE if policy.drop_late else Action.APPLY
        return Operations(
            events=arrivals.table(rows),
            action=action,
            released=np.zeros(len(rows), np.bool_),
            position=arrivals.records[rows],
            late=late,
            lateness=np.where(late, before - arrivals.times[rows], 0),
            life=before,
            horizon=before - policy.keep_ms,
            watermark=arrivals.after[rows],
            careful=arrivals.careful[rows] | (action != Action.APPLY),
            checked=arrivals.checked[rows],
            stays=arrivals.times[rows] >= arrivals.final,
        )

    def _releases(
        self, shard: Shard, arrivals: "_Arrivals", held: Rows, keep: Bools, touchy: Bools
    ) -> Operations:
        """Holds on-time events, and returns operations for all that this batch releases."""
        leaving = arrivals.times < arrivals.final
        doubtful = np.flatnonzero(keep & ~arrivals.late & leaving)
        staying = arrivals.table(held[~leaving[held]])
        slots = staying.slots[: staying.size]
        np.add.at(shard.keys.held, slots, 1)
        shard.keys.dirty[slots] = True
        shard.held.add(staying)
        released = shard.held.release(arrivals.final)
        _unhold(shard, released.slots[: released.size])
        for rows in (held[leaving[held]], doubtful):
            released.append(arrivals.table(rows), np.arange(len(rows)))
        n = released.size
        # The first record that leaves the watermark beyond the event releases it.
        position = np.searchsorted(arrivals.watermarks[1:], released.times[:n], side="right")
        ops = _releasing(released, position, arrivals.watermarks[position + 1])
        # Whether a doubtful event is held at all is decided when it arrives.
        ops.careful = touchy[released.slots[:n]]
        ops.careful[n - len(doubtful) :] = True
        return ops

    def _forgets(self, admitted: Admitted) -> Operations:
        """Returns the operations of tombstones."""
        n = len(admitted.tombstones)
        at = np.array([i for i, _ in admitted.tombstones], np.int64)
        table = HeldEvents(self._raw_columns, n, self._policy.hold)
        table.size = n
        table.slots[:n] = [slot for _, slot in admitted.tombstones]
        table.offsets[:n] = admitted.batch.offsets[at]
        zeros, flags = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        return Operations(
            events=table,
            action=np.full(n, Action.FORGET, np.int8),
            released=flags,
            position=at,
            late=flags,
            lateness=zeros,
            life=zeros,
            horizon=zeros,
            watermark=zeros,
            careful=~flags,
            checked=flags,
            stays=flags,
        )


class _Arrivals:
    """The admitted events of a batch as columns, in offset order."""

    def __init__(self, shard: Shard, admitted: Admitted, with_records: bool) -> None:
        records = self.records = admitted.events
        self._admitted = admitted
        self._with_records = with_records
        self._rows = admitted.row[records]
        self.slots = admitted.slots
        self.times = admitted.columns.times[self._rows]
        self.watermarks = admitted.watermarks
        self.before = admitted.watermarks[records]
        self.after = admitted.watermarks[records + 1]
        self.final = int(admitted.watermarks[-1])
        self.late = self.times < self.before
        self._ids: NDArray[np.object_] | None = None
        self.checked = np.zeros(len(records), np.bool_)
        self.careful = self.checked
        if admitted.columns.ids is not None:
            ids = np.empty(len(admitted.columns.ids), object)
            ids[:] = admitted.columns.ids
            self._ids = ids[self._rows]
            self.checked = shard.known_ids.doubtful(self.slots, self._ids)

    def table(self, rows: Rows) -> HeldEvents:
        """Returns some of the events as a table, in the given order."""
        columns, batch, n = self._admitted.columns, self._admitted.batch, len(rows)
        records, decoded = self.records[rows], self._rows[rows]
        table = HeldEvents(columns.raw.shape[1], max(n, 1), self._with_records)
        table.size = n
        table.times[:n] = self.times[rows]
        table.offsets[:n] = batch.offsets[records]
        table.timestamps[:n] = batch.timestamps[records]
        table.slots[:n] = self.slots[rows]
        table.raw[:n] = columns.raw[decoded]
        table.terminal[:n] = columns.terminal[decoded]
        if self._ids is not None:
            table.ids[:n] = self._ids[rows]
        if self._with_records:
            table.kafka_keys[:n] = [batch.keys[i] for i in records.tolist()]
            table.values[:n] = [batch.values[i] for i in records.tolist()]
        return table

    def unfinished(self, shard: Shard) -> Bools:
        """Tells whose key is not finished and cannot become so within this batch."""
        closed = shard.keys.finished[: shard.keys.size].copy()
        closed[self.slots[self._admitted.columns.terminal[self._rows]]] = True
        for held, rows in shard.held.of(np.ones(shard.keys.size, np.bool_)):
            closed[held.slots[rows[held.terminal[rows]]]] = True
        return ~closed[self.slots]

    def reject(self, which: Bools, reason: Reason, rejects: Rejects) -> None:
        """Rejects some of the events."""
        lateness = np.where(self.late[which], self.before[which] - self.times[which], 0)
        rejects.add_many(self.records[which], reason, lateness)


def _releasing(events: HeldEvents, position: Int64s, watermark: Int64s) -> Operations:
    """Returns operations that apply held events, in their order."""
    n = events.size
    flags = np.zeros(n, np.bool_)
    return Operations(
        events=events,
        action=np.full(n, Action.APPLY, np.int8),
        released=~flags,
        position=position,
        late=flags,
        lateness=np.zeros(n, np.int64),
        # A held event is judged as if the watermark stood at its own time.
        life=events.times[:n].copy(),
        horizon=np.zeros(n, np.int64),
        watermark=watermark,
        careful=flags.copy(),
        checked=flags,
        stays=flags,
    )


def _unhold(shard: Shard, slots: Int64s) -> None:
    np.subtract.at(shard.keys.held, slots, 1)
    shard.keys.dirty[slots] = True


def _in_order(ops: Operations) -> tuple[Operations, Rows]:
    """Sorts operations by slot; returns them and the order of their records.

    A record comes first, then what it releases, by event time and offset.
    """
    events, n = ops.events, ops.events.size
    times = np.where(ops.released, events.times[:n], 0)
    order = np.lexsort((events.offsets[:n], times, ops.released, ops.position))
    by_key = order[np.argsort(events.slots[order], kind="stable")]
    place = np.empty(n, np.int64)
    place[by_key] = np.arange(n)
    sorted_events = HeldEvents(events.raw.shape[1], max(n, 1), events.with_records)
    sorted_events.append(events, by_key)
    taken = {name: getattr(ops, name)[by_key] for name in _COLUMNS}
    return Operations(events=sorted_events, **taken), place[order]


def _concatenate(parts: list[Operations]) -> Operations:
    first = parts[0].events
    size = max(sum(part.events.size for part in parts), 1)
    events = HeldEvents(first.raw.shape[1], size, first.with_records)
    for part in parts:
        events.append(part.events, np.arange(part.events.size))
    return Operations(
        events=events,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS},
    )


def _count_mismatches(shard: Shard, admitted: Admitted) -> None:
    """Counts Kafka keys that are there and differ from the stream key."""
    kafka_keys, keys = admitted.batch.keys, admitted.columns.keys
    if _joined(kafka_keys) == "\n".join(keys).encode():
        return
    kafka_keys = [kafka_keys[i] for i in admitted.events.tolist()]
    keys = [keys[j] for j in admitted.row[admitted.events].tolist()]
    pairs = zip(kafka_keys, keys, strict=True)
    shard.count("key_mismatch", sum(k is not None and k != key.encode() for k, key in pairs))


def _joined(keys: list[bytes | None]) -> bytes | None:
    try:
        return b"\n".join(keys)  # type: ignore[arg-type]
    except TypeError:  # a null among them
        return None
