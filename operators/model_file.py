"""A model as declared and as a file: its bytes, its digest, and a session that runs it."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from schemas.spec import Model, NextModel, Spec, StateTensor

StateRows = NDArray[np.uint8]


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


def read_model(path: str) -> tuple[bytes, list[tuple[str, bytes]]]:
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


def digest_of(content: bytes, external: list[tuple[str, bytes]]) -> str:
    """Returns the digest of a model's bytes and its external data."""
    digest = hashlib.sha256(content)
    for name, data in external:
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return f"sha256:{digest.hexdigest()}"


def open_session(path: str, content: bytes, external: bool) -> ort.InferenceSession:
    """Returns a session that runs a model on one thread.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
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
