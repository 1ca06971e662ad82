"""Finds the jar that connects Flink to Kafka, which no Python package carries.

Looked for in the directory that TIDEGATE_JARS names, then in Flink's own FLINK_LIB_DIR, then where
`make jars` of a source tree puts it. A cluster finds it in its `lib/`; only an embedded Flink and
the process that submits a job look here.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The artifact, and the version that this release is tested with.
CONNECTOR = "flink-sql-connector-kafka"
CONNECTOR_VERSION = "5.0.0-2.2"

_NAME = re.compile(rf"{CONNECTOR}-(?P<version>\d.*)\.jar")


class JarError(RuntimeError):
    """A jar that is missing or of another version: what was found, what is needed, the remedy."""


def find_connector(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the Kafka connector's jar.

    Args:
        environ: environment variables, of which TIDEGATE_JARS and FLINK_LIB_DIR are read.

    Raises:
        JarError: there is none, or the first one found is of another version.
    """
    looked = []
    for place, folder in _places(environ):
        for path in sorted(folder.glob(f"{CONNECTOR}-*.jar")):
            version = connector_version(path)
            if version != CONNECTOR_VERSION:
                raise JarError(
                    "the Kafka connector is of another version\n"
                    f"  found:  {path}\n"
                    f"  needed: {CONNECTOR}-{CONNECTOR_VERSION}.jar\n"
                    f"  remedy: replace it; {_REMEDY}"
                )
            return path
        looked.append(f"{place} ({folder})")
    raise JarError(
        "no Kafka connector\n"
        f"  found:  none in {', '.join(looked)}\n"
        f"  needed: {CONNECTOR}-{CONNECTOR_VERSION}.jar\n"
        f"  remedy: {_REMEDY}"
    )


_REMEDY = (
    "`make jars` in a source tree; elsewhere `mvn dependency:copy "
    f"-Dartifact=org.apache.flink:{CONNECTOR}:{CONNECTOR_VERSION} -DoutputDirectory=DIR`, "
    "and let TIDEGATE_JARS name DIR"
)


def connector_version(path: Path) -> str:
    """Returns the version in a connector jar's file name; empty if it is no such name."""
    found = _NAME.fullmatch(path.name)
    return found["version"] if found else ""


def _places(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    for name in ("TIDEGATE_JARS", "FLINK_LIB_DIR"):
        if environ.get(name):
            yield name, Path(environ[name])
    yield "the source tree", Path(__file__).parents[1] / "deploy" / "jars" / "lib"
