"""Results to records: builds and encodes what leaves a shard.

Whole columns become Python lists at once and whole lists become JSON at once; there is no other
call for each record than making its object.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from operators.advance import REASONS, Operations, Results
from operators.policy import KIND_NAMES, Reason
from operators.state import Rows, Shard
from schemas.records import Prediction, RecordBatch, Reject, Trigger, encode_lines, text_or_base64

#: Records built at a time: their objects fit the processor's cache, and are reused from it.
_CHUNK = 2048

_DETAIL = {
    Reason.TOO_LATE: "more than allowed_lateness_ms before the watermark",
    Reason.FORGOTTEN: "at or before the newest event of a key that a tombstone forgot",
    Reason.AFTER_TERMINAL: "the key is finished",
    Reason.DUPLICATE: "the event id is in the key's kept history",
    Reason.LATE: "before the watermark",
    Reason.NON_FINITE: "a feature, output or state after this event would not be finite",
    Reason.TOMBSTONE: "null value",
    Reason.FUTURE_TIME: "more than max_future_ms after the record's own timestamp",
    Reason.IMPLAUSIBLE_TIME: "before min_event_time_ms",
}


def detail_of(reason: Reason) -> str:
    """Says a reason in words."""
    return _DETAIL[reason]


@dataclass(slots=True)
class Outputs:
    """What leaves a shard.

    Attributes:
        predictions: JSON records without newline.
        prediction_keys: the stream key of each, which is its Kafka key.
        rejects: JSON records without newline.
    """

    predictions: list[bytes]
    prediction_keys: list[str]
    rejects: list[bytes]


class Emitter:
    """Builds the records of one job.

    Args:
        generation: the spec's generation.
        digests: the models' digests, in the order they take over.
    """

    def __init__(self, generation: int, digests: list[str]) -> None:
        self._generation = generation
        self._digests = digests

    def predictions(
        self, shard: Shard, ops: Operations, results: Results, order: Rows
    ) -> tuple[list[bytes], list[str]]:
        """Encodes the predictions among operations, in order; returns them and their keys."""
        which = order[results.kind[order] > 0]
        for kind, n in enumerate(np.bincount(results.kind[which], minlength=4).tolist()):
            shard.count(f"predictions.{KIND_NAMES[kind]}", n)
        lines: list[bytes] = []
        keys: list[str] = []
        for at in range(0, len(which), _CHUNK):
            some_lines, some_keys = self._predictions(shard, ops, results, which[at : at + _CHUNK])
            lines += some_lines
            keys += some_keys
        return lines, keys

    def _predictions(
        self, shard: Shard, ops: Operations, results: Results, which: Rows
    ) -> tuple[list[bytes], list[str]]:
        events, pool = ops.events, shard.pool
        rows = results.row[which]
        names = shard.keys.names
        keys = [names[slot] for slot in events.slots[which].tolist()]
        y: list[Any] = results.y[which].tolist()
        if results.y.shape[1] == 1:
            y = results.y[which, 0].tolist()
        partition, generation, digests = shard.partition, self._generation, self._digests
        columns = zip(
            keys,
            results.epoch[which].tolist(),
            results.sequence[which].tolist(),
            pool.times[rows].tolist(),
            results.kind[which].tolist(),
            y,
            pool.models[rows].tolist(),
            pool.counts[rows].tolist(),
            results.late_seen[which].tolist(),
            ops.watermark[which].tolist(),
            results.final[which].tolist(),
            events.offsets[which].tolist(),
            events.times[which].tolist(),
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
                KIND_NAMES[kind],
                value,
                digests[model],
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

    def rejects_of(
        self,
        shard: Shard,
        batch: RecordBatch | None,
        ops: Operations,
        results: Results,
        order: Rows,
        update_late: bool,
    ) -> list[Reject]:
        """Builds the rejects among operations; under `update` also for late events applied."""
        refused = results.reason[order] >= 0
        if update_late:
            refused |= ops.late[order] & results.applied[order]
        events = ops.events
        rejects = []
        for i in order[refused].tolist():
            applied = bool(results.applied[i])
            reason = Reason.LATE if applied else REASONS[results.reason[i]]
            at = int(ops.position[i])
            # A record that was held is kept with its operation; all others are still in the batch.
            if batch is None or ops.released[i]:
                key, value = events.kafka_keys[i], events.values[i]
            else:
                key, value = batch.keys[at], batch.values[at]
            rejects.append(
                self.reject(
                    shard,
                    int(events.offsets[i]),
                    int(events.timestamps[i]),
                    key,
                    value,
                    reason,
                    detail_of(reason),
                    lateness=int(ops.lateness[i]),
                    applied=applied,
                )
            )
        return rejects

    def reject(
        self,
        shard: Shard,
        offset: int,
        timestamp: int,
        kafka_key: bytes | None,
        value: bytes | None,
        reason: Reason,
        detail: str,
        *,
        lateness: int | None = None,
        applied: bool = False,
    ) -> Reject:
        """Builds one reject, and counts it."""
        shard.count(f"rejects.{reason}" + (".applied" if applied else ""))
        key, key_base64 = text_or_base64(kafka_key)
        text, text_base64 = text_or_base64(value)
        return Reject(
            partition=shard.partition,
            offset=offset,
            timestamp=timestamp,
            reason=str(reason),
            detail=detail,
            lateness_ms=lateness,
            applied=applied,
            key=key,
            key_base64=key_base64,
            value=text,
            value_base64=text_base64,
        )
