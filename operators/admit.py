"""Steps 1 to 7: from a batch of records to the events that may touch a key.

What is decided here needs no key's state: already applied, tombstone, schema and key, partition,
bounds of time, watermark, too late. All of it is array work over the batch; only what is refused
costs a call of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from operators.columnar import Rows
from operators.decode import Columns, Decoder
from operators.partitioner import partitions_for
from operators.policy import Bools, Int64s, Policy, Reason
from operators.rejects import DETAILS, Rejects
from operators.state import Shard
from schemas.records import RecordBatch
from schemas.spec import Source


@dataclass(slots=True)
class Admitted:
    """Records of a batch that passed steps 1 to 7, and what the batch did to the watermark.

    Attributes:
        batch: the batch, what was already applied left out.
        columns: its decoded values.
        row: row of the columns of each record, -1 for a null value, shape (n,).
        events: the admitted records, shape (m,).
        slots: their slots, shape (m,).
        tombstones: (record, slot) of keys to forget.
        watermarks: [i] is the watermark before record i, [i + 1] after it, shape (n + 1,).
    """

    batch: RecordBatch
    columns: Columns
    row: Rows
    events: Rows
    slots: Int64s
    tombstones: list[tuple[int, int]]
    watermarks: Int64s


class Admitter:
    """Takes records through steps 1 to 7.

    Args:
        source: the partitions of the topic, and how producers choose one.
        policy: the spec's times and choices.
        decoder: reads the values.
    """

    def __init__(self, source: Source, policy: Policy, decoder: Decoder) -> None:
        self._source = source
        self._policy = policy
        self._decoder = decoder

    def unseen(self, shard: Shard, batch: RecordBatch) -> RecordBatch:
        """Step 1: leaves out what is already applied; takes the position over."""
        n = len(batch)
        shard.count("records", n)
        if not n:
            return batch
        before = np.maximum.accumulate(np.concatenate(([shard.last_offset], batch.offsets[:-1])))
        new = batch.offsets > before
        shard.last_offset = max(shard.last_offset, int(batch.offsets.max()))
        if new.all():
            return batch
        shard.count("skipped", int(n - new.sum()))
        keep = np.flatnonzero(new)
        return RecordBatch(
            batch.partition,
            batch.offsets[keep],
            batch.timestamps[keep],
            [batch.keys[i] for i in keep.tolist()],
            [batch.values[i] for i in keep.tolist()],
        )

    def admit(self, shard: Shard, batch: RecordBatch, rejects: Rejects) -> Admitted:
        """Steps 2 to 7."""
        n = len(batch)
        values, at = batch.values, np.arange(n)
        row = at
        if None in values:
            at = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
            row = np.full(n, -1)
            row[at] = np.arange(len(at))
        columns = self._decoder.decode([v for v in values if v is not None])
        good = np.zeros(n, np.bool_)
        good[at] = True
        times = np.zeros(n, np.int64)
        times[at] = columns.times
        beats = np.zeros(n, np.bool_)
        beats[at] = columns.heartbeat

        def refuse(i: int, reason: Reason, detail: str) -> None:
            good[i] = False
            rejects.add(i, reason, detail)

        for j, refused in columns.refused.items():
            refuse(int(at[j]), refused.reason, refused.detail)
        bounds = self._policy.time_bounds(times, batch.timestamps)
        timely = ~(bounds[0] | bounds[1])
        slots = self._slots(shard, columns, row, good & ~beats, timely, refuse)
        self._check_bounds(times, batch.timestamps, good, bounds, refuse)
        watermarks, shard.max_event_time = self._policy.watermarks(
            times, good, shard.max_event_time
        )
        shard.count("heartbeats", int((beats & good).sum()))
        good &= ~beats
        too_late = good & (times < watermarks[:-1] - self._policy.allowed_lateness_ms)
        gone = np.flatnonzero(too_late)
        rejects.add_many(gone, Reason.TOO_LATE, watermarks[gone] - times[gone])
        good &= ~too_late
        tombstones = self._tombstones(shard, batch, row, rejects) if len(at) < n else []
        events = np.flatnonzero(good)
        return Admitted(batch, columns, row, events, slots[events], tombstones, watermarks)

    def _check_bounds(
        self,
        times: Int64s,
        timestamps: Int64s,
        good: Bools,
        bounds: tuple[Bools, Bools],
        refuse: Callable[..., None],
    ) -> None:
        """Step 5: refuses times beyond what the record's own timestamp and the spec allow."""
        future, implausible = bounds
        for i in np.flatnonzero(good & (future | implausible)).tolist():
            time = int(times[i])
            if future[i]:
                ahead = time - int(timestamps[i])
                reason, bound = Reason.FUTURE_TIME, f"{ahead} > {self._policy.max_future_ms}"
            else:
                reason = Reason.IMPLAUSIBLE_TIME
                bound = f"{time} < {self._policy.min_event_time_ms}"
            refuse(i, reason, f"{DETAILS[reason]}: {bound}")

    def _slots(
        self,
        shard: Shard,
        columns: Columns,
        row: Rows,
        wanted: Bools,
        timely: Bools,
        refuse: Callable[..., None],
    ) -> Int64s:
        """Finds or makes the slot of each wanted record; refuses keys of other partitions.

        A key none of whose records are timely gets no slot: nothing would ever free it.
        """
        keys = columns.keys
        slots = np.full(len(row), -1, np.int64)
        at = np.flatnonzero(wanted)
        wanted_keys = keys if len(at) == len(keys) else [keys[j] for j in row[at].tolist()]
        lookup = shard.keys.slots.get
        slots[at] = np.fromiter(map(lookup, wanted_keys, repeat(-1)), np.int64, len(at))
        unknown = at[slots[at] < 0]
        if not len(unknown):
            return slots
        unknown_keys = [keys[j] for j in row[unknown].tolist()]
        fresh = list(dict.fromkeys(unknown_keys))
        homes: dict[str, int] = {}
        partitioner, partitions = self._source.partitioner, self._source.partitions
        if partitioner != "none":
            found = partitions_for([key.encode() for key in fresh], partitioner, partitions)
            homes = dict(zip(fresh, found.tolist(), strict=True))
            fresh = [key for key in fresh if homes[key] == shard.partition]
        seen = {keys[j] for j in row[unknown[timely[unknown]]].tolist()}
        shard.keys.add([key for key in fresh if key in seen])
        slots[unknown] = np.fromiter(map(lookup, unknown_keys, repeat(-1)), np.int64, len(unknown))
        for i in unknown[slots[unknown] < 0].tolist():
            key = keys[int(row[i])]
            if homes.get(key, shard.partition) == shard.partition:
                continue  # out of bounds, which is refused next
            refuse(
                i,
                Reason.MISROUTED,
                f"key {key!r} belongs in partition {homes[key]} by {partitioner} over "
                f"{partitions}, found in {shard.partition}",
            )
        return slots

    def _tombstones(
        self, shard: Shard, batch: RecordBatch, row: Rows, rejects: Rejects
    ) -> list[tuple[int, int]]:
        """Step 2: rejects null values; under `forget`, returns (record, slot) of keys to forget."""
        found = []
        for i in np.flatnonzero(row < 0).tolist():
            key = _utf8(batch.keys[i]) if self._policy.forget else None
            rejects.add(i, Reason.TOMBSTONE, applied=bool(key))
            # A key that never had an event has nothing to forget.
            if key and key in shard.keys.slots:
                found.append((i, shard.keys.slots[key]))
        return found


def _utf8(key: bytes | None) -> str | None:
    if not key:
        return None
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return None
