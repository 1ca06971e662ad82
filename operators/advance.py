"""Events to steps: takes what the policy admitted, and advances, inserts, holds, refuses.

Operations are sorted by key and, within a key, in the order they happen. They run in rounds. A
round takes from every key the longest run of plain operations (newest of the key, nothing
special) and steps them in waves: wave k is the k-th event of every key, one model call each. Then
it takes one careful operation of every key (an insertion, a doubtful id, a finished key, a
tombstone), also all at once. Both go through `Stepper.step`, so an event is stepped by the same
code wherever it lands.

Danger: the outcome of an operation may depend on the one before it in its key, and on nothing
else in the batch. Whatever is decided here for a whole batch must hold for any batch boundary.
"""

import numpy as np

from operators.columnar import Rows
from operators.groups import ends, running, same_key, starts
from operators.operations import NO_REASON, REASONS, Action, Operations, Results
from operators.policy import NEVER, Bools, Int64s, Kind, Policy, Reason
from operators.state import Pool, Shard
from operators.stepper import Stepper

#: Operations of a key taken at a time, so that many careful ones of one key do not look at the
#: whole batch each.
_STRETCH = 256

_CODE = {reason: code for code, reason in enumerate(REASONS)}


class Advancer:
    """Runs operations on a shard.

    Args:
        policy: the spec's times and choices.
        stepper: steps the models.
        keep_x: whether results carry the input rows.
    """

    def __init__(self, policy: Policy, stepper: Stepper, keep_x: bool) -> None:
        self._policy = policy
        self._stepper = stepper
        self._keep_x = keep_x

    def run(self, shard: Shard, ops: Operations) -> Results:
        """Runs operations that are sorted by slot and, within a slot, by the order they happen."""
        model = self._stepper.models[0]
        results = Results.empty(
            len(ops.action),
            model.output_size,
            len(self._stepper.plan),
            model.dtype if self._keep_x else None,
        )
        careful = ops.careful.copy()
        patience = np.ones(shard.keys.size, np.int64)
        slots = ops.events.slots[: len(ops.action)]
        start = starts(slots)
        rank = np.arange(len(slots)) - np.flatnonzero(start)[np.cumsum(start) - 1]
        for low in range(0, int(rank.max(initial=-1)) + 1, _STRETCH):
            pending = np.flatnonzero((rank >= low) & (rank < low + _STRETCH))
            self._stretch(shard, ops, results, pending, careful, patience)
        return results

    def _stretch(
        self,
        shard: Shard,
        ops: Operations,
        results: Results,
        pending: Rows,
        careful: Bools,
        patience: Int64s,
    ) -> None:
        """Runs some operations of each key, in rounds.

        Args:
            shard: the shard.
            ops: the operations.
            results: where the outcome goes.
            pending: the operations to run, in their order.
            careful: operations that are never plain; grows where plain ones fail.
            patience: for each slot, how many operations are made careful at its next failure; it
                doubles, so that a key whose every event fails is not stepped again for each.
        """
        slots = ops.events.slots
        while len(pending):
            plain = self._plain_prefix(shard, ops, pending, careful)
            left = ~plain
            run = pending[plain]
            if len(run):
                undone, failed = self._advance(shard, ops, results, run)
                if len(undone):
                    left[np.flatnonzero(plain)[undone]] = True
                    for i in run[failed].tolist():
                        slot = int(slots[i])
                        careful[i : min(i + int(patience[slot]), same_key(slots, slot).stop)] = True
                        patience[slot] *= 2
            pending = pending[left]
            if not len(pending):
                break
            first = starts(slots[pending])
            self._careful(shard, ops, results, pending[first])
            pending = pending[~first]

    def _plain_prefix(self, shard: Shard, ops: Operations, pending: Rows, careful: Bools) -> Bools:
        """Tells which of the pending operations come before the first careful one of their key."""
        events, keys = ops.events, shard.keys
        slots, times = events.slots[pending], events.times[pending]
        start = starts(slots)
        heads = keys.heads[slots]
        before = np.where(heads >= 0, shard.pool.times[heads], NEVER)
        before[1:] = np.where(start[1:], before[1:], times[:-1])
        stop = careful[pending] | (times < before) | (times <= keys.markers[slots])
        stop |= start & keys.finished[slots]
        stop[1:] |= ~start[1:] & events.terminal[pending[:-1]]
        if not stop.any():
            return np.ones(len(pending), np.bool_)
        passed = np.cumsum(stop)
        index = np.flatnonzero(start)
        group = np.cumsum(start) - 1
        free: Bools = passed - (passed[index] - stop[index])[group] == 0
        return free

    def _advance(
        self, shard: Shard, ops: Operations, results: Results, run: Rows
    ) -> tuple[Rows, Rows]:
        """Applies plain operations, each the newest of its key.

        Returns:
            Indices into `run` of what was not done because a number was not finite, and of the
            operations among them whose number it was.
        """
        events, keys, pool = ops.events, shard.keys, shard.pool
        m = len(run)
        slots, times = events.slots[run], events.times[run]
        start = starts(slots)
        index = np.arange(m)
        base = pool.take(m)
        rows = base + index
        previous = np.where(start, keys.heads[slots], rows - 1)
        self._write_rows(shard, ops, run, rows)
        known = previous >= 0
        # A key that is finished is never here: only the idle ttl can have ended a life.
        over = known & (pool.times[previous] + self._policy.idle_ttl_ms < ops.life[run])
        born = ~known | over
        previous[born] = -1
        pool.previous[rows] = previous
        # Lives within the run: counters go on from the key's own, or from zero where one begins.
        opening = start | born
        lives = np.flatnonzero(opening)
        group = np.cumsum(opening) - 1
        goes_on = ~born[lives]
        heads = previous[lives]
        slot = slots[lives]
        pool.counts[rows] = (
            np.where(goes_on, pool.counts[heads], 0)[group] + (index - lives[group]) + 1
        )
        pool.first_times[rows] = np.where(goes_on, pool.first_times[heads], times[lives])[group]
        late = ops.late[run]
        kind = np.where(late, int(self._policy.late_kind), int(Kind.ON_TIME)).astype(np.int8)
        sequence = np.where(goes_on, keys.sequences[slot], 0)[group] + running(
            kind > 0, lives, group
        )
        late_seen = np.where(goes_on, keys.late_seen[slot], 0)[group] + running(late, lives, group)
        epoch = np.where(goes_on, keys.epochs[slot], times[lives])[group]
        begins = np.flatnonzero(start)
        of_key = np.cumsum(start) - 1
        x, y, good = self._stepper.step(shard, rows, index - begins[of_key])
        if good.all():
            done, undone, failed = index, index[:0], index[:0]
        else:
            bad = np.cumsum(~good)
            clean: Bools = bad - (bad[begins] - ~good[begins])[of_key] == 0
            done, undone = index[clean], index[~clean]
            failed = undone[starts(slots[undone])]
        target = run[done]
        results.applied[target] = True
        results.kind[target] = kind[done]
        results.row[target] = rows[done]
        results.sequence[target] = sequence[done]
        results.epoch[target] = epoch[done]
        results.late_seen[target] = late_seen[done]
        results.final[target] = events.terminal[target]
        results.y[target] = y[done]
        if results.x is not None:
            results.x[target] = x[done]
        last = done[ends(slots[done])]
        slot = slots[last]
        keys.heads[slot] = rows[last]
        keys.sequences[slot] = sequence[last]
        keys.epochs[slot] = epoch[last]
        keys.late_seen[slot] = late_seen[last]
        keys.finished[slot] = events.terminal[run[last]]
        keys.dirty[slot] = True
        return undone, failed

    def _write_rows(self, shard: Shard, ops: Operations, run: Rows, rows: Rows) -> None:
        """Copies events into pool rows."""
        events, pool = ops.events, shard.pool
        pool.times[rows] = events.times[run]
        pool.offsets[rows] = events.offsets[run]
        pool.slots[rows] = events.slots[run]
        pool.raw[rows] = events.raw[run]
        pool.ids[rows] = events.ids[run]
        pool.models[rows] = self._stepper.model_of(events.times[run])

    def _careful(self, shard: Shard, ops: Operations, results: Results, run: Rows) -> None:
        """Does one operation of each of several keys, with every question asked."""
        action = ops.action[run]
        shard.keys.dirty[ops.events.slots[run]] = True
        for i in run[action == Action.FORGET].tolist():
            self._forget(shard, ops, i)
        for i in run[action == Action.HOLD].tolist():
            self._hold(shard, ops, results, i)
        run = run[(action <= Action.REJECT_LATE) & ~ops.cancelled[run]]
        if len(run):
            self._apply(shard, ops, results, run)

    def _forget(self, shard: Shard, ops: Operations, i: int) -> None:
        """Ends a key's life at a tombstone; its held events go, its newest event time stays."""
        events, keys = ops.events, shard.keys
        slot, offset = int(events.slots[i]), int(events.offsets[i])
        dropped, newest = shard.held.drop(slot, offset)
        keys.held[slot] -= dropped
        waiting = self._waiting(ops, i)
        ops.cancelled[waiting] = True
        head = keys.heads[slot]
        newest = max(
            newest,
            int(keys.markers[slot]),
            int(shard.pool.times[head]) if head >= 0 else NEVER,
            int(events.times[waiting].max(initial=NEVER)),
        )
        keys.clear(np.array([slot]))
        keys.markers[slot] = newest

    def _waiting(self, ops: Operations, i: int) -> Rows:
        """Returns events of the key that are held when operation i happens and released later."""
        events = ops.events
        mine = same_key(events.slots, int(events.slots[i]))
        found: Rows = mine.start + np.flatnonzero(
            ops.released[mine]
            & (events.offsets[mine] < events.offsets[i])
            & (ops.position[mine] >= ops.position[i])
            & ~ops.cancelled[mine]
        )
        return found

    def _hold(self, shard: Shard, ops: Operations, results: Results, i: int) -> None:
        """Decides on an on-time event that may be forgotten or a duplicate; else holds it."""
        events, keys = ops.events, shard.keys
        slot = int(events.slots[i])
        if events.times[i] <= keys.markers[slot]:
            reason = Reason.FORGOTTEN
        elif self._is_duplicate(shard, ops, i):
            reason = Reason.DUPLICATE
        else:
            # Where this batch releases it, that operation is already in the list.
            if ops.stays[i]:
                table = shard.held.new_table(1)
                table.append(events, np.array([i]))
                shard.held.add(table)
                keys.held[slot] += 1
            return
        results.reason[i] = _CODE[reason]
        mine = same_key(events.slots, slot)
        ops.cancelled[mine] |= ops.released[mine] & (events.offsets[mine] == events.offsets[i])

    def _is_duplicate(self, shard: Shard, ops: Operations, i: int) -> bool:
        """Looks an event's id up in the key's kept history and among its held events."""
        events, keys, pool = ops.events, shard.keys, shard.pool
        slot, event_id = int(events.slots[i]), events.ids[i]
        if event_id is None:
            return False
        row, horizon = int(keys.heads[slot]), int(ops.horizon[i])
        while row >= 0 and pool.times[row] >= horizon:
            if pool.ids[row] == event_id:
                return True
            row = int(pool.previous[row])
        waiting = self._waiting(ops, i)
        if any(known == event_id for known in events.ids[waiting].tolist()):
            return True
        return shard.held.has_id(slot, event_id, int(events.offsets[i]))

    def _apply(self, shard: Shard, ops: Operations, results: Results, run: Rows) -> None:
        """Applies one event of each of several keys, wherever in the key's history it belongs."""
        events, keys, pool = ops.events, shard.keys, shard.pool
        slots, times = events.slots[run], events.times[run]
        heads = keys.heads[slots]
        known = heads >= 0
        newest = np.where(known, pool.times[heads], NEVER)
        alive = known & ~self._policy.life_over(newest, keys.finished[slots], ops.life[run])
        reason = np.full(len(run), NO_REASON, np.int8)
        reason[ops.action[run] == Action.REJECT_LATE] = _CODE[Reason.LATE]
        for j in np.flatnonzero(ops.checked[run]).tolist():
            if self._is_duplicate(shard, ops, int(run[j])):
                reason[j] = _CODE[Reason.DUPLICATE]
        reason[alive & keys.finished[slots]] = _CODE[Reason.AFTER_TERMINAL]
        reason[times <= keys.markers[slots]] = _CODE[Reason.FORGOTTEN]
        results.reason[run] = reason
        go = reason == NO_REASON
        if go.any():
            self._insert(shard, ops, results, run[go], np.where(alive, heads, -1)[go])

    def _insert(
        self, shard: Shard, ops: Operations, results: Results, run: Rows, heads: Rows
    ) -> None:
        """Puts one event into each of several keys and recomputes the events after it.

        Args:
            shard: the shard.
            ops: the operations.
            results: where the outcome goes.
            run: the operations to apply.
            heads: the newest row of each key's life, -1 where the event starts one.
        """
        events, keys, pool = ops.events, shard.keys, shard.pool
        times = events.times[run]
        before, after, depth = _rows_after(pool, heads, times)
        length = depth + 1
        total = int(length.sum())
        base = pool.take(total)
        ends = np.cumsum(length)
        begins = ends - length
        starts = base + begins
        self._write_rows(shard, ops, run, starts)
        for level, (which, old) in enumerate(after):
            rows = starts[which] + depth[which] - level
            for column in (pool.times, pool.offsets, pool.slots, pool.raw, pool.ids, pool.models):
                column[rows] = column[old]
        rows = base + np.arange(total)
        place = np.arange(total) - np.repeat(begins, length)
        pool.previous[rows] = rows - 1
        pool.previous[starts] = before
        older = np.where(before >= 0, pool.counts[before], 0)
        pool.counts[rows] = np.repeat(older, length) + place + 1
        earliest = np.where(before >= 0, pool.first_times[before], times)
        pool.first_times[rows] = np.repeat(earliest, length)
        x, y, good = self._stepper.step(shard, rows, place)
        fine = np.logical_and.reduceat(good, begins)
        results.reason[run[~fine]] = _CODE[Reason.NON_FINITE]
        run, last, new = run[fine], ends[fine] - 1, heads[fine] < 0
        slots, late = events.slots[run], ops.late[run]
        on_time = np.where(depth[fine] == 0, int(Kind.ON_TIME), int(Kind.REVISION))
        kind = np.where(late, int(self._policy.late_kind), on_time)
        keys.heads[slots] = base + last
        keys.sequences[slots] = np.where(new, 0, keys.sequences[slots]) + (kind > 0)
        keys.late_seen[slots] = np.where(new, 0, keys.late_seen[slots]) + late
        keys.epochs[slots] = np.where(new, times[fine], keys.epochs[slots])
        keys.finished[slots] = events.terminal[run]
        results.applied[run] = True
        results.kind[run] = kind
        results.row[run] = base + last
        results.sequence[run] = keys.sequences[slots]
        results.epoch[run] = keys.epochs[slots]
        results.late_seen[run] = keys.late_seen[slots]
        results.final[run] = events.terminal[run]
        results.y[run] = y[last]
        if results.x is not None:
            results.x[run] = x[last]


def _rows_after(
    pool: Pool, heads: Rows, times: Int64s
) -> tuple[Rows, list[tuple[Rows, Rows]], Int64s]:
    """Walks each key back to where an event belongs; ties go after what is there.

    Returns:
        The row before the event (-1: none); the rows after it from the newest backwards, level by
        level as (which key, which row); and the number of rows after it for each key.
    """
    before = heads.copy()
    depth = np.zeros(len(heads), np.int64)
    after: list[tuple[Rows, Rows]] = []
    which = np.flatnonzero(before >= 0)
    while True:
        which = which[pool.times[before[which]] > times[which]]
        if not len(which):
            return before, after, depth
        rows = before[which]
        after.append((which, rows))
        depth[which] += 1
        before[which] = pool.previous[rows]
        which = which[before[which] >= 0]
