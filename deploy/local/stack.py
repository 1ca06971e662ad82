"""What `up` leaves behind: one process that starts all the others, and keeps them until it is told.

It is told by SIGTERM. What it does is in `state.json` of its directory, which is replaced whole at
each change, so that `up`, `status` and `down` only read. The processes are its children: when it
ends, however, they do.
"""

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from deploy.local.errors import LocalError, end_of
from deploy.local.kept import Kept
from deploy.local.processes import Child, Identity
from jobs.flink_rest import ENDED, Cluster, ClusterError

_POLL_SECONDS = 0.3
_TIDEGATE = [sys.executable, "-c", "from jobs.cli import app; app()"]


class Plan(msgspec.Struct, frozen=True):
    """What is to be started.

    Attributes:
        spec: the job's.
        name: the job's, as the spec says.
        connector, broker_jars: where their jars lie.
        broker_port, rest_port: where they listen, on loopback.
        taskmanagers, slots, parallelism: how much of each.
        log: a recorded log to be published; `simulate` makes it first.
        rate: records a second.
        simulate: events of the example to make into the log; 0 for none.
        partitions: of the source topic.
        settings: Flink settings of the cluster.
        metrics_ports: see `LocalCluster`.
    """

    spec: str
    name: str
    connector: str
    broker_jars: str
    broker_port: int
    rest_port: int
    taskmanagers: int
    slots: int
    parallelism: int
    log: str | None
    rate: float
    simulate: int
    partitions: int
    settings: dict[str, str] = {}
    metrics_ports: str | None = None


class Process(msgspec.Struct, frozen=True):
    """A process of the stack.

    Attributes:
        name: what it is.
        identity: None when it does not run.
        exit_code: how it ended, negative for a signal; None while it runs or was not started.
        starts: how often it was started.
    """

    name: str
    identity: Identity | None
    exit_code: int | None
    starts: int


class State(msgspec.Struct, frozen=True):
    """What the stack does now.

    Attributes:
        supervisor: the process that keeps all the others.
        stage: how far it is.
        said: what it has done so far, for people.
        failure: why it ended, if it failed.
        processes: the others.
        plan: what it was told.
    """

    supervisor: Identity
    stage: Literal["starting", "running", "failed", "ended"]
    said: list[str]
    failure: str
    processes: list[Process]
    plan: Plan


def read_state(directory: Path) -> State | None:
    """Returns the state that was written last; None if there is none that can be read."""
    try:
        return msgspec.json.decode((directory / "state.json").read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return None


def running_state(directory: Path) -> State | None:
    """Returns the state if its supervisor lives; None otherwise, whatever an old file says."""
    state = read_state(directory)
    return state if state and state.supervisor.alive else None


class Stack:
    """The supervisor's side.

    Args:
        directory: everything lies in it.
        plan: what to start.
    """

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory = directory
        self._plan = plan
        me = Identity.of(os.getpid())
        assert me is not None  # noqa: S101 (it runs)
        self._me = me
        self._said: list[str] = []
        self._written = b""
        self._stop = threading.Event()
        self._publisher: Child | None = None
        self._broker = Broker(
            directory / "broker", jars=Path(plan.broker_jars), port=plan.broker_port
        )
        self._cluster = LocalCluster(
            directory / "flink",
            connector=Path(plan.connector),
            taskmanagers=plan.taskmanagers,
            slots=plan.slots,
            high_availability=True,
            settings=plan.settings,
            rest_port=plan.rest_port,
            metrics_ports=plan.metrics_ports,
        )
        self._kept_broker = Kept("the broker", self._start_broker)

    def run(self) -> None:
        """Starts everything, keeps it until SIGTERM, ends it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: self._stop.set())
        failure = ""
        try:
            self._start()
            while not self._stop.wait(_POLL_SECONDS):
                self._kept_broker.tend()
                self._write("running")
        except (LocalError, ClusterError) as error:
            failure = str(error)
        except Exception:
            failure = traceback.format_exc()
        finally:
            self._end()
            self._write("failed" if failure else "ended", failure)

    def _start(self) -> None:
        self._write("starting")
        for what, step in (
            ("broker", self._start_brokers),
            ("Flink", self._start_cluster),
            ("topics", self._make_topics),
            ("job", self._start_job),
        ):
            if self._stop.is_set():
                return
            began = time.monotonic()
            told = step()
            self._said.append(f"{what}: {told} ({time.monotonic() - began:.1f} s)")
            self._write("starting")

    def _start_broker(self, _starts: int) -> Child:
        self._broker.start(wait=False)
        assert self._broker.child is not None  # noqa: S101 (it was started)
        return self._broker.child

    def _start_brokers(self) -> str:
        self._kept_broker.start()
        self._broker.start()  # only waits now
        return self._broker.bootstrap_servers

    def _start_cluster(self) -> str:
        self._cluster.start()
        return f"{self._plan.taskmanagers} TaskManagers, page http://{self._cluster.rest}"

    def _make_topics(self) -> str:
        return ", ".join(self._tidegate("topics", self._plan.spec).splitlines())

    def _start_job(self) -> str:
        plan = self._plan
        jobs = Cluster(self._cluster.rest).jobs()
        found = [job for job in jobs if job["name"] == plan.name and job["state"] not in ENDED]
        if found:
            return f"{plan.name} is there already, as {found[0]['jid']}: it was recovered"
        submit = ["submit", plan.spec, "--cluster", self._cluster.rest, "--wait"]
        self._tidegate(*submit, "--parallelism", str(plan.parallelism))
        return f"{plan.name} runs{self._publish()}"

    def _publish(self) -> str:
        plan = self._plan
        if plan.log is None:
            return ""
        if plan.simulate:
            counts = ["--events", str(plan.simulate), "--partitions", str(plan.partitions)]
            make = ["simulate", "shipments", "--keys", str(max(1, plan.simulate // 100))]
            self._tidegate(*make, "--seed", "1", *counts, "--out", plan.log, "--quiet")
        publish = ["publish", plan.spec, "--log", plan.log, "--rate", str(plan.rate), "--quiet"]
        self._publisher = self._child("publisher", publish)
        return f", {plan.rate:g} records a second are published"

    def _tidegate(self, *words: str) -> str:
        """Runs a command to its end; returns what it printed."""
        child = self._child(words[0], list(words))
        before = child.log_begins
        while child.alive:
            if self._stop.wait(0.1):
                child.end()
        printed = child.log.read_bytes()[before:].decode(errors="replace").strip()
        if child.exit_code and not self._stop.is_set():
            raise LocalError(
                f"`tidegate {' '.join(words)}` failed, with exit code {child.exit_code}\n"
                f"{end_of(child.log)}"
            )
        return printed

    def _child(self, name: str, words: list[str]) -> Child:
        log = self._directory / "log" / f"{name}.log"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}
        return Child(f"tidegate {name}", [*_TIDEGATE, *words], log, environ)

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if self._publisher:
            self._publisher.end()
        self._cluster.stop()
        self._broker.stop()

    def _processes(self) -> list[Process]:
        places = [self._kept_broker, *self._cluster.processes]
        found = [_process(place.name, place.child, place.starts) for place in places]
        if self._publisher:
            found.append(_process("publisher", self._publisher, 1))
        return found

    def _write(
        self, stage: Literal["starting", "running", "failed", "ended"], failure: str = ""
    ) -> None:
        state = State(self._me, stage, self._said, failure, self._processes(), self._plan)
        data = msgspec.json.format(msgspec.json.encode(state), indent=1)
        if data != self._written:
            partial = self._directory / ".state.json.partial"
            partial.write_bytes(data)
            partial.replace(self._directory / "state.json")
            self._written = data


def _process(name: str, child: Child | None, starts: int) -> Process:
    if child is None or not child.alive:
        return Process(name, None, child.exit_code if child else None, starts)
    return Process(name, Identity.of(child.pid), None, starts)


def launch(directory: Path, plan: Plan, environ: Mapping[str, str] = os.environ) -> int:
    """Starts the supervisor in the background; returns its number."""
    import subprocess

    log = directory / "log" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
    with contextlib.suppress(FileNotFoundError):
        (directory / "state.json").unlink()
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "deploy.local.stack", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**environ, "PYTHONPATH": path},
            start_new_session=True,
        ).pid


def main(directory: Path) -> int:
    """The supervisor: one at a time on a directory."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("another supervisor has this directory\n")
            return 3
        Stack(
            directory, msgspec.json.decode((directory / "plan.json").read_bytes(), type=Plan)
        ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
