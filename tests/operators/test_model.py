"""The model contract: what a job accepts as a model, and how everything else is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from operators.model import ModelError, StepModel, load_models
from operators.model_file import declarations
from operators.scorer import Scorer
from tests import models
from tests.small_jobs import GONE, STATES, every_way, ms, parsed, record, small_job

F32, F64, I64, I32 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32
BOOL, F16 = TensorProto.BOOL, TensorProto.FLOAT16
THREE = [{"input": n, "output": f"{n}_next"} for n in ("h", "c", "ema")]


def _graph(
    nodes: list[tuple[str, str, str]],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: dict[str, tuple[int, list[int | str]]],
    constants: dict[str, NDArray[Any]] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model from (operator, inputs, output) triples."""
    graph = helper.make_graph(
        [
            helper.make_node(operator, before.split(), [after], **attributes.get(after, {}))
            for operator, before, after in nodes
        ],
        "small",
        [helper.make_tensor_value_info(n, *each) for n, each in inputs.items()],
        [helper.make_tensor_value_info(n, *each) for n, each in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _adds(
    x: list[int | str] | None = None,
    h: list[int | str] | None = None,
    dtype: int = F32,
    operator: str = "Identity",
) -> onnx.ModelProto:
    """h_next = operator(h + x), y = h_next, of one column."""
    state = h or ["B", 1]
    return _graph(
        [("Add", "h x", "s"), (operator, "s", "h_next"), ("Identity", "h_next", "y")],
        {"x": (dtype, x or ["B", 1]), "h": (dtype, state)},
        {"y": (dtype, state), "h_next": (dtype, state)},
    )


def _load(
    folder: Path, model: onnx.ModelProto, changes: dict[str, Any] | None = None, columns: int = 1
) -> StepModel:
    (declaration,) = declarations(small_job(folder, changes, model))
    return StepModel(declaration, columns)


def _refused(load: Callable[[], object], *parts: str) -> None:
    """Asserts a refusal that names the file, what was found and needed, and the remedy."""
    with pytest.raises(ModelError) as caught:
        load()
    for part in (".onnx: ", *parts, "\n  needed: ", "\n  remedy: "):
        assert part in str(caught.value)


# What is accepted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "state_bytes", "outputs"),
    [
        (models.accumulate(), {}, 4, 1),
        (models.gru(1, hidden=16), {}, 64, 1),
        (models.gru(1, hidden=3, outputs=2), {}, 12, 2),
        (models.two_states(1), {"model.states": THREE}, 16 + 8 + 16, 2),
        (models.windowed(1, 5), {"model.states": [], "model.window": 5}, 16, 1),
        (models.windowed_digits(1, 1), {"model.states": [], "model.window": 1}, 0, 1),
        (_adds(dtype=F64), {}, 8, 1),
        (_adds(x=["B", "F"], h=["N", 1]), {}, 4, 1),
    ],
)
def test_a_good_model_is_taken(
    tmp_path: Path, model: onnx.ModelProto, changes: dict[str, Any], state_bytes: int, outputs: int
) -> None:
    """Its digest is that of its bytes, its state row as wide as its tensors together."""
    loaded = _load(tmp_path, model, changes)
    assert (models.digest(model), state_bytes, outputs) == (
        loaded.digest,
        loaded.state_bytes,
        loaded.output_size,
    )


def test_an_output_may_lack_the_second_axis(tmp_path: Path) -> None:
    """(batch,) and (batch, 1) are one number; (batch, k) is a list."""
    flat = _graph(
        [("Add", "h x", "h_next"), ("Squeeze", "h_next one", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B"]), "h_next": (F32, ["B", 1])},
        {"one": np.array([1], np.int64)},
    )
    rows = [record(0, 0, v=2.0), record(1, 0, key="b", v=3.0)]
    for model, expected in ((flat, [2.0, 3.0]), (models.accumulate(), [2.0, 3.0])):
        predictions, _ = every_way(small_job(tmp_path, {}, model), rows)
        assert expected == [each["prediction"] for each in parsed(predictions)]
    two = small_job(tmp_path, {"model.states": THREE}, models.two_states(1))
    predictions, _ = every_way(two, rows)
    assert [2, 2] == [len(each["prediction"]) for each in parsed(predictions)]


@pytest.mark.parametrize("dtype", [F32, F64, I64, I32, BOOL])
def test_states_of_other_dtypes_are_kept_exactly(tmp_path: Path, dtype: int) -> None:
    """A counter, a flag or a double beside the float32 input, through every restore."""
    inner = I64 if dtype == BOOL else dtype
    nodes = [("Cast", "h", "n"), ("Add", "n one", "n1"), ("Cast", "n1", "h_next"),
             ("Cast", "h_next", "f"), ("Add", "f x", "y")]  # fmt: skip
    if dtype == BOOL:  # true, false, true: a flag that flips
        nodes[2] = ("Not", "h", "h_next")
    model = _graph(
        nodes,
        {"x": (F32, ["B", 1]), "h": (dtype, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (dtype, ["B", 1])},
        {"one": np.array([[1]], helper.tensor_dtype_to_np_dtype(inner))},
        n={"to": inner}, h_next={} if dtype == BOOL else {"to": dtype}, f={"to": F32},
    )  # fmt: skip
    rows = [record(i, 3 * i - 4 * (i == 3), v=0.0) for i in range(6)]
    predictions, _ = every_way(small_job(tmp_path, {}, model), rows)
    found = sorted(parsed(predictions), key=lambda each: each["sequence"])
    expected = [1, 0, 1, 0, 1, 0] if dtype == BOOL else [1, 2, 3, 4, 5, 6]
    assert expected == [each["prediction"] for each in found]


def test_tensors_may_be_named_by_the_metadata(tmp_path: Path) -> None:
    """What the spec leaves out is read there; what it says goes first."""
    left_out = {"model.input": GONE, "model.output": GONE, "model.states": GONE}
    model = models.with_metadata(models.accumulate(), input="x", output="y", states="h:h_next")
    rows = [record(0, 0, v=2.0), record(1, 1, v=3.0)]
    declared = every_way(small_job(tmp_path / "1", {}, model), rows)
    assert declared == every_way(small_job(tmp_path / "2", left_out, model), rows)
    three = models.with_metadata(
        models.two_states(1), input="x", output="y", states="h:h_next,c:c_next,ema:ema_next"
    )
    assert 3 == len(_load(tmp_path / "3", three, left_out).states)
    wrong = models.with_metadata(models.accumulate(), input="h", output="h", states="x:y")
    assert _load(tmp_path / "4", wrong).states


def test_a_window_starts_with_zero_rows(tmp_path: Path) -> None:
    """The last three events as digits, oldest first, fewer at the beginning of a life."""
    window = {"model.states": [], "model.window": 3}
    spec = small_job(tmp_path, window, models.windowed_digits(1, 3))
    rows = [record(i, 20 * i, v=float(i + 1)) for i in range(5)] + [record(5, 75, v=9.0)]
    predictions, _ = every_way(spec, rows)
    found = sorted(parsed(predictions), key=lambda each: each["sequence"])
    assert [1, 12, 123, 234, 345, 495] == [each["prediction"] for each in found]


# The batch -------------------------------------------------------------------------------------


def _mean(where: str) -> onnx.ModelProto:
    """A model whose output or state takes the mean over the batch."""
    nodes = [("Add", "h x", "s"), ("ReduceMean", "s", "m"), ("Sub", "s m", "d")]
    y, h_next = ("d", "s") if where == "output" else ("s", "d")
    return _graph(
        [*nodes, ("Identity", y, "y"), ("Identity", h_next, "h_next")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1])},
        m={"axes": [0], "keepdims": 1},
    )


VARIANT = {
    "dynamic int8": models.batch_variant(1),
    "mean in the output": _mean("output"),
    "mean in the state": _mean("state"),
}


@pytest.mark.parametrize("kind", VARIANT)
def test_a_model_whose_rows_depend_on_the_batch_is_refused(tmp_path: Path, kind: str) -> None:
    """Unless the spec says batch = 1: then it is stepped row by row and gives one answer."""
    parts = ("rows change with the batch", "model.batch = 1")
    _refused(lambda: _load(tmp_path, VARIANT[kind]), *parts)
    if kind == "mean in the state":  # alone, a row less its mean is nothing: it never moves
        return
    spec = small_job(tmp_path, {"model.batch": 1}, VARIANT[kind])
    rows = [record(i, i / 4, key=f"k{i % 3}", v=float(i)) for i in range(20)]
    predictions, _ = every_way(spec, rows)
    assert 20 == len(predictions)


def test_a_quantised_model_is_refused_unless_stepped_alone(tmp_path: Path) -> None:
    """What ONNX Runtime's own dynamic quantisation makes of a GRU."""
    quantisation = pytest.importorskip("onnxruntime.quantization")
    small_job(tmp_path, {}, models.gru(1, hidden=16))
    (tmp_path / "float.onnx").write_bytes((tmp_path / "model.onnx").read_bytes())
    quantisation.quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "q.onnx", weight_type=quantisation.QuantType.QInt8
    )
    model = onnx.load(tmp_path / "q.onnx")
    _refused(lambda: _load(tmp_path, model), "rows change with the batch")
    assert 64 == _load(tmp_path, model, {"model.batch": 1}).state_bytes


@pytest.mark.parametrize("operator", ["Softplus", "Elu", "Selu", "Sin", "Tanh", "Sigmoid", "Exp"])
def test_an_operator_gives_the_same_bits_in_every_batch_or_is_refused(
    tmp_path: Path, operator: str
) -> None:
    """Which ones do differ depends on the machine; what is accepted must hold on fresh numbers."""
    try:
        model = _load(tmp_path, _adds(operator=operator))
    except ModelError:
        _refused(lambda: _load(tmp_path, _adds(operator=operator)), "rows change with the batch")
        return
    random = np.random.default_rng(7)
    for n in (3, 1_000, 5_000, 16_384):
        x = random.normal(0, 4, (n, 1)).astype(np.float32)
        state = random.normal(0, 4, (n, 1)).astype(np.float32).view(np.uint8)
        y, following = model.run(x, state)
        for i in {0, 1, n // 2, n - 2, n - 1, *random.integers(0, n, 200).tolist()}:
            alone = model.run(x[i : i + 1], state[i : i + 1])
            assert y[i : i + 1].tobytes() == alone[0].tobytes()
            assert following[i : i + 1].tobytes() == alone[1].tobytes()


def test_a_fixed_batch_axis_is_refused(tmp_path: Path) -> None:
    """One of size 1 is taken under batch = 1; any other never is."""
    fixed = models.fixed_batch(1)
    _refused(lambda: _load(tmp_path, fixed), "fixed batch axis 1", "model.batch = 1")
    alone = {"model.batch": 1}
    spec = small_job(tmp_path, alone, fixed)
    rows = [record(i, i, key=f"k{i % 2}", v=1.0) for i in range(6)]
    assert 6 == len(every_way(spec, rows)[0])
    four = _adds(x=[4, 1], h=[4, 1])
    _refused(lambda: _load(tmp_path, four), "fixed batch axis 4")
    _refused(lambda: _load(tmp_path, four, alone), "fixed batch axis 4")


# Names, dtypes, shapes -------------------------------------------------------------------------


def _without_state() -> onnx.ModelProto:
    return _graph([("Identity", "x", "y")], {"x": (F32, ["B", 1])}, {"y": (F32, ["B", 1])})


def _extra() -> onnx.ModelProto:
    return _graph(
        [("Add", "h x", "s"), ("Add", "s c", "h_next"), ("Identity", "h_next", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1]), "c": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1])},
    )


def _half_state(dtype: int, shape: list[int | str], wide: bool = False) -> onnx.ModelProto:
    """A state whose next value has another dtype or shape."""
    return _graph(
        [("Add", "h x", "s"), ("Identity", "s", "y"), ("Cast", "s", "c"),
         ("Concat", "c c", "h_next") if wide else ("Identity", "c", "h_next")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (dtype, shape)},
        c={"to": dtype}, h_next={"axis": 1} if wide else {},
    )  # fmt: skip


def _scalar_output() -> onnx.ModelProto:
    return _graph(
        [("Add", "h x", "h_next"), ("ReduceSum", "h_next", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, []), "h_next": (F32, ["B", 1])},
        y={"keepdims": 0},
    )


def _state_of_any_size() -> onnx.ModelProto:
    return _graph(
        [("Add", "h x", "h_next"), ("ReduceSum", "h_next one", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", "H"])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", "H"])},
        {"one": np.array([1], np.int64)},
    )


def _sum_over_batch() -> onnx.ModelProto:
    return _graph(
        [("Add", "h x", "h_next"), ("ReduceSum", "h_next none", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["N", 1]), "h_next": (F32, ["B", 1])},
        {"none": np.array([0], np.int64)},
    )


def _batch_inside() -> onnx.ModelProto:
    """Its axes are dynamic, but a reshape inside was exported for one row."""
    return _graph(
        [("Reshape", "x one", "row"), ("Add", "h row", "h_next"), ("Identity", "h_next", "y"),
         ("Reshape", "h_next one", "unused")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1]), "unused": (F32, [1, 1])},
        {"one": np.array([1, 1], np.int64)},
    )  # fmt: skip


def _cast_input(dtype: int) -> onnx.ModelProto:
    return _graph(
        [("Cast", "x", "f"), ("Add", "h f", "h_next"), ("Identity", "h_next", "y")],
        {"x": (dtype, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1])},
        f={"to": F32},
    )


def _deep_output() -> onnx.ModelProto:
    return _graph(
        [("Add", "h x", "h_next"), ("Unsqueeze", "h_next two", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1])},
        {"y": (F32, ["B", 1, 1]), "h_next": (F32, ["B", 1])},
        {"two": np.array([2], np.int64)},
    )


BAD: dict[str, tuple[onnx.ModelProto, dict[str, Any], list[str]]] = {
    "no such input": (_adds(), {"model.input": "z"}, ["no input named 'z'", "['x', 'h']"]),
    "no such output": (_adds(), {"model.output": "z"}, ["no output named 'z'", "['y', 'h_next']"]),
    "no such state": (
        _adds(), {"model.states": [{"input": "c", "output": "h_next"}]},
        ["no input named 'c'", "['x', 'h']"],
    ),
    "no such next state": (
        _adds(), {"model.states": [{"input": "h", "output": "c"}]}, ["no output named 'c'"],
    ),
    "nothing declared": (_adds(), {"model.states": []}, ["neither states nor a window"]),
    "input not named": (_adds(), {"model.input": GONE}, ["model.input is not set"]),
    "output not named": (_adds(), {"model.output": GONE}, ["model.output is not set"]),
    "bad metadata": (
        models.with_metadata(_adds(), states="h"), {"model.states": []},
        ["tidegate.states = 'h'", "input:output"],
    ),
    "undeclared input": (_extra(), {}, ["inputs ['c'] are not declared"]),
    "more columns": (_adds(x=["B", 2]), {}, ["['B', 2]", "(batch, 1)", "1 columns"]),
    "no columns": (_adds(x=["B"]), {}, ["(batch, 1)"]),
    "integer input": (_cast_input(I64), {}, ["int64", "float32 or float64"]),
    "half input": (_cast_input(F16), {}, ["tensor(float16)"]),
    "text input": (
        _graph(
            [("Identity", "h", "h_next"), ("Identity", "h_next", "y")],
            {"x": (TensorProto.STRING, ["B", 1]), "h": (F32, ["B", 1])},
            {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1])},
        ), {}, ["tensor(string)"],
    ),
    "window of another length": (
        models.windowed(1, 4), {"model.states": [], "model.window": 3}, ["4", "(batch, 3, 1)"],
    ),
    "deep output": (_deep_output(), {}, ["'y' has the shape", "(batch, numbers)"]),
    "output of one number for all": (_scalar_output(), {}, ["'y' has no axes"]),
    "state of unknown size": (
        _state_of_any_size(), {}, ["'h' has the shape", "a fixed size on every axis"],
    ),
    "next state of another dtype": (
        _half_state(F64, ["B", 1]), {}, ["float32", "float64", "the same dtype and shape"],
    ),
    "next state of another shape": (
        _half_state(F32, ["B", 2], wide=True), {}, ["[1]", "[2]", "the same dtype and shape"],
    ),
    "state that stands still": (models.constant_state(1), {}, ["'h_next' never changes"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_model_that_breaks_the_contract_is_refused(tmp_path: Path, kind: str) -> None:
    """Before any record, with the tensor's name and what was needed."""
    model, changes, parts = BAD[kind]
    _refused(lambda: Scorer(small_job(tmp_path, changes, model)), *parts)


def test_one_state_of_several_that_stands_still_is_refused(tmp_path: Path) -> None:
    """The others moving does not hide it."""
    model = _graph(
        [("Add", "h x", "h_next"), ("Identity", "c", "c_next"), ("Add", "h_next c", "y")],
        {"x": (F32, ["B", 1]), "h": (F32, ["B", 1]), "c": (F32, ["B", 1])},
        {"y": (F32, ["B", 1]), "h_next": (F32, ["B", 1]), "c_next": (F32, ["B", 1])},
    )
    changes = {"model.states": THREE[:2]}
    _refused(lambda: _load(tmp_path, model, changes), "'c_next' never changes")


def test_a_window_model_without_states_needs_the_window(tmp_path: Path) -> None:
    """Nothing is guessed from the shapes."""
    parts = ("neither states nor a window",)
    _refused(lambda: _load(tmp_path, _without_state(), {"model.states": []}), *parts)


@pytest.mark.parametrize("content", [None, b"", b"not ONNX", b"\x08\x08"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Missing, empty, or something else."""
    spec = small_job(tmp_path)
    path = tmp_path / "model.onnx"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    _refused(lambda: Scorer(spec))


def test_a_model_that_the_runtime_cannot_run_is_refused(tmp_path: Path) -> None:
    """A graph with an operator that nobody has."""
    model = _adds()
    model.graph.node[1].op_type = "Teleport"
    _refused(lambda: _load(tmp_path, model), "ONNX Runtime refuses it")


@pytest.mark.parametrize("model", [_sum_over_batch(), _batch_inside()])
def test_a_model_that_fails_in_a_batch_is_refused(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Its axes say any batch, the graph inside does not hold to it: found at load, not later."""
    _refused(lambda: _load(tmp_path, model), "batch")


# External data ---------------------------------------------------------------------------------


def test_the_digest_covers_the_side_file(tmp_path: Path) -> None:
    """Every byte of it, and it does not change when both files are copied elsewhere."""
    spec = small_job(tmp_path, {}, models.gru(1, hidden=16))
    models.write_with_side_file(1, tmp_path / "model.onnx")
    (declaration,) = declarations(spec)
    digest = StepModel(declaration, 1).digest
    (tmp_path / "copy").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    (copied,) = declarations(
        small_copy := small_job(tmp_path / "spec", {"model.path": "../copy/model.onnx"})
    )
    assert digest == StepModel(copied, 1).digest
    assert small_copy.model.path == str(tmp_path / "copy" / "model.onnx")
    side = tmp_path / "model.onnx.data"
    whole = side.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        side.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert digest != StepModel(declaration, 1).digest
    side.unlink()
    _refused(lambda: StepModel(declaration, 1), "model.onnx.data", "the file beside the model")


# Models that follow ----------------------------------------------------------------------------


def _followed_by(
    folder: Path, first: onnx.ModelProto, second: onnx.ModelProto, **settings: Any
) -> list[StepModel]:
    folder.mkdir(exist_ok=True)
    models.write(second, folder / "next.onnx")
    following = {"path": "next.onnx", "from_event_time_ms": ms(10), **settings}
    spec = small_job(folder, {"model.next": [following]}, first)
    return load_models(spec, 1)


def test_a_state_is_carried_only_where_the_next_model_says_so(tmp_path: Path) -> None:
    """It lists the digest of the one before, in the spec or in its metadata."""
    first, second = models.accumulate(), models.shift_in()
    digest = models.digest(first)
    refused = (digest, "compatible_with", 'state = "reset"')
    _refused(lambda: _followed_by(tmp_path, first, second, state="carry"), *refused)
    other = models.digest(models.gru(1))
    _refused(
        lambda: _followed_by(tmp_path, first, second, state="carry", compatible_with=[other]),
        *refused,
        other,
    )
    both = _followed_by(tmp_path, first, second, state="carry", compatible_with=[other, digest])
    assert [digest, models.digest(second)] == [model.digest for model in both]
    listing = models.with_metadata(models.shift_in(), compatible_with=f"{other}, {digest}")
    assert 2 == len(_followed_by(tmp_path, first, listing, state="carry"))
    assert 2 == len(_followed_by(tmp_path, first, second, state="reset"))


@pytest.mark.parametrize(
    ("second", "settings"),
    [
        (models.gru(1, hidden=5), {}),
        (models.two_states(1), {"states": THREE}),
        (models.windowed(1, 3), {"window": 3}),
    ],
)
def test_a_state_of_another_shape_is_not_carried(
    tmp_path: Path, second: onnx.ModelProto, settings: dict[str, Any]
) -> None:
    """Other sizes, other tensors, or a window after a state: all need a reset."""
    first = models.gru(1, hidden=4, outputs=2 if settings.get("states") else 1)
    listed = {"state": "carry", "compatible_with": [models.digest(first)], **settings}
    _refused(lambda: _followed_by(tmp_path, first, second, **listed), '"carry"', '"reset"')


def test_models_of_a_job_share_the_input_dtype(tmp_path: Path) -> None:
    """The features are cast once."""
    parts = ("input is float64", "takes float32")
    _refused(lambda: _followed_by(tmp_path, _adds(), _adds(dtype=F64), state="reset"), *parts)


def test_models_of_a_job_share_the_number_of_outputs(tmp_path: Path) -> None:
    """A consumer that reads a number must not find a list after the cut-over."""
    first, second = models.gru(1), models.gru(1, outputs=2)
    _refused(lambda: _followed_by(tmp_path, first, second, state="reset"), "2", "1")


def test_a_next_model_is_checked_like_the_first(tmp_path: Path) -> None:
    """It may have names of its own, and is refused for the same reasons."""
    first = models.accumulate()
    _refused(
        lambda: _followed_by(tmp_path, first, models.constant_state(1), state="reset"),
        "next.onnx",
        "never changes",
    )
    _refused(
        lambda: _followed_by(tmp_path, first, first, state="reset", input="z"), "no input named"
    )
    renamed = _graph(
        [("Add", "s x2", "s2"), ("Identity", "s2", "out")],
        {"x2": (F32, ["B", 1]), "s": (F32, ["B", 1])},
        {"out": (F32, ["B", 1]), "s2": (F32, ["B", 1])},
    )
    names = {"input": "x2", "output": "out", "states": [{"input": "s", "output": "s2"}]}
    listed = {"state": "carry", "compatible_with": [models.digest(first)], **names}
    assert 2 == len(_followed_by(tmp_path, first, renamed, **listed))
    assert STATES == [{"input": "h", "output": "h_next"}]
