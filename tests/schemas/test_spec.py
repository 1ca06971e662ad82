"""The job spec: what is refused, in which words; and the schemas that go with it."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from schemas.generate import schema_texts
from schemas.spec import Spec, SpecError, load_spec
from tests import models
from tests.small_jobs import BASE, GONE, every_way, ms, parsed, record, small_job, spec_text

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*/*.toml"))


def _load(folder: Path, text: str) -> Spec:
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path)


def _refused(folder: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(folder, text)
    return caught.value


FEATURES: list[dict[str, Any]] = [
    {"name": "v", "kind": "field", "field": "v", "missing": 0.5, "shift": 1, "scale": 2.0},
    {"name": "sp", "kind": "since_previous", "missing": -1},
    {"name": "sf", "kind": "since_first", "scale": 0.1},
    {"name": "n", "kind": "count"},
    {"name": "pv", "kind": "previous", "field": "v", "missing": 0},
    {"name": "dv", "kind": "delta", "field": "v", "missing": 0},
    {"name": "t", "kind": "one_hot", "field": "type", "values": ["x"], "unknown": "zeros"},
    {"name": "i", "kind": "index", "field": "n", "values": [1, 2], "unknown": -1},
    {"name": "h", "kind": "hour_of_day"},
    {"name": "d", "kind": "day_of_week"},
]


def test_a_spec_with_every_setting_loads(tmp_path: Path) -> None:
    """Each table of the contract and each kind of feature, as plain immutable data."""
    changes: dict[str, Any] = {
        "source.bootstrap_servers": "localhost:9092",
        "source.properties": {"security.protocol": "SSL"},
        "event.time": {"field": "at", "unit": "iso8601", "offset": "-03:30"},
        "event.tombstone": "forget",
        "event.fields": {"v": "float?", "n": "int", "at": "str", "id": "str?"},
        "policy.emit": "on_watermark",
        "features": FEATURES,
        "model.batch": 1,
        "model.next": [
            {"path": "b.onnx", "from_event_time_ms": ms(0), "state": "carry",
             "compatible_with": ["sha256:0"]},
            {"path": "c.onnx", "from_event_time_ms": ms(1), "state": "reset", "window": 2},
        ],
        "sink.guarantee": "transactional",
        "sink.features": True,
    }  # fmt: skip
    spec = _load(tmp_path, spec_text(changes))
    assert 10 == len(spec.features)
    assert (1, "carry", 2) == (
        spec.model.batch,
        spec.model.next[0].state,
        spec.model.next[1].window,
    )
    assert {"key": "str", "id": "str?", "type": "str"}.items() <= spec.field_types.items()
    with pytest.raises(AttributeError):
        spec.generation = 2  # type: ignore[misc]


def test_what_is_left_out_has_its_documented_default(tmp_path: Path) -> None:
    """A spec says only what it means."""
    gone = dict.fromkeys(["event.id", "event.type", "event.terminal", "event.heartbeat"], GONE)
    spec = _load(tmp_path, spec_text({**gone, "event.fields": {"v": "float"}}))
    assert ("on_event", "reject", "any") == (
        spec.policy.emit,
        spec.event.tombstone,
        spec.model.batch,
    )
    assert ("idempotent", False, (), ()) == (
        spec.sink.guarantee,
        spec.sink.features,
        spec.event.terminal,
        spec.model.next,
    )


def test_model_paths_start_from_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from the working directory, and absolute ones stay."""
    following = [{"path": "/elsewhere/n.onnx", "from_event_time_ms": 0, "state": "reset"}]
    (tmp_path / "job").mkdir()
    text = spec_text({"model.path": "../m/model.onnx", "model.next": following})
    (tmp_path / "job" / "spec.toml").write_text(text)
    monkeypatch.chdir(tmp_path / "job")
    for path in (tmp_path / "job" / "spec.toml", "spec.toml"):
        spec = load_spec(path)
        assert str(tmp_path / "m" / "model.onnx") == spec.model.path
        assert "/elsewhere/n.onnx" == spec.model.next[0].path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_load(path: Path) -> None:
    """And their models are where they say."""
    assert Path(load_spec(path).model.path).is_file()


# What one setting alone says wrong: the key path, and what the message must hold.
SINGLE: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "unknown key": ({"surprise": 1}, "top level", ["surprise"]),
    "unknown key in a table": ({"policy.lateness": 1}, "policy", ["lateness"]),
    "unknown key in a list": ({"features.0.feild": "v"}, "features[0]", ["feild"]),
    "missing table": ({"sink": GONE}, "top level", ["sink"]),
    "missing key": ({"time.max_future_ms": GONE}, "time", ["max_future_ms"]),
    "missing partitioner": ({"source.partitioner": GONE}, "source", ["partitioner"]),
    "wrong type": ({"generation": "one"}, "generation", ["int", "'one'"]),
    "a float for an int": ({"time.max_future_ms": 1.5}, "time.max_future_ms", ["int", "1.5"]),
    "a bool for an int": ({"source.partitions": True}, "source.partitions", ["int", "True"]),
    "negative span": ({"time.allowed_lateness_ms": -1}, "time.allowed_lateness_ms", [">= 0", "-1"]),
    "endless span": (
        {"policy.idle_ttl_ms": 2**60},
        "policy.idle_ttl_ms",
        [str(10**15), str(2**60)],
    ),
    "no partitions": ({"source.partitions": 0}, "source.partitions", [">= 1", "0"]),
    "unknown policy": ({"policy.late": "ignore"}, "policy.late", ["'ignore'"]),
    "unknown emit": ({"policy.emit": "never"}, "policy.emit", ["'never'"]),
    "unknown partitioner": ({"source.partitioner": "md5"}, "source.partitioner", ["'md5'"]),
    "unknown unit": ({"event.time.unit": "min"}, "event.time.unit", ["'min'"]),
    "unknown tombstone": ({"event.tombstone": "keep"}, "event.tombstone", ["'keep'"]),
    "unknown field type": ({"event.fields.v": "double"}, "event.fields.v", ["'double'"]),
    "a field without a name": ({"event.fields": {"": "int"}}, "event.fields", ["length >= 1"]),
    "a property that is no text": (
        {"source.properties": {"acks": 1}},
        "source.properties.acks",
        ["str", "1"],
    ),
    "unknown feature": ({"features.0.kind": "mean"}, "features[0].kind", ["'mean'"]),
    "no kind of feature": ({"features.0.kind": GONE}, "features[0]", ["kind"]),
    "no features": ({"features": []}, "features", ["length >= 1"]),
    "empty vocabulary": (
        {"features.0": {"name": "t", "kind": "one_hot", "field": "type", "values": []}},
        "features[0].values",
        ["length >= 1"],
    ),
    "no missing": (
        {"features.0": {"name": "p", "kind": "previous", "field": "v"}},
        "features[0]",
        ["missing"],
    ),
    "bad name": ({"name": "a job"}, "name", ["a job"]),
    "empty key": ({"event.key": ""}, "event.key", ["length >= 1"]),
    "batch of two": ({"model.batch": 2}, "model.batch", ["2"]),
    "window of none": ({"model.window": 0}, "model.window", [">= 1", "0"]),
    "unknown guarantee": ({"sink.guarantee": "exactly-once"}, "sink.guarantee", ["'exactly-once'"]),
    "next without a time": (
        {"model.next": [{"path": "b.onnx", "state": "carry"}]},
        "model.next[0]",
        ["from_event_time_ms"],
    ),
    "next with half a state": (
        {"model.next": [{"path": "b.onnx", "from_event_time_ms": 0, "state": "keep"}]},
        "model.next[0].state",
        ["'keep'"],
    ),
    "a state without output": ({"model.states": [{"input": "h"}]}, "model.states[0]", ["output"]),
    "offset without colon": (
        {"event.time": {"field": "at", "unit": "iso8601", "offset": "0100"}},
        "event.time.offset",
        ["'0100'"],
    ),
}

VOCABULARY = {"name": "t", "kind": "one_hot", "field": "type", "values": ["a", "b"]}
NEXT = {"path": "b.onnx", "from_event_time_ms": 1_000, "state": "reset"}

# What two settings say against each other: the key path, both values, and a word of the remedy.
DOUBLE: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "idle ttl": (
        {"policy.idle_ttl_ms": 19_999}, "policy.idle_ttl_ms",
        ["19999", "allowed_lateness_ms = 20000", "at least 20000"],
    ),
    "finished ttl": (
        {"policy.finished_ttl_ms": 19_999}, "policy.finished_ttl_ms",
        ["19999", "allowed_lateness_ms = 20000", "at least 20000"],
    ),
    "terminal without type": (
        {"event.type": GONE, "event.heartbeat": GONE}, "event.terminal",
        ["'end'", "event.type is not set", "set event.type"],
    ),
    "heartbeat without type": (
        {"event.type": GONE, "event.terminal": []}, "event.heartbeat",
        ["'beat'", "event.type is not set", "set event.type"],
    ),
    "a terminal heartbeat": (
        {"event.heartbeat": "end"}, "event.heartbeat", ["'end'", "['end']", "their own"],
    ),
    "offset of a number": (
        {"event.time.offset": "+01:00"}, "event.time.offset",
        ["'+01:00'", "unit = 'ms'", 'unit = "iso8601"'],
    ),
    "offset of a day": (
        {"event.time": {"field": "at", "unit": "iso8601", "offset": "+24:00"}},
        "event.time.offset", ["'+24:00'", "+23:59"],
    ),
    "time is the key": (
        {"event.time.field": "key"}, "event.time.field", ["'key'", "key, id or type"],
    ),
    "a key of numbers": (
        {"event.fields.key": "int"}, "event.fields.key", ["'int'", "declare it str"],
    ),
    "a key that may be null": (
        {"event.fields.key": "str?"}, "event.fields.key", ["'str?'", "declare it str"],
    ),
    "an id of numbers": ({"event.fields.id": "int"}, "event.fields.id", ["'int'", "str?"]),
    "a type of numbers": ({"event.fields.type": "float"}, "event.fields.type", ["'float'", "str?"]),
    "time as text": (
        {"event.fields.at": "str"}, "event.fields.at", ["'str'", "unit = 'ms'", "'int'"],
    ),
    "time as a number": (
        {"event.fields.at": "int", "event.time.unit": "iso8601"}, "event.fields.at",
        ["'int'", "unit = 'iso8601'", "'str'"],
    ),
    "time that may be null": ({"event.fields.at": "int?"}, "event.fields.at", ["'int?'", "'int'"]),
    "two features of one name": (
        {"features": [BASE["features"][0], {"name": "v", "kind": "count"}]},
        "features[1].name", ["'v'", "twice", "rename"],
    ),
    "a feature of no field": (
        {"features.0.field": "w"}, "features[0].field", ["'w'", "not declared", "[event.fields]"],
    ),
    "a feature of text": (
        {"features.0.field": "type"}, "features[0].field",
        ["'type'", "'str?'", "int, float or bool", "one_hot"],
    ),
    "nothing for a missing number": (
        {"features.0.missing": GONE}, "features[0].missing", ["'v'", "'float?'", "set missing"],
    ),
    "infinite scale": ({"features.0.scale": float("inf")}, "features[0].scale", ["inf", "finite"]),
    "shift that is no number": (
        {"features.0.shift": float("nan")}, "features[0].shift", ["nan", "finite"],
    ),
    "infinite missing": (
        {"features.0.missing": float("-inf")}, "features[0].missing", ["-inf", "finite"],
    ),
    "a vocabulary of floats": (
        {"features.0": VOCABULARY | {"field": "v", "values": [1]}}, "features[0].field",
        ["'v'", "'float?'", 'kind = "field"'],
    ),
    "a vocabulary of other things": (
        {"features.0": VOCABULARY | {"values": ["a", 1]}}, "features[0].values",
        ["1 is no str", "'type'", "list values of type str"],
    ),
    "true is not one": (
        {"features.0": VOCABULARY | {"field": "n", "values": [0, True]}, "event.fields.n": "int"},
        "features[0].values", ["True is no int", "'n'"],
    ),
    "a word twice": (
        {"features.0": VOCABULARY | {"values": ["a", "a"]}}, "features[0].values",
        ["twice", "once"],
    ),
    "window and states": (
        {"model.window": 3}, "model.window", ["window = 3", "['h']", "remove one"],
    ),
    "window and states of the next": (
        {"model.next": [NEXT | {"window": 3, "states": BASE["model"]["states"]}]},
        "model.next[0].window", ["window = 3", "['h']", "remove one"],
    ),
    "a tensor twice": (
        {"model.states": [{"input": "h", "output": "g"}, {"input": "h", "output": "i"}]},
        "model.states", ["['h', 'h', 'g', 'i']", "once"],
    ),
    "cut-overs at one time": (
        {"model.next": [NEXT, NEXT]}, "model.next[1].from_event_time_ms",
        ["1000", "is not after", "order"],
    ),
    "cut-overs backwards": (
        {"model.next": [NEXT, NEXT | {"from_event_time_ms": 999}]},
        "model.next[1].from_event_time_ms", ["999", "1000", "order"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*SINGLE, *DOUBLE])
def test_a_refusal_names_file_key_path_values_and_remedy(tmp_path: Path, case: str) -> None:
    """Whoever reads it knows where to look, what is there, and what to write instead."""
    changes, where, parts = (SINGLE | DOUBLE)[case]
    if case in ("a terminal heartbeat", "heartbeat without type"):
        changes = {"event.heartbeat": "beat", **changes}
    error = _refused(tmp_path, spec_text(changes))
    assert where == error.where
    for part in (str(tmp_path / "spec.toml"), where, *parts, "\n  remedy: "):
        assert part in str(error)


@pytest.mark.parametrize("unit", ["ms", "s", "us", "ns"])
def test_the_limits_themselves_are_accepted(tmp_path: Path, unit: str) -> None:
    """A ttl of exactly the allowed lateness, cut-overs a millisecond apart, every unit."""
    changes: dict[str, Any] = {
        "event.time.unit": unit,
        "policy.idle_ttl_ms": 20_000,
        "policy.finished_ttl_ms": 20_000,
        "model.next": [NEXT, NEXT | {"from_event_time_ms": 1_001}],
    }
    assert unit == _load(tmp_path, spec_text(changes)).event.time.unit


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name = ", "end of document"),
        ("a = 1\nb = =", "line 2"),
        (spec_text().replace("{", "[", 1), "line"),
        ('name = "\\ud800"', "line 1"),
    ],
)
def test_text_that_is_no_toml_is_refused_with_its_place(
    tmp_path: Path, text: str, part: str
) -> None:
    """The parser's words, the file, and a remedy."""
    error = _refused(tmp_path, text)
    assert "TOML" == error.where
    for said in (part, "spec.toml", "remedy: "):
        assert said in str(error)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8: all say so."""
    (tmp_path / "latin.toml").write_bytes('name = "Zürich"'.encode("latin-1"))
    for name in ("nothing.toml", ".", "latin.toml"):
        with pytest.raises(SpecError, match="remedy: ") as caught:
            load_spec(tmp_path / name)
        assert "file" == caught.value.where


# Schemas ---------------------------------------------------------------------------------------


def _schema(name: str) -> Any:
    schema = json.loads(schema_texts()[f"{name}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def test_the_schemas_in_the_package_have_not_drifted() -> None:
    """`tidegate schemas --out schemas` was run after the last change of a record."""
    found = {path.name: path.read_text() for path in (ROOT / "schemas").glob("*.schema.json")}
    assert schema_texts() == found


def _specs() -> Iterator[dict[str, Any]]:
    for path in EXAMPLES:
        yield tomllib.loads(path.read_text())
    yield tomllib.loads(spec_text())
    yield tomllib.loads(spec_text({"features": FEATURES, "event.fields.n": "int"}))


def test_the_spec_schema_takes_good_specs() -> None:
    """Those of the examples, and one with every kind of feature."""
    validator = jsonschema.Draft202012Validator(_schema("spec"))
    for spec in _specs():
        validator.validate(spec)


@pytest.mark.parametrize("case", SINGLE)
def test_the_spec_schema_refuses_what_one_setting_says_wrong(case: str) -> None:
    """An editor shows the mistake before the command does, unknown keys first of all."""
    changes, *_ = SINGLE[case]
    validator = jsonschema.Draft202012Validator(_schema("spec"))
    assert not validator.is_valid(tomllib.loads(spec_text(changes)))


@pytest.mark.parametrize("emit", ["on_event", "on_watermark"])
@pytest.mark.parametrize("features", [False, True])
def test_the_records_of_a_run_fit_their_schemas(tmp_path: Path, emit: str, features: bool) -> None:
    """Predictions with and without features, of one number and of two; rejects of every form."""
    rows = [
        record(0, 0, id="e0", v=1.0),
        record(1, 1, id=None, v=2.0),
        record(2, -50, v=2.0),
        record(3, -5, v=2.0),
        (0, 4, ms(0), b"\xff", b"\xfe"),
        (0, 5, ms(0), None, None),
        (0, 6, ms(0), "ü".encode(), b"{}"),
        record(7, 100, type="end", v=1.0),
    ]
    changes: dict[str, Any] = {"policy.emit": emit, "sink.features": features}
    two = {"model.states": [{"input": n, "output": f"{n}_next"} for n in ("h", "c", "ema")]}
    for model, more in ((models.shift_in(), {}), (models.two_states(1), two)):
        spec = small_job(tmp_path, changes | more, model)
        predictions, rejects = every_way(spec, rows)
        assert (4, 4) == (len(predictions), len(rejects))
        for name, lines in (("prediction", predictions), ("reject", rejects)):
            validator = jsonschema.Draft202012Validator(_schema(name))
            for each in parsed(lines):
                validator.validate(each)
