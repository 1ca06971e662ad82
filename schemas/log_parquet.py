"""A recorded log as Parquet: the form for long logs, read column by column.

Any integer type will do for the positions and binary or string for key and value, so that what
other tools write can be read; what is written here is int32, int64, int64, binary, binary.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.log_columns import (
    BLOCK_ROWS,
    BYTE_COLUMNS,
    INT64_MAX,
    INT_COLUMNS,
    Columns,
    Int64s,
    LogError,
    check_numbers,
    refuse_number,
)

_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
_BYTE_TYPES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)


def read_parquet(path: Path) -> Iterator[Columns]:
    """Reads a `.parquet` file block by block.

    Raises:
        LogError: a column is missing or of the wrong type, a position is null, or the file is
            damaged.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_schema(path, file.schema_arrow)
            first_row = 1
            names = [*INT_COLUMNS, *BYTE_COLUMNS]
            for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=names):
                columns = _columns(path, batch, first_row)
                check_numbers(path, columns, "row")
                yield columns
                first_row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise LogError(
            path,
            "the Parquet file cannot be read",
            found=str(error).partition("\n")[0],
            needed="a complete Parquet file",
            remedy="copy the file again, or record the log again",
        ) from error


def _check_schema(path: Path, schema: Any) -> None:
    for name in (*INT_COLUMNS, *BYTE_COLUMNS):
        is_int = name in INT_COLUMNS
        there = name in schema.names
        if there and _type_fits(schema.field(name).type, is_int=is_int):
            continue
        raise LogError(
            path,
            f"column {name} {'has the wrong type' if there else 'is missing'}",
            found=f"{name}: {schema.field(name).type}" if there else f"columns {schema.names}",
            needed=f"{name}: {'an integer' if is_int else 'binary or string'}",
            remedy="rename or cast the column",
        )


def _type_fits(kind: Any, *, is_int: bool) -> bool:
    if is_int:
        return bool(pa.types.is_integer(kind))
    return any(test(kind) for test in _BYTE_TYPES)


def _columns(path: Path, batch: Any, first_row: int) -> Columns:
    partitions, offsets, timestamps = (
        _int64s(path, batch.column(name), name, first_row) for name in INT_COLUMNS
    )
    keys, values = (
        batch.column(name).cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
        for name in BYTE_COLUMNS
    )
    places = range(first_row, first_row + batch.num_rows)
    return Columns(partitions, offsets, timestamps, keys, values, places)


def _int64s(path: Path, column: Any, name: str, first_row: int) -> Int64s:
    if column.null_count:
        row = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise LogError(
            path,
            f"{name} is null",
            place=f"row {row}",
            found="null",
            needed="an integer",
            remedy="record the log again with the position and timestamp of every record",
        )
    numbers = column.to_numpy()
    if pa.types.is_uint64(column.type) and len(numbers) and int(numbers.max()) > INT64_MAX:
        at = int(np.argmax(numbers))
        refuse_number(path, f"row {first_row + at}", name, int(numbers[at]))
    return numbers.astype(np.int64, copy=False)  # type: ignore[no-any-return]


class ParquetWriter:
    """Writes Parquet in row groups of about `BLOCK_ROWS` rows, however small the blocks given."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd", write_page_checksum=True)
        self._waiting: list[Any] = []
        self._waiting_rows = 0

    def write(self, columns: Columns) -> None:
        """Appends a block."""
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(
                (
                    columns.partitions,
                    columns.offsets,
                    columns.timestamps,
                    columns.keys,
                    columns.values,
                ),
                _SCHEMA,
                strict=True,
            )
        ]
        self._waiting.append(pa.record_batch(arrays, schema=_SCHEMA))
        self._waiting_rows += len(columns)
        if self._waiting_rows >= BLOCK_ROWS:
            self._flush()

    def close(self) -> None:
        """Finishes the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting_rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, _SCHEMA))
        self._waiting, self._waiting_rows = [], 0
