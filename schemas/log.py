"""The recorded log: what a Kafka topic held, as a file that can be read again.

A log is a `.jsonl`, `.jsonl.gz` or `.parquet` file, or a directory of them (read in the natural
order of their names, so that `part-10` follows `part-9`). Each row is one record:

    partition   0 or more
    offset      grows within its partition, gaps are fine (compaction and transactions leave them)
    timestamp   the record's own Kafka timestamp, milliseconds since the epoch
    key         the Kafka key, or null
    value       the Kafka value, or null (a tombstone)

In JSON Lines, `key` and `value` are text, and `key_base64` or `value_base64` stands instead of one
whose bytes are not UTF-8; other columns are ignored. In Parquet, they are binary or string.

The order of rows within a partition is the log. The order across partitions means nothing: no
answer may depend on it. So a file whose offsets do not grow within a partition is refused, as
nobody can say what it means; and there is nothing in a log but its rows, no arrival order and no
clock.

Beside the file may lie `NAME.manifest.json`: the topic's partitions, and rows, bytes, sha256 and
the first and last offset of each partition, which find a copy cut short.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from schemas.log_columns import SUFFIXES, Columns, LogError, check_suffix
from schemas.log_jsonl import read_jsonl
from schemas.log_manifest import (
    Manifest,
    check_complete,
    checked_manifest,
    differs,
    file_digest,
    manifest_path,
    read_manifest,
)
from schemas.log_order import PartitionRange, Positions
from schemas.log_parquet import read_parquet
from schemas.log_write import LogRow, LogWriter, write_log
from schemas.records import RecordBatch

__all__ = [
    "Columns",
    "LogError",
    "LogRow",
    "LogWriter",
    "Manifest",
    "PartitionRange",
    "log_digest",
    "log_files",
    "manifest_path",
    "read_log",
    "read_manifest",
    "rows_in",
    "write_log",
]

#: Records that may wait for their partition's batch to fill, over all partitions.
_WAITING_ROWS_MAX: Final = 1 << 19


def read_log(
    path: Path | str, batch_rows: int = 16_384, partitions: int | None = None
) -> Iterator[RecordBatch]:
    """Reads a log as batches of one partition each, in offset order within the partition.

    Memory is bounded by the blocks being read and the records that wait for their partition's batch
    to fill; a partition that fills slowly gets smaller batches. Where batches end means nothing.

    Args:
        path: a log file or a directory of them.
        batch_rows: the most records in a batch.
        partitions: the topic's partitions; a manifest that says otherwise, or a row beyond, is
            refused.

    Raises:
        LogError: at once if there is no log or its manifest disagrees, else when the row is
            reached.
    """
    if batch_rows < 1:
        raise ValueError(f"batch_rows must be at least 1, got {batch_rows}")
    files = log_files(path)
    manifests: list[Manifest | None] = []
    for file in files:
        manifest = checked_manifest(file, partitions)
        manifests.append(manifest)
        if manifest:
            partitions = manifest.partitions
    return _batches(files, manifests, batch_rows, partitions)


def log_files(path: Path | str) -> list[Path]:
    """Returns the files of a log in reading order.

    Raises:
        LogError: there is no such path, or no log file in it.
    """
    path = Path(path)
    if path.is_file():
        check_suffix(path)
        return [path]
    if not path.is_dir():
        raise LogError(
            path,
            "no such log",
            found="nothing at this path",
            needed=f"a file ending in {', '.join(SUFFIXES)}, or a directory of them",
            remedy="check the path; `tidegate simulate shipments` makes a log to try with",
        )
    files = [file for file in path.iterdir() if file.is_file() and _is_log(file)]
    if not files:
        raise LogError(
            path,
            "no log in this directory",
            found=f"{sum(1 for _ in path.iterdir())} other entries",
            needed=f"files ending in {', '.join(SUFFIXES)}",
            remedy="name the directory that holds the recorded files",
        )
    return sorted(files, key=lambda file: _natural(file.name))


def rows_in(path: Path | str) -> int | None:
    """Returns how many records a log has if its manifests say so; no row is read.

    Raises:
        LogError: there is no log, or a manifest cannot be read.
    """
    rows = 0
    for file in log_files(path):
        manifest = read_manifest(file)
        if manifest is None:
            return None
        rows += manifest.rows
    return rows


def log_digest(path: Path | str) -> str:
    """Returns the digest of a log's bytes, `sha256:...`; of a directory, of its files in order.

    Raises:
        LogError: there is no log, or a file differs from its manifest.
    """
    digests = []
    for file in log_files(path):
        digest = file_digest(file)
        manifest = read_manifest(file)
        if manifest and manifest.sha256 != digest:
            raise differs(file, "sha256", digest, manifest.sha256)
        digests.append(digest)
    if Path(path).is_file():
        return digests[0]
    return "sha256:" + hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _is_log(path: Path) -> bool:
    # A dot in front marks a file that is still being written.
    return path.name.endswith(SUFFIXES) and not path.name.startswith(".")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _batches(
    files: list[Path],
    manifests: list[Manifest | None],
    batch_rows: int,
    partitions: int | None,
) -> Iterator[RecordBatch]:
    waiting = _Waiting(batch_rows)
    topic = Positions(partitions)
    for file, manifest in zip(files, manifests, strict=True):
        here = Positions(partitions)
        unit = "row" if file.name.endswith(".parquet") else "line"
        reader = read_parquet if file.name.endswith(".parquet") else read_jsonl
        for columns in reader(file):
            for batch in topic.advance(file, columns, unit):
                here.note(batch)
                yield from waiting.add(batch)
            yield from waiting.relieve()
        if manifest:
            check_complete(file, manifest, here)
    yield from waiting.flush()


class _Waiting:
    """Records that wait until their partition has a batch of them."""

    def __init__(self, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        self._pieces: dict[int, list[RecordBatch]] = {}
        self._rows: dict[int, int] = {}

    def add(self, piece: RecordBatch) -> Iterator[RecordBatch]:
        """Adds records and yields the batches that are full."""
        partition = piece.partition
        self._pieces.setdefault(partition, []).append(piece)
        rows = self._rows[partition] = self._rows.get(partition, 0) + len(piece)
        if rows < self._batch_rows:
            return
        joined = _join(self._pieces.pop(partition))
        full = rows - rows % self._batch_rows
        self._rows[partition] = rows - full
        if full < rows:
            self._pieces[partition] = [joined.slice(full, rows)]
        for start in range(0, full, self._batch_rows):
            yield joined.slice(start, start + self._batch_rows)

    def relieve(self) -> Iterator[RecordBatch]:
        """Yields everything, in batches that are not full, if too much waits."""
        if sum(self._rows.values()) > _WAITING_ROWS_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[RecordBatch]:
        """Yields everything that waits."""
        pieces, self._pieces, self._rows = self._pieces, {}, {}
        for partition in sorted(pieces):
            yield _join(pieces[partition])


def _join(pieces: list[RecordBatch]) -> RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    return RecordBatch(
        pieces[0].partition,
        np.concatenate([piece.offsets for piece in pieces]),
        np.concatenate([piece.timestamps for piece in pieces]),
        [key for piece in pieces for key in piece.keys],
        [value for piece in pieces for value in piece.values],
    )
