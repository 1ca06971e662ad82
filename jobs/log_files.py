"""A recorded log as the engine reads it: exactly one file for each partition, one record a line.

Order within a partition is everything, and a Flink file source keeps it only where a partition is
one file that cannot be split. A `.gz` file cannot. Its blocks are stored, not deflated: the file is
read once, right after it was written.

A line is a head of 40 characters, then the key, then the value. The head is the base64 of 30 bytes
(partition, offset, timestamp, sizes of key and value with -1 for null, flags), so that the heads
of a whole Arrow batch are decoded by one call and nothing of a record is parsed on the way to the
scorer. A body that a line cannot hold (a newline in it, or a carriage return at its end, which
Flink's reader strips) is base64, and flagged.
"""

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from schemas.records import RecordBatch

_HEAD = np.dtype(
    [
        ("partition", "<i4"),
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("key_size", "<i4"),
        ("value_size", "<i4"),
        ("flags", "<u2"),
    ]
)
HEAD_SIZE = 40
_BASE64_BODY = 1


def write_partition_files(batches: Iterable[RecordBatch], folder: Path) -> int:
    """Writes batches of any partitions into one file for each partition, in one pass.

    Args:
        batches: in offset order within each partition.
        folder: an empty directory.

    Returns:
        How many records there were.
    """
    # A compressor for each partition, but no open file: there may be more partitions than the
    # process may open files.
    compressors: dict[int, zlib._Compress] = {}
    rows = 0
    for batch in batches:
        compressor = compressors.get(batch.partition)
        if compressor is None:
            compressor = zlib.compressobj(0, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            compressors[batch.partition] = compressor
        _append(folder, batch.partition, compressor.compress(encode_lines(batch)))
        rows += len(batch)
    for partition, compressor in compressors.items():
        _append(folder, partition, compressor.flush())
    return rows


def _append(folder: Path, partition: int, data: bytes) -> None:
    with (folder / f"partition-{partition:05}.gz").open("ab") as file:
        file.write(data)


def encode_lines(batch: RecordBatch) -> bytes:
    """Encodes the records of a batch as lines, the last newline included."""
    heads = np.empty(len(batch), _HEAD)
    heads["partition"] = batch.partition
    heads["offset"] = batch.offsets
    heads["timestamp"] = batch.timestamps
    heads["key_size"] = [-1 if key is None else len(key) for key in batch.keys]
    heads["value_size"] = [-1 if value is None else len(value) for value in batch.values]
    heads["flags"] = 0
    bodies = [
        (key or b"") + (value or b"") for key, value in zip(batch.keys, batch.values, strict=True)
    ]
    together = b"".join(bodies)
    if b"\n" in together or b"\r" in together:
        for i, body in enumerate(bodies):
            if b"\n" in body or body.endswith(b"\r"):
                bodies[i] = base64.b64encode(body)
                heads["flags"][i] |= _BASE64_BODY
    text = base64.b64encode(heads.tobytes())
    pieces = [b""] * (3 * len(bodies))
    pieces[0::3] = [text[at : at + HEAD_SIZE] for at in range(0, len(text), HEAD_SIZE)]
    pieces[1::3] = bodies
    pieces[2::3] = [b"\n"] * len(bodies)
    return b"".join(pieces)


def decode_lines(lines: list[bytes]) -> list[RecordBatch]:
    """Decodes lines, without their newlines, into one batch for each partition among them.

    Raises:
        ValueError: a line was not made by `encode_lines`.
    """
    if not lines:
        return []
    text = b"".join([line[:HEAD_SIZE] for line in lines])
    if len(text) != HEAD_SIZE * len(lines):
        raise ValueError("a line is shorter than its head: not a file of this format")
    heads = np.frombuffer(base64.b64decode(text), _HEAD)
    flagged = np.flatnonzero(heads["flags"] & _BASE64_BODY)
    if flagged.size:
        lines = list(lines)
        for i in flagged.tolist():
            lines[i] = lines[i][:HEAD_SIZE] + base64.b64decode(lines[i][HEAD_SIZE:])
    partitions = heads["partition"]
    if (partitions == partitions[0]).all():
        return [_batch(heads, lines)]
    batches = []
    for partition in np.unique(partitions).tolist():
        at = np.flatnonzero(partitions == partition)
        batches.append(_batch(heads[at], [lines[i] for i in at.tolist()]))
    return batches


def _batch(heads: np.ndarray, lines: list[bytes]) -> RecordBatch:  # type: ignore[type-arg]
    ends = (HEAD_SIZE + np.maximum(heads["key_size"], 0)).tolist()
    keys: list[bytes | None] = [line[HEAD_SIZE:end] for line, end in zip(lines, ends, strict=True)]
    values: list[bytes | None] = [line[end:] for line, end in zip(lines, ends, strict=True)]
    for i in np.flatnonzero(heads["key_size"] < 0).tolist():
        keys[i] = None
    for i in np.flatnonzero(heads["value_size"] < 0).tolist():
        values[i] = None
    return RecordBatch(
        int(heads["partition"][0]),
        np.ascontiguousarray(heads["offset"]),
        np.ascontiguousarray(heads["timestamp"]),
        keys,
        values,
    )
