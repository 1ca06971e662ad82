"""Stage 2, pack: each Arrow batch of records becomes one row for each partition in it.

A pandas UDF: the engine hands over columns of thousands of records at once, which is what makes
the job cheap. No decision is taken here, records are only regrouped into bytes. A scalar UDF must
return as many rows as it was given; the rest are NULL and are filtered away by the next stage.
"""

import pandas as pd
from pyflink.table import DataTypes
from pyflink.table.udf import ScalarFunction, UserDefinedScalarFunctionWrapper, udf

from jobs.log_files import decode_lines

_ROW = DataTypes.ROW(
    [DataTypes.FIELD("shard_key", DataTypes.INT()), DataTypes.FIELD("block", DataTypes.BYTES())]
)


class PackLines(ScalarFunction):  # type: ignore[misc]
    """Packs the lines of a recorded log.

    Args:
        shard_keys: the shard key of each partition.
    """

    def __init__(self, shard_keys: tuple[int, ...]) -> None:
        self._shard_keys = shard_keys

    def eval(self, lines: "pd.Series[bytes]") -> pd.DataFrame:
        """Returns rows (shard key, packed batch), NULL but for the first few."""
        keys: list[int | None] = [None] * len(lines)
        blocks: list[bytes | None] = [None] * len(lines)
        for i, batch in enumerate(decode_lines(lines.tolist())):
            keys[i] = self._shard_keys[batch.partition]
            blocks[i] = batch.to_bytes()
        # Of type object, because a NULL would make floats of the keys.
        return pd.DataFrame(
            {"shard_key": pd.Series(keys, dtype=object), "block": pd.Series(blocks, dtype=object)}
        )


def pack_lines(shard_keys: tuple[int, ...]) -> UserDefinedScalarFunctionWrapper:
    """Returns the SQL function over the one column of a partition file."""
    return udf(PackLines(shard_keys), result_type=_ROW, func_type="pandas")
