"""Writing a recorded log: rows or blocks of columns, in any of its forms, with the manifest."""

import contextlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import numpy as np

from schemas.log_columns import BLOCK_ROWS, Columns, ColumnWriter, check_numbers, check_suffix
from schemas.log_jsonl import JsonlWriter
from schemas.log_manifest import FORMAT, Manifest, file_digest, manifest_path
from schemas.log_order import Positions
from schemas.log_parquet import ParquetWriter


class LogRow(NamedTuple):
    """One record of a log."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class LogWriter:
    """Writes a log block by block, then its manifest; as a context manager.

    The file appears under its name when it is complete, so a writer that dies leaves no short log.
    """

    def __init__(self, path: Path | str, partitions: int) -> None:
        self.path = Path(path)
        check_suffix(self.path)
        self._positions = Positions(partitions)
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: ColumnWriter = (
            ParquetWriter(self._partial)
            if self.path.name.endswith(".parquet")
            else JsonlWriter(self._partial, compress=self.path.name.endswith(".gz"))
        )

    def write(self, columns: Columns) -> None:
        """Appends a block.

        Raises:
            LogError: its offsets do not grow, or it has a partition that the topic has not.
        """
        check_numbers(self.path, columns, "row")
        self._positions.advance(self.path, columns, "row")
        self._writer.write(columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
            return
        # What broke matters; what a half-written file says when it is closed does not.
        with contextlib.suppress(Exception):
            self._writer.close()
        self._partial.unlink(missing_ok=True)

    def _finish(self) -> None:
        self._writer.close()
        manifest_path(self.path).unlink(missing_ok=True)
        self._partial.replace(self.path)
        ranges = [self._positions.ranges[p] for p in sorted(self._positions.ranges)]
        self.manifest = Manifest(
            format=FORMAT,
            partitions=self._positions.partitions or 1,
            rows=sum(entry.rows for entry in ranges),
            bytes=self.path.stat().st_size,
            sha256=file_digest(self.path),
            offsets=ranges,
        )
        text = msgspec.json.format(msgspec.json.encode(self.manifest), indent=2)
        manifest_path(self.path).write_bytes(text + b"\n")


def write_log(path: Path | str, rows: Iterable[LogRow], partitions: int) -> Manifest:
    """Writes rows as a log, in the form that the file's suffix asks for, with its manifest.

    Args:
        path: where; `.jsonl`, `.jsonl.gz` or `.parquet`. An older log there is replaced.
        rows: the records, in offset order within each partition.
        partitions: how many the topic has.

    Raises:
        LogError: the rows are no log; nothing is left behind.
    """
    iterator = iter(rows)
    with LogWriter(path, partitions) as writer:
        while block := list(islice(iterator, BLOCK_ROWS)):
            parts, offsets, timestamps, keys, values = zip(*block, strict=True)
            writer.write(
                Columns(
                    np.array(parts, dtype=np.int64),
                    np.array(offsets, dtype=np.int64),
                    np.array(timestamps, dtype=np.int64),
                    list(keys),
                    list(values),
                )
            )
    return writer.manifest
