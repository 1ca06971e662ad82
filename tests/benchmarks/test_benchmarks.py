"""The benchmarks still work; no figure is asserted."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from operators.scorer import Scorer
from schemas.log import read_log
from schemas.spec import load_spec
from tests.benchmarks.contender import ROOT, Measured, contenders
from tests.benchmarks.in_process import predictions
from tests.benchmarks.input import HIDDEN, Settings, disordered_share, make_input
from tests.benchmarks.per_event import Stepper
from tests.benchmarks.report import Found, bars, verdict


@pytest.mark.slow
def test_the_contenders_run_and_tell_their_figures(tmp_path: Path) -> None:
    """The quick mode, as a person starts it, less one of two that differ by a word of the spec."""
    names = [name for name in contenders() if name != "packed drop"]
    only = [argument for name in names for argument in ("--only", name)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--quick", "--out", str(tmp_path), *only],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert 0 == ran.returncode, ran.stderr
    told = msgspec.json.decode((tmp_path / "bench.json").read_bytes())
    assert names == list(told["contenders"])
    assert ["packed drop"] * 3 == [b["what"].split(" /")[0] for b in told["bars"] if not b["found"]]
    assert "Bars" in ran.stdout
    assert [] == [left.name for left in tmp_path.glob("work-*")]


def test_on_a_log_in_order_the_per_event_peers_compute_what_the_transition_does(
    tmp_path: Path,
) -> None:
    """Same features, same model, same numbers: the peers do the work that they are compared by."""
    settings = Settings(events=3000, few_events=100, keys=40, partitions=1, disorder=0.0)
    source = make_input(settings, tmp_path)
    (batch,) = read_log(source.log(".jsonl"))
    scorer = Scorer(load_spec(source.spec("drop")))
    expected = [
        (found["key"], found["sequence"], found["event_time_ms"], found["prediction"])
        for found in map(msgspec.json.decode, scorer.step(scorer.new_shard(0), batch).predictions)
    ]
    values = [value for value in batch.values if value is not None]
    actual = [
        (found["key"], found["sequence"], found["event_time_ms"], found["prediction"])
        for found in map(msgspec.json.decode, predictions(Stepper(source.model, HIDDEN), values))
    ]
    assert 3000 == len(expected)
    assert expected == actual


def test_the_log_has_the_disorder_that_was_asked_for(tmp_path: Path) -> None:
    """Exactly so many events come after a later one of their key; forms and policies agree."""
    settings = Settings(events=20_000, few_events=700, keys=200)
    source = make_input(settings, tmp_path)
    assert 0.05 == pytest.approx(source.facts.disordered)
    assert source.folder == make_input(settings, tmp_path).folder
    rows = [sum(map(len, read_log(source.log(suffix)))) for suffix in (".jsonl", ".parquet")]
    assert [20_000, 20_000] == rows
    assert 4 == len(list(source.few_files.iterdir()))


def test_an_event_is_disordered_if_a_later_one_of_its_key_came_before() -> None:
    """Other keys, and ties, do not count."""
    keys = np.array([1, 2, 1, 2, 1, 1])
    times = np.array([5, 9, 7, 9, 6, 7])
    assert 1 / 6 == pytest.approx(disordered_share(keys, times))


def test_a_bar_is_judged_by_medians_and_says_by_how_much() -> None:
    """Of three repetitions the middle one counts; what was not measured is not judged."""

    def took(*seconds: float) -> list[Measured]:
        return [Measured(700, each, each, begun_at=0.0) for each in seconds]

    found: Found = {"packed drop": took(1, 2, 9), "per-event PyFlink": took(14, 14, 14)}
    judged = {bar.what: bar for bar in bars(found)}
    bar = judged["packed drop / per-event PyFlink"]
    assert (7.0, True, "met by 17%") == (bar.found, bar.met, verdict(bar))
    assert "not measured" == verdict(judged["packed drop / pass-through"])
