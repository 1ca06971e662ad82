"""Small jobs for tests by hand: a spec as nested data, event scripts, and every way to run a log.

A script is an aligned table. Times are seconds after `START_MS`; `-` leaves a field away; behind
the bar stands what becomes of the record. The default model shifts digits in (`models.shift_in`),
so a prediction shows which values were applied, in which order.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from operators.scorer import Changes, Outputs, Scorer
from operators.state import Shard
from schemas.records import RecordBatch
from schemas.spec import Spec, load_spec
from tests import models
from tests.oracle import Row

START_MS = 1_700_000_000_000
#: Takes a setting out of a spec.
GONE = object()

STATES = [{"input": "h", "output": "h_next"}]
BASE: dict[str, Any] = {
    "name": "small",
    "generation": 1,
    "source": {"topic": "events", "partitions": 4, "partitioner": "none"},
    "event": {
        "key": "key",
        "id": "id",
        "time": {"field": "at", "unit": "ms"},
        "type": "type",
        "terminal": ["end"],
        "heartbeat": "beat",
        "fields": {"id": "str?", "type": "str?", "v": "float?"},
    },
    "time": {
        "out_of_orderness_ms": 10_000,
        "allowed_lateness_ms": 20_000,
        "max_future_ms": 60_000,
        "min_event_time_ms": START_MS - 3_600_000,
    },
    "policy": {"late": "repredict", "idle_ttl_ms": 100_000, "finished_ttl_ms": 50_000},
    "features": [{"name": "v", "kind": "field", "field": "v", "missing": 0}],
    "model": {"path": "model.onnx", "input": "x", "output": "y", "states": STATES},
    "sink": {"predictions": "predictions", "rejects": "rejects"},
}


# A spec ----------------------------------------------------------------------------------------


def spec_text(changes: dict[str, Any] | None = None) -> str:
    """The TOML of `BASE` with settings changed, by dotted key path."""
    spec = copy.deepcopy(BASE)
    for path, value in (changes or {}).items():
        *tables, last = path.split(".")
        table: Any = spec
        for name in tables:
            table = table[int(name)] if isinstance(table, list) else table.setdefault(name, {})
        if value is GONE:
            del table[last]
        else:
            table[int(last) if isinstance(table, list) else last] = value
    return "".join(f"{name} = {_toml(value)}\n" for name, value in spec.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def small_job(
    folder: Path,
    changes: dict[str, Any] | None = None,
    model: onnx.ModelProto | None = None,
) -> Spec:
    """Writes a model and a spec into a folder, and loads the spec."""
    folder.mkdir(parents=True, exist_ok=True)
    models.write(model or models.shift_in(), folder / "model.onnx")
    (folder / "spec.toml").write_text(spec_text(changes), encoding="utf-8")
    return load_spec(folder / "spec.toml")


# A log -----------------------------------------------------------------------------------------


def record(offset: int, at: float | str | None, *, partition: int = 0, **fields: Any) -> Row:
    """One record; `at` in seconds after the start, or text as it is; `stamp` in seconds too."""
    stamp = fields.pop("stamp", at if isinstance(at, int | float) else 0)
    fields.setdefault("key", "a")
    if at is not None:
        fields["at"] = at if isinstance(at, str) else ms(at)
    key = fields["key"]
    value = json.dumps(fields, ensure_ascii=False).encode()
    return partition, offset, ms(stamp), key.encode() if isinstance(key, str) else None, value


def ms(seconds: float) -> int:
    """Milliseconds since the epoch of seconds after the start."""
    return START_MS + round(seconds * 1000)


def rows_of(script: str) -> list[Row]:
    """The records of an event script."""
    return [row for row, _ in _read(script)]


def _read(script: str) -> list[tuple[Row, str]]:
    lines = [line for line in script.strip().splitlines() if line.strip()]
    names = lines[0].split("|")[0].split()
    found: list[tuple[Row, str]] = []
    offsets: dict[int, int] = {}
    for line in lines[1:]:
        left, _, becomes = line.partition("|")
        cells = {n: c for n, c in zip(names, left.split(), strict=True) if c != "-"}
        partition = int(cells.pop("p", "0"))
        offset = int(cells.pop("offset", offsets.get(partition, 0)))
        offsets[partition] = offset + 1
        fields: dict[str, Any] = {n: c for n, c in cells.items() if n not in ("at", "v", "stamp")}
        fields |= {n: float(cells[n]) for n in ("v", "stamp") if n in cells}
        if fields.get("type") == "beat":
            fields["key"] = None
        found.append(
            (record(offset, float(cells["at"]), partition=partition, **fields), becomes.strip())
        )
    return found


# A run -----------------------------------------------------------------------------------------


class Store:
    """What the engine keeps of the shards: bytes, and nothing else."""

    def __init__(self) -> None:
        self.meta: dict[int, bytes] = {}
        self.keys: dict[int, dict[str, bytes]] = {}

    def take(self, partition: int, changes: Changes) -> None:
        """Takes over what changed."""
        kept = self.keys.setdefault(partition, {})
        for name in changes.removed:
            kept.pop(name, None)
        kept.update(changes.puts)
        self.meta[partition] = changes.meta

    def restore(self, scorer: Scorer, partition: int) -> Shard:
        """Restores a shard, or makes a new one."""
        if partition not in self.meta:
            return scorer.new_shard(partition)
        return scorer.restore_shard(
            partition, self.meta[partition], list(self.keys[partition].items())
        )

    def copy(self) -> "Store":
        """Returns what a checkpoint taken now would hold."""
        return copy.deepcopy(self)


Records = tuple[list[bytes], list[bytes]]


def batch_of(rows: Iterable[Row]) -> RecordBatch:
    """The rows of one partition as a batch."""
    partitions, offsets, stamps, keys, values = zip(*rows, strict=True)
    assert len(set(partitions)) == 1
    return RecordBatch(
        partitions[0],
        np.array(offsets, np.int64),
        np.array(stamps, np.int64),
        list(keys),
        list(values),
    )


def whole(scorer: Scorer, rows: list[Row], end: bool = True) -> Records:
    """Runs the records of each partition as one batch."""
    found: list[Outputs] = []
    for partition in sorted({row[0] for row in rows}):
        shard = scorer.new_shard(partition)
        found.append(scorer.step(shard, batch_of(r for r in rows if r[0] == partition)))
        if end:
            found.append(scorer.finish(shard))
    return _sorted(found)


def one_by_one(
    scorers: list[Scorer], rows: list[Row], end: bool = True, restore: bool = False
) -> Records:
    """Runs a log event by event, in the given order; with `restore`, from bytes each time."""
    found, store = [], Store()
    shards: dict[int, Shard] = {}
    for i, row in enumerate(rows):
        scorer, partition = scorers[i % len(scorers)], row[0]
        if restore or partition not in shards:
            shards[partition] = store.restore(scorer, partition)
        found.append(scorer.step(shards[partition], batch_of([row])))
        store.take(partition, scorer.drain_changes(shards[partition]))
    for partition, shard in shards.items() if end else ():
        last = store.restore(scorers[0], partition) if restore else shard
        found.append(scorers[0].finish(last))
    return _sorted(found)


def _sorted(found: list[Outputs]) -> Records:
    predictions = sorted(line for outputs in found for line in outputs.predictions)
    return predictions, sorted(line for outputs in found for line in outputs.rejects)


def every_way(spec: Spec, rows: list[Row], end: bool = True) -> Records:
    """Runs a log as one batch, event by event, and restored after each event: all must agree."""
    scorers = [Scorer(spec), Scorer(spec)]
    expected = whole(scorers[0], rows, end)
    assert expected == one_by_one(scorers[:1], rows, end)
    assert expected == one_by_one(scorers, rows, end, restore=True)
    return expected


def parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    """Records as data, by a parser that takes JSON and nothing else."""
    return [json.loads(line, parse_constant=_refuse) for line in lines]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def becomes(records: Records) -> dict[tuple[int, int], str]:
    """What became of each (partition, offset) in a few words, such as `on_time#2=34 final`."""
    found: dict[tuple[int, int], list[str]] = {}
    for each in parsed(records[0]):
        place = each["trigger"]["partition"], each["trigger"]["offset"]
        final = " final" if each["final"] else ""
        said = f"{each['kind']}#{each['sequence']}={each['prediction']:g}{final}"
        found.setdefault(place, []).append(said)
    for each in parsed(records[1]):
        said = each["reason"] + (" applied" if each["applied"] else "")
        found.setdefault((each["partition"], each["offset"]), []).append(said)
    return {place: " & ".join(sorted(said)) for place, said in found.items()}


def check_script(
    spec: Spec, script: str, run: Callable[[Spec, list[Row]], Records] = every_way
) -> Records:
    """Runs a script every way and compares what became of its records with what it says."""
    lines = _read(script)
    records = run(spec, [row for row, _ in lines])
    said = becomes(records)
    expected = {(row[0], row[1]): words for row, words in lines}
    assert expected == {place: said.get(place, "") for place in expected}
    return records
