"""What a run says at its end: `run.json`, and a summary a person can read."""

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from operators.scorer import Scorer
from schemas.log import log_digest
from schemas.run_record import ModelUsed, Run, grouped, versions, write_run


def record_run(
    scorer: Scorer,
    log: Path,
    out: Path,
    *,
    engine: str,
    settings: dict[str, Any],
    counters: dict[str, int],
    by_partition: dict[int, dict[str, int]],
    seconds: float,
) -> Run:
    """Writes `run.json` for a finished run, and returns what it says."""
    spec = scorer.spec
    counts = grouped(counters)
    run = Run(
        engine=engine,
        spec_name=spec.name,
        generation=spec.generation,
        spec_digest=scorer.spec_digest,
        spec=msgspec.to_builtins(spec),
        models=[
            ModelUsed(m.digest, m.declaration.from_event_time_ms if i else None)
            for i, m in enumerate(scorer.models)
        ],
        log_digest=log_digest(log),
        settings=settings,
        versions=versions(),
        counts=counts,
        partitions={str(p): c for p, c in by_partition.items()},
        seconds=round(seconds, 3),
        events_per_second=round(counts["records"] / seconds, 1) if seconds else 0.0,
    )
    write_run(run, out)
    return run


def show_run(run: Run, out: Path, console: Console) -> None:
    """Prints what a run did: events, predictions by kind, rejects by reason, where it all is."""
    counts, rejects = run.counts, run.counts["rejects"]
    records, predictions = counts["records"], counts["predictions"]
    late = (
        rejects.get("late", 0)
        + rejects.get("late.applied", 0)
        + rejects.get("too_late", 0)
        + predictions.get("late_revision", 0)
    )
    table = Table(title=f"{run.spec_name}: {run.engine}", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("n", justify="right")
    table.add_column("share", justify="right")

    def line(name: str, n: int, share: bool = True) -> None:
        table.add_row(name, f"{n:,}", f"{n / records:.2%}" if share and records else "")

    line("records", records, share=False)
    for name in ("skipped", "heartbeats"):
        if counts.get(name):
            line(name, counts[name])
    table.add_section()
    line("predictions", sum(predictions.values()))
    for kind, n in sorted(predictions.items(), key=lambda item: -item[1]):
        line(f"  {kind}", n)
    table.add_section()
    line("rejects", sum(rejects.values()))
    for reason, n in sorted(rejects.items(), key=lambda item: -item[1]):
        line(f"  {reason}", n)
    table.add_section()
    line("late in all", late)
    console.print(table)
    start = ", Flink's start included" if run.engine == "flink" else ""
    console.print(
        f"{records:,} events in {run.seconds:.1f} s{start}: {run.events_per_second:,.0f} events/s\n"
        f"spec {_short(run.spec_digest)}, "
        f"model {', '.join(_short(m.digest) for m in run.models)}, log {_short(run.log_digest)}\n"
        f"outputs: {out / 'predictions'}, {out / 'rejects'}, {out / 'run.json'}",
        highlight=False,
        soft_wrap=True,
    )


def _short(digest: str) -> str:
    return digest[:19]
