"""What a shard keeps: keys, the applied events of each key, and held events, as arrays.

A shard is one partition. Each key has a slot; each applied event is a row of the pool that points
to the event before it in the key's life, and carries the model state after it. So the newest row
of a key is its state, an insertion makes new rows from the point of insertion on, and folding an
event in costs nothing: rows below the horizon are simply no longer reached, but for the newest of
them, the base.

Danger: rows that were superseded or whose step was refused stay in the arrays until the pool is
compacted. Nothing may read the pool but by following `head` and `previous`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.policy import NEVER, Bools, Int64s

Rows = NDArray[np.int64]

_FEW = 16


class Columnar:
    """Arrays that grow together.

    Args:
        columns: name to (dtype, shape of one row).
        capacity: rows to begin with.
    """

    def __init__(self, columns: dict[str, tuple[Any, tuple[int, ...]]], capacity: int) -> None:
        self._names = tuple(columns)
        self.capacity = capacity
        self.size = 0
        for name, (dtype, shape) in columns.items():
            setattr(self, name, _blank((capacity, *shape), dtype))

    def grow(self, capacity: int) -> None:
        """Makes room for `capacity` rows."""
        if capacity <= self.capacity:
            return
        self.capacity = max(capacity, 2 * self.capacity)
        for name in self._names:
            old = getattr(self, name)
            new = _blank((self.capacity, *old.shape[1:]), old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)

    def keep(self, rows: Rows) -> None:
        """Keeps only these rows, in this order."""
        for name in self._names:
            column = getattr(self, name)
            column[: len(rows)] = column[rows]
            if column.dtype == object:
                column[len(rows) : self.size] = None
        self.size = len(rows)


def _blank(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.full(shape, None) if np.dtype(dtype).kind == "O" else np.zeros(shape, dtype)


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


class HeldEvents(Columnar):
    """Held events by event time and offset, a row each; `start` is the first not released.

    Args:
        raw_columns: numbers kept of each event.
        capacity: rows to begin with.
        with_records: whether the Kafka keys and values are kept, as they are of events that wait.
    """

    times: Int64s
    offsets: Int64s
    timestamps: Int64s
    slots: Int64s
    raw: NDArray[np.float64]
    terminal: Bools
    ids: NDArray[np.object_]
    kafka_keys: NDArray[np.object_]
    values: NDArray[np.object_]

    def __init__(self, raw_columns: int, capacity: int, with_records: bool) -> None:
        i8: tuple[Any, tuple[int, ...]] = (np.int64, ())
        anything: tuple[Any, tuple[int, ...]] = (object, ())
        super().__init__(
            {
                "times": i8,
                "offsets": i8,
                "timestamps": i8,
                "slots": i8,
                "raw": (np.float64, (raw_columns,)),
                "terminal": (np.bool_, ()),
                "ids": anything,
                **({"kafka_keys": anything, "values": anything} if with_records else {}),
            },
            capacity,
        )
        self.start = 0
        self.with_records = with_records

    def rows(self) -> slice:
        """Returns where the events are that were not yet released."""
        return slice(self.start, self.size)

    def sort(self) -> None:
        """Puts the rows in (event time, offset) order, the released ones left out."""
        live = self.rows()
        self.keep(self.start + np.lexsort((self.offsets[live], self.times[live])))
        self.start = 0

    def pass_over(self, n: int) -> None:
        """Leaves the first n rows behind."""
        self.start += n
        if 2 * self.start > self.size:
            self.keep(np.arange(self.start, self.size))
            self.start = 0

    def append(self, other: "HeldEvents", rows: Rows) -> None:
        """Appends rows of another table."""
        stop = self.size + len(rows)
        self.grow(stop)
        for name in self._names:
            getattr(self, name)[self.size : stop] = getattr(other, name)[rows]
        self.size = stop


class Held:
    """All held events of a shard, as a few sorted tables of growing size.

    Args:
        raw_columns: numbers kept of each event.
        with_records: whether events are ever held, so that their records must be kept.
    """

    def __init__(self, raw_columns: int, with_records: bool) -> None:
        self._raw_columns = raw_columns
        self._with_records = with_records
        self._tables: list[HeldEvents] = []

    def __len__(self) -> int:
        return sum(table.size - table.start for table in self._tables)

    def new_table(self, capacity: int) -> HeldEvents:
        """Returns an empty table to be filled and given to `add`."""
        return HeldEvents(self._raw_columns, max(capacity, 1), self._with_records)

    def add(self, table: HeldEvents) -> None:
        """Takes a table over; tables of like size are merged, so that there are few."""
        if not table.size:
            return
        table.sort()
        self._tables.append(table)
        while len(self._tables) > 1 and self._tables[-2].size <= 2 * self._tables[-1].size:
            last, other = self._tables.pop(), self._tables.pop()
            other.append(last, np.arange(last.start, last.size))
            other.sort()
            self._tables.append(other)

    def release(self, watermark: int) -> HeldEvents:
        """Takes out and returns, in order, what lies before a watermark."""
        released = self.new_table(0)
        for table in self._tables:
            n = int(np.searchsorted(table.times[table.rows()], watermark, side="left"))
            if n:
                released.append(table, np.arange(table.start, table.start + n))
                table.pass_over(n)
        self._tables = [table for table in self._tables if table.size > table.start]
        released.sort()
        return released

    def drop(self, slot: int, before_offset: int) -> tuple[int, int]:
        """Drops a key's events below an offset; returns (number, newest event time or NEVER)."""
        dropped, newest = 0, NEVER
        for table, rows in self._of_key(slot, before_offset):
            dropped += len(rows)
            newest = max(newest, int(table.times[rows].max()))
            table.keep(np.delete(np.arange(table.size), rows))
        return dropped, newest

    def has_id(self, slot: int, event_id: str, before_offset: int) -> bool:
        """Tells whether a key has a held event of that id below an offset."""
        return any(
            table.ids[row] == event_id
            for table, rows in self._of_key(slot, before_offset)
            for row in rows.tolist()
        )

    def _of_key(self, slot: int, before_offset: int) -> Iterator[tuple[HeldEvents, Rows]]:
        for table in self._tables:
            live = table.rows()
            rows = np.flatnonzero(
                (table.slots[live] == slot) & (table.offsets[live] < before_offset)
            )
            if len(rows):
                yield table, rows + table.start

    def of(self, wanted: Bools) -> Iterator[tuple[HeldEvents, Rows]]:
        """Yields, table by table, the rows of the wanted slots."""
        for table in self._tables:
            rows = np.flatnonzero(wanted[table.slots[table.rows()]])
            if len(rows):
                yield table, rows + table.start


class KnownIds:
    """Tells event ids that are surely new from those that may be known: a Bloom filter.

    Two probes into a table of bytes, 16 for each id at the most: about one new id in a hundred is
    doubted then, which costs a look-up and decides nothing.
    """

    _BYTES_PER_ID = 16
    _MIX = np.uint64(0x9E3779B97F4A7C15)

    def __init__(self) -> None:
        self._table = np.zeros(1 << 16, np.bool_)
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether it should be made anew."""
        return self.size * self._BYTES_PER_ID > len(self._table)

    def renew(self, room: int) -> None:
        """Forgets everything, and makes room for so many ids."""
        size = max(room * self._BYTES_PER_ID, 1 << 16)
        self._table = np.zeros(1 << (size - 1).bit_length(), np.bool_)
        self.size = 0

    def doubtful(self, slots: Int64s, ids: NDArray[np.object_]) -> Bools:
        """Adds the ids of some keys; tells which may have been there before, or twice.

        Args:
            slots: the keys' slots, shape (n,).
            ids: event ids, None for none, which is never known, shape (n,).
        """
        mixed = self._mixed(slots, ids)
        first, second = self._probes(mixed)
        doubtful = self._table[first] & self._table[second]
        self._table[first] = self._table[second] = True
        self.size += len(slots)
        order = np.argsort(mixed, kind="stable")
        doubtful[order[1:]] |= mixed[order[1:]] == mixed[order[:-1]]
        none = ids == None  # noqa: E711 (element by element)
        return doubtful & ~none if none.any() else doubtful

    def _mixed(self, slots: Int64s, ids: NDArray[np.object_]) -> NDArray[np.uint64]:
        hashes = np.fromiter(map(hash, ids.tolist()), np.int64, len(ids)).view(np.uint64)
        mixed: NDArray[np.uint64] = (hashes ^ slots.view(np.uint64) * self._MIX) * self._MIX
        return mixed

    def _probes(self, mixed: NDArray[np.uint64]) -> tuple[Int64s, Int64s]:
        bits = np.uint64(len(self._table).bit_length() - 1)
        first = mixed >> (np.uint64(64) - bits)
        second = (mixed * self._MIX) >> (np.uint64(64) - bits)
        return first.view(np.int64), second.view(np.int64)


@dataclass(slots=True)
class Shard:
    """The state of one partition.

    Attributes:
        partition: its number.
        last_offset: offset of the last record applied, -1 before the first.
        max_event_time: greatest event time accepted, or `NEVER`.
        known_ids: ids that may be kept.
        swept_at: the watermark at the last sweep for ended lives.
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
