"""The per-event PyFlink peer's functions, in a module that workers import by name."""

from collections.abc import Iterator
from pathlib import Path

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor

from jobs.log_files import HEAD_SIZE
from tests.benchmarks.per_event import Stepper


def key_of(line: str) -> str:
    """Returns the record's key, which stands between the line's head and the JSON object."""
    return line[HEAD_SIZE : line.index("{", HEAD_SIZE)]


class ScoreEvent(KeyedProcessFunction):  # type: ignore[misc]
    """Steps the key of each event, in keyed `ValueState`.

    Args:
        model: path of the step model.
        units: of its state.
    """

    def __init__(self, model: str, units: int) -> None:
        self._model = model
        self._units = units

    def open(self, runtime_context: RuntimeContext) -> None:
        """Loads the model and names the state."""
        self._stepper = Stepper(Path(self._model), self._units)
        self._state = runtime_context.get_state(
            ValueStateDescriptor("state", Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        """Steps the key by one event."""
        stepper = self._stepper
        event = stepper.decode(value[value.index("{", HEAD_SIZE) :])
        prediction, after = stepper.step(event, self._state.value())
        self._state.update(after)
        yield stepper.encode(prediction).decode()
