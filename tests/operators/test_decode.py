"""Bytes to events: one verdict for a value, whichever reader sees it and whoever is beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.decode import Columns, Decoder
from operators.policy import Reason
from schemas.spec import Spec
from tests.small_jobs import GONE, small_job

FIELDS = {
    "id": "str?", "type": "str?", "v": "float?", "w": "float", "n": "int?", "m": "int",
    "flag": "bool?", "on": "bool", "cat": "str?", "dog": "str",
}  # fmt: skip
FEATURES = [
    {"name": "w", "kind": "field", "field": "w", "scale": 0.5},
    {"name": "v", "kind": "field", "field": "v", "missing": 0},
    {"name": "n", "kind": "field", "field": "n", "missing": 0},
    {"name": "flag", "kind": "field", "field": "flag", "missing": 0},
    {"name": "cat", "kind": "index", "field": "cat", "values": ["a", "ü"]},
    {"name": "m", "kind": "one_hot", "field": "m", "values": [0, 1]},
]
GOOD: dict[str, Any] = {
    "key": "k", "id": "e", "at": 1_700_000_000_000, "type": "scan", "v": 1.5, "w": -2, "n": 3,
    "m": 1, "flag": True, "on": False, "cat": "ü", "dog": "",
}  # fmt: skip


def _spec(folder: Path, **changes: Any) -> Spec:
    return small_job(folder, {"event.fields": FIELDS, "features": FEATURES, **changes})


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Reads events with a field of every type."""
    return Decoder(_spec(tmp_path_factory.mktemp("job")), np.dtype(np.float32))


def _verdict(columns: Columns, row: int) -> tuple[Any, ...]:
    """Everything that was read of a row, or why it was refused."""
    if row in columns.refused:
        refused = columns.refused[row]
        return refused.reason, refused.detail
    time = int(columns.times[row])
    if columns.heartbeat[row]:
        return "heartbeat", time
    assert columns.ids is not None
    raw = columns.raw[row].tobytes()
    return columns.keys[row], columns.ids[row], time, bool(columns.terminal[row]), raw


def _verdicts(decoder: Decoder, values: list[bytes]) -> list[tuple[Any, ...]]:
    columns = decoder.decode(values)
    return [_verdict(columns, row) for row in range(len(values))]


def _slow(decoder: Decoder, value: bytes) -> tuple[Any, ...]:
    """The verdict of the slow reader, to which a value with many brackets goes."""
    # None of them deep, in a field that is not declared.
    assert value.rstrip().endswith(b"}")
    head = value.rstrip()[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b","
    return _verdicts(decoder, [head + comma + b'"undeclared":[' + b"[]," * 120 + b"[]]}"])[0]


def _event(**changes: Any) -> bytes:
    event = {name: value for name, value in (GOOD | changes).items() if value is not GONE}
    return json.dumps(event, ensure_ascii=False).encode()


# What is refused -------------------------------------------------------------------------------

MALFORMED: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "not JSON"),
    ("blank", b" ", "not JSON"),
    ("cut short", b'{"key":', "not JSON"),
    ("a list", b"[]", "not a JSON object but an array"),
    ("a text", b'"x"', "not a JSON object but a string"),
    ("a number", b"1", "not a JSON object but an integer"),
    ("null", b"null", "not a JSON object but null"),
    ("two objects", _event() + _event(), "not JSON"),
    ("a trailing comma", _event()[:-1] + b",}", "not JSON"),
    ("single quotes", _event().replace(b'"', b"'"), "not JSON"),
    ("a byte order mark", b"\xef\xbb\xbf" + _event(), "not JSON"),
    ("Latin-1", _event(dog="x").replace(b'"x"', b'"\xfc"'), "not UTF-8"),
    ("Latin-1 elsewhere", _event()[:-1] + b',"zzz":"\xfc"}', "not UTF-8"),
    ("NaN", _event(v=float("nan")), "NaN"),
    ("Infinity", _event(v=float("inf")), "Infinity"),
    ("-Infinity", _event(v=float("-inf")), "Infinity"),
    ("NaN elsewhere", _event(zzz=float("nan")), "NaN"),
    ("a raw newline in a text", _event(dog="x").replace(b'"x"', b'"x\ny"'), "not JSON"),
    ("a raw tab in a text", _event(dog="x").replace(b'"x"', b'"x\ty"'), "not JSON"),
    ("a raw tab elsewhere", _event()[:-1] + b',"zzz":"\t"}', "not JSON"),
    ("a bad escape", _event(dog="x").replace(b'"x"', b'"\\x"'), "not JSON"),
    ("a bad escape elsewhere", _event()[:-1] + b',"zzz":"\\x"}', "not JSON"),
    ("a leading zero", _event(v=7).replace(b"7,", b"07,"), "not JSON"),
    ("a leading zero elsewhere", _event()[:-1] + b',"zzz":07}', "not JSON"),
    ("a bare point elsewhere", _event()[:-1] + b',"zzz":1.}', "not JSON"),
    ("too deep", _event()[:-1] + b',"z":' + b"[" * 100 + b"]" * 100 + b"}", "deeper than 100"),
    ("1e400", _event(v=7).replace(b"7,", b"1e400,"), "v: "),
    ("a huge integer", _event(v=10**500), "v: "),
    ("beyond float32", _event(v=1e39), "v: "),
    ("beyond float32 when scaled", _event(w=8e38), "w: "),
    ("a number as text", _event(v="1"), "v: expected float, got a string"),
    ("a number as bool", _event(v=True), "v: expected float, got a boolean"),
    ("a number as list", _event(w=[1]), "w: expected float, got an array"),
    ("no number", _event(w=None), "w: missing or null"),
    ("number left out", _event(w=GONE), "w: missing or null"),
    ("1.0 for an int", _event(n=1.0), "n: expected int, got a number"),
    ("1e0 for an int", _event(n=7).replace(b"7,", b"1e0,"), "n: expected int, got a number"),
    ("true for an int", _event(m=True), "m: expected int, got a boolean"),
    ("an int beyond int64", _event(n=2**63), "n: "),
    ("an int below int64", _event(n=-(2**63) - 1), "n: "),
    ("1 for a bool", _event(flag=1), "flag: expected bool, got an integer"),
    ("no bool", _event(on=None), "on: missing or null"),
    ("a text as object", _event(dog={}), "dog: expected str, got an object"),
    ("no text", _event(dog=GONE), "dog: missing or null"),
    ("a lone surrogate", _event(dog="x").replace(b'"x"', b'"\\ud800"'), "dog: holds a lone"),
    (
        "a lone surrogate in the id",
        _event(id="x").replace(b'"x"', b'"\\udfff"'),
        "id: holds a lone",
    ),
    ("a key of numbers", _event(key=5), "key: expected str, got an integer"),
    ("an id of numbers", _event(id=5), "id: expected str, got an integer"),
    ("a type of lists", _event(type=[]), "type: expected str, got an array"),
    ("no time", _event(at=GONE), "at: missing or null"),
    ("time as text", _event(at="1700000000000"), "at: expected int, got a string"),
    ("time as float", _event(at=1.7e12), "at: expected int, got a number"),
    ("time beyond int64", _event(at=2**63), "at: "),
    ("a heartbeat without time", b'{"type":"beat"}', "at: missing or null"),
]


@pytest.mark.parametrize(("value", "part"), [case[1:] for case in MALFORMED],
                         ids=[case[0] for case in MALFORMED])  # fmt: skip
def test_malformed_values_name_what_is_wrong(decoder: Decoder, value: bytes, part: str) -> None:
    """The field where there is one, and the same words alone and among good ones."""
    (verdict,) = _verdicts(decoder, [value])
    assert Reason.MALFORMED == verdict[0]
    assert part in verdict[1]
    beside = [_event(), value, _event(key="other"), b'{"type":"beat","at":5}']
    assert verdict == _verdicts(decoder, beside)[1]
    assert [verdict] * 3 == _verdicts(decoder, [value] * 3)


@pytest.mark.parametrize("key", [None, GONE, ""])
def test_a_missing_key_goes_before_everything_but_the_object_itself(
    decoder: Decoder, key: Any
) -> None:
    """Even where other fields are wrong; a heartbeat needs none."""
    for changes in ({}, {"v": "x"}, {"at": GONE}, {"at": "x"}, {"v": 1e39}, {"dog": None}):
        (verdict,) = _verdicts(decoder, [_event(key=key, **changes)])
        assert (Reason.NO_KEY, "key: missing, null or empty") == verdict
    assert [("heartbeat", 7)] == _verdicts(decoder, [_event(key=key, type="beat", at=7, v="x")])


# What is taken ---------------------------------------------------------------------------------

TAKEN: list[tuple[str, bytes, dict[str, Any]]] = [
    ("as it is", _event(), {}),
    ("blanks around", b" \t\r\n" + _event() + b" \r\n", {}),
    ("blanks inside", json.dumps(GOOD, indent=2).encode(), {}),
    ("ASCII escapes", json.dumps(GOOD).encode(), {}),
    ("an escaped name", _event().replace(b'"v"', b'"\\u0076"'), {}),
    ("fields of others", _event(zzz={"v": [1, {"v": 2}]}, aaa="x"), {}),
    ("1e400 of others", _event()[:-1] + b',"zzz":1e400}', {}),
    ("a surrogate of others", _event()[:-1] + b',"zzz":"\\ud800"}', {}),
    ("a huge integer of others", _event()[:-1] + b',"zzz":' + b"9" * 5_000 + b"}", {}),
    ("99 deep", _event()[:-1] + b',"z":' + b"[" * 99 + b"]" * 99 + b"}", {}),
    ("brackets in texts", _event(dog="[{" * 200), {}),
    ("the last of two names", _event()[:-1] + b',"v":4}', {"v": 4.0}),
    ("an earlier one of another type", b'{"v":"x",' + _event()[1:], {}),
    ("an earlier key that is null", b'{"key":null,' + _event()[1:], {}),
    ("a later id that is null", _event()[:-1] + b',"id":null}', {"id": None}),
    ("no optional fields", _event(id=None, type=GONE, v=None, n=GONE, flag=None, cat=GONE),
     {"id": None, "v": None, "n": None, "flag": None, "cat": None}),
    ("an integer for a float", _event(v=7), {"v": 7.0}),
    ("an integer of 20 digits for a float", _event(v=10**20), {"v": 1e20}),
    ("minus nothing", _event(v=7).replace(b"7,", b"-0.0,", 1), {"v": -0.0}),
    ("the least int", _event(n=-(2**63)), {"n": float(-(2**63))}),
    ("the greatest int", _event(n=2**63 - 1), {"n": 2.0**63}),
    ("a key with a newline", _event(key="a\nb"), {"key": "a\nb"}),
    ("a key with nothing in it", _event(key="\0"), {"key": "\0"}),
    ("an empty id", _event(id=""), {"id": ""}),
    ("a terminal type", _event(type="end"), {"terminal": True}),
    ("a word outside", _event(cat="?"), {"cat": "?"}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "changes"), [case[1:] for case in TAKEN],
                         ids=[case[0] for case in TAKEN])  # fmt: skip
def test_unusual_values_are_taken(decoder: Decoder, value: bytes, changes: dict[str, Any]) -> None:
    """By what they mean, by both readers."""
    (verdict,) = _verdicts(decoder, [value])
    event = GOOD | {"terminal": False} | changes
    words = {"a": 0.0, "ü": 1.0}
    raw = [event["w"], event["v"], event["n"], event["flag"], words.get(event["cat"], -1.0), 1.0]
    numbers = np.array(raw, np.float64).tobytes()
    expected = (event["key"], event["id"], event["at"], event["terminal"], numbers)
    assert expected == verdict
    assert verdict == _verdicts(decoder, [b"", value, _event()])[1]
    if "deep" not in str(value):
        assert verdict == _slow(decoder, value)


@pytest.mark.parametrize(
    ("unit", "stamp", "expected"),
    [
        ("ms", -1, -1),
        ("s", 1_700_000_000, 1_700_000_000_000),
        ("s", -(2**63) // 1_000 + 1, None),
        ("s", 2**63 // 1_000, 2**63 // 1_000 * 1_000),
        ("s", 2**63 // 1_000 + 1, "out of range"),
        ("s", -(2**63), "out of range"),
        ("us", 1_999, 1),
        ("us", -1, -1),
        ("ns", 1_999_999, 1),
        ("ns", -1, -1),
        ("ns", 2**63 - 1, (2**63 - 1) // 10**6),
        ("iso8601", "2024-03-31T02:30:00Z", 1_711_852_200_000),
        ("iso8601", "2024-03-31T02:30:00.123999+00:00", 1_711_852_200_123),
        ("iso8601", "1969-12-31T23:59:59.9999Z", -1),
        ("iso8601", "20240331T023000Z", 1_711_852_200_000),
        ("iso8601", "2024-03-31 02:30Z", 1_711_852_200_000),
        ("iso8601", "0001-01-01T00:00:00+23:59", -62_135_683_140_000),
        ("iso8601", "9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
        ("iso8601", "2024-03-31T02:30:00", "no zone"),
        ("iso8601", "2024-03-31", "without a time"),
        ("iso8601", "2024-02-30T00:00:00Z", "at: "),
        ("iso8601", "yesterday, at ten", "at: "),
        ("iso8601", "", "at: "),
        ("iso8601", 1_711_852_200, "at: expected str"),
    ],
)
def test_event_times_are_floored_milliseconds(
    tmp_path: Path, unit: str, stamp: int | str, expected: int | str | None
) -> None:
    """In every unit, to both ends of what an int64 holds, alone and in a batch."""
    spec = _spec(tmp_path, **{"event.time.unit": unit})
    decoder = Decoder(spec, np.dtype(np.float32))
    for values in ([_event(at=stamp)], [_event(at=stamp)] * 2, [b"{", _event(at=stamp)]):
        verdict = _verdicts(decoder, values)[-1]
        if isinstance(expected, str):
            assert Reason.MALFORMED == verdict[0]
            assert expected in verdict[1]
        else:
            at = (-(2**63) // 1_000 + 1) * 1_000 if expected is None else expected
            assert at == verdict[2]


def test_a_number_must_fit_the_dtype_of_the_model(tmp_path: Path) -> None:
    """1e39 is fine for a model of float64."""
    spec = _spec(tmp_path)
    values = [_event(v=1e39)]
    assert Reason.MALFORMED == _verdicts(Decoder(spec, np.dtype(np.float32)), values)[0][0]
    assert "k" == _verdicts(Decoder(spec, np.dtype(np.float64)), values)[0][0]


# Any bytes -------------------------------------------------------------------------------------

_PARTS = [
    b'"v":1', b'"v":1e39', b'"v":NaN', b'"n":1.0', b'"n":9223372036854775808', b'"key":""',
    b'"key":null', b'"key":"\\ud800"', b'"key":"\\u006b"', b'"at":5', b'"at":"x"', b'"type":"beat"',
    b'"type":"end"', b'"zzz":"\x01"', b'"zzz":[[]]', b'"dog":"\xfc"', b"\n", b"\r", b",", b"{",
    b"}", b"[", b"]", b'"', b"\\", b" ", b"0", b"-", b"\xef\xbb\xbf", b"1.", b"null", b"e5",
]  # fmt: skip


@st.composite
def values_near_events(draw: st.DrawFn) -> bytes:
    """A good event in which a few bytes were replaced, or any bytes."""
    value = draw(
        st.sampled_from([_event(), _event(type="beat"), _event(id=None, v=None), b"{}", b""])
        | st.dictionaries(
            st.sampled_from([*GOOD, "zzz"]),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        ).map(lambda event: json.dumps(GOOD | event, ensure_ascii=False).encode("utf-8", "replace"))
        | st.binary(max_size=12)
    )
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(value)))
        gone = draw(st.integers(0, 3))
        value = value[:at] + draw(st.sampled_from(_PARTS)) + value[at + gone :]
    return value


@settings(max_examples=250, deadline=None)
@given(values=st.lists(values_near_events(), max_size=5))
def test_a_verdict_does_not_depend_on_the_batch(decoder: Decoder, values: list[bytes]) -> None:
    """Whatever is beside a value, it is read as it is alone."""
    alone = [_verdicts(decoder, [value])[0] for value in values]
    assert alone == _verdicts(decoder, values)
    good = _event()
    assert [*alone, *_verdicts(decoder, [good])] == _verdicts(decoder, [*values, good])


@settings(max_examples=250, deadline=None)
@given(value=values_near_events().filter(lambda value: value.rstrip().endswith(b"}")))
def test_the_fast_reader_takes_only_what_the_slow_one_takes(decoder: Decoder, value: bytes) -> None:
    """Both give the same columns, or the same refusal."""
    fast, slow = _verdicts(decoder, [value])[0], _slow(decoder, value)
    if Reason.MALFORMED not in (fast[0], slow[0]):
        assert slow == fast
    else:  # a syntax error is told with its place, which the longer value moves
        assert slow[0] == fast[0]


def test_a_batch_of_many_chunks_is_read_like_its_parts(decoder: Decoder) -> None:
    """Rows of refusals count from the beginning of the batch."""
    values = [_event(key=f"k{i}", v=i) if i % 700 else b"{" for i in range(5_000)]
    together = _verdicts(decoder, values)
    assert together == [each for at in range(0, 5_000, 250)
                        for each in _verdicts(decoder, values[at : at + 250])]  # fmt: skip
    assert [0, 700, 1400] == [i for i, each in enumerate(together) if each[0] == "malformed"][:3]


@pytest.mark.parametrize("cut", ["two and none", "none and two", "halves and two", "blank"])
def test_documents_that_add_up_to_the_number_of_values_are_still_malformed(
    decoder: Decoder, cut: str
) -> None:
    """Two objects in a value beside a blank one, or one object over two values."""
    one = json.dumps(GOOD).encode()
    two = one + b" " + one
    values = {
        "two and none": [two, b""],
        "none and two": [b"", two],
        "halves and two": [one[:10], one[10:], two],
        "blank": [two, b" "],
    }[cut]
    verdicts = _verdicts(decoder, values)
    assert [Reason.MALFORMED] * len(values) == [verdict[0] for verdict in verdicts]
