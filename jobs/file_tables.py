"""The ends of a job over a recorded log: partition files in, JSON Lines out, as SQL tables."""

from pathlib import Path

from pyflink.table.udf import UserDefinedScalarFunctionWrapper

from jobs.job import COUNTERS, PREDICTIONS, REJECTS, FileEnds
from jobs.pack import pack_lines


class FileTables:
    """Tables over files.

    Args:
        ends: where they lie.
    """

    #: The sinks, each of which is also the field of the operator's output that it takes.
    sinks: tuple[str, ...] = (PREDICTIONS, REJECTS, COUNTERS)
    #: Whether each prediction leaves the operator on its own, with its key.
    keyed = False
    #: What `pack` is given of the source.
    packed_columns = "line"

    def __init__(self, ends: FileEnds) -> None:
        self._ends = ends
        self.lines_per_row = ends.lines_per_row

    def source(self, table: str) -> str:
        """The statement that creates the source table."""
        files = _files(Path(self._ends.source))
        return f"CREATE TEMPORARY TABLE {table} (line BYTES) WITH ({files}, 'format' = 'raw')"

    def pack(self, keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
        """The function that packs rows of the source."""
        return pack_lines(keys)

    def sink(self, name: str) -> str:
        """The statement that creates the table of a sink."""
        files = _files(Path(self._ends.sinks) / name)
        return f"CREATE TEMPORARY TABLE {name} (record BYTES) WITH ({files}, 'format' = 'raw')"

    def columns(self, name: str) -> str:
        """What is selected of an unnested `record` for a sink."""
        return "record"


def _files(folder: Path) -> str:
    quoted = folder.absolute().as_uri().replace("'", "''")
    return f"'connector' = 'filesystem', 'path' = '{quoted}'"
