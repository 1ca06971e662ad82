"""docker-compose.yml: valid, pinned, closed to the outside, and all it names is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import pytest

from schemas.spec import load_spec
from tests.deploy.flink_options import constants_of
from tests.deploy.image import directories_made, in_image
from tests.deploy.repository import (
    DEPLOY,
    ROOT,
    SCHEMAS,
    commands_in,
    kafka_version,
    mistake,
    read_yaml,
    tidegate_image,
)
from tests.deploy.test_image import is_read_here

FILE = ROOT / "docker-compose.yml"
COMPOSE = read_yaml(FILE)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: They do one thing and end.
ONCE = {"topics", "submit", "generator", "tidegate"}
SPEC = "deploy/docker/shipments.toml"

#: Variables that only the scripts of an image read.
READ_BY_IMAGES = {
    "CLUSTER_ID": "apache/kafka: the id that the storage is formatted with",
    "KAFKA_HEAP_OPTS": "apache/kafka: the JVM's",
}
#: Grafana reads GF_SECTION_KEY; section and key are those of its configuration file.
GRAFANA = {
    "GF_AUTH_ANONYMOUS_ENABLED": "auth.anonymous: enabled",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "auth.anonymous: org_role",
    "GF_AUTH_DISABLE_LOGIN_FORM": "auth: disable_login_form",
    "GF_ANALYTICS_REPORTING_ENABLED": "analytics: reporting_enabled",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "analytics: check_for_updates",
    "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": "dashboards: default_home_dashboard_path",
}


def words_of(service: dict[str, Any], field: str) -> list[str]:
    """A command or entrypoint as its words."""
    given = service.get(field, [])
    return given.split() if isinstance(given, str) else list(given)


def commands_of(service: dict[str, Any]) -> Iterator[list[str]]:
    """The `tidegate` commands that a service runs."""
    words = words_of(service, "command")
    if words[:1] == ["tidegate"]:
        yield words
    elif words[:1] == ["bash"]:
        yield from commands_in(words[-1].replace("$$", "$"))


def volumes_of(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Source and target of each mount."""
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        yield source, target


def test_it_is_a_compose_file() -> None:
    """By the schema of the Compose Specification."""
    schema = json.loads((SCHEMAS / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_full_version(name: str) -> None:
    """`latest` would be another one tomorrow."""
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


def test_images_of_ours_and_of_kafka_are_those_that_are_pinned() -> None:
    """This project's version, and the broker that the tests run against."""
    images = {service["image"] for service in SERVICES.values()}
    assert {tidegate_image()} == {image for image in images if image.startswith("tidegate")}
    assert {f"apache/kafka:{kafka_version()}"} == {i for i in images if i.startswith("apache/")}


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_published_is_published_to_this_machine_alone(name: str) -> None:
    """Without an address, Docker opens the port to all, past the firewall."""
    ports = SERVICES[name].get("ports", [])
    assert [] == [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)]


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_waited_for_can_come_true(name: str) -> None:
    """A condition of health needs a check, one of success a service that ends."""
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "test" in SERVICES[other].get("healthcheck", {}), other
        else:
            assert "service_completed_successfully" == how["condition"]
            assert other in ONCE


@pytest.mark.parametrize("name", SERVICES)
def test_what_runs_is_started_again_and_what_ends_is_not(name: str) -> None:
    """An end is a fault, or the purpose."""
    service = SERVICES[name]
    assert ("no" if name in ONCE else "unless-stopped") == service["restart"]
    assert (name in ONCE) == ("healthcheck" not in service)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_and_its_log_rotates(name: str) -> None:
    """None takes the machine from the others."""
    if name != "tidegate":
        assert {"cpus", "memory"} == SERVICES[name]["deploy"]["resources"]["limits"].keys()
    assert {"max-size", "max-file"} == SERVICES[name]["logging"]["options"].keys()


@pytest.mark.parametrize(("role", "spare"), [("jobmanager", 400), ("taskmanager", 800)])
def test_flinks_processes_leave_room_under_the_limit(role: str, spare: int) -> None:
    """In MB: Python workers live beside the JVM."""
    overlay = read_yaml(DEPLOY / "docker" / "flink.yaml")
    limit = _megabytes(SERVICES[role]["deploy"]["resources"]["limits"]["memory"])
    assert limit >= _megabytes(overlay[f"{role}.memory.process.size"]) + spare


@pytest.mark.parametrize("name", SERVICES)
def test_every_mount_is_there(name: str) -> None:
    """A path is in the repository, a volume is declared; ours are made in the image."""
    for source, target in volumes_of(SERVICES[name]):
        if source.startswith("."):
            assert (ROOT / source).exists(), source
        else:
            assert source in COMPOSE["volumes"], source
            if SERVICES[name]["image"] == tidegate_image():
                assert target in directories_made(), target  # else it would belong to root


def test_every_volume_is_used() -> None:
    """What nothing mounts is left from before."""
    used = {source for service in SERVICES.values() for source, _ in volumes_of(service)}
    assert set(COMPOSE["volumes"]) == {source for source in used if not source.startswith(".")}


def test_state_lies_in_volumes_that_every_process_of_flink_sees() -> None:
    """Checkpoints are written by TaskManagers and read by the JobManager, and the reverse."""
    overlay = read_yaml(DEPLOY / "docker" / "flink.yaml")
    paths = [
        PurePosixPath(v.removeprefix("file://")) for v in map(str, overlay.values()) if "://" in v
    ]
    assert 3 == len(paths)
    for role in ("jobmanager", "taskmanager", "tidegate"):
        mounts = {PurePosixPath(target) for _, target in volumes_of(SERVICES[role])}
        assert [] == [path for path in paths if not mounts & set(path.parents)], role


def test_zookeeper_keeps_what_it_knows_in_its_volume() -> None:
    """The directory that zoo.cfg names."""
    configuration = (DEPLOY / "docker" / "zoo.cfg").read_text(encoding="utf-8")
    (directory,) = re.findall(r"^dataDir=(.*)$", configuration, re.MULTILINE)
    assert directory in [target for _, target in volumes_of(SERVICES["zookeeper"])]


def test_the_broker_keeps_its_log_in_its_volume() -> None:
    """The image's own default is /tmp."""
    directory = SERVICES["broker"]["environment"]["KAFKA_LOG_DIRS"]
    assert [directory] == [target for _, target in volumes_of(SERVICES["broker"])]


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_read_by_something(name: str) -> None:
    """A misspelt one is taken without a word."""
    for variable in SERVICES[name].get("environment", {}):
        read = (
            variable in READ_BY_IMAGES
            or variable in GRAFANA
            or (variable.startswith("KAFKA_") and name == "broker")  # see the next test
            or is_read_here(variable)
        )
        assert read, variable


def test_every_setting_of_the_broker_is_one_of_kafkas() -> None:
    """KAFKA_LOG_DIRS is log.dirs; the names are in the broker's own classes."""
    jars = _broker_jars()
    if not jars:
        pytest.skip("no broker here: make kafka")
    names = {text for jar in jars for text in constants_of(jar, ".class")}
    variables = SERVICES["broker"]["environment"].keys() - READ_BY_IMAGES.keys()
    settings = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in variables}
    assert set() == settings - names


def test_every_command_exists() -> None:
    """With its options, and the files it names are in the image."""
    commands = [words for service in SERVICES.values() for words in commands_of(service)]
    assert {"topics", "submit", "simulate", "publish"} == {words[1] for words in commands}
    assert [] == [told for words in commands if (told := mistake(words))]
    named = {word for words in commands for word in words if word.endswith(".toml")}
    assert {SPEC} == named
    assert SPEC == in_image(SPEC)


def test_the_commands_of_its_head_exist() -> None:
    """What the comment at the top tells one to type."""
    head = FILE.read_text(encoding="utf-8").split("\nname:")[0]
    commands = list(commands_in(re.sub(r"^#\s*", "", head, flags=re.MULTILINE)))
    assert commands
    assert [] == [told for words in commands if (told := mistake(words))]


def test_flink_is_started_with_files_of_the_image() -> None:
    """The overlay that the variable names."""
    for role in ("jobmanager", "taskmanager"):
        overlay = SERVICES[role]["environment"]["TIDEGATE_FLINK_OVERLAY"]
        assert "deploy/docker/flink.yaml" == in_image(overlay)


def test_addresses_are_those_of_services() -> None:
    """In the overlay, in the spec, and in what the job is submitted to."""
    overlay = read_yaml(DEPLOY / "docker" / "flink.yaml")
    servers = load_spec(ROOT / SPEC).source.bootstrap_servers or ""
    submit = words_of(SERVICES["submit"], "command")
    hosts = {
        overlay["jobmanager.rpc.address"],
        overlay["rest.address"],
        overlay["high-availability.zookeeper.quorum"].partition(":")[0],
        servers.partition(":")[0],
        submit[submit.index("--cluster") + 1].partition(":")[0],
    }
    assert {"jobmanager", "zookeeper", "broker"} == hosts
    advertised = SERVICES["broker"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert f"INSIDE://{servers}" in advertised


def test_there_are_slots_for_the_job_also_without_one_taskmanager() -> None:
    """So the loss of one is a restart, not a halt."""
    words = words_of(SERVICES["submit"], "command")
    parallelism = int(words[words.index("--parallelism") + 1])
    slots = read_yaml(DEPLOY / "docker" / "flink.yaml")["taskmanager.numberOfTaskSlots"]
    assert parallelism <= slots * (SERVICES["taskmanager"]["deploy"]["replicas"] - 1)


def test_the_spec_is_that_of_the_example_but_for_its_broker() -> None:
    """Two files that must say the same."""
    example = load_spec(ROOT / "examples" / "shipments" / "shipments.toml")
    here = load_spec(ROOT / SPEC)
    assert example.decisions() == here.decisions()
    assert (example.name, example.sink, example.model) == (here.name, here.sink, here.model)
    assert example.source.topic == here.source.topic


def test_the_simulated_log_has_the_partitions_of_the_spec() -> None:
    """`publish` would refuse another number."""
    (simulate,) = (words for words in commands_of(SERVICES["generator"]) if "simulate" in words)
    partitions = int(simulate[simulate.index("--partitions") + 1])
    assert load_spec(ROOT / SPEC).source.partitions == partitions


def test_health_is_asked_by_roles_that_the_image_has() -> None:
    """Each service of Flink asks for itself."""
    for role in ("zookeeper", "jobmanager", "taskmanager"):
        assert ["CMD", "/docker-entrypoint.sh", "health", role] == SERVICES[role]["healthcheck"][
            "test"
        ]
        assert [role] == SERVICES[role]["command"]


def _megabytes(size: str) -> float:
    number, unit = size[:-1], size[-1].lower()
    return float(number) * {"m": 1, "g": 1024}[unit]


def _broker_jars() -> list[Path]:
    folder = DEPLOY / "local" / "kafka" / "lib"
    return [
        jar
        for pattern in ("kafka_*.jar", "kafka-*.jar")
        for jar in folder.glob(pattern)
        if "clients" not in jar.name
    ]
