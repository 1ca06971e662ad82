"""The pages say what is so: their commands run, their tables list what the code has.

The commands run in a directory of their own, which has the repository's files by symlink, so that
what they write lands there.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from jobs.cli import app
from operators.policy import Reason
from schemas.spec import Feature
from tests.deploy.repository import mistake

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "examples").glob("*/README.md")))
#: Commands that take too long, or install; that they exist is tested.
NOT_RUN = {
    "make bench",
    "make check",
    "make test",
    "make setup-train",
    ".venv/bin/python -m examples.flights.build",
    # On a broker and a cluster, by tests/deploy and tests/cluster.
    "make up",
    "make down",
    "tidegate status examples/shipments/shipments.toml",
    "tidegate savepoint examples/shipments/shipments.toml",
    "tidegate upgrade examples/shipments/shipments.toml --parallelism 2",
    "tidegate stop examples/shipments/shipments.toml",
    "tidegate topics my.toml",
    "tidegate check my.toml --cluster jobmanager:8081",
    "tidegate submit my.toml --cluster jobmanager:8081 --parallelism 4 --wait",
}
#: The environment is there already: it is what runs this.
MAKE = ("make", "--no-print-directory", "--old-file=.venv/.installed")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"

    def commands(self) -> list[str]:
        """The commands of a shell block, without their comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [shlex.join(each) for each in words if each]


def _blocks(language: str) -> list[Block]:
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        Block(page, found[1], found[2])
        for page in PAGES
        for found in fenced.finditer(page.read_text(encoding="utf-8"))
        if found[1] == language
    ]


SHELL, PYTHON = _blocks("bash"), _blocks("python")
COMMANDS = list(dict.fromkeys(command for block in SHELL for command in block.commands()))


class Workspace:
    """Runs each command of the pages once, in the order in which they tell them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for entry in ROOT.iterdir():
            if entry.name != "out" and not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry)
        (folder / ".venv").symlink_to(sys.prefix)
        # A make that runs the tests must not speak to one that they run.
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        self._environment = outer | {
            "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{outer['PATH']}",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONIOENCODING": "utf-8",
        }
        self.ran: dict[str, subprocess.CompletedProcess[str]] = {}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command, unless it ran."""
        if command not in self.ran:
            words = shlex.split(command)
            self.ran[command] = self.call([*MAKE, *words[1:]] if words[0] == "make" else words)
        return self.ran[command]

    def call(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command, given as its words."""
        return subprocess.run(
            words,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The workspace, when every command of the pages has run."""
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    for command in COMMANDS:
        if command not in NOT_RUN:
            workspace.run(command)
    return workspace


@pytest.mark.slow
@pytest.mark.parametrize("block", SHELL, ids=str)
def test_every_command_of_the_pages_runs(workspace: Workspace, block: Block) -> None:
    """As it stands there, from the root of the repository."""
    assert block.commands()
    for command in block.commands():
        if command not in NOT_RUN:
            done = workspace.run(command)
            assert 0 == done.returncode, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_python_of_the_pages_runs(workspace: Workspace, block: Block) -> None:
    """After the commands, whose outputs it may read."""
    done = workspace.call([sys.executable, "-W", "error", "-c", block.text])
    assert 0 == done.returncode, done.stderr


@pytest.mark.slow
def test_the_summary_shown_is_what_the_run_prints(workspace: Workspace) -> None:
    """The table in README, to the character; no warning noise before or after it."""
    (shown,) = (block.text for block in _blocks("text") if block.text.startswith("flights: flink"))
    done = workspace.run("make run")
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert shown.rstrip() in printed
    assert "warn" not in (done.stdout + done.stderr).lower()


def test_what_is_not_run_is_told_and_exists(tmp_path: Path) -> None:
    """Each exception stands in a page, and names a target of make or a module."""
    assert set(COMMANDS) >= NOT_RUN
    workspace = Workspace(tmp_path)
    for command in NOT_RUN:
        words = shlex.split(command)
        if words[0] == "make":
            assert 0 == workspace.call([*MAKE, "--dry-run", *words[1:]]).returncode, command
        elif words[0] == "tidegate":
            assert not mistake(words), command
        else:
            assert importlib.util.find_spec(words[words.index("-m") + 1]), command


def test_the_reject_reasons_told_are_those_of_the_policy() -> None:
    """In the order of the checks."""
    assert [reason.value for reason in Reason] == _first_column("reason")


def test_the_kinds_of_features_told_are_those_of_the_spec() -> None:
    """In the order in which the spec declares them."""
    kinds = [feature.__struct_config__.tag for feature in get_args(Feature)]
    assert kinds == _first_column("kind")


def test_the_commands_told_are_those_of_the_program() -> None:
    """With the groups written out."""
    told = [re.findall(r"^(?:[a-z]+ ?)+", cell)[0].split() for cell in _first_column("command")]
    expected = sorted(_command_names(typer.main.get_command(app), ["tidegate"]))
    assert expected == sorted(told)


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """To a file or directory of the repository."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [link.partition("#")[0] for link in links if "://" not in link]
    assert [] == [target for target in targets if not (page.parent / target).exists()]


def _first_column(heading: str) -> list[str]:
    """The code in the first column of the table of README that begins with this heading."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [row.split("`")[1] for row in table.splitlines()]


def _command_names(command: Any, words: list[str]) -> Iterator[list[str]]:
    children = getattr(command, "commands", None)
    if not children:
        yield words
        return
    for name, child in children.items():
        yield from _command_names(child, [*words, name])
