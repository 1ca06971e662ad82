"""The transition: (shard state, batch of records) -> (shard state, outputs).

The Flink operator, the in-process replay and every check call `Scorer.step`, and only it. It
takes a record through the steps of the policy in their order: already applied, tombstone, schema
and key, partition, bounds of time, watermark, too late; then it hands operations on keys to
`advance`.

Danger: everything here is decided for a whole batch at once, and must come out as if the records
had come one by one. The shard is changed in place: it holds millions of rows, and there is one
owner.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from operators import codec
from operators.advance import Action, Advancer, Operations, Results
from operators.codec import Layout, StateRefused
from operators.compatibility import check_compatible, made_under, spec_digest
from operators.decode import Columns, Decoder
from operators.emit import Emitter, Outputs, detail_of
from operators.features import FeaturePlan, raw_columns
from operators.model import StepModel, load_models
from operators.partitioner import partitions_for
from operators.policy import NEVER, Bools, Int64s, Policy, Reason
from operators.state import Held, HeldEvents, Keys, Pool, Rows, Shard
from schemas.records import RecordBatch, Reject, encode_lines
from schemas.spec import Spec

#: The share of the shorter ttl that the watermark may go on before ended lives are looked for.
_SWEEPS_PER_TTL = 8


@dataclass(slots=True)
class Changes:
    """What must be written to the engine's state since the last drain.

    Attributes:
        puts: stream key and bytes.
        removed: stream keys whose state must go.
        meta: bytes of the shard itself.
    """

    puts: list[tuple[str, bytes]]
    removed: list[str]
    meta: bytes


@dataclass(slots=True)
class _Admitted:
    """Records of a batch that passed steps 1 to 7, and what the batch did to the watermark."""

    batch: RecordBatch
    columns: Columns
    row: Rows  # record -> row of the columns, -1 for a null value
    events: Rows  # admitted records
    slots: Int64s  # their slots
    tombstones: list[tuple[int, int]]  # (record, slot) to forget
    watermarks: Int64s  # before record i; [i + 1] is after it


class Scorer:
    """The scoring of one job spec.

    Args:
        spec: the job spec.

    Attributes:
        models: the models in the order they take over.
        spec_digest: digest of everything that decides records.
        feature_names: names of the columns of the feature vector.

    Raises:
        ModelError: a model breaks the contract.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.policy = Policy.of(spec)
        self._plan = FeaturePlan(spec)
        self.feature_names = tuple(self._plan.names)
        self.models: list[StepModel] = load_models(spec, len(self._plan))
        self._decoder = Decoder(spec, self.models[0].dtype)
        self._advancer = Advancer(self.policy, self._plan, self.models, spec.sink.features)
        self._emitter = Emitter(spec.generation, [model.digest for model in self.models])
        self._layout = Layout(
            raw_columns=len(raw_columns(spec)),
            state_bytes=max(model.state_bytes for model in self.models),
            with_ids=spec.event.id is not None,
        )
        self._made_under = made_under(spec, self.models)
        self.spec_digest = spec_digest(self._made_under)
        shorter = min(self.policy.idle_ttl_ms, self.policy.finished_ttl_ms)
        self._sweep_ms = max(shorter // _SWEEPS_PER_TTL, 1)

    def new_shard(self, partition: int) -> Shard:
        """Returns the state of a partition before its first record."""
        raw = self._layout.raw_columns
        return Shard(partition, Keys(), Pool(raw, self._layout.state_bytes), Held(raw))

    def step(self, shard: Shard, batch: RecordBatch) -> Outputs:
        """Applies a batch of records to a shard, which is changed.

        Args:
            shard: the state of the batch's partition.
            batch: records in offset order; those at or below the last offset are skipped.

        Returns:
            Predictions and rejects, in the order of the records that caused them.
        """
        batch = self._unseen(shard, batch)
        if not len(batch):
            return Outputs([], [], [])
        shard.compact(self._horizon(shard), 2 * len(batch))
        rejects: list[tuple[int, Reject]] = []
        admitted = self._admit(shard, batch, rejects)
        ops, order = self._operations(shard, admitted, rejects)
        outputs = self._run(shard, batch, ops, order, rejects)
        watermark = int(admitted.watermarks[-1])
        if watermark - shard.swept_at >= self._sweep_ms:
            self._sweep(shard, watermark)
        return outputs

    def finish(self, shard: Shard) -> Outputs:
        """Ends a bounded log: releases all held events."""
        watermark = shard.max_event_time - self.policy.out_of_orderness_ms
        released = shard.held.release(2**63 - 1)
        n = released.size
        ops = _released(released, np.zeros(n, np.int64), np.full(n, watermark))
        self._unhold(shard, released.slots[:n])
        order = np.lexsort((np.arange(n), ops.events.slots[:n]))
        return self._run(shard, None, _take(ops, order), np.argsort(order, kind="stable"), [])

    def _unseen(self, shard: Shard, batch: RecordBatch) -> RecordBatch:
        """Step 1: skips what is already applied; takes the position over."""
        n = len(batch)
        shard.count("records", n)
        if not n:
            return batch
        before = np.maximum.accumulate(np.concatenate(([shard.last_offset], batch.offsets[:-1])))
        new = batch.offsets > before
        shard.last_offset = max(shard.last_offset, int(batch.offsets.max()))
        if new.all():
            return batch
        shard.count("skipped", int(n - new.sum()))
        keep = np.flatnonzero(new)
        return RecordBatch(
            batch.partition,
            batch.offsets[keep],
            batch.timestamps[keep],
            [batch.keys[i] for i in keep.tolist()],
            [batch.values[i] for i in keep.tolist()],
        )

    def _admit(
        self, shard: Shard, batch: RecordBatch, rejects: list[tuple[int, Reject]]
    ) -> _Admitted:
        """Steps 2 to 7."""
        n = len(batch)
        present = [i for i, value in enumerate(batch.values) if value is not None]
        row = np.arange(n)
        if len(present) < n:
            row = np.full(n, -1)
            row[present] = np.arange(len(present))
        columns = self._decoder.decode([v for v in batch.values if v is not None])
        at = np.array(present, np.int64)
        good = np.zeros(n, np.bool_)
        good[at] = True
        times = np.zeros(n, np.int64)
        times[at] = columns.times
        beats = np.zeros(n, np.bool_)
        beats[at] = columns.heartbeat

        def refuse(i: int, reason: Reason, detail: str, lateness: int | None = None) -> None:
            good[i] = False
            rejects.append((i, self._reject(shard, batch, i, reason, detail, lateness)))

        for j, refused in columns.refused.items():
            refuse(present[j], refused.reason, refused.detail)
        slots = self._slots(shard, columns, row, good & ~beats, refuse)
        future, implausible = self.policy.time_bounds(times, batch.timestamps)
        for i in np.flatnonzero(good & (future | implausible)).tolist():
            reason = Reason.FUTURE_TIME if future[i] else Reason.IMPLAUSIBLE_TIME
            refuse(i, reason, self._out_of_bounds(int(times[i]), int(batch.timestamps[i]), reason))
        watermarks, shard.max_event_time = self.policy.watermarks(times, good, shard.max_event_time)
        shard.count("heartbeats", int((beats & good).sum()))
        good &= ~beats
        too_late = good & (times < watermarks[:-1] - self.policy.allowed_lateness_ms)
        for i in np.flatnonzero(too_late).tolist():
            lateness = int(watermarks[i] - times[i])
            refuse(i, Reason.TOO_LATE, detail_of(Reason.TOO_LATE), lateness)
        tombstones = self._tombstones(shard, batch, row, rejects) if len(present) < n else []
        events = np.flatnonzero(good)
        return _Admitted(batch, columns, row, events, slots[events], tombstones, watermarks)

    def _out_of_bounds(self, time: int, timestamp: int, reason: Reason) -> str:
        if reason is Reason.FUTURE_TIME:
            return f"{detail_of(reason)}: {time - timestamp} > {self.policy.max_future_ms}"
        return f"{detail_of(reason)}: {time} < {self.policy.min_event_time_ms}"

    def _reject(
        self,
        shard: Shard,
        batch: RecordBatch,
        i: int,
        reason: Reason,
        detail: str,
        lateness: int | None = None,
        applied: bool = False,
    ) -> Reject:
        return self._emitter.reject(
            shard,
            int(batch.offsets[i]),
            int(batch.timestamps[i]),
            batch.keys[i],
            batch.values[i],
            reason,
            detail,
            lateness=lateness,
            applied=applied,
        )

    def _slots(
        self, shard: Shard, columns: Columns, row: Rows, wanted: Bools, refuse: Any
    ) -> Int64s:
        """Finds or makes the slot of each wanted record; refuses keys of other partitions."""
        keys = columns.keys
        slots = np.full(len(row), -1, np.int64)
        at = np.flatnonzero(wanted)
        wanted_keys = keys if len(at) == len(keys) else [keys[j] for j in row[at].tolist()]
        lookup = shard.keys.slots.get
        slots[at] = np.fromiter(map(lookup, wanted_keys, repeat(-1)), np.int64, len(at))
        unknown = at[slots[at] < 0]
        if not len(unknown):
            return slots
        fresh = list(dict.fromkeys([keys[j] for j in row[unknown].tolist()]))
        source = self.spec.source
        homes: dict[str, int] = {}
        if source.partitioner != "none":
            encoded = [key.encode() for key in fresh]
            found = partitions_for(encoded, source.partitioner, source.partitions)
            homes = dict(zip(fresh, found.tolist(), strict=True))
            fresh = [key for key in fresh if homes[key] == shard.partition]
        shard.keys.add(fresh)
        wanted_keys = [keys[j] for j in row[unknown].tolist()]
        slots[unknown] = np.fromiter(map(lookup, wanted_keys, repeat(-1)), np.int64, len(unknown))
        for i in unknown[slots[unknown] < 0].tolist():
            key = keys[int(row[i])]
            refuse(
                i,
                Reason.MISROUTED,
                f"key {key!r} belongs in partition {homes[key]} by {source.partitioner} over "
                f"{source.partitions}, found in {shard.partition}",
            )
        return slots

    def _tombstones(
        self, shard: Shard, batch: RecordBatch, row: Rows, rejects: list[tuple[int, Reject]]
    ) -> list[tuple[int, int]]:
        """Step 2: rejects null values; under `forget`, returns (record, slot) of keys to forget."""
        found = []
        for i in np.flatnonzero(row < 0).tolist():
            key = _utf8(batch.keys[i]) if self.policy.forget else None
            reason = Reason.TOMBSTONE
            reject = self._reject(shard, batch, i, reason, detail_of(reason), applied=bool(key))
            rejects.append((i, reject))
            # A key that never had an event has nothing to forget.
            if key and key in shard.keys.slots:
                found.append((i, shard.keys.slots[key]))
        return found

    def _operations(
        self, shard: Shard, admitted: _Admitted, rejects: list[tuple[int, Reject]]
    ) -> tuple[Operations, Rows]:
        """Turns admitted records into operations sorted by key.

        Returns:
            The operations, and their order of emission.
        """
        policy, hold = self.policy, self.policy.hold
        records, slots = admitted.events, admitted.slots
        table = self._table(shard, admitted)
        before = admitted.watermarks[records]
        times = table.times[: len(records)]
        late = times < before
        checked = self._checked(shard, slots, table.ids[: len(records)])
        touchy = np.zeros(shard.keys.size, np.bool_)
        touchy[[slot for _, slot in admitted.tombstones]] = True
        careful = touchy[slots] | checked
        held = np.zeros(0, np.int64)
        keep = np.ones(len(records), np.bool_)
        if hold:
            plain = ~late & ~careful
            forgotten = plain & (times <= shard.keys.markers[slots])
            self._refuse(shard, admitted, records[forgotten], Reason.FORGOTTEN, before, rejects)
            held = np.flatnonzero(plain & ~forgotten)
            keep[plain] = False
        if policy.drop_late and late.any():
            settled = late & ~careful & self._unfinished(shard, table, slots)
            settled &= times > shard.keys.markers[slots]
            self._refuse(shard, admitted, records[settled], Reason.LATE, before, rejects)
            keep[settled] = False
        final = int(admitted.watermarks[-1])
        action = np.where(late & policy.drop_late, Action.REJECT_LATE, Action.APPLY)
        action = np.where(~late & hold, Action.HOLD, action).astype(np.int8)
        ops = Operations(
            events=table,
            action=action,
            released=np.zeros(len(records), np.bool_),
            position=records,
            late=late,
            lateness=np.maximum(before - times, 0),
            life=before,
            horizon=before - policy.keep_ms,
            watermark=admitted.watermarks[records + 1],
            careful=careful | (action != Action.APPLY),
            checked=checked,
            stays=times >= final,
        )
        parts = [_take(ops, np.flatnonzero(keep))]
        if hold:
            doubtful = np.flatnonzero(keep & (action == Action.HOLD))
            parts.append(self._releases(shard, ops, held, doubtful, admitted, touchy))
        if admitted.tombstones:
            parts.append(self._forgets(admitted))
        merged = parts[0] if len(parts) == 1 else _concatenate(parts)
        order = np.lexsort(
            (
                merged.events.offsets[: merged.events.size],
                np.where(merged.released, merged.events.times[: merged.events.size], 0),
                merged.released,
                merged.position,
            )
        )
        by_key = order[np.argsort(merged.events.slots[order], kind="stable")]
        place = np.empty(len(by_key), np.int64)
        place[by_key] = np.arange(len(by_key))
        return _take(merged, by_key), place[order]

    def _table(self, shard: Shard, admitted: _Admitted) -> HeldEvents:
        """Collects the admitted records, a row each."""
        batch, columns, records = admitted.batch, admitted.columns, admitted.events
        n = len(records)
        rows = admitted.row[records]
        table = shard.held.new_table(n)
        table.size = n
        table.times[:n] = columns.times[rows]
        table.offsets[:n] = batch.offsets[records]
        table.timestamps[:n] = batch.timestamps[records]
        table.slots[:n] = admitted.slots
        table.raw[:n] = columns.raw[rows]
        table.terminal[:n] = columns.terminal[rows]
        everything = n == len(batch)
        chosen = records.tolist()
        kafka_keys = batch.keys if everything else [batch.keys[i] for i in chosen]
        if self.policy.hold:
            table.kafka_keys[:n] = kafka_keys
            table.values[:n] = batch.values if everything else [batch.values[i] for i in chosen]
        if columns.ids is not None:
            ids = columns.ids
            table.ids[:n] = ids if everything else [ids[j] for j in rows.tolist()]
        keys = columns.keys if everything else [columns.keys[j] for j in rows.tolist()]
        shard.count("key_mismatch", _mismatched(kafka_keys, keys))
        return table

    def _checked(self, shard: Shard, slots: Int64s, ids: Any) -> Bools:
        """Tells which ids may be known: a hash seen before is doubtful, one not seen is new."""
        checked = np.zeros(len(slots), np.bool_)
        if self.spec.event.id is None:
            return checked
        at = np.flatnonzero(ids != None)  # noqa: E711 (element by element)
        names = shard.keys.names
        keys = [names[slot] for slot in slots[at].tolist()]
        hashes = list(map(hash, zip(keys, ids[at].tolist(), strict=True)))
        known = shard.known_ids
        if not known.isdisjoint(hashes):
            checked[at] = [h in known for h in hashes]
        size = len(known)
        known.update(hashes)
        if len(known) - size != len(at):
            again = np.ones(len(at), np.bool_)
            again[np.unique(np.array(hashes, np.int64), return_index=True)[1]] = False
            checked[at] |= again
        return checked

    def _unfinished(self, shard: Shard, table: HeldEvents, slots: Int64s) -> Bools:
        """Tells whose key is not finished and cannot become so within this batch."""
        closed = shard.keys.finished[: shard.keys.size].copy()
        closed[slots[table.terminal[: len(slots)]]] = True
        for held, rows in shard.held.of(np.ones(shard.keys.size, np.bool_)):
            closed[held.slots[rows[held.terminal[rows]]]] = True
        return ~closed[slots]

    def _refuse(
        self,
        shard: Shard,
        admitted: _Admitted,
        records: Rows,
        reason: Reason,
        before: Int64s,
        rejects: list[tuple[int, Reject]],
    ) -> None:
        times = admitted.columns.times
        for i in records.tolist():
            lateness = max(int(admitted.watermarks[i]) - int(times[admitted.row[i]]), 0)
            detail = detail_of(reason)
            rejects.append((i, self._reject(shard, admitted.batch, i, reason, detail, lateness)))

    def _releases(
        self,
        shard: Shard,
        arrivals: Operations,
        held: Rows,
        doubtful: Rows,
        admitted: _Admitted,
        touchy: Bools,
    ) -> Operations:
        """Holds on-time events, and returns operations for all that this batch releases."""
        final = int(admitted.watermarks[-1])
        leaving = ~arrivals.stays
        table = shard.held.new_table(len(held))
        table.append(arrivals.events, held[arrivals.stays[held]])
        np.add.at(shard.keys.held, table.slots[: table.size], 1)
        shard.keys.dirty[table.slots[: table.size]] = True
        shard.held.add(table)
        released = shard.held.release(final)
        self._unhold(shard, released.slots[: released.size])
        certain = released.size + int(leaving[held].sum())
        released.append(arrivals.events, held[leaving[held]])
        released.append(arrivals.events, doubtful[leaving[doubtful]])
        n = released.size
        # The first record that leaves the watermark beyond the event releases it.
        position = np.searchsorted(admitted.watermarks[1:], released.times[:n], side="right")
        ops = _released(released, position, admitted.watermarks[position + 1])
        ops.careful = touchy[released.slots[:n]]
        ops.careful[certain:] = True
        return ops

    def _unhold(self, shard: Shard, slots: Int64s) -> None:
        np.subtract.at(shard.keys.held, slots, 1)
        shard.keys.dirty[slots] = True

    def _forgets(self, admitted: _Admitted) -> Operations:
        """Returns the operations of tombstones."""
        n = len(admitted.tombstones)
        at = np.array([i for i, _ in admitted.tombstones], np.int64)
        table = HeldEvents(self._layout.raw_columns, n)
        table.size = n
        table.slots[:n] = [slot for _, slot in admitted.tombstones]
        table.offsets[:n] = admitted.batch.offsets[at]
        zeros, flags = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        return Operations(
            events=table,
            action=np.full(n, Action.FORGET, np.int8),
            released=flags,
            position=at,
            late=flags,
            lateness=zeros,
            life=zeros,
            horizon=zeros,
            watermark=zeros,
            careful=~flags,
            checked=flags,
            stays=flags,
        )

    def _run(
        self,
        shard: Shard,
        batch: RecordBatch | None,
        ops: Operations,
        order: Rows,
        rejects: list[tuple[int, Reject]],
    ) -> Outputs:
        """Runs operations and builds the records."""
        results: Results = self._advancer.run(shard, ops)
        update = self.spec.policy.late == "update"
        predictions, keys = self._emitter.predictions(shard, ops, results, order)
        refused = self._emitter.rejects_of(shard, batch, ops, results, order, update)
        if rejects:
            rejects.sort(key=lambda pair: pair[0])
        return Outputs(predictions, keys, encode_lines([r for _, r in rejects] + refused))

    def _horizon(self, shard: Shard) -> int:
        return shard.max_event_time - self.policy.out_of_orderness_ms - self.policy.keep_ms

    def _sweep(self, shard: Shard, watermark: int) -> None:
        """Frees keys whose life is over and of which nothing else is kept; no output can tell."""
        shard.swept_at = watermark
        keys, size = shard.keys, shard.keys.size
        heads = keys.heads[:size]
        newest = np.where(heads >= 0, shard.pool.times[heads], NEVER)
        over = (heads < 0) | self.policy.life_over(
            newest, keys.finished[:size], np.full(size, watermark)
        )
        unmarked = keys.markers[:size] + self.policy.allowed_lateness_ms < watermark
        gone = np.flatnonzero(keys.used[:size] & over & unmarked & (keys.held[:size] == 0))
        shard.removed.extend(keys.names[slot] for slot in gone[keys.stored[gone]].tolist())
        keys.remove(gone)
        shard.count("keys_evicted", len(gone))

    def drain_changes(self, shard: Shard) -> Changes:
        """Returns what changed since the last drain, for the engine's state to take over."""
        keys, size = shard.keys, shard.keys.size
        slots = np.flatnonzero(keys.dirty[:size] & keys.used[:size])
        keys.dirty[:size] = False
        empty = (keys.heads[slots] < 0) & (keys.held[slots] == 0) & (keys.markers[slots] == NEVER)
        gone, slots = slots[empty], slots[~empty]
        back = set()
        values = codec.encode_keys(shard, slots, self._horizon(shard), self._layout)
        puts = list(zip([keys.names[slot] for slot in slots.tolist()], values, strict=True))
        if shard.removed:
            back = {name for name, _ in puts}
        removed = [name for name in shard.removed if name not in back]
        removed.extend(keys.names[slot] for slot in gone[keys.stored[gone]].tolist())
        shard.removed = []
        keys.stored[slots] = True
        keys.stored[gone] = False
        return Changes(puts, removed, codec.encode_shard(shard, self._made_under))

    def restore_shard(
        self, partition: int, meta: bytes, items: Iterable[tuple[str, bytes]]
    ) -> Shard:
        """Rebuilds a shard from what `drain_changes` gave.

        Args:
            partition: the partition.
            meta: the newest bytes of the shard itself.
            items: key and bytes of every key put and not removed since.

        Raises:
            StateRefused: the state was made under another spec or models, or cannot be read.
        """
        position = codec.decode_shard(meta)
        resets_before = check_compatible(position, self._made_under)
        shard = self.new_shard(partition)
        shard.last_offset = position["last_offset"]
        greatest = position["max_event_time"]
        shard.max_event_time = NEVER if greatest is None else greatest
        pairs = list(items)
        names = [name for name, _ in pairs]
        found = codec.decode_keys(names, [value for _, value in pairs], self._layout)
        shard.keys.add(names)
        self._restore_keys(shard, found)
        self._restore_events(shard, found, resets_before)
        self._restore_held(shard, found)
        return shard

    def _restore_keys(self, shard: Shard, found: codec.DecodedKeys) -> None:
        keys, size = shard.keys, shard.keys.size
        header = found.header
        keys.stored[:size] = True
        keys.finished[:size] = header["finished"]
        keys.late_seen[:size] = header["late_seen"]
        keys.sequences[:size] = header["sequence"]
        keys.epochs[:size] = header["epoch"]
        keys.markers[:size] = header["marker"]
        keys.held[:size] = header["held"]

    def _restore_events(
        self, shard: Shard, found: codec.DecodedKeys, resets_before: int | None
    ) -> None:
        """Fills the pool, and steps again what comes after the first event of each key."""
        pool, keys = shard.pool, shard.keys
        counts = found.header["events"].astype(np.int64)
        total = int(counts.sum())
        if not total:
            return
        alive = np.flatnonzero(counts)
        ends = np.cumsum(counts)
        begins = ends - counts
        pool.take(total)
        rows = np.arange(total)
        place = rows - np.repeat(begins, counts)
        pool.times[:total] = found.events["time"]
        pool.offsets[:total] = found.events["offset"]
        pool.raw[:total] = found.events["raw"]
        pool.slots[:total] = np.repeat(np.arange(len(counts)), counts)
        pool.models[:total] = self._advancer.model_of(pool.times[:total])
        pool.previous[:total] = np.where(place == 0, -1, rows - 1)
        pool.counts[:total] = np.repeat(found.header["count"].astype(np.int64), counts) + place
        pool.first_times[:total] = np.repeat(found.header["first_time"], counts)
        if found.ids is not None:
            pool.ids[:total] = found.ids
            names = keys.names
            shard.known_ids.update(
                hash((names[slot], event_id))
                for slot, event_id in zip(pool.slots[:total].tolist(), found.ids, strict=True)
                if event_id is not None
            )
        first = begins[alive]
        pool.state[first] = found.states
        if resets_before is not None:
            stale = first[pool.times[first] < resets_before]
            pool.state[stale] = 0
        keys.heads[alive] = ends[alive] - 1
        later = np.flatnonzero(place)
        if len(later):
            self._advancer.recompute(shard, later, place[later] - 1)

    def _restore_held(self, shard: Shard, found: codec.DecodedKeys) -> None:
        if not found.held:
            return
        n = len(found.held)
        columns = self._decoder.decode([value for *_, value in found.held])
        table = shard.held.new_table(n)
        table.size = n
        table.slots[:n] = [slot for slot, *_ in found.held]
        table.offsets[:n] = [offset for _, offset, *_ in found.held]
        table.timestamps[:n] = [timestamp for _, _, timestamp, *_ in found.held]
        table.kafka_keys[:n] = [key for *_, key, _ in found.held]
        table.values[:n] = [value for *_, value in found.held]
        table.times[:n] = columns.times
        table.raw[:n] = columns.raw
        table.terminal[:n] = columns.terminal
        if columns.ids is not None:
            table.ids[:n] = columns.ids
            names = shard.keys.names
            shard.known_ids.update(
                hash((names[slot], event_id))
                for (slot, *_), event_id in zip(found.held, columns.ids, strict=True)
            )
        shard.held.add(table)


def _released(events: HeldEvents, position: Int64s, watermark: Int64s) -> Operations:
    """Returns operations that apply held events, in their order."""
    n = events.size
    flags = np.zeros(n, np.bool_)
    return Operations(
        events=events,
        action=np.full(n, Action.APPLY, np.int8),
        released=~flags,
        position=position,
        late=flags,
        lateness=np.zeros(n, np.int64),
        life=events.times[:n].copy(),
        horizon=np.zeros(n, np.int64),
        watermark=watermark,
        careful=flags.copy(),
        checked=flags,
        stays=flags,
    )


_COLUMNS = (
    "action",
    "released",
    "position",
    "late",
    "lateness",
    "life",
    "horizon",
    "watermark",
    "careful",
    "checked",
    "stays",
)


def _take(ops: Operations, rows: Rows) -> Operations:
    """Returns some operations, in the given order."""
    events = HeldEvents(ops.events.raw.shape[1], len(rows))
    events.append(ops.events, rows)
    return Operations(events=events, **{name: getattr(ops, name)[rows] for name in _COLUMNS})


def _concatenate(parts: list[Operations]) -> Operations:
    events = HeldEvents(parts[0].events.raw.shape[1], sum(p.events.size for p in parts))
    for part in parts:
        events.append(part.events, np.arange(part.events.size))
    return Operations(
        events=events,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS},
    )


def _mismatched(kafka_keys: list[bytes | None], keys: list[str]) -> int:
    """Counts Kafka keys that are there and differ from the stream key."""
    try:
        if b"\n".join(kafka_keys) == "\n".join(keys).encode():  # type: ignore[arg-type]
            return 0
    except TypeError:  # a null among them
        pass
    return sum(
        found is not None and found != key.encode()
        for found, key in zip(kafka_keys, keys, strict=True)
    )


def _utf8(key: bytes | None) -> str | None:
    if not key:
        return None
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return None


__all__ = ["Changes", "Outputs", "Scorer", "StateRefused"]
