"""The files the engine reads: one for each partition, every byte of every record kept."""

import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.log_files import decode_lines, encode_lines, write_partition_files
from schemas.records import RecordBatch

Record = tuple[int, int, bytes | None, bytes | None]

INT64 = st.integers(-(2**63), 2**63 - 1)
# Newlines and carriage returns often, because lines are made of the rest.
CONTENT = (
    st.none()
    | st.binary(max_size=12)
    | st.lists(st.sampled_from([b"\n", b"\r", b"a", b"{}", b"\0", b"\xff"]), max_size=4).map(
        b"".join
    )
)
RECORDS = st.lists(st.tuples(INT64, INT64, CONTENT, CONTENT), min_size=1, max_size=8)


def batch_of(partition: int, records: list[Record]) -> RecordBatch:
    """A batch of these records."""
    offsets, timestamps, keys, values = zip(*records, strict=True)
    return RecordBatch(
        partition,
        np.array(offsets, np.int64),
        np.array(timestamps, np.int64),
        list(keys),
        list(values),
    )


def records_of(batch: RecordBatch) -> list[Record]:
    """The records of a batch."""
    columns = batch.offsets.tolist(), batch.timestamps.tolist(), batch.keys, batch.values
    return list(zip(*columns, strict=True))


@given(partition=st.integers(0, 2**31 - 1), records=RECORDS)
def test_any_record_survives_its_line(partition: int, records: list[Record]) -> None:
    """Nulls, empty bytes, newlines and bytes that are no text."""
    lines = encode_lines(batch_of(partition, records)).split(b"\n")
    assert b"" == lines.pop()
    assert not [line for line in lines if line.endswith(b"\r")], "Flink's reader strips it"
    (decoded,) = decode_lines(lines)
    assert (partition, records) == (decoded.partition, records_of(decoded))


def test_lines_of_several_partitions_become_a_batch_of_each() -> None:
    """An Arrow batch can hold the end of one file and the start of the next."""
    batches = [batch_of(p, [(o, 0, b"k", b"v%d" % o) for o in range(3)]) for p in (5, 2)]
    lines = b"".join(map(encode_lines, batches)).splitlines()
    mixed = [lines[i] for i in (0, 3, 1, 4, 5, 2)]
    decoded = {batch.partition: records_of(batch) for batch in decode_lines(mixed)}
    assert {batch.partition: records_of(batch) for batch in batches} == decoded


def test_no_lines_are_no_batches() -> None:
    """The engine may ask for nothing."""
    assert [] == decode_lines([])


def test_a_line_of_another_format_is_refused() -> None:
    """A broken invariant raises, it does not guess."""
    with pytest.raises(ValueError, match="not a file of this format"):
        decode_lines([b'{"partition":0}'])


def test_each_partition_is_exactly_one_gzip_file_in_offset_order(tmp_path: Path) -> None:
    """Rotated over two files, a partition would be read out of order."""
    batches = [
        batch_of(p, [(o, o, b"k", b"v\n" * (o % 2)) for o in range(start, start + 3)])
        for start in (0, 3, 6)
        for p in (11, 0, 3)
    ]
    assert 27 == write_partition_files(batches, tmp_path)
    assert ["partition-00000.gz", "partition-00003.gz", "partition-00011.gz"] == sorted(
        path.name for path in tmp_path.iterdir()
    )
    expected: dict[int, list[Record]] = defaultdict(list)
    for batch in batches:
        expected[batch.partition] += records_of(batch)
    for path in tmp_path.iterdir():
        (read,) = decode_lines(gzip.decompress(path.read_bytes()).split(b"\n")[:-1])
        assert expected[read.partition] == records_of(read)
