"""Makes model.onnx: a GRU step of 16 units with random weights, for the simulated shipments.

It is not trained, and there is nothing to train it for: the shipments are simulated. It is here so
that the example has the shape and the cost of a real model. The same seed gives the same bytes.

    python examples/shipments/make_model.py
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20240101
HIDDEN = 16
#: weight, leg, pause, underway, scans, event (three columns), hour (two columns)
FEATURES = 10
MOST_HOURS = 96.0


def make_model(features: int = FEATURES, hidden: int = HIDDEN, seed: int = SEED) -> onnx.ModelProto:
    """Builds the step model: x (batch, features), h (batch, hidden) -> y (batch, 1), h_next.

    Update and reset gate are one product; y is in hours, 0 to `MOST_HOURS`.
    """
    rng = np.random.default_rng(seed)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        scale = 1.0 / np.sqrt(shape[0])
        return numpy_helper.from_array(rng.uniform(-scale, scale, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Concat", ["x", "h"], ["xh"], axis=1),
        helper.make_node("Gemm", ["xh", "w_gates", "b_gates"], ["gates_in"]),
        helper.make_node("Sigmoid", ["gates_in"], ["gates"]),
        helper.make_node("Split", ["gates"], ["update", "reset"], axis=1),
        helper.make_node("Mul", ["reset", "h"], ["kept"]),
        helper.make_node("Concat", ["x", "kept"], ["xk"], axis=1),
        helper.make_node("Gemm", ["xk", "w_new", "b_new"], ["new_in"]),
        helper.make_node("Tanh", ["new_in"], ["new"]),
        helper.make_node("Sub", ["new", "h"], ["change"]),
        helper.make_node("Mul", ["update", "change"], ["step"]),
        helper.make_node("Add", ["h", "step"], ["h_next"]),
        helper.make_node("Gemm", ["h_next", "w_out", "b_out"], ["out"]),
        # Not Softplus: ONNX Runtime's gives other last bits at other batch sizes, so it is refused.
        helper.make_node("Sigmoid", ["out"], ["share"]),
        helper.make_node("Mul", ["share", "most_hours"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shipment_step",
        inputs=[
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", features]),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", hidden]),
        ],
        outputs=[
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info("h_next", TensorProto.FLOAT, ["batch", hidden]),
        ],
        initializer=[
            weights("w_gates", features + hidden, 2 * hidden),
            weights("b_gates", 2 * hidden),
            weights("w_new", features + hidden, hidden),
            weights("b_new", hidden),
            weights("w_out", hidden, 1),
            weights("b_out", 1),
            numpy_helper.from_array(np.array([MOST_HOURS], dtype=np.float32), "most_hours"),
        ],
    )
    model = helper.make_model(
        graph,
        producer_name="tidegate examples/shipments",
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    path = Path(__file__).with_name("model.onnx")
    onnx.save(make_model(), path)
    print(f"{path}: {path.stat().st_size} bytes")
