"""Simulated shipments hold what their settings say, exactly, and the same on every machine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jobs.simulate import Settings, SettingsError, simulate_shipments, write_shipments
from operators.partitioner import partition_for
from schemas.log import Columns, read_log

SETTINGS = Settings(events=20_000, keys=300, seed=7)
ROOT = Path(__file__).parent.parent.parent


class Seen(NamedTuple):
    """What one pass over a log counts."""

    events: list[dict[str, Any]]
    disordered: int
    late: int
    repeated: int
    beyond_timestamp_ms: int


def _watch(settings: Settings) -> Seen:
    """Counts disorder and lateness naively, record by record."""
    newest_of_key: dict[str, int] = {}
    newest_of_partition: dict[int, int] = {}
    ids: set[str] = set()
    events = []
    disordered = late = repeated = 0
    beyond = -(10**9)
    for columns in simulate_shipments(settings):
        for partition, timestamp, value in zip(
            columns.partitions.tolist(), columns.timestamps.tolist(), columns.values, strict=True
        ):
            event = json.loads(value or b"")
            at = event["event_time_ms"]
            watermark = newest_of_partition.get(partition, 0) - settings.out_of_orderness_ms
            newest_of_partition[partition] = max(newest_of_partition.get(partition, 0), at)
            beyond = max(beyond, at - timestamp)
            if event["type"] == "heartbeat":
                continue
            events.append(event)
            if event["event_id"] in ids:
                repeated += 1
                continue
            ids.add(event["event_id"])
            key = event["shipment_id"]
            late += at < watermark
            disordered += at < newest_of_key.get(key, 0)
            newest_of_key[key] = max(newest_of_key.get(key, 0), at)
    return Seen(events, disordered, late, repeated, beyond)


def _all(settings: Settings) -> Columns:
    blocks = list(simulate_shipments(settings))
    return Columns(
        np.concatenate([block.partitions for block in blocks]),
        np.concatenate([block.offsets for block in blocks]),
        np.concatenate([block.timestamps for block in blocks]),
        [key for block in blocks for key in block.keys],
        [value for block in blocks for value in block.values],
    )


@pytest.mark.parametrize(
    ("disorder", "late", "duplicates"),
    [(0.05, 0.02, 0.01), (0.0, 0.0, 0.0), (0.2, 0.0, 0.0), (0.1, 0.1, 0.3)],
)
@pytest.mark.parametrize("heartbeat_ms", [None, 600_000])
def test_shares_are_met_exactly(
    disorder: float, late: float, duplicates: float, heartbeat_ms: int | None
) -> None:
    """Disorder within keys, lateness and duplicates are counted as asked for."""
    settings = replace(
        SETTINGS,
        disorder=disorder,
        late=late,
        duplicates=duplicates,
        heartbeat_ms=heartbeat_ms,
    )
    seen = _watch(settings)
    n = settings.events
    assert (n, round(n * disorder), round(n * late), round(n * duplicates)) == (
        len(seen.events),
        seen.disordered,
        seen.late,
        seen.repeated,
    )


def test_clocks_are_off_but_not_far() -> None:
    """Some events are stamped after their upload, by less than the example's spec allows."""
    assert 0 < _watch(SETTINGS).beyond_timestamp_ms < 300_000


def test_every_shipment_is_there_and_most_are_delivered() -> None:
    """Each key has an event; about one in ten is lost; a delivery is its shipment's last event."""
    events = _watch(SETTINGS).events
    last: dict[str, dict[str, Any]] = {}
    for event in events:
        key = event["shipment_id"]
        if key not in last or event["event_time_ms"] >= last[key]["event_time_ms"]:
            last[key] = event
    delivered = {event["shipment_id"] for event in events if event["type"] == "delivered"}
    assert 300 == len(last)
    assert 0.8 < len(delivered) / 300 < 0.97
    assert all(last[key]["type"] == "delivered" for key in delivered)


def test_some_lanes_are_hot() -> None:
    """The busiest lane carries many times what the median lane does."""
    lanes = [event["lane"] for event in _watch(replace(SETTINGS, keys=3_000)).events]
    counts = sorted(map(lanes.count, set(lanes)))
    assert counts[-1] > 10 * counts[len(counts) // 2]


def test_records_lie_in_the_partition_of_their_key_at_dense_offsets() -> None:
    """The Kafka key is the stream key; offsets have no gaps; timestamps never go back."""
    log = _all(replace(SETTINGS, partitions=3, partitioner="crc32"))
    for partition, key, value in zip(log.partitions.tolist(), log.keys, log.values, strict=True):
        assert key == json.loads(value or b"")["shipment_id"].encode()
        assert partition == partition_for(key, "crc32", 3)
    for partition in range(3):
        here = log.partitions == partition
        assert list(range(int(here.sum()))) == log.offsets[here].tolist()
    assert (np.diff(log.timestamps) >= 0).all()


def test_heartbeats_reach_every_partition_and_change_nothing_else() -> None:
    """Each partition gets one at each interval, without a key; the events stay the same."""
    settings = replace(SETTINGS, heartbeat_ms=3_600_000)
    plain, beating = _all(SETTINGS), _all(settings)
    beats = [
        (p, v)
        for p, k, v in zip(beating.partitions.tolist(), beating.keys, beating.values, strict=True)
        if k is None
    ]
    assert plain.values == [v for k, v in zip(beating.keys, beating.values, strict=True) if k]
    hours = (int(plain.timestamps[-1]) - settings.start_ms) // 3_600_000
    assert dict.fromkeys(range(4), hours) == {p: [q for q, _ in beats].count(p) for p in range(4)}
    assert {"type": "heartbeat", "event_time_ms": settings.start_ms + 3_600_000} == json.loads(
        beats[0][1] or b""
    )


def test_a_seed_is_a_log(tmp_path: Path) -> None:
    """The same seed gives the same bytes, another seed others."""
    first = write_shipments(SETTINGS, tmp_path / "a.jsonl")
    again = write_shipments(SETTINGS, tmp_path / "b.jsonl")
    other = write_shipments(replace(SETTINGS, seed=8), tmp_path / "c.jsonl")
    assert first == again
    assert first.sha256 != other.sha256


def test_the_hash_seed_of_python_changes_nothing() -> None:
    """Runs under two hash seeds give the same log."""
    code = (
        "import hashlib; from jobs.simulate import Settings, simulate_shipments;"
        "values = [v for c in simulate_shipments(Settings(2000, 50)) for v in c.values];"
        "print(hashlib.sha256(b''.join(values)).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert 1 == len(digests)


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz", "s.parquet"])
def test_the_log_is_read_back_whole(tmp_path: Path, name: str) -> None:
    """Any form; progress counts the records written."""
    told: list[int] = []
    manifest = write_shipments(SETTINGS, tmp_path / name, told.append)
    read = sum(len(batch) for batch in read_log(tmp_path / name, partitions=4))
    assert (20_000, 20_000, 20_000) == (read, manifest.rows, told[-1])


def test_one_event_a_key_is_a_log_too() -> None:
    """As many keys as events: nothing to disorder, and each shipment is seen once."""
    settings = Settings(events=500, keys=500, disorder=0.0, late=0.0, duplicates=0.0)
    assert 500 == len({event["shipment_id"] for event in _watch(settings).events})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"keys": 20_000}, "leave 19800"),
        ({"late": 0.06}, "late is part of disorder"),
        ({"disorder": 1.0}, "a share"),
        ({"duplicates": -0.1}, "a share"),
        ({"events": 0}, "at least 1"),
        ({"seed": -1}, "seed"),
        ({"heartbeat_ms": 0}, "heartbeat_ms"),
        ({"out_of_orderness_ms": 59_999}, "at least 600000, got 59999"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(changes: dict[str, Any], says: str) -> None:
    """Contradictions are named with both values."""
    with pytest.raises(SettingsError, match=says):
        replace(SETTINGS, **changes)


def test_more_disorder_than_there_is_room_for_is_refused() -> None:
    """Only events with a later one of their key can be disordered; the message says how many."""
    with pytest.raises(SettingsError, match="have room for"):
        list(simulate_shipments(replace(SETTINGS, disorder=0.6)))
