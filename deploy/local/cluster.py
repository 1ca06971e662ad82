"""A standalone Flink cluster on loopback, whose processes can be killed one by one.

The configuration is `deploy/flink/config.yaml`, then what a local cluster must have otherwise
(addresses, ports, directories), then the caller's own settings. With `supervise`, what ends is
started again, as in any deployment: that is how a test kills a TaskManager three times.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from deploy.local.errors import LocalError, end_of
from deploy.local.flink import Distribution, java_options, read_base, write_configuration
from deploy.local.kept import Kept
from deploy.local.ports import kept_ports
from deploy.local.processes import Child, in_session, need_free
from deploy.local.zookeeper import ZooKeeper
from jobs.java import Java, find_java

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0
_END_SECONDS = 10.0
#: The module that a Python worker runs.
_WORKER = "pyflink.fn_execution.beam.beam_boot"


class LocalCluster:
    """A cluster, as a context manager, or by `start` and `stop`.

    Args:
        directory: all it writes: conf, log, checkpoints, savepoints, tmp; with high availability,
            what it recovers its jobs from, too.
        connector: the Kafka connector's jar.
        taskmanagers: how many.
        slots: task slots of each.
        high_availability: whether a JobManager that is started again recovers its jobs. That takes
            a ZooKeeper, which is started too.
        settings: Flink settings that win over all others.
        java_options: for the JVM of every Flink process.
        supervise: whether what ends is started again; may be set while it runs.
        rest_port: where the JobManager is asked; without it, a free one, the same at each start.
        metrics_ports: a range such as 9249-9299 for Prometheus. Without it there is no reporter:
            Flink's binds all interfaces, and this cluster is for this machine alone.
        java: what runs it; without it, the one that is found.
    """

    def __init__(
        self,
        directory: Path,
        *,
        connector: Path,
        taskmanagers: int,
        slots: int = 1,
        high_availability: bool = False,
        settings: Mapping[str, str] | None = None,
        java_options: str = "",
        supervise: bool = True,
        rest_port: int | None = None,
        metrics_ports: str | None = None,
        java: Java | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.supervise = supervise
        self._flink = Distribution.find(java or find_java(), connector.absolute())
        names = ["rest", "rpc", "zookeeper"]
        given = {"rest": rest_port} if rest_port else {}
        self._ports = kept_ports(self.directory, names, given)
        self._settings = (
            _base(metrics_ports)
            | self._local_settings(slots)
            | (self._recovery_settings() if high_availability else {})
            | dict(settings or {})
        )
        self._java_options = java_options.split()
        self._memory: dict[str, tuple[list[str], list[str]]] = {}
        self.jobmanager = Kept("the JobManager", self._launch_jobmanager)
        self.taskmanagers = [
            Kept(f"TaskManager {index}", self._launcher(index)) for index in range(taskmanagers)
        ]
        self._zookeeper = ZooKeeper(
            self._flink, self.directory / "zookeeper", self._ports["zookeeper"]
        )
        self.zookeeper = Kept("ZooKeeper", self._launch_zookeeper) if high_availability else None
        self._stopping = threading.Event()
        self._supervisor: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def rest(self) -> str:
        """HOST:PORT of the JobManager's REST interface."""
        return f"127.0.0.1:{self._ports['rest']}"

    @property
    def logs(self) -> Path:
        """One .log for each process that was started, and an .out with what it printed."""
        return self.directory / "log"

    @property
    def processes(self) -> list[Kept]:
        """All places for processes, in the order in which they are started."""
        first = [self.zookeeper] if self.zookeeper else []
        return [*first, self.jobmanager, *self.taskmanagers]

    def start(self, *, wait: bool = True) -> None:
        """Starts all of it, and waits until every TaskManager has registered.

        Raises:
            LocalError: something ended, or it took too long; the end of its log is in the message.
        """
        for folder in ("conf", "log", "tmp", "checkpoints", "savepoints"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        if not self.jobmanager.alive:
            remedy = "end what listens there, or choose another port"
            need_free(self._ports["rest"], "the JobManager", remedy)
        write_configuration(self.directory / "conf", self._settings)
        with ThreadPoolExecutor() as pool:
            roles = ("jobmanager", "taskmanager")
            sizes = pool.map(lambda role: self._flink.memory(role, self.directory / "conf"), roles)
            self._memory = dict(zip(roles, sizes, strict=True))
        for place in self.processes:
            place.start()
        self._stopping.clear()
        self._supervisor = threading.Thread(
            target=self._tend, name="local Flink cluster", daemon=True
        )
        self._supervisor.start()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Ends all of it. With high availability, its jobs are recovered at the next start."""
        self._stopping.set()
        if self._supervisor:
            self._supervisor.join()
            self._supervisor = None
        flink = [*self.taskmanagers, self.jobmanager]
        for place in flink:
            if place.child:
                place.child.terminate()
        for place in flink:
            place.end(_END_SECONDS)
        if self.zookeeper:  # last, because the others sign off with it
            self.zookeeper.end(_END_SECONDS)

    def wait_ready(self, seconds: float = _START_SECONDS) -> None:
        """Waits until the JobManager answers and knows each TaskManager as it runs now.

        Raises:
            LocalError: it takes longer.
        """
        until = time.monotonic() + seconds
        while not self._ready():
            if not self.supervise:
                self._need_alive()
            if time.monotonic() > until:
                raise self._not_ready(seconds)
            time.sleep(_POLL_SECONDS)

    def kill_taskmanager(self, index: int = 0) -> int:
        """SIGKILL to a TaskManager, and to the Python workers it leaves; returns its number."""
        return self.taskmanagers[index].kill()

    def restart_taskmanager(self, index: int = 0) -> None:
        """Starts a TaskManager, unless it runs, and waits until it has registered."""
        self.taskmanagers[index].start()
        self.wait_ready()

    def kill_jobmanager(self) -> int:
        """SIGKILL to the JobManager; returns its number."""
        return self.jobmanager.kill()

    def restart_jobmanager(self) -> None:
        """Starts the JobManager, unless it runs, and waits until all TaskManagers are back."""
        self.jobmanager.start()
        self.wait_ready()

    def python_workers(self, index: int | None = None) -> list[int]:
        """Returns the numbers of the Python worker processes, those of one TaskManager or all."""
        chosen = self.taskmanagers if index is None else [self.taskmanagers[index]]
        return sorted(
            pid
            for place in chosen
            if place.pid
            for pid, words in in_session(place.pid)
            if _WORKER in words
        )

    def kill_python_worker(self, index: int | None = None, *, wait_seconds: float = 30) -> int:
        """SIGKILL to one Python worker, once there is one; returns its number.

        Raises:
            LocalError: there is none in that time.
        """
        until = time.monotonic() + wait_seconds
        while not (workers := self.python_workers(index)):
            if time.monotonic() > until:
                raise LocalError(
                    "no Python worker to kill\n"
                    f"  found:  none under {len(self.taskmanagers)} TaskManagers in "
                    f"{wait_seconds:.0f} s\n"
                    "  needed: a running job that scores"
                )
            time.sleep(_POLL_SECONDS)
        os.kill(workers[0], signal.SIGKILL)
        return workers[0]

    def registered(self) -> set[str]:
        """Returns the ids of the TaskManagers that the JobManager knows; none if it is away."""
        told = self._ask("/taskmanagers")
        return {each["id"] for each in told["taskmanagers"]} if told else set()

    def _ask(self, path: str) -> Any:
        try:
            answer = requests.get(f"http://{self.rest}{path}", timeout=2)
        except requests.RequestException:
            return None
        return answer.json() if answer.ok else None

    def _ready(self) -> bool:
        expected = {_resource(i, place.starts) for i, place in enumerate(self.taskmanagers)}
        return all(place.alive for place in self.processes) and expected <= self.registered()

    def _need_alive(self) -> None:
        for place in self.processes:
            if place.child and not place.child.alive:
                raise self._ended(place)

    def _ended(self, place: Kept) -> LocalError:
        assert place.child is not None  # noqa: S101 (it was asked for)
        return LocalError(
            f"{place.name} has ended\n"
            f"  found:  exit code {place.child.exit_code}; its log ends in\n"
            f"{self._end_of_log(place)}\n"
            f"  remedy: see {self.logs}"
        )

    def _not_ready(self, seconds: float) -> LocalError:
        for place in self.processes:
            if not place.alive:
                return self._ended(place)
        return LocalError(
            f"the cluster at {self.rest} is not whole after {seconds:.0f} s\n"
            f"  found:  TaskManagers {', '.join(sorted(self.registered())) or 'none'}\n"
            f"  needed: {len(self.taskmanagers)}, as they were started last\n"
            f"  remedy: see {self.logs}; the JobManager's ends in\n"
            f"{self._end_of_log(self.jobmanager)}"
        )

    def _end_of_log(self, place: Kept) -> str:
        assert place.child is not None  # noqa: S101 (it was started)
        printed = place.child.log
        log = printed.with_suffix(".log")
        return end_of(log if log.exists() and log.stat().st_size else printed)

    def _tend(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            for place in self.processes:
                if self.supervise:
                    place.tend()
                else:
                    _ = place.alive  # also ends the workers of one that was killed

    def _launch_zookeeper(self, starts: int) -> Child:
        return self._zookeeper.start(self._log("zookeeper", starts))

    def _launch_jobmanager(self, starts: int) -> Child:
        return self._launch("jobmanager", "jobmanager", starts, [])

    def _launcher(self, index: int) -> Callable[[int], Child]:
        def launch(starts: int) -> Child:
            own = ["-D", f"taskmanager.resource-id={_resource(index, starts + 1)}"]
            return self._launch("taskmanager", f"taskmanager-{index}", starts, own)

        return launch

    def _launch(self, role: str, name: str, starts: int, own: list[str]) -> Child:
        options, arguments = self._memory[role]
        log = self._log(name, starts)
        temporary = self.directory / "tmp"
        jvm = [
            *options,
            *java_options(self._settings, role),
            *self._java_options,
            f"-Djava.io.tmpdir={temporary}",
        ]
        configuration = self.directory / "conf"
        words = ["--configDir", str(configuration), *arguments, *own]
        command = self._flink.command(role, log, jvm, words)
        environ = self._flink.environ(configuration, temporary)
        return Child(name, command, log.with_suffix(".out"), environ)

    def _log(self, name: str, starts: int) -> Path:
        return self.logs / f"{name}-{starts + 1}.log"

    def _local_settings(self, slots: int) -> dict[str, str]:
        """Addresses and directories: everything on loopback and in one place."""
        rest = str(self._ports["rest"])
        return {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(self._ports["rpc"]),
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": rest,
            "rest.bind-port": rest,
            "taskmanager.numberOfTaskSlots": str(slots),
            "io.tmp.dirs": str(self.directory / "tmp"),
            "execution.checkpointing.dir": (self.directory / "checkpoints").as_uri(),
            "execution.checkpointing.savepoint-dir": (self.directory / "savepoints").as_uri(),
        }

    def _recovery_settings(self) -> dict[str, str]:
        return {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": f"127.0.0.1:{self._ports['zookeeper']}",
            "high-availability.storageDir": (self.directory / "ha").as_uri(),
            "high-availability.cluster-id": "/local",
        }


def _base(metrics_ports: str | None) -> dict[str, str]:
    base = read_base()
    if metrics_ports:
        return base | {"metrics.reporter.prom.port": metrics_ports}
    return {name: value for name, value in base.items() if not name.startswith("metrics.")}


def _resource(index: int, starts: int) -> str:
    """The id under which the start of a TaskManager registers."""
    return f"taskmanager-{index}-{starts}"
