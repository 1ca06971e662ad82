"""A broker behind TLS and a password: used everywhere, shown nowhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs.flink_rest import Cluster
from schemas.spec import load_spec
from tests.cluster.live import Collector
from tests.jobs.example_specs import with_policy
from tests.kafka_jars import need_broker_jars

pytestmark = pytest.mark.slow

SECRET = "open-sesame-5f2a"  # noqa: S105 (made up)
_PROPERTIES = """
[{table}.properties]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.jaas.config" = '''{login} required username="job" password="${{KAFKA_PASSWORD}}";'''
"ssl.truststore.type" = "PEM"
"ssl.truststore.location" = "{certificate}"
"""
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of the loopback address, and the store of a broker."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    store = folder / "broker.pem"
    store.write_text(key.read_text() + certificate.read_text())
    return certificate, store


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The certificate, and the broker's store."""
    return _make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[Broker]:
    """A broker whose second way in asks for TLS and a password."""
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": (f'{_LOGIN} required user_job="{SECRET}";'),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate[1]),
    }
    with Broker(
        tmp_path_factory.mktemp("secured"),
        jars=need_broker_jars(),
        listeners={"SECURE": "SASL_SSL"},
        properties=properties,
    ) as started:
        yield started


def test_a_password_is_used_and_never_shown(
    tmp_path: Path,
    secured: Broker,
    certificate: tuple[Path, Path],
    local: LocalCluster,
    cluster: Cluster,
) -> None:
    """topics, check, publish, submit over SASL_SSL; then every place where it might be found."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="update")
    text = path.read_text().replace('"shipments', '"secured')
    text = text.replace("localhost:9092", secured.address("SECURE"))
    properties = _PROPERTIES.format(table="source", login=_LOGIN, certificate=certificate[0])
    path.write_text(text + properties)
    environ = os.environ | {
        "KAFKA_PASSWORD": SECRET,
        "TIDEGATE_CLUSTER": local.rest,
        "TIDEGATE_RELEASES": str(tmp_path / "releases"),
    }
    shown = []

    def tidegate(*words: object, code: int = 0, **more: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "jobs.cli", *map(str, words)],
            env=environ | more,
            capture_output=True,
            text=True,
            check=False,
        )
        said = ran.stdout + ran.stderr
        assert code == ran.returncode, said
        shown.append(said)
        return said

    tidegate("topics", path)
    tidegate("check", path)
    told = tidegate("check", path, code=3, KAFKA_PASSWORD="wrong")  # noqa: S106
    assert "remedy" in told
    del environ["KAFKA_PASSWORD"]
    assert "no variable KAFKA_PASSWORD" in tidegate("check", path, code=3)
    environ["KAFKA_PASSWORD"] = SECRET
    log = tmp_path / "log.jsonl"
    tidegate("simulate", "shipments", "--events", 2_000, "--keys", 50, "--out", log)
    tidegate("submit", path, "--wait", "--set", "execution.checkpointing.interval=2s")
    tidegate("publish", path, "--log", log)
    spec = load_spec(path)
    plain = secured.bootstrap_servers
    with Collector(plain, spec.sink.predictions) as predictions:
        predictions.wait_for(1_500)
    tidegate("status", path)
    job = cluster.jobs()[0]["jid"]
    for question in (f"jobs/{job}/config", f"jobs/{job}/plan", f"jobs/{job}", "jobmanager/config"):
        shown.append(requests.get(f"http://{local.rest}/{question}", timeout=10).text)
    tidegate("stop", path)
    for log_file in [*local.logs.iterdir(), *(tmp_path / "releases").rglob("*")]:
        if log_file.is_file():
            shown.append(log_file.read_bytes().decode(errors="replace"))
    assert not [said for said in shown if SECRET in said]
