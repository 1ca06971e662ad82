"""The contenders without an engine, each on one core.

The transition and the bare loop take their input from memory and leave their output there; the
replay works from file to file.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from operators.scorer import Scorer
from operators.state import Shard
from replay.drive import replay_log
from schemas.log import read_log
from schemas.spec import load_spec
from tests.benchmarks.contender import ContenderError, Measured, StateBytes, Task
from tests.benchmarks.input import HIDDEN, Input
from tests.benchmarks.per_event import KeyState, Stepper


def transition(late: str) -> Callable[[Task], Measured]:
    """Returns `Scorer.step` under a late policy over batches from memory, as a contender."""

    def contender(task: Task) -> Measured:
        _take_one_core()
        source = Input(Path(task.folder))
        scorer = Scorer(load_spec(source.spec(late)))
        batches = list(read_log(source.log(".parquet")))
        shards: dict[int, Shard] = {}
        lines = 0
        begun_at, started = time.time(), time.perf_counter()
        for batch in batches:
            shard = shards.get(batch.partition)
            if shard is None:
                shard = shards[batch.partition] = scorer.new_shard(batch.partition)
            outputs = scorer.step(shard, batch)
            lines += len(outputs.prediction_keys)
        seconds = time.perf_counter() - started
        counters: Counter[str] = Counter()
        for shard in shards.values():
            counters.update(shard.counters)
        if lines != sum(n for name, n in counters.items() if name.startswith("predictions")):
            raise ContenderError(f"{task.contender}: {lines} predictions, but {dict(counters)}")
        return Measured(
            events=source.facts.events,
            seconds=seconds,
            steady_seconds=seconds,
            begun_at=begun_at,
            counters=dict(counters),
            state_bytes=_state_bytes(scorer, shards),
        )

    return contender


def _state_bytes(scorer: Scorer, shards: dict[int, Shard]) -> StateBytes:
    """The size of all state, as if every key had changed since the last drain."""
    names = values = keys = largest = 0
    for shard in shards.values():
        shard.keys.dirty[: shard.keys.size] = True
        for name, data in scorer.drain_changes(shard).puts:
            keys += 1
            names += len(name.encode())
            values += len(data)
            largest = max(largest, len(data))
    return StateBytes(keys=keys, mean=values / keys, largest=largest, name=names / keys)


def replay(late: str, suffix: str) -> Callable[[Task], Measured]:
    """Returns `replay_log` under a late policy on a form of the log, as a contender."""

    def contender(task: Task) -> Measured:
        _take_one_core()
        source = Input(Path(task.folder))
        if suffix == ".parquet":
            import pyarrow.parquet  # noqa: F401  (loaded when first needed, which is not measured)
        begun_at = time.time()
        result = replay_log(
            load_spec(source.spec(late)), source.log(suffix), Path(task.work) / "replayed"
        )
        return Measured(
            events=result.records,
            seconds=result.seconds,
            steady_seconds=result.seconds,
            begun_at=begun_at,
            counters=result.counters,
        )

    return contender


def per_event(task: Task) -> Measured:
    """A plain loop over events: decode, a dict of states, the model at batch 1, encode."""
    _take_one_core()
    source = Input(Path(task.folder))
    left = source.facts.few_events
    values: list[bytes] = []
    for batch in read_log(source.log(".parquet")):
        some = batch.slice(0, left - len(values))
        values += [value for value in some.values if value is not None]
    begun_at, started = time.time(), time.perf_counter()
    lines = predictions(Stepper(source.model, HIDDEN), values)
    seconds = time.perf_counter() - started
    return Measured(events=len(lines), seconds=seconds, steady_seconds=seconds, begun_at=begun_at)


def predictions(stepper: Stepper, values: list[bytes]) -> list[bytes]:
    """Returns a prediction for each value of a log, in the order they come."""
    decode, step, encode = stepper.decode, stepper.step, stepper.encode
    states: dict[str, KeyState] = {}
    lines = []
    for value in values:
        event = decode(value)
        prediction, states[event.shipment_id] = step(event, states.get(event.shipment_id))
        lines.append(encode(prediction))
    return lines


def _take_one_core() -> None:
    """Binds this process to one core, where the system can: one core is what is measured."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
