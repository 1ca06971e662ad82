"""The records of simulated shipments: their JSON, and blocks of them with offsets.

What is drawn, and how disorder comes about, is in `jobs.simulate`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.log import Columns

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

LANES: Final = 200
STATIONS: Final = 40


class ShipmentEvent(msgspec.Struct, gc=False):
    """The value of a record."""

    shipment_id: str
    event_id: str
    event_time_ms: int
    type: str
    lane: str
    station: str
    weight_kg: float | None
    distance_km: float


class Heartbeat(msgspec.Struct, gc=False):
    """The value of a heartbeat record."""

    type: str
    event_time_ms: int


@dataclass(frozen=True, slots=True)
class World:
    """What does not change during the log: stations, lanes, and each shipment's own facts."""

    ids: list[str]
    home: Int64s  # partition of each shipment
    lane_names: list[str]
    lane_ends: Int64s  # (lanes, 2): origin and destination station
    lane_slowness: Floats
    clock_ms: Int64s
    lane: Int64s
    counts: Int64s
    firsts: Int64s  # index of each shipment's first event
    weight_kg: list[float | None]
    distance_km: Floats
    lost: NDArray[np.bool_]
    gap_ms: float


class EventEncoder:
    """Makes the JSON of events."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stations = [f"S{number:02d}" for number in range(STATIONS)]
        self._json = msgspec.json.Encoder()

    def encode(
        self,
        shipment: Int32s,
        rank: Int32s,
        station: Int64s,
        event_time_ms: Int64s,
    ) -> list[bytes | None]:
        """Returns the value of each record, given its shipment, rank in it, station and time."""
        world = self._world
        lane = world.lane[shipment]
        is_last = rank == world.counts[shipment] - 1
        kind = np.where(is_last & ~world.lost[shipment], 2, np.minimum(rank, 1)).tolist()
        numbers = shipment.tolist()
        distance = np.where(rank == 0, 0.0, world.distance_km[(lane + rank) % LANES]).tolist()
        ids, names, weights = world.ids, world.lane_names, world.weight_kg
        kinds = ("registered", "scan", "delivered")
        rows = map(
            ShipmentEvent,
            [ids[i] for i in numbers],
            [f"{ids[i]}-{j}" for i, j in zip(numbers, rank.tolist(), strict=True)],
            event_time_ms.tolist(),
            [kinds[k] for k in kind],
            [names[i] for i in lane.tolist()],
            [self._stations[i] for i in station.tolist()],
            [weights[i] for i in numbers],
            distance,
        )
        # JSON holds no raw newline, so the split is exact; the last piece is empty.
        return [*self._json.encode_lines(list(rows)).split(b"\n")[:-1]]


@dataclass(frozen=True, slots=True)
class Block:
    """Records in order of arrival, without offsets yet."""

    partitions: Int64s
    arrival_ms: Int64s
    keys: list[bytes | None]
    values: list[bytes | None]

    def with_heartbeats(self, beats_ms: Int64s, partitions: int) -> "Block":
        """Adds a heartbeat to every partition at each of the times given."""
        values = [
            msgspec.json.encode(Heartbeat("heartbeat", at))
            for at in beats_ms.tolist()
            for _ in range(partitions)
        ]
        arrivals = np.concatenate([self.arrival_ms, np.repeat(beats_ms, partitions)])
        homes = np.concatenate([self.partitions, np.tile(np.arange(partitions), len(beats_ms))])
        order = np.argsort(arrivals, kind="stable")
        keys = [*self.keys, *([None] * len(values))]
        every = [*self.values, *values]
        at = order.tolist()
        return Block(homes[order], arrivals[order], [keys[i] for i in at], [every[i] for i in at])

    def at_offsets(self, next_offset: Int64s) -> Columns:
        """Gives each record the next offset of its partition, and counts on."""
        offsets = np.empty_like(self.partitions)
        for partition in np.unique(self.partitions).tolist():
            here = self.partitions == partition
            count = int(here.sum())
            offsets[here] = next_offset[partition] + np.arange(count)
            next_offset[partition] += count
        return Columns(self.partitions, offsets, self.arrival_ms, self.keys, self.values)
