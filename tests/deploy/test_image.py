"""The image: what its build takes is there and pinned, and its entrypoint starts the roles."""

import fnmatch
import importlib.util
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyflink
import pytest

from jobs.java import NEEDED
from jobs.releases import releases_dir
from tests.deploy.flink_options import is_option
from tests.deploy.image import DOCKERFILE, dockerfile_environment, image_files, instructions
from tests.deploy.repository import (
    DEPLOY,
    ROOT,
    flink_version,
    pom_version,
    python_version,
    read_yaml,
)

DOCKER = DEPLOY / "docker"
ENTRYPOINT = DOCKER / "docker-entrypoint.sh"
OVERLAY = DOCKER / "flink.yaml"
#: Variables of others that no file here reads.
READ_ELSEWHERE = {
    "PATH": "the shell",
    "PIP_DISABLE_PIP_VERSION_CHECK": "pip",
    "PIP_NO_CACHE_DIR": "pip",
    "PIP_NO_INPUT": "pip",
    "PIP_ROOT_USER_ACTION": "pip",
}


def test_what_is_copied_is_in_the_repository_and_in_the_build() -> None:
    """Each source exists, and .dockerignore lets it in."""
    sources = [source for source, _ in image_files(every_stage=True)]
    assert "deploy/flink/config.yaml" in sources
    assert [] == [source for source in sources if not (ROOT / source).exists()]
    assert [] == [source for source in sources if _ignored(source)]


def test_nothing_else_is_let_into_the_build() -> None:
    """Each exception of .dockerignore is for something that is copied."""
    sources = [source for source, _ in image_files(every_stage=True)]
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert [] == [each for each in let_in if not any(_within(s, each) for s in sources)]


def test_the_base_images_are_pinned_and_of_the_python_of_the_project() -> None:
    """Every FROM has a full version; Python's is the one that pyproject.toml allows."""
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert [] == [base for base in bases if not re.search(r":\d+\.\d+\.\d+-", base)]
    pythons = {base for base in bases if base.startswith("python:")}
    assert 1 == len(pythons)
    assert pythons.pop().startswith(f"python:{python_version()}.")


def test_its_java_is_the_one_that_flink_needs() -> None:
    """The package, and where JAVA_HOME points."""
    assert f"openjdk-{NEEDED}-jre-headless" in DOCKERFILE.read_text(encoding="utf-8")
    assert f"/usr/lib/jvm/java-{NEEDED}-openjdk-amd64" == dockerfile_environment()["JAVA_HOME"]


def test_the_plugins_are_of_the_flink_version_of_the_wheel() -> None:
    """A plugin of another version is a class not found at the first checkpoint."""
    assert flink_version() == pom_version(DOCKER / "plugins" / "pom.xml", "flink-s3-fs-presto")


def test_every_variable_of_the_image_is_read_by_something() -> None:
    """By the entrypoint, by our code, by Flink's scripts, or by one that is named here."""
    unread = [
        name
        for name in dockerfile_environment(every_stage=True)
        if name not in READ_ELSEWHERE and not is_read_here(name)
    ]
    assert [] == unread


def test_releases_are_kept_where_the_image_makes_room() -> None:
    """The directory that the variable names is made, and belongs to the user."""
    made = releases_dir(dockerfile_environment())
    assert str(made) in DOCKERFILE.read_text(encoding="utf-8").split("mkdir -p /var/lib")[1]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A stand-in for the installed wheel: a wrong command must not write into the real one."""
    version = flink_version()
    package = tmp_path / "site" / "pyflink"
    for name in (
        "__init__.py",
        "bin/config.sh",
        "conf/log4j-console.properties",
        f"lib/flink-dist-{version}.jar",
        f"opt/flink-python-{version}.jar",
        f"plugins/metrics-prometheus/flink-metrics-prometheus-{version}.jar",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    return package


def test_flink_is_laid_out_as_its_scripts_expect(tmp_path: Path, wheel: Path) -> None:
    """The very command of the Dockerfile, elsewhere: jars are found by Flink's own way to look."""
    flink, version = tmp_path / "flink", flink_version()
    before = sorted(wheel.rglob("*"))
    (layout,) = (rest for name, rest in instructions() if name == "RUN" and "cp -rs" in rest)
    command = re.sub(r"(?<=\s)/opt/flink", str(flink), layout)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(wheel.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run(["bash", "-euc", command], env=environment, check=True)
    assert before == sorted(wheel.rglob("*"))
    assert (flink / "conf" / "log4j-console.properties").is_file()
    assert [f"flink-dist-{version}.jar", f"flink-python-{version}.jar"] == jars(flink / "lib")
    assert [f"flink-python-{version}.jar"] == jars(flink / "opt")
    assert [f"flink-metrics-prometheus-{version}.jar"] == jars(
        flink / "plugins" / "metrics-prometheus"
    )


def jars(folder: Path) -> list[str]:
    """What Flink's config.sh finds in a folder: it does not look into one that is itself a link."""
    done = subprocess.run(
        ["find", folder, "!", "-type", "d", "-name", "*.jar"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(Path(line).name for line in done.stdout.splitlines())


def test_it_does_not_run_as_root() -> None:
    """By number, because Kubernetes cannot tell from a name."""
    users = [rest for name, rest in instructions() if name == "USER"]
    assert ["9999:9999"] == users


def test_the_script_is_correct_bash() -> None:
    """As far as bash tells without running it."""
    done = subprocess.run(["bash", "-n", ENTRYPOINT], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert ENTRYPOINT.stat().st_mode & 0o111


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Flink whose scripts tell how they were called."""
    scripts = tmp_path / "flink" / "bin"
    scripts.mkdir(parents=True)
    for name in ("jobmanager", "taskmanager", "flink-console"):
        script = scripts / f"{name}.sh"
        script.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        script.chmod(0o755)
    return tmp_path / "flink"


def start(home: Path, *words: str, overlay: Path | None = None) -> tuple[int, list[str], str]:
    """Exit code, lines of output and errors of the entrypoint."""
    environment = {"PATH": "/usr/bin:/bin", "FLINK_HOME": str(home), "FLINK_CONF_DIR": "/conf"}
    if overlay:
        environment["TIDEGATE_FLINK_OVERLAY"] = str(overlay)
    done = subprocess.run(
        [ENTRYPOINT, *words], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("role", ["jobmanager", "taskmanager"])
def test_a_role_gets_the_overlay_and_then_its_arguments(home: Path, role: str) -> None:
    """Each as two words: Flink's scripts take `-Dkey=value` for a host name."""
    code, words, _ = start(home, role, "-D", "rest.port=1", overlay=OVERLAY)
    settings = {key: str(value) for key, value in read_yaml(OVERLAY).items()}
    options = [f"{key}={value}" for key, value in settings.items()] + ["rest.port=1"]
    assert 0 == code
    assert [role, "start-foreground"] == words[:2]
    assert [word for option in options for word in ("-D", option)] == words[2:]


def test_without_an_overlay_a_role_has_the_configuration_of_the_image_alone(home: Path) -> None:
    """As Kubernetes starts it."""
    assert (0, ["jobmanager", "start-foreground"], "") == start(home, "jobmanager")


def test_zookeeper_is_the_one_peer_of_its_configuration(home: Path) -> None:
    """The peer that zoo.cfg lists."""
    options = ["--zkConfigFile", "/conf/zoo.cfg", "--peerId", "1"]
    assert (0, ["flink-console", "zookeeper", *options], "") == start(home, "zookeeper")
    assert re.search(r"^server\.1=", (DOCKER / "zoo.cfg").read_text(encoding="utf-8"), re.MULTILINE)


def test_bash_passes_through_for_kubernetes(home: Path) -> None:
    """Flink's integration starts a pod with `bash -c` and a script on the PATH."""
    assert (0, ["kubernetes"], "") == start(home, "bash", "-c", "echo kubernetes")


def test_help_names_every_role(home: Path) -> None:
    """Also without an argument."""
    code, lines, _ = start(home)
    assert 0 == code
    roles = ("jobmanager", "taskmanager", "zookeeper", "health", "tidegate")
    assert [] == [role for role in roles if not any(role in line for line in lines)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["historyserver"], "no such role"),
        (["jobmanager", "-Drest.port=1"], "an argument is not understood"),
        (["taskmanager", "-D"], "an argument is not understood"),
        (["taskmanager", "localhost", "8081"], "an argument is not understood"),
        (["zookeeper", "2"], "zookeeper takes no argument"),
    ],
)
def test_what_is_not_understood_is_refused(home: Path, words: list[str], told: str) -> None:
    """With found, needed and remedy; nothing is started."""
    code, lines, errors = start(home, *words)
    assert (2, []) == (code, lines)
    assert told in errors
    assert ["found", "needed", "remedy"] == re.findall(r"^  (\w+):", errors, re.MULTILINE)


@pytest.mark.parametrize(
    "line", ["rest.port : 1", "rest:\n  port: 1", 'rest.port: "1"  # quoted', "- rest.port"]
)
def test_an_overlay_that_is_not_flat_is_refused(home: Path, tmp_path: Path, line: str) -> None:
    """Bash reads it, so what it cannot read must not pass in silence."""
    overlay = tmp_path / "flink.yaml"
    overlay.write_text(f"{line}\n")
    code, lines, errors = start(home, "jobmanager", overlay=overlay)
    assert (2, []) == (code, lines)
    assert "overlay" in errors


def test_an_overlay_that_is_not_there_is_refused(home: Path, tmp_path: Path) -> None:
    """A mount that was forgotten."""
    assert 2 == start(home, "jobmanager", overlay=tmp_path / "missing")[0]


def test_every_setting_of_the_overlay_is_one_of_flinks() -> None:
    """A misspelt one would be taken and ignored."""
    assert [] == [name for name in read_yaml(OVERLAY) if not is_option(name)]


def test_every_setting_of_the_base_configuration_is_one_of_flinks() -> None:
    """The same for the one that all deployments share."""
    base = flat(read_yaml(DEPLOY / "flink" / "config.yaml"))
    assert base
    assert [] == [name for name in base if not is_option(name)]


def test_the_reporter_whose_port_is_set_is_one_that_is_configured() -> None:
    """The name in the overlay is the name in the base."""
    base = flat(read_yaml(DEPLOY / "flink" / "config.yaml"))
    (port,) = (name for name in read_yaml(OVERLAY) if name.startswith("metrics.reporter."))
    assert f"{port.removesuffix('port')}factory.class" in base


@pytest.fixture
def health() -> ModuleType:
    """The module health.py, which no package holds."""
    found = importlib.util.spec_from_file_location("health", DOCKER / "health.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "healthy"), [(b"Mode: standalone\n", True), (b"not serving\n", False)]
)
def test_zookeeper_is_healthy_when_it_has_a_mode(
    health: ModuleType, monkeypatch: pytest.MonkeyPatch, answer: bytes, healthy: bool
) -> None:
    """One that waits for others answers, too, but without."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(health, "_ZOOKEEPER", server.getsockname())
        thread = threading.Thread(target=_answer_once, args=(server, answer))
        thread.start()
        monkeypatch.setattr(sys, "argv", ["health", "zookeeper"])
        assert (0 if healthy else 1) == health.main()
        thread.join()


def test_a_role_that_does_not_answer_is_not_healthy(
    health: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    monkeypatch.setitem(health._URLS, "jobmanager", f"http://127.0.0.1:{closed}/overview")
    monkeypatch.setattr(sys, "argv", ["health", "jobmanager"])
    assert 1 == health.main()


def test_a_role_that_health_does_not_know_is_refused(
    health: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of nothing must not be healthy."""
    monkeypatch.setattr(sys, "argv", ["health", "historyserver"])
    assert 2 == health.main()


def flat(settings: object, prefix: str = "") -> dict[str, object]:
    """Nested YAML as Flink reads it: names joined by dots."""
    if not isinstance(settings, dict):
        return {prefix: settings}
    return {
        name: value
        for key, inner in settings.items()
        for name, value in flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def is_read_here(name: str) -> bool:
    """Whether the entrypoint, our code or Flink's scripts hold the name of the variable."""
    return any(re.search(rf"\b{name}\b", text) for text in _readers())


def _readers() -> Iterator[str]:
    home = Path(pyflink.__file__).parent
    yield ENTRYPOINT.read_text(encoding="utf-8")
    for folder, pattern in ((ROOT / "jobs", "*.py"), (home / "bin", "*.sh"), (home / "conf", "*")):
        for path in folder.glob(pattern):
            yield path.read_text(encoding="utf-8")


def _answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(16)
        connection.sendall(answer)


def _ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out: the last line that matches it decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            plain = pattern.removeprefix("!")
            if _within(path, plain) or fnmatch.fnmatch(path, plain):
                ignored = not pattern.startswith("!")
    return ignored


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
