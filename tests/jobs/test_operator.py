"""The keyed operator without the engine: its state is all it needs to go on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobs.operator import END_OF_INPUT, ScoreShard, joined
from jobs.shard_keys import shard_keys
from schemas.log import read_log
from tests.jobs.flink_runs import Records, in_process
from tests.jobs.shipments import shipments


class Value:
    """A value state of one key."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def value(self) -> bytes | None:  # noqa: D102
        return self.data

    def update(self, data: bytes) -> None:  # noqa: D102
        self.data = data


class Keyed:
    """What Flink gives the operator for one key: state, timers, metrics; counts the reads."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.entries: dict[str, bytes] = {}
        self.values: dict[str, Value] = {}
        self.timers: set[int] = set()
        self.reads = 0
        self.records = 0

    # the runtime context
    def get_map_state(self, _descriptor: Any) -> "Keyed":  # noqa: D102
        return self

    def get_state(self, descriptor: Any) -> "Value":  # noqa: D102
        return self.values.setdefault(descriptor.name, Value())

    def get_metrics_group(self) -> "Keyed":  # noqa: D102
        return self

    def counter(self, _name: str) -> "Keyed":  # noqa: D102
        return self

    # the map state, the counter
    def put(self, key: str, data: bytes) -> None:  # noqa: D102
        self.entries[key] = data

    def remove(self, key: str) -> None:  # noqa: D102
        self.entries.pop(key, None)

    def items(self) -> Iterator[tuple[str, bytes]]:  # noqa: D102
        self.reads += 1
        return iter(list(self.entries.items()))

    def inc(self, n: int) -> None:  # noqa: D102
        self.records += n

    # the context of an element or a timer
    def timer_service(self) -> "Keyed":  # noqa: D102
        return self

    def register_event_time_timer(self, at: int) -> None:  # noqa: D102
        self.timers.add(at)

    def get_current_key(self) -> int:  # noqa: D102
        return self.key


def scored(
    spec: Path, log: Path, *, restore_every: int, rows: int, open_end: bool = False
) -> Records:
    """Runs the operator over a log, a fresh one taking over after so many batches."""
    keys = shard_keys(4)
    flink: dict[int, Keyed] = {}
    operators: dict[int, ScoreShard] = {}
    out: Records = {"predictions": [], "rejects": []}

    def collect(found: Iterator[Any]) -> None:
        for row in found:
            out["predictions"] += row[0]
            out["rejects"] += row[1]

    for i, batch in enumerate(read_log(log, batch_rows=rows)):
        keyed = flink.setdefault(batch.partition, Keyed(keys[batch.partition]))
        if i % restore_every == 0 or batch.partition not in operators:
            operators[batch.partition] = ScoreShard(str(spec), keys, open_end=open_end)
            operators[batch.partition].open(keyed)
        collect(operators[batch.partition].process_element(batch.to_bytes(), keyed))
    for partition, keyed in flink.items():
        assert {END_OF_INPUT} == keyed.timers
        fresh = ScoreShard(str(spec), keys, open_end=open_end)
        fresh.open(keyed)
        collect(fresh.on_timer(END_OF_INPUT, keyed))
        assert partition in fresh._shards
    return {name: sorted(records) for name, records in out.items()}


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
@pytest.mark.parametrize("late", ["drop", "update", "repredict"])
@pytest.mark.parametrize("restore_every", [1, 3])
def test_the_operator_restores_from_its_state(
    tmp_path: Path, emit: str, late: str, restore_every: int
) -> None:
    """One that starts again from state after every batch gives the records of one that ran on."""
    spec, log = shipments(tmp_path, events=600, keys=20, emit=emit, late=late)
    assert in_process(spec, log) == scored(spec, log, restore_every=restore_every, rows=23)


def test_at_an_open_end_held_events_stay_held(tmp_path: Path) -> None:
    """A slice of a log does not end what it holds."""
    spec, log = shipments(tmp_path, events=600, keys=20, emit="on_watermark")
    open_end = scored(spec, log, restore_every=99, rows=50, open_end=True)
    assert in_process(spec, log, open_end=True) == open_end
    assert in_process(spec, log) != open_end


def test_state_is_read_once(tmp_path: Path) -> None:
    """A shard met before is not read again: the operator's arrays are the same as the state."""
    spec, log = shipments(tmp_path, events=300, keys=10)
    keys = shard_keys(4)
    batches = [b for b in read_log(log, batch_rows=5) if b.partition == 0]
    keyed = Keyed(keys[0])
    first = ScoreShard(str(spec), keys)
    first.open(keyed)
    list(first.process_element(batches[0].to_bytes(), keyed))
    second = ScoreShard(str(spec), keys)
    second.open(keyed)
    for batch in batches[1:]:
        list(second.process_element(batch.to_bytes(), keyed))
    assert 1 == keyed.reads
    assert sum(map(len, batches)) == keyed.records


def test_counters_go_on_after_a_restore(tmp_path: Path) -> None:
    """They are the shard's from its first record on, whoever counted."""
    spec, log = shipments(tmp_path, events=300, keys=10)
    keys = shard_keys(4)
    batches = [b for b in read_log(log, batch_rows=5) if b.partition == 0]
    told = []
    for restore_every in (1, len(batches)):
        keyed = Keyed(keys[0])
        for i, batch in enumerate(batches):
            if i % restore_every == 0:
                operator = ScoreShard(str(spec), keys)
                operator.open(keyed)
            list(operator.process_element(batch.to_bytes(), keyed))
        ((_, _, (counters,)),) = list(operator.on_timer(END_OF_INPUT, keyed))
        told.append(msgspec.json.decode(counters)["counters"])
    assert told[1] == told[0]
    assert sum(map(len, batches)) == told[0]["records"]


def test_the_counters_are_told_at_the_end(tmp_path: Path) -> None:
    """They leave as a record, the only way out that a job has."""
    spec, log = shipments(tmp_path, events=100, keys=5)
    keys = shard_keys(4)
    (batch, *_) = [b for b in read_log(log) if b.partition == 2]
    keyed = Keyed(keys[2])
    operator = ScoreShard(str(spec), keys)
    operator.open(keyed)
    list(operator.process_element(batch.to_bytes(), keyed))
    ((_, _, (told,)),) = list(operator.on_timer(END_OF_INPUT, keyed))
    counters = msgspec.json.decode(told)
    assert (2, len(batch)) == (counters["partition"], counters["counters"]["records"])


@pytest.mark.parametrize(
    ("lines", "per_row", "expected"),
    [
        (b"", 3, []),
        (b"", 0, []),
        (b"a\nb\n", 1, [b"a", b"b"]),
        (b"a\nb\nc\n", 2, [b"a\nb", b"c"]),
        (b"a\nb\nc\n", 3, [b"a\nb\nc"]),
        (b"a\nb\nc\n", 0, [b"a\nb\nc"]),
    ],
)
def test_lines_are_joined_without_a_newline_at_the_end(
    lines: bytes, per_row: int, expected: list[bytes]
) -> None:
    """The file sink writes the last one."""
    assert expected == joined(lines, per_row)
