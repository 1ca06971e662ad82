"""The formulas of time, each as a small table of values at, just before and just after the cut."""

from pathlib import Path

import numpy as np
import pytest

from operators.policy import NEVER, Int64s, Kind, Policy
from tests.small_jobs import small_job


def _policy(folder: Path, **changes: object) -> Policy:
    settings = {
        "time.out_of_orderness_ms": 10,
        "time.allowed_lateness_ms": 20,
        "time.max_future_ms": 5,
        "time.min_event_time_ms": 100,
        "policy.idle_ttl_ms": 50,
        "policy.finished_ttl_ms": 30,
    }
    return Policy.of(small_job(folder, settings | changes))


def _ints(*values: int) -> Int64s:
    return np.array(values, np.int64)


def test_the_watermark_is_the_greatest_accepted_time_less_the_bound(tmp_path: Path) -> None:
    """Before each record and after the last; refused records and earlier times do not move it."""
    times = _ints(100, 150, 120, 900, 150, 160)
    accepted = np.array([True, True, True, False, True, True])
    watermarks, greatest = _policy(tmp_path).watermarks(times, accepted, 90)
    assert [80, 90, 140, 140, 140, 140, 150] == watermarks.tolist()
    assert 160 == greatest


def test_the_watermark_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Cut anywhere, the second part goes on from the greatest time of the first."""
    policy = _policy(tmp_path)
    times = np.random.default_rng(0).integers(0, 1_000, 50)
    accepted = np.arange(50) % 3 > 0
    whole, greatest = policy.watermarks(times, accepted, NEVER)
    for cut in range(51):
        first, middle = policy.watermarks(times[:cut], accepted[:cut], NEVER)
        second, last = policy.watermarks(times[cut:], accepted[cut:], middle)
        assert whole.tolist() == [*first.tolist()[:-1], *second.tolist()]
        assert greatest == last


def test_before_the_first_event_nothing_is_late(tmp_path: Path) -> None:
    """The watermark of a partition without events lies below every possible time."""
    watermarks, greatest = _policy(tmp_path).watermarks(_ints(), np.zeros(0, np.bool_), NEVER)
    assert NEVER == greatest
    assert watermarks[0] < -(10**15) - 10**15


@pytest.mark.parametrize(
    ("time", "stamp", "future", "implausible"),
    [
        (100, 95, False, False),
        (101, 95, True, False),
        (100, 10**6, False, False),
        (99, 10**6, False, True),
        (99, 0, True, True),
        (2**63 - 1, 2**63 - 1, True, False),
        (-(2**63), 0, False, True),
    ],
)
def test_the_bounds_of_time(
    tmp_path: Path, time: int, stamp: int, future: bool, implausible: bool
) -> None:
    """More than `max_future_ms` after the record, or before `min_event_time_ms`; no overflow."""
    found = _policy(tmp_path).time_bounds(_ints(time), _ints(stamp))
    assert (future, implausible) == tuple(bool(each[0]) for each in found)


@pytest.mark.parametrize(
    ("newest", "finished", "watermark", "over"),
    [
        (100, False, 150, False),
        (100, False, 151, True),
        (100, True, 130, False),
        (100, True, 131, True),
        (100, False, NEVER, False),
    ],
)
def test_a_life_is_over_strictly_after_its_ttl(
    tmp_path: Path, newest: int, finished: bool, watermark: int, over: bool
) -> None:
    """The idle ttl, or that of a finished key."""
    found = _policy(tmp_path).life_over(_ints(newest), np.array([finished]), _ints(watermark))
    assert [over] == found.tolist()


@pytest.mark.parametrize(
    ("late", "keep_ms", "drop", "kind"),
    [
        ("drop", 0, True, Kind.NONE),
        ("update", 20, False, Kind.NONE),
        ("repredict", 20, False, Kind.LATE_REVISION),
    ],
)
def test_the_late_policies(tmp_path: Path, late: str, keep_ms: int, drop: bool, kind: Kind) -> None:
    """What a late event emits, and how far back a key must remember."""
    policy = _policy(tmp_path, **{"policy.late": late})
    assert (keep_ms, drop, kind) == (policy.keep_ms, policy.drop_late, policy.late_kind)


def test_the_modes_of_emission_and_tombstones(tmp_path: Path) -> None:
    """Defaults are `on_event` and `reject`."""
    policy = _policy(tmp_path)
    assert (False, False) == (policy.hold, policy.forget)
    policy = _policy(tmp_path, **{"policy.emit": "on_watermark", "event.tombstone": "forget"})
    assert (True, True) == (policy.hold, policy.forget)
