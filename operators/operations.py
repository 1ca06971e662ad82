"""What happens to the keys of a shard in one batch, and what came of it, as columns."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.columnar import Rows
from operators.held import HeldEvents
from operators.policy import Bools, Int64s, Reason

REASONS = tuple(Reason)
NO_REASON = -1


class Action(IntEnum):
    """What an operation is."""

    APPLY = 0  # an event, to be applied
    REJECT_LATE = 1  # a late event under `drop`: only the reason is open
    HOLD = 2  # an on-time event under `on_watermark` whose id or key needs a closer look
    FORGET = 3  # a tombstone under `forget`


@dataclass(slots=True)
class Operations:
    """What happens to the keys of a shard in one batch, n operations.

    Attributes:
        events: times, offsets, slots, raw numbers, ids, keys and values, as a table of n rows.
        action: `Action`, shape (n,).
        released: operations that apply a held event, shape (n,).
        position: the record that causes each, an index into the batch, shape (n,).
        late: late events, shape (n,).
        lateness: milliseconds behind the watermark at arrival, shape (n,).
        life: watermark to judge the key's life by, shape (n,).
        horizon: where the kept history begins, shape (n,).
        watermark: watermark that a prediction shows, shape (n,).
        careful: operations that are never plain, shape (n,).
        checked: operations whose id must be looked up, shape (n,).
        stays: held events that this batch does not release, shape (n,).
    """

    events: HeldEvents
    action: NDArray[np.int8]
    released: Bools
    position: Int64s
    late: Bools
    lateness: Int64s
    life: Int64s
    horizon: Int64s
    watermark: Int64s
    careful: Bools
    checked: Bools
    stays: Bools
    cancelled: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.cancelled = np.zeros(len(self.action), np.bool_)


@dataclass(slots=True)
class Results:
    """What came of n operations.

    Attributes:
        reason: code in `REASONS`, -1 for none, shape (n,).
        applied: events that are part of their key now, shape (n,).
        kind: `Kind`, shape (n,).
        row: pool row of the key's newest event, shape (n,).
        y: outputs, float64, shape (n, numbers).
        x: input rows of the newest events, shape (n, columns), where asked for.
    """

    reason: NDArray[np.int8]
    applied: Bools
    kind: NDArray[np.int8]
    row: Rows
    sequence: Int64s
    epoch: Int64s
    late_seen: Int64s
    final: Bools
    y: NDArray[np.float64]
    x: NDArray[Any] | None

    @classmethod
    def empty(cls, n: int, outputs: int, columns: int, dtype: np.dtype[Any] | None) -> "Results":
        """Returns results of n operations, nothing done yet."""
        zeros = [np.zeros(n, np.int64) for _ in range(4)]
        return cls(
            reason=np.full(n, NO_REASON, np.int8),
            applied=np.zeros(n, np.bool_),
            kind=np.zeros(n, np.int8),
            row=zeros[0],
            sequence=zeros[1],
            epoch=zeros[2],
            late_seen=zeros[3],
            final=np.zeros(n, np.bool_),
            y=np.zeros((n, outputs)),
            x=None if dtype is None else np.zeros((n, columns), dtype),
        )
