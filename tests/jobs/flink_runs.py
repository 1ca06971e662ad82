"""Runs of one job, embedded and in-process, and what is compared between them."""

from pathlib import Path

from operators.scorer import Scorer
from schemas.log import LogRow, read_log, write_log
from schemas.spec import Spec, load_spec

Records = dict[str, list[bytes]]


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
    shards = {}
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
