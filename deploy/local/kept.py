"""A process that is started again when it ends, and waits longer each time it ends at once."""

import threading
import time
from collections.abc import Callable

from deploy.local.processes import Child

#: One that lived so long did not fail at its start.
_WELL_SECONDS = 20.0
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 15.0


class Kept:
    """One place for a process: there is at most one in it, and it may be another one later.

    Args:
        name: what messages call it.
        make: starts it, given how often it was started before.
    """

    def __init__(self, name: str, make: Callable[[int], Child]) -> None:
        self.name = name
        self.child: Child | None = None
        self.starts = 0
        self._make = make
        self._lock = threading.RLock()
        self._wait = _FIRST_WAIT_SECONDS
        self._ended_at: float | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.child is not None and self.child.alive

    @property
    def pid(self) -> int:
        """The number of the process, also when it has ended; 0 before the first start."""
        return self.child.pid if self.child else 0

    def start(self) -> None:
        """Starts it, unless it runs."""
        with self._lock:
            if not self.alive:
                self.child = self._make(self.starts)
                self.starts += 1
                self._ended_at = None

    def tend(self) -> None:
        """Starts it again if it has ended and its wait is over; to be called again and again."""
        with self._lock:
            if self.child is None or self.child.alive:
                return
            now = time.monotonic()
            if self._ended_at is None:
                well = now - self.child.started > _WELL_SECONDS
                self._wait = (
                    _FIRST_WAIT_SECONDS if well else min(2 * self._wait, _LONGEST_WAIT_SECONDS)
                )
                self._ended_at = now
            if now - self._ended_at >= self._wait:
                self.start()

    def kill(self) -> int:
        """SIGKILL; returns the number of the process that was killed."""
        child = self.child
        if child is None:
            return 0
        child.kill()
        return child.pid

    def end(self, seconds: float = 10) -> None:
        """Ends the process; it is not started again until `start`."""
        with self._lock:
            if self.child:
                self.child.end(seconds)
                self.child = None
