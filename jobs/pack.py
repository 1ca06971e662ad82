"""Stage 2, pack: each Arrow batch of records becomes one row for each partition in it.

A pandas UDF: the engine hands over columns of thousands of records at once, which is what makes
the job cheap. No decision is taken here, records are only regrouped into bytes. A scalar UDF must
return as many rows as it was given; the rest are NULL and are filtered away by the next stage.
"""

import numpy as np
import pandas as pd
from pyflink.table import DataTypes
from pyflink.table.udf import ScalarFunction, UserDefinedScalarFunctionWrapper, udf

from jobs.log_files import decode_lines
from schemas.records import RecordBatch

_ROW = DataTypes.ROW(
    [DataTypes.FIELD("shard_key", DataTypes.INT()), DataTypes.FIELD("block", DataTypes.BYTES())]
)


class PartitionsChangedError(RuntimeError):
    """The topic has a partition that the spec does not know: keys have moved, states have not."""


class PackLines(ScalarFunction):  # type: ignore[misc]
    """Packs the lines of a recorded log.

    Args:
        shard_keys: the shard key of each partition.
    """

    def __init__(self, shard_keys: tuple[int, ...]) -> None:
        self._shard_keys = shard_keys

    def eval(self, lines: "pd.Series[bytes]") -> pd.DataFrame:
        """Returns rows (shard key, packed batch), NULL but for the first few."""
        return _rows(decode_lines(lines.tolist()), self._shard_keys, len(lines))


class PackRecords(ScalarFunction):  # type: ignore[misc]
    """Packs records of a topic.

    Args:
        shard_keys: the shard key of each partition.
    """

    def __init__(self, shard_keys: tuple[int, ...]) -> None:
        self._shard_keys = shard_keys

    def eval(
        self,
        partitions: "pd.Series[int]",
        offsets: "pd.Series[int]",
        timestamps: "pd.Series[pd.Timestamp]",
        keys: "pd.Series[bytes]",
        values: "pd.Series[bytes]",
    ) -> pd.DataFrame:
        """Returns rows (shard key, packed batch), NULL but for the first few."""
        numbers = partitions.to_numpy(np.int64)
        columns = (
            offsets.to_numpy(np.int64),
            timestamps.to_numpy("datetime64[ms]").view(np.int64),
            keys.to_numpy(),
            values.to_numpy(),
        )
        batches = []
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            at, times, names, bodies = (column[rows] for column in columns)
            batches.append(RecordBatch(number, at, times, names.tolist(), bodies.tolist()))
        return _rows(batches, self._shard_keys, len(numbers))


def _rows(batches: list[RecordBatch], shard_keys: tuple[int, ...], n: int) -> pd.DataFrame:
    """One row for each batch, filled up with NULL to the rows that were given."""
    keys: list[int | None] = [None] * n
    blocks: list[bytes | None] = [None] * n
    for i, batch in enumerate(batches):
        if batch.partition >= len(shard_keys):
            raise PartitionsChangedError(
                f"the source has a partition {batch.partition}\n"
                f"  found:  at least {batch.partition + 1} partitions\n"
                f"  needed: the {len(shard_keys)} of source.partitions, which the state is laid "
                "out by\n"
                "  remedy: republish the log into a new topic, and rerun it under a new generation"
            )
        keys[i] = shard_keys[batch.partition]
        blocks[i] = batch.to_bytes()
    # Of type object, because a NULL would make floats of the keys.
    return pd.DataFrame(
        {"shard_key": pd.Series(keys, dtype=object), "block": pd.Series(blocks, dtype=object)}
    )


def pack_lines(shard_keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
    """Returns the SQL function over the one column of a partition file."""
    return udf(PackLines(shard_keys), result_type=_ROW, func_type="pandas")


def pack_records(shard_keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
    """Returns the SQL function over partition, offset, timestamp, key and value of a topic."""
    return udf(PackRecords(shard_keys), result_type=_ROW, func_type="pandas")
