"""Watermark, lateness and lives: every rule about time, each as one formula over arrays.

The formulas take times in and give verdicts out; they know no model and no engine. The array
forms are the only forms: one event is a batch of one.

Danger: all arithmetic is int64. Times of events are bounded by `min_event_time_ms` below and by the
record timestamp above, spans by `schemas.spec.MAX_SPAN_MS`, so no sum here overflows.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from schemas.spec import Spec

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Stands for "no event yet" in place of a greatest event time; far below every possible time.
NEVER = -(2**62)
#: The greatest record timestamp the bound on the future is computed with.
_GREATEST_TIMESTAMP = 2**62


class Reason(StrEnum):
    """Why a record left as a reject, in the order of the checks."""

    TOMBSTONE = "tombstone"
    NO_KEY = "no_key"
    MALFORMED = "malformed"
    MISROUTED = "misrouted"
    FUTURE_TIME = "future_time"
    IMPLAUSIBLE_TIME = "implausible_time"
    TOO_LATE = "too_late"
    FORGOTTEN = "forgotten"
    AFTER_TERMINAL = "after_terminal"
    DUPLICATE = "duplicate"
    LATE = "late"
    NON_FINITE = "non_finite"


class Kind(IntEnum):
    """What an applied event emits."""

    NONE = 0
    ON_TIME = 1
    REVISION = 2
    LATE_REVISION = 3


KIND_NAMES = ("none", "on_time", "revision", "late_revision")


@dataclass(frozen=True, slots=True)
class Policy:
    """The spec's times and choices, as the formulas need them; all spans in milliseconds."""

    out_of_orderness_ms: int
    allowed_lateness_ms: int
    max_future_ms: int
    min_event_time_ms: int
    idle_ttl_ms: int
    finished_ttl_ms: int
    hold: bool
    drop_late: bool
    late_kind: Kind
    forget: bool

    @classmethod
    def of(cls, spec: Spec) -> "Policy":
        """Reads the policy out of a spec."""
        return cls(
            out_of_orderness_ms=spec.time.out_of_orderness_ms,
            allowed_lateness_ms=spec.time.allowed_lateness_ms,
            max_future_ms=spec.time.max_future_ms,
            min_event_time_ms=spec.time.min_event_time_ms,
            idle_ttl_ms=spec.policy.idle_ttl_ms,
            finished_ttl_ms=spec.policy.finished_ttl_ms,
            hold=spec.policy.emit == "on_watermark",
            drop_late=spec.policy.late == "drop",
            late_kind=Kind.LATE_REVISION if spec.policy.late == "repredict" else Kind.NONE,
            forget=spec.event.tombstone == "forget",
        )

    @property
    def keep_ms(self) -> int:
        """How far behind the watermark the horizon lies."""
        return 0 if self.drop_late else self.allowed_lateness_ms

    def horizon(self, max_event_time: int) -> int:
        """Returns where the kept history begins, given the greatest event time."""
        return max_event_time - self.out_of_orderness_ms - self.keep_ms

    def time_bounds(self, times: Int64s, timestamps: Int64s) -> tuple[Bools, Bools]:
        """Returns (too far after the record's timestamp, before the earliest plausible time)."""
        future = times > np.minimum(timestamps, _GREATEST_TIMESTAMP) + self.max_future_ms
        return future, times < self.min_event_time_ms

    def watermarks(self, times: Int64s, accepted: Bools, max_event_time: int) -> tuple[Int64s, int]:
        """Returns the watermark before each record and after the last, and the new greatest time.

        Args:
            times: event times, shape (n,).
            accepted: which records move the watermark, shape (n,).
            max_event_time: greatest event time accepted before, or `NEVER`.

        Returns:
            Watermarks of shape (n + 1,): [i] is before record i, [i + 1] after it; and the greatest
            event time after the last record.
        """
        greatest = np.empty(len(times) + 1, np.int64)
        greatest[0] = max_event_time
        np.copyto(greatest[1:], NEVER)
        np.copyto(greatest[1:], times, where=accepted)
        np.maximum.accumulate(greatest, out=greatest)
        return greatest - self.out_of_orderness_ms, int(greatest[-1])

    def life_over(self, newest: Int64s, finished: Bools, watermark: Int64s) -> Bools:
        """Tells whose life has ended by a watermark, given the newest event time of each."""
        ttl = np.where(finished, self.finished_ttl_ms, self.idle_ttl_ms)
        over: Bools = newest + ttl < watermark
        return over
