"""Killed, rescaled and upgraded while it runs: the outputs of an undisturbed replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs import deployment
from jobs.flink_rest import Cluster
from jobs.simulate import Settings, write_shipments
from operators.scorer import Scorer
from schemas.log import read_log
from schemas.spec import NextModel, Spec
from tests.cluster.live import (
    SETTINGS,
    Feeder,
    begin,
    check_outputs,
    environ_of,
    live_spec,
    outputs,
    resume,
    wait_checkpoints,
)
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow

EVENTS = 300_000
#: So many a second while faults happen, which leaves records to be interrupted.
RATE = 1_200.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300,000 simulated events in 4 partitions."""
    path = tmp_path_factory.mktemp("log") / "shipments.jsonl"
    write_shipments(Settings(events=EVENTS, keys=5_000, disorder=0.1, late=0.05), path)
    return path


def _faults(
    local: LocalCluster, cluster: Cluster, job_id: str, fresh: Callable[[], float]
) -> list[tuple[str, float]]:
    """Kills a TaskManager three times, a Python worker twice, the JobManager once.

    Returns:
        What was killed, and the seconds until every partition had a fresh prediction.
    """
    told = []
    for fault in ("taskmanager", "python", "taskmanager", "jobmanager", "python", "taskmanager"):
        wait_checkpoints(cluster, job_id)
        if fault == "taskmanager":
            local.kill_taskmanager(_busy(local))
        elif fault == "python":
            local.kill_python_worker()
        else:
            local.kill_jobmanager()
        told.append((fault, fresh()))
        local.wait_ready()
    return told


def _busy(local: LocalCluster) -> int:
    """The index of a TaskManager that has Python workers."""
    return next(i for i in range(len(local.taskmanagers)) if local.python_workers(i))


@pytest.mark.parametrize("guarantee", ["idempotent", "transactional"])
def test_kills_and_rescales_lose_and_double_nothing(
    guarantee: str,
    log: Path,
    tmp_path: Path,
    broker: Broker,
    local: LocalCluster,
    cluster: Cluster,
    figure: Callable[[str], None],
) -> None:
    """Three TaskManagers, two Python workers, the JobManager; 1 -> 2 -> 4 by savepoint."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="drop")
    spec = live_spec(path, f"faults-{guarantee}", broker.bootstrap_servers, guarantee=guarantee)
    job = begin(spec, cluster, tmp_path / "releases")
    with outputs(spec) as (predictions, rejects):
        with Feeder(spec, log, RATE) as feeder:
            for parallelism in (2, 4):
                wait_checkpoints(cluster, job.job_id)
                savepoint = cluster.stop(job.job_id, None, wait_seconds=120)
                job = resume(
                    spec, cluster, tmp_path / "releases", savepoint, parallelism=parallelism
                )
            told = _faults(
                local, cluster, job.job_id, lambda: predictions.fresh_again(dict(feeder.offsets))
            )
            for what, seconds in told:
                figure(f"{guarantee}, kill -9 of a {what}: fresh in all partitions {seconds:.1f} s")
            assert feeder.left > 0, "the log ended before the faults did"
        check_outputs(spec, log, predictions, rejects, duplicates=guarantee == "idempotent")


@pytest.mark.parametrize(
    ("state", "guarantee"), [("carry", "idempotent"), ("reset", "transactional")]
)
def test_a_new_model_takes_over_at_its_event_time(
    state: Any,
    guarantee: str,
    log: Path,
    tmp_path: Path,
    broker: Broker,
    local: LocalCluster,
    cluster: Cluster,
) -> None:
    """5 % late events under repredict; upgraded in the middle, then killed twice."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="repredict")
    spec = live_spec(path, f"model-{state}", broker.bootstrap_servers, guarantee=guarantee)
    upgraded = _with_next_model(spec, log, state, tmp_path / "second.onnx")
    releases = tmp_path / "releases"
    begin(spec, cluster, releases, parallelism=2)
    with outputs(spec) as (predictions, rejects):
        with Feeder(spec, log, rate=20_000, until=0.4) as feeder:
            feeder.wait_share(0.4)
            job = deployment.upgrade(
                Scorer(upgraded),
                cluster,
                parallelism=None,
                directory=None,
                settings=SETTINGS,
                environ=environ_of(releases),
            )
            feeder.rate, feeder.until = RATE * 2, 1.0
            wait_checkpoints(cluster, job.job_id)
            local.kill_taskmanager(_busy(local))
            local.wait_ready()
            wait_checkpoints(cluster, job.job_id)
            local.kill_python_worker()
            wait_checkpoints(cluster, job.job_id)
        check_outputs(upgraded, log, predictions, rejects, duplicates=guarantee == "idempotent")
    digests = [msgspec.json.decode(v)["model_digest"] for v in predictions.found.values]
    both = {digest: digests.count(digest) for digest in set(digests)}
    assert 2 == len(both)
    assert min(both.values()) > EVENTS / 20


def _with_next_model(spec: Spec, log: Path, state: str, path: Path) -> Spec:
    """The spec with a second model, from an event time that is still to come at 40 % of the log."""
    model = onnx.load(spec.model.path)
    weights = next(w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT)
    changed = onnx.numpy_helper.to_array(weights) * np.float32(1.1)
    weights.CopyFrom(onnx.numpy_helper.from_array(changed, weights.name))
    onnx.save(model, path)
    times = np.sort(np.concatenate([batch.timestamps for batch in read_log(log)]))
    following = NextModel(
        path=str(path),
        from_event_time_ms=int(times[round(0.6 * len(times))]),
        state=state,
        compatible_with=(Scorer(spec).models[0].digest,),
    )
    return msgspec.structs.replace(
        spec, model=msgspec.structs.replace(spec.model, next=(following,))
    )
