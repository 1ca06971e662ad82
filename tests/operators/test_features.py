"""Every kind of feature by hand: what it is, what stands for a missing value, how it is scaled."""

import datetime as dt
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators.features import FeaturePlan
from operators.scorer import Scorer
from tests import models
from tests.oracle import Row
from tests.random_jobs import columns
from tests.small_jobs import GONE, every_way, ms, parsed, record, small_job

FIELDS = {"id": "str?", "type": "str?", "v": "float?", "n": "int?", "flag": "bool?", "cat": "str?"}


def _vectors(
    folder: Path, features: list[dict[str, Any]], rows: list[Row], **changes: Any
) -> list[list[float]]:
    """The feature vectors of the predictions in order of event time and sequence."""
    changes = {
        "features": features, "event.fields": FIELDS, "sink.features": True,
        "time.max_future_ms": 10**9, "time.min_event_time_ms": -(10**15),
        "policy": {"late": "repredict", "idle_ttl_ms": 10**15, "finished_ttl_ms": 10**15},
    } | changes  # fmt: skip
    spec = small_job(folder, changes, models.accumulate(columns(features)))
    predictions, rejects = every_way(spec, rows)
    assert [] == rejects
    found = parsed(predictions)
    return [each["features"] for each in sorted(found, key=lambda each: each["sequence"])]


def _column(folder: Path, feature: dict[str, Any], rows: list[Row], **changes: Any) -> list[float]:
    vectors = _vectors(folder, [{"name": "x", **feature}], rows, **changes)
    assert {1} == set(map(len, vectors))
    return [x for (x,) in vectors]


def _values(field: str, *values: Any) -> list[Row]:
    """One event a second, with the field as given; GONE leaves it out."""
    return [
        record(i, i, **({} if value is GONE else {field: value})) for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("feature", "field", "values", "expected"),
    [
        ({"kind": "field", "missing": 7}, "v", [1.5, None, GONE, -2], [1.5, 7, 7, -2]),
        ({"kind": "field", "missing": 7, "shift": 1, "scale": 2}, "v", [1.5, None], [1, 12]),
        ({"kind": "field", "missing": -1}, "flag", [True, False, None], [1, 0, -1]),
        ({"kind": "field", "missing": 0}, "n", [2**24 + 1, -3], [2**24, -3]),
        ({"kind": "previous", "missing": 9}, "v", [1, 2, None, 3], [9, 1, 2, 9]),
        ({"kind": "previous", "missing": 9, "scale": 0.5}, "flag", [True, False], [4.5, 0.5]),
        ({"kind": "delta", "missing": 9}, "v", [1, 4, None, 3, 5], [9, 3, 9, 9, 2]),
        ({"kind": "delta", "missing": 9, "shift": 1}, "n", [1, 4], [8, 2]),
        ({"kind": "index", "values": ["a", "ü"]}, "cat", ["ü", "a", "?", None], [1, 0, 2, 2]),
        ({"kind": "index", "values": ["a"], "unknown": -5}, "cat", ["a", "b", GONE], [0, -5, -5]),
        ({"kind": "index", "values": ["a"], "shift": 1, "scale": 2}, "cat", ["a", "b"], [-2, 0]),
        ({"kind": "index", "values": [0, 7]}, "n", [7, 0, 1], [1, 0, 2]),
        ({"kind": "index", "values": [True]}, "flag", [True, False, None], [0, 1, 1]),
        ({"kind": "index", "values": [""]}, "cat", ["", None], [0, 1]),
    ],
)  # fmt: skip
def test_a_feature_of_a_field(
    tmp_path: Path, feature: dict[str, Any], field: str, values: list[Any], expected: list[float]
) -> None:
    """By its kind; `missing` and `unknown` are taken before shift and scale."""
    assert expected == _column(tmp_path, feature | {"field": field}, _values(field, *values))


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ({"kind": "since_previous", "missing": -1}, [-1, 1.5, 0, 0.001]),
        ({"kind": "since_previous", "missing": -1, "shift": 1, "scale": 2}, [-4, 1, -2, -1.998]),
        ({"kind": "since_first"}, [0, 1.5, 1.5, 1.501]),
        ({"kind": "since_first", "shift": 1}, [-1, 0.5, 0.5, 0.501]),
        ({"kind": "count"}, [0, 1, 2, 3]),
        ({"kind": "count", "shift": -1, "scale": 0.5}, [0.5, 1, 1.5, 2]),
    ],
)
def test_a_feature_of_the_life(
    tmp_path: Path, feature: dict[str, Any], expected: list[float]
) -> None:
    """In seconds, or in earlier events."""
    rows = [record(i, at) for i, at in enumerate([0, 1.5, 1.5, 1.501])]
    assert [np.float32(x) for x in expected] == _column(tmp_path, feature, rows)


def test_one_hot_has_a_column_for_each_word_and_one_for_others(tmp_path: Path) -> None:
    """Or all zeros for others where the spec says so; null is unknown."""
    word = {"name": "c", "kind": "one_hot", "field": "cat", "values": ["a", "b"]}
    rows = _values("cat", "b", "a", "c", None, GONE)
    assert [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]] == _vectors(
        tmp_path, [word], rows
    )
    assert [[0, 1], [1, 0], [0, 0], [0, 0], [0, 0]] == _vectors(
        tmp_path, [word | {"unknown": "zeros"}], rows
    )


def _at(text: str) -> float:
    at = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    return at.timestamp() - ms(0) / 1000


@pytest.mark.parametrize(
    ("text", "second", "day"),
    [
        ("1970-01-01T00:00:00", 0, 3),
        ("2023-11-20T06:00:00.999", 21_600, 0),
        ("2023-11-26T23:59:59.999", 86_399, 6),
        ("1969-12-31T23:59:59.001", 86_399, 2),
        ("1969-12-28T18:00:00", 64_800, 6),
        ("2024-02-29T12:34:56", 45_296, 3),
    ],
)
def test_the_calendar_is_utc_before_and_after_the_epoch(
    tmp_path: Path, text: str, second: int, day: int
) -> None:
    """Sine and cosine of the whole second of the day and of the day of the week, Monday first."""
    features = [{"name": "h", "kind": "hour_of_day"}, {"name": "d", "kind": "day_of_week"}]
    rows = [record(0, _at(text), stamp=10**9)]
    angles = [2 * math.pi * second / 86_400, 2 * math.pi * day / 7]
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert [[np.float32(x) for x in expected]] == _vectors(tmp_path, features, rows)


def test_an_insertion_changes_the_features_of_what_follows(tmp_path: Path) -> None:
    """They are functions of the event before, so a revision shows them as of the newest event."""
    features: list[dict[str, Any]] = [
        {"name": "sp", "kind": "since_previous", "missing": -1},
        {"name": "sf", "kind": "since_first"},
        {"name": "n", "kind": "count"},
        {"name": "pv", "kind": "previous", "field": "v", "missing": -1},
        {"name": "dv", "kind": "delta", "field": "v", "missing": -1},
    ]
    rows = [
        record(i, at, v=v)
        for i, (at, v) in enumerate([(10, 1), (20, 2), (15, 5), (5, 7), (4, None)])
    ]
    assert [
        [-1, 0, 0, -1, -1],
        [10, 10, 1, 1, 1],
        [5, 10, 2, 5, -3],
        [5, 15, 3, 5, -3],
        [5, 16, 4, 5, -3],
    ] == _vectors(tmp_path, features, rows)


def test_a_new_life_remembers_nothing_of_the_last(tmp_path: Path) -> None:
    """Previous values, counts and times start again."""
    features: list[dict[str, Any]] = [
        {"name": "n", "kind": "count"},
        {"name": "pv", "kind": "previous", "field": "v", "missing": -1},
        {"name": "sf", "kind": "since_first"},
    ]
    rows = [record(0, 0, v=1.0), record(1, 500, key="b", v=1.0), record(2, 501, v=2.0)]
    ttls = {"late": "drop", "idle_ttl_ms": 100_000, "finished_ttl_ms": 100_000}
    assert [[0, -1, 0]] * 3 == _vectors(tmp_path, features, rows, policy=ttls)


def test_history_that_is_folded_still_counts(tmp_path: Path) -> None:
    """Below the horizon only the base is kept, and its counts and first time stand for the rest."""
    features = [{"name": "n", "kind": "count"}, {"name": "sf", "kind": "since_first"}]
    rows = [record(i, 50 * i) for i in range(40)] + [record(40, 1_940)]
    vectors = _vectors(tmp_path, features, rows)
    assert [[float(i), 50.0 * i] for i in range(40)] == vectors[:40]
    assert [40.0, 1_950.0] == vectors[40]


def test_columns_have_names(tmp_path: Path) -> None:
    """One a column, in the order of the vector."""
    features: list[dict[str, Any]] = [
        {"name": "v", "kind": "field", "field": "v", "missing": 0},
        {"name": "cat", "kind": "one_hot", "field": "cat", "values": ["a"]},
        {"name": "hour", "kind": "hour_of_day"},
    ]
    changes = {"features": features, "event.fields": FIELDS}
    spec = small_job(tmp_path, changes, models.accumulate(5))
    expected = ["v", "cat=a", "cat=?", "hour.sin", "hour.cos"]
    assert expected == FeaturePlan(spec).names
    assert tuple(expected) == Scorer(spec).feature_names


def test_numbers_are_float64_up_to_the_cast(tmp_path: Path) -> None:
    """Shifting in float32 would lose what the shift is for."""
    feature = {"kind": "field", "field": "n", "missing": 0, "shift": 2**53 - 1, "scale": 0.1}
    rows = _values("n", 2**53)
    assert [np.float32(0.1)] == _column(tmp_path, feature, rows)


def test_a_derived_number_beyond_the_dtype_is_non_finite(tmp_path: Path) -> None:
    """A difference may overflow where both values are fine; the key is as if it had not come."""
    feature = {"name": "d", "kind": "delta", "field": "v", "missing": 0}
    changes: dict[str, Any] = {"features": [feature], "sink.features": True}
    spec = small_job(tmp_path, changes, models.accumulate(1))
    rows = [record(0, 0, v=3e38), record(1, 1, v=-3e38), record(2, 2, v=2e38)]
    predictions, rejects = every_way(spec, rows)
    assert [(1, "non_finite")] == [(r["offset"], r["reason"]) for r in parsed(rejects)]
    found = sorted(parsed(predictions), key=lambda each: each["sequence"])
    assert [[0.0], [float(np.float32(-1e38))]] == [each["features"] for each in found]
