"""What every encoding of a recorded log becomes: blocks of columns; and how a log is refused.

A block is a few megabytes, so memory stays bounded however long the log is. What a log is, and the
functions that the rest of the code uses, are in `schemas.log`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")
INT_COLUMNS: Final = ("partition", "offset", "timestamp")
BYTE_COLUMNS: Final = ("key", "value")
BLOCK_ROWS: Final = 1 << 16
INT64_MAX: Final = 2**63 - 1
#: The greatest number that each column may hold; the least is 0.
MAXIMA: Final = {"partition": 2**31 - 1, "offset": INT64_MAX, "timestamp": INT64_MAX}


class LogError(ValueError):
    """A recorded log that cannot be taken as it is.

    Attributes:
        path: the file.
        place: where in it (`line 17`, `row 17`), or empty for the file as a whole.
        problem: what is wrong, in words.
        found: what the file has.
        needed: what it should have.
        remedy: what to do about it.
    """

    def __init__(
        self,
        path: Path,
        problem: str,
        *,
        place: str = "",
        found: object,
        needed: object,
        remedy: str,
    ) -> None:
        self.path, self.place, self.problem = path, place, problem
        self.found, self.needed, self.remedy = str(found), str(needed), remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.path}, {self.place}" if self.place else str(self.path)
        return (
            f"{where}: {self.problem}\n"
            f"  found:  {self.found}\n"
            f"  needed: {self.needed}\n"
            f"  remedy: {self.remedy}"
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """A block of rows of a log in file order, as columns.

    Attributes:
        partitions: Kafka partition of each row, int64, shape (n,).
        offsets: Kafka offset of each row, int64, shape (n,).
        timestamps: Kafka record timestamp of each row in milliseconds, int64, shape (n,).
        keys: n Kafka keys, None where null.
        values: n Kafka values, None where null (a tombstone).
        places: the line or row number of each, from 1; empty for rows that are in no file yet.
    """

    partitions: Int64s
    offsets: Int64s
    timestamps: Int64s
    keys: list[bytes | None]
    values: list[bytes | None]
    places: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, name: str) -> Int64s:
        """Returns one of the three integer columns by its name in the file."""
        return {
            "partition": self.partitions,
            "offset": self.offsets,
            "timestamp": self.timestamps,
        }[name]

    def place(self, index: int, unit: str) -> str:
        """Returns where a row is, for an error."""
        if self.places:
            return f"{unit} {self.places[index]}"
        return f"{unit} {index + 1} of the block"


class ColumnWriter(Protocol):
    """Writes blocks of columns to one file."""

    def write(self, columns: Columns) -> None:
        """Appends a block."""

    def close(self) -> None:
        """Finishes the file."""


def refuse_number(path: Path, place: str, name: str, number: int) -> NoReturn:
    """Refuses a position or timestamp that Kafka never gives.

    Raises:
        LogError: always.
    """
    raise LogError(
        path,
        f"{name} is out of range",
        place=place,
        found=number,
        needed=f"0 to {MAXIMA[name]}",
        remedy="record the log again with the position and timestamp that Kafka gave the record",
    )


def check_numbers(path: Path, columns: Columns, unit: str) -> None:
    """Checks the ranges of a block's integers.

    Args:
        path: the file, for the error.
        columns: the block.
        unit: what a row of the file is called, `line` or `row`.

    Raises:
        LogError: a number is out of range; names the first.
    """
    for name in INT_COLUMNS:
        numbers = columns.numbers(name)
        if len(numbers) == 0 or (numbers.min() >= 0 and numbers.max() <= MAXIMA[name]):
            continue
        at = int(np.argmax((numbers < 0) | (numbers > MAXIMA[name])))
        refuse_number(path, columns.place(at, unit), name, int(numbers[at]))


def check_suffix(path: Path) -> None:
    """Checks that a file's name says which form of log it is.

    Raises:
        LogError: it ends otherwise.
    """
    if not path.name.endswith(SUFFIXES):
        raise LogError(
            path,
            "not a form of log that is known",
            found=f"a file ending in {path.suffix or 'no suffix'}",
            needed=" or ".join(SUFFIXES),
            remedy="rename the file to what it holds, or convert it",
        )
