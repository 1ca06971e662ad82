"""Prometheus scrapes what is there, and Grafana asks for what Flink and the job measure."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jobs.operator import RECORDS_METRIC
from tests.deploy.flink_options import is_metric
from tests.deploy.repository import DEPLOY, ROOT, read_yaml

PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
GRAFANA = DEPLOY / "grafana"
SERVICES = read_yaml(ROOT / "docker-compose.yml")["services"]
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))

#: What Flink's reporter puts before the name of a metric: who measures it.
_SCOPE = re.compile(r"flink_(jobmanager|taskmanager)_job_(task_(operator_)?)?")


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")
def test_prometheus_reads_its_configuration() -> None:
    """By its own tool."""
    done = subprocess.run(
        ["promtool", "check", "config", PROMETHEUS], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def test_what_is_scraped_are_services_on_the_port_of_the_reporter() -> None:
    """Both roles of Flink, by the names of docker-compose.yml."""
    (port,) = (
        value
        for name, value in read_yaml(DEPLOY / "docker" / "flink.yaml").items()
        if name.startswith("metrics.reporter.") and name.endswith(".port")
    )
    scraped = set()
    for job in read_yaml(PROMETHEUS)["scrape_configs"]:
        for each in job.get("static_configs", []):
            scraped |= {tuple(target.split(":")) for target in each["targets"]}
        for each in job.get("dns_sd_configs", []):
            assert "A" == each["type"]  # the port is needed with no other type
            scraped |= {(name, str(each["port"])) for name in each["names"]}
    assert {("jobmanager", str(port)), ("taskmanager", str(port))} == scraped
    assert SERVICES.keys() >= {name for name, _ in scraped}


def test_its_files_lie_where_the_services_are_told() -> None:
    """The mount's target is the option's value, or the image's own default."""
    prometheus = SERVICES["prometheus"]
    assert (
        "./deploy/prometheus/prometheus.yml:/etc/prometheus/prometheus.yml:ro"
        in (prometheus["volumes"])
    )
    assert "--config.file=/etc/prometheus/prometheus.yml" in prometheus["command"]
    assert (
        "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro"
        in (SERVICES["grafana"]["volumes"])
    )


def test_grafana_asks_the_prometheus_of_compose() -> None:
    """By the name and port of the service."""
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")[
        "datasources"
    ]
    address = urlsplit(source["url"])
    assert address.hostname in SERVICES
    assert [f"127.0.0.1:{address.port}:{address.port}"] == SERVICES["prometheus"]["ports"]
    assert source["jsonData"]["timeInterval"] == read_yaml(PROMETHEUS)["global"]["scrape_interval"]


def test_grafana_finds_the_dashboards() -> None:
    """The provider's path is where they are mounted, and so is the one to begin with."""
    (provider,) = read_yaml(GRAFANA / "provisioning" / "dashboards" / "tidegate.yml")["providers"]
    path = provider["options"]["path"]
    assert f"./deploy/grafana/dashboards:{path}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in [f"{path}/{each.name}" for each in DASHBOARDS]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_asks_the_source_that_is_provisioned(path: Path) -> None:
    """By its uid: a name would be another one in another Grafana."""
    (source,) = read_yaml(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")[
        "datasources"
    ]
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    assert {source["uid"]} == {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert [] == [panel["title"] for panel in dashboard["panels"] if not panel["description"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_asks_for_metrics_that_exist(path: Path) -> None:
    """Flink declares them, or the job does."""
    asked = set()
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            asked |= _metrics(target["expr"])
    assert RECORDS_METRIC in asked
    assert set() == {name for name in asked if not is_metric(name)} - {RECORDS_METRIC}


def _metrics(expression: str) -> set[str]:
    """The metrics of an expression without their scope; (a|b) of a pattern are two."""
    found = set()
    for match in _SCOPE.finditer(expression):
        rest = expression[match.end() :]
        alternatives = re.match(r"\(([\w|]+)\)|(\w+)", rest)
        assert alternatives, rest
        found |= set((alternatives[1] or alternatives[2]).split("|"))
    return found
