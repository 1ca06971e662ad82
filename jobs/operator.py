"""Stage 4, score: the keyed operator that holds a shard's state and steps it.

It decides nothing: a packed batch goes through `Scorer.step`, and what changed goes back into
Flink's keyed state, which is the truth. A shard is read from there once, when the operator first
meets it, and lives in memory as arrays from then on; a `get` for each key would be a round trip
each. The counters of a shard are kept there too, so that they still add up after a failure.

Dangers. An exception here is a restart loop, so bad data must never raise: the scorer turns it into
rejects. A `Types` object held by the function cannot be pickled, so state is described in `open`.
The module is imported by name in the Python workers.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

from jobs.job import COUNTERS, PREDICTIONS, REJECTS
from operators.scorer import Outputs, Scorer
from operators.state import Shard
from schemas.records import RecordBatch, records_in
from schemas.spec import load_spec

#: The event-time timer at which Flink's watermark arrives only when the input has ended.
END_OF_INPUT = 2**63 - 1
#: The name of the counter of records taken, in Flink's metrics.
RECORDS_METRIC = "records_scored"

_LOG = logging.getLogger(__name__)


class ScoreShard(KeyedProcessFunction):  # type: ignore[misc]
    """Scores the packed batches of the shards that Flink gives this subtask.

    Args:
        spec_path: the job spec; it is loaded where the operator runs.
        shard_keys: the shard key of each partition.
        open_end: the input is a slice of a log: at its end, held events stay held.
        keyed: each prediction leaves on its own, with its stream key in front, for a Kafka topic.
        lines_per_row: records joined into one element of the output, newlines between them; 0 for
            all of a batch. A file is lines either way and takes many at once cheaply; a Kafka topic
            needs 1.
    """

    def __init__(
        self,
        spec_path: str,
        shard_keys: tuple[int, ...],
        *,
        open_end: bool = False,
        keyed: bool = False,
        lines_per_row: int = 1,
    ) -> None:
        self._spec_path = spec_path
        self._keyed = keyed
        self._partitions = {key: partition for partition, key in enumerate(shard_keys)}
        self._open_end = open_end
        self._lines_per_row = lines_per_row

    def open(self, runtime_context: RuntimeContext) -> None:
        """Loads the models and names the state, before any record."""
        self._scorer = Scorer(load_spec(Path(self._spec_path)))
        self._shards: dict[int, Shard] = {}
        a_bytes = Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._keys = runtime_context.get_map_state(
            MapStateDescriptor("keys", Types.STRING(), a_bytes)
        )
        self._meta = runtime_context.get_state(ValueStateDescriptor("shard", a_bytes))
        self._counters = runtime_context.get_state(ValueStateDescriptor("counters", a_bytes))
        self._records = runtime_context.get_metrics_group().counter(RECORDS_METRIC)

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        """Steps the shard by one packed batch."""
        batch = RecordBatch.from_bytes(value)
        shard = self._shards.get(batch.partition)
        if shard is None:
            shard = self._meet(batch.partition)
            ctx.timer_service().register_event_time_timer(END_OF_INPUT)
        outputs = self._scorer.step(shard, batch)
        self._save(shard)
        self._records.inc(len(batch))
        yield self._row(outputs)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        """Ends the shard when the input has ended: releases what is held, tells the counters."""
        partition = self._partitions[ctx.get_current_key()]
        shard = self._shards.get(partition) or self._meet(partition)
        outputs = Outputs.none()
        if not self._open_end:
            outputs = self._scorer.finish(shard)
            self._save(shard)
        told = {"partition": partition, "counters": shard.counters}
        yield self._row(outputs, [msgspec.json.encode(told)])

    def _meet(self, partition: int) -> Shard:
        """Refills a shard from Flink's state, of which the current key is the partition's."""
        meta = self._meta.value()
        if meta is None:
            shard = self._scorer.new_shard(partition)
        else:
            items = list(self._keys.items())
            shard = self._scorer.restore_shard(partition, meta, items)
            shard.counters = msgspec.json.decode(self._counters.value())
            _LOG.info(
                "partition %d refilled: %d keys, last offset %d",
                partition,
                len(items),
                shard.last_offset,
            )
        self._shards[partition] = shard
        return shard

    def _save(self, shard: Shard) -> None:
        changes = self._scorer.drain_changes(shard)
        for key in changes.removed:
            self._keys.remove(key)
        put = self._keys.put
        for key, data in changes.puts:
            put(key, data)
        self._meta.update(changes.meta)
        self._counters.update(msgspec.json.encode(shard.counters))

    def _row(self, outputs: Outputs, counters: list[bytes] | None = None) -> Row:
        return Row(
            with_keys(outputs)
            if self._keyed
            else joined(outputs.prediction_lines, self._lines_per_row),
            joined(outputs.reject_lines, self._lines_per_row),
            counters or [],
        )


def output_type(*, keyed: bool) -> Any:
    """The type of a row out: arrays of predictions (pairs where keyed), rejects and counters."""
    lines = Types.OBJECT_ARRAY(Types.PRIMITIVE_ARRAY(Types.BYTE()))
    predictions = Types.OBJECT_ARRAY(lines) if keyed else lines
    return Types.ROW_NAMED([PREDICTIONS, REJECTS, COUNTERS], [predictions, lines, lines])


def with_keys(outputs: Outputs) -> list[list[bytes]]:
    """Each prediction as a pair of its stream key and its record.

    An array of two, not a row of two: the engine's coder takes 0.2 us for the one and 1.8 us for
    the other, and bytes, because text would be decoded and encoded again on the way.
    """
    keys = outputs.prediction_keys
    if not keys:
        return []
    records = outputs.prediction_lines.split(b"\n")
    return [[key.encode(), record] for key, record in zip(keys, records, strict=False)]


def joined(lines: bytes, lines_per_row: int) -> list[bytes]:
    """Cuts JSON Lines into elements of so many records, newlines between them; 0 for one of all."""
    if not lines:
        return []
    if lines_per_row == 0:
        return [lines[:-1]]
    records = records_in(lines)
    if lines_per_row == 1:
        return records
    return [
        b"\n".join(records[start : start + lines_per_row])
        for start in range(0, len(records), lines_per_row)
    ]
