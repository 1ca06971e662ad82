"""The whole recipe in one command: data, log, histories, model, card, and the week to run.

    python -m examples.flights.build

It writes beside itself what is committed: `model.onnx`, `week.jsonl.gz` with its manifest,
`labels.jsonl.gz`, `card.json` and `card.md`. With `--keep-model` it trains nothing and measures
the model that is there.
"""

import argparse
import tempfile
import time
from pathlib import Path

import msgspec

from examples.flights.baselines import LabelRow, label_rows, write_labels
from examples.flights.card import TRAIN_END_MS, WEEK_END_MS, WEEK_START_MS, measure, write_card
from examples.flights.events import Event, Flights, Label, label_events, load_flights
from examples.flights.histories import Histories, assemble, run_log
from examples.flights.model import initial_params, shape_of, to_onnx
from examples.flights.publish import PARTITIONS, SEED, Published, publish
from operators.scorer import Scorer
from schemas.log import LogRow, write_log
from schemas.spec import Spec, load_spec

HERE = Path(__file__).parent


def main() -> None:
    """Runs the recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep-model", action="store_true", help="measure the model that is there")
    keep_model = parser.parse_args().keep_model
    spec = load_spec(HERE / "flights.toml")
    say = Progress()
    flights = load_flights()
    say(f"{len(flights.events):,} events of {flights.oddities.flights:,} flights")
    log = publish(flights.events)
    say(f"{len(log):,} records published (simulated)")
    labels = label_events(flights.events)
    if not keep_model:
        histories = training_histories(spec, flights, log, labels)
        say(f"{int(histories.first.sum()):,} sequences of {len(histories.x):,} events to train on")
        train_model(spec, histories, say)
    rows = label_rows(labels, known_before_ms=TRAIN_END_MS)
    week = write_week(log, rows)
    say(f"{len(week):,} records in the week")
    run = run_log(Scorer(spec), log)
    week_run = run_log(Scorer(spec), week)
    card = measure(spec, flights.oddities, log, rows, run, week_run)
    write_card(HERE, card)
    say("card.json, card.md")


class Progress:
    """Tells what is done, and how long it took."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, done: str) -> None:
        """Tells of one thing done."""
        now = time.monotonic()
        print(f"{now - self._since:6.1f} s  {done}", flush=True)
        self._since = now


def training_histories(
    spec: Spec, flights: Flights, log: list[Published], labels: list[Label]
) -> Histories:
    """The histories of what was published before the end of the training months.

    The features do not depend on the model, so one with random weights stands in.
    """
    known = [record for record in log if record.timestamp_ms < TRAIN_END_MS]
    with tempfile.TemporaryDirectory() as directory:
        stand_in = Path(directory) / "model.onnx"
        shape = shape_of(spec)
        stand_in.write_bytes(to_onnx(initial_params(shape, SEED), shape))
        run = run_log(Scorer(with_model(spec, stand_in)), known)
    answers = {
        label.event.event_id: label.label_min
        for label in labels
        if label.label_at_ms < TRAIN_END_MS
    }
    published: dict[str, Event] = {record.event.event_id: record.event for record in known}
    return assemble(spec, list(published.values()), run.predictions, answers)


def with_model(spec: Spec, path: Path) -> Spec:
    """The same spec with another model file."""
    model = msgspec.structs.replace(spec.model, path=str(path))
    return msgspec.structs.replace(spec, model=model)


def train_model(spec: Spec, histories: Histories, say: Progress) -> None:
    """Trains and exports the model."""
    from examples.flights.train import fit  # only here: JAX is of the extra `train`

    shape = shape_of(spec)

    def report(epoch: int, error_min: float) -> None:
        say(f"epoch {epoch}: {error_min:.3f} minutes off in training")

    (HERE / "model.onnx").write_bytes(to_onnx(fit(histories, shape, report=report), shape))


def write_week(log: list[Published], rows: list[LabelRow]) -> list[Published]:
    """Writes the log slice that `make run` scores, and the labels of its events."""
    week = [record for record in log if WEEK_START_MS <= record.timestamp_ms < WEEK_END_MS]
    write_log(
        HERE / "week.jsonl.gz",
        (
            LogRow(
                record.partition,
                record.offset,
                record.timestamp_ms,
                record.event.tailnum.encode(),
                record.event.value(),
            )
            for record in week
        ),
        partitions=PARTITIONS,
    )
    ids = {record.event.event_id for record in week}
    write_labels(HERE / "labels.jsonl.gz", [row for row in rows if row.event_id in ids])
    return week


if __name__ == "__main__":
    main()
