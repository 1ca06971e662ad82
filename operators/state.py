"""What a shard keeps: keys, the applied events of each key, and held events, as arrays.

A shard is one partition. Each key has a slot; each applied event is a row of the pool that points
to the event before it in the key's life, and carries the model state after it. So the newest row
of a key is its state, an insertion makes new rows from the point of insertion on, and folding an
event in costs nothing: rows below the horizon are simply no longer reached, but for the newest of
them, the base.

Danger: rows that were superseded or whose step was refused stay in the arrays until the pool is
compacted. Nothing may read the pool but by following `head` and `previous`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Columnar, Rows
from operators.held import Held
from operators.known_ids import KnownIds
from operators.policy import NEVER, Bools, Int64s

_FEW = 16


class Pool(Columnar):
    """Applied events, a row each."""

    times: Int64s
    offsets: Int64s
    slots: Int64s
    previous: Rows  # the row of the event before in the life, -1 for the life's first
    counts: Int64s  # events of the life up to and including this one
    first_times: Int64s  # event time of the life's earliest event
    models: NDArray[np.int16]
    raw: NDArray[np.float64]
    state: NDArray[np.uint8]  # after this event
    ids: NDArray[np.object_]

    def __init__(self, raw_columns: int, state_bytes: int, capacity: int = 1024) -> None:
        i8: tuple[Any, tuple[int, ...]] = (np.int64, ())
        super().__init__(
            {
                "times": i8,
                "offsets": i8,
                "slots": i8,
                "previous": i8,
                "counts": i8,
                "first_times": i8,
                "models": (np.int16, ()),
                "raw": (np.float64, (raw_columns,)),
                "state": (np.uint8, (state_bytes,)),
                "ids": (object, ()),
            },
            capacity,
        )

    def take(self, n: int) -> int:
        """Reserves n rows; returns the first of them."""
        self.grow(self.size + n)
        start = self.size
        self.size += n
        return start

    def chains(self, heads: Rows, horizon: int) -> tuple[Rows, Int64s]:
        """Returns the kept rows of several keys, oldest first, key by key.

        Kept are the rows at or after the horizon, and the newest before it: the base.

        Args:
            heads: the newest row of each key, shape (k,); -1 for none.
            horizon: event time in milliseconds.

        Returns:
            The rows, and the number of rows of each key.
        """
        counts = np.zeros(len(heads), np.int64)
        levels: list[tuple[Rows, Rows]] = []  # (which key, which row), from the newest backwards
        keys = np.flatnonzero(heads >= 0)
        rows = heads[keys]
        while len(keys) > _FEW:
            levels.append((keys, rows))
            counts[keys] += 1
            onwards = (self.times[rows] >= horizon) & (self.previous[rows] >= 0)
            keys = keys[onwards]
            rows = self.previous[rows[onwards]]
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            walked = self._walk(row, horizon)
            counts[key] += len(walked)
            levels.append((np.full(len(walked), key), walked))
        order, found = (
            (np.concatenate([k for k, _ in levels]), np.concatenate([r for _, r in levels]))
            if levels
            else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        )
        # Newest first within each key here; reversing a stable sort of the reversed list turns it.
        return found[::-1][np.argsort(order[::-1], kind="stable")], counts

    def _walk(self, row: int, horizon: int) -> Rows:
        times, previous = self.times, self.previous
        rows = [row]
        while times[row] >= horizon and previous[row] >= 0:
            row = int(previous[row])
            rows.append(row)
        return np.array(rows, np.int64)


class Keys(Columnar):
    """What is kept of each key beside its events, a slot each."""

    heads: Rows  # pool row of the newest applied event, -1 for none
    sequences: Int64s
    epochs: Int64s
    late_seen: Int64s
    finished: Bools
    markers: Int64s  # newest event time at the last tombstone that forgot the key, or NEVER
    held: Int64s  # number of held events
    dirty: Bools  # changed since the last drain
    stored: Bools  # known to the store
    used: Bools
    names: NDArray[np.object_]

    def __init__(self, capacity: int = 1024) -> None:
        i8: tuple[Any, tuple[int, ...]] = (np.int64, ())
        flag: tuple[Any, tuple[int, ...]] = (np.bool_, ())
        super().__init__(
            {
                "heads": i8,
                "sequences": i8,
                "epochs": i8,
                "late_seen": i8,
                "finished": flag,
                "markers": i8,
                "held": i8,
                "dirty": flag,
                "stored": flag,
                "used": flag,
                "names": (object, ()),
            },
            capacity,
        )
        self.slots: dict[str, int] = {}
        self._free: list[int] = []

    def add(self, keys: list[str]) -> None:
        """Gives a fresh slot to each of some keys that have none."""
        again = [self._free.pop() for _ in range(min(len(self._free), len(keys)))]
        new = len(keys) - len(again)
        slots = [*again, *range(self.size, self.size + new)]
        self.grow(self.size + new)
        self.size += new
        self.slots.update(zip(keys, slots, strict=True))
        at = np.array(slots, np.int64)
        self.names[at] = keys
        self.clear(at)
        self.markers[at] = NEVER
        self.held[at] = 0
        self.dirty[at] = self.stored[at] = False
        self.used[at] = True

    def clear(self, slots: Rows) -> None:
        """Ends the lives of keys without a successor."""
        self.heads[slots] = -1
        self.sequences[slots] = self.epochs[slots] = self.late_seen[slots] = 0
        self.finished[slots] = False

    def remove(self, slots: Rows) -> None:
        """Frees slots."""
        self.used[slots] = False
        for name in self.names[slots].tolist():
            del self.slots[name]
        self.names[slots] = None
        self._free.extend(slots.tolist())


@dataclass(slots=True)
class Shard:
    """The state of one partition.

    Attributes:
        partition: its number.
        last_offset: offset of the last record applied, -1 before the first.
        max_event_time: greatest event time accepted, or `NEVER`.
        known_ids: ids that may be kept.
        swept_at: the watermark at the last sweep for ended lives.
        unswept: records since then.
        removed: keys whose stored state must go at the next drain.
        counters: what happened so far, by name; no part of the state.
    """

    partition: int
    keys: Keys
    pool: Pool
    held: Held
    last_offset: int = -1
    max_event_time: int = NEVER
    known_ids: KnownIds = field(default_factory=KnownIds)
    swept_at: int = NEVER
    unswept: int = 0
    removed: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a counter."""
        if n:
            self.counters[name] = self.counters.get(name, 0) + n

    def compact(self, horizon: int, room: int) -> None:
        """Makes room for more pool rows, dropping those no key reaches any more."""
        pool, keys = self.pool, self.keys
        if pool.size + room <= pool.capacity and not self.known_ids.full:
            return
        slots = np.flatnonzero(keys.used[: keys.size] & (keys.heads[: keys.size] >= 0))
        rows, counts = pool.chains(keys.heads[slots], horizon)
        ends = np.cumsum(counts)
        pool.keep(rows)
        pool.previous[: pool.size] = np.arange(-1, pool.size - 1)
        pool.previous[ends - counts] = -1
        # The base of a key has lost the events before it, and keeps the counts that stand for them.
        keys.heads[slots] = ends - 1
        if pool.size + room > pool.capacity // 2:
            pool.grow(2 * (pool.size + room))
        if self.known_ids.size:
            self.relearn_ids()

    def relearn_ids(self) -> None:
        """Makes the filter of known ids anew, from the ids that are kept."""
        pool = self.pool
        self.known_ids.renew(pool.capacity + 2 * len(self.held))
        self.known_ids.doubtful(pool.slots[: pool.size], pool.ids[: pool.size])
        for table, rows in self.held.of(np.ones(self.keys.size, np.bool_)):
            self.known_ids.doubtful(table.slots[rows], table.ids[rows])
