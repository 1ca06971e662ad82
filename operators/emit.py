"""Results to records: builds and encodes what leaves a shard.

Whole columns become Python lists at once and whole lists become JSON at once; there is no other
call for each record than making its object.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from operators.advance import Operations, Results
from operators.policy import KIND_NAMES
from operators.rejects import Rejects
from operators.state import Rows, Shard
from schemas.records import Prediction, Trigger, encode_lines, records_in

#: Records built at a time: their objects fit the processor's cache, and are reused from it.
_CHUNK = 512

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
        lines: list[bytes] = []
        keys: list[str] = []
        for at in range(0, len(which), _CHUNK):
            some_lines, some_keys = self._predictions(shard, ops, results, which[at : at + _CHUNK])
            lines.append(some_lines)
            keys += some_keys
        return Outputs(b"".join(lines), keys, rejects.lines())

    def _predictions(
        self, shard: Shard, ops: Operations, results: Results, which: Rows
    ) -> tuple[bytes, list[str]]:
        events, pool = ops.events, shard.pool
        rows = results.row[which]
        times = pool.times[rows]
        event_times = times.tolist()
        # Where no event was inserted before a newer one, these are the same objects.
        same = bool((events.times[which] == times).all())
        trigger_times = event_times if same else events.times[which].tolist()
        names = shard.keys.names
        keys = [names[slot] for slot in events.slots[which].tolist()]
        y: list[Any] = results.y[which].tolist()
        if results.y.shape[1] == 1:
            y = results.y[which, 0].tolist()
        partition, generation = shard.partition, self._generation
        columns = zip(
            keys,
            results.epoch[which].tolist(),
            results.sequence[which].tolist(),
            event_times,
            _KINDS[results.kind[which]].tolist(),
            y,
            self._digests[pool.models[rows]].tolist(),
            pool.counts[rows].tolist(),
            results.late_seen[which].tolist(),
            ops.watermark[which].tolist(),
            results.final[which].tolist(),
            events.offsets[which].tolist(),
            trigger_times,
            events.ids[which].tolist(),
            strict=True,
        )
        records = [
            Prediction(
                key,
                generation,
                epoch,
                sequence,
                time,
                kind,
                value,
                model,
                seen,
                late,
                watermark,
                final,
                Trigger(partition, offset, trigger_time, event_id),
            )
            for (
                key, epoch, sequence, time, kind, value, model, seen, late, watermark, final,
                offset, trigger_time, event_id,
            ) in columns
        ]  # fmt: skip
        if results.x is not None:
            for record, x in zip(records, results.x[which].tolist(), strict=True):
                record.features = x
        return encode_lines(records), keys
