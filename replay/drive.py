"""Runs a recorded log through the transition in this process: what `tidegate replay` does.

The records are those of the Flink job, byte for byte after sorting, because the same
`Scorer.step` makes them; there is no engine here to differ. Outputs are written into a hidden
folder and moved to their place when the log has ended well, so a replay that was killed leaves
nothing that looks whole.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from operators.emit import Outputs
from operators.scorer import Scorer
from operators.state import Shard
from schemas.log import read_log
from schemas.spec import Spec

OUTPUTS = ("predictions", "rejects")
_WORK = ".replaying"


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did.

    Attributes:
        records: records of the log.
        counters: the shards' counters, added up.
        by_partition: the counters of each partition that had records.
        seconds: time from the first record to the last output.
    """

    records: int
    counters: dict[str, int]
    by_partition: dict[int, dict[str, int]]
    seconds: float


def replay_log(
    spec: Spec,
    log_path: Path,
    out_dir: Path,
    *,
    batch_rows: int = 16_384,
    open_end: bool = False,
    progress: Callable[[int], None] = lambda _records: None,
) -> ReplayResult:
    """Scores a recorded log and writes `predictions/` and `rejects/` into a directory.

    Args:
        spec: the job spec.
        log_path: the recorded log, a file or a directory of them.
        out_dir: where outputs go; must not hold outputs.
        batch_rows: the most records of a partition taken at once; changes no record.
        open_end: the log is a slice: at its end, held events stay held.
        progress: called with the records scored so far.

    Raises:
        ModelError, LogError: refused.
        FileExistsError: the directory holds outputs.
    """
    scorer = Scorer(spec)
    out_dir = Path(out_dir)
    for name in OUTPUTS:
        if (out_dir / name).exists():
            raise FileExistsError(f"{out_dir / name} is there already; name another directory")
    work = out_dir / _WORK
    shutil.rmtree(work, ignore_errors=True)
    for name in OUTPUTS:
        (work / name).mkdir(parents=True)
    started = time.monotonic()
    try:
        shards: dict[int, Shard] = {}
        records = 0
        for batch in read_log(log_path, batch_rows, spec.source.partitions):
            shard = shards.get(batch.partition)
            if shard is None:
                shard = shards[batch.partition] = scorer.new_shard(batch.partition)
            _write(work, batch.partition, scorer.step(shard, batch))
            records += len(batch)
            progress(records)
        if not open_end:
            for partition in sorted(shards):
                _write(work, partition, scorer.finish(shards[partition]))
        seconds = time.monotonic() - started
        for name in OUTPUTS:
            (work / name).rename(out_dir / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    counters: Counter[str] = Counter()
    for shard in shards.values():
        counters.update(shard.counters)
    by_partition = {partition: shards[partition].counters for partition in sorted(shards)}
    return ReplayResult(records, dict(counters), by_partition, seconds)


def _write(work: Path, partition: int, outputs: Outputs) -> None:
    for name, lines in (
        ("predictions", outputs.prediction_lines),
        ("rejects", outputs.reject_lines),
    ):
        if lines:
            # Opened anew: there may be more partitions than a process may have open files.
            with (work / name / f"part-{partition:05}.jsonl").open("ab") as file:
                file.write(lines)
