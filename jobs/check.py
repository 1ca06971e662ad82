"""What `tidegate check` found, as tables for people."""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.progress import progress
from jobs.spans import instant, span
from operators.features import FeaturePlan
from operators.model import StepModel
from operators.scorer import Scorer
from schemas.log import log_digest, read_log, rows_in
from schemas.spec import Spec

_Rows = list[tuple[str, str]]


def show_spec(scorer: Scorer, console: Console) -> None:
    """Prints what a job would do."""
    spec, models = scorer.spec, scorer.models
    plan = FeaturePlan(spec)
    tables = [
        _table(f"job {spec.name}", _job_rows(spec)),
        _table("time and policy", _policy_rows(spec)),
        _table(f"features, {len(plan)} columns", _feature_rows(spec, plan)),
    ]
    for index, model in enumerate(models):
        title = "model" if index == 0 else f"model.next {index}"
        tables.append(_table(title, _model_rows(spec, index, model)))
    for table in tables:
        console.print(table)


def show_log(spec: Spec, path: Path, console: Console, *, quiet: bool) -> None:
    """Reads a whole log as a run would, and prints what it holds.

    Raises:
        LogError: the log is refused.
    """
    digest = log_digest(path)
    rows: dict[int, int] = {}
    done = 0
    with progress("reading", rows_in(path), quiet=quiet) as advance:
        for batch in read_log(path, partitions=spec.source.partitions):
            rows[batch.partition] = rows.get(batch.partition, 0) + len(batch)
            done += len(batch)
            advance(done)
    listed = ", ".join(f"{partition}: {count:,}" for partition, count in sorted(rows.items()))
    found = [
        ("path", str(path)),
        ("records", f"{done:,}"),
        ("by partition", listed),
        ("digest", digest),
    ]
    console.print(_table("log", found))


def _job_rows(spec: Spec) -> _Rows:
    event, source, sink = spec.event, spec.source, spec.sink
    offset = f", zone-less as {event.time.offset}" if event.time.offset else ""
    return [
        ("generation", str(spec.generation)),
        ("source", f"{source.topic}, {source.partitions} partitions by {source.partitioner}"),
        ("key", event.key),
        ("event time", f"{event.time.field}, {event.time.unit}{offset}"),
        ("event id", event.id or "none: duplicates are not found"),
        ("terminal", ", ".join(event.terminal) or "none"),
        ("heartbeat", event.heartbeat or "none: a silent partition stands still"),
        ("tombstone", event.tombstone),
        ("predictions", f"{sink.predictions}, {sink.guarantee}"),
        ("rejects", sink.rejects),
    ]


def _policy_rows(spec: Spec) -> _Rows:
    time, policy = spec.time, spec.policy
    too_late = "0 ms" if policy.late == "drop" else span(time.allowed_lateness_ms)
    return [
        ("emit", policy.emit),
        ("late", policy.late),
        ("late after", f"{span(time.out_of_orderness_ms)} behind its partition's newest event"),
        ("too late after", f"{span(time.allowed_lateness_ms)} more"),
        ("kept per key", f"events up to {too_late} behind the watermark"),
        ("from the future", f"more than {span(time.max_future_ms)} after the record's timestamp"),
        ("implausible", f"before {instant(time.min_event_time_ms)}"),
        ("idle key ends", f"{span(policy.idle_ttl_ms)} after its newest event"),
        ("finished key ends", f"{span(policy.finished_ttl_ms)} after its newest event"),
    ]


def _feature_rows(spec: Spec, plan: FeaturePlan) -> _Rows:
    rows = []
    for feature in spec.features:
        settings = msgspec.to_builtins(feature)
        kind = settings.pop("kind")
        name = settings.pop("name")
        shown = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
        rows.append((name, f"{kind}: {shown}" if shown else kind))
    rows.append(("columns", ", ".join(plan.names)))
    return rows


def _model_rows(spec: Spec, index: int, model: StepModel) -> _Rows:
    states = ", ".join(f"{t.input} -> {t.output} {t.dtype} {list(t.shape)}" for t in model.states)
    rows = [
        ("path", model.path),
        ("digest", model.digest),
        ("input", f"{model.dtype} [batch, {model.columns}]"),
        ("output", f"{model.output_size} a record"),
        ("state", states or f"the last {model.window} events"),
        ("bytes a key", f"{model.state_bytes:,} of model state"),
    ]
    if index == 0:
        batch = "1, as the spec says" if spec.model.batch == 1 else "any: the same bits at each"
        rows.append(("batch", batch))
    else:
        following = spec.model.next[index - 1]
        rows.append(("from", f"{instant(following.from_event_time_ms)}, {following.state}"))
    return rows


def _table(title: str, rows: _Rows) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
