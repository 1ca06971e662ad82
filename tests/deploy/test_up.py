"""One command starts broker, cluster and job; another ends them; nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.processes import Identity
from jobs.flink_rest import Cluster
from jobs.kafka_client import sink_access
from jobs.run import free_port
from jobs.topics import Topics
from schemas.spec import load_spec
from tests.deploy.repository import ROOT
from tests.kafka_jars import need_broker_jars, need_connector

pytestmark = pytest.mark.slow


def call(directory: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs the command as people do."""
    return subprocess.run(
        [sys.executable, "-m", "deploy.local", *map(str, words), "-d", str(directory)],
        cwd=ROOT,
        env=os.environ | {"TIDEGATE_RELEASES": str(directory.parent / "releases")},
        capture_output=True,
        text=True,
        check=False,
    )


def processes(directory: Path) -> dict[str, Any]:
    """What the state says of each process."""
    state = json.loads((directory / "state.json").read_bytes())
    return {each["name"]: each for each in state["processes"]}


def identities(directory: Path) -> list[Identity]:
    """Those of all processes, the supervisor's first."""
    state = json.loads((directory / "state.json").read_bytes())
    found = [state["supervisor"], *(each["identity"] for each in state["processes"])]
    return [Identity(each["pid"], each["started"]) for each in found if each]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where it lies; whatever the test does, nothing stays."""
    need_connector()
    need_broker_jars()
    yield tmp_path / "up"
    call(tmp_path / "up", "down")


def test_up_and_down(tmp_path: Path, directory: Path) -> None:
    """The job scores; what is killed comes back; a second `up` changes nothing; down ends all."""
    example = ROOT / "examples" / "shipments"
    spec = tmp_path / "shipments.toml"
    text = (example / "shipments.toml").read_text(encoding="utf-8")
    text = text.replace("localhost:9092", f"localhost:{free_port()}")
    spec.write_text(text.replace('"model.onnx"', f'"{example / "model.onnx"}"'))
    log = tmp_path / "shipments.jsonl"
    subprocess.run(
        [sys.executable, "-c", "from jobs.cli import app; app()", "simulate", "shipments",
         "--events", "300", "--keys", "20", "--partitions", "4", "--out", log, "--quiet"],
        check=True,
    )  # fmt: skip
    rest = free_port()
    first = call(
        directory, "up", spec, "--log", log, "--rest-port", rest, "--taskmanagers", 1,
        "--set", "execution.checkpointing.interval=1s",
    )  # fmt: skip
    assert 0 == first.returncode, first.stdout + first.stderr
    cluster = Cluster(f"127.0.0.1:{rest}")
    (job,) = cluster.jobs()
    assert ("shipments", "RUNNING") == (job["name"], job["state"])
    assert _predictions(spec) > 0

    second = call(directory, "up", spec)
    assert (0, "it runs already") == (second.returncode, second.stdout.splitlines()[0])

    broker = processes(directory)["the broker"]["identity"]["pid"]
    os.kill(broker, signal.SIGKILL)
    end = time.monotonic() + 30
    while processes(directory)["the broker"]["starts"] < 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert 2 == processes(directory)["the broker"]["starts"]

    known = identities(directory)
    assert 5 <= len([each for each in known if each.alive])  # the publisher may be done
    down = call(directory, "down", "--forget")
    assert 0 == down.returncode, down.stdout + down.stderr
    assert [] == [each for each in known if each.alive]
    assert not directory.exists()


def test_what_fails_on_the_way_ends_what_was_started(tmp_path: Path, directory: Path) -> None:
    """The broker runs when Flink is found to have no room: told as Flink told it, and all ends."""
    spec = tmp_path / "shipments.toml"
    text = (ROOT / "examples" / "shipments" / "shipments.toml").read_text(encoding="utf-8")
    spec.write_text(text.replace("localhost:9092", f"localhost:{free_port()}"))
    done = call(
        directory, "up", spec, "--rest-port", free_port(),
        "--set", "taskmanager.memory.process.size=300m",
    )  # fmt: skip
    assert 1 == done.returncode, done.stdout + done.stderr
    assert "broker: 127.0.0.1:" in done.stdout
    assert "Flink cannot divide the memory of a taskmanager" in done.stderr
    assert 1 == processes(directory)["the broker"]["starts"]
    assert [] == [each for each in identities(directory) if each.alive]


def _predictions(spec: Path) -> int:
    """How many records are in the topic of predictions, once there are any."""
    loaded = load_spec(spec)
    end = time.monotonic() + 60
    with Topics(sink_access(loaded)) as topics:
        while time.monotonic() < end:
            ranges = topics.log_range(loaded.sink.predictions)
            found = sum(last - first for first, last in ranges.values())
            if found:
                return found
            time.sleep(0.5)
    return 0
