"""Scores a recorded log with the Flink job, embedded: what `tidegate run` does.

    log -> one file for each partition -> the job -> predictions/, rejects/

All work happens in a hidden directory of the output directory, and the outputs are moved to their
place when the job has ended well and every record of the log is accounted for. So a run that was
killed leaves nothing that looks like outputs. `run.json`, which says that a run is complete, is the
caller's to write, last.
"""

import contextlib
import secrets
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jobs.flink_process import EmbeddedFlink, FlinkError
from jobs.flink_settings import (
    ARROW_BATCH,
    embedded_settings,
    job_settings,
    recorded_log_settings,
)
from jobs.java import find_java
from jobs.job import FileEnds, Job, Request
from jobs.log_files import write_partition_files
from operators.scorer import Scorer
from schemas.log import read_log
from schemas.spec import load_spec

OUTPUTS = ("predictions", "rejects")
LOG_FILE = "flink.log"
_WORK = ".running"


class OutputsExistError(ValueError):
    """The output directory holds something that a run would mix with."""


@dataclass(frozen=True)
class RunResult:
    """What a run did.

    Attributes:
        records: records of the log.
        counters: the shards' counters, added up.
        by_partition: the counters of each partition that had records.
        split_seconds: time to write the partition files.
        flink_seconds: time of the Flink job, its start included.
        java: the Java that ran it.
    """

    records: int
    counters: dict[str, int]
    by_partition: dict[int, dict[str, int]]
    split_seconds: float
    flink_seconds: float
    java: str


def run_log(
    spec_path: Path,
    log_path: Path,
    out_dir: Path,
    *,
    parallelism: int,
    open_end: bool = False,
    arrow_batch: int = ARROW_BATCH,
    lines_per_row: int = 0,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _records: None,
    flink: EmbeddedFlink | None = None,
) -> RunResult:
    """Scores a recorded log and writes `predictions/` and `rejects/` into a directory.

    Args:
        spec_path: the job spec.
        log_path: the recorded log, a file or a directory of them.
        out_dir: where outputs go; must not hold outputs.
        parallelism: subtasks of each operator.
        open_end: the log is a slice: at its end, held events stay held.
        arrow_batch: the most records handed to Python at once; changes no record.
        lines_per_row: records that leave the operator in one element, 0 for all of a batch;
            changes no record.
        settings: Flink settings that win over those of `jobs.flink_settings`.
        progress: called with the records scored so far.
        flink: a running Flink to use; without it one is started and ended.

    Raises:
        SpecError, ModelError, LogError, JavaError, OutputsExistError: refused, nothing was written
            but perhaps the log file.
        FlinkError: the job failed.
    """
    spec_path, out_dir = Path(spec_path).absolute(), Path(out_dir).absolute()
    spec = load_spec(spec_path)
    Scorer(spec)  # a model that breaks its contract is told in a second, not after Flink's start
    java = flink.java if flink else find_java()
    _refuse_outputs(out_dir)
    work = out_dir / _WORK
    shutil.rmtree(work, ignore_errors=True)
    source, sinks = work / "log", work / "sinks"
    source.mkdir(parents=True)
    try:
        started = time.monotonic()
        rows = write_partition_files(read_log(log_path, partitions=spec.source.partitions), source)
        split = time.monotonic()
        request = Request(
            job=Job(
                name="tidegate",
                spec=str(spec_path),
                partitions=spec.source.partitions,
                ends=FileEnds(source=str(source), sinks=str(sinks), lines_per_row=lines_per_row),
                open_end=open_end,
            ),
            parallelism=parallelism,
            settings=job_settings(arrow_batch)
            | embedded_settings(work, rest_port=free_port())
            | recorded_log_settings()
            | dict(settings or {}),
        )
        if rows:
            if flink:
                flink.run(request, progress)
            else:
                with EmbeddedFlink(java, out_dir / LOG_FILE, work) as own:
                    own.run(request, progress)
        by_partition = _counters(sinks)
        _check_complete(rows, by_partition)
        progress(rows)
        for name in OUTPUTS:
            _publish(sinks / name, out_dir / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    total: Counter[str] = Counter()
    for counters in by_partition.values():
        total.update(counters)
    return RunResult(
        records=rows,
        counters=dict(total),
        by_partition=by_partition,
        split_seconds=split - started,
        flink_seconds=time.monotonic() - split,
        java=f"{java.version} ({java.place})",
    )


def _refuse_outputs(out_dir: Path) -> None:
    there = [name for name in (*OUTPUTS, "run.json") if (out_dir / name).exists()]
    if there:
        raise OutputsExistError(
            f"{out_dir} already holds outputs\n"
            f"  found:  {', '.join(there)}\n"
            "  needed: a directory without them\n"
            "  remedy: name another directory, or remove them"
        )


def free_port() -> int:
    """Returns a free loopback port, below those that systems hand out.

    The JVM binds it seconds later; one of the ephemeral range may be somebody's by then.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _counters(sinks: Path) -> dict[int, dict[str, int]]:
    """Reads what every shard told at its end."""
    found: dict[int, dict[str, int]] = {}
    for part in _parts(sinks / "counters"):
        for line in part.read_bytes().splitlines():
            told = msgspec.json.decode(line)
            found[told["partition"]] = told["counters"]
    return dict(sorted(found.items()))


def _check_complete(rows: int, by_partition: dict[int, dict[str, int]]) -> None:
    # Skipped are those that were read again: after a second failure Flink's file source goes on a
    # little too early, and the shards know what they have had.
    scored = sum(c["records"] - c.get("skipped", 0) for c in by_partition.values())
    if scored != rows:
        raise FlinkError(
            f"the job ended well, but scored {scored} of the log's {rows} records: "
            "a fault of the engine's setup; nothing was published"
        )


def _publish(written: Path, into: Path) -> None:
    """Moves the finished parts of a sink to their place, under names that tell their order."""
    arriving = into.with_name(f".{into.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir()
    for number, part in enumerate(_parts(written)):
        part.rename(arriving / f"part-{number:05}.jsonl")
    arriving.rename(into)


def _parts(folder: Path) -> list[Path]:
    # A dot in front marks a part that was not finished.
    return sorted(folder.glob("part-*")) if folder.is_dir() else []
