"""The ends of a job over live topics: a Kafka source and Kafka sinks, as SQL tables.

Records are bytes on both ends; nothing here looks into them.

Dangers. A source that finds its offset gone from the log must stop, not go on at the next one it
finds: the group's committed offsets are the only start, and the reset is `none`. Transactional ids
must be the job's own: another producer with the same ids ends this one's transactions. And a
broker refuses a transaction timeout above its own maximum only when the sink starts.
"""

from pyflink.table.udf import UserDefinedScalarFunctionWrapper

from jobs.job import PREDICTIONS, REJECTS, KafkaEnds
from jobs.kafka_job import REQUEST_BYTES
from jobs.pack import pack_records

#: How often the source looks for new partitions; one that the spec does not know stops the job.
_DISCOVERY = "60 s"
#: A sink's client settings that are not the client's own: many records in a request, at once.
_SINK_DEFAULTS = {
    "linger.ms": "1",
    "batch.size": "262144",
    # The topics have bounds of their own, by `kafka_job.needed_bytes`.
    "max.request.size": str(REQUEST_BYTES),
}


class KafkaTables:
    """Tables over topics.

    Args:
        ends: which topics, and how.
    """

    #: The sinks, each of which is also the field of the operator's output that it takes.
    sinks: tuple[str, ...] = (PREDICTIONS, REJECTS)
    #: Whether each prediction leaves the operator on its own, with its key.
    keyed = True
    #: What `pack` is given of the source.
    packed_columns = "`partition`, `offset`, `timestamp`, record_key, record_value"

    def __init__(self, ends: KafkaEnds) -> None:
        self._ends = ends
        self.lines_per_row = 1

    def source(self, table: str) -> str:
        """The statement that creates the source table."""
        ends = self._ends
        options = {
            "connector": "kafka",
            "topic": ends.topic,
            "properties.group.id": ends.group,
            "scan.startup.mode": "group-offsets",
            "scan.topic-partition-discovery.interval": _DISCOVERY,
            "key.format": "raw",
            "key.fields": "record_key",
            "value.format": "raw",
            "value.fields-include": "EXCEPT_KEY",
            **_behind_properties(ends.source_properties),
            "properties.auto.offset.reset": "none",
        }
        if ends.until_latest:
            options["scan.bounded.mode"] = "latest-offset"
        return (
            f"CREATE TEMPORARY TABLE {table} (record_key BYTES, record_value BYTES, "
            "`partition` INT METADATA VIRTUAL, `offset` BIGINT METADATA VIRTUAL, "
            "`timestamp` TIMESTAMP_LTZ(3) METADATA VIRTUAL) "
            f"WITH ({_listed(options)})"
        )

    def pack(self, keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
        """The function that packs rows of the source."""
        return pack_records(keys)

    def sink(self, name: str) -> str:
        """The statement that creates the table of a sink."""
        ends = self._ends
        options = {
            "connector": "kafka",
            "topic": {PREDICTIONS: ends.predictions, REJECTS: ends.rejects}[name],
            **_behind_properties(_SINK_DEFAULTS | ends.sink_properties),
        }
        if ends.guarantee == "transactional":
            options |= {
                "sink.delivery-guarantee": "exactly-once",
                "sink.transactional-id-prefix": f"{ends.transactional_id}-{name}",
                "properties.transaction.timeout.ms": str(ends.transaction_timeout_ms),
            }
        else:
            options["sink.delivery-guarantee"] = "at-least-once"
        if name == PREDICTIONS:
            columns = "(record_key BYTES, record BYTES)"
            options |= {
                "key.format": "raw",
                "key.fields": "record_key",
                "value.format": "raw",
                "value.fields-include": "EXCEPT_KEY",
            }
        else:
            columns = "(record BYTES)"
            options["format"] = "raw"
        return f"CREATE TEMPORARY TABLE {name} {columns} WITH ({_listed(options)})"

    def columns(self, name: str) -> str:
        """What is selected of an unnested `record` for a sink."""
        if name != PREDICTIONS:
            return "record"
        return "record[1], record[2]"


def _behind_properties(settings: dict[str, str]) -> dict[str, str]:
    return {f"properties.{name}": value for name, value in settings.items()}


def _listed(options: dict[str, str]) -> str:
    quoted = (
        (name.replace("'", "''"), value.replace("'", "''")) for name, value in options.items()
    )
    return ", ".join(f"'{name}' = '{value}'" for name, value in quoted)
