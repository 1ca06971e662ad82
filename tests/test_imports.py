"""The rooms import one way, and the core is pure: read from the source, without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("schemas", "operators", "jobs", "replay")
#: What each room may import of the project, besides itself.
MAY_IMPORT = {
    "schemas": set[str](),
    "operators": {"schemas"},
    "replay": {"operators", "schemas"},
    "jobs": {"operators", "replay", "schemas"},
}
#: No engine, no broker, no clock, no network, no process in the core.
IMPURE = {
    "aiohttp",
    "asyncio",
    "confluent_kafka",
    "httpx",
    "jobs",
    "kafka",
    "multiprocessing",
    "prometheus_client",
    "py4j",
    "pyflink",
    "random",
    "replay",
    "requests",
    "sched",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "urllib",
}
CLOCKS = {"fromtimestamp", "now", "today", "utcnow", "perf_counter", "monotonic"}


def _sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import, line {node.lineno}"
            yield node.lineno, node.module or ""


def _found(room: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _sources(room)
        for line, name in _imports(ast.parse(path.read_text()))
        if name.partition(".")[0] in forbidden
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    """Imports point jobs, replay -> operators -> schemas, never back, not even inside functions."""
    assert _sources(room)
    forbidden = set(ROOMS) - MAY_IMPORT[room] - {room} | {"tests", "examples"}
    assert [] == _found(room, forbidden)


@pytest.mark.parametrize("room", ["operators", "schemas"])
def test_the_core_imports_nothing_that_could_ask_the_world(room: str) -> None:
    """No Flink, Kafka, clock or network can reach a decision."""
    assert [] == _found(room, IMPURE)


@pytest.mark.parametrize("room", ["operators", "schemas"])
def test_the_core_asks_no_clock(room: str) -> None:
    """The datetime module may convert, but not tell the time."""
    asked = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.attr}"
        for path in _sources(room)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS
    ]
    assert [] == asked


def test_an_import_the_wrong_way_would_be_found(tmp_path: Path) -> None:
    """The search sees imports inside functions and of submodules."""
    tree = ast.parse("def f():\n    from pyflink.table import X\n    import time as t\n")
    assert [(2, "pyflink.table"), (3, "time")] == list(_imports(tree))
