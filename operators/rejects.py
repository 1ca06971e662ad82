"""Rejects: records that were not applied as on-time events, collected and encoded.

They are collected as plain tuples, whole columns at once where a rule refuses many, and become
records only at the end of a batch: under `drop`, one event in twenty may be one.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec import UNSET

from operators.columnar import Rows
from operators.operations import REASONS, Operations, Results
from operators.policy import Int64s, Reason
from operators.state import Shard
from schemas.records import RecordBatch, Reject, encode_lines, text_or_base64

DETAILS = {
    Reason.TOMBSTONE: "null value",
    Reason.FUTURE_TIME: "more than max_future_ms after the record's own timestamp",
    Reason.IMPLAUSIBLE_TIME: "before min_event_time_ms",
    Reason.TOO_LATE: "more than allowed_lateness_ms before the watermark",
    Reason.FORGOTTEN: "at or before the newest event of a key that a tombstone forgot",
    Reason.AFTER_TERMINAL: "the key is finished",
    Reason.DUPLICATE: "the event id is in the key's kept history",
    Reason.LATE: "before the watermark",
    Reason.NON_FINITE: "a feature, output or state after this event would not be finite",
}


class Rejects:
    """The rejects of one batch.

    Args:
        shard: the shard, which counts them.
        batch: the batch that records are numbered in.
    """

    def __init__(self, shard: Shard, batch: RecordBatch) -> None:
        self._shard = shard
        self._batch = batch
        # (record, offset, timestamp, key, value, reason, detail, lateness, applied)
        self._found: list[tuple[Any, ...]] = []

    def add(self, record: int, reason: Reason, detail: str = "", applied: bool = False) -> None:
        """Rejects a record before the watermark is compared."""
        batch = self._batch
        self._found.append(
            (
                record,
                int(batch.offsets[record]),
                int(batch.timestamps[record]),
                batch.keys[record],
                batch.values[record],
                reason,
                detail or DETAILS[reason],
                None,
                applied,
            )
        )

    def add_many(self, records: Rows, reason: Reason, lateness: Int64s) -> None:
        """Rejects records for one reason.

        Args:
            records: record numbers, shape (n,).
            reason: the reason.
            lateness: milliseconds behind the watermark, shape (n,).
        """
        batch = self._batch
        chosen = records.tolist()
        self._found.extend(
            zip(
                chosen,
                batch.offsets[records].tolist(),
                batch.timestamps[records].tolist(),
                [batch.keys[i] for i in chosen],
                [batch.values[i] for i in chosen],
                repeat(reason),
                repeat(DETAILS[reason]),
                lateness.tolist(),
                repeat(False),
            )
        )

    def add_operations(self, ops: Operations, results: Results, update: bool) -> None:
        """Rejects what operations refused; under `update` also tells the late events applied."""
        refused = results.reason >= 0
        if update:
            refused |= ops.late & results.applied
        events, batch = ops.events, self._batch
        for i in np.flatnonzero(refused).tolist():
            applied = bool(results.applied[i])
            reason = Reason.LATE if applied else REASONS[results.reason[i]]
            record = int(ops.position[i])
            # A record that was held is kept with its operation; all others are in the batch.
            if ops.released[i]:
                key, value = events.kafka_keys[i], events.values[i]
            else:
                key, value = batch.keys[record], batch.values[record]
            self._found.append(
                (
                    record,
                    int(events.offsets[i]),
                    int(events.timestamps[i]),
                    key,
                    value,
                    reason,
                    DETAILS[reason],
                    int(ops.lateness[i]),
                    applied,
                )
            )

    def lines(self) -> bytes:
        """Encodes all rejects, in the order of the records that caused them; counts them."""
        if not self._found:
            return b""
        self._found.sort(key=itemgetter(0, 1))
        columns = list(zip(*self._found, strict=True))
        _, offsets, timestamps, keys, values, reasons, details, lateness, applied = columns
        for (reason, late), n in Counter(zip(reasons, applied, strict=True)).items():
            self._shard.count(f"rejects.{reason}" + (".applied" if late else ""), n)
        rejects = map(
            Reject,
            repeat(self._shard.partition),
            offsets,
            timestamps,
            *_texts(keys),
            reasons,
            details,
            lateness,
            applied,
            *_texts(values),
        )
        return encode_lines(list(rejects))


def _texts(items: tuple[bytes | None, ...]) -> tuple[Iterable[Any], Iterable[Any]]:
    """Returns texts and base64 texts of bytes, each `UNSET` where the other stands."""
    try:
        return [None if item is None else item.decode() for item in items], repeat(UNSET)
    except UnicodeDecodeError:
        pairs = [text_or_base64(item) for item in items]
        return [text for text, _ in pairs], [encoded for _, encoded in pairs]
