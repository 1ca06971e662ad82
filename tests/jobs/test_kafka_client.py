"""One set of Kafka settings, for the Java client and for librdkafka."""

import msgspec
import pytest

from jobs.kafka_client import KafkaError, sink_access, source_access
from schemas.spec import Spec, load_spec
from tests.jobs.example_specs import EXAMPLES

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password='
SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": LOGIN + '"${SECRET}";',
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/etc/ca.pem",
    "fetch.min.bytes": "1000",
}
SECRET = 'a"b\\c'  # noqa: S105 (made up)
ENVIRON = {"SECRET": 'a\\"b\\\\c', "SERVERS": "k1:9092,k2:9092"}


def _spec(source: dict[str, str], sink: dict[str, str] | None = None, **changes: str) -> Spec:
    spec = load_spec(EXAMPLES / "shipments" / "shipments.toml")
    return msgspec.structs.replace(
        spec,
        source=msgspec.structs.replace(spec.source, properties=source),
        sink=msgspec.structs.replace(spec.sink, properties=sink or {}, **changes),
    )


def test_java_gets_the_settings_with_the_login_class_of_the_connector() -> None:
    """The connector carries Kafka's classes under another name; nothing else is changed."""
    java = source_access(_spec(SASL), ENVIRON).java()
    assert "localhost:9092" == java["bootstrap.servers"]
    assert java["sasl.jaas.config"].startswith(
        "org.apache.flink.kafka.shaded.org.apache.kafka.common.security.scram.ScramLoginModule"
    )
    assert ENVIRON["SECRET"] in java["sasl.jaas.config"]
    assert "1000" == java["fetch.min.bytes"]


def test_librdkafka_gets_the_same_under_its_names() -> None:
    """User and password out of the login module, escapes undone."""
    settings = source_access(_spec(SASL), ENVIRON).librdkafka()
    expected = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": SECRET,
        "ssl.ca.location": "/etc/ca.pem",
    }
    assert expected.items() <= settings.items()
    assert "fetch.min.bytes" not in settings


def test_secrets_are_not_shown() -> None:
    """Neither by repr nor by a refusal."""
    access = source_access(_spec(SASL), ENVIRON)
    assert ENVIRON["SECRET"] not in repr(access)
    with pytest.raises(KafkaError) as refusal:
        source_access(_spec(SASL | {"sasl.jaas.config": '"${SECRET}"'}), ENVIRON).librdkafka()
    assert ENVIRON["SECRET"] not in str(refusal.value)


def test_sinks_share_the_connection_of_the_source_unless_they_name_servers() -> None:
    """Its connection, not its tuning."""
    shared = sink_access(_spec(SASL, {"linger.ms": "5"}), ENVIRON)
    assert "SASL_SSL" == shared.properties["security.protocol"]
    assert "5" == shared.properties["linger.ms"]
    assert "fetch.min.bytes" not in shared.properties
    own = sink_access(_spec(SASL, bootstrap_servers="${SERVERS}"), ENVIRON)
    assert "k1:9092,k2:9092" == own.bootstrap_servers
    assert {} == own.properties


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sasl.jaas.config": "${NOT_THERE}"}, "NOT_THERE"),
        ({"group.id": "mine"}, "group.id"),
        ({"auto.offset.reset": "latest"}, "--start"),
        ({"ssl.truststore.location": "/a.jks"}, "ssl.truststore.type = PEM"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"sasl.mechanism": "PLAIN"}, "names no user"),
        ({"sasl.oauthbearer.token.endpoint.url": "x"}, "sasl.oauthbearer.token.endpoint.url"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(settings: dict[str, str], told: str) -> None:
    """Before anything is started."""
    with pytest.raises(KafkaError, match="remedy") as refusal:
        source_access(_spec(settings), {}).librdkafka()
    assert told in str(refusal.value)


def test_a_spec_without_servers_is_refused() -> None:
    """A job of files alone needs none; one of topics does."""
    spec = _spec({})
    spec = msgspec.structs.replace(
        spec, source=msgspec.structs.replace(spec.source, bootstrap_servers=None)
    )
    with pytest.raises(KafkaError, match="bootstrap_servers"):
        source_access(spec)
