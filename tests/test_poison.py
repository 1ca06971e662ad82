"""Bad input in bulk: nothing raises, nothing grows without bound."""

from pathlib import Path
from typing import Any

import numpy as np

from operators.scorer import Scorer
from schemas.records import RecordBatch
from tests.small_jobs import batch_of, record, small_job


def _step(folder: Path, rows: list[Any], **changes: Any) -> tuple[Any, Any]:
    scorer = Scorer(small_job(folder, changes))
    shard = scorer.new_shard(0)
    batch: RecordBatch = batch_of(rows)
    return shard, scorer.step(shard, batch)


def test_keys_whose_events_are_all_out_of_bounds_are_not_kept(tmp_path: Path) -> None:
    """C17: nothing moves the watermark then, so nothing would ever free them."""
    rows = [record(i, 10**9, key=f"k{i}", id=f"e{i}", v=1, stamp=0) for i in range(50)]
    shard, outputs = _step(tmp_path, rows)
    assert 50 == len(outputs.rejects)
    assert {} == shard.keys.slots


def test_a_run_of_events_that_are_not_finite_costs_what_it_is_long(tmp_path: Path) -> None:
    """Each is stepped a few times at most, so that one key cannot stop the job."""
    rows = [record(offset, 10 + offset, id=f"e{offset}", v=3e38) for offset in range(2000)]
    shard, outputs = _step(tmp_path, rows)
    assert 2000 == len(outputs.predictions) + len(outputs.rejects)
    assert len(outputs.rejects) > 1000
    assert shard.pool.size < 10 * len(rows)
    assert np.isfinite(shard.pool.times[: shard.pool.size]).all()
