"""The local cluster: what it starts it also ends, whoever dies; what it cannot do it refuses."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from deploy.local.__main__ import app
from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from deploy.local.errors import LocalError
from deploy.local.flink import java_options, read_base, write_configuration
from deploy.local.kept import Kept
from deploy.local.ports import kept_ports
from deploy.local.processes import Child, Identity, in_session, need_free
from deploy.local.stack import Plan, Process, State
from tests.deploy.repository import ROOT
from tests.kafka_jars import need_broker_jars, need_connector

#: A process with a child of its own, which prints the number of that.
PARENT = ["sh", "-c", "sleep 100 & echo $!; wait"]


def until(what: Callable[[], object], seconds: float = 10) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def run_parent(folder: Path) -> tuple[Child, int]:
    """A child that has a child, and the number of the latter."""
    child = Child("a parent", PARENT, folder / "parent.log", os.environ)
    assert until(lambda: child.log.read_text().strip())
    return child, int(child.log.read_text())


def test_what_a_killed_process_left_is_ended_too(tmp_path: Path) -> None:
    """As the Python workers of a TaskManager."""
    child, grandchild = run_parent(tmp_path)
    assert until(lambda: [(grandchild, ["sleep", "100"])] == list(in_session(child.pid)))
    child.kill()
    assert -signal.SIGKILL == child.exit_code
    assert until(lambda: Identity.of(grandchild) is None)


def test_a_process_that_does_not_end_when_asked_is_made_to(tmp_path: Path) -> None:
    """After its time, with all it started."""
    child = Child("deaf", ["sh", "-c", "trap '' TERM; echo up; sleep 100; sleep 100"],
                  tmp_path / "log", os.environ)  # fmt: skip
    assert until(lambda: child.log.read_text())
    child.end(seconds=0.2)
    assert not child.alive
    assert [] == list(in_session(child.pid))


def test_children_do_not_outlive_a_starter_that_is_killed(tmp_path: Path) -> None:
    """Nothing in the starter can run any more: the guard ends them."""
    program = (
        "import os, sys, time; from pathlib import Path; from deploy.local.processes import Child\n"
        f"Child('a parent', {PARENT!r}, Path(sys.argv[1]), os.environ)\n"
        "print('started', flush=True)\ntime.sleep(100)"
    )
    log = tmp_path / "log"
    words = [sys.executable, "-c", program, str(log)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        assert b"started\n" == starter.stdout.readline()
        assert until(lambda: log.read_text().strip())
        grandchild = int(log.read_text())
        starter.kill()
    assert until(lambda: Identity.of(grandchild) is None)


def test_a_number_that_belongs_to_another_process_now_is_not_alive(tmp_path: Path) -> None:
    """What a file of yesterday says must not end a stranger."""
    child, _ = run_parent(tmp_path)
    identity = Identity.of(child.pid)
    assert identity
    assert identity.alive
    yesterday = Identity(identity.pid, identity.started - 1)
    yesterday.end(1)
    assert not yesterday.alive
    assert child.alive
    child.end()
    assert not identity.alive


def test_what_ends_is_started_again_and_waits_if_it_ends_at_once(tmp_path: Path) -> None:
    """The wait doubles, so a process that cannot start does not take the machine."""
    kept = Kept("short", lambda n: Child("short", ["true"], tmp_path / f"{n}.log", os.environ))
    kept.tend()
    assert 0 == kept.starts  # nothing is started that was not asked for
    kept.start()
    begun = time.monotonic()
    starts: list[float] = []
    while len(starts) < 3:
        kept.tend()
        if kept.starts > len(starts) + 1:
            starts.append(time.monotonic() - begun)
        time.sleep(0.01)
    assert starts[0] >= 0.4
    assert starts[1] >= 0.4 + 0.8
    assert starts[2] >= 0.4 + 0.8 + 1.6
    kept.end()
    kept.tend()
    assert 4 == kept.starts


def test_ports_stay_those_of_the_directory(tmp_path: Path) -> None:
    """What is started again is found where it was; a given one wins."""
    first = kept_ports(tmp_path, ["a", "b"], {})
    assert first["a"] != first["b"]
    assert first == kept_ports(tmp_path, ["a", "b"], {})
    assert {**first, "a": 5} == kept_ports(tmp_path, ["a", "b"], {"a": 5})


def test_a_port_that_is_taken_is_refused() -> None:
    """With what it was for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LocalError, match=rf"(?s)the broker.*:{port}.*found:.*remedy:  ?do"):
            need_free(port, "the broker", "do this")
    need_free(port, "the broker", "do this")


def test_the_configuration_is_written_as_flink_reads_it(tmp_path: Path) -> None:
    """Names joined by dots, one line each, nothing lost on the way."""
    base = read_base()
    write_configuration(tmp_path, base)
    assert base == read_base(tmp_path / "config.yaml")
    assert len(base) == len((tmp_path / "config.yaml").read_text().splitlines())


def test_the_jvm_gets_what_the_wheels_own_configuration_opens() -> None:
    """The base takes that one's place; Flink's next version may open more."""
    import pyflink

    wheel = read_base(Path(pyflink.__file__).parent / "conf" / "config.yaml")
    assert java_options(wheel, "taskmanager") == java_options(read_base(), "taskmanager")


def test_a_broker_without_jars_is_refused(tmp_path: Path) -> None:
    """With the command that fetches them."""
    with pytest.raises(LocalError, match=r"(?s)found:.*needed:.*make kafka"):
        Broker(tmp_path / "broker", jars=tmp_path)


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of the example whose broker is elsewhere."""

    def make(servers: str) -> Path:
        example = ROOT / "examples" / "shipments"
        text = (example / "shipments.toml").read_text(encoding="utf-8")
        text = text.replace("localhost:9092", servers)
        path = tmp_path / "shipments.toml"
        path.write_text(text.replace('"model.onnx"', f'"{example / "model.onnx"}"'))
        return path

    return make


def call(*words: object) -> tuple[int, str]:
    """Exit code and all that the command says."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_broker_that_is_not_of_this_machine_is_not_started(
    tmp_path: Path, spec: Callable[[str], Path], jars: None
) -> None:
    """Refused before anything runs."""
    code, said = call("up", spec("broker.example.org:9092"), "-d", tmp_path / "up")
    assert 3 == code
    assert "found:  source.bootstrap_servers = broker.example.org:9092" in said
    assert not (tmp_path / "up").exists()


def test_a_port_that_another_broker_has_is_refused(
    tmp_path: Path, spec: Callable[[str], Path], jars: None
) -> None:
    """The likeliest mistake: there is a Kafka on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, said = call("up", spec(f"localhost:{port}"), "-d", tmp_path / "up")
    assert 3 == code
    assert f"the broker cannot listen at 127.0.0.1:{port}" in said


def test_a_job_that_does_not_fit_is_refused(tmp_path: Path, jars: None) -> None:
    """It would wait for slots for ever."""
    code, said = call("up", "-d", tmp_path, "--taskmanagers", 1, "--parallelism", 2)
    assert 3 == code
    assert "needed: 2 slots" in said


def test_with_nothing_there_status_and_down_say_so(tmp_path: Path) -> None:
    """Down twice is no error."""
    assert (1, "nothing runs\n") == call("status", "-d", tmp_path)
    assert (0, "nothing runs\n") == call("down", "-d", tmp_path)


def test_a_state_of_processes_that_are_gone_is_nothing(tmp_path: Path) -> None:
    """A machine that was switched off leaves the file; its numbers are others' now."""
    other = Identity.of(os.getpid())
    assert other
    gone = Identity(other.pid, other.started - 1)
    plan = Plan(
        "s", "s", "c", "j", 1, 2, taskmanagers=1, slots=1, parallelism=1, log=None, rate=1,
        simulate=0, partitions=1,
    )  # fmt: skip
    state = State(gone, "running", [], "", [Process("the broker", gone, None, 1)], plan)
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(state))
    assert (1, "nothing runs\n") == call("status", "-d", tmp_path)
    assert (0, "nothing runs\n") == call("down", "-d", tmp_path)
    assert other.alive


@pytest.fixture(scope="module")
def jars() -> None:
    """The jars that Maven fetches."""
    need_connector()
    need_broker_jars()


@pytest.fixture(scope="module")
def broker(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that runs."""
    with Broker(tmp_path_factory.mktemp("broker"), jars=need_broker_jars()) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One that runs, with recovery."""
    with LocalCluster(
        tmp_path_factory.mktemp("flink"),
        connector=need_connector(),
        taskmanagers=1,
        slots=2,
        high_availability=True,
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_broker_that_was_killed_comes_back_at_its_port_with_its_topics(broker: Broker) -> None:
    """So a client of it sees an outage, and nothing else."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("kept", 3)])["kept"].result()
    servers = broker.bootstrap_servers
    broker.kill()
    assert not broker.alive
    broker.start()
    assert servers == broker.bootstrap_servers
    assert 3 == len(admin.list_topics(timeout=10).topics["kept"].partitions)


@pytest.mark.slow
def test_a_taskmanager_and_a_jobmanager_that_were_killed_come_back(cluster: LocalCluster) -> None:
    """The one by itself, the other by itself or by hand; then all are registered again."""
    assert {"taskmanager-0-1"} == cluster.registered()
    killed = cluster.kill_taskmanager(0)
    cluster.wait_ready()
    assert killed != cluster.taskmanagers[0].pid
    assert "taskmanager-0-2" in cluster.registered()
    cluster.supervise = False
    killed = cluster.kill_jobmanager()
    assert set() == cluster.registered()
    time.sleep(1)
    assert not cluster.jobmanager.alive
    cluster.restart_jobmanager()
    cluster.supervise = True
    assert killed != cluster.jobmanager.pid
    assert {"taskmanager-0-2"} == cluster.registered()


@pytest.mark.slow
def test_without_a_job_there_is_no_python_worker(cluster: LocalCluster) -> None:
    """And killing one says why it cannot."""
    assert [] == cluster.python_workers()
    with pytest.raises(LocalError, match="no Python worker"):
        cluster.kill_python_worker(wait_seconds=0.2)


@pytest.mark.slow
def test_nothing_listens_beyond_loopback(broker: Broker, cluster: LocalCluster) -> None:
    """No port of any of the processes."""
    pids = {broker.pid, *(place.pid for place in cluster.processes)}
    addresses = {pid: set(_listening(pid)) for pid in pids}
    assert [] == [pid for pid, found in addresses.items() if not found]
    assert {"127.0.0.1"} == set().union(*addresses.values())


@pytest.mark.slow
def test_sizes_that_contradict_each_other_are_refused(tmp_path: Path, jars: None) -> None:
    """By Flink's own sum, before anything is started."""
    settings = {"taskmanager.memory.process.size": "300m"}
    cluster = LocalCluster(tmp_path, connector=need_connector(), taskmanagers=1, settings=settings)
    with pytest.raises(LocalError, match=r"(?s)memory of a taskmanager.*found:.*remedy:"):
        cluster.start()
    assert not any(place.alive for place in cluster.processes)


def _listening(pid: int) -> Iterator[str]:
    """The addresses that a process listens at."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(descriptor))
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                words = bytes.fromhex(local.partition(":")[0])
                # Each word of four bytes is in the machine's order, which is taken to be Intel's.
                octets = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                yield socket.inet_ntop(family, octets).removeprefix("::ffff:")
