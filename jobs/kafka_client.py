"""How a spec's Kafka is reached: one set of settings, for Flink's Java client and for librdkafka.

A spec names the settings of Kafka's Java client, which are the ones that Kafka documents. Flink's
connector takes them as they are, but for the login classes, which it carries under a name of its
own. The checks and tools of this package speak to Kafka through librdkafka, whose names differ;
what has no counterpart there is refused by name, before anything is started.

A value may hold `${NAME}`, which stands for an environment variable, so that a spec can be shown
to anyone. Danger: what came out of the environment must never be printed; `repr` shows no value.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.spec import Spec

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Kafka's login classes, as they are called in Flink's connector.
_SHADED = "org.apache.flink.kafka.shaded."
_LOGIN_CLASS = re.compile(r"(?<![\w.])org\.apache\.kafka\.common\.security\.")
_CREDENTIAL = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_CONNECTION = ("security.", "sasl.", "ssl.")
#: What the job itself decides: set otherwise, it would lose records or start elsewhere.
_OURS = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "auto.offset.reset",
        "enable.auto.commit",
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "partitioner.class",
    }
)
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: The same under either name.
_SAME = ("security.protocol", "ssl.key.password", "ssl.cipher.suites", "client.id")
#: Settings of the Java client under librdkafka's name, where both know the thing.
_RENAMED = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}
#: Settings that the Java client alone needs; they change nothing about who may connect.
_JAVA_ALONE = (
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.provider",
    "ssl.engine.factory.class",
    "sasl.login.",
    "sasl.kerberos.",
)


class KafkaError(RuntimeError):
    """Kafka that cannot be reached or used so: what was found, what is needed, the remedy."""


@dataclass(frozen=True)
class KafkaAccess:
    """How to reach one Kafka.

    Attributes:
        bootstrap_servers: HOST:PORT, comma-separated.
        properties: settings of Kafka's Java client, secrets filled in.
        table: the table of the spec they are from: source or sink.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    table: str = "source"

    def java(self) -> dict[str, str]:
        """Returns what Flink's connector takes behind `properties.`."""
        settings = dict(self.properties)
        if "sasl.jaas.config" in settings:
            settings["sasl.jaas.config"] = _LOGIN_CLASS.sub(
                lambda found: _SHADED + found[0], settings["sasl.jaas.config"]
            )
        return {"bootstrap.servers": self.bootstrap_servers} | settings

    def librdkafka(self) -> dict[str, Any]:
        """Returns the same for a client of librdkafka.

        Raises:
            KafkaError: a setting that librdkafka has no counterpart of.
        """
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            # What goes wrong is an error of the call, not a line on stderr.
            "log_level": 0,
            "socket.connection.setup.timeout.ms": 5_000,
        }
        given = {
            name: value for name, value in self.properties.items() if name.startswith(_CONNECTION)
        }
        for name in _SAME:
            if name in self.properties:
                settings[name] = self.properties[name]
                given.pop(name, None)
        for name, theirs in _RENAMED.items():
            if name in given:
                settings[theirs] = given.pop(name)
        settings |= self._identification(given) | self._login(given) | self._stores(given)
        left = [name for name in sorted(given) if not name.startswith(_JAVA_ALONE)]
        if left:
            raise self._untranslated(left[0], "a setting that librdkafka knows, too")
        return settings

    def _identification(self, given: dict[str, str]) -> dict[str, str]:
        name = "ssl.endpoint.identification.algorithm"
        return {name: given.pop(name) or "none"} if name in given else {}

    def _login(self, given: dict[str, str]) -> dict[str, str]:
        mechanism = given.pop("sasl.mechanism", None)
        config = given.pop("sasl.jaas.config", None)
        if mechanism is None and config is None:
            return {}
        # Java's default is Kerberos.
        mechanism = mechanism or "GSSAPI"
        if mechanism not in _PASSWORD_MECHANISMS:
            raise self._untranslated(
                f"sasl.mechanism = {mechanism}", " or ".join(_PASSWORD_MECHANISMS)
            )
        found = {
            name: re.sub(r"\\(.)", r"\1", value)
            for name, value in _CREDENTIAL.findall(config or "")
        }
        if set(found) != {"username", "password"}:
            raise KafkaError(
                f"{self.table}.properties: sasl.jaas.config names no user\n"
                f'  needed: a login module with username="..." password="...", for {mechanism}\n'
                "  remedy: correct it; the password as ${NAME}, from the environment"
            )
        return {
            "sasl.mechanism": mechanism,
            "sasl.username": found["username"],
            "sasl.password": found["password"],
        }

    def _stores(self, given: dict[str, str]) -> dict[str, str]:
        """Files of certificates and keys; the Java client's default type is its own, JKS."""
        settings = {}
        for store in ("truststore", "keystore"):
            kind = given.pop(f"ssl.{store}.type", "JKS").upper()
            location = given.pop(f"ssl.{store}.location", None)
            password = given.pop(f"ssl.{store}.password", None)
            if location is None:
                continue
            if kind == "PEM" and store == "truststore":
                settings["ssl.ca.location"] = location
            elif kind == "PEM":
                settings |= {"ssl.key.location": location, "ssl.certificate.location": location}
            elif kind == "PKCS12" and store == "keystore":
                settings["ssl.keystore.location"] = location
                if password is not None:
                    settings["ssl.keystore.password"] = password
            else:
                raise self._untranslated(
                    f"ssl.{store}.type = {kind}", f"ssl.{store}.type = PEM, a file both can read"
                )
        return settings

    def _untranslated(self, found: str, needed: str) -> KafkaError:
        return KafkaError(
            f"{self.table}.properties cannot be used for the checks\n"
            f"  found:  {found}, which only Kafka's Java client understands\n"
            f"  needed: {needed}\n"
            "  remedy: change it"
        )


def source_access(spec: Spec, environ: Mapping[str, str] = os.environ) -> KafkaAccess:
    """Returns how the source's Kafka is reached.

    Args:
        spec: the job spec.
        environ: where secrets are taken from.

    Raises:
        KafkaError: no servers, a secret that is not in the environment, or a setting that is the
            job's own.
    """
    source = spec.source
    return _access("source", source.bootstrap_servers, source.properties, environ)


def sink_access(spec: Spec, environ: Mapping[str, str] = os.environ) -> KafkaAccess:
    """Returns how the sinks' Kafka is reached: the source's, unless the spec names another.

    Where the servers are the source's, so are the settings of the connection; those that the sink
    names win.

    Raises:
        KafkaError: as for `source_access`.
    """
    sink, properties = spec.sink, dict(spec.sink.properties)
    if sink.bootstrap_servers:
        return _access("sink", sink.bootstrap_servers, properties, environ)
    shared = {
        name: value
        for name, value in spec.source.properties.items()
        if name.startswith(_CONNECTION)
    }
    return _access("sink", spec.source.bootstrap_servers, shared | properties, environ)


def _access(
    table: str, servers: str | None, properties: Mapping[str, str], environ: Mapping[str, str]
) -> KafkaAccess:
    if servers is None:
        raise KafkaError(
            "the spec names no Kafka servers\n"
            "  found:  no source.bootstrap_servers\n"
            "  needed: HOST:PORT, comma-separated, such as localhost:9092\n"
            "  remedy: add bootstrap_servers to [source]; it may be ${NAME}, from the environment"
        )
    for name in properties:
        if name in _OURS:
            raise KafkaError(
                f"{table}.properties sets {name}\n"
                "  needed: it is the job's own: from it follows that nothing is lost or doubled\n"
                f"  remedy: leave it out{_INSTEAD.get(name, '')}"
            )
    filled = {
        name: _filled(value, f"{table}.properties, {name}", environ)
        for name, value in properties.items()
    }
    return KafkaAccess(_filled(servers, f"{table}.bootstrap_servers", environ), filled, table)


_INSTEAD = {
    "bootstrap.servers": "; that is bootstrap_servers",
    "transaction.timeout.ms": "; that is sink.transaction_timeout_ms",
    "auto.offset.reset": "; where a job begins is --start",
}


def _filled(value: str, place: str, environ: Mapping[str, str]) -> str:
    def of(found: re.Match[str]) -> str:
        name = found[1]
        if name not in environ:
            raise KafkaError(
                f"{place} takes ${{{name}}} from the environment\n"
                f"  found:  no variable {name}\n"
                "  remedy: set it where this command runs"
            )
        return environ[name]

    return _VARIABLE.sub(of, value)
