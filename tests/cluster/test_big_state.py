"""A million keys: what their state weighs, and how long they take to come back."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deploy.local.broker import Broker
from jobs.flink_rest import Cluster
from schemas.log import LogRow, write_log
from tests.cluster.live import Feeder, begin, live_spec, outputs, resume
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow

KEYS = 1_000_000
NOW = 1_750_000_000_000


def test_a_million_keys_come_back(
    tmp_path: Path, broker: Broker, cluster: Cluster, figure: Callable[[str], None]
) -> None:
    """One event a key, a savepoint, a restart; then the next event of a key counts two."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="drop")
    spec = live_spec(path, "million", broker.bootstrap_servers)
    spec = msgspec.structs.replace(
        spec,
        source=msgspec.structs.replace(spec.source, partitioner="none"),
        sink=msgspec.structs.replace(spec.sink, features=False),
    )
    job = begin(spec, cluster, tmp_path / "releases")
    with outputs(spec) as (predictions, _):
        with Feeder(spec, _log(tmp_path / "log.parquet", range(KEYS))):
            pass
        while len(predictions.found.values) < KEYS:
            time.sleep(0.5)
        started = time.monotonic()
        savepoint = cluster.stop(job.job_id, None, wait_seconds=120)
        took = time.monotonic() - started
        size = sum(p.stat().st_size for p in Path(savepoint.removeprefix("file:")).iterdir())
        figure(f"1M keys: savepoint and stop {took:.1f} s, {size / 1e6:.0f} MB")
        # Written while the job is away, so that it finds them as it starts.
        with Feeder(spec, _log(tmp_path / "more.parquet", range(0, KEYS, KEYS // 100), turn=1)):
            pass
        resume(spec, cluster, tmp_path / "releases", savepoint)
        predictions.wait_for(KEYS + 100)
        running = cluster.jobs()[0]
        began = running["start-time"] / 1000
        fresh = time.time() - (time.monotonic() - predictions.found.arrived[KEYS])
        figure(f"1M keys: from the job's start to its first prediction {fresh - began:.1f} s")
        last = [msgspec.json.decode(value) for value in predictions.found.values[KEYS:]]
        assert {2} == {record["events_seen"] for record in last}
        assert {2} == {record["sequence"] for record in last}


def _log(path: Path, keys: range, turn: int = 0) -> Path:
    """One event of each key; key n is in partition n % 4."""
    at = NOW + turn * 1000
    rows = [
        LogRow(
            n % 4,
            n // 4,
            at,
            b"k%d" % n,
            b'{"shipment_id": "k%d", "event_id": "%d-%d", "event_time_ms": %d, "type": "scan", '
            b'"lane": "L", "station": "S", "weight_kg": 1.0, "distance_km": 2.0}'
            % (n, n, turn, at),
        )
        for n in keys
    ]
    offsets: dict[int, int] = {}
    for i, row in enumerate(rows):
        offsets[row.partition] = offsets.get(row.partition, -1) + 1
        rows[i] = row._replace(offset=offsets[row.partition])
    write_log(path, rows, partitions=4)
    return path
