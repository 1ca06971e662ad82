"""Jobs for random logs: a spec in a few small numbers, its TOML, and the models it names."""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from tests import models, oracle_reading


@dataclass(frozen=True)
class Setup:
    """A spec in small numbers: spans are in ticks of `tick_ms`."""

    start_ms: int
    tick_ms: int
    partitions: int
    partitioner: str
    keys_per_partition: int
    unit: str
    offset: str | None
    nullable: bool
    heartbeat: bool
    ids: str
    tombstone: str
    emit: str
    late: str
    out_of_orderness: int
    allowed_lateness: int
    idle_ttl: int
    finished_ttl: int
    features: tuple[dict[str, Any], ...]
    model: str
    seed: int
    cutovers: tuple[tuple[str, int, int, str], ...]
    sink_features: bool

    @property
    def min_event_time_ms(self) -> int:
        """The earliest event time that is plausible."""
        return self.start_ms - 9 * self.tick_ms

    @property
    def max_future_ms(self) -> int:
        """How far an event may be after its record."""
        return 2 * self.tick_ms

    def keys(self, partition: int) -> list[str]:
        """The stream keys whose home the partition is."""
        at_home = []
        for name in ["a", "b", "c", "d", "e", "f", "g", "h", "ü", "k1", "k2", "k3", "k4", "k5"]:
            home = oracle_reading.home_partition(name, self.partitioner, self.partitions)
            if home in (None, partition):
                at_home.append(name)
        return at_home[: self.keys_per_partition]


V_FIELD = {"name": "v", "kind": "field", "field": "v"}
MORE_FEATURES: list[dict[str, Any]] = [
    {"name": "w", "kind": "field", "field": "w", "shift": 1, "scale": 0.5},
    {"name": "flag", "kind": "field", "field": "flag"},
    {"name": "since", "kind": "since_previous", "missing": -1.0, "scale": 0.25},
    {"name": "age", "kind": "since_first", "scale": 0.125},
    {"name": "count", "kind": "count", "shift": 1},
    {"name": "last_v", "kind": "previous", "field": "v", "missing": 7.0},
    {"name": "last_flag", "kind": "previous", "field": "flag", "missing": -1},
    {"name": "dv", "kind": "delta", "field": "v", "missing": 0.0},
    {"name": "dw", "kind": "delta", "field": "w", "missing": 0.5, "scale": 2},
    {"name": "cat", "kind": "one_hot", "field": "cat", "values": ["a", "ü"]},
    {"name": "cat0", "kind": "one_hot", "field": "cat", "values": ["b", ""], "unknown": "zeros"},
    {"name": "icat", "kind": "index", "field": "cat", "values": ["a", "b"], "scale": 2},
    {"name": "iw", "kind": "index", "field": "w", "values": [0, 1, 2], "unknown": -1, "shift": 1},
    {"name": "flags", "kind": "one_hot", "field": "flag", "values": [True, False]},
    {"name": "hour", "kind": "hour_of_day"},
    {"name": "day", "kind": "day_of_week"},
]
GENTLE = ["accumulate", "shift_in", "gru", "two_states", "windowed", "windowed_digits"]
WILD = ["explosive", "hidden_overflow"]
SAME_STATES = {
    "accumulate": ["shift_in", "explosive"],
    "shift_in": ["accumulate"],
    "explosive": ["accumulate"],
    "hidden_overflow": ["shift_in"],
}
WINDOW = 3


def columns(features: Sequence[dict[str, Any]]) -> int:
    """How wide the features make x."""
    total = 0
    for feature in features:
        if feature["kind"] in ("hour_of_day", "day_of_week"):
            total += 2
        elif feature["kind"] == "one_hot":
            total += len(feature["values"]) + (feature.get("unknown", "column") == "column")
        else:
            total += 1
    return total


@functools.cache
def model_bytes(kind: str, n_features: int, seed: int) -> bytes:
    """The content of a model file of the catalogue; different for every seed."""
    build: dict[str, Callable[[], onnx.ModelProto]] = {
        "accumulate": lambda: models.accumulate(n_features),
        "shift_in": lambda: models.shift_in(n_features),
        "gru": lambda: models.gru(n_features, 4, seed),
        "two_states": lambda: models.two_states(n_features, 4, seed),
        "windowed": lambda: models.windowed(n_features, WINDOW, seed),
        "windowed_digits": lambda: models.windowed_digits(n_features, WINDOW),
        "explosive": lambda: models.explosive(n_features),
        "hidden_overflow": lambda: models.hidden_overflow(n_features),
    }
    # The name in the metadata tells apart the digests of models that have no weights to seed.
    return models.content(models.with_metadata(build[kind](), name=f"{kind}-{seed}"))


def model_name(kind: str, n_features: int, seed: int) -> str:
    """The file name of a model of the catalogue."""
    return f"{kind}-{n_features}-{seed}.onnx"


def model_settings(kind: str) -> str:
    """The settings that say which tensor is which."""
    if kind.startswith("windowed"):
        return f"window = {WINDOW}"
    names = ["h", "c", "ema"] if kind == "two_states" else ["h"]
    pairs = ", ".join(f'{{ input = "{name}", output = "{name}_next" }}' for name in names)
    return f"states = [{pairs}]"


def spec_text(setup: Setup) -> str:
    """The TOML of a job."""
    tick, opt = setup.tick_ms, "?" if setup.nullable else ""
    zone = f', offset = "{setup.offset}"' if setup.offset else ""
    lines = [
        'name = "random"',
        "generation = 3",
        "[source]",
        'topic = "events"',
        f"partitions = {setup.partitions}",
        f'partitioner = "{setup.partitioner}"',
        "[event]",
        'key = "key"',
        *(['id = "id"'] if setup.ids != "none" else []),
        f'time = {{ field = "at", unit = "{setup.unit}"{zone} }}',
        'type = "type"',
        'terminal = ["stop", "end"]',
        *(['heartbeat = "beat"'] if setup.heartbeat else []),
        f'tombstone = "{setup.tombstone}"',
        "[event.fields]",
        *([f'id = "{setup.ids}"'] if setup.ids != "none" else []),
        f'type = "str{opt}"',
        f'v = "float{opt}"',
        f'w = "int{opt}"',
        f'flag = "bool{opt}"',
        f'cat = "str{opt}"',
        "[time]",
        f"out_of_orderness_ms = {setup.out_of_orderness * tick}",
        f"allowed_lateness_ms = {setup.allowed_lateness * tick}",
        f"max_future_ms = {setup.max_future_ms}",
        f"min_event_time_ms = {setup.min_event_time_ms}",
        "[policy]",
        f'emit = "{setup.emit}"',
        f'late = "{setup.late}"',
        f"idle_ttl_ms = {setup.idle_ttl * tick}",
        f"finished_ttl_ms = {setup.finished_ttl * tick}",
    ]
    for feature in setup.features:
        lines.append("[[features]]")
        lines.extend(f"{name} = {toml_value(value)}" for name, value in feature.items())
    width = columns(setup.features)
    lines += [
        "[model]",
        f'path = "{model_name(setup.model, width, setup.seed)}"',
        'input = "x"',
        'output = "y"',
        model_settings(setup.model),
    ]
    before = model_bytes(setup.model, width, setup.seed)
    for kind, seed, at, way in setup.cutovers:
        digest = "sha256:" + hashlib.sha256(before).hexdigest()
        lines += [
            "[[model.next]]",
            f'path = "{model_name(kind, width, seed)}"',
            f"from_event_time_ms = {setup.start_ms + at * tick}",
            f'state = "{way}"',
            *([f'compatible_with = ["{digest}"]'] if way == "carry" else []),
        ]
        before = model_bytes(kind, width, seed)
    lines += [
        "[sink]",
        'predictions = "predictions"',
        'rejects = "rejects"',
        f"features = {toml_value(setup.sink_features)}",
    ]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """JSON is TOML for texts, numbers, booleans and lists."""
    return json.dumps(value, ensure_ascii=False)
