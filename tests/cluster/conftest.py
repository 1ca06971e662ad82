"""One broker and one cluster for all tests here, and the figures they print at the end."""

from collections.abc import Callable, Iterator

import pytest

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs.flink_rest import Cluster
from tests.conftest import FIGURE
from tests.kafka_jars import need_broker_jars, need_connector


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker."""
    with Broker(tmp_path_factory.mktemp("broker"), jars=need_broker_jars()) as started:
        yield started


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real cluster that recovers its jobs, with slots to spare."""
    with LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        connector=need_connector(),
        taskmanagers=2,
        slots=4,
        high_availability=True,
    ) as started:
        yield started


@pytest.fixture
def cluster(local: LocalCluster) -> Iterator[Cluster]:
    """Its REST interface; every job that a test leaves is ended."""
    local.wait_ready()
    rest = Cluster(local.rest)
    yield rest
    local.wait_ready()
    for job in rest.jobs():
        if job["state"] not in ("FINISHED", "CANCELED", "FAILED"):
            rest.cancel(job["jid"])


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes a measured figure, which is printed at the end of the run."""
    return lambda line: record_property(FIGURE, line)
