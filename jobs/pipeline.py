"""The scoring job, read as its diagram.

    1 source   records in order within each partition: a recorded log's files, or a Kafka topic
    2 pack     each Arrow batch becomes one row for each partition in it
    3 key_by   the partition's shard key
    4 score    the keyed operator: state, policy, features, model
    5 unnest   one row of outputs becomes one row for each element
    6 sinks    predictions, rejects, and of a recorded log the counters told at the end

Stages 1, 2, 5 and 6 are SQL, which runs in the JVM; 4 is Python. Two round trips into Python for a
whole batch, and none for a record. What differs between files and topics is in the tables of stages
1 and 6 alone.
"""

from typing import Any, Protocol

from pyflink.common import Configuration, Types
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from pyflink.table.udf import UserDefinedScalarFunctionWrapper

from jobs.file_tables import FileTables
from jobs.job import FileEnds, Job
from jobs.kafka_tables import KafkaTables
from jobs.operator import ScoreShard, output_type
from jobs.shard_keys import max_parallelism, shard_keys
from jobs.uids import ends_of, set_uids


class Tables(Protocol):
    """The SQL of a job's ends."""

    sinks: tuple[str, ...]
    keyed: bool
    lines_per_row: int
    packed_columns: str

    def source(self, table: str) -> str:
        """The statement that creates the source table."""

    def pack(self, keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
        """The function that packs rows of the source."""

    def sink(self, name: str) -> str:
        """The statement that creates the table of a sink."""

    def columns(self, name: str) -> str:
        """What is selected of an unnested `record` for a sink."""


def attach(env: StreamExecutionEnvironment, tables: StreamTableEnvironment, job: Job) -> None:
    """Attaches the job to the environment, ready to be executed.

    Args:
        env: its parallelism decides how shards are spread.
        tables: the table environment of `env`.
        job: what to score.
    """
    env.set_max_parallelism(max_parallelism(job.partitions))
    keys = shard_keys(job.partitions)
    ends: Tables = FileTables(job.ends) if isinstance(job.ends, FileEnds) else KafkaTables(job.ends)

    tables.execute_sql(ends.source("records"))
    packed = _pack(tables, ends, keys)
    keyed = _key_by(packed)
    scored = (
        keyed.process(
            ScoreShard(
                job.spec,
                keys,
                open_end=job.open_end,
                keyed=ends.keyed,
                lines_per_row=ends.lines_per_row,
            ),
            output_type(keyed=ends.keyed),
        )
        .uid("score")
        .name("score")
    )
    set_uids("read", [scored._j_data_stream.getTransformation()])
    tables.create_temporary_view("scored", scored)
    for sink in ends.sinks:
        before = ends_of(env)
        _unnest_into(tables, ends, sink)
        set_uids(sink, [end for key, end in ends_of(env).items() if key not in before])


def _pack(tables: StreamTableEnvironment, ends: Tables, keys: tuple[int, ...]) -> DataStream:
    """2: rows (shard key, packed batch); what is NULL was only there to match the input's rows."""
    tables.create_temporary_function("pack", ends.pack(keys))
    return tables.to_data_stream(
        tables.sql_query(
            "SELECT packed.shard_key, packed.block "  # noqa: S608 (our own names)
            f"FROM (SELECT pack({ends.packed_columns}) AS packed FROM records) "
            "WHERE packed.block IS NOT NULL"
        )
    )


def _key_by(packed: DataStream) -> KeyedStream:
    """3: keyed by the first field.

    `DataStream.key_by` would send every packed batch through one more Python operator to ask for
    its key. The row already has the shape that operator makes, (key, element), so Flink's own
    selector of it is enough.
    """
    block = Types.PRIMITIVE_ARRAY(Types.BYTE())
    pair = Types.ROW_NAMED(["key", "element"], [Types.INT(), block])
    # SQL describes the row by its logical type; the Python operator wants a plain row type.
    packed._j_data_stream.getTransformation().setOutputType(pair.get_java_type_info())
    selector = get_gateway().jvm.KeyByKeySelector()
    key_type = Types.ROW([Types.INT()]).get_java_type_info()
    return KeyedStream(packed._j_data_stream.keyBy(selector, key_type), block, packed)


def _unnest_into(tables: StreamTableEnvironment, ends: Tables, sink: str) -> None:
    """5 and 6: the elements of the sink's field, each a record of its table.

    Attached one by one, all sinks still share what comes before: `scored` is one stream.
    """
    tables.execute_sql(ends.sink(sink))
    statement = tables.create_statement_set()
    statement.add_insert_sql(
        f"INSERT INTO {sink} SELECT {ends.columns(sink)} FROM scored "  # noqa: S608 (our names)
        f"CROSS JOIN UNNEST(scored.{sink}) AS unnested (record)"
    )
    statement.attach_as_datastream()


def environments(
    settings: dict[str, str], parallelism: int | None = None, *, overridable: bool = False
) -> tuple[Any, Any]:
    """Returns the stream and the table environment under these settings.

    Args:
        settings: Flink settings; `execution.target` decides where it runs: embedded, or where this
            process was started by Flink, unless it says `remote`.
        parallelism: subtasks of each operator; None for what Flink is configured to.
        overridable: what Flink is configured to wins over these settings.
    """
    if overridable:
        configured = StreamExecutionEnvironment.get_execution_environment()
        known = configured._j_stream_execution_environment.getConfiguration().toMap()
        settings = {name: value for name, value in settings.items() if name not in known}
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    if settings.get("execution.target") == "remote":
        # `get_execution_environment` would be a local one whatever the target.
        flink = get_gateway().jvm.org.apache.flink.streaming.api.environment
        env = StreamExecutionEnvironment(
            flink.StreamExecutionEnvironment(configuration._j_configuration)
        )
    else:
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
    if parallelism is not None:
        env.set_parallelism(parallelism)
    return env, StreamTableEnvironment.create(env)
