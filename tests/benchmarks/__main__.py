"""The command line of the benchmarks: `python -m tests.benchmarks --help`."""

import argparse
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console

from tests.benchmarks import report
from tests.benchmarks.contender import ContenderError, contenders, measure
from tests.benchmarks.input import Input, Settings, make_input

#: Small enough to be over in a minute; its figures mean nothing.
QUICK = Settings(events=50_000, few_events=5_000, keys=500)


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints the tables, writes `bench.json`; returns the exit code."""
    options = _parser().parse_args(arguments)
    settings = QUICK
    if not options.quick:
        settings = Settings(
            options.events, options.few_events, options.keys, disorder=options.disorder
        )
    repetitions = 1 if options.quick else options.repetitions
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob("work-*"):  # by a run that was killed
        shutil.rmtree(left)
    on = report.machine()
    names = [name for name in contenders() if not options.only or name in options.only]
    console, said = Console(width=110), Console(stderr=True, highlight=False)
    said.print(
        f"{len(names)} contenders, {repetitions} times in turn, on {on['cores']} cores "
        f"(load before: {on['load_before']}; the quieter, the truer)"
    )
    source = make_input(settings, out)
    try:
        found = _measure_all(names, repetitions, source, options.parallelism, out, said)
        _check_agreement(found)
    except ContenderError as error:
        said.print(f"failed: {error}", style="bold red")
        return 1
    report.show(found, source.facts, console)
    if options.quick:
        console.print(
            "Quick: the figures above are of too few events and mean nothing.", style="bold"
        )
    text = report.as_json(
        found,
        command=["python", "-m", "tests.benchmarks", *(arguments or sys.argv[1:])],
        settings=settings,
        facts=source.facts,
        parallelism=options.parallelism,
        on=on,
    )
    (out / "bench.json").write_bytes(text)
    console.print(f"all of it: {out / 'bench.json'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measures the job beside its peers, in one run on one simulated log.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = Settings()
    add = parser.add_argument
    add("--events", type=int, default=default.events, help="records of the log")
    add("--few-events", type=int, default=default.few_events, help="records for the slow ones")
    add("--keys", type=int, default=default.keys, help="stream keys")
    add("--disorder", type=float, default=default.disorder, help="share of events out of order")
    add("--repetitions", type=int, default=3, help="measurements of each contender, in turn")
    add("--parallelism", type=int, default=1, help="subtasks of each operator of the Flink jobs")
    add("--out", type=Path, default=Path("out/bench"), help="where input, log and figures go")
    add("--only", action="append", choices=list(contenders()), help="only this one; repeatable")
    add("--quick", action="store_true", help="few events, once: does it still work?")
    return parser


def _measure_all(
    names: list[str], repetitions: int, source: Input, parallelism: int, out: Path, said: Console
) -> report.Found:
    """Measures all contenders in turn, again and again, so that a slow minute hits them all."""
    found: report.Found = defaultdict(list)
    for repetition in range(1, repetitions + 1):
        for name in names:
            measured = measure(name, source, parallelism, out / "bench.log")
            found[name].append(measured)
            rate = measured.events / measured.steady_seconds
            said.print(f"{repetition}/{repetitions}  {name:26} {rate:>10,.0f} events/s")
    return dict(found)


def _check_agreement(found: report.Found) -> None:
    """Whoever tells what became of the records under a policy must tell the same.

    Raises:
        ContenderError: two contenders do not.
    """
    told: dict[str, tuple[str, dict[str, int]]] = {}
    for name, all_measured in found.items():
        for measured in all_measured:
            if not measured.counters:
                continue
            late = name.split()[1]
            first, counters = told.setdefault(late, (name, measured.counters))
            if counters != measured.counters:
                raise ContenderError(
                    f"{first} and {name} disagree: {counters}, {measured.counters}"
                )


if __name__ == "__main__":
    sys.exit(main())
