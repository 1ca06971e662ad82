"""Scores live topics with an embedded Flink: what `tidegate run --kafka` does.

    DIR/
        flink.log
        checkpoints/     what a run that was killed left
        savepoints/      what a run that was stopped left

A run goes on from the newest of these if there is one, so starting it again is all that is ever
needed. It is one process tree on one machine: for a laptop, a test, a small feed. A cluster is
`jobs.deployment`.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from jobs.flink_process import EmbeddedFlink, FlinkError
from jobs.flink_rest import Cluster, ClusterError
from jobs.flink_settings import embedded_settings, job_settings, live_settings
from jobs.jars import find_connector
from jobs.java import find_java
from jobs.job import Request
from jobs.kafka_job import Start, kafka_job, place_start
from jobs.run import LOG_FILE, free_port
from operators.scorer import Scorer

CHECKPOINTS, SAVEPOINTS = "checkpoints", "savepoints"
_WORK = ".running"
_LOCK = ".lock"
_STOP_SECONDS = 300


class LiveError(RuntimeError):
    """A live run that cannot begin so."""


def newest_state(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint or savepoint of earlier runs; None without one."""
    complete = [
        *folder.glob(f"{CHECKPOINTS}/*/chk-*/_metadata"),
        *folder.glob(f"{SAVEPOINTS}/*/_metadata"),
    ]
    newest = max(complete, key=lambda path: path.stat().st_mtime_ns, default=None)
    return newest.parent if newest else None


def run_live(
    scorer: Scorer,
    spec_path: Path,
    folder: Path,
    *,
    parallelism: int,
    start: Start | None = None,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    progress: Callable[[int], None] = lambda _records: None,
    say: Callable[[str], None] = lambda _line: None,
) -> Path | None:
    """Scores the topics of a spec until it is stopped by SIGINT or SIGTERM.

    Args:
        scorer: the spec, with its models loaded and checked.
        spec_path: the job spec.
        folder: where log and state lie; a state that lies there is gone on from.
        parallelism: subtasks of each operator.
        start: where a run without state begins to read.
        settings: Flink settings that win over those of `jobs.flink_settings`.
        environ: where secrets are taken from.
        progress: called with the records scored so far.
        say: told what is being done.

    Returns:
        The savepoint that it was stopped with; None if the job ended by itself.

    Raises:
        LiveError, KafkaError, JavaError, JarError: refused, nothing ran.
        FlinkError: the job failed.
    """
    folder = folder.absolute()
    state = newest_state(folder)
    if state and start:
        raise LiveError(
            f"{folder} holds the state of an earlier run, and --start says where to begin "
            "without\n"
            f"  found:  {state.relative_to(folder)}, --start {start.text}\n"
            "  remedy: leave --start away to go on, or name another --out to begin anew (and "
            "raise the spec's generation, unless that is the log's beginning)"
        )
    java, connector = find_java(environ), find_connector(environ)
    job = kafka_job(scorer.spec, str(spec_path.absolute()), environ=environ)
    if state:
        say(f"goes on from {state}")
    else:
        offsets = place_start(scorer.spec, start or Start("earliest"), environ=environ)
        told = ", ".join(f"{partition}: {offset:,}" for partition, offset in offsets.items())
        say(f"begins without state, at offsets {told}")
    work, port = folder / _WORK, free_port()
    lock = _locked(folder)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    request = Request(
        job=job,
        parallelism=parallelism,
        settings=job_settings()
        | embedded_settings(work, rest_port=port)
        | live_settings()
        | {"execution.checkpointing.dir": (folder / CHECKPOINTS).as_uri()}
        | ({"execution.state-recovery.path": state.as_uri()} if state else {})
        | dict(settings or {}),
    )
    stop = _Stop(Cluster(f"127.0.0.1:{port}"), folder / SAVEPOINTS, say)
    try:
        with EmbeddedFlink(java, folder / LOG_FILE, work, [connector]) as flink, stop.on_signal():
            flink.run(request, progress, stop.running)
    except FlinkError:
        stop.raise_failure()  # the job was cancelled because its savepoint failed
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.close()
    return stop.outcome()


def _locked(folder: Path) -> IO[str]:
    """Holds the directory for this run, until the file is closed or the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / _LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise LiveError(
            f"{folder} is in use\n"
            "  found:  another `tidegate run --kafka` in it\n"
            "  needed: a directory for each: it holds the state of one job\n"
            "  remedy: stop the other one, or name another --out"
        ) from None
    return lock


class _Stop:
    """Stops the job with a savepoint when the process is told to end."""

    def __init__(self, cluster: Cluster, savepoints: Path, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._savepoints = savepoints
        self._say = say
        self._job_id = ""
        self._savepoint: Path | None = None
        self._failure: ClusterError | None = None
        self._thread: threading.Thread | None = None

    def running(self, job_id: str) -> None:
        """Takes the job's id."""
        self._job_id = job_id

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Stops at the first signal while the block runs; a second one ends it at once."""
        before = {
            number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def outcome(self) -> Path | None:
        """Returns the savepoint, if the job was stopped."""
        if self._thread:
            self._thread.join()
        self.raise_failure()
        return self._savepoint

    def raise_failure(self) -> None:
        """Raises what kept the savepoint from being taken, if anything did."""
        if self._failure:
            raise FlinkError(
                f"stopped without a savepoint: {self._failure}\n  the next run goes on from the "
                "newest checkpoint, and writes again what came after it"
            )

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self._thread or not self._job_id:
            raise KeyboardInterrupt
        self._say("stopping with a savepoint (once more ends it at once)")
        # A thread, because the main one reads what the job says until it has ended.
        self._thread = threading.Thread(target=self._stop, daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        try:
            path = self._cluster.stop(
                self._job_id, self._savepoints.as_uri(), wait_seconds=_STOP_SECONDS
            )
            self._savepoint = Path(path.removeprefix("file://").removeprefix("file:"))
        except ClusterError as error:
            # The job, and with it the interface, may be gone before it answers for the last time.
            found = newest_state(self._savepoints.parent)
            if found and found.parent == self._savepoints:
                self._savepoint = found
            else:
                self._failure = error
                with contextlib.suppress(ClusterError):
                    self._cluster.cancel(self._job_id)
