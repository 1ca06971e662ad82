"""The transition: (shard state, batch of records) -> (shard state, outputs).

The Flink operator, the in-process replay and every check call `Scorer.step`, and only it. It is the
parts in their order: `admit` (steps 1 to 7), `plan` (events to operations on keys), `advance`
(operations to steps of the model), `emit` (results to records).

Danger: everything is decided for a whole batch at once, and must come out as if the records had
come one by one. The shard is changed in place: it holds millions of rows, and there is one owner.
"""

from collections.abc import Iterable

import numpy as np

from operators.admit import Admitter
from operators.advance import Advancer
from operators.codec import Layout, StateRefused
from operators.columnar import Rows
from operators.compatibility import made_under, spec_digest
from operators.decode import Decoder
from operators.emit import Emitter, Outputs
from operators.features import FeaturePlan, raw_columns
from operators.held import Held
from operators.model import StepModel, load_models
from operators.operations import Operations
from operators.persist import Changes, Persistence
from operators.plan import Planner
from operators.policy import NEVER, Policy
from operators.rejects import Rejects
from operators.state import Keys, Pool, Shard
from operators.stepper import Stepper
from schemas.records import RecordBatch
from schemas.spec import Spec

#: How often ended lives are looked for, while the watermark goes on by the shorter ttl.
_SWEEPS_PER_TTL = 8
#: Keys that one record pays for in a sweep.
_RECORDS_SHARE = 8


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
        plan = FeaturePlan(spec)
        self.feature_names = tuple(plan.names)
        self.models: list[StepModel] = load_models(spec, len(plan))
        self._raw_columns = len(raw_columns(spec))
        self._state_bytes = max(model.state_bytes for model in self.models)
        decides = made_under(spec, self.models)
        self.spec_digest = spec_digest(decides)
        decoder = Decoder(spec, self.models[0].dtype)
        self._admitter = Admitter(spec.source, self.policy, decoder)
        self._planner = Planner(self.policy, self._raw_columns)
        self._stepper = Stepper(plan, self.models)
        self._advancer = Advancer(self.policy, self._stepper, spec.sink.features)
        self._emitter = Emitter(spec.generation, [model.digest for model in self.models])
        layout = Layout(self._raw_columns, self._state_bytes, spec.event.id is not None)
        self._persistence = Persistence(self.policy, layout, decides, decoder, self._stepper)
        self._sweep_ms = max(
            min(self.policy.idle_ttl_ms, self.policy.finished_ttl_ms) // _SWEEPS_PER_TTL, 1
        )

    def new_shard(self, partition: int) -> Shard:
        """Returns the state of a partition before its first record."""
        pool = Pool(self._raw_columns, self._state_bytes)
        return Shard(partition, Keys(), pool, Held(self._raw_columns, self.policy.hold))

    def step(self, shard: Shard, batch: RecordBatch) -> Outputs:
        """Applies a batch of records to a shard, which is changed.

        Args:
            shard: the state of the batch's partition.
            batch: records in offset order; those at or below the last offset are skipped.

        Returns:
            Predictions and rejects, in the order of the records that caused them.
        """
        batch = self._admitter.unseen(shard, batch)
        if not len(batch):
            return Outputs.none()
        horizon = self.policy.horizon(shard.max_event_time)
        shard.compact(horizon, 2 * len(batch))
        rejects = Rejects(shard, batch)
        admitted = self._admitter.admit(shard, batch, rejects)
        ops, order = self._planner.plan(shard, admitted, rejects)
        outputs = self._run(shard, ops, order, rejects)
        if self._stepper.takes_over(horizon, self.policy.horizon(shard.max_event_time)):
            self._fold(shard)
        watermark = int(admitted.watermarks[-1])
        shard.unswept += len(batch)
        # A sweep looks at every key, so it waits until there are records to share its cost.
        due = watermark - shard.swept_at >= self._sweep_ms
        if due and shard.unswept * _RECORDS_SHARE >= shard.keys.size:
            self._sweep(shard, watermark)
        return outputs

    def finish(self, shard: Shard) -> Outputs:
        """Ends a bounded log: releases all held events."""
        nothing = np.zeros(0, np.int64)
        batch = RecordBatch(shard.partition, nothing, nothing, [], [])
        ops, order = self._planner.released_at_end(shard)
        return self._run(shard, ops, order, Rejects(shard, batch))

    def drain_changes(self, shard: Shard) -> Changes:
        """Returns what changed since the last drain, for the engine's state to take over."""
        return self._persistence.drain(shard)

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
        shard = self.new_shard(partition)
        self._persistence.restore(shard, meta, items)
        return shard

    def _run(self, shard: Shard, ops: Operations, order: Rows, rejects: Rejects) -> Outputs:
        """Runs operations and builds the records."""
        results = self._advancer.run(shard, ops)
        rejects.add_operations(ops, results, self.spec.policy.late == "update")
        return self._emitter.outputs(shard, ops, results, order, rejects)

    def _fold(self, shard: Shard) -> None:
        """Has every key written again: what is stored then needs no model before the cut-over.

        The bytes of a key that was not touched for long hold events that a restore steps again,
        although they are folded by now. Without this the old model could never leave the spec.
        """
        keys, size = shard.keys, shard.keys.size
        keys.dirty[:size] |= keys.used[:size] & (keys.heads[:size] >= 0)

    def _sweep(self, shard: Shard, watermark: int) -> None:
        """Frees keys whose life is over and of which nothing else is kept; no output can tell."""
        shard.swept_at = watermark
        shard.unswept = 0
        keys, size = shard.keys, shard.keys.size
        heads = keys.heads[:size]
        newest = np.where(heads >= 0, shard.pool.times[heads], NEVER)
        over = (heads < 0) | self.policy.life_over(
            newest, keys.finished[:size], np.full(size, watermark)
        )
        unmarked = keys.markers[:size] + self.policy.allowed_lateness_ms < watermark
        gone = np.flatnonzero(keys.used[:size] & over & unmarked & (keys.held[:size] == 0))
        shard.removed.extend(keys.names[gone[keys.stored[gone]]].tolist())
        keys.remove(gone)
        shard.count("keys_evicted", len(gone))


__all__ = ["Changes", "Outputs", "Scorer", "StateRefused"]
