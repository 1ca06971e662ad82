"""Which state a job may go on with: the same decisions, and models that only time has changed.

The right answer to leaving a model out is always the same: the records of the job that never did.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest

from operators.codec import StateRefused
from operators.scorer import Scorer
from tests import models
from tests.oracle import Row
from tests.small_jobs import GONE, Store, batch_of, ms, one_by_one, record, small_job, whole

Chain = list[tuple[onnx.ModelProto, int, str]]


def _settings(model: onnx.ModelProto) -> dict[str, Any]:
    """The settings that say which tensor of a model is which."""
    if len(model.graph.input) == 1:
        return {"window": 3}
    return {
        "states": [
            {"input": each.name, "output": f"{each.name}_next"} for each in model.graph.input[1:]
        ]
    }


def _job(folder: Path, chain: Chain, **changes: Any) -> Scorer:
    """A job of several models, each with the second from which it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    following = []
    for (before, *_), (model, seconds, state) in pairwise(chain):
        name = f"{models.digest(model)[7:19]}.onnx"
        models.write(model, folder / name)
        entry: dict[str, Any] = {"path": name, "from_event_time_ms": ms(seconds), "state": state}
        if state == "carry":
            entry["compatible_with"] = [models.digest(before)]
        following.append(entry | _settings(model))
    first = {"path": "model.onnx", "input": "x", "output": "y", **_settings(chain[0][0])}
    return Scorer(small_job(folder, {"model": first | {"next": following}, **changes}, chain[0][0]))


def _named(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The same model under another digest."""
    return models.with_metadata(model, name=name)


OLD = models.shift_in()
ADDS = models.accumulate()
WIDE = models.gru(1, hidden=7)
DIGITS = models.windowed_digits(1, 3)


def _walk(scorers: dict[int, Scorer], rows: list[Row]) -> tuple[list[bytes], list[bytes]]:
    """Runs event by event, restored each time; `scorers` take over at a place in the log."""
    store, predictions, rejects = Store(), [], []
    scorer = scorers[0]
    for i, row in enumerate(rows):
        scorer = scorers.get(i, scorer)
        shard = store.restore(scorer, 0)
        outputs = scorer.step(shard, batch_of([row]))
        predictions += outputs.predictions
        rejects += outputs.rejects
        store.take(0, scorer.drain_changes(shard))
    outputs = scorer.finish(store.restore(scorer, 0))
    return sorted(predictions + outputs.predictions), sorted(rejects + outputs.rejects)


def _rows(until: int) -> list[Row]:
    """Events every two seconds of four keys in turn, one of them rarely, some of it late."""
    rows, at = [], 0
    for i in range(until // 2):
        at = 2 * i - (i % 5 == 0) * 3 - (i % 7 == 0) * 15
        key = "rare" if i in (3, 21, until // 2 - 1) else f"k{i % 3}"
        rows.append(record(i, at, stamp=2 * i, key=key, v=float(i % 10)))
    return rows


#: The horizon is 30 s behind the newest event: past the cut-over at 30 from 60 on.
CUT_S, PAST_S, LENGTH_S = 30, 62, 110
LONG = {"policy.idle_ttl_ms": 10**7, "policy.finished_ttl_ms": 10**7}


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
@pytest.mark.parametrize("late", ["drop", "update", "repredict"])
@pytest.mark.parametrize(
    ("old", "new", "state"),
    [
        (OLD, ADDS, "carry"),
        (OLD, ADDS, "reset"),
        (OLD, WIDE, "reset"),
        (WIDE, OLD, "reset"),
        (OLD, DIGITS, "reset"),
        (DIGITS, _named(models.windowed_digits(1, 3), "next"), "carry"),
    ],
)
def test_leaving_the_old_model_out_changes_no_record(
    tmp_path: Path, old: onnx.ModelProto, new: onnx.ModelProto, state: str, late: str, emit: str
) -> None:
    """Past the horizon, the job with the new model alone goes on as the job with both."""
    changes = {"policy.late": late, "policy.emit": emit, **LONG}
    both = _job(tmp_path / "both", [(old, 0, ""), (new, CUT_S, state)], **changes)
    alone = _job(tmp_path / "alone", [(new, 0, "")], **changes)
    rows = _rows(LENGTH_S)
    expected = whole(both, rows)
    past = next(i for i, row in enumerate(rows) if row[2] >= ms(PAST_S + 10)) + 1
    assert expected == one_by_one([both], rows, restore=True)
    assert expected == _walk({0: both, past: alone}, rows)


def test_a_model_that_was_reset_stays_so_through_restores(tmp_path: Path) -> None:
    """A key untouched for several restores after the old model left starts from zeros, too."""
    both = _job(tmp_path / "both", [(OLD, 0, ""), (ADDS, CUT_S, "reset")], **LONG)
    alone = _job(tmp_path / "alone", [(ADDS, 0, "")], **LONG)
    rows = [
        record(0, 0, key="rare", v=7.0),
        record(1, 100, key="b", v=1.0),
        record(2, 101, key="b", v=1.0),
        record(3, 102, key="rare", v=2.0),
    ]
    expected = whole(both, rows)
    assert expected == _walk({0: both, 2: alone}, rows)
    assert expected == _walk({0: both, 3: alone}, rows)


def test_two_models_may_leave_at_once(tmp_path: Path) -> None:
    """A reset and a carry behind the horizon: only the last model stays."""
    last = _named(models.shift_in(), "last")
    chain: Chain = [(OLD, 0, ""), (ADDS, 20, "reset"), (last, CUT_S, "carry")]
    every = _job(tmp_path / "all", chain, **LONG)
    alone = _job(tmp_path / "alone", [(last, 0, "")], **LONG)
    rows = _rows(LENGTH_S)
    for place in range(45, len(rows)):
        assert whole(every, rows) == _walk({0: every, place: alone}, rows)


def test_a_model_may_come_back(tmp_path: Path) -> None:
    """A, then B, then A again: once the horizon is past both cuts, A alone goes on."""
    chain: Chain = [(OLD, 0, ""), (ADDS, 20, "reset"), (OLD, CUT_S, "reset")]
    every = _job(tmp_path / "all", chain, **LONG)
    alone = _job(tmp_path / "alone", [(OLD, 0, "")], **LONG)
    rows = _rows(LENGTH_S)
    assert whole(every, rows) == _walk({0: every, 50: alone}, rows)


@pytest.mark.parametrize("late", ["drop", "repredict"])
def test_the_old_model_may_not_leave_before_the_horizon_is_past(tmp_path: Path, late: str) -> None:
    """To the millisecond: a kept event could still need it."""
    changes = {"policy.late": late}
    both = _job(tmp_path / "both", [(OLD, 0, ""), (ADDS, CUT_S, "reset")], **changes)
    alone = _job(tmp_path / "alone", [(ADDS, 0, "")], **changes)
    reach = CUT_S + 10 + (20 if late == "repredict" else 0)
    for seconds, accepted in ((reach - 0.001, False), (reach, True)):
        shard = both.new_shard(0)
        both.step(shard, batch_of([record(0, 0), record(1, seconds, key="b")]))
        saved = both.drain_changes(shard)
        if accepted:
            alone.restore_shard(0, saved.meta, saved.puts)
            continue
        with pytest.raises(StateRefused) as caught:
            alone.restore_shard(0, saved.meta, saved.puts)
        for part in (both.spec_digest, alone.spec_digest, models.digest(OLD), str(ms(CUT_S)),
                     "keep it in the spec", "remedy: "):  # fmt: skip
            assert part in str(caught.value)


@pytest.mark.parametrize(
    ("new", "state"),
    [(ADDS, "carry"), (ADDS, "reset"), (WIDE, "reset"), (DIGITS, "reset")],
)
def test_a_model_may_be_added_before_its_time(
    tmp_path: Path, new: onnx.ModelProto, state: str
) -> None:
    """Wherever in the log it is added, the records are those of a job that always had it."""
    before = _job(tmp_path / "before", [(OLD, 0, "")])
    after = _job(tmp_path / "after", [(OLD, 0, ""), (new, CUT_S, state)])
    rows = _rows(LENGTH_S)
    expected = whole(after, rows)
    reached = next(i for i, row in enumerate(rows) if row[2] >= ms(CUT_S))
    for place in (1, reached // 2, reached):
        assert expected == _walk({0: before, place: after}, rows)


def test_a_model_may_be_taken_back_before_its_time(tmp_path: Path) -> None:
    """What has stepped no event has left no trace."""
    one = _job(tmp_path / "one", [(OLD, 0, "")])
    two = _job(tmp_path / "two", [(OLD, 0, ""), (ADDS, 1_000, "carry")])
    rows = _rows(60)
    assert whole(one, rows) == _walk({0: two, 10: one}, rows)


def test_a_model_whose_time_was_reached_may_not_be_added(tmp_path: Path) -> None:
    """One event at the cut-over is enough; the refusal names the times and what to do."""
    before = _job(tmp_path / "before", [(OLD, 0, "")])
    after = _job(tmp_path / "after", [(OLD, 0, ""), (ADDS, CUT_S, "reset")])
    for at, accepted in ((CUT_S - 0.001, True), (CUT_S, False)):
        shard = before.new_shard(0)
        before.step(shard, batch_of([record(0, at)]))
        saved = before.drain_changes(shard)
        if accepted:
            after.restore_shard(0, saved.meta, saved.puts)
            continue
        with pytest.raises(StateRefused) as caught:
            after.restore_shard(0, saved.meta, saved.puts)
        for part in (models.digest(ADDS), str(ms(CUT_S)), str(ms(at)), "later time", "remedy: "):
            assert part in str(caught.value)


def test_a_model_that_stepped_events_may_not_be_taken_back(tmp_path: Path) -> None:
    """Nor may its time or its way with the state be changed."""
    two = _job(tmp_path / "two", [(OLD, 0, ""), (ADDS, CUT_S, "reset")])
    shard = two.new_shard(0)
    two.step(shard, batch_of([record(0, CUT_S)]))
    saved = two.drain_changes(shard)
    others: dict[str, Chain] = {
        "has stepped events": [(OLD, 0, "")],
        "from_event_time_ms": [(OLD, 0, ""), (ADDS, CUT_S + 1, "reset")],
        "carry: False in the state, True here": [(OLD, 0, ""), (ADDS, CUT_S, "carry")],
        models.digest(WIDE): [(OLD, 0, ""), (WIDE, CUT_S, "reset")],
    }
    for number, (part, chain) in enumerate(others.items()):
        other = _job(tmp_path / str(number), chain)
        with pytest.raises(StateRefused) as caught:
            other.restore_shard(0, saved.meta, saved.puts)
        assert part in str(caught.value)


_CHANGES: dict[str, tuple[Any, str]] = {
    "generation": (2, "generation: 1 in the state, 2 here"),
    "source.partitions": (8, "partitions: 4 in the state, 8 here"),
    "source.partitioner": ("murmur2", "partitioner: 'none' in the state, 'murmur2' here"),
    "event.id": (GONE, "event.id: 'id' in the state, None here"),
    "event.terminal": ([], "event.terminal: ['end'] in the state, [] here"),
    "event.tombstone": ("forget", "event.tombstone: 'reject' in the state, 'forget' here"),
    "event.time.unit": ("s", "event.time.unit: 'ms' in the state, 's' here"),
    "time.out_of_orderness_ms": (1, "time.out_of_orderness_ms: 10000 in the state, 1 here"),
    "time.max_future_ms": (1, "time.max_future_ms: 60000 in the state, 1 here"),
    "policy.emit": ("on_watermark", "policy.emit: 'on_event' in the state, 'on_watermark' here"),
    "policy.idle_ttl_ms": (99_999, "policy.idle_ttl_ms: 100000 in the state, 99999 here"),
    "features.0.missing": (1.0, "features"),
    "event.fields.new": ("int?", "event.fields.new: None in the state, 'int?' here"),
    "sink.features": (True, "sink_features: False in the state, True here"),
}


@pytest.mark.parametrize("path", _CHANGES)
def test_whatever_decides_records_is_part_of_the_digest(tmp_path: Path, path: str) -> None:
    """The refusal names both digests, the key path and both values."""
    value, part = _CHANGES[path]
    first, second = _job(tmp_path / "1", [(OLD, 0, "")]), None
    second = _job(tmp_path / "2", [(OLD, 0, "")], **{path: value})
    shard = first.new_shard(0)
    first.step(shard, batch_of([record(0, 0)]))
    saved = first.drain_changes(shard)
    with pytest.raises(StateRefused) as caught:
        second.restore_shard(0, saved.meta, saved.puts)
    for said in (first.spec_digest, second.spec_digest, part, "remedy: "):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "another"),
        ("source.topic", "moved"),
        ("source.bootstrap_servers", "elsewhere:9092"),
        ("sink.predictions", "moved"),
        ("sink.guarantee", "transactional"),
    ],
)
def test_what_only_moves_records_is_not(tmp_path: Path, path: str, value: str) -> None:
    """Topics, servers and guarantees may change under the same state."""
    first = _job(tmp_path / "1", [(OLD, 0, "")])
    second = _job(tmp_path / "2", [(OLD, 0, "")], **{path: value})
    assert first.spec_digest == second.spec_digest
    shard = first.new_shard(0)
    first.step(shard, batch_of([record(0, 0)]))
    saved = first.drain_changes(shard)
    second.restore_shard(0, saved.meta, saved.puts)
