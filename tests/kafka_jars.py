"""The jars that Maven fetches, for tests that need them; without them those are skipped."""

import os
from pathlib import Path

import pytest

from jobs.jars import JarError, find_connector

#: What names another directory of the broker's jars.
_BROKER_JARS = "TIDEGATE_BROKER_JARS"


def need_connector() -> Path:
    """The Kafka connector's jar."""
    try:
        return find_connector()
    except JarError as error:
        pytest.skip(f"{error}".splitlines()[0] + ": `make jars`")


def need_broker_jars() -> Path:
    """The directory of a broker's jars."""
    tree = Path(__file__).parents[1] / "deploy" / "local" / "kafka" / "lib"
    folder = Path(os.environ.get(_BROKER_JARS, tree))
    if not any(folder.glob("kafka_*.jar")):
        pytest.skip("no Kafka broker: `make kafka`")
    return folder
