"""The runbook and the README of deploy/: their commands exist, each entry says all four things."""

import re
import shlex
from pathlib import Path

import pytest

from jobs.kafka_job import group_of
from schemas.spec import load_spec
from tests.deploy.flink_options import is_option
from tests.deploy.repository import DEPLOY, ROOT, commands_in, mistake, mistake_in_fragment

RUNBOOK = DEPLOY / "runbook.md"
PAGES = [RUNBOOK, DEPLOY / "README.md"]
TEXT = RUNBOOK.read_text(encoding="utf-8")
#: Headings of the second level, each with its text.
ENTRIES = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", TEXT, re.MULTILINE))
PARTS = ["Symptom", "Check", "Do", "Why"]
#: What an entry must be there for: one word of its heading.
NEEDED = [
    "savepoint", "Stop", "Upgrade", "Rescale", "partitions", "offset", "transactions", "disk",
    "storage", "hot", "rejected", "JobManager", "TaskManager", "broker", "quiet", "refused",
    "RocksDB", "Secrets",
]  # fmt: skip
#: Tools of a Kafka distribution that are called, with the options used; taken from their --help.
KAFKA_TOOLS = {
    "kafka-topics.sh": {"--bootstrap-server", "--describe", "--topic", "--unavailable-partitions"},
    "kafka-get-offsets.sh": {"--bootstrap-server", "--topic", "--time"},
    "kafka-consumer-groups.sh": {"--bootstrap-server", "--describe", "--group"},
    "kafka-transactions.sh": {"--bootstrap-server", "--topic", "--partition", "--start-offset"},
    "kafka-log-dirs.sh": {"--bootstrap-server", "--describe", "--topic-list"},
    "kafka-configs.sh": {
        "--bootstrap-server", "--alter", "--entity-type", "--entity-name", "--add-config",
    },
    "kafka-console-consumer.sh": {
        "--bootstrap-server", "--topic", "--from-beginning", "--timeout-ms",
    },
    "kafka-console-producer.sh": {"--bootstrap-server", "--topic", "--property"},
}  # fmt: skip
TRANSACTION_COMMANDS = {"list", "find-hanging", "describe-producers", "abort"}


def shell(text: str) -> str:
    """The shell blocks of a page, one after the other."""
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def inline(text: str) -> list[str]:
    """The code in its running text, outside of blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


@pytest.mark.parametrize("word", NEEDED)
def test_there_is_an_entry_for(word: str) -> None:
    """Each of the troubles that are known to come."""
    assert [heading for heading in ENTRIES if word.lower() in heading.lower()]


@pytest.mark.parametrize("heading", ENTRIES)
def test_an_entry_says_symptom_check_do_and_why(heading: str) -> None:
    """In this order, once each."""
    assert PARTS == re.findall(r"^\*\*(\w+)\.\*\*", ENTRIES[heading], re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    """As the command line reads it, with every option and what they need."""
    text = page.read_text(encoding="utf-8")
    commands = list(commands_in(shell(text)))
    assert commands
    assert [] == [(words, told) for words in commands if (told := mistake(words))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_prose_names_exists(page: Path) -> None:
    """In part: prose may leave out what a command needs."""
    text = page.read_text(encoding="utf-8")
    commands = [shlex.split(code) for code in inline(text) if code.startswith("tidegate ")]
    assert [] == [(words, told) for words in commands if (told := mistake_in_fragment(words))]


def test_the_tools_of_kafka_are_called_as_they_are() -> None:
    """By name and option; `list` and the like are commands of one of them."""
    called = [shlex.split(line) for line in shell(TEXT).splitlines() if line.startswith("kafka-")]
    assert KAFKA_TOOLS.keys() == {words[0] for words in called}
    for words in called:
        options = {word for word in words if word.startswith("--")}
        assert set() == options - KAFKA_TOOLS[words[0]], words
        if words[0] == "kafka-transactions.sh":
            assert words[3] in TRANSACTION_COMMANDS


def test_every_setting_that_is_named_is_one_of_flinks() -> None:
    """What `--set` is given, and what prose calls by name."""
    named = re.findall(r"--set ([\w.-]+)=", TEXT)
    assert named
    named += [
        code
        for code in inline(TEXT)
        if re.match(r"(taskmanager|state|execution|high-availability|io)\.[\w.-]+$", code)
    ]
    assert [] == [name for name in named if not is_option(name)]


def test_the_names_in_kafka_are_those_of_the_job() -> None:
    """The consumer group of the example, and the pattern of the transactional ids."""
    group = group_of(load_spec(ROOT / "examples" / "shipments" / "shipments.toml"))
    assert f"--group {group}" in TEXT
    assert group.replace("shipments", "<name>").replace("1", "<generation>") + "-<sink>" in TEXT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """To a file or directory of the repository."""
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in link]
    assert [] == [link for link in links if not (DEPLOY / link).exists()]
