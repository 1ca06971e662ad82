"""What two settings of a spec say against each other, each refused with both values and the remedy.

`schemas.spec` refuses what one value alone can say wrong; this module holds only the rules between
values. Every rule is a function over the whole spec that raises `SpecError`.
"""

import math
from itertools import combinations, pairwise

from schemas.spec import (
    Delta,
    FieldFeature,
    Index,
    Model,
    NextModel,
    OneHot,
    Previous,
    Spec,
    SpecError,
)

_NUMERIC = ("int", "float", "bool")
_PYTHON = {"str": str, "int": int, "bool": bool}


def check(spec: Spec) -> None:
    """Refuses a spec whose settings contradict each other.

    Raises:
        SpecError: the first contradiction found.
    """
    for rule in (_lifetimes, _event_types, _event_time, _fields, _features, _models, _topics):
        rule(spec)


def _topics(spec: Spec) -> None:
    named = {
        "sink.predictions": spec.sink.predictions,
        "sink.rejects": spec.sink.rejects,
    }
    if spec.sink.bootstrap_servers in (None, spec.source.bootstrap_servers):
        named["source.topic"] = spec.source.topic
    for (first, one), (second, other) in combinations(named.items(), 2):
        if one == other:
            raise SpecError(
                first,
                f"{one!r} is also {second}: the job would read its own outputs, or mix them",
                "name a topic of its own",
            )


def _lifetimes(spec: Spec) -> None:
    lateness = spec.time.allowed_lateness_ms
    for name in ("idle_ttl_ms", "finished_ttl_ms"):
        ttl = getattr(spec.policy, name)
        if ttl < lateness:
            raise SpecError(
                f"policy.{name}",
                f"{ttl} is less than time.allowed_lateness_ms = {lateness}: a life could end while "
                "its late events are still accepted, and (epoch, sequence) would go back",
                f"raise {name} to at least {lateness}, or lower allowed_lateness_ms",
            )


def _event_types(spec: Spec) -> None:
    event = spec.event
    roles = [("key", event.key), ("id", event.id), ("type", event.type)]
    for (first, name), (second, other) in combinations(roles, 2):
        if name is not None and name == other:
            raise SpecError(
                f"event.{second}",
                f"{other!r} is also event.{first}",
                "name a field of its own for each",
            )
    if event.type is None:
        for name, value in (("terminal", event.terminal), ("heartbeat", event.heartbeat)):
            if value:
                raise SpecError(
                    f"event.{name}",
                    f"{value!r} names event types, but event.type is not set",
                    "set event.type to the field that holds the type",
                )
    if event.heartbeat is not None and event.heartbeat in event.terminal:
        raise SpecError(
            "event.heartbeat",
            f"{event.heartbeat!r} is also in event.terminal = {list(event.terminal)}",
            "give heartbeats a type of their own",
        )


def _event_time(spec: Spec) -> None:
    time = spec.event.time
    if time.offset is not None and time.unit != "iso8601":
        raise SpecError(
            "event.time.offset",
            f"{time.offset!r} given with unit = {time.unit!r}: only zone-less text needs one",
            'remove offset, or set unit = "iso8601"',
        )
    if time.offset is not None and (int(time.offset[1:3]) > 23 or int(time.offset[4:]) > 59):
        raise SpecError(
            "event.time.offset", f"{time.offset!r} is no offset", "use -23:59 to +23:59"
        )
    if time.field in (spec.event.key, spec.event.id, spec.event.type):
        raise SpecError(
            "event.time.field",
            f"{time.field!r} is also the key, id or type field",
            "name the field that holds the event time",
        )


def _fields(spec: Spec) -> None:
    event = spec.event
    allowed = {event.key: ("str",), event.id: ("str", "str?"), event.type: ("str", "str?")}
    for name, types in allowed.items():
        declared = spec.event.fields.get(name or "")
        if declared is not None and declared not in types:
            raise SpecError(
                f"event.fields.{name}",
                f"declared {declared!r}, but it is the key, id or type field",
                f"declare it {' or '.join(types)}, or leave it out",
            )
    declared = event.fields.get(event.time.field)
    expected = "str" if event.time.unit == "iso8601" else "int"
    if declared is not None and declared != expected:
        raise SpecError(
            f"event.fields.{event.time.field}",
            f"declared {declared!r}, but event.time.unit = {event.time.unit!r} reads {expected!r}",
            f"declare it {expected!r}, or leave it out",
        )


def _features(spec: Spec) -> None:
    seen: set[str] = set()
    for position, feature in enumerate(spec.features):
        where = f"features[{position}]"
        if feature.name in seen:
            raise SpecError(
                f"{where}.name", f"{feature.name!r} is used twice", "rename one of them"
            )
        seen.add(feature.name)
        for option in ("shift", "scale", "missing"):
            value = getattr(feature, option, None)
            if value is not None and not math.isfinite(value):
                raise SpecError(
                    f"{where}.{option}", f"{value} is not finite", "give a finite number"
                )
        if isinstance(feature, FieldFeature | Previous | Delta | OneHot | Index):
            _feature_field(spec, where, feature)


def _feature_field(
    spec: Spec, where: str, feature: FieldFeature | Previous | Delta | OneHot | Index
) -> None:
    declared = spec.field_types.get(feature.field)
    if declared is None:
        raise SpecError(
            f"{where}.field",
            f"{feature.field!r} is not declared in event.fields",
            f"add {feature.field} with its type to [event.fields]",
        )
    base = declared.rstrip("?")
    if isinstance(feature, OneHot | Index):
        if base == "float":
            raise SpecError(
                f"{where}.field",
                f"{feature.field!r} is declared {declared!r}: a vocabulary needs str, int or bool",
                'use kind = "field" for a number',
            )
        for value in feature.values:
            if type(value) is not _PYTHON[base]:
                raise SpecError(
                    f"{where}.values",
                    f"{value!r} is no {base}, which {feature.field!r} is declared to be",
                    f"list values of type {base}",
                )
        if len(set(feature.values)) != len(feature.values):
            raise SpecError(f"{where}.values", "a value is listed twice", "list each value once")
        return
    if base not in _NUMERIC:
        raise SpecError(
            f"{where}.field",
            f"{feature.field!r} is declared {declared!r}: this kind needs int, float or bool",
            'use kind = "one_hot" or "index" for text',
        )
    if isinstance(feature, FieldFeature) and declared.endswith("?") and feature.missing is None:
        raise SpecError(
            f"{where}.missing",
            f"not set, but {feature.field!r} is declared {declared!r} and may be absent",
            "set missing to the value that stands for it",
        )


def _models(spec: Spec) -> None:
    tables: list[tuple[str, Model | NextModel]] = [("model", spec.model)]
    tables.extend((f"model.next[{i}]", following) for i, following in enumerate(spec.model.next))
    for where, model in tables:
        if model.window is not None and model.states:
            raise SpecError(
                f"{where}.window",
                f"window = {model.window} given with states = {[s.input for s in model.states]}",
                "a model is stateless over a window or keeps states: remove one of them",
            )
        names = [s.input for s in model.states] + [s.output for s in model.states]
        if len(set(names)) != len(names):
            raise SpecError(
                f"{where}.states", f"a tensor is named twice: {names}", "name each once"
            )
    times = [m.from_event_time_ms for m in spec.model.next]
    for position, (earlier, later) in enumerate(pairwise(times)):
        if later <= earlier:
            raise SpecError(
                f"model.next[{position + 1}].from_event_time_ms",
                f"{later} is not after that of the one before, {earlier}",
                "list the models in the order they take over",
            )
