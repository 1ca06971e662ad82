"""What the measurements say: medians, ratios, the bars, as tables and as `bench.json`."""

import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from jobs.java import find_java
from schemas.run_record import versions
from tests.benchmarks.contender import Measured
from tests.benchmarks.input import HIDDEN, LATE, Facts, Settings

#: Measurements of each contender, one a repetition.
Found = dict[str, list[Measured]]

CEILING = "pass-through"
PER_EVENT = "per-event PyFlink"


class Spread(msgspec.Struct, frozen=True):
    """Median, least and greatest of the repetitions."""

    median: float
    min: float
    max: float


class Bar(msgspec.Struct, frozen=True):
    """A figure that must hold, and what was found.

    Attributes:
        what: the figure.
        needed: its bound.
        bound: whether the bound is the least or the most.
        found: the figure; None if a contender was not measured.
        met: whether it holds.
        net: the same figure by net runtime, for a ratio of jobs.
    """

    what: str
    needed: float
    bound: Literal["at least", "at most"]
    found: float | None
    met: bool | None
    net: float | None = None


def spread(values: list[float]) -> Spread:
    """Returns median, least and greatest."""
    return Spread(statistics.median(values), min(values), max(values))


def rates(measured: list[Measured], *, net: bool = False) -> Spread:
    """Returns the events a second, of the steady part or of the net runtime."""
    return spread([m.events / (m.seconds if net else m.steady_seconds) for m in measured])


def ratio(found: Found, contender: str, to: str, *, net: bool = False) -> float | None:
    """Returns how many times as fast a contender is, by medians; None if one was not measured."""
    if contender not in found or to not in found:
        return None
    return rates(found[contender], net=net).median / rates(found[to], net=net).median


def state_bytes(found: Found, late: str) -> float | None:
    """Returns the mean bytes of state of a key, its name included."""
    for measured in found.get(f"transition {late}", []):
        if measured.state_bytes:
            return measured.state_bytes.mean + measured.state_bytes.name
    return None


def bars(found: Found) -> list[Bar]:
    """Returns all bars with what was found."""
    all_bars = []
    for late in LATE:
        for to, needed, note in (
            (PER_EVENT, 6.0, ""),
            (CEILING, 1 / 4, ""),
            (CEILING, 1 / 3, ", the aim"),
        ):
            name = f"packed {late}"
            figures = [ratio(found, name, to, net=net) for net in (False, True)]
            all_bars.append(_bar(f"{name} / {to}{note}", needed, figures[0], net=figures[1]))
    for late, least in zip(LATE, (400_000.0, 200_000.0), strict=True):
        for name in (f"transition {late}", f"replay {late} .jsonl", f"replay {late} .parquet"):
            rate = rates(found[name]).median if name in found else None
            all_bars.append(_bar(f"{name}, events/s on one core", least, rate))
    for late in LATE:
        what = f"bytes of state a key at hidden {HIDDEN}, {late}"
        all_bars.append(_bar(what, 400.0, state_bytes(found, late), bound="at most"))
    return all_bars


def _bar(
    what: str,
    needed: float,
    found: float | None,
    *,
    bound: Literal["at least", "at most"] = "at least",
    net: float | None = None,
) -> Bar:
    met = None
    if found is not None:
        met = found >= needed if bound == "at least" else found <= needed
    return Bar(what, needed, bound, found, met, net)


def verdict(bar: Bar) -> str:
    """Returns whether a bar is met, and by how much, in words."""
    if bar.found is None:
        return "not measured"
    distance = abs(bar.found / bar.needed - 1)
    return f"{'met' if bar.met else 'missed'} by {distance:.0%}"


def machine() -> dict[str, Any]:
    """Returns what the figures depend on that is not ours."""
    java = find_java()
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {**versions(), "java": java.version},
    }


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    if told.exists():
        for line in told.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def as_json(
    found: Found,
    *,
    command: list[str],
    settings: Settings,
    facts: Facts,
    parallelism: int,
    on: dict[str, Any],
) -> bytes:
    """Returns everything as the text of `bench.json`."""
    told = {
        "command": command,
        "machine": on,
        "settings": {**asdict(settings), "parallelism": parallelism},
        "input": facts,
        "bars": bars(found),
        "contenders": {
            name: {
                "events_per_second": rates(measured),
                "events_per_second_net": rates(measured, net=True),
                "ratio_to_pass_through": ratio(found, name, CEILING),
                "ratio_to_per_event_pyflink": ratio(found, name, PER_EVENT),
                "repetitions": measured,
            }
            for name, measured in found.items()
        },
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


def show(found: Found, facts: Facts, console: Console) -> None:
    """Prints the figures, what became of the records, and the bars."""
    console.print(_figures(found))
    console.print(
        "events/s: median of the repetitions, once all tasks run (their Python workers answer); "
        "net: by the job's\nnet runtime, that start included. start: seconds from the start of the "
        "process to the job, then to its tasks."
    )
    fewer = [name for name, ms in found.items() if ms[0].events < facts.events]
    if fewer:
        console.print(
            f"{' and '.join(fewer)} took only the first {facts.few_events:,} of the "
            f"{facts.events:,} events: they are slow.\nThey know no watermark, no late events and "
            "no revisions, and write a shorter record."
        )
    console.print(_outcomes(found))
    console.print(_bars(found))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _figures(found: Found) -> Table:
    table = _table(
        "Throughput",
        *("contender", "events/s", "min to max", "net", "start", "x pass-through", "x per-event"),
    )
    for name, measured in found.items():
        steady, net = rates(measured), rates(measured, net=True)
        process = statistics.median(m.begun_at - m.started_at for m in measured)
        tasks = statistics.median(m.seconds - m.steady_seconds for m in measured)
        ratios = [ratio(found, name, to) for to in (CEILING, PER_EVENT)]
        table.add_row(
            name,
            f"{steady.median:,.0f}",
            f"{steady.min:,.0f} to {steady.max:,.0f}",
            f"{net.median:,.0f}",
            f"{process:.1f} + {tasks:.1f}" if tasks else f"{process:.1f}",
            *("-" if figure is None else f"{figure:.2f}" for figure in ratios),
        )
    return table


def _outcomes(found: Found) -> Table:
    table = _table("What became of the events", "policy", "outcome", "records", "share")
    for late in LATE:
        told = [m[0] for name, m in found.items() if m[0].counters and f" {late}" in name]
        if not told:
            continue
        for outcome, n in sorted(told[0].counters.items(), key=lambda item: -item[1]):
            table.add_row(late, outcome, f"{n:,}", f"{n / told[0].events:.2%}")
    return table


def _bars(found: Found) -> Table:
    table = _table("Bars", "figure", "needed", "found", "by net", "")
    for bar in bars(found):
        sign = ">=" if bar.bound == "at least" else "<="
        style = {True: "green", False: "red", None: ""}[bar.met]
        table.add_row(
            bar.what,
            f"{sign} {_number(bar.needed)}",
            _number(bar.found),
            _number(bar.net),
            verdict(bar),
            style=style,
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
