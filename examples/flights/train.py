"""Fits the step model to the histories: a GRU by truncated backpropagation through time, in JAX.

Every life is one sequence, and a prediction is asked of each event that has a label. The lives are
strung together into equally long lanes; a lane is cut into chunks, and the state crosses from chunk
to chunk without its gradient. The loss is the mean absolute error in minutes: delays have heavy
tails, and what is judged is that error.

The output is linear in the state, in the inputs, and in the known delays with weights that the
state sets: a delay of ten hours saturates every gate, and must still come through as ten hours
while the aircraft is in the air, and as much less once it has landed.

The same numbers need the same machine kind: seeds are fixed, but JAX compiles for the processor.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.flights.histories import Histories
from examples.flights.model import Params, Shape, initial_params

SEED = 2013
LANES = 256
CHUNK = 32
EPOCHS = 30
LEARNING_RATE = 1e-2
OUTPUT_SCALE_MIN = 50.0
BETAS = (0.9, 0.999)

Tree = dict[str, Any]


def inner_input(params: Tree, shape: Shape, x: Any) -> Any:
    """The plain columns of x and the table rows that its index columns name."""
    parts = [x[..., jnp.asarray(shape.plain)]]
    parts += [params[f"table_{c}"][x[..., c].astype(jnp.int32)] for c in shape.tables]
    return jnp.concatenate(parts, axis=-1)


def step(params: Tree, h: Any, v: Any) -> Any:
    """The next state of the GRU."""
    hidden = h.shape[-1]
    gates = jax.nn.sigmoid(v @ params["gates_x"] + h @ params["gates_h"] + params["gates_b"])
    update, reset = gates[..., :hidden], gates[..., hidden:]
    candidate = jnp.tanh(
        v @ params["candidate_x"] + (reset * h) @ params["candidate_h"] + params["candidate_b"]
    )
    return h + update * (candidate - h)


def chunk_loss(params: Tree, shape: Shape, h: Any, chunk: tuple[Any, Any, Any]) -> Any:
    """Summed absolute error in output units over a chunk, and the state after it."""
    x, first, label = chunk
    v = inner_input(params, shape, x)

    def advance(h: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
        row, begins = at
        after = step(params, jnp.where(begins[:, None], 0.0, h), row)
        return after, after

    h, states = jax.lax.scan(advance, h, (v, first))
    weights = states @ params["out_delays"]
    leaning = jnp.sum(weights * x[..., jnp.asarray(shape.delays)], axis=-1, keepdims=True)
    y = states @ params["out_h"] + v @ params["out_x"] + leaning + params["out_b"]
    known = ~jnp.isnan(label)
    error = jnp.abs(y[..., 0] - jnp.where(known, label, 0.0) / OUTPUT_SCALE_MIN)
    return jnp.sum(jnp.where(known, error, 0.0)) / jnp.maximum(known.sum(), 1), h


def lanes_of(histories: Histories, rng: np.random.Generator) -> list[tuple[Any, Any, Any]]:
    """The lives in random order, strung into lanes, cut into chunks of (time, lane, ...)."""
    starts = np.flatnonzero(histories.first)
    ends = np.append(starts[1:], histories.first.size)
    lives = rng.permutation(starts.size)
    order = np.concatenate([np.arange(starts[i], ends[i]) for i in lives])
    chunks = order.size // (LANES * CHUNK)
    order = order[: chunks * CHUNK * LANES].reshape(LANES, chunks * CHUNK)
    first = histories.first[order]
    first[:, 0] = True
    parts = (histories.x[order], first, histories.label_min[order])
    return [
        tuple(np.swapaxes(part[:, at : at + CHUNK], 0, 1) for part in parts)  # type: ignore[misc]
        for at in range(0, chunks * CHUNK, CHUNK)
    ]


def _make_update(shape: Shape, steps: int) -> Callable[..., Any]:
    """One Adam step with a cosine decay of the rate, compiled."""

    def update(
        params: Tree, moments: tuple[Tree, Tree], count: Any, h: Any, chunk: Any
    ) -> tuple[Tree, tuple[Tree, Tree], Any, Any]:
        (loss, h), grads = jax.value_and_grad(
            lambda p: chunk_loss(p, shape, h, chunk), has_aux=True
        )(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-9)), grads)
        b1, b2 = BETAS
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments[0], grads)
        square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g**2, moments[1], grads)
        warm = jnp.minimum(1.0, count / 100.0)
        rate = LEARNING_RATE * warm * 0.5 * (1 + jnp.cos(jnp.pi * count / steps))
        params = jax.tree.map(
            lambda p, m, s: (
                p - rate * (m / (1 - b1**count)) / (jnp.sqrt(s / (1 - b2**count)) + 1e-8)
            ),
            params,
            mean,
            square,
        )
        return params, (mean, square), h, loss

    return jax.jit(update)


def fit(
    histories: Histories,
    shape: Shape,
    epochs: int = EPOCHS,
    report: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Params:
    """The weights after training.

    Args:
        histories: Of the training months.
        shape: Of the model.
        epochs: Passes over the histories.
        report: Told after each epoch, with the training error in minutes.
    """
    rng = np.random.default_rng(SEED)
    params = jax.tree.map(jnp.asarray, initial_params(shape, SEED))
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    per_epoch = histories.first.size // (LANES * CHUNK)
    update = _make_update(shape, epochs * per_epoch)
    count = 0
    for epoch in range(epochs):
        h = jnp.zeros((LANES, shape.hidden), jnp.float32)
        losses = []
        for chunk in lanes_of(histories, rng):
            count += 1
            params, moments, h, loss = update(params, moments, float(count), h, chunk)
            losses.append(loss)
        report(epoch + 1, float(np.mean(losses)) * OUTPUT_SCALE_MIN)
    weights = {name: np.asarray(value) for name, value in params.items()}
    for name in ("out_h", "out_x", "out_delays", "out_b"):
        weights[name] = weights[name] * np.float32(OUTPUT_SCALE_MIN)
    return weights
