"""The flights example: its times, its labels, its simulated log, and that its files are in step."""

import datetime as dt
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from examples.flights.baselines import read_labels
from examples.flights.card import WEEK_END_MS, WEEK_START_MS, to_markdown
from examples.flights.evaluate import score_predictions
from examples.flights.events import (
    Event,
    Flights,
    Label,
    Oddities,
    label_events,
    load_flights,
)
from examples.flights.histories import to_batch
from examples.flights.publish import publish
from operators.scorer import Scorer
from schemas.log import read_log
from schemas.records import Prediction
from schemas.spec import load_spec

FLIGHTS = Path(__file__).parent.parent.parent / "examples" / "flights"
HOUR_MS = 3_600_000


def _event(kind: str, number: int, hour: float, delay: int) -> Event:
    """An event of one aircraft's flight, at an hour of the epoch."""
    return Event(
        tailnum="N1",
        event_id=f"{number}-{kind[0].upper()}",
        type=kind,
        at_ms=int(hour * HOUR_MS),
        carrier="B6",
        flight=number,
        origin="JFK",
        dest="BQN",
        distance_mi=1576,
        sched_block_min=240,
        dep_delay_min=delay,
        arr_delay_min=delay if kind == "arrived" else None,
    )


@pytest.fixture(scope="module")
def flights() -> Flights:
    """The year."""
    return load_flights()


@pytest.mark.slow
def test_every_recorded_wall_clock_agrees_with_the_derived_instant_but_one(
    flights: Flights,
) -> None:
    """All zones, midnights and summer times are right: 655,867 recorded clocks say so."""
    expected = Oddities(
        flights=336_776,
        cancelled=8_255,
        diverted=1_175,
        dep_clock_differs=0,
        arr_clock_differs=1,
        taxi_out_of_range=0,
        tied_events=1,
        departed_before_arrival=127,
    )
    assert expected == flights.oddities


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event_id", "at"),
    [
        # Left at 23:56, landed at 4:25 in Atlantic time: Aguadilla is not in the airports table.
        ("20130101-B6727-JFK-BQN-D", "2013-01-02T04:56:00"),
        ("20130101-B6727-JFK-BQN-A", "2013-01-02T08:25:00"),
        # Left at 10:05 in summer time, landed at 15:27 in Honolulu, which has none.
        ("20130701-HA51-JFK-HNL-D", "2013-07-01T14:05:00"),
        ("20130701-HA51-JFK-HNL-A", "2013-07-02T01:27:00"),
        # It landed at 3:03 summer time, in the night that skipped 2:03.
        ("20130309-B635-JFK-PBI-A", "2013-03-10T07:03:00"),
    ],
)
def test_an_event_has_its_time_in_utc(flights: Flights, event_id: str, at: str) -> None:
    """Local clocks of either end become instants."""
    found = next(event.at_ms for event in flights.events if event.event_id == event_id)
    expected = dt.datetime.fromisoformat(at + "+00:00").timestamp() * 1000
    assert expected == found


@pytest.mark.slow
def test_the_committed_week_is_a_slice_of_the_log_that_the_rule_makes(flights: Flights) -> None:
    """Whoever makes the log again gets the same records at the same offsets."""
    log = publish(flights.events)
    made = [record for record in log if WEEK_START_MS <= record.timestamp_ms < WEEK_END_MS]
    for batch in read_log(FLIGHTS / "week.jsonl.gz", batch_rows=1 << 20, partitions=4):
        expected = to_batch(batch.partition, [r for r in made if r.partition == batch.partition])
        assert expected.to_bytes() == batch.to_bytes()


def test_a_departure_is_labelled_by_its_own_arrival_and_an_arrival_by_the_next() -> None:
    """The label is the arrival delay to come, within a day."""
    events = [
        _event("departed", 1, hour=10, delay=5),
        _event("arrived", 1, hour=14, delay=7),
        _event("departed", 2, hour=30, delay=9),
        _event("arrived", 2, hour=34, delay=11),
        _event("departed", 3, hour=60, delay=13),
        _event("arrived", 3, hour=64, delay=15),
    ]
    expected = [
        Label(events[0], 7, 14 * HOUR_MS),
        Label(events[1], 11, 34 * HOUR_MS),
        Label(events[2], 11, 34 * HOUR_MS),
        Label(events[4], 15, 64 * HOUR_MS),
    ]
    assert expected == label_events(events)


def test_a_diverted_flight_has_no_label() -> None:
    """The arrival of another flight says nothing of the one that was diverted."""
    events = [
        _event("departed", 1, hour=10, delay=5),
        _event("departed", 2, hour=20, delay=9),
        _event("arrived", 2, hour=24, delay=11),
    ]
    assert [Label(events[1], 11, 24 * HOUR_MS)] == label_events(events)


def test_the_simulated_publication_depends_on_its_seed_alone() -> None:
    """Same events, same seed: same log; another seed: another."""
    events = [_event("departed", number, hour=number, delay=0) for number in range(200)]
    assert publish(events) == publish(events)
    assert publish(events) != publish(events, seed=1)


def test_the_card_of_the_week_is_what_the_committed_files_give() -> None:
    """Spec, model, log, labels and card are of one make."""
    scorer = Scorer(load_spec(FLIGHTS / "flights.toml"))
    shards = {partition: scorer.new_shard(partition) for partition in range(4)}
    lines: list[bytes] = []
    for batch in read_log(FLIGHTS / "week.jsonl.gz", partitions=4):
        lines += scorer.step(shards[batch.partition], batch).predictions
    predictions = map(msgspec.json.Decoder(Prediction).decode, lines)
    card = msgspec.json.decode((FLIGHTS / "card.json").read_bytes())
    scored = score_predictions(predictions, read_labels(FLIGHTS / "labels.jsonl.gz"))
    assert card["week"].keys() == scored.keys()
    assert [card["week"]["predictions"], card["week"]["scored"]] == [
        scored["predictions"],
        scored["scored"],
    ]
    # Another processor may give other last bits; the card is of one.
    for expected, actual in zip(card["week"]["rows"], scored["rows"], strict=True):
        for error in ("mae", "median_ae"):
            assert pytest.approx(expected.pop(error), abs=0.02) == actual.pop(error)
        assert expected == actual


def test_the_card_for_people_is_written_from_its_figures() -> None:
    """card.md is not edited by hand."""
    card = msgspec.json.decode((FLIGHTS / "card.json").read_bytes())
    assert to_markdown(card) == (FLIGHTS / "card.md").read_text(encoding="utf-8")


def test_the_model_beats_both_baselines_on_the_held_out_months() -> None:
    """In the mean, on all predictions and in every group of the card."""
    card = msgspec.json.decode((FLIGHTS / "card.json").read_bytes())
    worse: Counter[str] = Counter()
    for row in card["held_out"]["rows"]:
        for baseline in ("last_known", "route_mean"):
            worse[row["name"]] += row["mae"]["model"] >= row["mae"][baseline]
    assert 0 == worse.total()
