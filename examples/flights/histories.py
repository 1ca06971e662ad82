"""Training histories: what the operator knew at each of its predictions, no more and no less.

The log of the training months runs through the transition, under the spec's own policy. Its
records say which events were applied, when, and where in their key's order: a late event changes
what comes after it only from the moment it was published. Two kinds of sequence come of it:

- each life as it stands in the end, late events in their places;
- for every prediction made before an earlier event had come, the life's last events as they were
  known then. Without these the model would be trained on a past it could not see when it is asked.

The features are computed by the operator's own plan, and every row is compared with the vector in
the record: they must be equal to the last bit, or the histories are refused.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from examples.flights.events import Event
from examples.flights.publish import PARTITIONS, Published
from operators.features import Context, FeaturePlan, raw_columns
from operators.scorer import Scorer
from schemas.records import Prediction, RecordBatch
from schemas.spec import Spec

BATCH = 16_384
# How much of a life stands before a prediction that a late event has since revised.
KNOWN_THEN = 16


class Histories(NamedTuple):
    """Sequences one after the other, their events in order.

    Shapes: x (n, features) float32; first (n,) bool, true where a sequence begins; label_min (n,)
    float32, NaN where nothing is asked.
    """

    x: NDArray[np.float32]
    first: NDArray[np.bool_]
    label_min: NDArray[np.float32]


class Node(NamedTuple):
    """An event in its place: all that its features are made of. Numbers index the events."""

    event: int
    previous: int
    first_ms: int
    earlier: int


@dataclass(slots=True)
class Life:
    """The events of one life in order, and the predictions made on the way."""

    order: list[tuple[int, int, int]] = field(default_factory=list)
    revised: list[list[Node]] = field(default_factory=list)
    asked: list[Node] = field(default_factory=list)

    def nodes(self, last: int | None = None) -> list[Node]:
        """The life's events, or the last few of them, in their places."""
        start = 0 if last is None else max(0, len(self.order) - last)
        first_ms = self.order[0][0]
        return [
            Node(self.order[i][2], self.order[i - 1][2] if i else -1, first_ms, i)
            for i in range(start, len(self.order))
        ]


class Run(NamedTuple):
    """What came of a log: predictions in the order they were made, and the shards' counters."""

    predictions: list[Prediction]
    counters: Counter[str]


def run_log(scorer: Scorer, log: Iterable[Published]) -> Run:
    """Runs a log through the transition, partition by partition, to its end."""
    decoder = msgspec.json.Decoder(Prediction)
    by_partition: list[list[Published]] = [[] for _ in range(PARTITIONS)]
    for record in log:
        by_partition[record.partition].append(record)
    predictions: list[Prediction] = []
    counters: Counter[str] = Counter()
    for partition, records in enumerate(by_partition):
        shard = scorer.new_shard(partition)
        for at in range(0, len(records), BATCH):
            out = scorer.step(shard, to_batch(partition, records[at : at + BATCH]))
            predictions += map(decoder.decode, out.predictions)
        predictions += map(decoder.decode, scorer.finish(shard).predictions)
        counters.update(shard.counters)
    return Run(predictions, counters)


def to_batch(partition: int, records: list[Published]) -> RecordBatch:
    """Records of one partition as the transition takes them."""
    return RecordBatch(
        partition,
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp_ms for record in records], np.int64),
        [record.event.tailnum.encode() for record in records],
        [record.event.value() for record in records],
    )


def gather_lives(
    predictions: list[Prediction], positions: dict[str, int]
) -> tuple[list[Life], list[Node]]:
    """Rebuilds every life from the records of a run that predicts at each applied event.

    Args:
        predictions: In the order they were made.
        positions: Event id to the event's number.

    Returns:
        The lives, and for each prediction the node of the newest event it was made of.
    """
    lives: list[Life] = []
    current: dict[str, Life] = {}
    newest: list[Node] = []
    for record in predictions:
        if record.sequence == 1:
            current[record.key] = Life()
            lives.append(current[record.key])
        life = current[record.key]
        trigger = record.trigger
        entry = (trigger.event_time_ms, trigger.offset, positions[trigger.event_id or ""])
        inserted_before = bool(life.order) and entry < life.order[-1]
        if inserted_before:
            _keep_revised(life, entry)
        insort(life.order, entry)
        newest.append(life.nodes(last=1)[0])
        life.asked.append(newest[-1])
    return lives, newest


def _keep_revised(life: Life, entry: tuple[int, int, int]) -> None:
    """Keeps, as known until now, the predictions that an insertion is about to change."""
    nodes = life.nodes()
    asked = set(life.asked)
    for i, place in enumerate(life.order):
        if place > entry and nodes[i] in asked:
            life.revised.append(nodes[max(0, i + 1 - KNOWN_THEN) : i + 1])


def compute_features(spec: Spec, events: list[Event], nodes: list[Node]) -> NDArray[np.float32]:
    """The feature rows of nodes, by the operator's own plan, float32, shape (n, features)."""
    raw = np.stack(
        [
            column.numbers([getattr(event, column.field) for event in events])
            for column in raw_columns(spec)
        ],
        axis=1,
    )
    table = np.array(nodes, np.int64).reshape(-1, len(Node._fields))
    event, previous, first_ms, earlier = table.T
    times = np.array([one.at_ms for one in events], np.int64)
    context = Context(
        raw=raw[event],
        previous=raw[previous],
        first=previous < 0,
        times=times[event],
        previous_times=times[previous],
        first_times=first_ms,
        counts=earlier,
    )
    rows: NDArray[Any] = FeaturePlan(spec).compute(context, np.dtype(np.float32))
    return rows


def assemble(
    spec: Spec, events: list[Event], predictions: list[Prediction], labels: dict[str, int]
) -> Histories:
    """The training sequences of a run.

    Args:
        spec: That of the run; it must emit on each event, repredict, and put features in records.
        events: Of the log, in any order.
        predictions: Of the run, in the order they were made.
        labels: Event id to label, in minutes; other events ask for nothing.

    Raises:
        RuntimeError: A feature row is not the one in the record.
    """
    positions = {event.event_id: number for number, event in enumerate(events)}
    lives, newest = gather_lives(predictions, positions)
    made = compute_features(spec, events, newest)
    recorded = np.array([record.features for record in predictions], np.float32)
    wrong = np.flatnonzero((made != recorded).any(axis=1))
    if wrong.size:
        raise RuntimeError(
            f"{wrong.size} of {len(made)} feature rows differ from the records, first "
            f"{predictions[wrong[0]]}: assembled {made[wrong[0]].tolist()}"
        )
    nodes: list[Node] = []
    first: list[bool] = []
    ask: list[bool] = []
    for life in lives:
        for sequence, ask_all in [(life.nodes(), True), *((part, False) for part in life.revised)]:
            nodes += sequence
            first += [True] + [False] * (len(sequence) - 1)
            ask += [ask_all] * (len(sequence) - 1) + [True]
    label = np.array([labels.get(event.event_id, np.nan) for event in events], np.float32)
    asked = np.array([node.event for node in nodes], np.int64)
    label_min = np.where(np.array(ask), label[asked], np.float32(np.nan))
    return Histories(compute_features(spec, events, nodes), np.array(first), label_min)
