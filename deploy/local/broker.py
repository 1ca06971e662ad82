"""A Kafka broker of one node, which is its own controller, on loopback.

Started again on the same directory it has the same ports and the same topics, so a test can kill
it under a running job.
"""

import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local.errors import LocalError, end_of
from deploy.local.ports import kept_ports
from deploy.local.processes import Child, listens
from jobs.java import Java, find_java

_CLIENT, _CONTROLLER = "PLAINTEXT", "CONTROLLER"
_START_SECONDS = 90.0
_STOP_SECONDS = 30.0

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


class Broker:
    """A broker, as a context manager, or by `start` and `stop`.

    Args:
        directory: all it writes; another broker on the same directory goes on from there.
        jars: the directory of its jars, which `make kafka` fills.
        properties: settings of the broker that win over those here.
        port: where clients come in; without it, a free one, the same at each start.
        listeners: further ways in: the name of each, and its security protocol, such as SASL_SSL.
            What that needs (stores, mechanisms, JAAS) is said in `properties`.
        heap: of the JVM, such as 512m.
        format_arguments: for the tool that formats a new directory, such as --add-scram.
        java: what runs it; without it, the one that is found.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jars: Path,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        listeners: Mapping[str, str] | None = None,
        heap: str = "512m",
        format_arguments: Sequence[str] = (),
        java: Java | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self._jars = need_broker_jars(jars)
        self._properties = dict(properties or {})
        self._listeners = {_CLIENT: "PLAINTEXT"} | dict(listeners or {})
        self._heap = heap
        self._format_arguments = list(format_arguments)
        self._java = java or find_java()
        names = [*self._listeners, _CONTROLLER]
        self._ports = kept_ports(self.directory, names, {_CLIENT: port} if port else {})
        self.child: Child | None = None

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
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the way in without security."""
        return self.address(_CLIENT)

    def address(self, listener: str) -> str:
        """HOST:PORT of a way in, by its name."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        """The number of the process, also when it has ended; 0 before the first start."""
        return self.child.pid if self.child else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.child is not None and self.child.alive

    @property
    def log(self) -> Path:
        """What it says: warnings and errors."""
        return self.directory / "log" / "broker.log"

    def start(self, *, wait: bool = True) -> None:
        """Starts it, unless it runs, and waits until it answers.

        Raises:
            LocalError: it ended, or does not answer in time; the end of its log is in the message.
        """
        if not self.alive:
            self._write_configuration()
            if not (self.directory / "data" / "meta.properties").exists():
                self._format()
            self.child = self._launch("kafka.Kafka", [str(self._server)])
        if wait:
            self._wait_ready()

    def stop(self) -> None:
        """Ends it in order, so that it need not look through its logs at the next start."""
        if self.child:
            self.child.end(_STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL."""
        if self.child:
            self.child.kill()

    @property
    def _server(self) -> Path:
        return self.directory / "server.properties"

    def _write_configuration(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOG4J)
        ways = [*self._listeners, _CONTROLLER]
        protocols = self._listeners | {_CONTROLLER: "PLAINTEXT"}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self.address(_CONTROLLER)}",
            "controller.listener.names": _CONTROLLER,
            "listeners": ",".join(f"{name}://{self.address(name)}" for name in ways),
            "advertised.listeners": ",".join(
                f"{name}://{self.address(name)}" for name in self._listeners
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "inter.broker.listener.name": _CLIENT,
            "log.dirs": str(self.directory / "data"),
            # One broker can hold one copy. Few partitions: each of fifty takes time at the start.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # A broker that was killed may come back when the controller holds the old one for dead:
            # by the defaults, after nine seconds.
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "3000",
            # Consumers of a test need not wait for others of their group.
            "group.initial.rebalance.delay.ms": "0",
            # A topic that is made by a typing error has the wrong number of partitions.
            "auto.create.topics.enable": "false",
        }
        lines = (f"{name}={value}\n" for name, value in (settings | self._properties).items())
        self._server.write_text("".join(lines))

    def _format(self) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ["format", "-t", cluster, "-c", str(self._server), *self._format_arguments]
        child = self._launch("kafka.tools.StorageTool", words)
        until = time.monotonic() + _START_SECONDS
        while child.alive and time.monotonic() < until:
            time.sleep(0.05)
        if child.exit_code:
            raise LocalError(
                f"the broker's directory cannot be formatted: {self.directory}\n"
                f"  found:  exit code {child.exit_code}\n{end_of(self.log)}\n"
                "  remedy: correct the properties that the log names"
            )

    def _launch(self, main: str, words: list[str]) -> Child:
        command = [
            str(self._java.home / "bin" / "java"),
            f"-Xms{self._heap}" if main == "kafka.Kafka" else "-XX:TieredStopAtLevel=1",
            f"-Xmx{self._heap}",
            f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}",
            "-classpath",
            str(self._jars / "*"),
            main,
            *words,
        ]
        environ = {"LANG": "C.UTF-8", "HOME": str(self.directory)}
        return Child("the broker", command, self.log, environ)

    def _wait_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        port = self._ports[_CLIENT]
        while not (listens(port) and answers(self.bootstrap_servers)):
            if not self.alive or time.monotonic() > until:
                state = "runs, but does not answer" if self.alive else "it has ended"
                self.stop()
                raise LocalError(
                    f"the broker did not come up at {self.bootstrap_servers}\n"
                    f"  found:  {state}; its log ends in\n{end_of(self.log)}\n"
                    f"  needed: an answer within {_START_SECONDS:.0f} s\n"
                    f"  remedy: see {self.log}"
                )
            time.sleep(0.1)


def answers(bootstrap_servers: str, seconds: float = 2.0) -> bool:
    """Whether a broker without security answers with its topics."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException:
        return False
    return True


def need_broker_jars(folder: Path) -> Path:
    """Returns the directory of the broker's jars, if they are in it.

    Raises:
        LocalError: they are not.
    """
    folder = folder.absolute()
    if not list(folder.glob("kafka_2.13-*.jar")):
        raise LocalError(
            "no Kafka broker\n"
            f"  found:  no kafka_2.13-*.jar in {folder}\n"
            "  needed: the jars that deploy/local/kafka/pom.xml pins\n"
            "  remedy: make kafka (needs Maven, once)"
        )
    return folder
