"""The positions in a savepoint, found in its files."""

import random
from pathlib import Path
from typing import Any

import pytest

from jobs import savepoint_state
from jobs.savepoint_state import SavepointError, read_positions
from operators.codec import SHARD_MARK, StateRefused
from operators.scorer import Scorer
from tests.small_jobs import batch_of, record, small_job


def _written(data: bytes) -> bytes:
    """A value as the engine writes it."""
    return len(data).to_bytes(4, "big") + data


@pytest.fixture
def metas(tmp_path: Path) -> list[bytes]:
    """The shards of four partitions, each with one event at its own offset."""
    scorer = Scorer(small_job(tmp_path / "job"))
    found = []
    for partition in range(4):
        shard = scorer.new_shard(partition)
        scorer.step(shard, batch_of([record(partition * 10, 1, partition=partition, v=1)]))
        found.append(scorer.drain_changes(shard).meta)
    return found


def _savepoint(folder: Path, *files: bytes) -> str:
    folder.mkdir()
    (folder / "_metadata").write_bytes(b"")
    for i, content in enumerate(files):
        (folder / f"state-{i}").write_bytes(content)
    return str(folder)


@pytest.mark.parametrize("uri", ["{}", "file:{}", "file://{}"])
def test_every_partition_is_found_wherever_the_pieces_end(
    uri: str, tmp_path: Path, metas: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one file or several, with other bytes between, read in pieces of any size."""
    rng = random.Random(1)
    noise = [rng.randbytes(rng.randrange(5_000)) for _ in metas]
    content = b"".join(n + _written(meta) for n, meta in zip(noise, metas, strict=True))
    path = _savepoint(tmp_path / "savepoint", content[:1], content)
    monkeypatch.setattr(savepoint_state, "_SHARD_BYTES", 4_096)
    for size in (1_000, 3_999, 1 << 20):
        monkeypatch.setattr(savepoint_state, "_READ_BYTES", size)
        positions = read_positions(uri.format(path))
        assert {p: p * 10 for p in range(4)} == {
            partition: each["last_offset"] for partition, each in positions.items()
        }


def test_an_event_that_holds_a_shard_is_no_shard(tmp_path: Path, metas: list[bytes]) -> None:
    """Held events are kept as they came, and anyone may have written one."""
    forged = metas[0].replace(b'"last_offset":0', b'"last_offset":999')
    event = b'{"key": "a", "x": ' + forged + b"}"
    broken = _written(b'{"key": "a", "x": ' + SHARD_MARK + b"}")
    path = _savepoint(tmp_path / "savepoint", _written(event) + broken + _written(metas[0]))
    assert {0: 0} == {p: each["last_offset"] for p, each in read_positions(path).items()}


def test_the_newest_of_a_partition_counts(tmp_path: Path, metas: list[bytes]) -> None:
    """A checkpoint may share files with older ones."""
    newer = metas[1].replace(b'"last_offset":10', b'"last_offset":77')
    path = _savepoint(tmp_path / "savepoint", _written(newer) + _written(metas[1]))
    assert 77 == read_positions(path)[1]["last_offset"]


def test_another_layout_is_refused(tmp_path: Path, metas: list[bytes]) -> None:
    """It was written by another release."""
    other = metas[0].replace(SHARD_MARK + b"2", SHARD_MARK + b"9")
    path = _savepoint(tmp_path / "savepoint", _written(other))
    with pytest.raises(StateRefused, match="layout version 9"):
        read_positions(path)


@pytest.mark.parametrize("given", ["nowhere", "file:///nowhere/at/all", "gopher://x/y"])
def test_what_is_no_savepoint_is_refused(given: Any, tmp_path: Path) -> None:
    """A directory without metadata, or none; a file system that is not known."""
    with pytest.raises(SavepointError, match="remedy"):
        read_positions(given)
    with pytest.raises(SavepointError, match="no _metadata"):
        read_positions(str(tmp_path))
