"""What `jobs.flink_main` is, for a job that only copies: same ends, same settings, no Python.

Whatever the scoring job does between reading and writing is what this leaves out.
"""

from typing import Any

from jobs import flink_main, pipeline
from jobs.job import PREDICTIONS, Job, KafkaEnds
from jobs.kafka_tables import KafkaTables


def attach(_env: Any, tables: Any, job: Job) -> None:
    """Attaches a job that writes every record, with its key, to the topic of predictions."""
    assert isinstance(job.ends, KafkaEnds)
    ends = KafkaTables(job.ends)
    tables.execute_sql(ends.source("records"))
    tables.execute_sql(ends.sink(PREDICTIONS))
    statement = tables.create_statement_set()
    statement.add_insert_sql(
        f"INSERT INTO {PREDICTIONS} "  # noqa: S608 (our own names)
        "SELECT record_key, record_value FROM records"
    )
    statement.attach_as_datastream()


if __name__ == "__main__":
    pipeline.attach = attach
    flink_main.main()
