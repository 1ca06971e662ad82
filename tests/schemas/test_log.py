"""A recorded log is read as it was written, in every form, or refused with the row named."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import log as log_module
from schemas.log import (
    LogError,
    LogRow,
    log_digest,
    manifest_path,
    read_log,
    read_manifest,
    rows_in,
    write_log,
)

FORMS = ("log.jsonl", "log.jsonl.gz", "log.parquet")

ROWS = [
    LogRow(0, 0, 1_700_000_000_000, b"N1", b'{"a":1}'),
    LogRow(1, 7, 1_700_000_000_001, b"N2", None),
    LogRow(0, 1, 1_700_000_000_002, None, b""),
    LogRow(2, 3, 1_700_000_000_003, b"\xff\xfe", b"\x00\x80"),
    LogRow(0, 9, 1_700_000_000_003, "Zürich\n".encode(), '{"é":"\u2028"}'.encode()),
]


def _rows(path: Path, batch_rows: int = 16_384, partitions: int | None = None) -> list[LogRow]:
    return [
        LogRow(batch.partition, offset, timestamp, key, value)
        for batch in read_log(path, batch_rows, partitions)
        for offset, timestamp, key, value in zip(
            batch.offsets.tolist(),
            batch.timestamps.tolist(),
            batch.keys,
            batch.values,
            strict=True,
        )
    ]


def _by_partition(rows: list[LogRow]) -> dict[int, list[LogRow]]:
    found: dict[int, list[LogRow]] = defaultdict(list)
    for row in rows:
        found[row.partition].append(row)
    return dict(found)


def _line(**changes: object) -> str:
    row = {"partition": 0, "offset": 0, "timestamp": 5, "key": "k", "value": "v"} | changes
    return json.dumps({name: value for name, value in row.items() if value is not ...})


def _write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _refused(path: Path, **arguments: int) -> LogError:
    with pytest.raises(LogError) as caught:
        list(read_log(path, **arguments))
    return caught.value


@pytest.mark.parametrize("name", FORMS)
def test_a_log_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Nulls, empty values and bytes that are not UTF-8 come back, in each partition's order."""
    manifest = write_log(tmp_path / name, ROWS, partitions=4)
    assert _by_partition(ROWS) == _by_partition(_rows(tmp_path / name, partitions=4))
    assert 4 == manifest.partitions
    assert [(0, 3, 0, 9), (1, 1, 7, 7), (2, 1, 3, 3)] == [
        (e.partition, e.rows, e.first_offset, e.last_offset) for e in manifest.offsets
    ]
    assert manifest == read_manifest(tmp_path / name)
    assert manifest.sha256 == log_digest(tmp_path / name)
    assert len(ROWS) == rows_in(tmp_path / name)


@pytest.mark.parametrize("name", FORMS)
def test_the_same_rows_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    """Nothing of the machine or the hour is in a log file."""
    first = write_log(tmp_path / "a" / name, ROWS, partitions=4)
    second = write_log(tmp_path / "b" / name, ROWS, partitions=4)
    assert first == second


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 3),
            st.integers(0, 2**40),
            st.none() | st.binary(max_size=5),
            st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
        ),
        max_size=40,
    ),
    name=st.sampled_from(FORMS),
    batch_rows=st.integers(1, 9),
)
def test_any_rows_come_back_in_batches_of_one_partition(
    tmp_path: Path,
    rows: list[tuple[int, int, int, bytes | None, bytes | None]],
    name: str,
    batch_rows: int,
) -> None:
    """Whatever the rows and the batch size, each partition reads as it was written."""
    offsets: dict[int, int] = defaultdict(int)
    written = []
    for partition, step, timestamp, key, value in rows:
        offsets[partition] += step
        written.append(LogRow(partition, offsets[partition], timestamp, key, value))
    write_log(tmp_path / name, written, partitions=4)
    assert all(0 < len(batch) <= batch_rows for batch in read_log(tmp_path / name, batch_rows))
    assert _by_partition(written) == _by_partition(_rows(tmp_path / name, batch_rows))


def test_batches_are_full_where_there_is_enough(tmp_path: Path) -> None:
    """Interleaved partitions still give batches of the size asked for."""
    rows = [LogRow(i % 3, i, i, b"k", b"v") for i in range(3_000)]
    write_log(tmp_path / "log.jsonl", rows, partitions=3)
    sizes = [len(batch) for batch in read_log(tmp_path / "log.jsonl", 400)]
    assert [400, 400] * 3 + [200] * 3 == sorted(sizes, reverse=True)


def test_records_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more partitions than batches could fill, smaller batches come before memory does."""
    monkeypatch.setattr(log_module, "_WAITING_ROWS_MAX", 100)
    rows = [LogRow(i % 50, i, i, b"k", b"v") for i in range(500)]
    write_log(tmp_path / "log.jsonl", rows, partitions=50)
    assert _by_partition(rows) == _by_partition(_rows(tmp_path / "log.jsonl", 1_000))


def test_a_log_longer_than_a_block_keeps_its_line_numbers(tmp_path: Path) -> None:
    """The line named is right beyond the first megabytes, with base64 rows and blank lines too."""
    padding = "x" * 100_000
    lines = [_line(offset=i, value=padding) for i in range(200)]
    lines[3] = _line(offset=3, value=..., value_base64="/w==")
    lines[150] = ""
    lines[199] = _line(offset=7)
    error = _refused(_write(tmp_path / "log.jsonl", *lines))
    assert "line 200" == error.place
    assert ("offset 7 after offset 198", "an offset greater than 198") == (
        error.found,
        error.needed,
    )


def test_a_directory_is_read_in_natural_order_of_names(tmp_path: Path) -> None:
    """part-10 follows part-2; offsets must grow across the files; other files are left alone."""
    for part, first in ((1, 0), (2, 10), (10, 20)):
        rows = [LogRow(0, first + i, 0, b"k", b"v") for i in range(10)]
        write_log(tmp_path / f"part-{part}.jsonl.gz", rows, partitions=1)
    (tmp_path / "notes.txt").write_text("not a log")
    (tmp_path / ".part-11.jsonl.partial").write_text("half")
    assert list(range(30)) == [row.offset for row in _rows(tmp_path)]
    assert 30 == rows_in(tmp_path)
    assert log_digest(tmp_path).startswith("sha256:")
    (tmp_path / "part-10.jsonl.gz").rename(tmp_path / "part-0.jsonl.gz")
    manifest_path(tmp_path / "part-10.jsonl.gz").unlink()
    assert "offsets do not grow within partition 0" == _refused(tmp_path).problem


def test_windows_lines_a_missing_last_newline_and_other_columns_are_read(tmp_path: Path) -> None:
    """What other tools write is a log too."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(f"{_line()}\r\n{_line(offset=1, headers=[])}".encode())
    assert [0, 1] == [row.offset for row in _rows(path)]


@pytest.mark.parametrize(
    ("bad", "problem", "found"),
    [
        (_line(offset=...), "a column is missing or has the wrong type", "offset"),
        (_line(offset="1"), "a column is missing or has the wrong type", "got `str`"),
        (_line(offset=1.5), "a column is missing or has the wrong type", "got `float`"),
        (_line(partition=True), "a column is missing or has the wrong type", "got `bool`"),
        (_line(partition=-1), "partition is out of range", "-1"),
        (_line(partition=2**31), "partition is out of range", "2147483648"),
        (_line(offset=-1), "offset is out of range", "-1"),
        (_line(offset=2**63), "offset is out of range", "9223372036854775808"),
        (_line(timestamp=-1), "timestamp is out of range", "-1"),
        (_line(value=...), "value is missing", "neither"),
        (_line(value_base64="eA=="), "value is given twice", "both"),
        (_line(key=..., key_base64="e"), "key_base64 cannot be decoded", "in e"),
        (_line(value={"a": 1}), "a column is missing or has the wrong type", "got `object`"),
        ('{"partition":0,"offs', "not a JSON object", '{"partition":0,"offs'),
        ("[]", "a column is missing or has the wrong type", "got `array`"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, problem: str, found: str) -> None:
    """The refusal has the file, the line, what was found and needed, and a remedy."""
    path = _write(tmp_path / "log.jsonl", _line(), "", bad, _line(offset=9))
    error = _refused(path)
    assert (problem, "line 3") == (error.problem, error.place)
    assert found in error.found
    assert error.needed
    assert error.remedy
    assert f"{path}, line 3: {problem}" in str(error)


@pytest.mark.parametrize("offset", [4, 5])
def test_offsets_that_do_not_grow_refuse_the_file(tmp_path: Path, offset: int) -> None:
    """A repeated or a smaller offset in a partition is no log; another partition's is nothing."""
    path = _write(tmp_path / "log.jsonl", _line(offset=5), _line(partition=1), _line(offset=offset))
    error = _refused(path)
    assert ("line 3", f"offset {offset} after offset 5") == (error.place, error.found)


def test_a_partition_beyond_the_topic_is_refused(tmp_path: Path) -> None:
    """The spec's number of partitions holds for the rows."""
    error = _refused(_write(tmp_path / "log.jsonl", _line(), _line(partition=4)), partitions=4)
    assert ("line 2", "partition 4", "0 to 3") == (error.place, error.found, error.needed)


def test_another_number_of_partitions_is_refused_before_any_row(tmp_path: Path) -> None:
    """The manifest knows how many partitions the topic has, whatever the rows show."""
    write_log(tmp_path / "log.jsonl", ROWS, partitions=8)
    with pytest.raises(LogError, match="8 partitions") as caught:
        read_log(tmp_path / "log.jsonl", partitions=4)
    assert "4 partitions, as the spec says" == caught.value.needed


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize("harm", [_cut, _flip])
@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.parquet"])
def test_a_damaged_file_is_refused(
    tmp_path: Path, name: str, harm: Callable[[bytes], bytes]
) -> None:
    """A copy cut short or with a flipped byte says so, with no manifest to help."""
    rows = [LogRow(0, i, i, b"k%d" % i, b"%d" % (i * i * 7919)) for i in range(5_000)]
    write_log(tmp_path / name, rows, partitions=1)
    manifest_path(tmp_path / name).unlink()
    (tmp_path / name).write_bytes(harm((tmp_path / name).read_bytes()))
    assert _refused(tmp_path / name).remedy


def test_a_log_cut_at_a_line_is_found_by_its_manifest(tmp_path: Path) -> None:
    """Size at once, rows at the end, bytes by the digest: each tells the log is not the one."""
    path = tmp_path / "log.jsonl"
    write_log(path, ROWS, partitions=4)
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:-2]) + b"\n")
    with pytest.raises(LogError, match="not the one its manifest describes"):
        read_log(path)
    other = whole.replace(b'"offset":9', b'"offset":8')
    path.write_bytes(other)
    assert "partition 0" in _refused(path).problem
    assert "3 rows, offsets 0 to 8" == _refused(path).found
    with pytest.raises(LogError, match="sha256"):
        log_digest(path)


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    """Another format of manifest is not guessed at."""
    path = _write(tmp_path / "log.jsonl", _line())
    for text in (
        "{}",
        '{"format":"x/9","partitions":1,"rows":1,"bytes":1,"sha256":"","offsets":[]}',
    ):
        manifest_path(path).write_text(text)
        assert "not a manifest of a log" == _refused(path).problem


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (("partition", pa.array(["0"])), "column partition has the wrong type"),
        (("value", pa.array([1.5])), "column value has the wrong type"),
        (("offset", None), "column offset is missing"),
        (("offset", pa.array([None], pa.int64())), "offset is null"),
        (("timestamp", pa.array([-5])), "timestamp is out of range"),
        (("offset", pa.array([2**63], pa.uint64())), "offset is out of range"),
    ],
)
def test_a_parquet_file_that_is_no_log_is_refused(
    tmp_path: Path, column: tuple[str, pa.Array | None], problem: str
) -> None:
    """Missing columns, wrong types, nulls and ranges are named as in JSON Lines."""
    columns = {
        "partition": pa.array([0], pa.uint8()),
        "offset": pa.array([3], pa.int32()),
        "timestamp": pa.array([5], pa.int64()),
        "key": pa.array(["k"]),
        "value": pa.array([b"v"], pa.large_binary()),
    }
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(columns), path)
    assert [LogRow(0, 3, 5, b"k", b"v")] == _rows(path)
    name, changed = column
    columns |= {name: changed} if changed is not None else {}
    if changed is None:
        del columns[name]
    pq.write_table(pa.table(columns), path)
    assert problem == _refused(path).problem


def test_what_is_no_log_at_all_is_refused_at_once(tmp_path: Path) -> None:
    """A missing path, another suffix and an empty directory are told apart before reading."""
    (tmp_path / "log.csv").write_text("a,b")
    (tmp_path / "empty").mkdir()
    for name, problem in (
        ("nothing.jsonl", "no such log"),
        ("log.csv", "not a form of log that is known"),
        ("empty", "no log in this directory"),
    ):
        with pytest.raises(LogError) as caught:
            read_log(tmp_path / name)
        assert problem == caught.value.problem


def test_an_empty_log_has_no_batches(tmp_path: Path) -> None:
    """No rows is a log, in every form."""
    for name in FORMS:
        write_log(tmp_path / name, [], partitions=2)
        assert [] == list(read_log(tmp_path / name))


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """An older log stays as it was; no half-written file appears."""
    write_log(tmp_path / "log.jsonl", ROWS, partitions=4)
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    with pytest.raises(LogError, match="do not grow"):
        write_log(tmp_path / "log.jsonl", [ROWS[0], ROWS[0]], partitions=4)
    with pytest.raises(LogError, match="partition that the topic does not have"):
        write_log(tmp_path / "log.jsonl", ROWS, partitions=2)
    assert before == sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())


def test_gzip_members_written_one_after_another_are_one_log(tmp_path: Path) -> None:
    """Appending compressors make files of several members; all are read."""
    path = tmp_path / "log.jsonl.gz"
    lines = [f"{_line(offset=i)}\n".encode() for i in range(3)]
    path.write_bytes(b"".join(map(gzip.compress, lines)))
    assert [0, 1, 2] == [row.offset for row in _rows(path)]


def test_batches_hold_int64_arrays(tmp_path: Path) -> None:
    """The core counts on the dtype, whatever the file's integers are."""
    for name in FORMS:
        write_log(tmp_path / name, ROWS, partitions=4)
        for batch in read_log(tmp_path / name):
            assert (np.int64, np.int64) == (batch.offsets.dtype, batch.timestamps.dtype)
