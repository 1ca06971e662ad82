"""What only running a model can tell, on this machine: asked once, before any record."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from operators.model_file import ModelError, StateRows

if TYPE_CHECKING:
    from operators.model import StepModel

_PROBE_ROWS = 256
_PROBE_BATCHES = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 257, 1024, 4096)
#: The largest batch that a row was seen in.
LARGEST_BATCH = max(_PROBE_BATCHES)


def _probe(model: "StepModel", n: int) -> tuple[NDArray[Any], StateRows]:
    """Makes n input rows of several magnitudes, and the state rows after two steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, model.columns)) * np.exp2(rng.integers(-6, 7, size=(n, model.columns)))
    rows = x.astype(model.dtype)
    state = np.zeros((n, model.state_bytes), np.uint8)
    single, model.single = model.single, True  # row by row: the reference
    try:
        for _ in range(2):
            _, state = model.run(rows, state)
    finally:
        model.single = single
    return rows, state


def _try(model: "StepModel", x: NDArray[Any], state: StateRows) -> tuple[NDArray[Any], StateRows]:
    """Steps probe rows: a graph may not do what its inputs and outputs promise."""
    try:
        return model.run_together(x, state)
    except Exception as error:
        raise ModelError(
            model.path,
            f"it fails in a batch of {len(x)}: {error}",
            "rows of any batch, as its axes say"
            if not model.single
            else "a row of the declared shapes",
            "export the model with a dynamic batch axis throughout (a reshape inside may hold "
            "a fixed one), or set model.batch = 1",
        ) from None


def check_batch_invariance(model: "StepModel") -> float:
    """Refuses a model whose rows change with the batch; returns the greatest difference found.

    Raises:
        ModelError: a row stepped alone and the same row in a batch differ in a bit.
    """
    rows, state = _probe(model, _PROBE_ROWS)
    alone = [_try(model, rows[i : i + 1], state[i : i + 1]) for i in range(len(rows))]
    y, following = np.concatenate([a for a, _ in alone]), np.concatenate([b for _, b in alone])
    worst, at = 0.0, 0
    for n in _PROBE_BATCHES:
        # Every row comes to stand at other places of its batch each time.
        pick = (np.arange(n) * 5 + n) % len(rows)
        got_y, got_state = _try(model, rows[pick], state[pick])
        same = got_y.tobytes() == y[pick].tobytes()
        if same and got_state.tobytes() == following[pick].tobytes():
            continue
        difference = float(np.nanmax(np.abs(got_y - y[pick]), initial=0.0))
        if at == 0 or difference > worst:
            worst, at = difference, n
    if at:
        raise ModelError(
            model.path,
            f"rows change with the batch: alone and among {at} they differ by {worst:.3g}",
            "the same bits for a row whoever else is in the batch, on this machine",
            "set model.batch = 1, or export the model without batch-dependent operators "
            "(dynamic quantisation is one)",
        )
    return worst


def check_states_move(model: "StepModel") -> None:
    """Refuses a model with a state output that never changes.

    Raises:
        ModelError: names the output.
    """
    rows, state = _probe(model, 64)
    _, following = model.run(rows, state)
    at = 0
    for tensor in model.states:
        part = slice(at, at + tensor.nbytes)
        at += tensor.nbytes
        if (following[:, part] == state[:, part]).all():
            raise ModelError(
                model.path,
                f"the state output {tensor.output!r} never changes",
                f"the next value of {tensor.input!r}",
                "name the right output in model.states, or leave that state out",
            )
