"""The model contract: an ONNX model as a pure step, checked before any record.

A `StepModel` maps (input rows, state rows) to (outputs, next state rows). A state row is the
bytes of all state tensors of one key, in the declared order: the rest of the core moves rows and
never looks inside. Which tensor is what is declared in the spec or the model's metadata, never
guessed by position.

Danger: "one log, one answer" rests on rows not depending on who else is in the batch. That is
measured here, on this machine, when the model is loaded.
"""

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from schemas.spec import Model, NextModel, Spec, StateTensor

StateRows = NDArray[np.uint8]

_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
}
_PROBE_ROWS = 512
_PROBE_BATCHES = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 257, 1024, 4096)


class ModelError(ValueError):
    """A model that is refused: names the model, what was found and needed, and the remedy."""

    def __init__(self, path: str, found: str, needed: str, remedy: str) -> None:
        super().__init__(f"{path}: {found}\n  needed: {needed}\n  remedy: {remedy}")


@dataclass(frozen=True, slots=True)
class Declaration:
    """Which tensor of a model is what, and how it is stepped."""

    path: str
    input: str
    output: str
    states: tuple[StateTensor, ...]
    window: int | None
    single: bool
    from_event_time_ms: int
    carry: bool
    compatible_with: tuple[str, ...]


def declarations(spec: Spec) -> list[Declaration]:
    """Returns the spec's models in the order they take over; the first holds from the beginning."""
    model = spec.model
    first = Declaration(
        path=model.path,
        input=model.input or "",
        output=model.output or "",
        states=model.states,
        window=model.window,
        single=model.batch == 1,
        from_event_time_ms=-(2**63),
        carry=False,
        compatible_with=(),
    )
    return [first, *(_next(first, model, following) for following in model.next)]


def _next(first: Declaration, model: Model, following: NextModel) -> Declaration:
    own_shape = following.window is not None or following.states
    return replace(
        first,
        path=following.path,
        input=following.input or first.input,
        output=following.output or first.output,
        states=following.states if own_shape else model.states,
        window=following.window if own_shape else model.window,
        from_event_time_ms=following.from_event_time_ms,
        carry=following.state == "carry",
        compatible_with=following.compatible_with,
    )


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
        content, external = _read(self.path)
        self.digest = _digest(content, external)
        self._session = _session(self.path, content, bool(external))
        self._describe(declaration)
        self.columns = columns
        self._check_input(columns)
        self.output_size = self._check_output()
        self.states = tuple(self._check_state(state) for state in self.declaration.states)
        self._check_undeclared()
        self._outputs = [self.declaration.output, *(tensor.output for tensor in self.states)]
        row = np.dtype((self.dtype, (self.window - 1, columns))) if self.window else None
        self.state_bytes = row.itemsize if row is not None else sum(t.nbytes for t in self.states)
        self.batch_difference = 0.0 if self.single else self._check_batch_invariance()
        if self.states:
            self._check_states_move()

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
            return self._run(x, state)
        pieces = [self._run(x[i : i + 1], state[i : i + 1]) for i in range(len(x))]
        return np.concatenate([y for y, _ in pieces]), np.concatenate([s for _, s in pieces])

    def _run(self, x: NDArray[Any], state: StateRows) -> tuple[NDArray[Any], StateRows]:
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

    def _probe(self, n: int) -> tuple[NDArray[Any], StateRows]:
        """Makes n input rows of several magnitudes, and the state rows after two steps."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(n, self.columns)) * np.exp2(
            rng.integers(-6, 7, size=(n, self.columns))
        )
        rows = x.astype(self.dtype)
        state = np.zeros((n, self.state_bytes), np.uint8)
        single, self.single = self.single, True  # row by row: the reference
        try:
            for _ in range(2):
                _, state = self.run(rows, state)
        finally:
            self.single = single
        return rows, state

    def _try(self, x: NDArray[Any], state: StateRows) -> tuple[NDArray[Any], StateRows]:
        """Steps probe rows: a graph may not do what its inputs and outputs promise."""
        try:
            return self._run(x, state)
        except Exception as error:
            raise ModelError(
                self.path,
                f"it fails in a batch of {len(x)}: {error}",
                "rows of any batch, as its axes say"
                if not self.single
                else "a row of the declared shapes",
                "export the model with a dynamic batch axis throughout (a reshape inside may hold "
                "a fixed one), or set model.batch = 1",
            ) from None

    def _check_batch_invariance(self) -> float:
        rows, state = self._probe(_PROBE_ROWS)
        alone = [self._try(rows[i : i + 1], state[i : i + 1]) for i in range(len(rows))]
        y, following = np.concatenate([a for a, _ in alone]), np.concatenate([b for _, b in alone])
        worst, at = 0.0, 0
        for n in _PROBE_BATCHES:
            # Every row comes to stand at other places of its batch each time.
            pick = (np.arange(n) * 5 + n) % len(rows)
            got_y, got_state = self._try(rows[pick], state[pick])
            same = got_y.tobytes() == y[pick].tobytes()
            if same and got_state.tobytes() == following[pick].tobytes():
                continue
            difference = float(np.nanmax(np.abs(got_y - y[pick]), initial=0.0))
            if at == 0 or difference > worst:
                worst, at = difference, n
        if at:
            raise ModelError(
                self.path,
                f"rows change with the batch: alone and among {at} they differ by {worst:.3g}",
                "the same bits for a row whoever else is in the batch, on this machine",
                "set model.batch = 1, or export the model without batch-dependent operators "
                "(dynamic quantisation is one)",
            )
        return worst

    def _check_states_move(self) -> None:
        rows, state = self._probe(64)
        _, following = self.run(rows, state)
        at = 0
        for tensor in self.states:
            part = slice(at, at + tensor.nbytes)
            at += tensor.nbytes
            if (following[:, part] == state[:, part]).all():
                raise ModelError(
                    self.path,
                    f"the state output {tensor.output!r} never changes",
                    f"the next value of {tensor.input!r}",
                    "name the right output in model.states, or leave that state out",
                )


def _view(rows: StateRows, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(rows).view(dtype).reshape(len(rows), *shape)


def _read(path: str) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Returns the model's bytes, and (name, bytes) of each file of external data."""
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelError(path, str(error), "a readable ONNX file", "correct model.path") from None
    try:
        proto = onnx.load_model_from_string(content)
    except Exception as error:
        raise ModelError(
            path, f"no ONNX model: {error}", "an ONNX file", "export it again"
        ) from None
    names = set()
    for tensor in _tensors(proto.graph):
        if uses_external_data(tensor):
            names.add(ExternalDataInfo(tensor).location)
    external = []
    for name in sorted(names):
        try:
            external.append((name, (file.parent / name).read_bytes()))
        except OSError as error:
            raise ModelError(
                path,
                f"external data {name!r}: {error}",
                "the file beside the model",
                "copy the model together with its data files",
            ) from None
    return content, external


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Returns every tensor of a graph and of the graphs inside its nodes."""
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            tensors.extend([attribute.t] if attribute.HasField("t") else [])
            tensors.extend(attribute.tensors)
            if attribute.HasField("g"):
                tensors.extend(_tensors(attribute.g))
            for inner in attribute.graphs:
                tensors.extend(_tensors(inner))
    return tensors


def _digest(content: bytes, external: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256(content)
    for name, data in external:
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return f"sha256:{digest.hexdigest()}"


def _session(path: str, content: bytes, external: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # One thread: the engine's parallelism is the partitions', and sums keep one order.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        # External data is found relative to a path; all else comes from the bytes hashed.
        return ort.InferenceSession(
            path if external else content, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ModelError(
            path, f"ONNX Runtime refuses it: {error}", "a model it can run", "export it again"
        ) from None


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
