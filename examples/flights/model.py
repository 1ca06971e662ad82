"""The step model's shape, and its export to ONNX: inputs x and h, outputs y and h_next.

The graph is written out node by node, so nothing but onnx is needed to make it, and the columns of
x come from the job spec. Index columns pick a row of a table; they are clipped to it first, so no
number can make the lookup fail.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from operators.features import FeaturePlan
from schemas.spec import Index, Spec

HIDDEN = 24
TABLE_WIDTHS = {"carrier": 4, "dest": 8}
DELAYS = ("dep_delay", "arr_delay")
OPSET = 17
IR_VERSION = 8

Params = dict[str, NDArray[np.float32]]


class Shape(NamedTuple):
    """Which columns of x go in as they are, and which name a row of a table.

    Attributes:
        columns: Of x.
        plain: The columns that go in as they are.
        delays: The columns that the state weighs in the output.
        tables: By index column, rows (the unknown's is the last) and width of its table.
        hidden: Of the state.
    """

    columns: int
    plain: tuple[int, ...]
    delays: tuple[int, ...]
    tables: dict[int, tuple[int, int]]
    hidden: int

    @property
    def inner(self) -> int:
        """How many numbers the cell sees."""
        return len(self.plain) + sum(width for _, width in self.tables.values())


def shape_of(spec: Spec, hidden: int = HIDDEN) -> Shape:
    """The model's shape for the features a spec declares."""
    names = FeaturePlan(spec).names
    tables = {
        names.index(feature.name): (len(feature.values) + 1, TABLE_WIDTHS[feature.name])
        for feature in spec.features
        if isinstance(feature, Index)
    }
    plain = tuple(column for column in range(len(names)) if column not in tables)
    delays = tuple(map(names.index, DELAYS))
    return Shape(len(names), plain, delays, tables, hidden)


def initial_params(shape: Shape, seed: int) -> Params:
    """Small random weights; the output starts as zero for everything."""
    rng = np.random.default_rng(seed)
    wide, hidden = shape.inner, shape.hidden
    dims = {
        "gates_x": (wide, 2 * hidden),
        "gates_h": (hidden, 2 * hidden),
        "candidate_x": (wide, hidden),
        "candidate_h": (hidden, hidden),
    }
    params = {
        name: rng.normal(0.0, 1 / np.sqrt(dim[0]), dim).astype(np.float32)
        for name, dim in dims.items()
    }
    for column, (rows, width) in shape.tables.items():
        params[f"table_{column}"] = rng.normal(0.0, 0.1, (rows, width)).astype(np.float32)
    params["gates_b"] = np.zeros(2 * hidden, np.float32)
    params["candidate_b"] = np.zeros(hidden, np.float32)
    params["out_h"] = np.zeros((hidden, 1), np.float32)
    params["out_delays"] = np.zeros((hidden, len(shape.delays)), np.float32)
    params["out_x"] = np.zeros((wide, 1), np.float32)
    params["out_b"] = np.zeros(1, np.float32)
    return params


def to_onnx(params: Params, shape: Shape) -> bytes:
    """The step model as ONNX bytes; the same weights give the same bytes."""
    columns = {f"column_{c}": np.array([c], np.int64) for c in shape.tables}
    constants: dict[str, NDArray[Any]] = dict(params) | columns
    constants["delay_columns"] = np.array(shape.delays, np.int64)
    constants["ones"] = np.ones((len(shape.delays), 1), np.float32)
    constants["plain_columns"] = np.array(shape.plain, np.int64)
    constants["zero"] = np.array(0, np.float32)
    nodes = [helper.make_node("Gather", ["x", "plain_columns"], ["plain"], axis=1)]
    parts = ["plain"]
    for column, (rows, _) in shape.tables.items():
        constants[f"last_{column}"] = np.array(rows - 1, np.float32)
        constants["flat"] = np.array([-1], np.int64)
        nodes += [
            helper.make_node("Gather", ["x", f"column_{column}"], [f"raw_{column}"], axis=1),
            helper.make_node(
                "Clip", [f"raw_{column}", "zero", f"last_{column}"], [f"clip_{column}"]
            ),
            helper.make_node("Cast", [f"clip_{column}"], [f"cast_{column}"], to=TensorProto.INT64),
            helper.make_node("Reshape", [f"cast_{column}", "flat"], [f"row_{column}"]),
            helper.make_node("Gather", [f"table_{column}", f"row_{column}"], [f"part_{column}"]),
        ]
        parts.append(f"part_{column}")
    nodes.append(helper.make_node("Concat", parts, ["v"], axis=1))
    nodes += _cell_nodes(constants, shape.hidden)
    graph = helper.make_graph(
        nodes,
        "flights",
        [_tensor("x", shape.columns), _tensor("h", shape.hidden)],
        [_tensor("y", 1), _tensor("h_next", shape.hidden)],
        [numpy_helper.from_array(constants[name], name) for name in sorted(constants)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _tensor(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])


def _cell_nodes(constants: dict[str, NDArray[Any]], hidden: int) -> list[onnx.NodeProto]:
    """The GRU cell from v and h to h_next, and the output."""
    constants["halves"] = np.array([hidden, hidden], np.int64)
    make = helper.make_node
    return [
        make("MatMul", ["v", "gates_x"], ["gates_of_v"]),
        make("MatMul", ["h", "gates_h"], ["gates_of_h"]),
        make("Add", ["gates_of_v", "gates_of_h"], ["gates_sum"]),
        make("Add", ["gates_sum", "gates_b"], ["gates_in"]),
        make("Sigmoid", ["gates_in"], ["gates"]),
        make("Split", ["gates", "halves"], ["update", "reset"], axis=1),
        make("Mul", ["reset", "h"], ["h_reset"]),
        make("MatMul", ["v", "candidate_x"], ["candidate_of_v"]),
        make("MatMul", ["h_reset", "candidate_h"], ["candidate_of_h"]),
        make("Add", ["candidate_of_v", "candidate_of_h"], ["candidate_sum"]),
        make("Add", ["candidate_sum", "candidate_b"], ["candidate_in"]),
        make("Tanh", ["candidate_in"], ["candidate"]),
        make("Sub", ["candidate", "h"], ["change"]),
        make("Mul", ["update", "change"], ["change_part"]),
        make("Add", ["h", "change_part"], ["h_next"]),
        make("MatMul", ["h_next", "out_h"], ["out_of_h"]),
        make("MatMul", ["v", "out_x"], ["out_of_v"]),
        make("Gather", ["x", "delay_columns"], ["delays"], axis=1),
        make("MatMul", ["h_next", "out_delays"], ["delay_weights"]),
        make("Mul", ["delay_weights", "delays"], ["weighed"]),
        make("MatMul", ["weighed", "ones"], ["out_of_delays"]),
        make("Add", ["out_of_h", "out_of_v"], ["out_of_both"]),
        make("Add", ["out_of_both", "out_of_delays"], ["out_sum"]),
        make("Add", ["out_sum", "out_b"], ["y"]),
    ]
