"""How far off the predictions of a run were: absolute errors in minutes, beside the baselines.

Every prediction record counts that has a label, revisions too: each is something the job said. A
record is found again by its key and the time of the event it speaks as of. Records written twice
(delivery is at least once by default) count once. Delays have heavy tails, so the median of the
absolute error stands beside the mean.
"""

import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from examples.flights.baselines import LabelRow, read_labels
from schemas.records import Prediction

PREDICTORS = {
    "model": "the model",
    "last_known": "last known delay",
    "route_mean": "route mean",
    "corrected": "last known, corrected by route",
}
HEADINGS = ("model", "last", "route", "last+route")
SHORT_NAMES = {
    "late: what caused it": "caused by a late event",
    "late: ... and older than the newest": "  put before a newer one",
    "late: some in its life": "late events in its life",
    "late: none in its life": "no late event in its life",
}
EVENTS_SEEN = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 1 << 30))

Score = dict[str, Any]


def score(predictions_dir: Path | str, labels_path: Path | str) -> Score:
    """Scores a directory of prediction records (JSON Lines).

    Returns:
        `predictions` and `scored` (counts), and `rows`, each with `group`, `name`, `n`, `mae` and
        `median_ae` by predictor.
    """
    return score_predictions(
        read_predictions(Path(predictions_dir)), read_labels(Path(labels_path))
    )


def read_predictions(directory: Path) -> Iterator[Prediction]:
    """The records of all files in a directory, hidden ones left out."""
    decoder = msgspec.json.Decoder(Prediction)
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden:
            content = path.read_bytes()
            lines = gzip.decompress(content) if path.suffix == ".gz" else content
            yield from decoder.decode_lines(lines)


def score_predictions(predictions: Iterable[Prediction], labels: Iterable[LabelRow]) -> Score:
    """Scores prediction records; see `score`."""
    by_event = {(row.key, row.event_time_ms): row for row in labels}
    seen: set[tuple[str, int, int, int]] = set()
    pairs: list[tuple[Prediction, LabelRow]] = []
    for record in predictions:
        place = (record.key, record.generation, record.epoch, record.sequence)
        if place in seen:
            continue
        seen.add(place)
        label = by_event.get((record.key, record.event_time_ms))
        if label is not None:
            pairs.append((record, label))
    errors = _errors(pairs)
    rows = [
        _row(group, name, chosen, errors) for group, name, chosen in _groups(pairs) if chosen.any()
    ]
    return {"predictions": len(seen), "scored": len(pairs), "rows": rows}


def _errors(pairs: list[tuple[Prediction, LabelRow]]) -> dict[str, NDArray[np.float64]]:
    """Absolute errors in minutes by predictor."""
    said = np.array(
        [
            (record.prediction, label.last_known_min, label.route_mean_min, label.corrected_min)
            for record, label in pairs
        ],
        np.float64,
    ).reshape(-1, len(PREDICTORS))
    truth = np.array([label.label_min for _, label in pairs], np.float64)
    return dict(zip(PREDICTORS, np.abs(said.T - truth), strict=True))


def _groups(
    pairs: list[tuple[Prediction, LabelRow]],
) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """The groups of the table, each with the pairs it chooses."""
    departed = np.array([label.type == "departed" for _, label in pairs], np.bool_)
    kind = np.array([record.kind for record, _ in pairs], np.str_)
    late = np.array([record.late_seen for record, _ in pairs], np.int64)
    events = np.array([record.events_seen for record, _ in pairs], np.int64)
    between = np.array(
        [record.trigger.event_time_ms < record.event_time_ms for record, _ in pairs], np.bool_
    )
    yield "all", "all predictions", np.ones(len(pairs), np.bool_)
    yield "newest event", "departed", departed
    yield "newest event", "arrived", ~departed
    yield "late", "what caused it", kind == "late_revision"
    yield "late", "... and older than the newest", between
    yield "late", "some in its life", late > 0
    yield "late", "none in its life", late == 0
    for low, high in EVENTS_SEEN:
        name = str(low) if low == high else f"{low}+" if high >= 1 << 30 else f"{low} to {high}"
        yield "events seen", name, (events >= low) & (events <= high)


def _row(
    group: str, name: str, chosen: NDArray[np.bool_], errors: dict[str, NDArray[np.float64]]
) -> dict[str, Any]:
    return {
        "group": group,
        "name": name,
        "n": int(chosen.sum()),
        "mae": {p: round(float(errors[p][chosen].mean()), 2) for p in errors},
        "median_ae": {p: round(float(np.median(errors[p][chosen])), 2) for p in errors},
    }


def table(scored: Score) -> Table:
    """The score as a table for a terminal of 80 columns: mean absolute errors in minutes."""
    made = Table(title="Mean absolute error, minutes", title_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("predictions", no_wrap=True)
    made.add_column("n", justify="right", no_wrap=True)
    for name in HEADINGS:
        made.add_column(name, justify="right", no_wrap=True)
    group = None
    for row in scored["rows"]:
        if row["group"] != group:
            made.add_section()
            group = row["group"]
        name = row["name"] if group == "all" else f"{group}: {row['name']}"
        cells = [f"{row['mae'][p]:.1f}" for p in PREDICTORS]
        made.add_row(SHORT_NAMES.get(name, name), f"{row['n']:,}", *cells)
    return made


def main() -> None:
    """Prints the score of a run's output directory: `python -m examples.flights.evaluate DIR`."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/flights")
    scored = score(out / "predictions", Path(__file__).with_name("labels.jsonl.gz"))
    console = Console()
    console.print()
    console.print(table(scored))
    console.print(
        f"Judged: {scored['scored']:,} of {scored['predictions']:,} predictions, those whose "
        "aircraft arrives again within\n24 h. Baselines: last, the last known delay; route, the "
        "mean of the route; last+route, the\nlast known delay plus what the route adds. Real "
        "flights; when each event was published is\nsimulated. Medians, held-out months: "
        "examples/flights/card.md",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
