"""The scoring job, read as its diagram.

    1 source   the lines of the partition files, in order within each partition
    2 pack     each Arrow batch becomes one row for each partition in it
    3 key_by   the partition's shard key
    4 score    the keyed operator: state, policy, features, model
    5 unnest   one row of outputs becomes one row for each element
    6 sinks    predictions, rejects, and the counters told at the end

Stages 1, 2, 5 and 6 are SQL, which runs in the JVM; 4 is Python. Two round trips into Python for a
whole batch, and none for a record.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Types
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment, Table

from jobs.flink_settings import FILE_LINES_PER_ROW
from jobs.operator import ScoreShard, output_type
from jobs.pack import pack_lines
from jobs.shard_keys import max_parallelism, shard_keys
from jobs.uids import ends_of, set_uids

#: The sinks, each of which is also the field of the operator's output that it takes.
SINKS = ("predictions", "rejects", "counters")


@dataclass(frozen=True)
class LogJob:
    """The scoring of a recorded log.

    Attributes:
        spec: path of the job spec.
        partitions: partitions of the topic that was recorded.
        source: directory of the partition files.
        sinks: directory in which each sink makes a directory of its name.
        open_end: at the end of the log, held events stay held.
        lines_per_row: records in one element of an output, 0 for all of a batch.
    """

    spec: Path
    partitions: int
    source: Path
    sinks: Path
    open_end: bool = False
    lines_per_row: int = FILE_LINES_PER_ROW


def attach(env: StreamExecutionEnvironment, tables: StreamTableEnvironment, job: LogJob) -> None:
    """Attaches the job to the environment, ready to be executed.

    Args:
        env: its parallelism decides how shards are spread.
        tables: the table environment of `env`.
        job: what to score.
    """
    env.set_max_parallelism(max_parallelism(job.partitions))
    keys = shard_keys(job.partitions)

    lines = _source(tables, job.source)
    packed = _pack(tables, lines, keys)
    keyed = _key_by(packed)
    scored = (
        keyed.process(
            ScoreShard(job.spec, keys, open_end=job.open_end, lines_per_row=job.lines_per_row),
            output_type(),
        )
        .uid("score")
        .name("score")
    )
    set_uids("read", [scored._j_data_stream.getTransformation()])
    tables.create_temporary_view("scored", scored)
    for sink in SINKS:
        before = ends_of(env)
        _unnest_into(tables, sink, job.sinks)
        set_uids(sink, [end for key, end in ends_of(env).items() if key not in before])


def _source(tables: StreamTableEnvironment, folder: Path) -> Table:
    """1: one column, the line."""
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE log_lines (line BYTES) WITH ({_files(folder)}, 'format' = 'raw')"
    )
    return tables.from_path("log_lines")


def _pack(tables: StreamTableEnvironment, lines: Table, keys: tuple[int, ...]) -> DataStream:
    """2: rows (shard key, packed batch); what is NULL was only there to match the input's rows."""
    tables.create_temporary_function("pack_lines", pack_lines(keys))
    tables.create_temporary_view("read_lines", lines)
    return tables.to_data_stream(
        tables.sql_query(
            "SELECT packed.shard_key, packed.block "
            "FROM (SELECT pack_lines(line) AS packed FROM read_lines) "
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


def _unnest_into(tables: StreamTableEnvironment, sink: str, folder: Path) -> None:
    """5 and 6: the elements of the sink's field, each a record of its table.

    Attached one by one, all sinks still share what comes before: `scored` is one stream.
    """
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE {sink} (record BYTES) "
        f"WITH ({_files(folder / sink)}, 'format' = 'raw')"
    )
    statement = tables.create_statement_set()
    statement.add_insert_sql(
        f"INSERT INTO {sink} SELECT record FROM scored "  # noqa: S608 (our own names)
        f"CROSS JOIN UNNEST(scored.{sink}) AS unnested (record)"
    )
    statement.attach_as_datastream()


def _files(folder: Path) -> str:
    quoted = folder.absolute().as_uri().replace("'", "''")
    return f"'connector' = 'filesystem', 'path' = '{quoted}'"


def environments(settings: dict[str, str], parallelism: int) -> tuple[Any, Any]:
    """Returns the stream and the table environment under these settings."""
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(parallelism)
    return env, StreamTableEnvironment.create(env)
