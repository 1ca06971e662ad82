"""Changes to the JSON text of an event: bad, or odd and yet right.

An `Oddity` is a verb and its texts, so that a shrunk case shows what was done.
"""

import functools

Oddity = tuple[str, ...]


@functools.cache
def oddities(unit: str) -> list[Oddity]:
    """Changes to an event's text: bad, or odd and yet right."""
    whole = ["", "[]", '"x"', "null", "1", '{"id":', "{}", "{,}", "\ufeff{}", "[{}]", "true", "nul"]
    bad: dict[str, list[str]] = {
        "key": ["null", '""', "7", "true", "[]", '"\\ud800"', '{"a":1}', "absent", "1.5"],
        "id": ["7", '"\\ud83d"', "[1]", "false", "absent"],
        "type": ["7", '"\\udfff"', "{}", "absent"],
        "v": ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e39", "-1e39", "3.5e38",
              '"1"', "true", "[1]", "{}", "1" + "0" * 39, "1" + "0" * 400, "9" * 5000, "01", "1.",
              ".5", "+1", "0x1", "1e", "absent", "null", "12345678901234567890", "-0", "1e-400",
              "340282356779733661637539395458142568448", "9223372036854775808", "nan"],
        "w": ["1.0", "1e2", "true", '"1"', "9223372036854775807", "9223372036854775808",
              "-9223372036854775808", "-9223372036854775809", "9" * 5000, "absent", "-0", "null",
              "9007199254740993", "1" + "0" * 30, "Infinity"],
        "flag": ["1", "0", '"true"', "null", "True", "absent"],
        "cat": ["1", '"\\ud800"', '"\\udc00\\ud800"', '"a\\ud800b"', "[]", "null", '"\\x"',
                '"a\tb"', '"\\u12"', '"\\u0000"', '"\\ud83d\\ude00"', "'a'", '"\\/"'],
        "at": ["absent", "null", "true", '""', "[]", "1.5", "1357000000000.0", "1e12", '"7"',
               "9223372036854775807", "-9223372036854775808", "9223372036854775808",
               "1" + "0" * 30, "-0", "9223372036854776"],
    }  # fmt: skip
    if unit == "iso8601":
        bad["at"] += [f'"{text}"' for text in ISO_ODDITIES]
    found: list[Oddity] = [("whole", text) for text in whole]
    found += [("replace", name, raw) for name, raws in bad.items() for raw in raws]
    deep = {depth: "[" * depth + "]" * depth for depth in (40, 99, 100, 150, 3000)}
    objects = '{"a":' * 120 + "1" + "}" * 120
    found += [("add", "deep", text) for text in [*deep.values(), objects]]
    found += [("add", "other", raw) for raw in UNDECLARED]
    for name, first, last in TWICE:
        found.append(("twice", name, first, last))
    found += [("escape", name) for name in ("v", "key", "at", "type")]
    found += [("suffix", text) for text in (" \t\r\n", "x", "{}", ",", "\x00", "\ufeff")]
    found += [("prefix", text) for text in (" \n\t\r", "\ufeff", "\x0b", "\u00a0")]
    found += [("bytes", name) for name in ("cat", "other", "key")]
    found += [("cut", "1"), ("cut", "9"), ("no_key_and_bad",), ("name", "\\ud800"), ("name", "")]
    found += [("replace", "key", raw) for raw in ("null", '""', "absent") for _ in range(3)]
    return found


ISO_ODDITIES = [
    "2013-01-01",
    "20130101",
    "2013-W01-2",
    "2013-01-01T00:26:40",
    "2013-01-01T00:26:40Z",
    "2013-01-01 00:26:40.0009999+00:00",
    "2013-01-01T00:26:40,123456789Z",
    "2013-W01-2T00:26:40Z",
    "20130101T002640Z",
    "2013-01-01T00Z",
    "2013-01-01T24:00:00Z",
    "2013-01-01T00:26:60Z",
    "2013-02-30T00:00:00Z",
    "2012-12-31T23:59:59.9999999-00:30",
    "2013-01-01T00:26:40+00:00:00.000001",
    "2013-01-01T00:26:40z",
    " 2013-01-01T00:26:40Z",
    "2013-01-01\\ud80000:26:40Z",
    "2013-01-01é00:26:40Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59.999999-23:59",
    "2013-01-01T00:26:40+24:00",
    "١٣٥٧-01-01T00:00:00Z",
]
UNDECLARED = [
    "1e400",
    "NaN",
    "-Infinity",
    "[Infinity]",
    '"\\ud800"',
    '{"\\udc00":["\\ud800"]}',
    "9" * 5000,
    "-" + "9" * 400,
    '{"v":1,"v":2}',
    "[1,]",
    '"\\ud800\\ud800\\udc00"',
    "-0.0",
    "[[],{},null]",
]
TWICE = [
    ("v", '"x"', "1"),
    ("v", "1e400", "2"),
    ("v", "NaN", "1"),
    ("v", "2", "null"),
    ("v", "1", "2"),
    ("v", "1", '"x"'),
    ("key", "7", "same"),
    ("key", "same", '""'),
    ("key", '""', "same"),
    ("type", '"beat"', '"scan"'),
    ("type", '"scan"', '"beat"'),
    ("at", '"never"', "same"),
    ("cat", '"\\ud800"', '"a"'),
    ("w", "99999999999999999999", "1"),
]


def apply_oddity(pairs: list[tuple[str, str]], oddity: Oddity | None) -> bytes:
    """The JSON text of an object, after one change to it."""
    what, *details = oddity or ("plain",)
    present = dict(pairs)
    if what == "whole":
        return details[0].encode()
    if what == "replace":
        name, raw = details
        pairs = [pair for pair in pairs if pair[0] != name]
        if raw != "absent":
            pairs.append((name, raw))
    elif what == "add":
        pairs.append((details[0], details[1]))
    elif what == "twice":
        name, *raws = details
        pairs = [pair for pair in pairs if pair[0] != name]
        pairs += [(name, present.get(name, "null") if raw == "same" else raw) for raw in raws]
    elif what == "escape":
        name = details[0]
        escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
        pairs = [(escaped if pair[0] == name else pair[0], pair[1]) for pair in pairs]
    elif what == "name":
        pairs.append((details[0], "1"))
    elif what == "no_key_and_bad":
        pairs = [pair for pair in pairs if pair[0] not in ("key", "v")] + [("v", '"x"')]
    elif what == "bytes":
        pairs = [pair for pair in pairs if pair[0] != details[0]] + [(details[0], '"\udcff"')]
    text = "{" + ",".join(f'"{name}":{raw}' for name, raw in pairs) + "}"
    if what == "suffix":
        text += details[0]
    elif what == "prefix":
        text = details[0] + text
    elif what == "cut":
        text = text[: -int(details[0])]
    # A lone low surrogate in the text stands for a byte that is no UTF-8.
    return text.encode("utf-8", "surrogateescape")
