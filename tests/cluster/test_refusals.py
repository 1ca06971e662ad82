"""What must never be passed over in silence: partitions, retention, state, generations."""

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs.deployment import Deployed, submit
from jobs.findings import Finding, Verdict
from jobs.flink_rest import Cluster
from jobs.kafka_job import Start
from jobs.preflight import preflight, savepoint_findings
from jobs.publish import make_topics
from jobs.republish import republish
from jobs.simulate import Settings, write_shipments
from operators.scorer import Scorer
from schemas.log import LogRow, read_log, write_log
from schemas.spec import Spec
from tests.cluster.live import (
    SETTINGS,
    Collector,
    Feeder,
    begin,
    check_outputs,
    environ_of,
    expected_of,
    live_spec,
    outputs,
    wait_failure,
)
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow

EVENTS = 8_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small log in 4 partitions."""
    path = tmp_path_factory.mktemp("log") / "shipments.jsonl"
    write_shipments(Settings(events=EVENTS, keys=200, disorder=0.1, late=0.05), path)
    return path


class Stopped:
    """A job that scored a log and was stopped with a savepoint."""

    def __init__(self, spec: Spec, savepoint: str, releases: Path) -> None:
        self.spec, self.savepoint, self.releases = spec, savepoint, releases

    def again(self, cluster: Cluster) -> Deployed:
        """Goes on without the preflight."""
        return submit(
            Scorer(self.spec),
            cluster,
            parallelism=1,
            savepoint=self.savepoint,
            settings=SETTINGS,
            environ=environ_of(self.releases),
        )


@pytest.fixture
def stopped(
    request: pytest.FixtureRequest, log: Path, tmp_path: Path, broker: Broker, cluster: Cluster
) -> Stopped:
    """A stopped job, its topics its own."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="update")
    name = request.node.name.replace("_", "-")[:60]
    spec = live_spec(path, name, broker.bootstrap_servers)
    job = begin(spec, cluster, tmp_path / "releases")
    with outputs(spec) as (predictions, rejects):
        with Feeder(spec, log):
            pass
        check_outputs(spec, log, predictions, rejects, duplicates=False)
    savepoint = cluster.stop(job.job_id, None, wait_seconds=120)
    return Stopped(spec, savepoint, tmp_path / "releases")


def _failed(findings: list[Finding]) -> dict[str, str]:
    return {each.check: each.told for each in findings if each.verdict is Verdict.FAILED}


def test_state_and_log_that_fit_pass(stopped: Stopped, local: LocalCluster) -> None:
    """The savepoint's positions are those of the log's end, in every partition."""
    findings = preflight(Scorer(stopped.spec), cluster=local.rest, savepoint=stopped.savepoint)
    assert {} == _failed(findings)
    told = {each.check: each.told for each in findings}
    assert "4 partitions" in told["state"]
    assert told["log"].endswith("0 records")


def test_a_topic_that_grew_is_refused(
    stopped: Stopped, broker: Broker, cluster: Cluster, local: LocalCluster
) -> None:
    """Before the start by the preflight; and without it by the job, which scores nothing of it."""
    spec = stopped.spec
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(spec.source.topic, 5)])[spec.source.topic].result()
    told = _failed(preflight(Scorer(spec), cluster=local.rest, savepoint=stopped.savepoint))
    assert ["source"] == list(told)
    assert "found:  5" in told["source"]
    assert "new generation" in told["source"]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(spec.source.topic, b"{}", partition=4)
    producer.flush(10)
    job = stopped.again(cluster)
    said = wait_failure(cluster, job.job_id)
    assert "the source has a partition 4" in said


def test_records_that_retention_deleted_are_missed(
    stopped: Stopped, log: Path, broker: Broker, cluster: Cluster
) -> None:
    """Named by partition and number by the preflight; and the job stops, it does not skip them."""
    spec = stopped.spec
    with Feeder(spec, log):
        pass
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    gone = TopicPartition(spec.source.topic, 2, EVENTS // 4 + 1000)
    next(iter(admin.delete_records([gone]).values())).result()
    told = _failed(savepoint_findings(Scorer(spec), stopped.savepoint))
    assert ["log"] == list(told)
    assert "partition 2" in told["log"]
    assert "partition 1" not in told["log"]
    job = stopped.again(cluster)
    said = wait_failure(cluster, job.job_id)
    assert "OffsetOutOfRange" in said or "out of range" in said


def test_state_of_another_spec_is_refused_by_name(stopped: Stopped, cluster: Cluster) -> None:
    """What differs, before the start; the operator refuses it as well."""
    spec = stopped.spec
    other = msgspec.structs.replace(
        spec, time=msgspec.structs.replace(spec.time, out_of_orderness_ms=1)
    )
    told = _failed(savepoint_findings(Scorer(other), stopped.savepoint))
    assert ["state"] == list(told)
    assert "time.out_of_orderness_ms: 3600000 in the state, 1 here" in told["state"]
    job = Stopped(other, stopped.savepoint, stopped.releases).again(cluster)
    with Feeder(spec, _one_line(stopped.releases)):
        said = wait_failure(cluster, job.job_id)
    assert "time.out_of_orderness_ms" in said


def test_an_old_generation_is_refused(stopped: Stopped) -> None:
    """Predictions of a newer one are in the sink: consumers would pass over the job's."""
    spec = stopped.spec
    older = msgspec.structs.replace(spec, generation=0)
    told = _failed(preflight(Scorer(older)))
    assert "predictions of generation 1" in told["generation"]
    # The same generation again: only from the whole log.
    assert {} == _failed(preflight(Scorer(spec), start=Start.parse("earliest")))
    told = _failed(preflight(Scorer(spec), start=Start.parse("latest")))
    assert "generation = 2" in told["generation"]


def _one_line(folder: Path) -> Path:
    """A log of a few more events, so that every shard is met."""
    path = folder / "more.jsonl"
    write_shipments(Settings(events=100, keys=20, seed=5), path)
    return path


def test_a_topic_that_grew_goes_on_republished(
    stopped: Stopped, log: Path, tmp_path: Path, cluster: Cluster
) -> None:
    """Into a new topic, by key, in order; under a new generation the job scores it like any log."""
    old = stopped.spec
    new = msgspec.structs.replace(
        old,
        generation=2,
        source=msgspec.structs.replace(old.source, topic=f"{old.name}.events-2", partitions=6),
        sink=msgspec.structs.replace(old.sink, predictions=f"{old.name}.predictions-2"),
    )
    make_topics(new)
    assert EVENTS == republish(old, new)
    copied = _as_log(new, tmp_path / "copied.parquet")
    assert _by_key(log) == _by_key(copied)
    job = begin(new, cluster, stopped.releases)
    with Collector(str(new.source.bootstrap_servers), new.sink.predictions, 6) as predictions:
        expected = expected_of(new, copied)["predictions"]
        assert expected == sorted(predictions.wait_for(len(expected)))
    assert 0 == cluster.restarts(job.job_id)


def _as_log(spec: Spec, path: Path) -> Path:
    """The source topic of a job, as a recorded log."""
    consumer = Consumer({"bootstrap.servers": spec.source.bootstrap_servers, "group.id": "tests"})
    partitions = range(spec.source.partitions)
    consumer.assign([TopicPartition(spec.source.topic, p, 0) for p in partitions])
    rows: list[LogRow] = []
    while len(rows) < EVENTS:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None
            place = (message.partition() or 0, message.offset() or 0, message.timestamp()[1])
            rows.append(LogRow(*place, message.key(), message.value()))
    consumer.close()
    write_log(path, rows, partitions=spec.source.partitions)
    return path


def _by_key(log: Path) -> dict[bytes | None, list[bytes | None]]:
    """The values of each key, in order."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for batch in read_log(log):
        for key, value in zip(batch.keys, batch.values, strict=True):
            found.setdefault(key, []).append(value)
    return found
