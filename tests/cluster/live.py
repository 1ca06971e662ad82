"""A live job under test: a log fed into its topic at a pace, its outputs as they appear."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from jobs.deployment import Deployed, submit, wait_healthy
from jobs.flink_rest import Cluster, ClusterError
from jobs.publish import make_topics
from operators.scorer import Scorer
from schemas.log import read_log
from schemas.spec import Spec, load_spec
from tests.jobs.flink_runs import in_process

_STALLED_SECONDS = 90.0

#: Checkpoints close together, so that each fault meets one, and transactions are seen soon.
SETTINGS = {
    "execution.checkpointing.interval": "2s",
    "restart-strategy.exponential-delay.initial-backoff": "200ms",
}


def live_spec(path: Path, name: str, servers: str, **sink: str) -> Spec:
    """The job of a spec file under a name and topics of its own."""
    spec = load_spec(path)
    return msgspec.structs.replace(
        spec,
        name=name,
        source=msgspec.structs.replace(
            spec.source, topic=f"{name}.events", bootstrap_servers=servers
        ),
        sink=msgspec.structs.replace(
            spec.sink, predictions=f"{name}.predictions", rejects=f"{name}.rejects", **sink
        ),
    )


class Feeder:
    """Writes a recorded log into a job's topic; a context manager.

    Args:
        spec: whose topic.
        log: the recorded log.
        rate: records a second, at first; may be changed. None for as fast as it goes.
        until: share of the log after which it waits; may be changed.
    """

    def __init__(
        self, spec: Spec, log: Path, rate: float | None = None, until: float = 1.0
    ) -> None:
        self.rate, self.until, self.written = rate, until, 0
        self.offsets = dict.fromkeys(range(spec.source.partitions), 0)
        self._spec = spec
        self._rows = [
            (timestamp, batch.partition, key, value)
            for batch in read_log(log, 64, spec.source.partitions)
            for timestamp, key, value in zip(
                batch.timestamps.tolist(), batch.keys, batch.values, strict=True
            )
        ]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind:
            self._ended.set()
        self.until, self.rate = 1.0, None
        self._thread.join(120)
        assert kind or self.written == len(self._rows)

    @property
    def left(self) -> int:
        """Records still to be written."""
        return len(self._rows) - self.written

    def wait_share(self, share: float) -> None:
        """Waits until that share of the log has been written."""
        while self.written < share * len(self._rows):
            time.sleep(0.05)
            assert self._thread.is_alive() or self.written == len(self._rows)

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._spec.source.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        due = time.monotonic()
        for timestamp, partition, key, value in self._rows:
            while self.written >= self.until * len(self._rows) and not self._ended.is_set():
                producer.poll(0.05)
                due = time.monotonic()
            if self._ended.is_set():
                return
            if self.rate:
                due = max(due + 1 / self.rate, time.monotonic() - 1)
                while (wait := due - time.monotonic()) > 0.002:
                    producer.poll(wait)
            producer.produce(self._spec.source.topic, value, key, partition, timestamp=timestamp)
            self.offsets[partition] += 1
            self.written += 1
            if self.written % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0


@dataclass
class Collected:
    """What a topic holds, as it appeared.

    Attributes:
        keys: Kafka key of each record.
        values: value of each record.
        arrived: when each was read, seconds of the monotonic clock.
    """

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)


class Collector:
    """Reads a topic, committed records alone, from its begin; a context manager."""

    def __init__(self, servers: str, topic: str, partitions: int = 4) -> None:
        self.found = Collected()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._consumer.close()

    def wait_for(self, expected: int) -> list[bytes]:
        """Waits until there are so many different records; returns all, duplicates too."""
        seen, moved = -1, time.monotonic()
        while (distinct := len(set(self.found.values))) < expected:
            if distinct != seen:
                seen, moved = distinct, time.monotonic()
            assert time.monotonic() - moved < _STALLED_SECONDS, f"{seen} of {expected} records"
            time.sleep(0.3)
        time.sleep(1)  # what would be too many has its chance
        return self.found.values

    def fresh_again(self, written: dict[int, int], wait_seconds: float = 90) -> float:
        """Seconds until each partition has a prediction of a record that comes after these.

        Args:
            written: how many records each partition holds now.
            wait_seconds: how long that may take.
        """
        began, at = time.monotonic(), len(self.found.arrived)
        waited_for = dict(written)
        while time.monotonic() < began + wait_seconds:
            while at < len(self.found.arrived):
                partition, offset = _trigger(self.found.values[at])
                if offset >= waited_for.get(partition, offset + 1):
                    del waited_for[partition]
                if not waited_for:
                    return self.found.arrived[at] - began
                at += 1
            time.sleep(0.01)
        raise AssertionError(f"no fresh predictions of {waited_for} in {wait_seconds:.0f} s")

    def _run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(5000, 0.05):
                if message.error() is None:
                    # Times last, since they say that the others are there.
                    self.found.keys.append(message.key())
                    self.found.values.append(message.value() or b"")
                    self.found.arrived.append(time.monotonic())


def _trigger(value: bytes) -> tuple[int, int]:
    trigger = msgspec.json.decode(value)["trigger"]
    return trigger["partition"], trigger["offset"]


@contextmanager
def outputs(spec: Spec) -> Iterator[tuple[Collector, Collector]]:
    """Collectors of a job's predictions and rejects."""
    servers = str(spec.source.bootstrap_servers)
    with (
        Collector(servers, spec.sink.predictions) as predictions,
        Collector(servers, spec.sink.rejects) as rejects,
    ):
        yield predictions, rejects


def expected_of(spec: Spec, log: Path) -> dict[str, list[bytes]]:
    """The records of an undisturbed in-process replay, sorted."""
    return in_process(spec, log, open_end=True)


def check_outputs(
    spec: Spec, log: Path, predictions: Collector, rejects: Collector, *, duplicates: bool
) -> None:
    """The topics hold what the replay gives, once duplicates, if there may be any, are removed."""
    expected = expected_of(spec, log)
    for collector, name in ((predictions, "predictions"), (rejects, "rejects")):
        found = collector.wait_for(len(expected[name]))
        assert expected[name] == sorted(set(found)), name
        if not duplicates:
            assert len(found) == len(set(found)), name
    for key, value in zip(predictions.found.keys, predictions.found.values, strict=True):
        assert key is not None
        assert key.decode() == msgspec.json.decode(value)["key"]


def begin(
    spec: Spec, cluster: Cluster, releases: Path, *, parallelism: int = 1, **options: str
) -> Deployed:
    """Makes the topics and starts the job; returns when it has completed a checkpoint."""
    make_topics(spec)
    deployed = submit(
        Scorer(spec),
        cluster,
        parallelism=parallelism,
        settings=SETTINGS | options,
        environ=environ_of(releases),
    )
    wait_healthy(cluster, deployed)
    return deployed


def resume(
    spec: Spec, cluster: Cluster, releases: Path, savepoint: str, *, parallelism: int = 1
) -> Deployed:
    """Starts the job from a savepoint; returns when it has completed a checkpoint."""
    deployed = submit(
        Scorer(spec),
        cluster,
        parallelism=parallelism,
        savepoint=savepoint,
        settings=SETTINGS,
        environ=environ_of(releases),
    )
    wait_healthy(cluster, deployed)
    return deployed


def environ_of(releases: Path) -> dict[str, str]:
    """The environment of a submitter whose releases are kept there."""
    return {**os.environ, "TIDEGATE_RELEASES": str(releases)}


def wait_checkpoints(cluster: Cluster, job_id: str, more: int = 1, seconds: float = 90) -> None:
    """Waits until the job runs and so many checkpoints have completed from now on."""
    goal: int | None = None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # A JobManager that just came back answers with errors until it has recovered the job.
        with contextlib.suppress(ClusterError):
            counts = cluster.checkpoints(job_id).get("counts", {})
            completed = counts.get("completed", 0)
            goal = completed + more if goal is None else goal
            if completed >= goal and cluster.job(job_id)["state"] == "RUNNING":
                return
        time.sleep(0.2)
    raise AssertionError(f"no {more} checkpoints in {seconds:.0f} s: {cluster.failure(job_id)}")


def wait_failure(cluster: Cluster, job_id: str, seconds: float = 60) -> str:
    """Waits until a job has failed once; returns the trace."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        trace = cluster.failure(job_id)
        if trace:
            return trace
        time.sleep(0.3)
    raise AssertionError(f"the job did not fail in {seconds:.0f} s: {cluster.job(job_id)['state']}")
