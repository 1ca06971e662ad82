"""The records that cross a boundary: batches of input, predictions, rejects.

The field order here is the order of the JSON, on every path. Encoding works on whole lists
(`encode_lines`), because a call for each record costs more than the record itself.
"""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

_BATCH_HEADER = struct.Struct("<4sIi")  # magic, records, partition
_BATCH_MAGIC = b"tgb1"
_ENCODER = msgspec.json.Encoder()


class Trigger(msgspec.Struct, gc=False):
    """The record that caused a prediction."""

    partition: int
    offset: int
    event_time_ms: int
    event_id: str | None


class Prediction(msgspec.Struct, gc=False):
    """What the model says of a key, as of the newest event of the key."""

    key: str
    generation: int
    epoch: int
    sequence: int
    event_time_ms: int
    kind: str
    prediction: float | list[float]
    model_digest: str
    events_seen: int
    late_seen: int
    watermark_ms: int
    final: bool
    trigger: Trigger
    features: list[float] | UnsetType = UNSET


class Reject(msgspec.Struct, gc=False):
    """A record that was not applied as an on-time event, unharmed, and the reason.

    `key_base64` and `value_base64` stand for `key` and `value` where the bytes are not UTF-8.
    """

    partition: int
    offset: int
    timestamp: int
    key: str | UnsetType | None
    key_base64: str | UnsetType
    reason: str
    detail: str
    lateness_ms: int | None
    applied: bool
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


def text_or_base64(data: bytes | None) -> tuple[str | UnsetType | None, str | UnsetType]:
    """Returns (text, UNSET) for UTF-8 bytes and None, (UNSET, base64) for all others."""
    if data is None:
        return None, UNSET
    try:
        return data.decode("utf-8"), UNSET
    except UnicodeDecodeError:
        return UNSET, base64.b64encode(data).decode("ascii")


def encode_lines(records: Sequence[Prediction] | Sequence[Reject]) -> bytes:
    """Encodes records as JSON Lines, each with a newline after it."""
    return _ENCODER.encode_lines(records)


def records_in(lines: bytes) -> list[bytes]:
    """Splits JSON Lines into records, without their newlines."""
    # JSON holds no raw newline, so the split is exact; what follows the last one is empty.
    return lines.split(b"\n")[:-1]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one partition in offset order, undecoded.

    Attributes:
        partition: the partition's number.
        offsets: int64, shape (n,).
        timestamps: the records' Kafka timestamps in milliseconds, int64, shape (n,).
        keys: n Kafka keys, None where null.
        values: n values, None where null.
    """

    partition: int
    offsets: Int64s
    timestamps: Int64s
    keys: list[bytes | None]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, stop: int) -> Self:
        """Returns the records from `start` up to `stop`."""
        return type(self)(
            self.partition,
            self.offsets[start:stop],
            self.timestamps[start:stop],
            self.keys[start:stop],
            self.values[start:stop],
        )

    def to_bytes(self) -> bytes:
        """Packs the batch: header, offsets, timestamps, sizes (-1: null), keys, values."""
        sizes = np.array(
            [-1 if item is None else len(item) for item in (*self.keys, *self.values)], dtype="<i4"
        )
        return b"".join(
            (
                _BATCH_HEADER.pack(_BATCH_MAGIC, len(self), self.partition),
                self.offsets.astype("<i8").tobytes(),
                self.timestamps.astype("<i8").tobytes(),
                sizes.tobytes(),
                *(item for item in self.keys if item is not None),
                *(item for item in self.values if item is not None),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Unpacks what `to_bytes` made.

        Raises:
            ValueError: the bytes are no packed batch.
        """
        magic, n, partition = _BATCH_HEADER.unpack_from(data)
        if magic != _BATCH_MAGIC:
            raise ValueError(
                f"no packed record batch: starts with {magic!r}, expected {_BATCH_MAGIC!r}"
            )
        at = _BATCH_HEADER.size
        offsets = np.frombuffer(data, "<i8", n, at)
        timestamps = np.frombuffer(data, "<i8", n, at + 8 * n)
        sizes = np.frombuffer(data, "<i4", 2 * n, at + 16 * n)
        ends = np.cumsum(np.maximum(sizes, 0)) + (at + 24 * n)
        starts = np.concatenate(([at + 24 * n], ends[:-1])) if n else ends
        items: list[bytes | None] = [
            data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        if n and sizes.min() < 0:
            for i in np.flatnonzero(sizes < 0).tolist():
                items[i] = None
        return cls(partition, offsets, timestamps, items[:n], items[n:])
