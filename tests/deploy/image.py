"""Reads the Dockerfile: its instructions, what it copies from the repository, its variables."""

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.deploy.repository import DEPLOY

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def instructions() -> Iterator[tuple[str, str]]:
    """Name and arguments of each instruction, continued lines joined."""
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def image_files(*, every_stage: bool = False) -> Iterator[tuple[str, PurePosixPath]]:
    """Each file or directory that is copied from the repository, and where it lies in the image.

    Args:
        every_stage: those of the stages before the last one, too, wherever they lie there.
    """
    found: list[tuple[str, PurePosixPath]] = []
    for name, rest in instructions():
        if name == "FROM" and not every_stage:
            found = []
        words = [word for word in shlex.split(rest) if not word.startswith("--chmod")]
        if name == "COPY" and not words[0].startswith("--from"):
            *sources, target = words
            for source in sources:
                into = target.endswith("/") or len(sources) > 1
                where = PurePosixPath(target)
                found.append((source, where / PurePosixPath(source).name if into else where))
    yield from found


def in_image(path: str, working_directory: str = "/opt/tidegate") -> str | None:
    """The path in the repository of what lies at this path of the image; None without one."""
    wanted = PurePosixPath(working_directory) / path
    for source, where in image_files():
        if wanted == where or where in wanted.parents:
            inside = wanted.relative_to(where)
            candidate = PurePosixPath(source) / inside
            if (DEPLOY.parent / candidate).exists():
                return str(candidate)
    return None


def dockerfile_environment(*, every_stage: bool = False) -> dict[str, str]:
    """The variables that ENV sets, in the last stage or in all of them."""
    environment: dict[str, str] = {}
    for name, rest in instructions():
        if name == "FROM" and not every_stage:
            environment = {}
        if name == "ENV":
            environment |= dict(re.findall(r"(\w+)=(\S+)", rest))
    return environment


def directories_made() -> set[str]:
    """The directories that the last stage makes for its user."""
    made: set[str] = set()
    for name, rest in instructions():
        if name == "FROM":
            made = set()
        if name == "RUN":
            made |= {
                word
                for group in re.findall(r"mkdir -p ([^&]+)", rest)
                for word in group.split()
                if word.startswith("/")
            }
    return made
