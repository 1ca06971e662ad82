"""Copies a source topic into another one by key: for a job that needs other partitions.

Partitions of a topic that grew cannot be taken back, and keys have moved under their state. So a
new topic is filled from the old one, each record in the partition that its key belongs to there,
with its key, value and timestamp.

The danger is the order. Old partitions are merged by the greatest timestamp that each has reached,
so that none runs ahead: one that did would move the watermark of the new partition on, and make the
others late. Within an old partition the order stays. A key that lies in two of them, because the
topic grew, comes in the order of its timestamps.
"""

import heapq
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from jobs.kafka_client import KafkaError, source_access
from jobs.topics import Topics
from operators.partitioner import partition_for
from schemas.spec import Spec

_WAIT_SECONDS = 30.0
#: `consume` waits this long for a full batch.
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 60
_AT_ONCE = 500
_CONSUMER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # as the job reads it: Java's default, not librdkafka's
    "queued.max.messages.kbytes": 4096,  # of each partition
}
_PRODUCER = {
    "linger.ms": 5,
    "compression.type": "lz4",
    "enable.idempotence": True,  # order within a partition holds through retries
    "queue.buffering.max.messages": 500_000,
    "message.max.bytes": 100_000_000,  # the topic has a bound, and says so
}


def republish(
    old: Spec,
    new: Spec,
    *,
    environ: Mapping[str, str] = os.environ,
    progress: Callable[[int], None] = lambda _records: None,
) -> int:
    """Copies what is in the source topic of `old` now into that of `new`, which should be empty.

    Args:
        old: a spec of the topic that is read; how many partitions it says does not matter.
        new: a spec of the topic that is written: partitions and partitioner are its.
        environ: where secrets are taken from.
        progress: called with the records written so far.

    Returns:
        How many records were written and acknowledged.

    Raises:
        KafkaError: the specs name one topic, or no partitioner; or the broker refuses.
    """
    source, target = old.source, new.source
    if target.partitioner == "none":
        raise KafkaError(
            "records cannot be put into partitions by key\n"
            '  found:  source.partitioner = "none", a promise of the producers\n'
            "  needed: murmur2 or crc32 in the new spec\n"
            "  remedy: name the rule of the producers, or let them write into the new topic"
        )
    if source.topic == target.topic and source.bootstrap_servers == target.bootstrap_servers:
        raise KafkaError(
            "a topic cannot be republished into itself\n"
            f"  found:  source.topic = {source.topic!r} in both specs\n"
            "  needed: another topic in the new spec\n"
            "  remedy: name one, and make it with `tidegate topics`"
        )
    producer = Producer(source_access(new, environ).librdkafka() | _PRODUCER)
    failures: list[str] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    written = 0
    access = source_access(old, environ)
    with Topics(access) as topics:
        count = topics.partitions(source.topic)
    for message in _merged(access.librdkafka(), source.topic, count):
        key = message.key()
        partition = (
            message.partition() % target.partitions
            if key is None
            else partition_for(key, target.partitioner, target.partitions)
        )
        while True:
            try:
                producer.produce(
                    target.topic,
                    message.value(),
                    key,
                    partition,
                    timestamp=message.timestamp()[1],
                    headers=message.headers(),
                    on_delivery=told,
                )
                break
            except BufferError:
                producer.poll(0.02)
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
            f"topic {target.topic!r} did not take all records\n  found:  {said}\n"
            "  remedy: see to the broker, then begin anew in an empty topic"
        )
    progress(written)
    return written


def _merged(client: dict[str, Any], topic: str, count: int) -> Iterator[Any]:
    """All records of a topic, its partitions merged by the greatest timestamp reached in each."""
    settings = client | _CONSUMER | {"group.id": "tidegate-republish"}  # it is never joined
    readers = [_read(settings, topic, partition) for partition in range(count)]
    for _, _, message in heapq.merge(*readers, key=lambda entry: entry[:2]):
        yield message


def _read(settings: dict[str, Any], topic: str, partition: int) -> Iterator[tuple[int, int, Any]]:
    """The records of a partition up to its end now, each with the greatest timestamp so far."""
    consumer = Consumer(settings)
    try:
        at = TopicPartition(topic, partition)
        begin, end = consumer.get_watermark_offsets(at, timeout=_WAIT_SECONDS)
        if begin == end:
            return
        consumer.assign([TopicPartition(topic, partition, begin)])
        reached, until = 0, time.monotonic() + _WAIT_SECONDS
        while True:
            for message in consumer.consume(_AT_ONCE, timeout=_POLL_SECONDS):
                until = time.monotonic() + _WAIT_SECONDS
                error, offset = message.error(), message.offset()
                if error is not None:
                    if error.name() == "_PARTITION_EOF":
                        return
                    raise KafkaError(f"{topic!r} cannot be read\n  found:  {error.str()}")
                if offset is None or offset >= end:
                    return
                reached = max(reached, message.timestamp()[1])
                yield reached, partition, message
                if offset == end - 1:
                    return
            if time.monotonic() > until:
                raise KafkaError(
                    f"partition {partition} of {topic!r} gave no record in {_WAIT_SECONDS:.0f} s\n"
                    "  remedy: see to the broker, then begin anew in an empty topic"
                )
    finally:
        consumer.close()
