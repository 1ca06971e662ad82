"""Prints, as JSON, the uids of the job's graph in some variants; run in a process of its own.

PyFlink takes over the process it starts a JVM in, so the tests do not do it in theirs.
"""

import json
from typing import Any

from jobs.file_tables import FileTables
from jobs.flink_settings import job_settings
from jobs.jars import find_connector
from jobs.job import FileEnds, Job, KafkaEnds
from jobs.kafka_tables import KafkaTables
from jobs.pipeline import attach, environments

FILES = FileEnds(source="/log", sinks="/out")


def kafka(name: str, guarantee: Any) -> KafkaEnds:
    """Topics and a guarantee."""
    servers = {"bootstrap.servers": "localhost:9092"}
    return KafkaEnds(
        topic=f"{name}.events",
        group=name,
        source_properties=servers,
        predictions=f"{name}.predictions",
        rejects=f"{name}.rejects",
        sink_properties=servers,
        guarantee=guarantee,
        transactional_id=name,
        transaction_timeout_ms=900_000,
    )


def uids(
    ends: FileEnds | KafkaEnds,
    parallelism: int = 1,
    sinks: tuple[str, ...] | None = None,
    open_end: bool = False,
) -> dict[str, Any]:
    """Builds the graph; returns the name of the operator under each uid, as Flink will run it."""
    tables_of = FileTables if isinstance(ends, FileEnds) else KafkaTables
    all_sinks = tables_of.sinks
    tables_of.sinks = sinks or all_sinks
    env, tables = environments(
        job_settings() | {"pipeline.jars": find_connector().as_uri()}, parallelism
    )
    attach(
        env,
        tables,
        Job(name="graph", spec="spec.toml", partitions=4, ends=ends, open_end=open_end),
    )
    tables_of.sinks = all_sinks
    nodes = {}
    for node in (
        env._j_stream_execution_environment.getStreamGraph(False).getStreamNodes().toArray()
    ):
        nodes[str(node.getTransformationUID())] = str(node.getOperatorName())
    return nodes


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "files": uids(FILES),
                "files, parallel": uids(FILES, parallelism=4, open_end=True),
                "files, one sink": uids(FILES, sinks=("predictions",)),
                "files, other order": uids(FILES, sinks=("counters", "predictions")),
                "topics": uids(kafka("a", "idempotent")),
                "topics, parallel": uids(kafka("a", "idempotent"), parallelism=4),
                "topics, one sink": uids(kafka("a", "idempotent"), sinks=("rejects",)),
                "topics, others": uids(kafka("b", "transactional")),
            }
        )
    )
