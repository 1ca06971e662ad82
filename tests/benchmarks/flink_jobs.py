"""The contenders that are Flink jobs: embedded, under the settings of the packed job, file to file.

All of them read partition files as `jobs.log_files` writes them. What is measured is the job's net
runtime, as Flink tells it, and of that the part after all tasks run: the start of tasks includes
that of the Python workers, which counts in a benchmark of seconds and in no service.
"""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from jobs.flink_settings import embedded_settings, job_settings, recorded_log_settings
from jobs.run import free_port
from tests.benchmarks.contender import ContenderError, Measured, Task
from tests.benchmarks.input import HIDDEN, Input

_POLL_SECONDS = 0.05


def pass_through(task: Task) -> Measured:
    """Lines from files to files in SQL, no Python: the ceiling of this engine on this machine."""
    source, job = Input(Path(task.folder)), _Job(task)
    job.tables.execute_sql(
        f"CREATE TEMPORARY TABLE log_lines (line BYTES) WITH ({_table(source.files)})"
    )
    job.tables.execute_sql(
        f"CREATE TEMPORARY TABLE lines_out (line BYTES) WITH ({_table(job.sinks)})"
    )
    statements = job.tables.create_statement_set()
    statements.add_insert_sql("INSERT INTO lines_out SELECT line FROM log_lines")
    statements.attach_as_datastream()
    measured = job.run(source.facts.events)
    _check(task, source.facts.events, _lines(job.sinks))
    return measured


def packed(late: str) -> Callable[[Task], Measured]:
    """Returns the job of `tidegate run` under a late policy, as a contender."""

    def contender(task: Task) -> Measured:
        from jobs.job import FileEnds, Job
        from jobs.pipeline import attach

        source, job = Input(Path(task.folder)), _Job(task)
        partitions = len(list(source.files.glob("partition-*")))
        attach(
            job.env,
            job.tables,
            Job(
                name="packed",
                spec=str(source.spec(late)),
                partitions=partitions,
                ends=FileEnds(source=str(source.files), sinks=str(job.sinks)),
            ),
        )
        measured = job.run(source.facts.events)
        counters: Counter[str] = Counter()
        for part in (job.sinks / "counters").glob("part-*"):
            for line in part.read_bytes().splitlines():
                counters.update(json.loads(line)["counters"])
        _check(task, source.facts.events, counters["records"])
        for sink in ("predictions", "rejects"):
            told = sum(n for name, n in counters.items() if name.startswith(sink))
            _check(task, told, _lines(job.sinks / sink))
        return msgspec.structs.replace(measured, counters=dict(counters))

    return contender


def per_event(task: Task) -> Measured:
    """A keyed function that takes one event at a time, in thread mode: what one writes at first.

    Thread mode is its faster one by far: Python runs in the JVM's own threads.
    """
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.common.serialization import Encoder
    from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat

    from tests.benchmarks.flink_per_event import ScoreEvent, key_of

    source = Input(Path(task.folder))
    job = _Job(task, {"python.execution-mode": "thread"})
    files = FileSource.for_record_stream_format(
        StreamFormat.text_line_format(), source.few_files.absolute().as_uri()
    ).build()
    lines = job.env.from_source(files, WatermarkStrategy.no_watermarks(), "log lines")
    scored = lines.key_by(key_of, Types.STRING()).process(
        ScoreEvent(str(source.model), HIDDEN), Types.STRING()
    )
    sink = FileSink.for_row_format(
        job.sinks.absolute().as_uri(), Encoder.simple_string_encoder()
    ).build()
    scored.sink_to(sink)
    measured = job.run(source.facts.few_events)
    _check(task, source.facts.few_events, _lines(job.sinks))
    return measured


class _Job:
    """An embedded Flink for one job."""

    def __init__(self, task: Task, settings: dict[str, str] | None = None) -> None:
        # Imported here: PyFlink needs the environment that only the contender's process has.
        from jobs.pipeline import environments

        work = Path(task.work)
        self.sinks = work / "sinks"
        self._port = free_port()
        overrides = {
            # When the tasks run must be seen when they do, not up to 3 s later.
            "web.refresh-interval": "50",
            # Without it, Flink's server of large messages listens on all interfaces.
            "jobmanager.bind-host": "127.0.0.1",
            **(settings or {}),
        }
        self.env, self.tables = environments(
            job_settings()
            | embedded_settings(work, rest_port=self._port)
            | recorded_log_settings()
            | overrides,
            task.parallelism,
        )

    def run(self, events: int) -> Measured:
        """Runs what was attached to its end."""
        client = self.env.execute_async("bench")
        job = f"http://127.0.0.1:{self._port}/jobs/{client.get_job_id()}"
        result = client._j_job_client.getJobExecutionResult()
        times: tuple[int, int] | None = None
        while not result.isDone():
            time.sleep(_POLL_SECONDS)
            times = times or _times(job)
        seconds = result.get().getNetRuntime() / 1000
        # A job of few events may be over before its tasks are seen to run: then all is counted.
        begun, running = times or (time.time() * 1000 - seconds * 1000, 0)
        starting = max(0.0, (running - begun) / 1000)
        return Measured(
            events=events,
            seconds=seconds,
            steady_seconds=seconds - starting,
            begun_at=begun / 1000,
        )


def _times(job: str) -> tuple[int, int] | None:
    """When the job began and when the last task ran, in milliseconds since the epoch; None before.

    A task runs when its operators are open: its Python worker has been started and has answered.
    """
    try:
        told = _get(job)
        tasks = [
            subtask["timestamps"]["RUNNING"]
            for vertex in told["vertices"]
            for subtask in _get(f"{job}/vertices/{vertex['id']}/subtasktimes")["subtasks"]
        ]
    except (OSError, ValueError, LookupError):
        return None
    begun = told["timestamps"]["INITIALIZING"]
    return (begun, max(tasks)) if tasks and min(tasks) > 0 else None


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (our own loopback)
        return json.load(answer)


def _table(folder: Path) -> str:
    return f"'connector' = 'filesystem', 'path' = '{folder.absolute().as_uri()}', 'format' = 'raw'"


def _lines(folder: Path) -> int:
    """Lines in the finished parts of a file sink."""
    return sum(_newlines(part) for part in folder.rglob("part-*"))


def _newlines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in _blocks(file))


def _blocks(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(1 << 20), b"")


def _check(task: Task, expected: int, found: int) -> None:
    if expected != found:
        raise ContenderError(f"{task.contender}: {expected} records expected, {found} found")
