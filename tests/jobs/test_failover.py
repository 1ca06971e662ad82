"""A job whose Python workers are killed: Flink restores its state, the operator refills from it.

The workers run as processes of their own here, as on a cluster. A worker that is killed takes its
TaskManager with it (PyFlink 2.3), so there are some to spare, and the job goes on in another one.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.flink_process import EmbeddedFlink
from jobs.run import run_log
from schemas.log import read_log
from tests.jobs.flink_runs import embedded, in_process, written
from tests.jobs.processes import processes_of, workers_of
from tests.jobs.shipments import shipments

pytestmark = pytest.mark.slow

KILLS = 2
SETTINGS = {
    # Few records at once, so that the log takes a while and there is something to interrupt.
    "python.fn-execution.bundle.size": "5",
    # Few on their way, so that a checkpoint does not wait long for those before it.
    "taskmanager.memory.segment-size": "4kb",
    "taskmanager.network.memory.buffers-per-channel": "1",
    "taskmanager.network.memory.floating-buffers-per-gate": "1",
    "execution.checkpointing.interval": "200ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": str(KILLS),
    "restart-strategy.fixed-delay.delay": "100ms",
    "minicluster.number-of-taskmanagers": str(KILLS + 1),
    "taskmanager.numberOfTaskSlots": "2",
}
_REFILLED = re.compile(r"partition (\d+) refilled: (\d+) keys, last offset (\d+)")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Flink's log and temporary files go."""
    return tmp_path_factory.mktemp("flink")


@pytest.fixture(scope="module")
def flink(work: Path) -> Iterator[EmbeddedFlink]:
    """A Flink whose Python workers are processes, all of which end with it."""
    with embedded(work, _python_worker_execution_mode="process") as started:
        yield started
    assert [] == processes_of(work)


class Killer:
    """Kills all Python workers, each time two checkpoints after so many records.

    Called with the progress of the job. The second of two checkpoints began after the first, so it
    holds what those records left in the state.
    """

    def __init__(self, work: Path, checkpoints: Path, after_records: int) -> None:
        self._work = work
        self._checkpoints = checkpoints
        self._after_records = after_records
        self._due = 0
        self.kills = 0

    def watch(self, records: int) -> None:
        """Kills if it is time to."""
        newest = self._newest_checkpoint()
        if self._due == 0 and records >= self._after_records:
            self._due = newest + 2
        if self.kills == KILLS or not 0 < self._due <= newest:
            return
        workers = workers_of(self._work)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        if workers:
            self.kills += 1
            self._due = newest + 2

    def _newest_checkpoint(self) -> int:
        completed = self._checkpoints.glob("*/chk-*/_metadata")
        return max((int(path.parent.name.removeprefix("chk-")) for path in completed), default=0)


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
def test_killed_workers_change_no_record(
    flink: EmbeddedFlink, work: Path, tmp_path: Path, emit: str
) -> None:
    """C03: twice SIGKILL, twice restored from a checkpoint; the records are those of a replay."""
    spec, log = shipments(tmp_path, events=1500, keys=40, emit=emit, late="repredict")
    said_before = flink.log.stat().st_size
    killer = Killer(work, tmp_path / "out" / ".running" / "checkpoints", after_records=60)
    result = run_log(
        spec,
        log,
        tmp_path / "out",
        parallelism=2,
        arrow_batch=1,
        settings=SETTINGS,
        progress=killer.watch,
        flink=flink,
    )
    said = flink.log.read_bytes()[said_before:].decode()
    assert KILLS == killer.kills, "the log ended too soon: take more records"
    last_offsets = {b.partition: int(b.offsets[-1]) for b in read_log(log)}
    attempts = said.split("switched from state RUNNING to RESTARTING")
    assert [False] + [True] * KILLS == [_refilled(each, last_offsets) for each in attempts]
    assert in_process(spec, log) == written(tmp_path / "out")
    assert 1500 == result.counters["records"] - result.counters.get("skipped", 0)


def _refilled(said: str, last_offsets: dict[int, int]) -> bool:
    """Tells whether an attempt began in the middle of a partition, with state."""
    refills = [tuple(map(int, found)) for found in _REFILLED.findall(said)]
    return any(keys > 0 and 0 < last < last_offsets[p] for p, keys, last in refills)
