"""Progress on long work, on stderr and only where a person looks: records, rate, time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

#: Called with the number of records done since the start.
ProgressCallback = Callable[[int], None]


class _RateColumn(ProgressColumn):
    """Records done and records a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        rate = f"{speed:,.0f}/s" if speed else "-/s"
        total = f" of {task.total:,.0f}" if task.total else ""
        return Text(f"{task.completed:,.0f}{total} records  {rate}", style="progress.data.speed")


@contextmanager
def progress(label: str, total: int | None, *, quiet: bool) -> Iterator[ProgressCallback]:
    """Shows progress while its block runs, and yields what to call with the records done so far.

    Args:
        label: what is being done.
        total: records there are, if that is known; without it there is no bar and no time left.
        quiet: show nothing; so it is too where stderr is no terminal.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _done: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(20), _RateColumn(Column(no_wrap=True)), TimeElapsedColumn()]
    if total:
        columns += [TextColumn("left"), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


class Work:
    """Long work on records: its progress while it runs, and one line when it is done.

    Args:
        label: what is being done.
        total: records there are, if that is known.
        quiet: say nothing.
    """

    def __init__(self, label: str, total: int | None, *, quiet: bool) -> None:
        self._quiet = quiet
        self._done = 0
        self._seconds = 0.0
        self._shown = progress(label, total, quiet=quiet)

    def __enter__(self) -> Self:
        self._show = self._shown.__enter__()
        self._started = time.monotonic()
        return self

    def __exit__(self, *error: Any) -> None:
        self._seconds = time.monotonic() - self._started
        self._shown.__exit__(*error)

    def advance(self, done: int) -> None:
        """Takes the number of records done since the start."""
        self._done = done
        self._show(done)

    def tell(self, outcome: str) -> None:
        """Says on stdout how much was done how fast, and what there is now."""
        if self._quiet:
            return
        rate = self._done / self._seconds if self._seconds else 0.0
        typer.echo(f"{self._done:,} records in {self._seconds:,.1f} s ({rate:,.0f}/s); {outcome}")
