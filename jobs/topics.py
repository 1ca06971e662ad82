"""What a Kafka says of its topics: partitions, where their logs begin and end, how they are kept.

Dangers. A metadata request for one topic makes that topic where the broker allows it, with a
partition count nobody chose; only lists of all topics are asked for. The end of a log under
transactions is not its newest record but may be a marker, so a reader must ask for positions and
not wait for a record at `end - 1`.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from jobs.kafka_client import KafkaAccess, KafkaError, source_access
from schemas.spec import Spec

_T = TypeVar("_T")

_TIMEOUT_SECONDS = 10.0
#: How long a fresh broker may take to make the log of consumer groups.
_COORDINATOR_SECONDS = 60.0
_COMING_UP = {
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
}
#: Kafka's own bound of a record, for a broker that does not tell it.
MESSAGE_BYTES = 1_048_588
#: Records looked back through for the newest one that is no marker, at first.
_LOOK_BACK = 16


class Topics:
    """The topics of one Kafka; a context manager.

    Args:
        access: how it is reached.
        timeout_seconds: how long each question may take.

    Raises:
        KafkaError: a method could not be answered.
    """

    def __init__(self, access: KafkaAccess, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._access = access
        self._timeout = timeout_seconds
        self._settings = access.librdkafka()
        try:
            self._admin = AdminClient(self._settings)
        except KafkaException as error:
            raise self._failed("the settings are refused", error) from None
        self._names: dict[str, int] | None = None

    def __enter__(self) -> "Topics":
        return self

    def __exit__(self, *_: object) -> None:
        del self._admin

    def partition_counts(self) -> dict[str, int]:
        """Returns every topic that may be seen, with its number of partitions."""
        if self._names is None:
            found = self._ask(
                "no list of topics", lambda: self._admin.list_topics(timeout=self._timeout)
            )
            self._names = {name: len(topic.partitions) for name, topic in found.topics.items()}
        return self._names

    def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic.

        Raises:
            KafkaError: it is not there, too.
        """
        counts = self.partition_counts()
        if topic not in counts:
            raise KafkaError(
                f"no topic {topic!r} at {self._access.bootstrap_servers}\n"
                f"  found:  {_some(counts)}\n"
                "  remedy: `tidegate topics SPEC` makes the topics of a spec; or correct the name"
            )
        return counts[topic]

    def log_range(self, topic: str) -> dict[int, tuple[int, int]]:
        """Returns the first offset of each partition's log, and the one after its last."""
        begins = self._offsets(topic, OffsetSpec.earliest())
        ends = self._offsets(topic, OffsetSpec.latest())
        return {partition: (begins[partition], ends[partition]) for partition in begins}

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Returns each partition's first offset at or after a time; the log's end if none is."""
        found = self._offsets(topic, OffsetSpec.for_timestamp(timestamp_ms))
        if all(offset >= 0 for offset in found.values()):
            return found
        ends = self._offsets(topic, OffsetSpec.latest())
        return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}

    def topic_config(self, topic: str) -> dict[str, str]:
        """Returns the settings of a topic, the broker's defaults included."""
        return self._config(ConfigResource(ResourceType.TOPIC, topic))

    def broker_config(self) -> dict[str, str]:
        """Returns the settings of one broker."""
        found = self._ask(
            "no list of brokers", lambda: self._admin.list_topics(timeout=self._timeout)
        )
        return self._config(ConfigResource(ResourceType.BROKER, str(min(found.brokers))))

    def begin_at(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commits where a consumer group begins to read.

        Raises:
            KafkaError: the group is in use, too.
        """
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]

        def commit() -> Any:
            asked = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._timeout
            )
            result = asked[group].result()
            refused = [each.error for each in result.topic_partitions if each.error is not None]
            if refused:
                raise KafkaException(refused[0])

        self._ask(f"no start can be set for group {group}", commit, patient=True)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Returns the committed offset of each partition that has one."""

        def ask() -> Any:
            asked = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout
            )
            return asked[group].result()

        found = self._ask(f"no offsets of group {group}", ask, patient=True)
        return {
            each.partition: each.offset
            for each in found.topic_partitions
            if each.topic == topic and each.offset >= 0
        }

    def newest_timestamps(self, topic: str) -> dict[int, int | None]:
        """Returns the timestamp of each partition's newest record, milliseconds; None if empty."""
        newest = self._newest(topic)
        return {
            partition: None if message is None else message.timestamp()[1]
            for partition, message in newest.items()
        }

    def newest_values(self, topic: str) -> list[bytes]:
        """Returns the newest record of each partition that has one, transactions' markers aside."""
        found = self._newest(topic).values()
        return [message.value() or b"" for message in found if message is not None]

    def _newest(self, topic: str) -> dict[int, Any]:
        ranges = self.log_range(topic)
        settings = self._settings | {
            "group.id": "tidegate-look",  # never joined nor committed: partitions are assigned
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer(settings)
        try:
            return {
                partition: self._newest_of(consumer, topic, partition, begin, end)
                for partition, (begin, end) in ranges.items()
            }
        except KafkaException as error:
            raise self._failed(f"topic {topic!r} cannot be read", error) from None
        finally:
            consumer.close()

    def _newest_of(
        self, consumer: Consumer, topic: str, partition: int, begin: int, end: int
    ) -> Any | None:
        """The newest record; looks back further until there is one, or the log has begun."""
        back = _LOOK_BACK
        while end > begin:
            start = max(begin, end - back)
            consumer.assign([TopicPartition(topic, partition, start)])
            newest = self._last_before_end(consumer, topic)
            consumer.unassign()
            if newest is not None or start == begin:
                return newest
            back *= 8
        return None

    def _last_before_end(self, consumer: Consumer, topic: str) -> Any | None:
        newest, until = None, time.monotonic() + self._timeout
        while time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                newest, until = message, time.monotonic() + self._timeout
            elif error.code() == Code._PARTITION_EOF:
                return newest
            else:
                raise KafkaException(error)
        raise KafkaError(
            f"topic {topic!r} was not read to its end in {self._timeout:.0f} s\n"
            "  remedy: see to the broker: it lists the topic, but sends no records"
        )

    def _offsets(self, topic: str, which: OffsetSpec) -> dict[int, int]:
        count = self.partitions(topic)
        asked = {TopicPartition(topic, partition): which for partition in range(count)}

        def ask() -> dict[int, int]:
            futures = self._admin.list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._timeout,
            )
            return {place.partition: future.result().offset for place, future in futures.items()}

        return self._ask(f"no offsets of topic {topic!r}", ask)

    def _config(self, resource: ConfigResource) -> dict[str, str]:
        def ask() -> dict[str, Any]:
            asked = self._admin.describe_configs([resource], request_timeout=self._timeout)
            return dict(asked[resource].result())

        found = self._ask(f"no settings of {resource.restype.name.lower()} {resource.name}", ask)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def _ask(self, what: str, question: Callable[[], _T], *, patient: bool = False) -> _T:
        until = time.monotonic() + _COORDINATOR_SECONDS
        while True:
            try:
                return question()
            except KafkaException as error:
                waits = patient and error.args[0].code() in _COMING_UP
                if not waits or time.monotonic() > until:
                    raise self._failed(what, error) from None
                time.sleep(0.5)

    def _failed(self, what: str, error: KafkaException) -> KafkaError:
        code = error.args[0]
        return KafkaError(
            f"{what}: Kafka at {self._access.bootstrap_servers}\n"
            f"  found:  {code.str()} ({code.name()})\n"
            f"  remedy: {_REMEDIES.get(code.name(), _REACH)}"
        )


def records_in(spec: Spec, environ: Mapping[str, str] = os.environ) -> int:
    """Returns how many records the source topic of a spec holds; markers count, too."""
    with Topics(source_access(spec, environ)) as topics:
        ranges = topics.log_range(spec.source.topic)
    return sum(end - begin for begin, end in ranges.values())


_REACH = (
    "see that the brokers run, and that bootstrap_servers and the settings of the connection in "
    "[source.properties] or [sink.properties] are theirs"
)
_DENIED = "grant it to the user of the job, or connect as another"
_REMEDIES = {
    "TOPIC_AUTHORIZATION_FAILED": _DENIED,
    "GROUP_AUTHORIZATION_FAILED": _DENIED,
    "CLUSTER_AUTHORIZATION_FAILED": _DENIED,
    "UNKNOWN_MEMBER_ID": "the group has members: stop the job that reads as it",
    "NON_EMPTY_GROUP": "the group has members: stop the job that reads as it",
}


def _some(names: Mapping[str, int]) -> str:
    seen = sorted(name for name in names if not name.startswith("__"))
    shown = ", ".join(seen[:10]) + (f" and {len(seen) - 10} more" if len(seen) > 10 else "")
    return shown or "no topics"
