"""The oracle: what a log must answer, computed in the slowest obvious way.

It is written from the contract alone and shares nothing with the core: plain loops, dicts and
lists, one record at a time, one key at a time. For every key it keeps all applied events of the
current life for ever and steps the whole life again from zeros at each insertion, so nothing is
folded, cached or evicted, and the history that finds duplicates is the formula itself. How a record
is read is in `tests.oracle_reading`, how a model is stepped in `tests.oracle_model`.

Danger: a rule that is copied from the core proves nothing. Change this page from the contract.
"""

import base64
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.oracle_model import Model, NonFiniteError, feature_columns, require_finite, scaled
from tests.oracle_reading import (
    Event,
    Record,
    RefusedError,
    check_type,
    event_time_ms,
    home_partition,
    parse_object,
)

Row = tuple[int, int, int, bytes | None, bytes | None]


def load(path: Path) -> dict[str, Any]:
    """Reads a spec and makes its model paths absolute."""
    spec = tomllib.loads(path.read_text(encoding="utf-8"))
    for model in [spec["model"], *spec["model"].get("next", [])]:
        model["path"] = str(path.parent / model["path"])
    return spec


def run(
    spec: dict[str, Any], rows: list[Row], end: bool = True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Answers a log: the predictions and the rejects, each in the order they arise.

    Args:
        spec: The parsed TOML of the job, model paths absolute.
        rows: (partition, offset, timestamp in ms, key, value), in offset order per partition.
        end: Whether the log ends here, which releases held events, or is a slice.
    """
    oracle = Oracle(spec)
    for row in rows:
        oracle.record(Record(*row))
    if end:
        oracle.finish()
    return oracle.predictions, oracle.rejects


@dataclass
class Life:
    """A key from one initial state on; `events` are all of them, in (event time, offset) order."""

    epoch: int
    events: list[Event] = field(default_factory=list)
    sequence: int = 0
    late_seen: int = 0
    finished: bool = False


@dataclass
class Key:
    """What a partition knows of a stream key."""

    life: Life | None = None
    applied: list[Event] = field(default_factory=list)
    held: list[Event] = field(default_factory=list)
    forgotten_until: int | None = None


@dataclass
class Shard:
    """A partition."""

    last_offset: int | None = None
    max_event_time: int | None = None
    keys: dict[str, Key] = field(default_factory=dict)


class Oracle:
    """The ten steps, one record at a time."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.source, self.event, self.time = spec["source"], spec["event"], spec["time"]
        self.policy, self.features = spec["policy"], spec.get("features", [])
        base = spec["model"]
        self.cutovers = sorted(base.get("next", []), key=lambda each: each["from_event_time_ms"])
        self.models = [Model(base, base), *(Model(each, base) for each in self.cutovers)]
        self.fields = dict(self.event.get("fields", {}))
        self.fields.setdefault(self.event["key"], "str")
        for role in ("id", "type"):
            if role in self.event:
                self.fields.setdefault(self.event[role], "str")
        self.shards: dict[int, Shard] = {}
        self.predictions: list[dict[str, Any]] = []
        self.rejects: list[dict[str, Any]] = []

    def record(self, record: Record) -> None:
        """Takes one record through the steps, then releases what it set free."""
        shard = self.shards.setdefault(record.partition, Shard())
        if shard.last_offset is not None and record.offset <= shard.last_offset:
            return
        shard.last_offset = record.offset
        if record.value is None:
            self.tombstone(shard, record)
            return
        try:
            event = self.decode(record)
        except RefusedError as refused:
            self.reject(record, str(refused), None)
            return
        watermark = self.watermark(shard)
        if shard.max_event_time is None or event.time > shard.max_event_time:
            shard.max_event_time = event.time
        if event.key is not None:
            self.judge(shard, event, watermark)
        self.release(shard, self.watermark(shard))

    def finish(self) -> None:
        """The end of a bounded log releases every held event."""
        for _, shard in sorted(self.shards.items()):
            self.release(shard, None)

    def watermark(self, shard: Shard) -> int | None:
        """The partition's watermark as of now; None before its first accepted record."""
        if shard.max_event_time is None:
            return None
        return shard.max_event_time - int(self.time["out_of_orderness_ms"])

    def tombstone(self, shard: Shard, record: Record) -> None:
        """Step 2."""
        applied = False
        if self.event.get("tombstone", "reject") == "forget" and record.key:
            try:
                name = record.key.decode("utf-8")
                applied = True
                self.forget(shard.keys.get(name))
            except UnicodeDecodeError:
                pass
        self.reject(record, "tombstone", None, applied)

    def forget(self, key: Key | None) -> None:
        """Ends the life and drops the held events; only the newest event time stays."""
        if key is None:
            return
        times = [event.time for event in key.applied + key.held]
        if key.forgotten_until is not None:
            times.append(key.forgotten_until)
        key.life, key.applied, key.held = None, [], []
        key.forgotten_until = max(times, default=None)

    def decode(self, record: Record) -> Event:
        """Steps 3, 4 and 5."""
        assert record.value is not None
        found = parse_object(record.value)
        kind = found.get(self.event["type"]) if "type" in self.event else None
        key: str | None = None
        values: dict[str, Any] = {}
        heartbeat = kind is not None and kind == self.event.get("heartbeat")
        if not heartbeat:
            key = found.get(self.event["key"])
            if key is None or key == "":
                raise RefusedError("no_key")
            for name, declared in self.fields.items():
                values[name] = check_type(found.get(name), declared)
        time = event_time_ms(found.get(self.event["time"]["field"]), self.event["time"])
        if not heartbeat:
            self.check_numbers(values, time)
        if key is not None:
            partitioner, partitions = self.source["partitioner"], self.source["partitions"]
            home = home_partition(key, partitioner, partitions)
            if home is not None and home != record.partition:
                raise RefusedError("misrouted")
        if time > record.timestamp + self.time["max_future_ms"]:
            raise RefusedError("future_time")
        if time < self.time["min_event_time_ms"]:
            raise RefusedError("implausible_time")
        event_id = values.get(self.event["id"]) if "id" in self.event else None
        return Event(record, key, time, event_id, kind, values)

    def check_numbers(self, values: dict[str, Any], time: int) -> None:
        """A number that is not finite once scaled and cast to the model's dtype is malformed."""
        for feature in self.features:
            takes_number = feature["kind"] in ("field", "previous", "delta")
            if takes_number and values[feature["field"]] is not None:
                number = scaled(feature, float(values[feature["field"]]))
                if not math.isfinite(self.models[self.model_index(time)].cast(number)):
                    raise RefusedError("malformed")

    def judge(self, shard: Shard, event: Event, watermark: int | None) -> None:
        """Steps 6 to 10 of an event, under the watermark before it."""
        assert event.key is not None
        lateness = 0 if watermark is None else max(0, watermark - event.time)
        late = lateness > 0
        if lateness > self.time["allowed_lateness_ms"]:
            self.reject(event.record, "too_late", lateness)
            return
        key = shard.keys.setdefault(event.key, Key())
        if key.forgotten_until is not None and event.time <= key.forgotten_until:
            self.reject(event.record, "forgotten", lateness)
            return
        waits = self.policy.get("emit", "on_event") == "on_watermark" and not late
        if not waits and self.is_finished(key, watermark):
            self.reject(event.record, "after_terminal", lateness)
        elif event.id is not None and event.id in self.kept_ids(key, watermark):
            self.reject(event.record, "duplicate", lateness)
        elif waits:
            key.held.append(event)
        elif late and self.policy["late"] == "drop":
            self.reject(event.record, "late", lateness)
        else:
            self.apply(shard, key, event, watermark, lateness)

    def release(self, shard: Shard, watermark: int | None) -> None:
        """Applies held events before the watermark (None: all of them), oldest first."""
        due = []
        for key in shard.keys.values():
            for event in key.held:
                if watermark is None or event.time < watermark:
                    due.append(event)
        for event in sorted(due, key=order):
            assert event.key is not None
            key = shard.keys[event.key]
            key.held.remove(event)
            if self.is_finished(key, event.time):
                self.reject(event.record, "after_terminal", 0)
            else:
                self.apply(shard, key, event, event.time, 0)

    def is_over(self, life: Life, watermark: int | None) -> bool:
        """Whether the life has ended for an event that is judged at this watermark."""
        ttl = self.policy["finished_ttl_ms" if life.finished else "idle_ttl_ms"]
        return watermark is not None and watermark > life.events[-1].time + ttl

    def is_finished(self, key: Key, watermark: int | None) -> bool:
        """Whether the key is in a finished life."""
        return key.life is not None and key.life.finished and not self.is_over(key.life, watermark)

    def kept_ids(self, key: Key, watermark: int | None) -> list[str | None]:
        """The event ids at or after the horizon, and those that wait."""
        kept = list(key.held)
        for event in key.applied:
            allowed = 0 if self.policy["late"] == "drop" else self.time["allowed_lateness_ms"]
            if watermark is None or event.time >= watermark - allowed:
                kept.append(event)
        return [event.id for event in kept]

    def apply(
        self, shard: Shard, key: Key, event: Event, judged_at: int | None, lateness: int
    ) -> None:
        """Step 10: the decision table."""
        late = lateness > 0
        starts = key.life is None or self.is_over(key.life, judged_at)
        life = Life(epoch=event.time) if key.life is None or starts else key.life
        events = sorted([*life.events, event], key=order)
        try:
            prediction, model, x = self.replay(events)
        except NonFiniteError:
            self.reject(event.record, "non_finite", lateness)
            return
        key.life, life.events = life, events
        key.applied.append(event)
        life.late_seen += late
        final = event.type is not None and event.type in self.event.get("terminal", [])
        life.finished = life.finished or final
        if late and self.policy["late"] == "update":
            self.reject(event.record, "late", lateness, applied=True)
            return
        kind = "late_revision" if late else "on_time" if events[-1] is event else "revision"
        life.sequence += 1
        record = {
            "key": event.key,
            "generation": self.spec["generation"],
            "epoch": life.epoch,
            "sequence": life.sequence,
            "event_time_ms": events[-1].time,
            "kind": kind,
            "prediction": prediction,
            "model_digest": model.digest,
            "events_seen": len(events),
            "late_seen": life.late_seen,
            "watermark_ms": self.watermark(shard),
            "final": final,
            "trigger": {
                "partition": event.record.partition,
                "offset": event.record.offset,
                "event_time_ms": event.time,
                "event_id": event.id,
            },
        }
        if self.spec["sink"].get("features", False):
            record["features"] = x
        self.predictions.append(record)

    def replay(self, life: list[Event]) -> tuple[Any, Model, list[float]]:
        """Steps a whole life from zeros: the newest event's prediction, model and features."""
        state: list[Any] = []
        answer: tuple[Any, Model, list[float]] | None = None
        for position, event in enumerate(life):
            index = self.model_index(event.time)
            model = self.models[index]
            earlier = self.model_index(life[position - 1].time) if position else 0
            crossed = self.cutovers[earlier:index]
            if position == 0 or any(each["state"] == "reset" for each in crossed):
                state = model.initial()
            columns: list[float] = []
            for feature in self.features:
                columns.extend(feature_columns(feature, life, position))
            x = [model.cast(column) for column in columns]
            require_finite(x)
            state, prediction = model.step(x, state)
            answer = prediction, model, x
        assert answer is not None
        return answer

    def model_index(self, time: int) -> int:
        """How many cut-overs are at or before the event time."""
        return sum(each["from_event_time_ms"] <= time for each in self.cutovers)

    def reject(
        self, record: Record, reason: str, lateness: int | None, applied: bool = False
    ) -> None:
        """Lets the record leave unharmed."""
        self.rejects.append(
            {
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                **text_or_base64("key", record.key),
                "reason": reason,
                "lateness_ms": lateness,
                "applied": applied,
                **text_or_base64("value", record.value),
            }
        )


def order(event: Event) -> tuple[int, int]:
    """The order of a key's events."""
    return event.time, event.record.offset


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    """The bytes as text where they are UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode("ascii")}
