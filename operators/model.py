"""The model contract: an ONNX model as a pure step, checked before any record.

A `StepModel` maps (input rows, state rows) to (outputs, next state rows). A state row is the
bytes of all state tensors of one key, in the declared order: the rest of the core moves rows and
never looks inside. Which tensor is what is declared in the spec or the model's metadata, never
guessed by position.

Danger: "one log, one answer" rests on rows not depending on who else is in the batch. That is
measured here, on this machine, when the model is loaded.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.model_file import (
    Declaration,
    StateRows,
    declarations,
    digest_of,
    open_session,
    read_model,
)
from operators.model_file import ModelError as ModelError
from operators.model_probe import check_batch_invariance, check_states_move
from schemas.spec import Spec, StateTensor

_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A state tensor's names, dtype, and shape without the batch axis."""

    input: str
    output: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class StepModel:
    """One model, loaded and checked.

    Args:
        declaration: which tensor is what.
        columns: the number of feature columns the spec declares.

    Attributes:
        digest: sha256 over the model's bytes and its external data.
        dtype: dtype of the input rows.
        state_bytes: bytes of a state row.
        batch_difference: greatest difference found between a row stepped alone and in a batch.

    Raises:
        ModelError: the model breaks the contract.
    """

    def __init__(self, declaration: Declaration, columns: int) -> None:
        self.path = declaration.path
        content, external = read_model(self.path)
        self.digest = digest_of(content, external)
        self._session = open_session(self.path, content, bool(external))
        self._describe(declaration)
        self.columns = columns
        self._check_input(columns)
        self.output_size = self._check_output()
        self.states = tuple(self._check_state(state) for state in self.declaration.states)
        self._check_undeclared()
        self._outputs = [self.declaration.output, *(tensor.output for tensor in self.states)]
        row = np.dtype((self.dtype, (self.window - 1, columns))) if self.window else None
        self.state_bytes = row.itemsize if row is not None else sum(t.nbytes for t in self.states)
        self.batch_difference = 0.0 if self.single else check_batch_invariance(self)
        if self.states:
            check_states_move(self)

    def _describe(self, declaration: Declaration) -> None:
        """Fills what the spec leaves out from the model's metadata."""
        metadata = self._session.get_modelmeta().custom_metadata_map
        states = declaration.states
        if not states and declaration.window is None and metadata.get("tidegate.states"):
            pairs = [pair.split(":") for pair in metadata["tidegate.states"].split(",")]
            if any(len(pair) != 2 for pair in pairs):
                raise ModelError(
                    self.path,
                    f"metadata tidegate.states = {metadata['tidegate.states']!r}",
                    "input:output pairs, comma separated",
                    "correct the metadata, or declare model.states in the spec",
                )
            states = tuple(StateTensor(input=a, output=b) for a, b in pairs)
        listed = metadata.get("tidegate.compatible_with", "")
        self.declaration = replace(
            declaration,
            input=declaration.input or metadata.get("tidegate.input", ""),
            output=declaration.output or metadata.get("tidegate.output", ""),
            states=states,
            compatible_with=declaration.compatible_with
            + tuple(digest.strip() for digest in listed.split(",") if digest.strip()),
        )
        for name in ("input", "output"):
            if not getattr(self.declaration, name):
                raise ModelError(
                    self.path,
                    f"model.{name} is not set, and the metadata has no tidegate.{name}",
                    "the name of the tensor",
                    f"set model.{name} in the spec",
                )
        if not states and declaration.window is None:
            raise ModelError(
                self.path,
                "neither states nor a window are declared",
                "model.states, or model.window = L for a model of the last L events",
                "declare one of them in the spec",
            )
        self.window = declaration.window
        self.single = declaration.single

    def _tensor(self, side: str, name: str, what: str) -> tuple[Any, list[Any]]:
        """Returns dtype and shape of a declared tensor, its batch axis checked."""
        nodes = self._session.get_inputs() if side == "input" else self._session.get_outputs()
        found = next((node for node in nodes if node.name == name), None)
        if found is None:
            raise ModelError(
                self.path,
                f"no {side} named {name!r}; it has {[node.name for node in nodes]}",
                f"the {side} that {what} names",
                f"correct {what}, or export the model with that name",
            )
        dtype = _DTYPES.get(found.type)
        if dtype is None:
            raise ModelError(
                self.path,
                f"{side} {name!r} is {found.type}",
                f"one of {sorted(_DTYPES)}",
                "export the model with one of these types",
            )
        shape = list(found.shape)
        if not shape:
            raise ModelError(
                self.path, f"{side} {name!r} has no axes", "a batch axis", "export it with one"
            )
        if isinstance(shape[0], int) and not (self.single and shape[0] == 1):
            raise ModelError(
                self.path,
                f"{side} {name!r} has the fixed batch axis {shape[0]}",
                'a dynamic batch axis, or model.batch = 1 for a model of one row (here "any")'
                if not self.single
                else "a dynamic batch axis, or one of size 1",
                "export the model with a dynamic batch axis",
            )
        return dtype, shape

    def _check_input(self, columns: int) -> None:
        self.dtype, shape = self._tensor("input", self.declaration.input, "model.input")
        if self.dtype.kind != "f":
            raise ModelError(
                self.path,
                f"input {self.declaration.input!r} is {self.dtype}",
                "float32 or float64",
                "cast inside the model",
            )
        needed = [columns] if self.window is None else [self.window, columns]
        rest = shape[1:]
        if len(rest) != len(needed) or any(
            isinstance(size, int) and size != need for size, need in zip(rest, needed, strict=True)
        ):
            raise ModelError(
                self.path,
                f"input {self.declaration.input!r} has the shape {shape}",
                f"(batch, {', '.join(map(str, needed))}): the features make {columns} columns",
                "change the spec's features, or export the model for them",
            )

    def _check_undeclared(self) -> None:
        declared = {self.declaration.input, *(s.input for s in self.declaration.states)}
        others = [n.name for n in self._session.get_inputs() if n.name not in declared]
        if others:
            raise ModelError(
                self.path,
                f"inputs {others} are not declared",
                "every input is model.input or the input of a state",
                "declare them in model.states, or export the model without them",
            )

    def _check_output(self) -> int:
        _, shape = self._tensor("output", self.declaration.output, "model.output")
        size = shape[1] if len(shape) == 2 else 1
        if len(shape) > 2 or not isinstance(size, int):
            raise ModelError(
                self.path,
                f"output {self.declaration.output!r} has the shape {shape}",
                "(batch,) or (batch, numbers)",
                "reshape it inside the model",
            )
        return size

    def _check_state(self, state: StateTensor) -> Tensor:
        before, shape = self._tensor("input", state.input, "model.states")
        after, next_shape = self._tensor("output", state.output, "model.states")
        if any(not isinstance(size, int) for size in shape[1:]):
            raise ModelError(
                self.path,
                f"state {state.input!r} has the shape {shape}",
                "a fixed size on every axis but the batch axis",
                "export the model with a fixed state size",
            )
        if before != after or shape[1:] != next_shape[1:]:
            raise ModelError(
                self.path,
                f"state {state.input!r} is {before} {shape[1:]}, its next value {state.output!r} "
                f"is {after} {next_shape[1:]}",
                "the same dtype and shape on both sides",
                "correct model.states, or the model",
            )
        return Tensor(state.input, state.output, before, tuple(shape[1:]))

    def run(self, x: NDArray[Any], state: StateRows) -> tuple[NDArray[Any], StateRows]:
        """Steps n keys by one event each.

        Args:
            x: input rows, shape (n, columns).
            state: state rows, uint8, shape (n, state_bytes).

        Returns:
            Outputs, shape (n, numbers), and the next state rows.
        """
        if not self.single:
            return self.run_together(x, state)
        pieces = [self.run_together(x[i : i + 1], state[i : i + 1]) for i in range(len(x))]
        return np.concatenate([y for y, _ in pieces]), np.concatenate([s for _, s in pieces])

    def run_together(self, x: NDArray[Any], state: StateRows) -> tuple[NDArray[Any], StateRows]:
        """Steps n keys by one call, as `run` does unless the model takes one row at a time."""
        n = len(x)
        if self.window is not None:
            past = _view(state, self.dtype, (self.window - 1, self.columns))
            frames = np.concatenate((past, x[:, None, :]), axis=1)
            (y,) = self._session.run([self.declaration.output], {self.declaration.input: frames})
            following = np.ascontiguousarray(frames[:, 1:]).reshape(n, -1).view(np.uint8)
            return np.asarray(y).reshape(n, self.output_size), following.reshape(
                n, self.state_bytes
            )
        feeds = {self.declaration.input: x}
        at = 0
        for tensor in self.states:
            part = state if len(self.states) == 1 else state[:, at : at + tensor.nbytes]
            feeds[tensor.input] = _view(part, tensor.dtype, tensor.shape)
            at += tensor.nbytes
        y, *following = self._session.run(self._outputs, feeds)
        rows = [np.ascontiguousarray(after).reshape(n, -1).view(np.uint8) for after in following]
        y = np.asarray(y).reshape(n, self.output_size)
        return y, rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def finite(self, state: StateRows) -> NDArray[np.bool_]:
        """Tells which state rows hold only finite numbers."""
        if self.window is not None:
            return np.ones(
                len(state), np.bool_
            )  # rows of it are inputs, which are checked themselves
        good = np.ones(len(state), np.bool_)
        if not len(state):
            return good
        at = 0
        for tensor in self.states:
            if tensor.dtype.kind == "f":
                values = _view(state[:, at : at + tensor.nbytes], tensor.dtype, (-1,))
                good &= np.isfinite(values).all(axis=1)
            at += tensor.nbytes
        return good


def _view(rows: StateRows, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(rows).view(dtype).reshape(len(rows), *shape)


def load_models(spec: Spec, columns: int) -> list[StepModel]:
    """Loads the spec's models in the order they take over, and checks them against each other.

    Raises:
        ModelError: a model breaks the contract, or cannot follow the one before.
    """
    models = [StepModel(declaration, columns) for declaration in declarations(spec)]
    for before, after in pairwise(models):
        if after.dtype != before.dtype:
            raise ModelError(
                after.path,
                f"input is {after.dtype}, the model before takes {before.dtype}",
                "one input dtype in all models of a job",
                "export it with that dtype",
            )
        if after.output_size != before.output_size:
            raise ModelError(
                after.path,
                f"output is of {after.output_size} numbers, of the model before it of "
                f"{before.output_size}",
                "one number of outputs in all models of a job",
                "export it with that output, or run it as a job of its own",
            )
        if after.declaration.carry:
            _check_carry(before, after)
    return models


def _check_carry(before: StepModel, after: StepModel) -> None:
    if before.digest != after.digest and before.digest not in after.declaration.compatible_with:
        raise ModelError(
            after.path,
            f'state = "carry", but compatible_with = {list(after.declaration.compatible_with)}',
            f"the digest of the model before it, {before.digest}",
            "list that digest in compatible_with (or in the model's metadata "
            'tidegate.compatible_with), or set state = "reset"',
        )
    shapes = [
        [(t.dtype, t.shape) for t in m.states] if m.window is None else [(m.dtype, (m.window,))]
        for m in (before, after)
    ]
    if shapes[0] != shapes[1]:
        raise ModelError(
            after.path,
            f'state = "carry" with the state {shapes[1]}, before it was {shapes[0]}',
            "the same state tensors in the same order",
            'set state = "reset", or export the model with those states',
        )
