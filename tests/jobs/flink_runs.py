"""Runs of one job, embedded and in-process, and what is compared between them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jobs.flink_process import EmbeddedFlink
from jobs.java import find_java
from operators.scorer import Scorer
from operators.state import Shard
from schemas.log import LogRow, read_log, write_log
from schemas.spec import Spec, load_spec

Records = dict[str, list[bytes]]

#: A JVM for short jobs: that it became fast would cost more than they do.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def embedded(work: Path, **environment: str) -> Iterator[EmbeddedFlink]:
    """One Flink for many short jobs; its log is `flink.log` in the directory given."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"JVM_ARGS": _QUICK_START, **environment}.items():
                patch.setenv(name, value)
            flink = stack.enter_context(EmbeddedFlink(find_java(), work / "flink.log", work))
        yield flink


def written(out: Path) -> Records:
    """The records of a run's output directory, sorted."""
    return {
        name: sorted(
            line
            for part in (out / name).glob("part-*.jsonl")
            for line in part.read_bytes().splitlines()
        )
        for name in ("predictions", "rejects")
    }


def in_process(
    spec: Path | Spec, log: Path, *, open_end: bool = False, rows: int = 16_384
) -> Records:
    """The records that the transition alone gives, sorted."""
    scorer = Scorer(load_spec(spec) if isinstance(spec, Path) else spec)
    shards: dict[int, Shard] = {}
    records: Records = {"predictions": [], "rejects": []}
    for batch in read_log(log, batch_rows=rows):
        shard = shards.get(batch.partition)
        if shard is None:
            shard = shards[batch.partition] = scorer.new_shard(batch.partition)
        outputs = scorer.step(shard, batch)
        records["predictions"] += outputs.predictions
        records["rejects"] += outputs.rejects
    for shard in shards.values():
        outputs = scorer.finish(shard)
        if not open_end:
            records["predictions"] += outputs.predictions
            records["rejects"] += outputs.rejects
    return {name: sorted(found) for name, found in records.items()}


def log_of(rows: list[LogRow], path: Path, partitions: int) -> Path:
    """Writes rows as a recorded log."""
    write_log(path, rows, partitions=partitions)
    return path
