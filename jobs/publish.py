"""Writes a recorded log into the topic of a spec, and makes the topics of a spec.

The way back from `record`: for a rerun under a new generation, a demonstration, a load test.
Records keep their partition, key, value and timestamp; offsets are the broker's.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from jobs.kafka_client import KafkaAccess, KafkaError, sink_access, source_access
from jobs.kafka_job import needed_bytes
from jobs.topics import MESSAGE_BYTES, Topics
from schemas.log import read_log
from schemas.spec import Spec

_FLUSH_SECONDS = 60
_SLICE_SECONDS = 0.02
#: Records of one partition before the next one's: few, so that none runs far ahead.
_BATCH_ROWS = 256
_PRODUCER = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "enable.idempotence": True,  # order within a partition holds through retries
    "queue.buffering.max.messages": 500_000,
    "message.max.bytes": 100_000_000,  # the topic has a bound, and says so
}


@dataclass(frozen=True)
class Topic:
    """A topic of a spec.

    Attributes:
        name: its name.
        made: it was made now; else it was there.
    """

    name: str
    made: bool


def make_topics(
    spec: Spec, *, replication: int = -1, environ: Mapping[str, str] = os.environ
) -> list[Topic]:
    """Makes the topics of a spec that are not there, with the partitions that it says.

    The source keeps its records for ever, because a replayed log's timestamps are old: by the
    broker's own retention they would be deleted within minutes. The others take what may be made of
    the largest record that the source takes.

    Args:
        spec: the job spec.
        replication: copies of each partition; -1 for the broker's default.
        environ: where secrets are taken from.

    Raises:
        KafkaError: the broker cannot be reached, or refuses.
    """
    source, sink = source_access(spec, environ), sink_access(spec, environ)
    for access in (source, sink):
        with Topics(access) as asked:
            asked.partition_counts()  # says best what is wrong with a Kafka that cannot be reached
    count = spec.source.partitions

    def made(access: KafkaAccess, name: str, config: dict[str, str]) -> Topic:
        return Topic(name, _make(access, NewTopic(name, count, replication, config=config)))

    topics = [made(source, spec.source.topic, {"retention.ms": "-1"})]
    with Topics(source) as asked:
        config = asked.topic_config(spec.source.topic)
    largest = needed_bytes(int(config.get("max.message.bytes", MESSAGE_BYTES)))
    outputs = {"max.message.bytes": str(largest)}
    topics += [made(sink, name, outputs) for name in (spec.sink.predictions, spec.sink.rejects)]
    return topics


def _make(access: KafkaAccess, topic: NewTopic) -> bool:
    """Makes a topic; returns whether it was not there."""
    admin = AdminClient(access.librdkafka())
    asked = admin.create_topics([topic], operation_timeout=20, request_timeout=20)
    try:
        asked[topic.topic].result()
    except KafkaException as error:
        if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
            return False
        raise KafkaError(
            f"topic {topic.topic!r} cannot be made\n  found:  {error.args[0].str()}\n"
            "  remedy: see that the broker runs and allows it; or make the topic yourself"
        ) from None
    return True


def publish(
    spec: Spec,
    log: Path,
    *,
    rate: float | None = None,
    environ: Mapping[str, str] = os.environ,
    progress: Callable[[int], None] = lambda _records: None,
) -> int:
    """Writes the records of a log to the source topic, in the log's order of each partition.

    Args:
        spec: the job spec.
        log: the recorded log.
        rate: records a second; None for as fast as the broker takes them.
        environ: where secrets are taken from.
        progress: called with the records written so far.

    Returns:
        How many records were written and acknowledged.

    Raises:
        LogError: the log is refused.
        KafkaError: the broker refuses records, or does not take them in time.
    """
    producer = Producer(source_access(spec, environ).librdkafka() | _PRODUCER)
    failures: list[str] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    started, written = time.monotonic(), 0
    for partition, timestamp, key, value in _records(spec, log):
        if rate:
            _keep_pace(producer, started + written / rate)
        while True:
            try:
                producer.produce(
                    spec.source.topic, value, key, partition, timestamp=timestamp, on_delivery=told
                )
                break
            except BufferError:
                producer.poll(_SLICE_SECONDS)
            except KafkaException as error:
                failures.append(f"partition {partition}: {error.args[0].str()}")
                break
        written += 1
        if written % 1024 == 0:
            producer.poll(0)
            progress(written)
            if failures:
                break
    left = producer.flush(_FLUSH_SECONDS)
    if failures or left:
        said = failures[0] if failures else f"{left:,} records not taken in {_FLUSH_SECONDS} s"
        raise KafkaError(
            f"topic {spec.source.topic!r} did not take all records\n"
            f"  found:  {said}, {len(failures) + left:,} records\n"
            "  remedy: see to the broker; what was written is in the topic, so publish the rest, "
            "or begin anew in an empty topic"
        )
    progress(written)
    return written


def _records(spec: Spec, log: Path) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
    """Partition, timestamp, key and value of each record, partitions in turn."""
    for batch in read_log(log, _BATCH_ROWS, spec.source.partitions):
        for timestamp, key, value in zip(
            batch.timestamps.tolist(), batch.keys, batch.values, strict=True
        ):
            yield batch.partition, timestamp, key, value


def _keep_pace(producer: Producer, due: float) -> None:
    # Again and again, because `poll` returns at the first record that was acknowledged.
    while (wait := due - time.monotonic()) > 0:
        producer.poll(wait)
