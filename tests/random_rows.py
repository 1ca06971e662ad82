"""From moves to rows: where an event falls in terms of the policy becomes times and offsets."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from tests.oracle import Row
from tests.random_jobs import Setup
from tests.random_texts import Oddity, apply_oddity

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Move:
    """One row to be, in terms of what came before it.

    Attributes:
        what: event, heartbeat or tombstone.
        partition: the row's partition, taken modulo their number.
        key: which of the partition's keys.
        near: the time that the event time is measured from: see `realise`.
        ticks: how far from there, in ticks.
        fine_ms: a millisecond more or less, where the unit can say it.
        event_id: "new", "null", or how many ids back an old one is taken from.
        type: the event type; "null" and "absent" are JSON null and no field.
        values: JSON texts of fields.
        oddity: a change to the JSON text, see `apply_oddity`.
        stamp_ms: how much later the record's own timestamp is than the event time; None: the
            earliest one that is accepted.
        offset_step: how far the offset moves; 0 and less is a redelivered record.
        away: whether the record lies in a partition that is not the key's home.
        kafka_key: "same", "null", "other", "empty" or "bytes" (no UTF-8).
    """

    what: str = "event"
    partition: int = 0
    key: int = 0
    near: str = "max"
    ticks: int = 0
    fine_ms: int = 0
    event_id: str = "new"
    type: str = "scan"
    values: tuple[tuple[str, str], ...] = ()
    oddity: Oddity | None = None
    stamp_ms: int | None = 0
    offset_step: int = 1
    away: bool = False
    kafka_key: str = "same"


class Writer:
    """Turns moves into rows; remembers just enough to aim at the boundaries."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.last_offset: dict[int, int] = {}
        self.max_time: dict[int, int] = {}
        self.newest: dict[tuple[int, str], int] = {}
        self.used: list[tuple[str, int]] = []

    def row(self, move: Move) -> Row:
        """The row of a move."""
        setup = self.setup
        home = move.partition % setup.partitions
        partition = (home + move.away) % setup.partitions
        keys = setup.keys(home) or ["a"]
        key = keys[move.key % len(keys)]
        offset = self.last_offset.get(partition, -1) + move.offset_step
        offset = max(offset, 0)
        self.last_offset[partition] = max(offset, self.last_offset.get(partition, -1))
        kafka_key: bytes | None = key.encode()
        if move.kafka_key != "same":
            kafka_key = {"null": None, "other": b"other", "empty": b"", "bytes": b"\xff\x00"}[
                move.kafka_key
            ]
        if move.what == "tombstone":
            return partition, offset, setup.start_ms, kafka_key, None
        event_id, id_time = self.choose_id(move)
        time = self.aim(move, partition, key, id_time)
        self.used.append((event_id, time))
        stamp = time + (move.stamp_ms or 0)
        if move.oddity is None and move.stamp_ms in (0, None) and move.near != "floor":
            self.max_time[partition] = max(time, self.max_time.get(partition, time))
            if move.what == "event":
                place = partition, key
                self.newest[place] = max(time, self.newest.get(place, time))
        return partition, offset, stamp, kafka_key, self.value(move, key, event_id, time)

    def choose_id(self, move: Move) -> tuple[str, int | None]:
        """The id, and the time of the event that had it before."""
        if move.event_id.isdigit() and self.used:
            return self.used[-min(int(move.event_id), len(self.used))]
        return f"e{len(self.used)}", None

    def aim(self, move: Move, partition: int, key: str, id_time: int | None) -> int:
        """The event time of a move."""
        setup = self.setup
        tick = setup.tick_ms
        greatest = self.max_time.get(partition, setup.start_ms)
        newest = self.newest.get((partition, key), greatest)
        watermark = greatest - setup.out_of_orderness * tick
        references = {
            "max": greatest,
            "watermark": watermark,
            "horizon": watermark - setup.allowed_lateness * tick,
            "newest": newest,
            "same": newest if id_time is None else id_time,
            "end": newest + (setup.idle_ttl + setup.out_of_orderness) * tick,
            "final": newest + (setup.finished_ttl + setup.out_of_orderness) * tick,
            "floor": setup.min_event_time_ms,
        }
        return references[move.near] + move.ticks * tick + move.fine_ms

    def value(self, move: Move, key: str, event_id: str, time: int) -> bytes:
        """The JSON of a move, changed by its oddity."""
        pairs: list[tuple[str, str]] = []
        if move.what == "heartbeat":
            pairs = [("type", '"beat"'), ("at", self.time_text(time))]
            if move.event_id != "new":
                pairs.append(("v", '"x"'))
        else:
            pairs = [("key", json.dumps(key, ensure_ascii=False))]
            if self.setup.ids != "none":
                pairs.append(("id", "null" if move.event_id == "null" else f'"{event_id}"'))
            pairs.append(("at", self.time_text(time)))
            pairs.append(
                ("type", move.type if move.type in ("null", "absent") else f'"{move.type}"')
            )
            pairs.extend(move.values)
        pairs = [pair for pair in pairs if pair[1] != "absent"]
        return apply_oddity(pairs, move.oddity)

    def time_text(self, time: int) -> str:
        """The event time as JSON, with digits finer than a millisecond where the unit has them."""
        unit, finer = self.setup.unit, time * 7 % 10
        if unit == "s":
            return str(time // 1000)
        if unit == "ms":
            return str(time)
        if unit == "us":
            return str(time * 1_000 + finer * 111)
        if unit == "ns":
            return str(time * 1_000_000 + finer * 111_111)
        moment = EPOCH + timedelta(milliseconds=time, microseconds=finer * 111)
        if self.setup.offset is not None and finer % 2:
            zone = datetime.fromisoformat(f"2000-01-01T00:00{self.setup.offset}").tzinfo
            return f'"{moment.astimezone(zone).replace(tzinfo=None).isoformat()}"'
        hours = [0, 2, -7, 0][finer % 4]
        text = moment.astimezone(timezone(timedelta(hours=hours))).isoformat()
        return f'"{text.replace("+00:00", "Z") if finer > 5 else text}"'
