"""A shard to the engine's state, and back.

Drained is what changed, key by key; restored is the whole shard, whose kept events are stepped
again from the stored state of their base. A restored shard gives the same records as one that never
stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from operators import codec
from operators.codec import Layout
from operators.compatibility import check_compatible
from operators.decode import Decoder
from operators.policy import NEVER, Policy
from operators.state import Shard
from operators.stepper import Stepper


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


class Persistence:
    """Moves shards of one job to bytes and back.

    Args:
        policy: the spec's times and choices.
        layout: what decides the layout of the bytes.
        made_under: everything that decides records, for the state to carry.
        decoder: reads held events again.
        stepper: steps kept events again.
    """

    def __init__(
        self,
        policy: Policy,
        layout: Layout,
        made_under: dict[str, Any],
        decoder: Decoder,
        stepper: Stepper,
    ) -> None:
        self._policy = policy
        self._layout = layout
        self._made_under = made_under
        self._decoder = decoder
        self._stepper = stepper

    def drain(self, shard: Shard) -> Changes:
        """Returns what changed since the last drain, for the engine's state to take over."""
        keys, size = shard.keys, shard.keys.size
        slots = np.flatnonzero(keys.dirty[:size] & keys.used[:size])
        keys.dirty[:size] = False
        empty = (keys.heads[slots] < 0) & (keys.held[slots] == 0) & (keys.markers[slots] == NEVER)
        gone, slots = slots[empty], slots[~empty]
        values = codec.encode_keys(
            shard, slots, self._policy.horizon(shard.max_event_time), self._layout
        )
        puts = list(zip(keys.names[slots].tolist(), values, strict=True))
        # A key whose life ended may have come back since.
        back = {name for name, _ in puts} if shard.removed else set()
        removed = [name for name in shard.removed if name not in back]
        removed.extend(keys.names[gone[keys.stored[gone]]].tolist())
        shard.removed = []
        keys.stored[slots] = True
        keys.stored[gone] = False
        return Changes(puts, removed, codec.encode_shard(shard, self._made_under))

    def restore(self, shard: Shard, meta: bytes, items: Iterable[tuple[str, bytes]]) -> None:
        """Fills a new shard from what `drain` gave.

        Args:
            shard: the shard.
            meta: the newest bytes of the shard itself.
            items: key and bytes of every key put and not removed since.

        Raises:
            StateRefused: the state was made under another spec or models, or cannot be read.
        """
        position = codec.decode_shard(meta)
        if position["partition"] != shard.partition:
            raise codec.StateRefused(
                f"state of partition {position['partition']} was found as that of "
                f"{shard.partition}\n  remedy: restore from an earlier savepoint; this one is "
                "damaged"
            )
        resets_before = check_compatible(position, self._made_under)
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
        if self._layout.with_ids:
            shard.relearn_ids()

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
        pool.models[:total] = self._stepper.model_of(pool.times[:total])
        pool.previous[:total] = np.where(place == 0, -1, rows - 1)
        pool.counts[:total] = np.repeat(found.header["count"].astype(np.int64), counts) + place
        pool.first_times[:total] = np.repeat(found.header["first_time"], counts)
        if found.ids is not None:
            pool.ids[:total] = found.ids
        first = begins[alive]
        pool.state[first] = found.states
        if resets_before is not None:
            stale = first[pool.times[first] < resets_before]
            pool.state[stale] = 0
            # The stored bytes still hold that state, and the next restore would take it as good.
            keys.dirty[pool.slots[stale]] = True
        keys.heads[alive] = ends[alive] - 1
        later = np.flatnonzero(place)
        if len(later):
            self._stepper.step(shard, later, place[later] - 1)

    def _restore_held(self, shard: Shard, found: codec.DecodedKeys) -> None:
        if not found.held:
            return
        n = len(found.held)
        columns = self._decoder.decode([value for *_, value in found.held])
        if columns.refused:
            row, refused = next(iter(columns.refused.items()))
            raise codec.StateRefused(
                f"state of key {shard.keys.names[found.held[row][0]]!r}: a held event cannot be "
                f"read: {refused.detail}\n  remedy: restore from an earlier savepoint; this one "
                "is damaged"
            )
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
        shard.held.add(table)
