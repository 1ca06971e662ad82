"""What the model has to beat, and the labels file that carries it beside each label.

- last known delay: of the aircraft's newest event, the arrival delay if it has arrived, else the
  departure delay;
- route mean: of the labels of the training months, by event type, origin and destination;
- corrected: the last known delay plus the route's mean difference of label and last known delay
  over the training months. Nobody asked for it, but for an aircraft in the air it is much harder.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from examples.flights.events import Event, Label

Route = tuple[str, str, str]


class LabelRow(msgspec.Struct):
    """A label as it lies in the labels file: found by key and the newest event's time."""

    key: str
    event_time_ms: int
    event_id: str
    type: str
    label_min: int
    label_at_ms: int
    last_known_min: int
    route_mean_min: float
    corrected_min: float


def last_known_min(event: Event) -> int:
    """The newest delay that is known when the event happens."""
    return event.dep_delay_min if event.arr_delay_min is None else event.arr_delay_min


class Means:
    """Means by route, and by event type for a route never seen."""

    def __init__(self) -> None:
        self._sums: dict[Route, float] = defaultdict(float)
        self._counts: dict[Route, int] = defaultdict(int)

    def add(self, event: Event, number: float) -> None:
        """Counts a number in."""
        for route in (self._route(event), (event.type, "", "")):
            self._sums[route] += number
            self._counts[route] += 1

    def of(self, event: Event) -> float:
        """The mean for the event's route."""
        route = self._route(event)
        if route not in self._counts:
            route = (event.type, "", "")
        return self._sums[route] / self._counts[route]

    @staticmethod
    def _route(event: Event) -> Route:
        return (event.type, event.origin, event.dest)


def label_rows(labels: Iterable[Label], known_before_ms: int) -> list[LabelRow]:
    """Labels with the baselines, which learn only from labels that came before a time.

    Args:
        labels: All labels of the year.
        known_before_ms: The end of the training months.
    """
    labels = list(labels)
    delays, differences = Means(), Means()
    for label in labels:
        if label.label_at_ms < known_before_ms:
            delays.add(label.event, label.label_min)
            differences.add(label.event, label.label_min - last_known_min(label.event))
    return [
        LabelRow(
            key=event.tailnum,
            event_time_ms=event.at_ms,
            event_id=event.event_id,
            type=event.type,
            label_min=label_min,
            label_at_ms=label_at_ms,
            last_known_min=last_known_min(event),
            route_mean_min=round(delays.of(event), 2),
            corrected_min=round(last_known_min(event) + differences.of(event), 2),
        )
        for event, label_min, label_at_ms in labels
    ]


def write_labels(path: Path, rows: list[LabelRow]) -> None:
    """Writes a labels file (.jsonl.gz); the same rows give the same bytes."""
    lines = msgspec.json.Encoder().encode_lines(rows)
    path.write_bytes(gzip.compress(lines, 9, mtime=0))


def read_labels(path: Path) -> list[LabelRow]:
    """Reads a labels file."""
    return msgspec.json.Decoder(LabelRow).decode_lines(gzip.decompress(path.read_bytes()))
