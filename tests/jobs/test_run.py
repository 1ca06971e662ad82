"""The embedded job end to end: real Flink, small logs."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.flink_process import EmbeddedFlink, FlinkError
from jobs.java import JavaError
from jobs.log_files import write_partition_files
from jobs.run import OutputsExistError, run_log
from schemas.log import LogRow, read_log
from schemas.records import RecordBatch
from schemas.spec import SpecError
from tests.jobs.flink_runs import embedded, in_process, log_of, written
from tests.jobs.processes import children, processes_of
from tests.jobs.shipments import shipments

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedFlink]:
    """One Flink for all jobs of this module: its start takes longer than they do."""
    with embedded(tmp_path_factory.mktemp("flink")) as started:
        yield started


@pytest.mark.parametrize(
    ("parallelism", "arrow_batch", "lines_per_row"),
    [(1, 16_384, 1024), (2, 7, 1024), (4, 1, 1), (4, 16_384, 3), (1, 7, 1)],
)
def test_flink_gives_the_records_of_the_transition(
    flink: EmbeddedFlink, tmp_path: Path, parallelism: int, arrow_batch: int, lines_per_row: int
) -> None:
    """Byte for byte after sorting, at any parallelism and any batch."""
    spec, log = shipments(tmp_path, events=2000, keys=60, emit="on_watermark")
    seen: list[int] = []
    result = run_log(
        spec,
        log,
        tmp_path / "out",
        parallelism=parallelism,
        arrow_batch=arrow_batch,
        lines_per_row=lines_per_row,
        progress=seen.append,
        flink=flink,
    )
    assert in_process(spec, log) == written(tmp_path / "out")
    assert 2000 == result.records == result.counters["records"] == seen[-1]
    assert ["predictions", "rejects"] == sorted(p.name for p in (tmp_path / "out").iterdir())


def test_values_that_no_line_can_hold_survive_the_engine(
    flink: EmbeddedFlink, tmp_path: Path
) -> None:
    """Newlines, carriage returns, nulls, emptiness, bytes that are no text: rejects, unharmed."""
    values = [b"\n", b"\r", b"a\r", b"\r\n", b"", b"\xff\n", b"{}\n", None, b"\0", "ü".encode()]
    rows = [LogRow(i % 4, i, 1_704_067_200_000, None, value) for i, value in enumerate(values)]
    spec, _ = shipments(tmp_path, events=10, keys=2)
    log = log_of(rows, tmp_path / "odd.jsonl", 4)
    run_log(spec, log, tmp_path / "out", parallelism=2, flink=flink)
    assert in_process(spec, log) == written(tmp_path / "out")
    assert len(values) == len(written(tmp_path / "out")["rejects"])


def test_a_log_of_one_partition_leaves_the_other_subtasks_idle(
    flink: EmbeddedFlink, tmp_path: Path
) -> None:
    """C01, C05: nothing waits for a partition that is silent."""
    spec, log = shipments(tmp_path, events=800, keys=30)
    rows = [
        LogRow(b.partition, *each)
        for b in read_log(log)
        if b.partition == 1
        for each in zip(b.offsets.tolist(), b.timestamps.tolist(), b.keys, b.values, strict=True)
    ]
    one = log_of(rows, tmp_path / "one.jsonl", 4)
    run_log(spec, one, tmp_path / "out", parallelism=4, flink=flink)
    assert in_process(spec, one) == written(tmp_path / "out")


def test_an_empty_log_gives_empty_outputs(flink: EmbeddedFlink, tmp_path: Path) -> None:
    """No record is no error."""
    spec, _ = shipments(tmp_path, events=10, keys=2)
    log = log_of([], tmp_path / "empty.jsonl", 4)
    assert 0 == run_log(spec, log, tmp_path / "out", parallelism=1, flink=flink).records
    assert {"predictions": [], "rejects": []} == written(tmp_path / "out")


def test_a_failed_job_tells_the_operators_own_error(
    flink: EmbeddedFlink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message, not Java's two hundred lines; and nothing that looks like outputs."""
    spec, log = shipments(tmp_path, events=200, keys=10)

    def write_and_break(batches: Iterator[RecordBatch], folder: Path) -> int:
        spec.write_text("nonsense = 1\n" + spec.read_text())  # the operator loads it again
        return write_partition_files(batches, folder)

    monkeypatch.setattr("jobs.run.write_partition_files", write_and_break)
    with pytest.raises(FlinkError) as failed:
        run_log(spec, log, tmp_path / "out", parallelism=2, flink=flink)
    told = str(failed.value)
    assert told.startswith(f"{SpecError.__module__}.SpecError: "), told
    assert "nonsense" in told
    assert "remedy" in told
    assert "\tat " not in told
    assert "Traceback" not in told
    assert "the whole log: " in told
    assert [] == list((tmp_path / "out").iterdir())


def test_a_flink_of_its_own_ends_with_the_run(tmp_path: Path) -> None:
    """One command from nothing: the log file stays, no process and no temporary file does."""
    spec, log = shipments(tmp_path, events=200, keys=10)
    before = children()
    run_log(spec, log, tmp_path / "out", parallelism=1)
    assert ["flink.log", "predictions", "rejects"] == sorted(
        path.name for path in (tmp_path / "out").iterdir()
    )
    assert in_process(spec, log) == written(tmp_path / "out")
    assert before == children()


def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    """A kill -9 of the command: no outputs, and Flink's processes go with it."""
    spec, log = shipments(tmp_path, events=200, keys=10)
    code = (
        "import sys; from pathlib import Path; from jobs.run import run_log\n"
        "run_log(*map(Path, sys.argv[1:]), parallelism=1)"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, str(spec), str(log), str(out)]
    with subprocess.Popen(command) as run:
        until = time.monotonic() + 120
        while not _in(out / "flink.log", b"switched from state CREATED to RUNNING"):
            assert time.monotonic() < until
            time.sleep(0.05)
        started = processes_of(out)
        run.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while set(started) & set(processes_of(out)) and time.monotonic() < until:
        time.sleep(0.1)
    assert started
    assert [] == processes_of(out)
    assert not {"predictions", "rejects", "run.json"} & {path.name for path in out.iterdir()}
    run_log(spec, log, out, parallelism=1)
    assert in_process(spec, log) == written(out)


def test_outputs_are_not_mixed_with_those_of_another_run(tmp_path: Path) -> None:
    """Refused before anything starts, with the remedy."""
    spec, log = shipments(tmp_path, events=20, keys=2)
    (tmp_path / "out" / "rejects").mkdir(parents=True)
    with pytest.raises(OutputsExistError, match="remedy"):
        run_log(spec, log, tmp_path / "out", parallelism=1)


def test_a_refused_spec_is_told_before_flink_starts(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    spec, log = shipments(tmp_path, events=20, keys=2)
    spec.write_text("nonsense = 1\n" + spec.read_text())
    with pytest.raises(SpecError):
        run_log(spec, log, tmp_path / "out", parallelism=1)
    assert not (tmp_path / "out").exists()


def test_a_machine_without_java_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23."""
    monkeypatch.setattr("jobs.java._packaged", lambda: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    spec, log = shipments(tmp_path, events=20, keys=2)
    with pytest.raises(JavaError, match="remedy"):
        run_log(spec, log, tmp_path / "out", parallelism=1)
    assert not (tmp_path / "out").exists()


def _in(path: Path, words: bytes) -> bool:
    return path.exists() and words in path.read_bytes()
