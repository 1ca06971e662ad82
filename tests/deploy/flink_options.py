"""The names of all Flink settings, read from the classes that declare them.

Flink's documentation is not in the wheel, but each option is a string constant of a class that is
named `...Options`. Constants that are no option are in the set, too; that lets no misspelt option
in unless it is spelt like one of them.
"""

import re
import struct
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyflink

_HOME = Path(pyflink.__file__).parent
_JARS = ("lib/flink-dist-*.jar", "opt/flink-python-*.jar", "lib/flink-table-api-java-uber-*.jar")
_OPTION = re.compile(r"[a-z][A-Za-z0-9-]*(\.[A-Za-z0-9-]+)+")
#: Settings whose middle is a name of ours.
_NAMED = re.compile(
    r"metrics\.reporter\.(?P<reporter>\w+)\."
    r"(factory\.class|port|interval|filter\.includes|filter\.excludes|filterLabelValueCharacters)"
)
#: Settings of plugins, which are not in the wheel.
_PLUGINS = {"s3.endpoint", "s3.path.style.access"}

# Bytes that follow the tag of each kind of entry of a class file's constant pool; 1 is text.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
_SIZES |= {19: 2, 20: 2}


def is_option(name: str) -> bool:
    """Whether Flink reads a setting of this name."""
    return name in _options() or name in _PLUGINS or bool(_NAMED.fullmatch(name))


def is_metric(name: str) -> bool:
    """Whether the runtime or a connector of Flink declares a metric of this name."""
    return name in _metrics()


def constants(data: bytes) -> Iterator[str]:
    """The texts in the constant pool of a class file."""
    (count,) = struct.unpack_from(">H", data, 8)
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            (size,) = struct.unpack_from(">H", data, at + 1)
            yield data[at + 3 : at + 3 + size].decode("utf-8", "replace")
            at += 3 + size
        else:
            at += 1 + _SIZES[tag]
        index += 2 if tag in (5, 6) else 1  # long and double take two places


def constants_of(jar: Path, ending: str) -> Iterator[str]:
    """The texts of all classes of a jar whose file name ends so."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.endswith(ending):
                yield from constants(archive.read(name))


@cache
def _options() -> frozenset[str]:
    return frozenset(
        text
        for pattern in _JARS
        for jar in _HOME.glob(pattern)
        for text in constants_of(jar, "Options.class")
        if _OPTION.fullmatch(text)
    )


@cache
def _metrics() -> frozenset[str]:
    (jar,) = _HOME.glob("lib/flink-dist-*.jar")
    endings = (
        "MetricNames.class",
        "CheckpointStatsTracker.class",
        "JobManagerJobMetricGroup.class",
    )
    return frozenset(text for ending in endings for text in constants_of(jar, ending))
