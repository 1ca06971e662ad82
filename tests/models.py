"""Small ONNX models for tests: good ones with different states, and one of each bad kind.

Every function returns a `ModelProto` that depends on its arguments alone, with a dynamic batch
axis unless it is the fault on show. `write` puts one on disk; `digest` is what the contract calls
its `model_digest` while it has no side file.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

F32, F64, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
Shape = Sequence[int | str]
Tensor = tuple[str, int, Shape]


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Writes the model in its one deterministic form."""
    path.write_bytes(content(model))
    return path


def content(model: onnx.ModelProto) -> bytes:
    """The bytes that `write` writes."""
    return bytes(model.SerializeToString(deterministic=True))


def digest(model: onnx.ModelProto) -> str:
    """The `model_digest` of a model without external data."""
    return "sha256:" + hashlib.sha256(content(model)).hexdigest()


def with_metadata(model: onnx.ModelProto, **properties: str) -> onnx.ModelProto:
    """Adds metadata under `tidegate.`, such as `compatible_with`."""
    for name, value in properties.items():
        model.metadata_props.add(key=f"tidegate.{name}", value=value)
    return model


# Good models -----------------------------------------------------------------------------------


def accumulate(n_features: int = 1) -> onnx.ModelProto:
    """h_next = h + sum(x); y = h_next: predictions that can be computed by eye."""
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["sum"]),
            helper.make_node("Add", ["h", "sum"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"ones": np.ones((n_features, 1), np.float32)},
    )


def shift_in(n_features: int = 1) -> onnx.ModelProto:
    """h_next = 10 h + sum(x); y = h_next: single digits show the order they were applied in."""
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["sum"]),
            helper.make_node("Mul", ["h", "ten"], ["shifted"]),
            helper.make_node("Add", ["shifted", "sum"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"ones": np.ones((n_features, 1), np.float32), "ten": np.array(10, np.float32)},
    )


def gru(n_features: int, hidden: int = 4, seed: int = 0, outputs: int = 1) -> onnx.ModelProto:
    """A gated recurrent unit with a linear head and random weights."""
    random = np.random.default_rng(seed)
    wide = n_features + hidden
    weights = {name: _weights(random, wide, hidden) for name in ("Wz", "Wr", "Wh")}
    weights["Wy"] = _weights(random, hidden, outputs)
    return _model(
        [*_gru_nodes(), helper.make_node("MatMul", ["h_next", "Wy"], ["y"])],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", hidden])],
        [("y", F32, ["B", outputs]), ("h_next", F32, ["B", hidden])],
        weights,
    )


def two_states(n_features: int, hidden: int = 4, seed: int = 0) -> onnx.ModelProto:
    """A GRU state beside a float64 matrix of averages and an int64 counter; two outputs."""
    random = np.random.default_rng(seed)
    wide = n_features + hidden
    weights = {name: _weights(random, wide, hidden) for name in ("Wz", "Wr", "Wh")}
    weights |= {
        "Wy": _weights(random, hidden + 1, 2),
        "ones": np.ones((n_features, 1), np.float32),
        "keep": np.array([[[0.5, 0.875]]], np.float64),
        "take": np.array([[[0.5, 0.125]]], np.float64),
        "one": np.array([[1]], np.int64),
        "last": np.array([2], np.int64),
    }
    return _model(
        [
            *_gru_nodes(),
            helper.make_node("Add", ["c", "one"], ["c_next"]),
            # No ReduceSum: ONNX Runtime sums a row alone in another order than in a batch.
            helper.make_node("MatMul", ["x", "ones"], ["total"]),
            helper.make_node("Cast", ["total"], ["total64"], to=F64),
            helper.make_node("Unsqueeze", ["total64", "last"], ["column"]),
            helper.make_node("Mul", ["ema", "keep"], ["kept"]),
            helper.make_node("Mul", ["column", "take"], ["taken"]),
            helper.make_node("Add", ["kept", "taken"], ["ema_next"]),
            helper.make_node("Cast", ["c_next"], ["c32"], to=F32),
            helper.make_node("Concat", ["h_next", "c32"], ["hc"], axis=1),
            helper.make_node("MatMul", ["hc", "Wy"], ["y_state"]),
            helper.make_node("Cast", ["ema_next"], ["ema32"], to=F32),
            helper.make_node("ReduceSum", ["ema32", "axis"], ["y_ema"], keepdims=0),
            helper.make_node("Add", ["y_state", "y_ema"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", hidden]), ("c", I64, ["B", 1]),
         ("ema", F64, ["B", 1, 2])],
        [("y", F32, ["B", 2]), ("h_next", F32, ["B", hidden]), ("c_next", I64, ["B", 1]),
         ("ema_next", F64, ["B", 1, 2])],
        weights | {"axis": np.array([1], np.int64)},
    )  # fmt: skip


def windowed(n_features: int, length: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Stateless over the last `length` rows, x of shape (batch, length, features)."""
    random = np.random.default_rng(seed)
    return _model(
        [
            helper.make_node("Reshape", ["x", "flat"], ["rows"]),
            helper.make_node("MatMul", ["rows", "W"], ["a"]),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "Wy"], ["y"]),
        ],
        [("x", F32, ["B", length, n_features])],
        [("y", F32, ["B", 1])],
        {
            "flat": np.array([-1, length * n_features], np.int64),
            "W": _weights(random, length * n_features, 4),
            "Wy": _weights(random, 4, 1),
        },
    )


def windowed_digits(n_features: int, length: int = 3) -> onnx.ModelProto:
    """The digits of the last `length` sums of x, oldest first: a window read by eye."""
    tens = [[10.0 ** (length - 1 - place)] for place in range(length) for _ in range(n_features)]
    return _model(
        [
            helper.make_node("Reshape", ["x", "flat"], ["rows"]),
            helper.make_node("MatMul", ["rows", "tens"], ["y"]),
        ],
        [("x", F32, ["B", length, n_features])],
        [("y", F32, ["B", 1])],
        {
            "flat": np.array([-1, length * n_features], np.int64),
            "tens": np.array(tens, np.float32),
        },
    )


def explosive(n_features: int) -> onnx.ModelProto:
    """h_next = h * s + s with s = sum(x): two values of 1e20 in a row overflow, in any order.

    An event between them that is 0 keeps the state finite, so an insertion can make a later,
    recomputed step overflow that did not before.
    """
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["s"]),
            helper.make_node("Mul", ["h", "s"], ["hs"]),
            helper.make_node("Add", ["hs", "s"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"ones": np.ones((n_features, 1), np.float32)},
    )


def hidden_overflow(n_features: int) -> onnx.ModelProto:
    """Like `explosive`, but the output stays finite (a tanh): only the state tells."""
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["s"]),
            helper.make_node("Mul", ["h", "s"], ["hs"]),
            helper.make_node("Add", ["hs", "s"], ["h_next"]),
            helper.make_node("Tanh", ["s"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"ones": np.ones((n_features, 1), np.float32)},
    )


def write_with_side_file(n_features: int, path: Path, seed: int = 0) -> Path:
    """Writes a GRU whose weights lie in `<name>.data` beside it, as ONNX external data."""
    model = gru(n_features, hidden=16, seed=seed)
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=path.name + ".data",
        size_threshold=0,
    )
    return path


# Bad models ------------------------------------------------------------------------------------


def batch_variant(n_features: int) -> onnx.ModelProto:
    """Dynamic int8: the scale is taken over the whole batch, so neighbours change a row."""
    random = np.random.default_rng(0)
    weights = random.integers(-90, 90, (n_features, 1)).astype(np.int8)
    return _model(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
            helper.make_node("MatMulInteger", ["q", "W", "q_zero"], ["product"]),
            helper.make_node("Cast", ["product"], ["product32"], to=F32),
            helper.make_node("Mul", ["product32", "q_scale"], ["s"]),
            helper.make_node("Add", ["h", "s"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"W": weights},
    )


def fixed_batch(n_features: int) -> onnx.ModelProto:
    """`accumulate` that takes one row a call: fine under `batch = 1` only."""
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["sum"]),
            helper.make_node("Add", ["h", "sum"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y"]),
        ],
        [("x", F32, [1, n_features]), ("h", F32, [1, 1])],
        [("y", F32, [1, 1]), ("h_next", F32, [1, 1])],
        {"ones": np.ones((n_features, 1), np.float32)},
    )


def constant_state(n_features: int) -> onnx.ModelProto:
    """Hands the state on unchanged: the exporter forgot the recurrence."""
    return _model(
        [
            helper.make_node("MatMul", ["x", "ones"], ["sum"]),
            helper.make_node("Add", ["h", "sum"], ["y"]),
            helper.make_node("Identity", ["h"], ["h_next"]),
        ],
        [("x", F32, ["B", n_features]), ("h", F32, ["B", 1])],
        [("y", F32, ["B", 1]), ("h_next", F32, ["B", 1])],
        {"ones": np.ones((n_features, 1), np.float32)},
    )


# Parts -----------------------------------------------------------------------------------------


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[Tensor],
    outputs: list[Tensor],
    weights: dict[str, NDArray[Any]],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests"
    )
    onnx.checker.check_model(model)
    return model


def _weights(random: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    return random.normal(0, 0.5, (rows, columns)).astype(np.float32)


def _gru_nodes() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Concat", ["x", "h"], ["hx"], axis=1),
        helper.make_node("MatMul", ["hx", "Wz"], ["az"]),
        helper.make_node("Sigmoid", ["az"], ["z"]),
        helper.make_node("MatMul", ["hx", "Wr"], ["ar"]),
        helper.make_node("Sigmoid", ["ar"], ["r"]),
        helper.make_node("Mul", ["r", "h"], ["rh"]),
        helper.make_node("Concat", ["x", "rh"], ["rhx"], axis=1),
        helper.make_node("MatMul", ["rhx", "Wh"], ["ah"]),
        helper.make_node("Tanh", ["ah"], ["candidate"]),
        helper.make_node("Sub", ["candidate", "h"], ["gap"]),
        helper.make_node("Mul", ["z", "gap"], ["step"]),
        helper.make_node("Add", ["h", "step"], ["h_next"]),
    ]
