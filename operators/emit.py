"""Results to records: builds and encodes what leaves a shard.

Whole columns become Python lists at once and whole lists become JSON at once; there is no other
call for each record than making its object.
"""

from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Rows
from operators.operations import Operations, Results
from operators.policy import KIND_NAMES
from operators.rejects import Rejects
from operators.state import Shard
from schemas.records import Prediction, Trigger, encode_lines, records_in

#: Records built at a time: their objects fit the processor's cache, and are reused from it.
_CHUNK = 1024

_KINDS = np.array(KIND_NAMES, object)


@dataclass(slots=True)
class Outputs:
    """What leaves a shard, as JSON Lines: each record ends in a newline.

    Attributes:
        prediction_lines: the predictions.
        prediction_keys: the stream key of each, which is its Kafka key.
        reject_lines: the rejects.
    """

    prediction_lines: bytes
    prediction_keys: list[str]
    reject_lines: bytes

    @classmethod
    def none(cls) -> "Outputs":
        """Returns outputs without a record."""
        return cls(b"", [], b"")

    @property
    def predictions(self) -> list[bytes]:
        """The predictions one by one, without newlines."""
        return records_in(self.prediction_lines)

    @property
    def rejects(self) -> list[bytes]:
        """The rejects one by one, without newlines."""
        return records_in(self.reject_lines)


class Emitter:
    """Builds the records of one job.

    Args:
        generation: the spec's generation.
        digests: the models' digests, in the order they take over.
    """

    def __init__(self, generation: int, digests: list[str]) -> None:
        self._generation = generation
        self._digests = np.array(digests, object)

    def outputs(
        self,
        shard: Shard,
        ops: Operations,
        results: Results,
        order: Rows,
        rejects: Rejects,
    ) -> Outputs:
        """Encodes the predictions among operations, in order, and all rejects."""
        which = order[results.kind[order] > 0]
        for kind, n in enumerate(np.bincount(results.kind[which], minlength=4).tolist()):
            shard.count(f"predictions.{KIND_NAMES[kind]}", n)
        columns = self._columns(shard, ops, results, which)
        lines = []
        for at in range(0, len(which), _CHUNK):
            # One call makes them all; the arrays become objects just before.
            part = [column[at : at + _CHUNK] for column in columns]
            lines.append(encode_lines(self._records(shard.partition, part)))
        return Outputs(b"".join(lines), columns[0].tolist(), rejects.lines())

    def _columns(
        self, shard: Shard, ops: Operations, results: Results, which: Rows
    ) -> list[NDArray[Any]]:
        """Gathers the columns of predictions, in the order that `_records` takes them."""
        events, pool, rows = ops.events, shard.pool, results.row[which]
        y = results.y[which]
        columns = [
            shard.keys.names[events.slots[which]],
            results.epoch[which],
            results.sequence[which],
            pool.times[rows],
            _KINDS[results.kind[which]],
            y[:, 0] if y.shape[1] == 1 else y,
            self._digests[pool.models[rows]],
            pool.counts[rows],
            results.late_seen[which],
            ops.watermark[which],
            results.final[which],
            events.offsets[which],
            events.times[which],
            events.ids[which],
        ]
        if results.x is not None:
            columns.append(results.x[which])
        return columns

    def _records(self, partition: int, columns: list[NDArray[Any]]) -> list[Prediction]:
        """Builds predictions from columns."""
        times, trigger_times = columns[3], columns[12]
        *lists, offsets, _, ids = [column.tolist() for column in columns[:14]]
        # Where no event was inserted before a newer one, these are the same objects.
        same = (times == trigger_times).all()
        triggered = lists[3] if same else trigger_times.tolist()
        key, *rest = lists
        triggers = map(Trigger, repeat(partition), offsets, triggered, ids)
        features = (column.tolist() for column in columns[14:])
        return list(map(Prediction, key, repeat(self._generation), *rest, triggers, *features))
