"""The core against the oracle: the same records, however the log is cut and wherever it restarts.

Every log runs as one batch for each partition, event by event, in batches of 7, and both again
with the state written out and restored into another scorer after every batch. All must give the
same records byte for byte, and they must be the oracle's. A failure prints the case as an aligned
event script with both answers beside each row; `random_log(seed)` brings a printed seed back.
"""

import itertools
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from operators.scorer import Scorer
from schemas.records import RecordBatch
from schemas.spec import load_spec
from tests import oracle, oracle_reading, scripts, strategies

JOBS_PER_POLICY, LOGS_PER_JOB = 25, 10
POLICIES = list(itertools.product(["on_event", "on_watermark"], ["drop", "update", "repredict"]))


class Answers:
    """What the core said of a log, as bytes."""

    def __init__(self) -> None:
        self.predictions: list[bytes] = []
        self.keys: list[str] = []
        self.rejects: list[bytes] = []

    def add(self, outputs: Any) -> None:
        """Adds what one call gave."""
        assert len(outputs.predictions) == len(outputs.prediction_keys)
        self.predictions += outputs.predictions
        self.keys += outputs.prediction_keys
        self.rejects += outputs.rejects

    def as_sets(self) -> tuple[list[bytes], list[bytes]]:
        """The records in an order that does not depend on when they came."""
        return sorted(self.predictions), sorted(self.rejects)


def batches(rows: list[oracle.Row], size: int | None) -> Iterator[RecordBatch]:
    """The rows of each partition, cut to a size; the partitions take turns."""
    of_partition: dict[int, list[oracle.Row]] = {}
    for row in rows:
        of_partition.setdefault(row[0], []).append(row)
    cuts = [
        [part[start : start + step] for start in range(0, len(part), step)]
        for part in of_partition.values()
        for step in [size or len(part)]
    ]
    for cut in itertools.chain.from_iterable(itertools.zip_longest(*cuts)):
        if cut is not None:
            partitions, offsets, stamps, keys, values = zip(*cut, strict=True)
            yield RecordBatch(
                partitions[0],
                np.array(offsets, np.int64),
                np.array(stamps, np.int64),
                list(keys),
                list(values),
            )


def run_core(
    scorers: list[Scorer], rows: list[oracle.Row], size: int | None, restore: bool
) -> Answers:
    """Runs a log; with `restore`, every batch finds its shard restored by the other scorer."""
    answers = Answers()
    shards: dict[int, Any] = {}
    stored: dict[int, dict[str, bytes]] = {}
    meta: dict[int, bytes] = {}
    scorer = scorers[0]
    turns = itertools.cycle(scorers)
    for batch in batches(rows, size):
        partition = batch.partition
        if restore:
            scorer = next(turns)
            shards = {}
            if partition in meta:
                items = list(stored[partition].items())
                shards[partition] = scorer.restore_shard(partition, meta[partition], items)
        if partition not in shards:
            shards[partition] = scorer.new_shard(partition)
        answers.add(scorer.step(shards[partition], batch))
        if restore:
            changes = scorer.drain_changes(shards[partition])
            kept = stored.setdefault(partition, {})
            for name in changes.removed:
                kept.pop(name, None)
            kept.update(changes.puts)
            meta[partition] = changes.meta
    if restore:
        shards = {
            partition: scorer.restore_shard(partition, meta[partition], list(items.items()))
            for partition, items in stored.items()
        }
    for shard in shards.values():
        answers.add(scorer.finish(shard))
    return answers


WAYS = {
    "one batch": (None, False),
    "event by event": (1, False),
    "batches of 7": (7, False),
    "event by event, restored": (1, True),
    "batches of 7, restored": (7, True),
}


def disagreement(
    case: scripts.Case, folder: Path, scorers: list[Scorer] | None = None
) -> str | None:
    """What the core says otherwise than the oracle or itself, shown beside the log; or None."""
    path = case.write(folder)
    expected = oracle.run(oracle.load(path), case.rows)
    scorers = scorers or new_scorers(case, folder)
    whole: Answers | None = None
    for way, (size, restore) in WAYS.items():
        try:
            answer = run_core(scorers, case.rows, size, restore)
        except Exception:  # no record may ever raise: that is a restart loop
            only = scripts.outcomes(*expected, case.setup.start_ms)
            return f"{way}\n{case.script(oracle=only)}\n{traceback.format_exc(limit=-4)}"
        whole = whole or answer
        parsed = parse(answer)
        assert answer.keys == [each["key"] for each in parsed[0]]
        same = comparable(*parsed) == comparable(*expected)
        if not same or answer.as_sets() != whole.as_sets():
            start = case.setup.start_ms
            columns = {"oracle": scripts.outcomes(*expected, start)}
            columns["core"] = scripts.outcomes(*parsed, start)
            columns["core, one batch"] = scripts.outcomes(*parse(whole), start)
            return f"{way}\n{case.script(**columns)}\n{difference(parsed, expected)}"
    return None


def new_scorers(case: scripts.Case, folder: Path) -> list[Scorer]:
    """Two scorers, so that a shard can be restored into another one than wrote it."""
    spec = load_spec(case.write(folder))
    return [Scorer(spec), Scorer(spec)]


def parse(answers: Answers) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records as dicts; NaN and Infinity are no JSON here either."""
    strict: dict[str, Any] = {"parse_constant": oracle_reading.refuse_constant}
    return (
        [json.loads(line, **strict) for line in answers.predictions],
        [json.loads(line, **strict) for line in answers.rejects],
    )


def comparable(
    predictions: list[dict[str, Any]], rejects: list[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """Predictions whole and in field order; rejects without the words that are for people."""
    plain = [{name: each[name] for name in sorted(each) if name != "detail"} for each in rejects]
    return sorted(map(json.dumps, predictions)), sorted(map(json.dumps, plain))


def difference(actual: tuple[Any, Any], expected: tuple[Any, Any]) -> str:
    """The records that only one side has."""
    lines = []
    for mine, theirs in zip(comparable(*actual), comparable(*expected), strict=True):
        lines += [f"only the core:   {each}" for each in mine if each not in theirs][:3]
        lines += [f"only the oracle: {each}" for each in theirs if each not in mine][:3]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of all cases are kept."""
    return tmp_path_factory.mktemp("cases")


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
@given(case=strategies.cases())
def test_the_core_agrees_with_the_oracle_on_small_logs(case: scripts.Case, folder: Path) -> None:
    """Logs that shrink."""
    found = disagreement(case, folder)
    if found is not None:
        pytest.fail(found, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize(("emit", "late"), POLICIES)
def test_the_core_agrees_with_the_oracle_on_many_logs(emit: str, late: str, folder: Path) -> None:
    """Hundreds of longer logs for each policy, by seed; of a failing one, rows are taken away."""
    for seed in range(JOBS_PER_POLICY):
        scorers = new_scorers(strategies.random_log(seed, 0, emit, late), folder)

        def fails(case: scripts.Case, scorers: list[Scorer] = scorers) -> bool:
            return disagreement(case, folder, scorers) is not None

        for log in range(LOGS_PER_JOB):
            case = strategies.random_log(seed, 10 + (seed + 9 * log) % 50, emit, late, log)
            if fails(case):
                found = disagreement(scripts.smaller(case, fails), folder, scorers)
                pytest.fail(str(found), pytrace=False)
