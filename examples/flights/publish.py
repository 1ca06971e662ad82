"""SIMULATED: when each event reached the log, and so in which order and at which offset.

The data knows when a flight left and arrived, not when the message did, so this rule makes it up,
from one seed. Nothing else in the log is made up. The rule, for an event at time t:

- its station is the origin for `departed`, the destination for `arrived`; each station's clock is
  ahead of the broker's by a constant, normal with 15 s deviation, at most 45 s either way;
- the route's congestion c is how many events its (origin, dest) had in the hour before t;
- the upload takes 20 s times (1 + c / 2) in the median, log-normal with sigma 0.8;
- with probability 0.03 + 0.015 c, at most 0.12, the upload gets stuck, and takes longer by a Pareto
  time of at least 15 minutes with exponent 1, at most 12 hours;
- with probability 0.002 it is sent twice, the second time later by 10 minutes on average;
- published at t - clock + upload. That is the Kafka timestamp, and the order of the offsets.
"""

from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np

from examples.flights.events import HOUR_MS, MINUTE_MS, Event
from operators.partitioner import partition_for

PARTITIONS = 4
SEED = 2013
CLOCK_DEVIATION_MS = 15_000
CLOCK_LIMIT_MS = 45_000
UPLOAD_MEDIAN_MS = 20_000
UPLOAD_SIGMA = 0.8
STUCK_BASE, STUCK_PER_EVENT, STUCK_LIMIT = 0.03, 0.015, 0.12
STUCK_LEAST_MS = 15 * MINUTE_MS
STUCK_EXPONENT = 1.0
STUCK_MOST_MS = 12 * HOUR_MS
RESENT_SHARE = 0.002
RESENT_MEAN_MS = 10 * MINUTE_MS


class Published(NamedTuple):
    """One record of the log, and the event in it."""

    partition: int
    offset: int
    timestamp_ms: int
    event: Event


def congestion(events: list[Event]) -> list[int]:
    """How many events each event's route had in the hour before it; events in order of time."""
    recent: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    counts = []
    for event in events:
        times = recent[event.origin, event.dest]
        while times and times[0] < event.at_ms - HOUR_MS:
            times.popleft()
        counts.append(len(times))
        times.append(event.at_ms)
    return counts


def clock_offsets_ms(rng: np.random.Generator, stations: list[str]) -> dict[str, int]:
    """How far each station's clock is ahead of the broker's."""
    drawn = rng.normal(0.0, CLOCK_DEVIATION_MS, len(stations))
    limited = np.clip(drawn, -CLOCK_LIMIT_MS, CLOCK_LIMIT_MS).astype(np.int64)
    return dict(zip(stations, limited.tolist(), strict=True))


def upload_times_ms(rng: np.random.Generator, counts: list[int]) -> list[int]:
    """How long each upload takes, given the congestion of its route."""
    busy = np.asarray(counts, dtype=np.float64)
    upload = UPLOAD_MEDIAN_MS * (1 + busy / 2) * rng.lognormal(0.0, UPLOAD_SIGMA, busy.size)
    chance = np.minimum(STUCK_BASE + STUCK_PER_EVENT * busy, STUCK_LIMIT)
    stuck = rng.random(busy.size) < chance
    wait = STUCK_LEAST_MS * (1 + rng.pareto(STUCK_EXPONENT, busy.size))
    total = upload + np.where(stuck, np.minimum(wait, STUCK_MOST_MS), 0)
    return [int(milliseconds) for milliseconds in total]


def publish(events: list[Event], seed: int = SEED) -> list[Published]:
    """The log of the events, partition by partition in offset order.

    Args:
        events: In order of (time, id).
        seed: Of the simulated delays.

    Returns:
        Every event once, and 0.2 % of them twice; offsets from 0 without gaps.
    """
    rng = np.random.default_rng(seed)
    stations = sorted({event.origin for event in events} | {event.dest for event in events})
    clocks = clock_offsets_ms(rng, stations)
    uploads = upload_times_ms(rng, congestion(events))
    resent = rng.random(len(events)) < RESENT_SHARE
    pauses = rng.exponential(RESENT_MEAN_MS, len(events))
    by_partition: list[list[tuple[int, int, Event]]] = [[] for _ in range(PARTITIONS)]
    for index, event in enumerate(events):
        station = event.origin if event.type == "departed" else event.dest
        at_ms = event.at_ms - clocks[station] + uploads[index]
        records = by_partition[partition_for(event.tailnum.encode(), "murmur2", PARTITIONS)]
        records.append((at_ms, index, event))
        if resent[index]:
            records.append((at_ms + int(pauses[index]) + 1, index, event))
    return [
        Published(partition, offset, at_ms, event)
        for partition, records in enumerate(by_partition)
        for offset, (at_ms, _, event) in enumerate(sorted(records))
    ]
