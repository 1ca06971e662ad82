"""The job as Flink itself starts it, which is how the Kubernetes operator does."""

import os
import subprocess
import sys
from pathlib import Path

import pyflink
import pytest

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs.deployment import find_job
from jobs.flink_rest import Cluster
from jobs.jars import find_connector
from jobs.java import find_java
from jobs.publish import make_topics
from jobs.simulate import Settings, write_shipments
from schemas.spec import load_spec
from tests.cluster.live import Feeder, check_outputs, outputs, wait_checkpoints
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow


def test_flink_run_starts_the_job_of_a_module(
    tmp_path: Path, broker: Broker, local: LocalCluster, cluster: Cluster
) -> None:
    """`flink run -pym jobs.kafka_main`, with a setting of the cluster that wins."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="update")
    text = path.read_text().replace('"shipments', '"application')
    path.write_text(text.replace("localhost:9092", broker.bootstrap_servers))
    spec = load_spec(path)
    make_topics(spec)
    home = Path(pyflink.__file__).parent
    ran = subprocess.run(
        [
            *(str(home / "bin" / "flink"), "run", "-d", "-m", local.rest),
            *("-D", "execution.checkpointing.interval=2s"),
            *("-pyclientexec", sys.executable, "-pyexec", sys.executable),
            *("-pym", "jobs.kafka_main", "--spec", str(path)),
        ],
        env=os.environ
        | {
            "FLINK_CONF_DIR": str(local.directory / "conf"),
            "FLINK_LOG_DIR": str(tmp_path),
            "HADOOP_CLASSPATH": str(find_connector()),
            "JAVA_HOME": str(find_java().home),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    job = find_job(cluster, spec.name)
    assert job
    log = tmp_path / "log.jsonl"
    write_shipments(Settings(events=5_000, keys=100), log)
    with outputs(spec) as (predictions, rejects):
        with Feeder(spec, log):
            pass
        check_outputs(spec, log, predictions, rejects, duplicates=False)
    wait_checkpoints(cluster, job["jid"], 2)
