"""Child processes that take all they started with them, and processes of others, as /proc tells.

A child leads a session of its own. So a Ctrl-C at the terminal does not reach it before us; a
SIGKILL to its group ends the workers that it left; and they are found by their session even when
their parent is gone. Should this process die, `guard` does the rest.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import LocalError

_PROC = Path("/proc")
_POLL_SECONDS = 0.05


class Child:
    """A process of ours.

    Args:
        name: what messages call it.
        command: its words.
        log: takes what it prints, appended.
        environ: its environment, whole.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self.started = time.monotonic()
        self._lock = threading.Lock()
        guard = _Guard.one()  # before the child: once that runs, nothing must come between
        log.parent.mkdir(parents=True, exist_ok=True)
        #: How long the log was before.
        self.log_begins = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 (our own commands)
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,
            )
        self.pid = self._process.pid
        guard.watch(self.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs; the first look after its end also ends what it left behind."""
        with self._lock:
            if self._process.returncode is not None:
                return False
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return True
            # It is not reaped yet, so its number, which is that of its group, is nobody else's.
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            _Guard.one().forget(self.pid)
            return False

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return None if self.alive else self._process.returncode

    def kill(self) -> None:
        """SIGKILL to the one process, as a machine does that runs out of memory; waits for it."""
        self._send(signal.SIGKILL)
        self._wait(10)

    def terminate(self) -> None:
        """Asks it to end, and does not wait."""
        self._send(signal.SIGTERM)

    def end(self, seconds: float = 10) -> None:
        """Asks it to end; after some seconds, makes it, with all it started."""
        self.terminate()
        if not self._wait(seconds):
            self._signal_group(signal.SIGKILL)
            self._wait(10)

    def _wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _send(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class _Guard:
    """Our end of the guard's input, which closes with this process, however that ends."""

    _one: "_Guard | None" = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 (our own file)
            [sys.executable, "-I", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @classmethod
    def one(cls) -> "_Guard":
        with cls._making:
            if cls._one is None or cls._one._owner != os.getpid():
                cls._one = cls()
            return cls._one

    def watch(self, group: int) -> None:
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 (a pipe)
        os.write(self._process.stdin.fileno(), line.encode())  # one write: whole, in any thread


@dataclass(frozen=True)
class Identity:
    """A process of this machine, told from a later one that has the same number.

    Attributes:
        pid: its number.
        started: clock ticks between the start of the machine and its own.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Returns that of a process; None if there is none, or it has ended and is not reaped."""
        fields = _stat(pid)
        if fields is None or fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return Identity.of(self.pid) == self

    def end(self, seconds: float) -> None:
        """SIGTERM; after some seconds SIGKILL. Returns when it is gone."""
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10.0)):
            if not self.alive:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            until = time.monotonic() + patience
            while time.monotonic() < until and self.alive:
                time.sleep(_POLL_SECONDS)


def in_session(leader: int) -> Iterator[tuple[int, list[str]]]:
    """Yields number and words of each process in the session of a child, itself left out."""
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and int(folder.name) != leader:
            fields = _stat(int(folder.name))
            if fields and fields[3] == str(leader) and fields[0] not in ("Z", "X"):
                with contextlib.suppress(OSError):
                    words = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
                    yield int(folder.name), [word.decode(errors="replace") for word in words]


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, session and the rest of /proc/PID/stat, from its third field on."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # its name, before that, may hold anything


def listens(port: int, seconds: float = 0.5) -> bool:
    """Whether something on this machine accepts connections at a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), seconds):
            return True
    except OSError:
        return False


def need_free(port: int, what: str, remedy: str) -> None:
    """Refuses a port that is taken.

    Raises:
        LocalError: it is.
    """
    with socket.socket() as probe:
        # As servers bind: connections that were closed a moment ago are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LocalError(
                f"{what} cannot listen at 127.0.0.1:{port}\n"
                f"  found:  {error.strerror}\n"
                "  needed: a port that nothing uses\n"
                f"  remedy: {remedy}"
            ) from None
