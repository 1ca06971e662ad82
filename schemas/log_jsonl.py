"""A recorded log as JSON Lines, plain or gzipped.

Blocks are decoded whole with a strict five-column type, for speed. Only a block that this refuses
(base64 columns, extra columns, a mistake) is decoded line by line, which finds the line to name.
"""

import base64
import binascii
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from schemas.log_columns import (
    INT_COLUMNS,
    MAXIMA,
    Columns,
    LogError,
    check_numbers,
    refuse_number,
)

_BLOCK_BYTES: Final = 8 << 20
_LINE_BYTES_MAX: Final = 64 << 20  # a record larger than this is no event


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None


class _LooseRow(msgspec.Struct, gc=False):
    """A row as people may also write it: base64 columns, and columns that mean nothing here."""

    partition: int
    offset: int
    timestamp: int
    key: str | UnsetType | None = UNSET
    value: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value_base64: str | UnsetType = UNSET


_ROWS: Final = msgspec.json.Decoder(_Row)
_LOOSE_ROW: Final = msgspec.json.Decoder(_LooseRow)
_ENCODER: Final = msgspec.json.Encoder()


def read_jsonl(path: Path) -> Iterator[Columns]:
    """Reads a `.jsonl` or `.jsonl.gz` file block by block.

    Raises:
        LogError: a line is not a row of a log, or the compressed data is damaged.
    """
    next_line = 1
    for block in _line_blocks(path):
        # The last line may have no newline.
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        places = range(next_line, next_line + lines)
        next_line += lines
        columns = _plain_columns(block, places)
        if columns is None:
            columns = _loose_columns(path, block, places)
        check_numbers(path, columns, "line")
        yield columns


def _line_blocks(path: Path) -> Iterator[bytes]:
    """Cuts a file into blocks of whole lines."""
    rest = b""
    try:
        with _open_to_read(path) as file:
            while chunk := file.read(_BLOCK_BYTES):
                cut = chunk.rfind(b"\n") + 1
                if cut:
                    yield rest + chunk[:cut]
                    rest = chunk[cut:]
                else:
                    rest += chunk
                if len(rest) > _LINE_BYTES_MAX:
                    raise LogError(
                        path,
                        "a line without an end",
                        found=f"more than {_LINE_BYTES_MAX} bytes without a newline",
                        needed="one JSON object a line",
                        remedy="check that the file is JSON Lines",
                    )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise LogError(
            path,
            "the compressed data is cut short or damaged",
            found=error,
            needed="a complete gzip file",
            remedy="copy the file again, or record the log again",
        ) from error
    if rest:
        yield rest


def _open_to_read(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")


def _plain_columns(block: bytes, places: range) -> Columns | None:
    """Decodes a block of plain rows; None if any row is not plain."""
    try:
        rows = _ROWS.decode_lines(block)
        if len(rows) != len(places):
            return None
        return Columns(
            np.array([row.partition for row in rows], dtype=np.int64),
            np.array([row.offset for row in rows], dtype=np.int64),
            np.array([row.timestamp for row in rows], dtype=np.int64),
            [None if (key := row.key) is None else key.encode() for row in rows],
            [None if (value := row.value) is None else value.encode() for row in rows],
            places,
        )
    except (msgspec.DecodeError, UnicodeEncodeError, OverflowError):
        return None


def _loose_columns(path: Path, block: bytes, places: range) -> Columns:
    """Decodes a block line by line, naming the line of the first mistake."""
    numbers: list[tuple[int, int, int]] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    kept: list[int] = []
    for line_number, line in zip(places, block.split(b"\n"), strict=False):
        if not line.strip():
            continue
        place = f"line {line_number}"
        row = _loose_row(path, place, line)
        positions = (row.partition, row.offset, row.timestamp)
        for name, number in zip(INT_COLUMNS, positions, strict=True):
            if not 0 <= number <= MAXIMA[name]:
                refuse_number(path, place, name, number)
        numbers.append(positions)
        keys.append(_bytes_of(path, place, "key", row.key, row.key_base64))
        values.append(_bytes_of(path, place, "value", row.value, row.value_base64))
        kept.append(line_number)
    table = np.array(numbers, dtype=np.int64).reshape(-1, 3)
    return Columns(table[:, 0], table[:, 1], table[:, 2], keys, values, kept)


def _loose_row(path: Path, place: str, line: bytes) -> _LooseRow:
    try:
        return _LOOSE_ROW.decode(line)
    except msgspec.ValidationError as error:
        problem, found = "a column is missing or has the wrong type", str(error)
    except (msgspec.DecodeError, UnicodeError) as error:
        problem, found = "not a JSON object", f"{error}, in {_excerpt(line)}"
    raise LogError(
        path,
        problem,
        place=place,
        found=found,
        needed="an object: integers partition, offset, timestamp; key, value as text or null",
        remedy="correct the line, or record the log again (a last line may have been cut short)",
    )


def _excerpt(line: bytes, length: int = 80) -> str:
    text = line.decode("utf-8", "backslashreplace")
    return text if len(text) <= length else text[: length - 3] + "..."


def _bytes_of(
    path: Path, place: str, name: str, text: str | UnsetType | None, coded: str | UnsetType
) -> bytes | None:
    """Takes a column from its plain or its base64 form, exactly one of which must be there."""
    if (text is UNSET) == (coded is UNSET):
        twice = text is not UNSET
        raise LogError(
            path,
            f"{name} is {'given twice' if twice else 'missing'}",
            place=place,
            found=f"both {name} and {name}_base64" if twice else "neither form of it",
            needed=f"one of {name} (text or null) and {name}_base64",
            remedy=f'write "{name}": null for a record that has none',
        )
    if isinstance(coded, UnsetType):
        return text.encode() if isinstance(text, str) else None
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LogError(
            path,
            f"{name}_base64 cannot be decoded",
            place=place,
            found=f"{error}, in {_excerpt(coded.encode())}",
            needed="standard base64 with padding",
            remedy=f"encode the bytes again, or give {name} as text",
        ) from error


class JsonlWriter:
    """Writes JSON Lines: the same rows always give the same bytes, compressed or not."""

    def __init__(self, path: Path, *, compress: bool) -> None:
        self._file = path.open("wb")
        # No name and no time in the header, or the file would not be a function of its rows.
        self._out: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._file, mtime=0)
            if compress
            else self._file
        )

    def write(self, columns: Columns) -> None:
        """Appends a block."""
        positions = [columns.numbers(name).tolist() for name in INT_COLUMNS]
        rows: list[Any]
        try:
            keys = [None if key is None else key.decode() for key in columns.keys]
            values = [None if value is None else value.decode() for value in columns.values]
            rows = list(map(_Row, *positions, keys, values))
        except UnicodeDecodeError:
            rows = [
                {"partition": partition, "offset": offset, "timestamp": timestamp}
                | _text_or_base64("key", key)
                | _text_or_base64("value", value)
                for partition, offset, timestamp, key, value in zip(
                    *positions, columns.keys, columns.values, strict=True
                )
            ]
        self._out.write(_ENCODER.encode_lines(rows))

    def close(self) -> None:
        """Finishes the file."""
        if self._out is not self._file:
            self._out.close()
        self._file.close()


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
