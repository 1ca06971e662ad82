"""Random jobs and logs in which everything that can go wrong goes wrong often.

A log is drawn in two stages: first a `Setup` (the spec in small numbers) and a list of `Move`s,
then `realise` turns moves into rows. A move says *where* its event falls in terms of the policy
("one tick before the watermark", "exactly when the life ends"), so that ties and exact boundaries
are the rule; and it survives the removal of other moves, so that Hypothesis shrinks to a few rows.
The same code draws for Hypothesis (`cases`) and from a seed, for volume (`random_log`).

`tests.scripts` prints a case as an aligned event script.
"""

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from tests.random_jobs import GENTLE, MORE_FEATURES, SAME_STATES, V_FIELD, WILD, Setup
from tests.random_rows import Move, Writer
from tests.random_texts import oddities
from tests.scripts import Case

T = TypeVar("T")

NEAR = (
    ["max"] * 8 + ["watermark"] * 3 + ["horizon"] * 2 + ["newest", "same", "same", "end", "final"]
)
V_TEXTS = ["1", "2", "3.0", "0", "-1", "0.5", "4E0", "-0.0", "7"]
WILD_V_TEXTS = ["1e20", "-1e20", "3e38", "0", "1", "1e38", "-3e38", "2.5"]
W_TEXTS = ["0", "1", "2", "-3", "-0", "9007199254740993"]
CAT_TEXTS = ['"a"', '"b"', '""', '"ü"', '"zz"', '"\\ud83d\\ude00"', '"\\u00fc"']


class Chooser(Protocol):
    """Makes choices; the first option and the lowest number are the simplest ones."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        ...

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        ...


class SeededChooser:
    """Chooses by a seed."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return self.random.choice(options)

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)


class DrawnChooser:
    """Lets Hypothesis choose."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        # Hypothesis shrinks towards zero, which is the simplest number wherever it is allowed.
        return self.draw(st.integers(low, high))


def chance(chooser: Chooser, percent: int) -> bool:
    """True in so many of a hundred cases; False is the simpler one."""
    return chooser.number(0, 99) >= 100 - percent


def draw_setup(chooser: Chooser, emit: str | None = None, late: str | None = None) -> Setup:
    """Chooses a job; emit and late may be given."""
    unit = chooser.pick(["ms", "ms", "s", "us", "ns", "iso8601"])
    tick = chooser.pick([1000, 3_600_000] if unit == "s" else [1, 1, 1000, 25_200_000])
    allowed = chooser.pick([0, 2, 4, 9])
    nullable = chooser.pick([False, True])
    features = [dict(V_FIELD, **chooser.pick([{}, {}, {"shift": 1.0, "scale": 0.1}]))]
    for _ in range(chooser.number(0, 3)):
        feature = chooser.pick(MORE_FEATURES)
        if feature["name"] not in [each["name"] for each in features]:
            features.append(feature)
    if nullable:
        features = [
            dict(each, missing=0.5) if each["kind"] == "field" else each for each in features
        ]
    model, seed = chooser.pick(GENTLE + WILD), chooser.number(0, 1)
    cutovers: list[tuple[str, int, int, str]] = []
    at = 0
    for _ in range(chooser.pick([0, 0, 1, 1, 2])):
        at += chooser.pick([3, 1, 7])
        before = cutovers[-1][0] if cutovers else model
        following = chooser.pick([before, *SAME_STATES.get(before, [])])
        way = chooser.pick(["reset", "carry"])
        cutovers.append((following, len(cutovers) + seed + 1, at, way))
    return Setup(
        start_ms=chooser.pick([1_357_000_000_000, 0]),
        tick_ms=tick,
        partitions=chooser.pick([1, 2, 3]),
        partitioner=chooser.pick(["none", "murmur2", "crc32"]),
        keys_per_partition=chooser.pick([1, 2]),
        unit=unit,
        offset=chooser.pick([None, "+00:00", "-05:30"]) if unit == "iso8601" else None,
        nullable=nullable,
        heartbeat=chooser.pick([False, True, True]),
        ids=chooser.pick(["str", "str?", "none"]),
        tombstone=chooser.pick(["reject", "forget", "forget"]),
        emit=emit or chooser.pick(["on_event", "on_watermark"]),
        late=late or chooser.pick(["repredict", "update", "drop"]),
        out_of_orderness=chooser.pick([3, 5, 1, 0]),
        allowed_lateness=allowed,
        idle_ttl=allowed + chooser.pick([0, 1, 5]),
        finished_ttl=allowed + chooser.pick([0, 1, 5]),
        features=tuple(features),
        model=model,
        seed=seed,
        cutovers=tuple(cutovers),
        sink_features=chooser.pick([True, False]),
    )


def draw_move(chooser: Chooser, setup: Setup) -> Move:
    """Chooses one row to be."""
    what = chooser.pick(["event"] * 16 + ["heartbeat"] * setup.heartbeat + ["tombstone"])
    near = chooser.pick(NEAR)
    low, high = (-1, 1) if near in ("watermark", "horizon", "end", "final") else (-4, 3)
    move: dict[str, Any] = {
        "what": what,
        "partition": chooser.number(0, setup.partitions - 1),
        "key": chooser.number(0, setup.keys_per_partition - 1),
        "near": near,
        "ticks": 0 if near == "same" else chooser.number(low, high),
        "offset_step": chooser.pick([1] * 12 + [2, 1000, 0, -1]),
    }
    if what == "tombstone":
        return Move(
            **move, kafka_key=chooser.pick(["same"] * 5 + ["null", "other", "empty", "bytes"])
        )
    if setup.tick_ms > 1 and setup.unit != "s":
        move["fine_ms"] = chooser.pick([0, 0, 0, -1, 1])
    values = {
        "v": chooser.pick(WILD_V_TEXTS if setup.model in WILD else V_TEXTS),
        "w": chooser.pick(W_TEXTS[:3]),
        "flag": chooser.pick(["true", "false"]),
        "cat": chooser.pick(CAT_TEXTS[:4]),
    }
    if setup.nullable and chance(chooser, 30):
        values[chooser.pick(["v", "w", "flag", "cat"])] = chooser.pick(["null", "absent"])
    move["values"] = tuple(values.items())
    move["type"] = chooser.pick(["scan"] * 15 + ["stop"])
    move["event_id"] = chooser.pick(["new"] * 7 + ["1", "2", "4"])
    if not chance(chooser, 25):
        return Move(**move)
    quirk = chooser.pick(["oddity"] * 7 + ["future"] * 2 + ["floor", "away", "kafka_key", "nulls"])
    if quirk == "oddity":
        move["oddity"] = chooser.pick(oddities(setup.unit))
    elif quirk == "future":
        move["stamp_ms"] = chooser.pick([-setup.max_future_ms - 1, -setup.max_future_ms])
    elif quirk == "floor":
        move |= {"near": "floor", "ticks": chooser.pick([-1, 0])}
    elif quirk == "away":
        move["away"] = True
    elif quirk == "kafka_key":
        move["kafka_key"] = chooser.pick(["null", "other", "empty", "bytes"])
    elif quirk == "nulls":
        move["event_id"] = "null" if setup.ids == "str?" else "new"
        move["type"] = chooser.pick(["null", "absent"]) if setup.nullable else "end"
    return Move(**move)


def realise(setup: Setup, moves: Sequence[Move], seed: str | None = None) -> Case:
    """The case that a setup and its moves stand for."""
    writer = Writer(setup)
    return Case(setup, [writer.row(move) for move in moves], seed)


def random_log(
    seed: int, rows: int = 60, emit: str | None = None, late: str | None = None, log: int = 0
) -> Case:
    """The case of a seed; another `log` is another log of the same job."""
    setup = draw_setup(SeededChooser(seed), emit, late)
    chooser = SeededChooser(f"{seed}/{log}")
    return realise(setup, [draw_move(chooser, setup) for _ in range(rows)], f"{seed}/{log}")


@st.composite
def cases(draw: st.DrawFn, max_rows: int = 25) -> Case:
    """Cases that Hypothesis can shrink."""
    setup = draw_setup(DrawnChooser(draw))
    one = st.composite(lambda draw_one: draw_move(DrawnChooser(draw_one), setup))
    return realise(setup, draw(st.lists(one(), min_size=1, max_size=max_rows)))
