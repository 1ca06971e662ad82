"""Events that wait for the watermark, under `on_watermark`.

They lie in a few tables sorted by event time, each at least twice as long as the next, so that
neither a new event nor a release moves them all.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Columnar, Rows
from operators.policy import NEVER, Bools, Int64s


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
