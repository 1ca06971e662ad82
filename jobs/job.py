"""What a job is, as plain data: what crosses to the process that builds it, before any engine.

A job reads and writes either the files of a recorded log or live Kafka topics; everything between
is the same.
"""

from typing import Literal

import msgspec

#: What leaves the scorer, each to its own sink.
PREDICTIONS, REJECTS, COUNTERS = "predictions", "rejects", "counters"


class FileEnds(msgspec.Struct, frozen=True, kw_only=True, tag="files"):
    """A recorded log in, files out.

    Attributes:
        source: directory of the partition files.
        sinks: directory in which each sink makes a directory of its name.
        lines_per_row: records in one element of an output, 0 for all of a batch.
    """

    source: str
    sinks: str
    lines_per_row: int = 0


class KafkaEnds(msgspec.Struct, frozen=True, kw_only=True, tag="kafka"):
    """Topics in, topics out.

    Attributes:
        topic: the source.
        group: the consumer group whose committed offsets a start without state begins at.
        source_properties: client settings of the source, servers included.
        predictions: topic of the predictions.
        rejects: topic of the rejects.
        sink_properties: client settings of the sinks, servers included.
        guarantee: what a consumer may see after a failure.
        transactional_id: what the ids of transactions begin with, before the sink's name.
        transaction_timeout_ms: how long the broker keeps a transaction that nobody ends.
        until_latest: end at what is in the topic when the job starts.
    """

    topic: str
    group: str
    source_properties: dict[str, str]
    predictions: str
    rejects: str
    sink_properties: dict[str, str]
    guarantee: Literal["idempotent", "transactional"]
    transactional_id: str
    transaction_timeout_ms: int
    until_latest: bool = False

    def __repr__(self) -> str:
        return f"KafkaEnds({self.topic} -> {self.predictions}, {self.rejects})"  # no secrets


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One scoring job.

    Attributes:
        name: how Flink lists it.
        spec: path of the job spec where the operator runs.
        partitions: partitions of the topic.
        ends: what it reads and writes.
        open_end: at the end of the input, held events stay held.
    """

    name: str
    spec: str
    partitions: int
    ends: FileEnds | KafkaEnds
    open_end: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A job and how to run it, as it is handed to the process that Flink is embedded in.

    Attributes:
        job: the job.
        parallelism: subtasks of each operator.
        settings: Flink settings.
        wait: tell the progress and wait for the end; else submit it and leave.
    """

    job: Job
    parallelism: int
    settings: dict[str, str]
    wait: bool = True
