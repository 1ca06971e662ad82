"""Pool rows to features, outputs and next states, wave by wave.

Whatever is stepped, a new event, one after an insertion, one after a restore, is stepped here.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Rows
from operators.features import Context, FeaturePlan
from operators.groups import by_number, starts
from operators.model import StepModel
from operators.policy import Bools, Int64s
from operators.state import Shard


class Stepper:
    """Steps the models of one job.

    Args:
        plan: the features.
        models: the models in the order they take over.
    """

    def __init__(self, plan: FeaturePlan, models: list[StepModel]) -> None:
        self.plan = plan
        self.models = models
        self._cuts = np.array([m.declaration.from_event_time_ms for m in models[1:]], np.int64)
        self._resets = np.cumsum([0, *(not m.declaration.carry for m in models[1:])])

    def takes_over(self, before: int, after: int) -> bool:
        """Tells whether a horizon that moves from one time to another passes a cut-over."""
        return bool(((self._cuts > before) & (self._cuts <= after)).any())

    def model_of(self, times: Int64s) -> Int64s:
        """Returns which model steps the events at these times."""
        number: Int64s = np.searchsorted(self._cuts, times, side="right")
        return number

    def step(
        self, shard: Shard, rows: Rows, waves: Int64s
    ) -> tuple[NDArray[Any], NDArray[np.float64], Bools]:
        """Computes features, outputs and next states of pool rows, wave by wave.

        Args:
            shard: the shard.
            rows: pool rows, all but outputs and states filled in, shape (m,).
            waves: the wave of each; a row comes in a later wave than its previous row, shape (m,).

        Returns:
            Input rows, outputs, and which rows hold only finite numbers.
        """
        pool = shard.pool
        previous = pool.previous[rows]
        first = previous < 0
        x = self.plan.compute(
            Context(
                raw=pool.raw[rows],
                previous=pool.raw[previous],
                first=first,
                times=pool.times[rows],
                previous_times=pool.times[previous],
                first_times=pool.first_times[rows],
                counts=pool.counts[rows] - 1,
            ),
            self.models[0].dtype,
        )
        models = pool.models[rows]
        fresh = first | (self._resets[pool.models[previous]] != self._resets[models])
        y = np.empty((len(rows), self.models[0].output_size))
        # Sorted by wave (and model), a wave is one slice of every array.
        order = np.lexsort((models, waves)) if len(self.models) > 1 else by_number(waves)
        group = waves[order] * len(self.models) + models[order]
        edges = np.flatnonzero(starts(group)).tolist()
        sorted_x, sorted_y = x[order], y[order]
        before, after, blank = previous[order], rows[order], fresh[order]
        for begin, end in pairwise([*edges, len(rows)]):
            model = self.models[int(models[order[begin]])]
            state = pool.state[before[begin:end]]
            state[blank[begin:end]] = 0
            outputs, following = model.run(sorted_x[begin:end], state[:, : model.state_bytes])
            sorted_y[begin:end] = outputs
            pool.state[after[begin:end], : model.state_bytes] = following
        y[order] = sorted_y
        good = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
        for number, model in enumerate(self.models):
            mine = slice(None) if len(self.models) == 1 else np.flatnonzero(models == number)
            good[mine] &= model.finite(pool.state[rows[mine], : model.state_bytes])
        return x, y, good
