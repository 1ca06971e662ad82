"""Records of every bad kind, on a real cluster: no restart, each of them in the rejects topic."""

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from deploy.local.broker import Broker
from jobs.flink_rest import Cluster
from schemas.log import LogRow, write_log
from tests.cluster.live import begin, check_outputs, live_spec, outputs, wait_checkpoints
from tests.jobs.example_specs import with_policy

pytestmark = pytest.mark.slow

NOW = 1_750_000_000_000
GOOD = {
    "shipment_id": "s1",
    "event_id": "e1",
    "event_time_ms": NOW,
    "type": "scan",
    "lane": "L1",
    "station": "S1",
    "weight_kg": 1.0,
    "distance_km": 10.0,
}


def _changed(**changes: object) -> bytes:
    return msgspec.json.encode({**GOOD, **changes})


def _raw(**changes: str) -> bytes:
    """JSON with values as they are written here, which no encoder would write."""
    plain = {name: msgspec.json.encode(value).decode() for name, value in GOOD.items()} | changes
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in plain.items()) + "}").encode()


#: Key and value of a record.
POISON: list[tuple[bytes | None, bytes | None]] = [
    (b"s1", None),
    (b"s1", b""),
    (None, b""),
    (b"s1", b"{"),
    (b"s1", b"null"),
    (b"s1", b"[]"),
    (b"s1", b"\xff\xfe"),
    (b"s1", b"\x00\x00\x00\x00\x07binary with a schema id"),
    (b"s1", b"[" * 100_000),
    (b"s1", b'{"shipment_id": "s1"}'),
    (b"s1", _changed(event_time_ms=None)),
    (b"s1", _changed(event_time_ms=True)),
    (b"s1", _changed(event_time_ms="2026-01-01")),
    (b"s1", _changed(event_time_ms=NOW // 1000)),
    (b"s1", _changed(event_time_ms=NOW * 1000)),
    (b"s1", _changed(event_time_ms=2**63 - 1)),
    (b"s1", _changed(event_time_ms=-1)),
    (b"s1", _raw(event_time_ms="1e400")),
    (b"s1", _raw(event_time_ms="NaN")),
    (b"s1", _raw(weight_kg="NaN")),
    (b"s1", _raw(weight_kg="1e999")),
    (b"s1", _changed(weight_kg="heavy")),
    (b"s1", _changed(shipment_id="")),
    (b"s1", _changed(shipment_id=7)),
    (b"other", _changed()),
    (b"s1", _raw(shipment_id='"\\ud800"')),
    (b"s1", _changed(event_id=None)),
    (b"s1", _raw(weight_kg="1" * 5000)),
    # A megabyte, six as JSON in its reject.
    (b"s1", b"\x01" * 1_000_000),
    (b"s1", b'{"shipment_id": "s1", "shipment_id": "s2"}'),
]
#: Keys that are good, and that a careless layout of outputs would cut.
ODD_KEYS = [
    "\x1f",
    "a\x1fb",
    "\x1e0",
    'say "hi"',
    "back\\slash",
    "\u2028",
    "😀",
    "x" * 2000,
    "\n",
    "{",
]


def test_poison_is_rejected_and_nothing_restarts(
    tmp_path: Path, broker: Broker, cluster: Cluster
) -> None:
    """Every kind, in every partition, between good records of keys that are hard to carry."""
    path = with_policy("shipments", tmp_path / "s.toml", emit="on_event", late="update")
    spec = live_spec(path, "poison", broker.bootstrap_servers, guarantee="transactional")
    spec = msgspec.structs.replace(
        spec, source=msgspec.structs.replace(spec.source, partitioner="none")
    )
    rows = _rows()
    log = tmp_path / "log.parquet"
    write_log(log, rows, partitions=4)
    job = begin(spec, cluster, tmp_path / "releases", parallelism=2)
    with outputs(spec) as (predictions, rejects):
        settings = {"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 2_000_000}
        producer = Producer(settings)
        for row in rows:
            producer.produce(
                spec.source.topic, row.value, row.key, row.partition, timestamp=row.timestamp
            )
        assert 0 == producer.flush(30)
        wait_checkpoints(cluster, job.job_id)
        check_outputs(spec, log, predictions, rejects, duplicates=False)
    assert 0 == cluster.restarts(job.job_id)
    places = [
        (told["partition"], told["offset"])
        for told in map(msgspec.json.decode, rejects.found.values)
    ]
    assert len(places) == len(set(places))
    assert len(places) >= 4 * (len(POISON) - 2)
    assert {key.encode() for key in ODD_KEYS} <= set(predictions.found.keys)


def _rows() -> list[LogRow]:
    """Good, bad and good again, in each of 4 partitions; every key is in one of them alone."""
    rows = []
    for partition in range(4):
        odd = [key for i, key in enumerate(ODD_KEYS) if i % 4 == partition]
        good = [
            (
                key.encode(),
                _changed(shipment_id=key, event_id=f"{key}{turn}", event_time_ms=NOW + turn),
            )
            for turn in range(2)
            for key in odd
        ]
        records = [*good[: len(odd)], *POISON, *good[len(odd) :]]
        for offset, (key, value) in enumerate(records):
            rows.append(LogRow(partition, offset, NOW, key, value))
    return rows
