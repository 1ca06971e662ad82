"""State to bytes and back: nothing is lost, and bytes that cannot be trusted are refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from operators.codec import VERSION, StateRefused
from operators.scorer import Changes, Scorer
from operators.state import Shard
from tests import models
from tests.oracle import Row
from tests.small_jobs import GONE, Store, batch_of, record, small_job

STATES: dict[str, tuple[dict[str, Any], Any]] = {
    "one state": ({}, models.shift_in()),
    "three states": (
        {"model.states": [{"input": n, "output": f"{n}_next"} for n in ("h", "c", "ema")]},
        models.two_states(1),
    ),
    "window": ({"model.states": [], "model.window": 3}, models.windowed_digits(1, 3)),
    "window of one": ({"model.states": [], "model.window": 1}, models.windowed_digits(1, 1)),
    "no ids": ({"event.id": None}, models.shift_in()),
}


def _rows() -> list[Row]:
    return [
        record(0, 0, key="a", id="e0", v=1.0),
        record(1, 8, key="a", id=None, v=2.0),
        record(2, 3, key="ü", id="ü1", v=3.0),
        record(3, 9, key="done", id="e3", type="end", v=4.0),
        record(4, 5, key="a", id="e4", v=5.0),
        (0, 5, 1_700_000_009_000, "ü".encode(), None),
        record(6, 28, key="a", id="e6", v=6.0),
        record(7, 26, key="b", id="e7", v=None),
    ]


def _job(folder: Path, changes: dict[str, Any], model: Any) -> Scorer:
    changes = {k: GONE if v is None else v for k, v in changes.items()}
    return Scorer(small_job(folder, changes | {"event.tombstone": "forget"}, model))


def _saved(scorer: Scorer) -> tuple[Shard, Changes]:
    shard = scorer.new_shard(0)
    scorer.step(shard, batch_of(_rows()))
    return shard, scorer.drain_changes(shard)


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
@pytest.mark.parametrize("kind", STATES)
def test_a_restored_shard_goes_on_as_the_one_saved(tmp_path: Path, kind: str, emit: str) -> None:
    """The next records are the same, and so are the bytes that every key is saved as again."""
    changes, model = STATES[kind]
    scorer = _job(tmp_path, {**changes, "policy.emit": emit}, model)
    shard, saved = _saved(scorer)
    again = scorer.restore_shard(0, saved.meta, saved.puts)
    after = batch_of([record(8, 41, key=key, id="n", v=7.0) for key in ("a", "b", "ü", "done")][:1])
    later = batch_of(
        [record(9 + i, 20 + i, key=key, id=f"n{i}", v=7.0) for i, key in enumerate("ab")]
        + [record(11, 41, key="ü", id="n3", v=8.0), record(12, 95, key="done", v=9.0)]
    )
    for batch in (after, later):
        assert scorer.step(shard, batch) == scorer.step(again, batch)
    assert sorted(scorer.drain_changes(shard).puts) == sorted(scorer.drain_changes(again).puts)
    assert scorer.finish(shard) == scorer.finish(again)


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    """A drain holds the keys touched since the last one, and nothing the second time."""
    scorer = _job(tmp_path, {}, models.shift_in())
    shard, saved = _saved(scorer)
    assert ["a", "b", "done", "ü"] == sorted(key for key, _ in saved.puts)
    assert [] == scorer.drain_changes(shard).puts
    scorer.step(shard, batch_of([record(8, 29, key="b", v=1.0)]))
    changes = scorer.drain_changes(shard)
    assert (["b"], []) == ([key for key, _ in changes.puts], changes.removed)


def test_the_bytes_of_a_key_are_few(tmp_path: Path) -> None:
    """With 16 hidden units a key whose history is folded stays within 400 bytes."""
    scorer = _job(tmp_path, {}, models.gru(1, hidden=16))
    shard = scorer.new_shard(0)
    store = Store()
    for i in range(50):
        scorer.step(shard, batch_of([record(i, 40 * i, id=f"a-rather-long-id-{i}", v=1.0)]))
        store.take(0, scorer.drain_changes(shard))
    assert len(store.keys[0]["a"]) <= 400


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
@pytest.mark.parametrize("kind", STATES)
def test_bytes_cut_short_or_with_a_tail_are_refused(tmp_path: Path, kind: str, emit: str) -> None:
    """At whatever byte the state of a key ends, the refusal names the key and the remedy."""
    changes, model = STATES[kind]
    scorer = _job(tmp_path, {**changes, "policy.emit": emit}, model)
    _, saved = _saved(scorer)
    for key, value in saved.puts:
        others = [(k, v) for k, v in saved.puts if k != key]
        for harmed in [*(value[:n] for n in range(len(value))), value + b"\0"]:
            with pytest.raises(StateRefused, match="remedy: ") as caught:
                scorer.restore_shard(0, saved.meta, [*others, (key, harmed)])
            assert repr(key) in str(caught.value)


def test_bytes_of_another_version_are_refused(tmp_path: Path) -> None:
    """Of a key and of the shard: both versions are named."""
    scorer = _job(tmp_path, {}, models.shift_in())
    _, saved = _saved(scorer)
    key, value = saved.puts[0]
    with pytest.raises(StateRefused, match=f"layout version {VERSION + 1}, this is {VERSION}"):
        scorer.restore_shard(0, saved.meta, [(key, bytes([VERSION + 1]) + value[1:])])
    meta = json.loads(saved.meta) | {"tidegate_shard": VERSION + 1}
    with pytest.raises(StateRefused, match=f"layout version {VERSION + 1}, this is {VERSION}"):
        scorer.restore_shard(0, json.dumps(meta).encode(), saved.puts)


UNREADABLE = [
    *(b"", b"{", b"[]", b"null", b"\xff", b"{}", b'{"tidegate_shard":2}'),
    b'{"tidegate_shard":2,"partition":0,"last_offset":1,"max_event_time":1,"spec":{},"models":null}',
]


@pytest.mark.parametrize("meta", UNREADABLE)
def test_a_shard_that_cannot_be_read_is_refused(tmp_path: Path, meta: bytes) -> None:
    """No traceback of a parser, but a refusal with a remedy."""
    scorer = _job(tmp_path, {}, models.shift_in())
    with pytest.raises(StateRefused, match="remedy: "):
        scorer.restore_shard(0, meta, [])


def test_a_flipped_byte_never_ends_in_a_traceback(tmp_path: Path) -> None:
    """It is refused, or it is in a number that nothing can check; it never raises anything else."""
    scorer = _job(tmp_path, {"policy.emit": "on_watermark"}, models.shift_in())
    _, saved = _saved(scorer)
    refused = 0
    for key, value in saved.puts:
        for at in range(len(value)):
            harmed = value[:at] + bytes([value[at] ^ 0x80]) + value[at + 1 :]
            try:
                scorer.restore_shard(0, saved.meta, [(key, harmed)])
            except StateRefused:
                refused += 1
    assert refused


def test_a_shard_saved_before_its_first_event_is_restored(tmp_path: Path) -> None:
    """Only rejects so far: a position, no watermark, no keys."""
    scorer = _job(tmp_path, {}, models.shift_in())
    shard = scorer.new_shard(0)
    scorer.step(shard, batch_of([(0, 4, 1_700_000_000_000, None, b"{")]))
    saved = scorer.drain_changes(shard)
    assert [] == saved.puts
    again = scorer.restore_shard(0, saved.meta, saved.puts)
    assert (4, shard.max_event_time) == (again.last_offset, again.max_event_time)
    outputs = scorer.step(again, batch_of([record(4, 0), record(5, -3_000, v=1.0)]))
    assert 1 == again.counters["skipped"]
    (prediction,) = map(msgspec.json.decode, outputs.predictions)
    assert 5 == prediction["trigger"]["offset"]


def test_position_is_all_that_a_batch_without_events_changes(tmp_path: Path) -> None:
    """Reading the state of a shard again gives equal bytes: encoding has one form."""
    scorer = _job(tmp_path, {}, models.shift_in())
    shard, saved = _saved(scorer)
    again = scorer.restore_shard(0, saved.meta, saved.puts)
    again.keys.dirty[: again.keys.size] = True
    twice = scorer.drain_changes(again)
    assert (sorted(saved.puts), saved.meta) == (sorted(twice.puts), twice.meta)
    assert np.array_equal(shard.last_offset, again.last_offset)
