"""What the deployment files are held against: the repository's own pins, paths and commands."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import typer
import typer.exceptions
import yaml

from jobs.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMAS = Path(__file__).parent / "schemas"

_POM = "{http://maven.apache.org/POM/4.0.0}"


def read_yaml(path: Path) -> Any:
    """The one document of a YAML file, repeated keys refused."""
    return yaml.load(path.read_text(encoding="utf-8"), _NoRepeats)  # noqa: S506 (a SafeLoader)


class _NoRepeats(yaml.SafeLoader):
    """Plain YAML; a key that is there twice is an error, not the last one's."""


def _mapping(loader: _NoRepeats, node: yaml.MappingNode) -> dict[Any, Any]:
    own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    twice = {key for key in own if own.count(key) > 1}
    if twice:
        raise yaml.constructor.ConstructorError(
            None, None, f"twice: {', '.join(sorted(twice))}", node.start_mark
        )
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_NoRepeats.add_constructor("tag:yaml.org,2002:map", _mapping)


@cache
def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def tidegate_image() -> str:
    """The image of this version."""
    return f"tidegate:{project()['version']}"


def flink_version() -> str:
    """The Flink that the project is pinned to."""
    (pin,) = (
        each.removeprefix("apache-flink==")
        for each in project()["optional-dependencies"]["cluster"]
        if each.startswith("apache-flink==")
    )
    return str(pin)


def python_version() -> str:
    """The one minor version of Python that the project allows."""
    found = re.search(r">=(\d+\.\d+)", project()["requires-python"])
    assert found
    return found[1]


def pom_version(pom: Path, artifact: str) -> str:
    """The version of a dependency in a pom, its properties put in."""
    root = ElementTree.parse(pom).getroot()  # noqa: S314 (our own file)
    properties = {
        each.tag.removeprefix(_POM): (each.text or "").strip()
        for each in root.findall(f"{_POM}properties/*")
    }
    (version,) = (
        (each.findtext(f"{_POM}version") or "").strip()
        for each in root.iter(f"{_POM}dependency")
        if each.findtext(f"{_POM}artifactId") == artifact
    )
    return re.sub(r"\$\{([^}]+)\}", lambda name: properties[name[1]], version)


def kafka_version() -> str:
    """The broker that the tests run against."""
    return pom_version(DEPLOY / "local" / "kafka" / "pom.xml", "kafka_2.13")


def commands_in(script: str) -> Iterator[list[str]]:
    """The words of each `tidegate` command of a shell script, however it is called."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:3] == ["docker", "compose", "run"] and "tidegate" in words:
            words = words[words.index("tidegate") :]
        if words[:1] == ["tidegate"]:
            stop = next((i for i, word in enumerate(words) if word in "|>&&;"), len(words))
            yield words[:stop]


def mistake(words: list[str]) -> str | None:
    """What the command line says against these words, but for what files and servers would."""
    command, rest = _descend(words)
    if getattr(command, "commands", None):
        return f"no command {rest[0]!r}" if rest else "no command"
    try:
        command.make_context(command.name, list(rest), parent=typer.Context(_program()))
    except typer.exceptions.TyperException as error:
        return error.format_message()
    return None


def mistake_in_fragment(words: list[str]) -> str | None:
    """The same for a command as prose names it: each option exists, none need be given."""
    command, rest = _descend(words)
    if getattr(command, "commands", None):
        return f"no command {rest[0]!r}" if rest else None
    known = {name for parameter in command.params for name in parameter.opts}
    unknown = [word for word in rest if word.startswith("-") and word not in known]
    return f"no option {', '.join(unknown)}" if unknown else None


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def _descend(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words lead to, and those left."""
    command, rest = _program(), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest
