"""Runs of equal numbers in sorted arrays: which key, which wave."""

import numpy as np

from operators.columnar import Rows
from operators.policy import Bools, Int64s


def same_key(slots: Int64s, slot: int) -> slice:
    """Returns where a slot stands among sorted slots."""
    return slice(
        int(np.searchsorted(slots, slot, side="left")),
        int(np.searchsorted(slots, slot, side="right")),
    )


def starts(groups: Int64s) -> Bools:
    """Tells where a run of equal numbers begins."""
    start = np.ones(len(groups), np.bool_)
    np.not_equal(groups[1:], groups[:-1], out=start[1:])
    return start


def ends(groups: Int64s) -> Bools:
    """Tells where a run of equal numbers ends."""
    end = np.ones(len(groups), np.bool_)
    np.not_equal(groups[1:], groups[:-1], out=end[:-1])
    return end


def running(flags: Bools, begins: Rows, group: Int64s) -> Int64s:
    """Counts the flags so far, from the beginning of each group, this one included."""
    total = np.cumsum(flags)
    running: Int64s = total - (total[begins] - flags[begins])[group]
    return running


def by_number(numbers: Int64s) -> Rows:
    """Returns the indices sorted by number, ties in order."""
    return np.argsort(numbers, kind="stable") if numbers.any() else np.arange(len(numbers))
