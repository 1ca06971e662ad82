"""Features: computed once, by this code, for serving and for training.

A feature is a function of an event, the event before it in the key's life, and the life's first
event: nothing else, so it can be recomputed after an insertion and gives the same number in every
engine. Numbers are float64 up to the last cast. Sine and cosine come from tables made with
`math`, because vectorised ones may differ in the last bit with the length of the array.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.policy import Bools, Int64s
from schemas.spec import (
    Count,
    DayOfWeek,
    Delta,
    Feature,
    FieldFeature,
    HourOfDay,
    Index,
    OneHot,
    Previous,
    SinceFirst,
    SincePrevious,
    Spec,
)

Float64s = NDArray[np.float64]

_DAY_MS = 86_400_000
_UNKNOWN = -1.0


def _circle(steps: int) -> Float64s:
    angles = [2 * math.pi * i / steps for i in range(steps)]
    return np.array([[math.sin(a), math.cos(a)] for a in angles])


_SECONDS = _circle(86_400)
_WEEKDAYS = _circle(7)


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A number kept of each event: a field's value, or its position in a vocabulary.

    Attributes:
        field: the event field.
        codes: value to position; None where the field is a number itself.
    """

    field: str
    codes: Mapping[Any, float] | None

    def numbers(self, values: list[Any]) -> Float64s:
        """Returns float64 of shape (n,): NaN for a missing number, -1 outside the vocabulary."""
        if self.codes is None:
            return np.array(values, np.float64)
        return np.fromiter(map(self.codes.get, values, repeat(_UNKNOWN)), np.float64, len(values))


def _column_of(feature: Feature) -> RawColumn | None:
    if isinstance(feature, OneHot | Index):
        return RawColumn(feature.field, {v: float(i) for i, v in enumerate(feature.values)})
    if isinstance(feature, FieldFeature | Previous | Delta):
        return RawColumn(feature.field, None)
    return None


def raw_columns(spec: Spec) -> list[RawColumn]:
    """Returns the distinct numbers that must be kept of each event to compute the features."""
    columns: list[RawColumn] = []
    for feature in spec.features:
        column = _column_of(feature)
        if column is not None and column not in columns:
            columns.append(column)
    return columns


@dataclass(slots=True)
class Context:
    """What the features of n events are computed from.

    Attributes:
        raw: numbers of the events, float64, shape (n, columns).
        previous: numbers of the event before each in its life; any where `first` is true.
        first: which events are the first of their life, shape (n,).
        times: event times in milliseconds, int64, shape (n,).
        previous_times: times of the events before; any where `first` is true.
        first_times: earliest event times of the lives.
        counts: numbers of earlier events of the lives.
    """

    raw: Float64s
    previous: Float64s
    first: Bools
    times: Int64s
    previous_times: Int64s
    first_times: Int64s
    counts: Int64s


Column = Callable[[Context], Float64s]


class FeaturePlan:
    """The features of a spec, as columns of the model's input.

    Args:
        spec: the job spec.

    Attributes:
        names: one name for each column; `name=value` and `name.sin` where a feature has several.
    """

    def __init__(self, spec: Spec) -> None:
        self._columns: list[Column] = []
        self.names: list[str] = []
        raw = raw_columns(spec)
        for feature in spec.features:
            column = _column_of(feature)
            self._add(feature, raw.index(column) if column is not None else -1)

    def __len__(self) -> int:
        return len(self.names)

    def compute(self, context: Context, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Returns the input rows, shape (n, len(self)); what does not fit the dtype is infinite."""
        x = np.empty((len(context.times), len(self._columns)))
        for j, column in enumerate(self._columns):
            x[:, j] = column(context)
        with np.errstate(over="ignore"):
            return x.astype(dtype)

    def _add(self, feature: Feature, j: int) -> None:
        match feature:
            case OneHot():
                for position, value in enumerate(feature.values):
                    self._one(f"{feature.name}={value}", _equals(j, float(position)))
                if feature.unknown == "column":
                    self._one(f"{feature.name}=?", _equals(j, _UNKNOWN))
            case HourOfDay():
                for name, axis in (("sin", 0), ("cos", 1)):
                    self._one(f"{feature.name}.{name}", _hour(axis))
            case DayOfWeek():
                for name, axis in (("sin", 0), ("cos", 1)):
                    self._one(f"{feature.name}.{name}", _weekday(axis))
            case _:
                self._one(feature.name, _scaled(_SCALED[type(feature)](feature, j), feature))

    def _one(self, name: str, column: Column) -> None:
        self.names.append(name)
        self._columns.append(column)


def _scaled(column: Column, feature: Any) -> Column:
    shift, scale = feature.shift, feature.scale
    if shift == 0.0 and scale == 1.0:
        return column

    def scaled(context: Context) -> Float64s:
        with np.errstate(over="ignore", invalid="ignore"):
            values: Float64s = (column(context) - shift) * scale
            return values

    return scaled


def _filled(values: Float64s, missing: float) -> Float64s:
    return np.where(np.isnan(values), missing, values)


def _field(feature: Any, j: int) -> Column:
    if feature.missing is None:
        return lambda c: c.raw[:, j]
    return lambda c: _filled(c.raw[:, j], feature.missing)


def _since_previous(feature: Any, _: int) -> Column:
    return lambda c: np.where(c.first, feature.missing, (c.times - c.previous_times) / 1000.0)


def _since_first(_: Any, __: int) -> Column:
    return lambda c: (c.times - c.first_times) / 1000.0


def _count(_: Any, __: int) -> Column:
    return lambda c: c.counts.astype(np.float64)


def _previous(feature: Any, j: int) -> Column:
    return lambda c: _filled(np.where(c.first, np.nan, c.previous[:, j]), feature.missing)


def _delta(feature: Any, j: int) -> Column:
    def delta(c: Context) -> Float64s:
        previous = np.where(c.first, np.nan, c.previous[:, j])
        missing = np.isnan(previous) | np.isnan(c.raw[:, j])
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(missing, feature.missing, c.raw[:, j] - previous)

    return delta


def _index(feature: Any, j: int) -> Column:
    unknown = len(feature.values) if feature.unknown is None else feature.unknown
    return lambda c: np.where(c.raw[:, j] == _UNKNOWN, float(unknown), c.raw[:, j])


_SCALED: dict[type, Callable[[Any, int], Column]] = {
    FieldFeature: _field,
    SincePrevious: _since_previous,
    SinceFirst: _since_first,
    Count: _count,
    Previous: _previous,
    Delta: _delta,
    Index: _index,
}


def _equals(j: int, code: float) -> Column:
    return lambda c: (c.raw[:, j] == code).astype(np.float64)


def _hour(axis: int) -> Column:
    return lambda c: _SECONDS[(c.times % _DAY_MS) // 1000, axis]


def _weekday(axis: int) -> Column:
    # 1970-01-01 was a Thursday, day 3 of a week that starts on Monday.
    return lambda c: _WEEKDAYS[(c.times // _DAY_MS + 3) % 7, axis]
