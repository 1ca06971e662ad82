"""The command `tidegate`: what it reads, what it writes, and how it ends.

Each command parses, checks what only a command line can get wrong, and calls one function that does
the work; that is imported when it is needed, so that help is quick and works without Flink. Exit
codes and error messages are those of `jobs.exits`.
"""

import shutil
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from jobs.exits import UsageError, told_plainly
from jobs.findings import PreflightError
from jobs.progress import Work

if TYPE_CHECKING:
    from jobs.kafka_job import Start
    from operators.scorer import Scorer
    from schemas.spec import Spec

_EXITS = (
    "Exit codes: 0 done; 1 it ran and failed; 2 wrong command line, or outputs already there; "
    "3 the spec, model, log or state is refused; 130 stopped."
)
_OUTPUTS = ("predictions", "rejects", "run.json")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog=_EXITS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
simulate = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Make a recorded log of any size."
)
app.add_typer(simulate, name="simulate")

SpecArgument = Annotated[
    Path, typer.Argument(metavar="SPEC", help="The job spec, a TOML file.", show_default=False)
]
LogOption = Annotated[
    Path,
    typer.Option(
        "--log",
        metavar="PATH",
        help="The recorded log: .jsonl, .jsonl.gz, .parquet, or a directory of them.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where predictions/, rejects/ and run.json go.",
        show_default=False,
    ),
]
OpenEndOption = Annotated[
    bool,
    typer.Option(
        "--open-end",
        help="The log is a slice: at its end, keep held events back (emit = on_watermark).",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the outputs of an earlier run in DIR.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no closing lines; errors still.")
]
ParallelismOption = Annotated[
    int, typer.Option(min=1, help="Subtasks of the scoring operator; at most the partitions.")
]
StartOption = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="WHERE",
        help="Where a job without state begins: earliest (default), latest, or an instant (ISO "
        "8601 with an offset, or milliseconds since the epoch).",
    ),
]
SavepointOption = Annotated[
    str | None,
    typer.Option(
        "--savepoint",
        metavar="URI",
        help="The savepoint or retained checkpoint to go on from.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A Flink setting; may be repeated."),
]


class PartitionerName(StrEnum):
    """How producers choose a partition."""

    MURMUR2 = "murmur2"
    CRC32 = "crc32"


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"tidegate {version('tidegate')}")
        except PackageNotFoundError:
            typer.echo("tidegate, not installed: run from its source tree")
        raise typer.Exit


@app.callback()
def main(
    _version_asked: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A recurrent model as a keyed Apache Flink operator.

    One log and one spec give one answer: the same prediction records on Flink (`run`) and
    in-process (`replay`), whatever the batches, the parallelism and the crashes on the way.
    """


@app.command(epilog=_EXITS)
def check(
    spec: SpecArgument,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="PATH",
            help="Read this recorded log from end to end, in place of looking at the topics.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Look at the spec and its models alone; needs no Flink."),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="HOST:PORT", help="Look at this cluster, too."),
    ] = None,
    savepoint: SavepointOption = None,
    start: StartOption = None,
    parallelism: ParallelismOption = 1,
    quiet: QuietOption = False,
) -> None:
    """Check everything that a job needs, and show what it would do. Writes nothing.

    The spec; the model, run on probes (inputs, states, shapes, the same numbers in any batch);
    Java, Flink and the Kafka connector; the brokers, the topics, their partitions, retention and
    transactions; the generation against the sink; a cluster and a savepoint, if named. Each check
    that fails says what was found, what is needed, and what to do. Exits with 3 if any does.

    Example: `tidegate check examples/flights/flights.toml --cluster localhost:8081`
    """
    with told_plainly():
        from jobs.check import show_log, show_spec
        from operators.scorer import Scorer
        from schemas.spec import load_spec

        if (offline or log is not None) and (cluster or savepoint or start):
            raise UsageError(
                "--cluster, --savepoint and --start are about live topics, which --offline and "
                "--log leave out"
            )
        loaded = load_spec(spec)
        check_parallelism(parallelism, loaded)
        begin = parsed_start(start)
        scorer = Scorer(loaded)
        console = Console(quiet=quiet)
        show_spec(scorer, console)
        if log is not None:
            show_log(loaded, log, console, quiet=quiet)
        if offline or log is not None:
            return
        from jobs.findings import Verdict, findings_table
        from jobs.preflight import preflight

        findings = preflight(
            scorer, cluster=cluster, savepoint=savepoint, start=begin, parallelism=parallelism
        )
        console.print(findings_table(findings))
        failed = [finding.check for finding in findings if finding.verdict is Verdict.FAILED]
        if failed:
            raise PreflightError(f"{len(failed)} checks failed: {', '.join(failed)}")


@app.command(epilog=_EXITS)
def run(
    spec: SpecArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Of a log: where predictions/, rejects/ and run.json go. Of topics: where Flink's "
            "log and the job's state lie.",
            show_default=False,
        ),
    ],
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="PATH",
            help="The recorded log: .jsonl, .jsonl.gz, .parquet, or a directory of them.",
        ),
    ] = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Score the spec's live topics, until stopped.")
    ] = False,
    parallelism: ParallelismOption = 1,
    open_end: OpenEndOption = False,
    start: StartOption = None,
    settings: SettingsOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a recorded log, or live topics, with a Flink embedded in this process.

    Of a log: reads SPEC, its model and the log; writes `predictions/` and `rejects/` (JSON Lines)
    and `run.json` (digests, versions, counts) into DIR. Of topics (`--kafka`): reads and writes the
    topics that SPEC names until Ctrl-C, which stops with a savepoint in DIR; the same command goes
    on from there. Needs the extra `cluster` and Java 17; topics need the Kafka connector, too.

    Examples: `tidegate run examples/flights/flights.toml --log examples/flights/week.jsonl.gz
    --out out/flights`; `tidegate run examples/flights/flights.toml --kafka --out out/live`
    """
    with told_plainly():
        if (log is None) != kafka:
            raise UsageError("name a recorded log with --log, or live topics with --kafka")
        if log is None:
            for name, given in (("--open-end", open_end), ("--overwrite", overwrite)):
                if given:
                    raise UsageError(f"{name} is for a recorded log, not with --kafka")
            from jobs.cli_cluster import run_kafka

            run_kafka(spec, out, parallelism, start, settings, quiet=quiet)
            return
        if start is not None:
            raise UsageError("--start is for live topics; a recorded log is read from its begin")
        scorer = _load(spec, log)
        check_parallelism(parallelism, scorer.spec)
        from jobs.report import record_run, show_run
        from jobs.run import run_log
        from schemas.log import rows_in

        _make_room(out, overwrite=overwrite)
        with Work("scoring on Flink", rows_in(log), quiet=quiet) as work:
            result = run_log(
                spec,
                log,
                out,
                parallelism=parallelism,
                open_end=open_end,
                settings=parsed_settings(settings),
                progress=work.advance,
            )
        recorded = record_run(
            scorer,
            log,
            out,
            engine="flink",
            settings={"parallelism": parallelism, "open_end": open_end, "java": result.java},
            counters=result.counters,
            by_partition=result.by_partition,
            seconds=result.flink_seconds,
        )
        show_run(recorded, out, Console(quiet=quiet))


@app.command(epilog=_EXITS)
def replay(
    spec: SpecArgument,
    log: LogOption,
    out: OutOption,
    batch_rows: Annotated[
        int, typer.Option(min=1, help="Records of a partition taken at once; changes no record.")
    ] = 16_384,
    open_end: OpenEndOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score a recorded log in this process, without Flink.

    Reads and writes what `run` does, and gives the same records, byte for byte after sorting.

    Example: `tidegate replay examples/flights/flights.toml --log examples/flights/week.jsonl.gz
    --out out/replay`
    """
    with told_plainly():
        scorer = _load(spec, log)
        from jobs.report import record_run, show_run
        from replay.drive import replay_log
        from schemas.log import rows_in

        _make_room(out, overwrite=overwrite)
        with Work("replaying", rows_in(log), quiet=quiet) as work:
            result = replay_log(
                scorer.spec,
                log,
                out,
                batch_rows=batch_rows,
                open_end=open_end,
                progress=work.advance,
            )
        recorded = record_run(
            scorer,
            log,
            out,
            engine="replay",
            settings={"batch_rows": batch_rows, "open_end": open_end},
            counters=result.counters,
            by_partition=result.by_partition,
            seconds=result.seconds,
        )
        show_run(recorded, out, Console(quiet=quiet))


@simulate.command("shipments", epilog=_EXITS)
def simulate_shipments(
    events: Annotated[int, typer.Option(min=1, help="Records, duplicates included.")],
    keys: Annotated[int, typer.Option(min=1, help="Shipments.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="PATH", help="The log: .jsonl, .jsonl.gz or .parquet by its name."
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same log.")] = 0,
    disorder: Annotated[
        float, typer.Option(help="Share of events behind a later one of their own shipment.")
    ] = 0.05,
    late: Annotated[
        float, typer.Option(help="Share of events behind the bound; part of the disorder.")
    ] = 0.02,
    duplicates: Annotated[float, typer.Option(help="Share of records sent again.")] = 0.01,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic.")] = 4,
    partitioner: Annotated[
        PartitionerName, typer.Option(help="How producers choose a partition.")
    ] = PartitionerName.MURMUR2,
    out_of_orderness_minutes: Annotated[
        float, typer.Option(help="The bound that the spec sets; `late` means beyond it.")
    ] = 60.0,
    heartbeat_minutes: Annotated[
        float, typer.Option(help="Time between heartbeats of each partition; 0: none.")
    ] = 0.0,
    quiet: QuietOption = False,
) -> None:
    """Simulate shipments: scans along lanes, late uploads, hot lanes, duplicates, deliveries.

    Writes the log and its manifest to PATH, for `examples/shipments/shipments.toml`. The shares
    are met exactly; 10M events need about a gigabyte of memory.

    Example: `tidegate simulate shipments --events 200000 --keys 2000 --out out/shipments.jsonl`
    """
    with told_plainly():
        from jobs.simulate import Settings, SettingsError, write_shipments

        try:
            settings = Settings(
                events=events,
                keys=keys,
                seed=seed,
                partitions=partitions,
                partitioner=partitioner.value,
                disorder=disorder,
                late=late,
                duplicates=duplicates,
                out_of_orderness_ms=round(out_of_orderness_minutes * 60_000),
                heartbeat_ms=round(heartbeat_minutes * 60_000) or None,
            )
            with Work("simulating", events, quiet=quiet) as work:
                write_shipments(settings, out, work.advance)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        work.tell(f"the log is {out}")


@app.command(epilog=_EXITS)
def schemas(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where they are written.")],
) -> None:
    """Write the JSON Schemas of the job spec and of every record.

    Editors use that of the spec to complete and check it; consumers use those of the records.

    Example: `tidegate schemas --out schemas`
    """
    with told_plainly():
        from schemas.generate import write_schemas

        for path in write_schemas(out):
            typer.echo(path)


def _load(spec: Path, log: Path) -> "Scorer":
    """Checks spec, model and log, before anything is written or removed."""
    from operators.scorer import Scorer
    from schemas.log import read_log
    from schemas.spec import load_spec

    loaded = load_spec(spec)
    read_log(log, partitions=loaded.source.partitions)  # finds the files, checks their manifests
    return Scorer(loaded)


def check_parallelism(parallelism: int, spec: "Spec") -> None:
    """Refuses more subtasks than there are partitions."""
    if parallelism > spec.source.partitions:
        raise UsageError(
            f"--parallelism {parallelism} is more than the {spec.source.partitions} "
            "partitions of the source; subtasks beyond them would have nothing to do"
        )


def parsed_settings(given: list[str] | None) -> dict[str, str]:
    """Returns `--set` options as a mapping."""
    settings = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise UsageError(f"--set {each}: give KEY=VALUE, such as parallelism.default=2")
        settings[name.strip()] = value
    return settings


def parsed_start(given: str | None) -> "Start | None":
    """Returns `--start` as a position."""
    from jobs.kafka_job import Start, StartError

    try:
        return Start.parse(given) if given else None
    except StartError as error:
        raise UsageError(f"--start: {error}") from None


def _make_room(out: Path, *, overwrite: bool) -> None:
    """Sees to it that no outputs of an earlier run lie where new ones go."""
    there = [out / name for name in _OUTPUTS if (out / name).exists()]
    if there and not overwrite:
        raise UsageError(
            f"{out} holds the outputs of an earlier run\n"
            f"  found:  {', '.join(path.name for path in there)}\n"
            "  needed: a directory without them\n"
            "  remedy: name another --out, or add --overwrite to replace them"
        )
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; --out names a directory")
    for path in there:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


import jobs.cli_cluster  # noqa: E402 (its commands join the app)

if __name__ == "__main__":
    # As a module this is `__main__`, and the commands above have joined the app of `jobs.cli`.
    jobs.cli.app()
