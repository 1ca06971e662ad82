"""The job spec: one strictly validated TOML file for each job.

The classes here mirror the file table by table and hold no logic; what one table alone can say
wrong is refused by their types, what two settings say against each other by
`schemas.spec_checks`. A refusal is a `SpecError` that names the file, the key path, both values
and the remedy. Relative model paths are resolved against the spec's own folder, never the working
directory.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from schemas.spec_error import SpecError as SpecError
from schemas.spec_error import explained

#: Longest span a setting may give: about 31,700 years. Keeps every sum of times inside int64.
MAX_SPAN_MS = 10**15

Span = Annotated[int, Meta(ge=0, le=MAX_SPAN_MS, description="milliseconds")]
Instant = Annotated[
    int, Meta(ge=-MAX_SPAN_MS, le=MAX_SPAN_MS, description="milliseconds since the epoch, UTC")
]
Name = Annotated[str, Meta(min_length=1)]
FieldType = Literal["str", "int", "float", "bool", "str?", "int?", "float?", "bool?"]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Source(_Table, frozen=True, kw_only=True):
    """Where the events come from."""

    topic: Name
    partitions: Annotated[int, Meta(ge=1, le=10_000)]
    partitioner: Literal["murmur2", "crc32", "none"]
    bootstrap_servers: Name | None = None
    properties: dict[str, str] = {}


class TimeField(_Table, frozen=True, kw_only=True):
    """The field that holds the event time, and its unit."""

    field: Name
    unit: Literal["ms", "s", "us", "ns", "iso8601"]
    offset: Annotated[str, Meta(pattern=r"^[+-][0-9]{2}:[0-9]{2}$(?!\n)")] | None = None


class Event(_Table, frozen=True, kw_only=True):
    """What an event looks like: which field is what, and the types of the fields used."""

    key: Name
    time: TimeField
    id: Name | None = None
    type: Name | None = None
    terminal: tuple[Name, ...] = ()
    heartbeat: Name | None = None
    tombstone: Literal["reject", "forget"] = "reject"
    fields: dict[Name, FieldType] = {}


class Time(_Table, frozen=True, kw_only=True):
    """The watermark and the bounds of event time."""

    out_of_orderness_ms: Span
    allowed_lateness_ms: Span
    max_future_ms: Span
    min_event_time_ms: Instant


class Policy(_Table, frozen=True, kw_only=True):
    """What becomes of events that are in order, late, or of a key that fell silent."""

    late: Literal["drop", "update", "repredict"]
    idle_ttl_ms: Span
    finished_ttl_ms: Span
    emit: Literal["on_event", "on_watermark"] = "on_event"


class _Feature(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"
):
    name: Name


class _Scaled(_Feature, frozen=True, kw_only=True):
    shift: float = 0.0
    scale: float = 1.0


class FieldFeature(_Scaled, frozen=True, kw_only=True, tag="field"):
    """A numeric or boolean field of the event."""

    field: Name
    missing: float | None = None


class SincePrevious(_Scaled, frozen=True, kw_only=True, tag="since_previous"):
    """Seconds since the key's previous event."""

    missing: float


class SinceFirst(_Scaled, frozen=True, kw_only=True, tag="since_first"):
    """Seconds since the earliest event of the key's life."""


class Count(_Scaled, frozen=True, kw_only=True, tag="count"):
    """Number of earlier events of the key's life."""


class Previous(_Scaled, frozen=True, kw_only=True, tag="previous"):
    """A field of the key's previous event."""

    field: Name
    missing: float


class Delta(_Scaled, frozen=True, kw_only=True, tag="delta"):
    """A field less the same field of the key's previous event."""

    field: Name
    missing: float


Vocabulary = Annotated[tuple[str | int | bool, ...], Meta(min_length=1)]


class OneHot(_Feature, frozen=True, kw_only=True, tag="one_hot"):
    """One column for each value, and one for all others unless `unknown = "zeros"`."""

    field: Name
    values: Vocabulary
    unknown: Literal["column", "zeros"] = "column"


class Index(_Scaled, frozen=True, kw_only=True, tag="index"):
    """The position of a value in `values`; `unknown` (default: their number) for all others."""

    field: Name
    values: Vocabulary
    unknown: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None


class HourOfDay(_Feature, frozen=True, kw_only=True, tag="hour_of_day"):
    """Sine and cosine of the UTC time of day, in whole seconds."""


class DayOfWeek(_Feature, frozen=True, kw_only=True, tag="day_of_week"):
    """Sine and cosine of the UTC day of the week; Monday is 0."""


Feature = (
    FieldFeature
    | SincePrevious
    | SinceFirst
    | Count
    | Previous
    | Delta
    | OneHot
    | Index
    | HourOfDay
    | DayOfWeek
)


class StateTensor(_Table, frozen=True, kw_only=True):
    """A state input of the model and the output that is its next value."""

    input: Name
    output: Name


class NextModel(_Table, frozen=True, kw_only=True):
    """A model that takes over, for events at or after `from_event_time_ms`."""

    path: Name
    from_event_time_ms: Instant
    state: Literal["carry", "reset"]
    compatible_with: tuple[Name, ...] = ()
    input: Name | None = None
    output: Name | None = None
    states: tuple[StateTensor, ...] = ()
    window: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class Model(_Table, frozen=True, kw_only=True):
    """The ONNX model: which input is what. What is left out is read from the model's metadata."""

    path: Name
    input: Name | None = None
    output: Name | None = None
    states: tuple[StateTensor, ...] = ()
    window: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    batch: Literal["any", 1] = "any"
    next: tuple[NextModel, ...] = ()


class Sink(_Table, frozen=True, kw_only=True):
    """Where the predictions and the rejects go; the servers are the source's unless named here."""

    predictions: Name
    rejects: Name
    guarantee: Literal["idempotent", "transactional"] = "idempotent"
    features: bool = False
    bootstrap_servers: Name | None = None
    properties: dict[str, str] = {}
    transaction_timeout_ms: Annotated[
        int, Meta(ge=1_000, le=2**31 - 1, description="milliseconds")
    ] = 900_000


class Spec(_Table, frozen=True, kw_only=True):
    """A whole job spec."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")]
    generation: Annotated[int, Meta(ge=0, le=2**53)]
    source: Source
    event: Event
    time: Time
    policy: Policy
    features: Annotated[tuple[Feature, ...], Meta(min_length=1)]
    model: Model
    sink: Sink

    @property
    def field_types(self) -> dict[str, str]:
        """The type of every declared field, the implied ones of key, id and type included."""
        implied = {name: "str" for name in (self.event.key, self.event.id, self.event.type) if name}
        return implied | dict(self.event.fields)

    def decisions(self) -> dict[str, Any]:
        """Everything in the spec that decides records, but for the models, as plain data.

        Topics, servers and guarantees are not in it: a job may move them and keep its state.
        """
        plain = msgspec.to_builtins(self)
        return {
            "generation": self.generation,
            "partitions": self.source.partitions,
            "partitioner": self.source.partitioner,
            "event": plain["event"],
            "time": plain["time"],
            "policy": plain["policy"],
            "features": plain["features"],
            "sink_features": self.sink.features,
        }


def parse_spec(text: str, base_dir: Path, file: str = "") -> Spec:
    """Reads a spec from TOML text.

    Args:
        text: the TOML.
        base_dir: the folder that relative model paths start from.
        file: the name that refusals show.

    Raises:
        SpecError: the text is no TOML, or the spec is refused.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError("TOML", str(error), "correct the syntax there", file) from None
    return spec_of(raw, base_dir, file)


def spec_of(raw: dict[str, Any], base_dir: Path, file: str = "") -> Spec:
    """Checks a spec that is plain data, as TOML or JSON gives it; else like `parse_spec`."""
    from schemas.spec_checks import check  # a cycle otherwise: the checks need the classes

    try:
        spec = msgspec.convert(raw, Spec)
        check(spec)
    except msgspec.ValidationError as error:
        raise explained(error, raw, file, FieldType) from None
    except SpecError as error:
        error.file = file
        raise
    return with_model_paths(spec, lambda _i, path: str((base_dir / path).resolve()))


def with_model_paths(spec: Spec, new_path: Callable[[int, str], str]) -> Spec:
    """Returns the spec with other paths of its models.

    Args:
        spec: a spec.
        new_path: gives the path of a model by its place, in the order they take over, and old path.
    """
    following = tuple(
        msgspec.structs.replace(model, path=new_path(i, model.path))
        for i, model in enumerate(spec.model.next, start=1)
    )
    model = msgspec.structs.replace(spec.model, path=new_path(0, spec.model.path), next=following)
    return msgspec.structs.replace(spec, model=model)


def load_spec(path: str | Path) -> Spec:
    """Reads and checks the job spec in a file: TOML, or the JSON of one that was shipped.

    Raises:
        SpecError: the file cannot be read, or its spec is refused.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            "file", str(error), "give the path of a UTF-8 TOML file", str(path)
        ) from None
    if path.suffix != ".json":
        return parse_spec(text, path.resolve().parent, str(path))
    try:
        raw = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SpecError("JSON", str(error), "ship the spec again", str(path)) from None
    return spec_of(raw, path.resolve().parent, str(path))
