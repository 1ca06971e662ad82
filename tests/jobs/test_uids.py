"""The uids of the job: the state of a savepoint is found by them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.java import find_java
from tests.kafka_jars import need_connector

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def graphs() -> dict[str, dict[str, str]]:
    """Uid to operator, of some variants of the job."""
    need_connector()
    answer = subprocess.run(
        [sys.executable, "-m", "tests.jobs.graph_uids"],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(find_java().home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    graphs: dict[str, dict[str, str]] = json.loads(answer.stdout.splitlines()[-1])
    return graphs


def operators(graph: dict[str, str]) -> dict[str, str]:
    """Without the planner's numbers, which differ with everything planned before."""
    return {uid: re.sub(r"\[\d+\]", "", name) for uid, name in graph.items()}


READ = {f"read:{each}" for each in ("source", "PythonCalc", "Calc", "TableToDataStream")}


def test_every_operator_has_a_uid_that_says_its_stage(graphs: dict[str, dict[str, str]]) -> None:
    """They are part of every savepoint, so they are written down here."""
    sinks = ("predictions", "rejects", "counters")
    ends = ("DataStreamToTable", "Correlate", "Calc", "StreamingFileWriter", "end")
    expected = {f"{sink}:{operator}" for sink in sinks for operator in ends}
    assert expected | READ | {"score"} == set(graphs["files"])


def test_every_operator_between_topics_has_a_uid_too(graphs: dict[str, dict[str, str]]) -> None:
    """These are the ones that savepoints of live jobs hold."""
    expected = {
        f"{sink}:{operator}"
        for sink in ("predictions", "rejects")
        for operator in ("DataStreamToTable", "Correlate", "Calc")
    }
    for writer in ("predictions:predictions", "rejects:rejects"):
        expected |= {writer, f"Sink Committer: {writer}"}
    assert expected | READ | {"score"} == set(graphs["topics"])


def test_uids_are_the_same_at_another_parallelism(graphs: dict[str, dict[str, str]]) -> None:
    """A rescaled job finds its state."""
    assert operators(graphs["files"]) == operators(graphs["files, parallel"])
    assert operators(graphs["topics"]) == operators(graphs["topics, parallel"])


@pytest.mark.parametrize("variant", ["files, one sink", "files, other order", "topics, one sink"])
def test_uids_stay_when_sinks_come_and_go(graphs: dict[str, dict[str, str]], variant: str) -> None:
    """Adding a sink, anywhere among them, renames nothing."""
    everything = operators(graphs[variant.partition(",")[0]])
    some = operators(graphs[variant])
    assert some.items() <= everything.items()
    assert {"score", "read:source"} <= set(some)


def test_other_topics_and_the_other_guarantee_keep_every_uid(
    graphs: dict[str, dict[str, str]],
) -> None:
    """A job may move its topics and keep its state."""
    assert set(graphs["topics"]) == set(graphs["topics, others"])
