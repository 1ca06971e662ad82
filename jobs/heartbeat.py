"""Heartbeats: records that hold an event time and nothing else, for partitions that fell silent.

A partition's watermark only moves with its records, so silence must be in the log, too: no timeout
decides anything. A heartbeat moves the watermark as an event at its time would, which cannot be
taken back: events further behind it than the out-of-orderness are late from then on.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from confluent_kafka import KafkaException, Message, Producer

from jobs.kafka_client import KafkaError, source_access
from jobs.topics import Topics
from schemas.spec import Spec, TimeField

_FLUSH_SECONDS = 30
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HeartbeatError(ValueError):
    """Heartbeats that cannot be sent so: what was found, what is needed, the remedy."""


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat in the log.

    Attributes:
        partition: where it lies.
        offset: its offset there.
        event_time_ms: the event time it holds, milliseconds since the epoch.
    """

    partition: int
    offset: int
    event_time_ms: int


def send_heartbeats(
    spec: Spec,
    *,
    partitions: Sequence[int] | None = None,
    event_time_ms: int | None = None,
    idle_ms: int = 60_000,
    environ: Mapping[str, str] = os.environ,
) -> list[Heartbeat]:
    """Writes a heartbeat into each of some partitions, and waits until the broker has them.

    Args:
        spec: the job spec; its `event.heartbeat` says what a heartbeat is.
        partitions: which; None for those whose newest record's timestamp is `idle_ms` old.
        event_time_ms: the event time, milliseconds since the epoch; None for the clock's.
        idle_ms: how long a quiet partition has been quiet, in milliseconds.
        environ: where secrets are taken from.

    Raises:
        HeartbeatError: the spec has no heartbeats, or no such partition.
        KafkaError: the broker does not take them.
    """
    access = source_access(spec, environ)
    now = time.time_ns() // 1_000_000
    with Topics(access) as topics:
        count = topics.partitions(spec.source.topic)
        if partitions is None:
            newest = topics.newest_timestamps(spec.source.topic)
            chosen = [p for p, at in newest.items() if at is None or now - at >= idle_ms]
        else:
            chosen = list(dict.fromkeys(partitions))
    beyond = [partition for partition in chosen if partition >= count]
    if beyond:
        raise HeartbeatError(
            f"topic {spec.source.topic!r} has no partition {beyond[0]}\n"
            f"  needed: 0 to {count - 1}\n  remedy: correct --partition"
        )
    at = now if event_time_ms is None else event_time_ms
    value = heartbeat_record(spec, at)
    sent: list[Heartbeat] = []
    failures: list[str] = []

    def told(error: object, message: Message) -> None:
        if error is not None:
            failures.append(f"partition {message.partition()}: {error}")
        else:
            offset = message.offset()
            sent.append(Heartbeat(int(message.partition() or 0), int(offset or 0), at))

    producer = Producer(access.librdkafka() | {"enable.idempotence": True})
    try:
        for partition in chosen:
            producer.produce(spec.source.topic, value, partition=partition, on_delivery=told)
    except KafkaException as error:
        failures.append(str(error))
    left = producer.flush(_FLUSH_SECONDS)
    if failures or left:
        raise KafkaError(
            f"topic {spec.source.topic!r} did not take {len(failures) + left} heartbeats\n"
            f"  found:  {'; '.join(failures) or f'no answer in {_FLUSH_SECONDS} s'}\n"
            "  remedy: see to the broker, then send them again"
        )
    return sorted(sent, key=lambda each: each.partition)


def heartbeat_record(spec: Spec, event_time_ms: int) -> bytes:
    """Returns the value of a heartbeat record.

    Raises:
        HeartbeatError: the spec has no heartbeats.
    """
    event = spec.event
    if event.type is None or event.heartbeat is None:
        raise HeartbeatError(
            "the spec has no heartbeats\n"
            "  found:  no event.heartbeat\n"
            "  needed: event.type, the field that tells records apart, and event.heartbeat, its "
            "value in a heartbeat\n"
            "  remedy: add them and raise the generation, since they decide records"
        )
    time_of = {event.type: event.heartbeat, event.time.field: _as_field(event.time, event_time_ms)}
    return msgspec.json.encode(time_of)


def _as_field(field: TimeField, event_time_ms: int) -> int | str:
    """An event time as the spec says that events hold it."""
    if field.unit == "iso8601":
        moment = _EPOCH + timedelta(milliseconds=event_time_ms)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if field.unit == "s":
        return event_time_ms // 1000  # whole ones; early moves the watermark less, never more
    return event_time_ms * {"ms": 1, "us": 1_000, "ns": 1_000_000}[field.unit]
