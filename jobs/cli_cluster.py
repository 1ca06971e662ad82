"""The commands of `tidegate` that need Kafka or a cluster; like the others, they only parse.

Every command that starts or replaces a job runs the preflight first, and starts nothing that it
refuses.
"""

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from jobs.cli import (
    _EXITS,
    ParallelismOption,
    QuietOption,
    SavepointOption,
    SettingsOption,
    SpecArgument,
    StartOption,
    app,
    check_parallelism,
    parsed_settings,
    parsed_start,
)
from jobs.exits import UsageError, told_plainly
from jobs.progress import Work

if TYPE_CHECKING:
    from jobs.kafka_job import Start
    from operators.scorer import Scorer

ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="HOST:PORT",
        envvar="TIDEGATE_CLUSTER",
        help="The REST interface of the cluster's JobManager.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds that a savepoint may take.")
]
DirectoryOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URI",
        help="Where the savepoint goes; without it, the cluster's `execution.checkpointing."
        "savepoint-dir`.",
    ),
]
_CLUSTER = "localhost:8081"


@app.command(epilog=_EXITS)
def submit(
    spec: SpecArgument,
    cluster: ClusterOption = _CLUSTER,
    parallelism: ParallelismOption = 1,
    savepoint: SavepointOption = None,
    start: StartOption = None,
    settings: SettingsOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it runs and has completed a checkpoint.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Start the job of a spec on a cluster: ships the code, the models and the spec.

    Prints the job's id and the address of its page. The release stays in the user's state directory
    (or TIDEGATE_RELEASES), for `tidegate upgrade` to put back.

    Example: `tidegate submit examples/flights/flights.toml --cluster localhost:8081`
    """
    with told_plainly():
        from jobs import deployment
        from jobs.flink_rest import Cluster

        if savepoint and start:
            raise UsageError("--start is where a job without state begins; it has --savepoint")
        scorer, begin = _checked(spec, cluster, parallelism, savepoint, start, quiet=quiet)
        say = _sayer(quiet)
        at = Cluster(cluster)
        deployed = deployment.submit(
            scorer,
            at,
            parallelism=parallelism,
            savepoint=savepoint,
            start=begin,
            settings=parsed_settings(settings),
            say=say,
        )
        say(f"submitted {scorer.spec.name}")
        typer.echo(f"job {deployed.job_id}\npage {at.url}/#/job/running/{deployed.job_id}")
        if wait:
            started = time.monotonic()
            deployment.wait_healthy(at, deployed)
            say(f"runs, first checkpoint after {time.monotonic() - started:.1f} s")


@app.command(epilog=_EXITS)
def status(spec: SpecArgument, cluster: ClusterOption = _CLUSTER) -> None:
    """Show how the job of a spec does on a cluster: state, restarts, checkpoints, last failure.

    Example: `tidegate status examples/flights/flights.toml --cluster localhost:8081`
    """
    with told_plainly():
        from jobs.deployment import need_job
        from jobs.flink_failure import summarize
        from jobs.flink_rest import Cluster
        from schemas.spec import load_spec

        at = Cluster(cluster)
        job = need_job(at, load_spec(spec).name)
        job_id = job["jid"]
        parameters, checkpoints = at.parameters(job_id), at.checkpoints(job_id)
        latest = (checkpoints.get("latest") or {}).get("completed")
        counts = checkpoints.get("counts", {})
        scored = at.total(job_id, "records_scored")
        table = Table(title=f"{job['name']}: {job['state']}", title_justify="left")
        table.show_header = False
        rows = [
            ("job", job_id),
            ("page", f"{at.url}/#/job/running/{job_id}"),
            ("release", parameters.get("tidegate.release", "of another tool")),
            ("generation", parameters.get("tidegate.generation", "?")),
            ("spec", parameters.get("tidegate.spec_digest", "?")),
            ("models", parameters.get("tidegate.models", "?")),
            ("parallelism", parameters.get("tidegate.parallelism", "?")),
            ("runs for", str(dt.timedelta(seconds=job["duration"] // 1000))),
            ("restarts", str(at.restarts(job_id))),
            (
                "records scored",
                "not told yet" if scored is None else f"{scored:,.0f} since the last start",
            ),
            ("checkpoints", f"{counts.get('completed', 0)}, {counts.get('failed', 0)} failed"),
        ]
        if latest:
            age = time.time() - latest["latest_ack_timestamp"] / 1000
            rows.append(
                (
                    "last checkpoint",
                    f"{latest['state_size'] / 1e6:,.1f} MB in "
                    f"{latest['end_to_end_duration'] / 1000:.1f} s, {age:.0f} s ago: "
                    f"{latest['external_path']}",
                )
            )
        trace = at.failure(job_id)
        if trace:
            rows.append(("last failure", summarize(trace)))
        for name, value in rows:
            table.add_row(name, value)
        Console(soft_wrap=True, highlight=False).print(table)


@app.command(epilog=_EXITS)
def savepoint(
    spec: SpecArgument,
    cluster: ClusterOption = _CLUSTER,
    to: DirectoryOption = None,
    timeout: TimeoutOption = 600.0,
) -> None:
    """Take a savepoint of the running job; it goes on. Prints where it lies.

    Example: `tidegate savepoint examples/flights/flights.toml --cluster localhost:8081`
    """
    with told_plainly():
        from jobs.deployment import need_job
        from jobs.flink_rest import Cluster
        from schemas.spec import load_spec

        at = Cluster(cluster)
        job = need_job(at, load_spec(spec).name)
        typer.echo(at.savepoint(job["jid"], to, wait_seconds=timeout))


@app.command(epilog=_EXITS)
def stop(
    spec: SpecArgument,
    cluster: ClusterOption = _CLUSTER,
    to: DirectoryOption = None,
    timeout: TimeoutOption = 600.0,
) -> None:
    """Stop the running job with a savepoint. Prints where that lies.

    Nothing is drained: what is held stays held, in the savepoint.

    Example: `tidegate stop examples/flights/flights.toml --cluster localhost:8081`
    """
    with told_plainly():
        from jobs.deployment import need_job
        from jobs.flink_rest import Cluster
        from schemas.spec import load_spec

        at = Cluster(cluster)
        job = need_job(at, load_spec(spec).name)
        typer.echo(at.stop(job["jid"], to, wait_seconds=timeout))


@app.command(epilog=_EXITS)
def upgrade(
    spec: SpecArgument,
    cluster: ClusterOption = _CLUSTER,
    parallelism: Annotated[
        int | None,
        typer.Option(min=1, help="Subtasks of the scoring operator; without it, as many as now."),
    ] = None,
    to: DirectoryOption = None,
    settings: SettingsOption = None,
    timeout: TimeoutOption = 600.0,
    healthy: Annotated[
        float, typer.Option("--healthy", min=1, help="Seconds until it must be healthy.")
    ] = 180.0,
    quiet: QuietOption = False,
) -> None:
    """Replace the running job by that of SPEC, or put the old one back.

    For another model (`[[model.next]]`), other code, other parallelism, other topics to write to.
    Everything that can be checked is checked first; then the job is stopped with a savepoint,
    checked against it, and started from it. If it does not run and complete a checkpoint in time,
    the release that ran before goes on from the same savepoint, and the command exits with 1.

    Example: `tidegate upgrade flights-2.toml --cluster localhost:8081 --parallelism 4`
    """
    with told_plainly():
        from jobs import deployment
        from jobs.findings import require
        from jobs.flink_rest import Cluster
        from jobs.preflight import savepoint_findings
        from schemas.spec import load_spec

        say = _sayer(quiet)
        at = Cluster(cluster)
        running = deployment.need_job(at, load_spec(spec).name)
        scorer, _ = _checked(
            spec, cluster, parallelism or 1, None, None, running=running["jid"], quiet=quiet
        )
        deployed = deployment.upgrade(
            scorer,
            at,
            parallelism=parallelism,
            directory=to,
            settings=parsed_settings(settings) or None,
            before_start=lambda path: require(savepoint_findings(scorer, path)),
            healthy_seconds=healthy,
            savepoint_seconds=timeout,
            say=say,
        )
        say(f"release {deployed.release.id} runs and has completed a checkpoint")
        typer.echo(f"job {deployed.job_id}\npage {at.url}/#/job/running/{deployed.job_id}")


@app.command(epilog=_EXITS)
def heartbeat(
    spec: SpecArgument,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A partition, may be repeated; without it, the quiet ones."),
    ] = None,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="A partition is quiet after so long without a record.")
    ] = 60.0,
    event_time_ms: Annotated[
        int | None, typer.Option(help="The event time; without it, the clock's.")
    ] = None,
    every_seconds: Annotated[
        float | None, typer.Option(min=1, help="Again and again, until stopped.")
    ] = None,
) -> None:
    """Write heartbeats into quiet partitions: records that hold a time and nothing else.

    They move the partition's watermark on as any event at that time would, so events that are
    behind it by more than the out-of-orderness are late from then on.

    Example: `tidegate heartbeat examples/shipments/shipments.toml --idle-seconds 300`
    """
    with told_plainly():
        from jobs.heartbeat import send_heartbeats
        from schemas.spec import load_spec

        loaded = load_spec(spec)
        while True:
            sent = send_heartbeats(
                loaded,
                partitions=partition or None,
                event_time_ms=event_time_ms,
                idle_ms=round(idle_seconds * 1000),
            )
            for each in sent:
                typer.echo(
                    f"partition {each.partition}, offset {each.offset}: {each.event_time_ms}"
                )
            if not sent:
                typer.echo("no partition is quiet: nothing was written")
            if every_seconds is None:
                return
            time.sleep(every_seconds)


@app.command(epilog=_EXITS)
def topics(
    spec: SpecArgument,
    replication: Annotated[
        int, typer.Option(min=-1, help="Copies of each partition; -1: the broker's default.")
    ] = -1,
) -> None:
    """Make the topics of a spec that are not there, with as many partitions as it says.

    The source topic keeps its records for ever (`retention.ms = -1`): set what you need.

    Example: `tidegate topics examples/shipments/shipments.toml`
    """
    with told_plainly():
        from jobs.publish import make_topics
        from schemas.spec import load_spec

        for topic in make_topics(load_spec(spec), replication=replication):
            typer.echo(f"{topic.name}: {'made' if topic.made else 'there already'}")


@app.command(epilog=_EXITS)
def publish(
    spec: SpecArgument,
    log: Annotated[
        Path, typer.Option("--log", metavar="PATH", help="The recorded log.", show_default=False)
    ],
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Records a second; without it, at full speed.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write a recorded log into the source topic of a spec: same partitions, keys and timestamps.

    For a rerun in a new topic under a new generation, for a demonstration, for a load test.

    Example: `tidegate publish examples/shipments/shipments.toml --log out/shipments.jsonl.gz`
    """
    with told_plainly():
        from jobs.publish import publish as write
        from schemas.log import rows_in
        from schemas.spec import load_spec

        loaded = load_spec(spec)
        with Work("publishing", rows_in(log), quiet=quiet) as work:
            write(loaded, log, rate=rate, progress=work.advance)
        work.tell(f"they are in {loaded.source.topic}")


@app.command(epilog=_EXITS)
def republish(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A spec of the topic that is read.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="The spec of the topic that is written.")
    ],
    quiet: QuietOption = False,
) -> None:
    """Copy a source topic into another one by key: for other partitions than there are.

    Each record goes where its key belongs in the new topic, with its key, value and timestamp; old
    partitions are merged by their timestamps. NEW names a topic that is there and empty, its
    partitions, and a generation one higher, because its answers are those of another log.

    Example: `tidegate republish shipments.toml shipments-2.toml`
    """
    with told_plainly():
        from jobs.republish import republish as copy
        from jobs.topics import records_in
        from schemas.spec import load_spec

        loaded, target = load_spec(old), load_spec(new)
        with Work("republishing", records_in(loaded), quiet=quiet) as work:
            copy(loaded, target, progress=work.advance)
        work.tell(f"they are in {target.source.topic}")


def run_kafka(
    spec: Path,
    out: Path,
    parallelism: int,
    start: str | None,
    settings: list[str] | None,
    *,
    quiet: bool,
) -> None:
    """The part of `tidegate run` that scores live topics."""
    from jobs.live import newest_state, run_live

    state = newest_state(out)
    scorer, begin = _checked(
        spec, None, parallelism, state.as_uri() if state else None, start, quiet=quiet
    )
    say = _sayer(quiet)
    source, sink = scorer.spec.source, scorer.spec.sink
    say(f"{source.topic} -> {sink.predictions}, {sink.rejects}; Ctrl-C stops with a savepoint")
    with Work("scoring", None, quiet=quiet) as work:
        stopped = run_live(
            scorer,
            spec,
            out,
            parallelism=parallelism,
            start=begin,
            settings=parsed_settings(settings),
            progress=work.advance,
            say=say,
        )
    work.tell(f"stopped with {stopped}" if stopped else "the job ended")


def _checked(
    spec: Path,
    cluster: str | None,
    parallelism: int,
    savepoint: str | None,
    start: str | None,
    *,
    running: str | None = None,
    quiet: bool,
) -> "tuple[Scorer, Start | None]":
    """Loads a spec and runs the preflight; raises unless it lets the job start."""
    from jobs.findings import require
    from jobs.preflight import preflight
    from operators.scorer import Scorer
    from schemas.spec import load_spec

    loaded = load_spec(spec)
    check_parallelism(parallelism, loaded)
    begin = parsed_start(start)
    scorer = Scorer(loaded)
    findings = preflight(
        scorer,
        cluster=cluster,
        savepoint=savepoint,
        start=begin,
        parallelism=parallelism,
        running=running,
    )
    require(findings, Console(stderr=True, quiet=quiet))
    return scorer, begin


def _sayer(quiet: bool):  # type: ignore[no-untyped-def]
    return (lambda _line: None) if quiet else typer.echo
