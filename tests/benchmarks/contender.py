"""Runs one contender once, in a process of its own.

`measure` is called by whoever compares; `main` is the process. The process leads its group, which
goes when the measurement is over or its parent is dead: JVM, Python workers, and all.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from jobs.flink_settings import LOG4J_PROPERTIES
from jobs.java import find_java
from tests.benchmarks.input import LATE, Input

ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 1800


class ContenderError(RuntimeError):
    """A contender that failed, or whose outputs are not what its input asks for."""


class StateBytes(msgspec.Struct, frozen=True):
    """The size of the state that a whole log leaves, as the engine is given it.

    Attributes:
        keys: stream keys that have state.
        mean: bytes of a key's record, its name not included.
        largest: of the largest record.
        name: mean bytes of the name.
    """

    keys: int
    mean: float
    largest: int
    name: float


class Measured(msgspec.Struct, frozen=True):
    """One measurement.

    Attributes:
        events: records taken.
        seconds: how long that took: of a Flink job its net runtime, else the loop alone.
        steady_seconds: the same without the start of tasks and of Python workers inside the job.
        begun_at: when the first of `seconds` passed, in seconds since the epoch.
        started_at: when the process was started, likewise; filled in by who started it.
        counters: what became of the records, where the contender tells.
        state_bytes: bytes of state of each key with its name, at the end, where it is looked at.
    """

    events: int
    seconds: float
    steady_seconds: float
    begun_at: float
    started_at: float = 0.0
    counters: dict[str, int] = {}
    state_bytes: StateBytes | None = None


class Task(msgspec.Struct, frozen=True):
    """What a contender's process is asked to do.

    Attributes:
        contender: its name in `contenders`.
        folder: the input's folder.
        work: an empty directory, removed after.
        parallelism: of Flink jobs.
    """

    contender: str
    folder: str
    work: str
    parallelism: int


def contenders() -> dict[str, Callable[[Task], Measured]]:
    """All contenders by name; those that are slow are given the log's beginning only."""
    # Imported here: a process loads what its contender needs, which is not always Flink.
    from tests.benchmarks import flink_jobs, in_process

    return {
        "pass-through": flink_jobs.pass_through,
        **{f"packed {late}": flink_jobs.packed(late) for late in LATE},
        "per-event PyFlink": flink_jobs.per_event,
        **{f"transition {late}": in_process.transition(late) for late in LATE},
        **{
            f"replay {late} {suffix}": in_process.replay(late, suffix)
            for suffix in (".jsonl", ".parquet")
            for late in LATE
        },
        "per-event loop": in_process.per_event,
    }


def measure(contender: str, source: Input, parallelism: int, log: Path) -> Measured:
    """Runs a contender in a process of its own.

    Args:
        contender: one of `contenders`.
        source: what it gets.
        parallelism: of Flink jobs.
        log: the file that takes everything the process and its engine say.

    Raises:
        ContenderError: it failed, took too long, or gave wrong outputs.
    """
    with (
        TemporaryDirectory(dir=source.folder.parent, prefix="work-") as work,
        log.open("ab") as err,
    ):
        task = Task(contender, str(source.folder), work, parallelism)
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.contender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=ROOT,
            env=_environment(Path(work)),
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            process.stdin.flush()
            watchdog = threading.Timer(_TIMEOUT_SECONDS, process.kill)
            watchdog.start()
            answer = process.stdout.read()
            watchdog.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if not answer:
        raise ContenderError(f"{contender} gave no figure; what it said: {log}")
    measured = msgspec.json.decode(answer, type=Measured)
    return msgspec.structs.replace(measured, started_at=started)


def _environment(work: Path) -> dict[str, str]:
    (work / "tmp").mkdir()
    log4j = work / "log4j.properties"
    log4j.write_text(LOG4J_PROPERTIES)
    # A Python in the JVM's threads finds its environment by these, not by who started the JVM.
    environment = Path(sys.prefix)
    return {
        **os.environ,
        "VIRTUAL_ENV": str(environment),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)]),
        "JAVA_HOME": str(find_java().home),
        "LOG4J_PROPERTIES": str(log4j),
        "JVM_ARGS": f"-Djava.io.tmpdir={work / 'tmp'}",
        "TMPDIR": str(work / "tmp"),
        "PYTHONWARNINGS": "ignore",
        "GRPC_VERBOSITY": "ERROR",
    }


def main() -> None:
    """Runs the contender that stdin asks for, and answers on what was stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # PyFlink and the JVM write to it
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    measured = contenders()[task.contender](task)
    answers.write(msgspec.json.encode(measured))
    answers.close()
    # Not all that PyFlink started ends by itself, and the group ends what is left.
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
