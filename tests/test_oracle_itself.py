"""The oracle against the contract, by hand: event scripts whose answers a reader can check.

The model shifts decimal digits (h_next = 10 h + v), so a prediction spells the events of its
life in the order they were applied: 123 is 1, then 2, then 3. Times are in milliseconds.
An answer reads: kind epoch#sequence t=newest event W=watermark y=prediction n=events/late ones.
"""

import collections
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests import models, oracle, oracle_reading, scripts, strategies

SPEC: dict[str, Any] = {
    "name": "by-hand",
    "generation": 1,
    "source": {"topic": "t", "partitions": 2, "partitioner": "none"},
    "event": {
        "key": "key",
        "id": "id",
        "time": {"field": "at", "unit": "ms"},
        "type": "type",
        "terminal": ["stop"],
        "heartbeat": "beat",
        "tombstone": "forget",
        "fields": {"id": "str?", "type": "str?", "v": "float"},
    },
    "time": {
        "out_of_orderness_ms": 3,
        "allowed_lateness_ms": 5,
        "max_future_ms": 100,
        "min_event_time_ms": 0,
    },
    "policy": {
        "emit": "on_event",
        "late": "repredict",
        "idle_ttl_ms": 1000,
        "finished_ttl_ms": 1000,
    },
    "features": [{"name": "v", "kind": "field", "field": "v"}],
    "model": {"input": "x", "output": "y", "states": [{"input": "h", "output": "h_next"}]},
    "sink": {"predictions": "p", "rejects": "r"},
}


@pytest.fixture
def digits(tmp_path: Path) -> str:
    """The path of the model that spells."""
    return str(models.write(models.shift_in(), tmp_path / "digits.onnx"))


def job(path: str, **changes: Any) -> dict[str, Any]:
    """The spec above with some settings changed, given as table__setting."""
    spec = copy.deepcopy(SPEC)
    spec["model"]["path"] = path
    for name, value in changes.items():
        table, setting = name.split("__")
        spec[table][setting] = value
    return spec


def play(spec: dict[str, Any], script: str, end: bool = True) -> None:
    """Runs an event script and compares each row's answer with the one beside it.

    A row is `partition offset key id at type v | answer`, with - for what is absent; the key `~`
    is a tombstone for the key in the column of the id.
    """
    rows: list[oracle.Row] = []
    expected = []
    for line in filter(str.strip, script.splitlines()):
        told, _, answer = line.partition("|")
        partition, offset, *cells = told.split()
        key, event_id, at, _, _ = cells
        place = int(partition), int(offset)
        if key == "~":
            rows.append((*place, 0, event_id.encode(), None))
        else:
            names = ("key", "id", "at", "type", "v")
            texts = {name: cell for name, cell in zip(names, cells, strict=True) if cell != "-"}
            value: dict[str, Any] = dict(texts)
            value |= {name: json.loads(texts[name]) for name in ("at", "v") if name in texts}
            rows.append((*place, int(at), key.encode(), json.dumps(value).encode()))
        expected.append(f"{partition} {offset} {' '.join(answer.split())}")
    told_by_oracle = scripts.outcomes(*oracle.run(spec, rows, end))
    actual = [f"{row[0]} {row[1]} {told_by_oracle.get(row[:2], '-')}" for row in rows]
    assert actual == expected


def test_one_stamp_a_day_ahead_is_refused_and_moves_nothing(digits: str) -> None:
    """C02: 60 good events, one a day ahead of its record, 10 good ones."""
    day = 86_400_000
    times = [*range(60), 60 + day, *range(60, 70)]
    rows: list[oracle.Row] = [
        (0, offset, min(time, 70), b"a", json.dumps({"key": "a", "at": time, "v": 0}).encode())
        for offset, time in enumerate(times)
    ]
    predictions, rejects = oracle.run(job(digits), rows)
    assert len(predictions) == 70
    assert [(each["offset"], each["reason"]) for each in rejects] == [(60, "future_time")]
    assert predictions[-1]["watermark_ms"] == 69 - 3


def test_ties_are_ordered_by_offset_and_an_event_at_the_watermark_is_on_time(digits: str) -> None:
    """C08: five events of one key in one millisecond, then one exactly at W, then one before."""
    play(job(digits), """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e2 10 - 2 | on_time 10#2 t=10 W=7 y=12.0 n=2/0
        0 2 a e3 10 - 3 | on_time 10#3 t=10 W=7 y=123.0 n=3/0
        0 3 a e4 10 - 4 | on_time 10#4 t=10 W=7 y=1234.0 n=4/0
        0 4 a e5 10 - 5 | on_time 10#5 t=10 W=7 y=12345.0 n=5/0
        0 5 a e6  7 - 6 | revision 10#6 t=10 W=7 y=612345.0 n=6/0
        0 6 a e7  6 - 7 | late_revision 10#7 t=10 W=7 y=7612345.0 n=7/1
    """)  # fmt: skip


def test_lateness_is_cut_exactly(digits: str) -> None:
    """C09: bound 10 s; 9.999, 10.000, 10.001 and 19 s behind the maximum; allowed 5 s and 9 s."""
    script = """
        0 0 a e1 30000 - 1 | on_time 30000#1 t=30000 W=20000 y=1.0 n=1/0
        0 1 b e2 20001 - 1 | on_time 20001#1 t=20001 W=20000 y=1.0 n=1/0
        0 2 c e3 20000 - 1 | on_time 20000#1 t=20000 W=20000 y=1.0 n=1/0
        0 3 d e4 19999 - 1 | late_revision 19999#1 t=19999 W=20000 y=1.0 n=1/1
    """
    change = {"time__out_of_orderness_ms": 10_000, "policy__idle_ttl_ms": 10_000}
    last = "0 4 e e5 11000 - 1 | too_late 9000"
    play(job(digits, **change, time__allowed_lateness_ms=5_000), script + last)
    last = "0 4 e e5 11000 - 1 | late_revision 11000#1 t=11000 W=20000 y=1.0 n=1/1"
    play(job(digits, **change, time__allowed_lateness_ms=9_000), script + last)


def test_a_finished_key_refuses_events_until_its_ttl_is_over(digits: str) -> None:
    """C11: exactly at the end of the ttl it is still finished, beyond it the key starts anew."""
    play(job(digits, policy__finished_ttl_ms=20), """
        0 0 a e1 10 scan 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e2 12 stop 2 | on_time 10#2 t=12 W=9 y=12.0 n=2/0 final
        0 2 a e3 13 scan 3 | after_terminal 0
        0 3 a e4  8 scan 4 | after_terminal 2
        0 4 b e5 35 scan 5 | on_time 35#1 t=35 W=32 y=5.0 n=1/0
        0 5 a e6 36 scan 6 | after_terminal 0
        0 6 a e7 40 scan 7 | on_time 40#1 t=40 W=37 y=7.0 n=1/0
    """)  # fmt: skip


def test_a_terminal_event_finishes_the_key_from_any_position(digits: str) -> None:
    """Inserted, or late under `update`, it finishes; `final` is true only where it triggers."""
    script = """
        0 0 a e1 10 scan 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e2  9 stop 2 | revision 10#2 t=10 W=7 y=21.0 n=2/0 final
        0 2 a e3 11 scan 3 | after_terminal 0
        0 3 b e4 11 scan 4 | on_time 11#1 t=11 W=8 y=4.0 n=1/0
    """
    play(job(digits), script)
    play(job(digits, policy__late="update"), script + """
        0 4 b e5  7 stop 5 | late 1 applied
        0 5 b e6 11 scan 6 | after_terminal 0
    """)  # fmt: skip


def test_wrong_units_are_never_applied(digits: str) -> None:
    """C17: seconds where milliseconds are declared, and the reverse."""
    now = 1_357_000_000_000
    floor = 946_684_800_000
    for unit, sent, reason in (("ms", now // 1000, "implausible_time"), ("s", now, "future_time")):
        time = {"field": "at", "unit": unit}
        spec = job(digits, event__time=time, time__min_event_time_ms=floor)
        value = json.dumps({"key": "a", "at": sent, "v": 1}).encode()
        predictions, rejects = oracle.run(spec, [(0, 0, now, b"a", value)])
        assert (predictions, [each["reason"] for each in rejects]) == ([], [reason])


def test_an_id_is_a_duplicate_within_its_key_whatever_its_time(digits: str) -> None:
    """C26: another time is one; another key, a null id, or an id beyond the horizon is not."""
    play(job(digits), """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e1 11 - 2 | duplicate 0
        0 2 a e1  7 - 2 | duplicate 1
        0 3 b e1 11 - 3 | on_time 11#1 t=11 W=8 y=3.0 n=1/0
        0 4 a -  11 - 4 | on_time 10#2 t=11 W=8 y=14.0 n=2/0
        0 5 a -  11 - 5 | on_time 10#3 t=11 W=8 y=145.0 n=3/0
        0 6 b e2 18 - 6 | on_time 11#2 t=18 W=15 y=36.0 n=2/0
        0 7 a e1 18 - 7 | duplicate 0
        0 8 b e3 19 - 8 | on_time 11#3 t=19 W=16 y=368.0 n=3/0
        0 9 a e1 19 - 9 | on_time 10#4 t=19 W=16 y=1459.0 n=4/0
    """)  # fmt: skip


def test_under_drop_the_kept_history_ends_at_the_watermark(digits: str) -> None:
    """A late copy is `late`, and an on-time copy of an event now before W is a new event."""
    play(job(digits, policy__late="drop"), """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 b e2 13 - 2 | on_time 13#1 t=13 W=10 y=2.0 n=1/0
        0 2 a e1 10 - 3 | duplicate 0
        0 3 b e3 14 - 4 | on_time 13#2 t=14 W=11 y=24.0 n=2/0
        0 4 a e1 10 - 5 | late 1
        0 5 a e1 11 - 6 | on_time 10#2 t=11 W=11 y=16.0 n=2/0
    """)  # fmt: skip


EVENTS = """
    0 0 a e1 20 - 1 | on_time 20#1 t=20 W=17 y=1.0 n=1/0
    0 1 a e2 22 - 2 | on_time 20#2 t=22 W=19 y=12.0 n=2/0
    0 2 a e3 21 - 3 | revision 20#3 t=22 W=19 y=132.0 n=3/0
"""


def test_the_decision_table_under_drop(digits: str) -> None:
    """A late event changes nothing and leaves."""
    play(job(digits, policy__late="drop"), EVENTS + """
        0 3 a e4 18 - 4 | late 1
        0 4 a e5 13 - 5 | too_late 6
        0 5 a e6 22 - 6 | on_time 20#4 t=22 W=19 y=1326.0 n=4/0
    """)  # fmt: skip


def test_the_decision_table_under_update(digits: str) -> None:
    """A late event is applied without a prediction, even when it starts or advances a key."""
    play(job(digits, policy__late="update"), EVENTS + """
        0 3 a e4 18 - 4 | late 1 applied
        0 4 a e5 14 - 5 | late 5 applied
        0 5 a e6 13 - 5 | too_late 6
        0 6 b e7 16 - 6 | late 3 applied
        0 7 b e8 17 - 7 | late 2 applied
        0 8 b e9 22 - 8 | on_time 16#1 t=22 W=19 y=678.0 n=3/2
        0 9 a ea 22 - 9 | on_time 20#4 t=22 W=19 y=541329.0 n=6/2
    """)  # fmt: skip


def test_the_decision_table_under_repredict(digits: str) -> None:
    """A late event is applied and predicts, as of the key's newest event."""
    play(job(digits), EVENTS + """
        0 3 a e4 18 - 4 | late_revision 20#4 t=22 W=19 y=4132.0 n=4/1
        0 4 a e5 13 - 5 | too_late 6
        0 5 b e6 16 - 6 | late_revision 16#1 t=16 W=19 y=6.0 n=1/1
        0 6 b e7 17 - 7 | late_revision 16#2 t=17 W=19 y=67.0 n=2/2
        0 7 b e8 15 - 8 | late_revision 16#3 t=17 W=19 y=867.0 n=3/3
    """)  # fmt: skip


def test_held_events_are_released_by_time_then_offset_when_the_watermark_passes_them(
    digits: str,
) -> None:
    """An event exactly at W waits on; late ones act at once; the end releases the rest."""
    script = """
        0 0 a e1 12 - 1 | on_time 10#2 t=12 W=13 y=31.0 n=2/0
        0 1 b e2 12 - 2 | on_time 12#1 t=12 W=13 y=2.0 n=1/0
        0 2 a e3 10 - 3 | on_time 10#1 t=10 W=13 y=3.0 n=1/0
        0 3 a e3 11 - 4 | duplicate 0
        0 4 a e4 13 - 5 | {at_w}
        0 5 c e5 16 - 6 | {newest}
        0 6 a e6 11 - 7 | late_revision 10#3 t=12 W=13 y=371.0 n=3/1
    """
    spec = job(digits, policy__emit="on_watermark")
    answers = {
        "at_w": "on_time 10#4 t=13 W=13 y=3715.0 n=4/1",
        "newest": "on_time 16#1 t=16 W=13 y=6.0 n=1/0",
    }
    play(spec, script.format(**answers))
    play(spec, script.format(at_w="-", newest="-"), end=False)


def test_a_held_event_is_judged_at_its_own_time_when_it_is_released(digits: str) -> None:
    """A release far behind the watermark neither ends the life early nor passes a terminal."""
    change = {"policy__idle_ttl_ms": 10, "policy__finished_ttl_ms": 10}
    change["time__out_of_orderness_ms"] = 50
    play(job(digits, policy__emit="on_watermark", **change), """
        0 0 a e1 20 scan 1 | on_time 20#1 t=20 W=50 y=1.0 n=1/0
        0 1 a e2 21 stop 2 | on_time 20#2 t=21 W=50 y=12.0 n=2/0 final
        0 2 a e3 31 scan 3 | after_terminal 0
        0 3 a e4 32 scan 4 | on_time 32#1 t=32 W=50 y=4.0 n=1/0
        0 4 a e5 42 scan 5 | on_time 32#2 t=42 W=50 y=45.0 n=2/0
        0 5 b e6 100 -   6 | on_time 100#1 t=100 W=50 y=6.0 n=1/0
    """)  # fmt: skip


def test_partitions_do_not_share_a_watermark(digits: str) -> None:
    """C01 in small: a partition far ahead makes nothing late elsewhere."""
    play(job(digits), """
        1 0 b e1 1000 - 1 | on_time 1000#1 t=1000 W=997 y=1.0 n=1/0
        0 0 a e2   10 - 2 | on_time 10#1 t=10 W=7 y=2.0 n=1/0
        1 1 b e3  990 - 3 | too_late 7
        0 1 a e4    8 - 4 | revision 10#2 t=10 W=7 y=42.0 n=2/0
    """)  # fmt: skip


def test_a_life_ends_when_the_watermark_is_beyond_its_ttl_and_not_before(digits: str) -> None:
    """Judged only at the key's next event, and only one that is applied starts a new life."""
    play(job(digits, policy__idle_ttl_ms=20), """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 b e2 33 - 2 | on_time 33#1 t=33 W=30 y=2.0 n=1/0
        0 2 a e3 33 - 3 | on_time 10#2 t=33 W=30 y=13.0 n=2/0
        0 3 b e4 57 - 4 | on_time 33#2 t=57 W=54 y=24.0 n=2/0
        0 4 a e5 48 - 5 | too_late 6
        0 5 a e6 54 - 6 | on_time 54#1 t=54 W=54 y=6.0 n=1/0
        0 6 a e7 52 - 7 | late_revision 54#2 t=54 W=54 y=76.0 n=2/1
    """)  # fmt: skip


def test_forget_ends_the_life_and_refuses_what_is_not_newer(digits: str) -> None:
    """The newest event time stays, of applied and held events alike, until all is too late."""
    play(job(digits), """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e2 12 - 2 | on_time 10#2 t=12 W=9 y=12.0 n=2/0
        0 2 ~ a   - - - | tombstone None applied
        0 3 a e3 12 - 3 | forgotten 0
        0 4 a e4  8 - 4 | forgotten 1
        0 5 ~ z   - - - | tombstone None applied
        0 6 a e2 13 - 5 | on_time 13#1 t=13 W=10 y=5.0 n=1/0
        0 7 ~ a   - - - | tombstone None applied
        0 8 b e6 21 - 6 | on_time 21#1 t=21 W=18 y=6.0 n=1/0
        0 9 a e7 13 - 7 | forgotten 5
        0 10 a e8 12 - 8 | too_late 6
        0 11 z e9 18 - 9 | on_time 18#1 t=18 W=18 y=9.0 n=1/0
    """)  # fmt: skip
    play(job(digits, policy__emit="on_watermark"), """
        0 0 a e1 10 - 1 | -
        0 1 a e2 12 - 2 | -
        0 2 ~ a   - - - | tombstone None applied
        0 3 a e3 12 - 3 | forgotten 0
        0 4 a e4 13 - 4 | on_time 13#1 t=13 W=10 y=4.0 n=1/0
    """)  # fmt: skip


def test_heartbeats_move_the_watermark_and_nothing_else(digits: str) -> None:
    """They need no key; too far ahead or implausible, they are rejected and move nothing."""
    spec = job(digits, time__max_future_ms=0, time__min_event_time_ms=5)
    play(spec, """
        0 0 a e1 10 -    1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 - -  30 beat - | -
        0 2 a e2 26 -    2 | late_revision 10#2 t=26 W=27 y=12.0 n=2/1
        0 3 - -   4 beat - | implausible_time None
        0 4 - -  29 -    - | no_key None
        0 5 a e3 27 -    3 | on_time 10#3 t=27 W=27 y=123.0 n=3/1
    """)  # fmt: skip


def test_redelivered_offsets_are_skipped_and_gaps_are_not(digits: str) -> None:
    """Step 1, also after records that were rejected."""
    play(job(digits), """
        0 5 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 4 a e2 11 - 2 | -
        0 9 - -  11 - 2 | no_key None
        0 8 a e3 11 - 3 | -
        0 20 a e4 11 - 4 | on_time 10#2 t=11 W=8 y=14.0 n=2/0
    """)  # fmt: skip


def test_a_step_that_is_not_finite_leaves_the_key_as_it_was(tmp_path: Path) -> None:
    """h_next = h s + s: an insertion that makes a later, recomputed step overflow goes too."""
    path = str(models.write(models.explosive(1), tmp_path / "explosive.onnx"))
    play(job(path), """
        0 0 a e1 10 -    1e30 | on_time 10#1 t=10 W=7 y=1.0000000150474662e+30 n=1/0
        0 1 a e2 11 stop 1e30 | non_finite 0
        0 2 a e3 11 -       0 | on_time 10#2 t=11 W=8 y=0.0 n=2/0
        0 3 a e4 12 -    1e30 | on_time 10#3 t=12 W=9 y=1.0000000150474662e+30 n=3/0
        0 4 a e5 11 -    1e30 | non_finite 0
        0 5 a e5 10 -       2 | revision 10#4 t=12 W=9 y=1.0000000150474662e+30 n=4/0
        0 6 a e6  8 -    1e30 | non_finite 1
    """)  # fmt: skip


def test_features_are_recomputed_after_an_insertion(tmp_path: Path) -> None:
    """Each kind as of the newest event, before and after an earlier event arrives."""
    features = [
        {"name": "v", "kind": "field", "field": "v", "shift": 1, "scale": 0.5},
        {"name": "since", "kind": "since_previous", "missing": -1, "scale": 1000},
        {"name": "age", "kind": "since_first", "scale": 1000},
        {"name": "count", "kind": "count"},
        {"name": "last", "kind": "previous", "field": "v", "missing": 9},
        {"name": "delta", "kind": "delta", "field": "v", "missing": 8, "shift": 8},
        {"name": "type", "kind": "one_hot", "field": "type", "values": ["x", "y"]},
        {"name": "known", "kind": "one_hot", "field": "type", "values": ["y"], "unknown": "zeros"},
        {"name": "index", "kind": "index", "field": "type", "values": ["x", "y"], "scale": 2},
        {"name": "hour", "kind": "hour_of_day"},
        {"name": "day", "kind": "day_of_week"},
    ]
    path = models.write(models.accumulate(15), tmp_path / "sum.onnx")
    spec = job(str(path))
    spec |= {"features": features, "sink": {"features": True}}
    day = 4 * 86_400_000  # a Monday
    rows: list[oracle.Row] = []
    for offset, (at, kind, v) in enumerate([(0, "x", 3), (7, "y", 5), (5, None, 6)]):
        value = json.dumps({"key": "a", "at": day + at, "type": kind, "v": v}).encode()
        rows.append((0, offset, day, b"a", value))
    spec["time"]["out_of_orderness_ms"] = 10
    predictions, rejects = oracle.run(spec, rows)
    monday_midnight = [0, 1, 0, 1]
    assert rejects == []
    assert [each["features"] for each in predictions] == [
        [1, -1000, 0, 0, 9, 0, 1, 0, 0, 0, 0, *monday_midnight],
        [2, 7, 7, 1, 3, -6, 0, 1, 0, 1, 2, *monday_midnight],
        [2, 2, 7, 2, 6, -9, 0, 1, 0, 1, 2, *monday_midnight],
    ]


def test_a_cut_over_carries_or_resets_the_state_in_event_time(digits: str, tmp_path: Path) -> None:
    """Insertions before it run under the old model, and later steps under their own."""
    new = str(models.write(models.accumulate(), tmp_path / "sum.onnx"))
    for way, first, second, third in (
        ("carry", "y=3.0", "y=6.0", "y=24.0"),
        ("reset", "y=2.0", "y=5.0", "y=5.0"),
    ):
        spec = job(digits)
        spec["model"]["next"] = [{"path": new, "from_event_time_ms": 12, "state": way}]
        play(spec, f"""
            0 0 a e1 11 - 1 | on_time 11#1 t=11 W=8 y=1.0 n=1/0
            0 1 a e2 12 - 2 | on_time 11#2 t=12 W=9 {first} n=2/0
            0 2 a e3 13 - 3 | on_time 11#3 t=13 W=10 {second} n=3/0
            0 3 a e4 11 - 9 | revision 11#4 t=13 W=10 {third} n=4/0
        """)  # fmt: skip


def test_a_window_holds_zero_rows_until_there_are_enough_events(tmp_path: Path) -> None:
    """The prediction spells the last three events, also after an insertion."""
    path = models.write(models.windowed_digits(1, 3), tmp_path / "window.onnx")
    spec = job(str(path))
    spec["model"] = {"path": str(path), "input": "x", "output": "y", "window": 3}
    play(spec, """
        0 0 a e1 10 - 1 | on_time 10#1 t=10 W=7 y=1.0 n=1/0
        0 1 a e2 11 - 2 | on_time 10#2 t=11 W=8 y=12.0 n=2/0
        0 2 a e3 13 - 3 | on_time 10#3 t=13 W=10 y=123.0 n=3/0
        0 3 a e4 13 - 4 | on_time 10#4 t=13 W=10 y=234.0 n=4/0
        0 4 a e5 12 - 5 | revision 10#5 t=13 W=10 y=534.0 n=5/0
        0 5 a e6 10 - 6 | revision 10#6 t=13 W=10 y=534.0 n=6/0
    """)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b'"x"', "malformed"),
        (b'{"id":', "malformed"),
        (b'{"key":"a","at":9,"v":NaN}', "malformed"),
        (b'{"key":"a","at":9,"v":1,"other":NaN}', "malformed"),
        (b'{"key":"a","at":9,"v":1e400}', "malformed"),
        (b'{"key":"a","at":9,"v":1e39}', "malformed"),
        (b'{"key":"a","at":9,"v":1,"other":1e400}', None),
        (b'{"key":"a","at":9,"v":1,"other":"\\ud800"}', None),
        (b'{"key":"a","at":9,"v":1,"type":"\\ud800"}', "malformed"),
        (b'{"key":"a","at":9,"v":1,"other":"\xff"}', "malformed"),
        (b'\xef\xbb\xbf{"key":"a","at":9,"v":1}', "malformed"),
        (b'{"key":"a","at":9,"v":"1"}', "malformed"),
        (b'{"key":"a","at":9,"v":true}', "malformed"),
        (b'{"key":"a","at":9}', "malformed"),
        (b'{"key":"a","at":9,"v":null}', "malformed"),
        (b'{"key":"a","at":9.0,"v":1}', "malformed"),
        (b'{"key":"a","at":true,"v":1}', "malformed"),
        (b'{"key":"a","at":9,"v":"x","v":1}', None),
        (b'{"key":"a","at":9,"v":1,"v":"x"}', "malformed"),
        (b' {"key":"a","at":9,"\\u0076":1} ', None),
        (b'{"key":"a","at":9,"v":1,"deep":' + b"[" * 99 + b"]" * 99 + b"}", None),
        (b'{"key":"a","at":9,"v":1,"deep":' + b"[" * 100 + b"]" * 100 + b"}", "malformed"),
        (b'{"key":"","at":9,"v":"x"}', "no_key"),
        (b'{"at":9,"v":1}', "no_key"),
        (b'{"key":7,"at":9,"v":1}', "malformed"),
    ],
)
def test_a_value_is_judged_strictly(digits: str, value: bytes, reason: str | None) -> None:
    """Steps 3 and 4: the reason a value leaves for, or none."""
    _, rejects = oracle.run(job(digits), [(0, 0, 9, b"a", value)])
    assert [each["reason"] for each in rejects] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("text", "offset", "expected"),
    [
        ("1970-01-01T00:00:00.0099Z", None, 9),
        ("1970-01-01T02:00:00.009+02:00", None, 9),
        ("1969-12-31T23:59:59.9991Z", None, -1),
        ("1970-01-01T00:00:00", None, None),
        ("1970-01-01T00:00:01", "+00:00", 1_000),
        ("1970-01-01T00:00:00", "-05:30", 19_800_000),
        ("1970-01-01", "+00:00", None),
        ("never", "+00:00", None),
    ],
)
def test_text_times_need_a_zone_and_are_floored(
    text: str, offset: str | None, expected: int | None
) -> None:
    """iso8601, with and without the spec's offset."""
    if expected is None:
        with pytest.raises(oracle_reading.RefusedError):
            oracle_reading.iso8601_ms(text, offset)
    else:
        assert oracle_reading.iso8601_ms(text, offset) == expected


def test_numeric_times_are_floored_to_milliseconds() -> None:
    """Negative ones too."""
    times = {
        unit: oracle_reading.event_time_ms(-1_500_001, {"unit": unit}) for unit in ("s", "us", "ns")
    }
    assert times == {"s": -1_500_001_000, "us": -1_501, "ns": -2}


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_clients(key: str, signed: int) -> None:
    """The vectors of Kafka's own test of it."""
    assert oracle_reading.murmur2(key.encode()) == signed % 2**32


def test_a_key_in_a_foreign_partition_is_misrouted(digits: str) -> None:
    """Only where the partitioner is declared; no_key and malformed come first."""
    value = b'{"key":"foobar","at":9,"v":1}'
    home = (-790332482 & 0x7FFFFFFF) % 2
    for partitioner, expected in (("murmur2", ["misrouted"]), ("none", [])):
        spec = job(digits, source__partitioner=partitioner)
        _, rejects = oracle.run(spec, [(1 - home, 0, 9, None, value), (home, 0, 9, None, value)])
        assert [each["reason"] for each in rejects] == expected


def test_records_carry_every_field_in_order(digits: str) -> None:
    """A prediction and a reject as they leave, bytes that are no UTF-8 in base64."""
    spec = job(digits)
    spec["sink"]["features"] = True
    value = b'{"key":"a","id":"e1","at":10,"v":2}'
    rows: list[oracle.Row] = [
        (1, 7, 10, b"k", value),
        (1, 8, 11, b"\xff", b"\xfe"),
        (1, 9, 12, None, b"1"),
    ]
    predictions, rejects = oracle.run(spec, rows)
    digest = models.digest(models.shift_in())
    assert [json.dumps(each) for each in predictions] == [
        '{"key": "a", "generation": 1, "epoch": 10, "sequence": 1, "event_time_ms": 10, '
        f'"kind": "on_time", "prediction": 2.0, "model_digest": "{digest}", "events_seen": 1, '
        '"late_seen": 0, "watermark_ms": 7, "final": false, "trigger": {"partition": 1, '
        '"offset": 7, "event_time_ms": 10, "event_id": "e1"}, "features": [2.0]}'
    ]
    assert [json.dumps(each) for each in rejects] == [
        '{"partition": 1, "offset": 8, "timestamp": 11, "key_base64": "/w==", '
        '"reason": "malformed", "lateness_ms": null, "applied": false, "value_base64": "/g=="}',
        '{"partition": 1, "offset": 9, "timestamp": 12, "key": null, '
        '"reason": "malformed", "lateness_ms": null, "applied": false, "value": "1"}',
    ]


def test_random_logs_hold_everything_often(tmp_path: Path) -> None:
    """Every kind of prediction and every reason of a reject is at least one row in 300."""
    seen: collections.Counter[str] = collections.Counter()
    for seed in range(150):
        case = strategies.random_log(seed)
        assert case == strategies.random_log(seed)
        predictions, rejects = oracle.run(oracle.load(case.write(tmp_path)), case.rows)
        seen.update(each["kind"] for each in predictions)
        seen.update("final" for each in predictions if each["final"])
        seen.update("new life" for each in predictions if each["sequence"] == 1)
        seen.update(each["reason"] for each in rejects)
        seen.update(f"{each['reason']} applied" for each in rejects if each["applied"])
    expected = {
        "on_time", "revision", "late_revision", "final", "new life", "tombstone",
        "tombstone applied", "malformed", "no_key", "misrouted", "future_time",
        "implausible_time", "too_late", "forgotten", "after_terminal", "duplicate", "late",
        "late applied", "non_finite",
    }  # fmt: skip
    assert {name for name in expected if seen[name] < 150 * 60 / 300} == set()
