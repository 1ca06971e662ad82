"""The step that the per-event peers take: decode, features, model at batch 1, encode.

What one writes who scores event by event: a typed decoder, one state a key, one call of ONNX
Runtime an event, a compact record. It makes the features of the benchmark's spec, so on a log in
order its numbers are those of the packed job, which a test holds it to. It knows no watermark and
no late event: what comes is applied as if it were the newest.
"""

import math
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

#: The features of the spec, eight columns; `Stepper.step` computes the same.
FEATURES: Final = """\
[[features]]
name = "hub"
kind = "field"
field = "hub"
scale = 0.02

[[features]]
name = "carrier"
kind = "field"
field = "carrier"
scale = 0.2

[[features]]
name = "weight"
kind = "field"
field = "weight"

[[features]]
name = "lane"
kind = "field"
field = "lane"
scale = 0.005

[[features]]
name = "pause"
kind = "since_previous"
missing = 0.0
scale = 0.01

[[features]]
name = "underway"
kind = "since_first"
scale = 0.0001

[[features]]
name = "hour"
kind = "hour_of_day"
"""

#: Columns of x that they make.
COLUMNS: Final = 8
_DAY_S: Final = 86_400


class Event(msgspec.Struct, gc=False):
    """An event of the log."""

    shipment_id: str
    event_time: int
    hub: int
    carrier: int
    weight: float
    lane: int


class Prediction(msgspec.Struct, gc=False):
    """What leaves for each event."""

    key: str
    sequence: int
    event_time_ms: int
    prediction: float
    events_seen: int


#: What is kept of a key: hidden state, first and last event time, events. A plain tuple of plain
#: values, because that is what Flink's Python state pickles fastest.
KeyState = tuple[bytes, int, int, int]


class Stepper:
    """One event at a time through the model.

    Args:
        model: path of the step model.
        units: of its state.
    """

    def __init__(self, model: Path, units: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._run = session.run
        self._units = units
        self._zeros = bytes(4 * units)
        self.decode = msgspec.json.Decoder(Event).decode
        self.encode = msgspec.json.Encoder().encode

    def step(self, event: Event, state: KeyState | None) -> tuple[Prediction, KeyState]:
        """Advances a key by an event; None is a key without events."""
        time = event.event_time
        hidden, first, last, events = state or (self._zeros, time, time, 0)
        angle = 2 * math.pi * (time // 1000 % _DAY_S) / _DAY_S
        x: NDArray[np.float32] = np.array(
            [
                [
                    event.hub * 0.02,
                    event.carrier * 0.2,
                    event.weight,
                    event.lane * 0.005,
                    (time - last) / 1000 * 0.01,
                    (time - first) / 1000 * 0.0001,
                    math.sin(angle),
                    math.cos(angle),
                ]
            ],
            np.float32,
        )
        h = np.frombuffer(hidden, np.float32).reshape(1, self._units)
        y, h = self._run(["y", "h_next"], {"x": x, "h": h})
        prediction = Prediction(event.shipment_id, events + 1, time, float(y[0, 0]), events + 1)
        return prediction, (h.tobytes(), first, time, events + 1)
