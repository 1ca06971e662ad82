"""How the oracle steps a model: one event a call, features computed from the whole life.

numpy is here only to hand one row to onnxruntime and to cast to the model's dtype.
"""

import functools
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tests.oracle_reading import Event


class NonFiniteError(Exception):
    """A derived feature, an output or a state is not a finite number."""


DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def model_digest(path: str) -> str:
    """sha256 over the model's bytes and, in the order of their names, its side files."""
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content)
    sides = set()
    for tensor in onnx.load_model_from_string(content).graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                sides.add(entry.value)
    for side in sorted(sides):
        digest.update((Path(path).parent / side).read_bytes())
    return "sha256:" + digest.hexdigest()


@functools.cache
def open_session(path: str, digest: str) -> onnxruntime.InferenceSession:
    """Opens a model file once per content."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Model:
    """One ONNX file, called with a batch of one."""

    def __init__(self, model: dict[str, Any], base: dict[str, Any]) -> None:
        def setting(name: str) -> Any:
            return model.get(name, base.get(name))

        self.digest = model_digest(model["path"])
        self.session = open_session(model["path"], self.digest)
        self.input: str = setting("input")
        self.output: str = setting("output")
        self.states: list[dict[str, str]] = setting("states") or []
        self.window: int | None = setting("window")
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.dtype = DTYPES[self.inputs[self.input].type]

    def cast(self, value: float) -> float:
        """The number as the model's input dtype holds it."""
        with np.errstate(over="ignore"):
            return float(self.dtype(value))

    def initial(self) -> list[Any]:
        """Zero tensors, or no rows yet for a windowed model."""
        if self.window is not None:
            return []
        zeros = []
        for state in self.states:
            tensor = self.inputs[state["input"]]
            shape = [1, *tensor.shape[1:]]
            zeros.append(np.zeros(shape, DTYPES[tensor.type]))
        return zeros

    def step(self, x: list[float], state: list[Any]) -> tuple[list[Any], Any]:
        """Returns the next state and the prediction of one event."""
        if self.window is not None:
            rows = [*state, x][-self.window :]
            blank = [[0.0] * len(x)] * (self.window - len(rows))
            tensor = np.array([[*blank, *rows]], self.dtype)
            (y,) = self.session.run([self.output], {self.input: tensor})
            return rows[1 - self.window :] if self.window > 1 else [], prediction_of(y)
        feeds = {self.input: np.array([x], self.dtype)}
        for name, tensor in zip(self.states, state, strict=True):
            feeds[name["input"]] = tensor
        names = [self.output, *(each["output"] for each in self.states)]
        y, *following = self.session.run(names, feeds)
        for tensor in following:
            if tensor.dtype.kind == "f":
                require_finite(tensor.ravel().tolist())
        return following, prediction_of(y)


def prediction_of(y: Any) -> Any:
    """A number for one output column, else a list."""
    numbers = y.ravel().tolist()
    require_finite(numbers)
    return numbers[0] if y.shape in ((1,), (1, 1)) else numbers


def require_finite(numbers: list[float]) -> None:
    """Raises unless every number is finite."""
    for number in numbers:
        if not math.isfinite(number):
            raise NonFiniteError


def feature_columns(feature: dict[str, Any], life: list[Event], position: int) -> list[float]:
    """The columns of one feature of the life's event at a position, in float64."""
    event, kind = life[position], feature["kind"]
    if kind == "hour_of_day":
        turn = 2 * math.pi * (event.time // 1000 % 86_400) / 86_400
        return [math.sin(turn), math.cos(turn)]
    if kind == "day_of_week":
        turn = 2 * math.pi * ((event.time // 86_400_000 + 3) % 7) / 7
        return [math.sin(turn), math.cos(turn)]
    if kind == "one_hot":
        value, words = event.values[feature["field"]], feature["values"]
        columns = [1.0 if word == value else 0.0 for word in words]
        if feature.get("unknown", "column") == "column":
            columns.append(1.0 if value not in words else 0.0)
        return columns
    number = raw_number(feature, life, position)
    if number is None:
        number = feature["missing"]
    return [scaled(feature, number)]


def raw_number(feature: dict[str, Any], life: list[Event], position: int) -> float | None:
    """The number of a one-column feature before missing, shift and scale."""
    event, kind, name = life[position], feature["kind"], feature.get("field")
    before = life[position - 1] if position > 0 else None
    if kind == "count":
        return float(position)
    if kind == "since_first":
        return (event.time - life[0].time) / 1000
    if kind == "since_previous":
        return (event.time - before.time) / 1000 if before else None
    if kind == "index":
        value, words = event.values[name], feature["values"]
        return float(words.index(value) if value in words else feature.get("unknown", len(words)))
    value = event.values[name]
    earlier = before.values[name] if before else None
    if kind == "field":
        return None if value is None else float(value)
    if kind == "previous":
        return None if earlier is None else float(earlier)
    if kind == "delta":
        return None if value is None or earlier is None else float(value) - float(earlier)
    raise ValueError(f"no such feature kind: {kind}")


def scaled(feature: dict[str, Any], number: float) -> float:
    """Shift, then scale, in float64."""
    return (number - float(feature.get("shift", 0))) * float(feature.get("scale", 1))
