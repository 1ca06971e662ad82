"""Starts the process that Flink is embedded in, gives it jobs, and ends it with all it started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from jobs.flink_settings import LOG4J_PROPERTIES
from jobs.java import Java
from jobs.job import Request

_END_SECONDS = 10


class FlinkError(RuntimeError):
    """A job that failed: the message is that of the exception it died of."""


class EmbeddedFlink:
    """A Flink in a process of its own, as a context manager; it can run one job after another.

    Args:
        java: what runs it.
        log: the file that takes everything Flink and its workers say.
        work: a directory for its temporary files.
        jars: what its JVM needs beside Flink's own.
        program: the module that runs in that process.
    """

    def __init__(
        self,
        java: Java,
        log: Path,
        work: Path,
        jars: Sequence[Path] = (),
        *,
        program: str = "jobs.flink_main",
    ) -> None:
        self.java = java
        self.log = log
        self._work = work
        self._jars = jars
        self._program = program

    def __enter__(self) -> Self:
        temporary = self._work / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        log4j = self._work / "log4j.properties"
        log4j.write_text(LOG4J_PROPERTIES)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own module)
                [sys.executable, "-m", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(self.java, temporary, log4j, self._jars),
                start_new_session=True,  # also: Ctrl-C reaches us, and we end it
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # usually it has ended its group itself

    def run(
        self,
        request: Request,
        progress: Callable[[int], None] = lambda _records: None,
        submitted: Callable[[str], None] = lambda _job_id: None,
    ) -> None:
        """Runs one job to its end, or submits it and returns.

        Args:
            request: the job, and how to run it.
            progress: called with the records scored so far.
            submitted: called with Flink's id of the job, once it has one.

        Raises:
            FlinkError: the job failed, or the process died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 (both are pipes)
        assert stdout is not None  # noqa: S101
        try:
            stdin.write(msgspec.json.encode(request).decode() + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        for line in stdout:
            reply = json.loads(line)
            if "failed" in reply:
                raise FlinkError(f"{reply['failed']}\n  the whole log: {self.log}")
            if "done" in reply:
                return
            if "job_id" in reply:
                submitted(reply["job_id"])
            else:
                progress(reply["records"])
        raise self._died()

    def _died(self) -> FlinkError:
        code = self._process.wait()
        return FlinkError(f"Flink's process ended with {code}\n  its log: {self.log}")


def _environment(java: Java, temporary: Path, log4j: Path, jars: Sequence[Path]) -> dict[str, str]:
    path = [entry for entry in sys.path if entry]
    classpath = [*map(str, jars), os.environ.get("HADOOP_CLASSPATH", "")]
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "LOG4J_PROPERTIES": str(log4j),
        "JVM_ARGS": f"-Djava.io.tmpdir={temporary} {os.environ.get('JVM_ARGS', '')}".strip(),
        "TMPDIR": str(temporary),
        # The one variable by which PyFlink lets anything onto the class path of its JVM.
        "HADOOP_CLASSPATH": os.pathsep.join(filter(None, classpath)),
        # The workers must find what this process finds, however it was made importable.
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONWARNINGS": "ignore",
        "GRPC_VERBOSITY": "ERROR",
    }
