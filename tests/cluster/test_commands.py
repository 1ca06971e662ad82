"""The commands on a real broker and cluster, as a user types them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs.flink_rest import Cluster
from jobs.kafka_client import source_access
from jobs.topics import Topics
from schemas.spec import Spec, load_spec
from tests.cluster.live import Feeder, check_outputs, expected_of, outputs
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow

Tidegate = Callable[..., str]


@pytest.fixture
def spec_path(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Path:
    """A spec file with topics of its own."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="repredict")
    name = request.node.name.replace("_", "-")
    text = path.read_text().replace('"shipments', f'"{name}').replace("localhost:9092", "${KAFKA}")
    path.write_text(text)
    return path


@pytest.fixture
def tidegate(tmp_path: Path, broker: Broker, local: LocalCluster) -> Tidegate:
    """Runs a command; returns what it printed. `code` is the exit code that must come."""

    def run(*words: object, code: int = 0) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "jobs.cli", *map(str, words)],
            env=_environ(tmp_path, broker, local),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert code == ran.returncode, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    return run


def _environ(folder: Path, broker: Broker, local: LocalCluster) -> dict[str, str]:
    return os.environ | {
        "KAFKA": broker.bootstrap_servers,
        "TIDEGATE_CLUSTER": local.rest,
        "TIDEGATE_RELEASES": str(folder / "releases"),
        "COLUMNS": "200",
    }


def _spec(path: Path, broker: Broker) -> Spec:
    text = path.read_text().replace("${KAFKA}", broker.bootstrap_servers)
    filled = path.with_name("filled.toml")
    filled.write_text(text)
    return load_spec(filled)


def test_a_job_from_its_topics_to_its_end(
    spec_path: Path,
    tmp_path: Path,
    broker: Broker,
    local: LocalCluster,
    cluster: Cluster,
    tidegate: Tidegate,
) -> None:
    """check, topics, submit, publish, status, savepoint, upgrade, a bad upgrade, stop, submit."""
    log = tmp_path / "log.jsonl.gz"
    tidegate("simulate", "shipments", "--events", 20_000, "--keys", 300, "--out", log)
    assert "tidegate topics" in tidegate("check", spec_path, code=3)
    assert "made" in tidegate("topics", spec_path)
    assert "failed" not in tidegate("check", spec_path, "--cluster", local.rest)
    told = tidegate("submit", spec_path, "--wait", "--set", "execution.checkpointing.interval=2s")
    assert re.search(r"^job [0-9a-f]{32}\npage http", told, re.MULTILINE)
    assert "is on that cluster already" in tidegate("submit", spec_path, code=1)
    assert "20,000 records" in tidegate("publish", spec_path, "--log", log)
    spec = _spec(spec_path, broker)
    with outputs(spec) as (predictions, rejects):
        predictions.wait_for(len(expected_of(spec, log)["predictions"]))
        shown = tidegate("status", spec_path)
        assert "RUNNING" in shown
        assert "20,000 since the last start" in shown
        savepoint = tidegate("savepoint", spec_path).strip()
        assert "has all that comes after" in tidegate("check", spec_path, "--savepoint", savepoint)
        assert "completed a checkpoint" in tidegate("upgrade", spec_path, "--parallelism", 2)
        bad = tidegate("upgrade", spec_path, "--set", "python.executable=/nowhere/python", code=1)
        assert "runs again" in bad
        assert "nothing is lost" in bad
        assert "RUNNING" in tidegate("status", spec_path)
        check_outputs(spec, log, predictions, rejects, duplicates=False)
        stopped = tidegate("stop", spec_path).strip()
        assert "no job" in tidegate("status", spec_path, code=1)
        tidegate("submit", spec_path, "--savepoint", stopped, "--parallelism", 4, "--wait")
        with Feeder(spec, log):  # the same events again: duplicates all
            pass
        time.sleep(3)
        assert len(predictions.found.values) == len(set(predictions.found.values))


def test_a_log_is_published_at_its_rate(
    spec_path: Path, tmp_path: Path, broker: Broker, tidegate: Tidegate
) -> None:
    """Not faster, however quickly the broker answers."""
    log = tmp_path / "log.jsonl"
    tidegate("simulate", "shipments", "--events", 500, "--keys", 20, "--out", log)
    tidegate("topics", spec_path)
    started = time.monotonic()
    tidegate("publish", spec_path, "--log", log, "--rate", 250)
    assert time.monotonic() - started >= 499 / 250
    with Topics(source_access(_spec(spec_path, broker))) as topics:
        ranges = topics.log_range(_spec(spec_path, broker).source.topic)
    assert 500 == sum(end for _, end in ranges.values())


def test_heartbeats_move_a_quiet_partition(
    spec_path: Path, broker: Broker, tidegate: Tidegate
) -> None:
    """Into the partitions that are quiet, and none into those that are not."""
    tidegate("topics", spec_path)
    assert 4 == tidegate("heartbeat", spec_path).count("partition")
    assert "no partition is quiet" in tidegate("heartbeat", spec_path)
    told = tidegate("heartbeat", spec_path, "--partition", 3, "--event-time-ms", 1_700_000_000_000)
    assert "partition 3, offset 1: 1700000000000" == told.strip()
    assert "0 to 3" in tidegate("heartbeat", spec_path, "--partition", 4, code=1)


def test_an_embedded_run_goes_on_where_it_was_stopped(
    spec_path: Path, tmp_path: Path, broker: Broker, local: LocalCluster, tidegate: Tidegate
) -> None:
    """`run --kafka`, Ctrl-C, and the same command again."""
    log = tmp_path / "log.jsonl"
    tidegate("simulate", "shipments", "--events", 10_000, "--keys", 200, "--out", log)
    tidegate("topics", spec_path)
    spec = _spec(spec_path, broker)
    expected = expected_of(spec, log)["predictions"]
    with outputs(spec) as (predictions, rejects), Feeder(spec, log, until=0.5) as feeder:
        for share in (0.5, 1.0):
            feeder.until = share
            feeder.wait_share(share)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jobs.cli", "run", str(spec_path), "--kafka"),
                    *("--out", str(tmp_path / "live"), "--parallelism", "2"),
                ],
                env=_environ(tmp_path, broker, local),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                predictions.wait_for(round(share * 0.9 * len(expected)))
                if share == 1.0:
                    check_outputs(spec, log, predictions, rejects, duplicates=False)
            finally:
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=120)
            assert 0 == process.returncode, said
            assert "stopped with" in said
