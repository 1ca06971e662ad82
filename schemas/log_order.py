"""The order of a recorded log: offsets that grow within each partition, and nothing across them.

A block of rows in file order is split here into one batch for each partition, once its offsets are
known to follow everything before it.
"""

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.log_columns import Columns, LogError
from schemas.records import RecordBatch

Count = Annotated[int, msgspec.Meta(ge=0)]


class PartitionRange(msgspec.Struct, frozen=True):
    """What a log holds of one partition."""

    partition: Count
    rows: Count
    first_offset: Count
    last_offset: Count


class Positions:
    """The first and last offset seen of each partition."""

    def __init__(self, partitions: int | None) -> None:
        self.partitions = partitions
        self.ranges: dict[int, PartitionRange] = {}

    def advance(self, path: Path, columns: Columns, unit: str) -> list[RecordBatch]:
        """Splits a block by partition, in partition order, if it follows what was seen.

        Raises:
            LogError: a partition is beyond the topic's, or offsets do not grow within one.
        """
        batches = []
        for partition, at in _groups(columns.partitions):
            if self.partitions is not None and partition >= self.partitions:
                raise LogError(
                    path,
                    "a partition that the topic does not have",
                    place=columns.place(_row(at, 0), unit),
                    found=f"partition {partition}",
                    needed=f"0 to {self.partitions - 1}",
                    remedy="correct the number of partitions in the spec or the manifest",
                )
            batch = _take(columns, partition, at)
            self._check(path, columns, at, batch, unit)
            self.note(batch)
            batches.append(batch)
        return batches

    def _check(
        self,
        path: Path,
        columns: Columns,
        at: NDArray[np.intp] | None,
        batch: RecordBatch,
        unit: str,
    ) -> None:
        seen = self.ranges.get(batch.partition)
        before = np.empty_like(batch.offsets)
        before[0] = seen.last_offset if seen else -1
        before[1:] = batch.offsets[:-1]
        if not (grows := batch.offsets > before).all():
            index = int(np.argmin(grows))
            raise LogError(
                path,
                f"offsets do not grow within partition {batch.partition}",
                place=columns.place(_row(at, index), unit),
                found=f"offset {batch.offsets[index]} after offset {before[index]}",
                needed=f"an offset greater than {before[index]}",
                remedy="record the log again; a log that was sorted, merged or restarted is no log",
            )

    def note(self, batch: RecordBatch) -> None:
        """Takes a batch as seen without a look at its offsets."""
        seen = self.ranges.get(batch.partition)
        self.ranges[batch.partition] = PartitionRange(
            batch.partition,
            (seen.rows if seen else 0) + len(batch),
            seen.first_offset if seen else int(batch.offsets[0]),
            int(batch.offsets[-1]),
        )


def _groups(partitions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp] | None]]:
    """Yields each partition with its rows in file order; None stands for all rows."""
    if len(partitions) == 0:
        return
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), None
        return
    order = np.argsort(partitions, kind="stable")
    found, starts = np.unique(partitions[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _take(columns: Columns, partition: int, at: NDArray[np.intp] | None) -> RecordBatch:
    if at is None:
        return RecordBatch(
            partition, columns.offsets, columns.timestamps, columns.keys, columns.values
        )
    if len(at) == 1:
        index = int(at[0])
        keys, values = [columns.keys[index]], [columns.values[index]]
    else:
        pick = itemgetter(*at.tolist())
        keys, values = list(pick(columns.keys)), list(pick(columns.values))
    return RecordBatch(partition, columns.offsets[at], columns.timestamps[at], keys, values)


def _row(at: NDArray[np.intp] | None, index: int) -> int:
    return index if at is None else int(at[index])
