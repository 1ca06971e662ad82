"""The live job of a spec: its topics, its names in Kafka, and where it starts.

Names are functions of the spec, so that two jobs never meet in Kafka unless they are the same job:
the consumer group carries the start offsets and shows the lag, the transactional ids fence a job
that was lost but is still alive.
"""

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.job import Job, KafkaEnds
from jobs.kafka_client import sink_access, source_access
from jobs.topics import Topics
from schemas.spec import Spec


class StartError(ValueError):
    """A start position that cannot be read or met."""


@dataclass(frozen=True)
class Start:
    """Where a job without state begins to read.

    Attributes:
        text: as it was given: earliest, latest, or an instant.
        timestamp_ms: the instant; the first record of each partition at or after it is the first
            one read. None for the other two.
    """

    text: str
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Start":
        """Reads `earliest`, `latest`, milliseconds since the epoch, or ISO 8601 with an offset.

        Raises:
            StartError: it is none of these.
        """
        if text in ("earliest", "latest"):
            return cls(text)
        if text.isdecimal():
            return cls(text, int(text))
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise StartError(
                f"{text!r} is no start: give earliest, latest, milliseconds since the epoch, or "
                "an instant with an offset, such as 2026-01-31T12:00:00Z"
            )
        return cls(text, round(moment.timestamp() * 1000))


def group_of(spec: Spec) -> str:
    """Returns the consumer group of a job."""
    return f"tidegate-{spec.name}-{spec.generation}"


#: The sinks' max.request.size, unless the spec says another: as much as their buffers hold.
REQUEST_BYTES = 33_554_432


def needed_bytes(source_bytes: int) -> int:
    """Returns how large an output may be, for source records of up to so many bytes.

    A reject holds its record unharmed, as JSON: six characters for each control character; and a
    prediction holds key and event id, with the key once more as that of the record.
    """
    return 7 * source_bytes + 65_536


def kafka_job(
    spec: Spec,
    spec_path: str,
    *,
    until_latest: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Job:
    """Returns the live job of a spec.

    Args:
        spec: the job spec.
        spec_path: where the operator finds it.
        until_latest: end at what is in the topic when the job starts.
        environ: where secrets are taken from.

    Raises:
        KafkaError: no servers, or a secret that is not in the environment.
    """
    source, sink = source_access(spec, environ), sink_access(spec, environ)
    ends = KafkaEnds(
        topic=spec.source.topic,
        group=group_of(spec),
        source_properties=source.java(),
        predictions=spec.sink.predictions,
        rejects=spec.sink.rejects,
        sink_properties=sink.java(),
        guarantee=spec.sink.guarantee,
        transactional_id=group_of(spec),
        transaction_timeout_ms=spec.sink.transaction_timeout_ms,
        until_latest=until_latest,
    )
    # A live topic has no end: what is held stays held, whenever and however the job is ended.
    return Job(
        name=spec.name,
        spec=spec_path,
        partitions=spec.source.partitions,
        ends=ends,
        open_end=True,
    )


def place_start(
    spec: Spec, start: Start, *, environ: Mapping[str, str] = os.environ
) -> dict[int, int]:
    """Writes where a job without state begins, as the committed offsets of its consumer group.

    Returns:
        The first offset to be read of each partition.
    """
    topic = spec.source.topic
    with Topics(source_access(spec, environ)) as topics:
        ranges = topics.log_range(topic)
        if start.timestamp_ms is not None:
            found = topics.offsets_at(topic, start.timestamp_ms)
            offsets = {p: found.get(p, end) for p, (_, end) in ranges.items()}
        else:
            which = 0 if start.text == "earliest" else 1
            offsets = {p: span[which] for p, span in ranges.items()}
        topics.begin_at(group_of(spec), topic, offsets)
    return offsets
