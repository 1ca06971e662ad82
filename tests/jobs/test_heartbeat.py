"""Heartbeat records, as the transition reads them."""

from pathlib import Path

import msgspec
import pytest

from jobs.heartbeat import HeartbeatError, heartbeat_record
from operators.scorer import Scorer
from tests.small_jobs import GONE, batch_of, small_job

AT = 1_750_000_000_123


@pytest.mark.parametrize(
    ("unit", "written"),
    [
        ("ms", AT),
        ("us", AT * 1_000),
        ("ns", AT * 1_000_000),
        ("s", AT // 1_000),
        ("iso8601", "2025-06-15T15:06:40.123Z"),
    ],
)
def test_a_heartbeat_moves_the_watermark_in_every_unit(
    unit: str, written: object, tmp_path: Path
) -> None:
    """To its event time less the out-of-orderness, and leaves nothing else."""
    spec = small_job(tmp_path, {"event.time.unit": unit})
    record = heartbeat_record(spec, AT)
    assert written == msgspec.json.decode(record)[spec.event.time.field]
    scorer = Scorer(spec)
    shard = scorer.new_shard(0)
    outputs = scorer.step(shard, batch_of([(0, 0, AT, None, record)]))
    assert AT // 1_000 * 1_000 == shard.max_event_time // 1_000 * 1_000
    assert [] == outputs.predictions + outputs.rejects


def test_a_spec_without_heartbeats_is_refused(tmp_path: Path) -> None:
    """There would be no telling what one looks like."""
    spec = small_job(tmp_path, {"event.heartbeat": GONE})
    with pytest.raises(HeartbeatError, match=r"event\.heartbeat"):
        heartbeat_record(spec, AT)
