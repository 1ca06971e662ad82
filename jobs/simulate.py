"""Simulated shipments: a recorded log of any size with the disorder that real ones have.

A shipment is a stream key. It is registered at its origin, scanned at stations along its lane
(origin to destination), and delivered; one in ten is lost and just falls silent. Lanes are of very
unequal use, and a station's uploads are slower the busier its lanes are. Each station's clock is
off by its own amount. An event is published when it is uploaded, which gives the order of the log
and the Kafka timestamps:

    upload delay      log-normal, seconds; up to three times longer on the hottest lanes
    disordered        uploads that come after the key's next event, and still within the bound
    late              uploads that come after the bound, by a heavy tail (Pareto) of up to a day
    duplicates        sent again within minutes: the same event id, the same bytes

Disordered and late events are chosen by count, so their shares are met exactly, whatever the size:
all other delays and clock errors are kept below a fraction of the time between two scans. The same
settings and seed give the same log, on any machine and under any hash seed. Times are held as
arrays for the whole log (about 60 bytes an event); the records themselves are made block by block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.simulate_records import LANES, STATIONS, Block, EventEncoder, Int32s, Int64s, World
from operators.partitioner import Partitioner, partitions_for
from schemas.log import Columns, LogWriter, Manifest

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
START_MS: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z
SCAN_GAP_MS: Final = 20 * MINUTE_MS
BOUND_MIN_MS: Final = 10 * MINUTE_MS
#: No clock error and no ordinary delay is beyond this share of the time between two scans.
_SLACK: Final = 0.08
_LOST: Final = 0.1
_NEVER: Final = 2**62
_BLOCK_ROWS: Final = 1 << 15


class SettingsError(ValueError):
    """Settings that no log can meet."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to simulate.

    Attributes:
        events: records in the log, duplicates included, heartbeats not.
        keys: shipments.
        seed: of every draw.
        partitions: of the topic.
        partitioner: how producers choose a partition.
        disorder: share of events that arrive after a later event of their own shipment.
        late: share of events that arrive after the bound on out-of-orderness; part of `disorder`.
        duplicates: share of records that repeat an earlier one.
        out_of_orderness_ms: the bound that the spec sets.
        heartbeat_ms: time between two heartbeats of a partition; None for no heartbeats.
        start_ms: when the first shipment may start.
    """

    events: int
    keys: int
    seed: int = 0
    partitions: int = 4
    partitioner: Partitioner = "murmur2"
    disorder: float = 0.05
    late: float = 0.02
    duplicates: float = 0.01
    out_of_orderness_ms: int = 60 * MINUTE_MS
    heartbeat_ms: int | None = None
    start_ms: int = START_MS

    def __post_init__(self) -> None:
        for name in ("events", "keys", "partitions"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.out_of_orderness_ms < BOUND_MIN_MS:
            raise SettingsError(
                f"out_of_orderness_ms must be at least {BOUND_MIN_MS}, got "
                f"{self.out_of_orderness_ms}: below it, ordinary uploads would be late too"
            )
        for name in ("disorder", "late", "duplicates"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(f"{name} is a share, 0 to below 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise SettingsError(f"seed must be at least 0, got {self.seed}")
        if self.heartbeat_ms is not None and self.heartbeat_ms < 1:
            raise SettingsError(f"heartbeat_ms must be at least 1, got {self.heartbeat_ms}")
        if self.keys > self.distinct_events:
            raise SettingsError(
                f"{self.keys} keys need as many events, but {self.events} events with a share of "
                f"{self.duplicates} duplicates leave {self.distinct_events}; raise --events"
            )
        if self.late > self.disorder:
            raise SettingsError(
                f"late is part of disorder, but {self.late} is more than {self.disorder}; "
                "raise --disorder"
            )

    @property
    def distinct_events(self) -> int:
        """Events without the duplicates."""
        return self.events - round(self.events * self.duplicates)


def simulate_shipments(settings: Settings) -> Iterator[Columns]:
    """Simulates a log of shipments, block by block, in the order in which it was published.

    Raises:
        SettingsError: more disordered or late events are asked for than the shipments have room
            for.
    """
    rng = np.random.default_rng(settings.seed)
    world = _world(settings, rng)
    shipment = np.repeat(np.arange(settings.keys, dtype=np.int32), world.counts)
    rank = (np.arange(len(shipment)) - world.firsts[shipment]).astype(np.int32)
    true_ms = _true_times(settings, world, shipment, rng)
    station = _stations(world, shipment, rank)
    event_time_ms = true_ms + world.clock_ms[station]
    arrival_ms = true_ms + _ordinary_delays(world, shipment, rng)
    _displace(settings, world, shipment, rank, event_time_ms, arrival_ms, rng)
    event, arrival_ms = _with_duplicates(settings, world, arrival_ms, rng)
    return _blocks(settings, world, (shipment, rank, station, event_time_ms), event, arrival_ms)


def write_shipments(
    settings: Settings, path: Path | str, progress: Callable[[int], None] | None = None
) -> Manifest:
    """Simulates shipments into a log file, whose suffix decides its form.

    Args:
        settings: what to simulate.
        path: the log; its manifest is written beside it.
        progress: called with the records written so far.

    Raises:
        SettingsError: more disordered or late events are asked for than the shipments have room
            for.
    """
    written = 0
    with LogWriter(path, settings.partitions) as writer:
        for columns in simulate_shipments(settings):
            writer.write(columns)
            written += len(columns)
            if progress:
                progress(written)
    return writer.manifest


def _world(settings: Settings, rng: np.random.Generator) -> World:
    keys, distinct = settings.keys, settings.distinct_events
    ends = np.empty((LANES, 2), dtype=np.int64)
    ends[:, 0] = rng.integers(0, STATIONS, LANES)
    ends[:, 1] = (ends[:, 0] + rng.integers(1, STATIONS, LANES)) % STATIONS
    share = 1.0 / np.arange(1, LANES + 1)
    share /= share.sum()
    weights = rng.gamma(4.0, size=keys)
    counts = 1 + rng.multinomial(distinct - keys, weights / weights.sum())
    gap_ms = float(SCAN_GAP_MS)
    clock_ms = np.clip(rng.laplace(0.0, 20_000.0, STATIONS), -_SLACK * gap_ms, _SLACK * gap_ms)
    weight_kg: list[float | None] = np.round(rng.lognormal(1.0, 0.8, keys), 2).tolist()
    for unweighed in np.flatnonzero(rng.random(keys) < 0.02).tolist():
        weight_kg[unweighed] = None
    width = len(str(keys - 1))
    ids = [f"SH{number:0{width}d}" for number in range(keys)]
    return World(
        ids=ids,
        home=partitions_for(list(map(str.encode, ids)), settings.partitioner, settings.partitions),
        lane_names=[f"S{origin:02d}-S{end:02d}" for origin, end in ends.tolist()],
        lane_ends=ends,
        lane_slowness=1.0 + 2.0 * share / share[0],
        clock_ms=clock_ms.astype(np.int64),
        lane=rng.choice(LANES, size=keys, p=share),
        counts=counts,
        firsts=np.cumsum(counts) - counts,
        weight_kg=weight_kg,
        distance_km=np.round(rng.uniform(5.0, 400.0, LANES), 1),
        lost=rng.random(keys) < _LOST,
        gap_ms=gap_ms,
    )


def _true_times(
    settings: Settings, world: World, shipment: Int32s, rng: np.random.Generator
) -> Int64s:
    """Draws when each event happened; a quarter of the mean gap at least lies between two scans."""
    gaps = world.gap_ms * (0.25 + 0.75 * rng.standard_exponential(len(shipment)))
    since = np.cumsum(gaps)
    since -= since[world.firsts][shipment]
    lives = since[world.firsts + world.counts - 1]
    # About six in ten shipments are on their way at any time.
    span = max(float(DAY_MS), 1.6 * float(lives.mean()), float(lives.max()))
    starts = rng.random(settings.keys) * (span - lives)
    true_ms: Int64s = settings.start_ms + (since + starts[shipment]).astype(np.int64)
    return true_ms


def _stations(world: World, shipment: Int32s, rank: Int32s) -> Int64s:
    """Walks each shipment from its origin over other stations to its destination."""
    lane = world.lane[shipment]
    origin, destination = world.lane_ends[lane].T
    station: Int64s = (origin + rank * (1 + lane % 7)) % STATIONS
    is_last = rank == world.counts[shipment] - 1
    station[is_last] = destination[is_last]
    return station


def _ordinary_delays(world: World, shipment: Int32s, rng: np.random.Generator) -> Int64s:
    delays = rng.lognormal(np.log(4_000.0), 0.8, len(shipment))
    delays *= world.lane_slowness[world.lane[shipment]]
    delays_ms: Int64s = np.minimum(delays, _SLACK * world.gap_ms).astype(np.int64)
    return delays_ms


def _displace(
    settings: Settings,
    world: World,
    shipment: Int32s,
    rank: Int32s,
    event_time_ms: Int64s,
    arrival_ms: Int64s,
    rng: np.random.Generator,
) -> None:
    """Moves the arrival of the chosen events behind that of their shipment's next event.

    Only every second event of a shipment can be chosen, so the next one is always where it was.
    """
    parity = rng.integers(0, 2, settings.keys, dtype=np.int32)
    movable = (rank % 2 == parity[shipment]) & (rank < world.counts[shipment] - 1)
    at = np.flatnonzero(movable)
    late_count = round(settings.events * settings.late)
    disordered_count = round(settings.events * settings.disorder) - late_count

    behind_next_ms = arrival_ms[at + 1] + 1 + rng.integers(0, 5_000, len(at))
    late_from_ms = _late_from(settings, world, shipment, movable, event_time_ms, arrival_ms)
    can_be_late = late_from_ms < _NEVER
    can_be_on_time = behind_next_ms - event_time_ms[at] < 0.8 * settings.out_of_orderness_ms
    late = rng.permutation(np.flatnonzero(can_be_late))[:late_count]
    can_be_on_time[late] = False
    disordered = rng.permutation(np.flatnonzero(can_be_on_time))[:disordered_count]
    if len(late) < late_count or len(disordered) < disordered_count:
        raise SettingsError(
            f"{disordered_count} disordered and {late_count} late events are asked for, but these "
            f"shipments have room for {len(disordered)} and {len(late)} of the bound's "
            f"{settings.out_of_orderness_ms} ms; ask for less --disorder, more --events or fewer "
            "--keys"
        )
    arrival_ms[at[disordered]] = behind_next_ms[disordered]
    tail_ms = np.minimum(rng.pareto(1.1, late_count) * 0.5 * settings.out_of_orderness_ms, DAY_MS)
    arrival_ms[at[late]] = np.maximum(
        behind_next_ms[late], late_from_ms[late] + tail_ms.astype(np.int64)
    )


def _late_from(
    settings: Settings,
    world: World,
    shipment: Int32s,
    movable: NDArray[np.bool_],
    event_time_ms: Int64s,
    arrival_ms: Int64s,
) -> Int64s:
    """Returns from when on each movable event would be late: its partition's watermark is past it.

    The watermark is that of the events that stay where they are, so it holds whatever is chosen.
    """
    home = world.home[shipment]
    late_from_ms = np.full(int(movable.sum()), _NEVER, dtype=np.int64)
    for partition in range(settings.partitions):
        staying = np.flatnonzero((home == partition) & ~movable)
        staying = staying[np.argsort(arrival_ms[staying], kind="stable")]
        newest_ms = np.maximum.accumulate(event_time_ms[staying])
        here = home[movable] == partition
        bound_ms = event_time_ms[movable][here] + settings.out_of_orderness_ms
        passed_by = np.searchsorted(newest_ms, bound_ms, side="right")
        passed_ms = np.append(arrival_ms[staying] + 1, _NEVER)
        late_from_ms[here] = passed_ms[passed_by]
    return late_from_ms


def _with_duplicates(
    settings: Settings, world: World, arrival_ms: Int64s, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Int64s]:
    """Returns, in order of publication, which event each record carries, and when it arrived."""
    repeats = settings.events - len(arrival_ms)
    repeated = rng.integers(0, len(arrival_ms), repeats)
    pause_ms = 1 + np.minimum(rng.exponential(30_000.0, repeats), _SLACK * world.gap_ms)
    arrivals = np.concatenate([arrival_ms, arrival_ms[repeated] + pause_ms.astype(np.int64)])
    order = np.argsort(arrivals, kind="stable")
    event = np.concatenate([np.arange(len(arrival_ms)), repeated])[order]
    return event, arrivals[order]


def _blocks(
    settings: Settings,
    world: World,
    events: tuple[Int32s, Int32s, Int64s, Int64s],
    event: NDArray[np.intp],
    arrival_ms: Int64s,
) -> Iterator[Columns]:
    keys = [name.encode() for name in world.ids]
    next_offset = np.zeros(settings.partitions, dtype=np.int64)
    beat_ms = settings.heartbeat_ms
    next_beat_ms = settings.start_ms + (beat_ms or 0)
    encoder = EventEncoder(world)
    for start in range(0, len(event), _BLOCK_ROWS):
        chosen = event[start : start + _BLOCK_ROWS]
        arrived = arrival_ms[start : start + _BLOCK_ROWS]
        shipment, rank, station, event_time_ms = (column[chosen] for column in events)
        values = encoder.encode(shipment, rank, station, event_time_ms)
        block = Block(world.home[shipment], arrived, [keys[i] for i in shipment.tolist()], values)
        if beat_ms:
            beats = np.arange(next_beat_ms, int(arrived[-1]) + 1, beat_ms, dtype=np.int64)
            next_beat_ms += len(beats) * beat_ms
            block = block.with_heartbeats(beats, settings.partitions)
        yield block.at_offsets(next_offset)
