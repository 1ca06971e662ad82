"""The input that all contenders share: one simulated log, its spec and its model.

Events of about 110 bytes, evenly over keys and over event time. A share of them arrives just after
the next event of its own key: out of order by the time between two events of a key, which is
exponential, so that under the spec's bound some are still on time and most are late.

Made once for given settings, and kept: the folder's name holds a digest of the settings and of the
code that makes the files.
"""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from examples.shipments.make_model import make_model
from jobs import log_files
from operators import partitioner
from schemas.log import Columns, LogWriter, read_log
from schemas.records import RecordBatch
from tests.benchmarks.per_event import COLUMNS, FEATURES

Int64s = NDArray[np.int64]

START_MS: Final = 1_700_000_000_000
HIDDEN: Final = 16
LATE: Final = ("drop", "repredict")
#: Mean event time between two events of a key; the spec's times below are fractions of it.
KEY_GAP_MS: Final = 100_000
_BLOCK_ROWS: Final = 1 << 16
_NO_NEXT: Final = -1

SPEC: Final = """\
name = "bench"
generation = 1

[source]
topic = "bench.events"
partitions = {partitions}
partitioner = "murmur2"

[event]
key = "shipment_id"
time = {{ field = "event_time", unit = "ms" }}

[event.fields]
hub = "int"
carrier = "int"
weight = "float"
lane = "int"

[time]
out_of_orderness_ms = 30_000
allowed_lateness_ms = 300_000
max_future_ms = 60_000
min_event_time_ms = 946_684_800_000

[policy]
emit = "on_event"
late = "{late}"
idle_ttl_ms = 86_400_000
finished_ttl_ms = 86_400_000

{features}
[model]
path = "model.onnx"
input = "x"
output = "y"
states = [{{ input = "h", output = "h_next" }}]
batch = "any"

[sink]
predictions = "bench.predictions"
rejects = "bench.rejects"
guarantee = "idempotent"
features = false
"""


@dataclass(frozen=True)
class Settings:
    """What to simulate.

    Attributes:
        events: records of the log.
        few_events: records of its beginning that the slow contenders get.
        keys: stream keys.
        partitions: of the topic.
        disorder: share of events that arrive after a later event of their own key.
        seed: of every draw.
    """

    events: int = 2_000_000
    few_events: int = 200_000
    keys: int = 20_000
    partitions: int = 4
    disorder: float = 0.05
    seed: int = 1


class Facts(msgspec.Struct, frozen=True):
    """What the log turned out to be, measured on it.

    Attributes:
        events: records of the log.
        few_events: records of its beginning that the slow contenders get.
        keys: stream keys that have events.
        disordered: share of events that arrive after a later event of their own key.
        mean_value_bytes: mean size of a value.
    """

    events: int
    few_events: int
    keys: int
    disordered: float
    mean_value_bytes: float


@dataclass(frozen=True)
class Input:
    """The files of an input, all in one folder."""

    folder: Path

    def spec(self, late: str) -> Path:
        """The spec with a late policy."""
        return self.folder / f"{late}.toml"

    @property
    def model(self) -> Path:
        """The step model."""
        return self.folder / "model.onnx"

    def log(self, suffix: str) -> Path:
        """The log in one of its forms, `.jsonl` or `.parquet`."""
        return self.folder / f"log{suffix}"

    @property
    def files(self) -> Path:
        """The partition files that Flink reads."""
        return self.folder / "partitions"

    @property
    def few_files(self) -> Path:
        """The partition files of the log's beginning."""
        return self.folder / "few"

    @property
    def facts(self) -> Facts:
        """What the log turned out to be; the file is written last."""
        return msgspec.json.decode((self.folder / "facts.json").read_bytes(), type=Facts)


def make_input(settings: Settings, root: Path) -> Input:
    """Returns the input of these settings, made if it is not there yet."""
    made = Input(root / f"input-{_digest(settings)}")
    if (made.folder / "facts.json").exists():
        return made
    shutil.rmtree(made.folder, ignore_errors=True)
    made.files.mkdir(parents=True)
    made.few_files.mkdir()
    onnx.save(make_model(features=COLUMNS, hidden=HIDDEN), made.model)
    for late in LATE:
        text = SPEC.format(partitions=settings.partitions, late=late, features=FEATURES)
        made.spec(late).write_text(text)
    facts, few = _write_logs(settings, made)
    log_files.write_partition_files(read_log(made.log(".parquet")), made.files)
    log_files.write_partition_files(_first(read_log(made.log(".parquet")), few), made.few_files)
    (made.folder / "facts.json").write_bytes(msgspec.json.encode(facts))
    return made


def _digest(settings: Settings) -> str:
    sources = [Path(__file__), Path(log_files.__file__), Path(partitioner.__file__)]
    parts = [repr(sorted(asdict(settings).items())).encode(), FEATURES.encode()]
    parts += [source.read_bytes() for source in sources]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _write_logs(settings: Settings, made: Input) -> tuple[Facts, list[int]]:
    """Writes the log in its forms; also returns the rows of each partition in its beginning."""
    rng = np.random.default_rng(settings.seed)
    n = settings.events
    spacing_ms = max(1, KEY_GAP_MS // settings.keys)
    keys = rng.integers(settings.keys, size=n)
    times = START_MS + np.arange(n, dtype=np.int64) * spacing_ms
    arrivals = _arrivals(rng, keys, times, settings.disorder)
    order = np.argsort(arrivals, kind="stable")
    keys, times, arrivals = keys[order], times[order], arrivals[order]
    names = [f"s{key}".encode() for key in range(settings.keys)]
    partitions = partitioner.partitions_for(names, "murmur2", settings.partitions)[keys]
    offsets = _offsets(partitions)
    attributes = {
        "hub": rng.integers(50, size=n),
        "carrier": rng.integers(5, size=n),
        "weight": rng.integers(10_000, size=n) / 10_000,
        "lane": rng.integers(200, size=n),
    }
    value_bytes = 0
    with (
        LogWriter(made.log(".jsonl"), settings.partitions) as lines,
        LogWriter(made.log(".parquet"), settings.partitions) as columns,
    ):
        for start in range(0, n, _BLOCK_ROWS):
            some = slice(start, start + _BLOCK_ROWS)
            key_names = [names[key] for key in keys[some].tolist()]
            values = _values(
                key_names, times[some], {name: all_[some] for name, all_ in attributes.items()}
            )
            value_bytes += sum(map(len, values))
            block = Columns(
                partitions[some], offsets[some], arrivals[some], list(key_names), list(values)
            )
            lines.write(block)
            columns.write(block)
    facts = Facts(
        events=n,
        few_events=min(n, settings.few_events),
        keys=len(np.unique(keys)),
        disordered=disordered_share(keys, times),
        mean_value_bytes=value_bytes / n,
    )
    few = np.bincount(partitions[: settings.few_events], minlength=settings.partitions)
    return facts, few.tolist()


def _values(
    keys: list[bytes], times: Int64s, attributes: dict[str, NDArray[np.generic]]
) -> list[bytes]:
    # Spaced as json.dumps does by default, as many producers send it.
    return [
        (
            f'{{"shipment_id": "{key.decode()}", "event_time": {time}, "hub": {hub}, '
            f'"carrier": {carrier}, "weight": {weight}, "lane": {lane}}}'
        ).encode()
        for key, time, hub, carrier, weight, lane in zip(
            keys, times.tolist(), *(column.tolist() for column in attributes.values()), strict=True
        )
    ]


def _arrivals(rng: np.random.Generator, keys: Int64s, times: Int64s, share: float) -> Int64s:
    """The time at which each event arrives: its own, or just after the key's next event.

    Two events of a key that follow each other are never both held back: the first would arrive
    after no later one.
    """
    by_key = np.argsort(keys, kind="stable")
    following = np.full(len(keys), _NO_NEXT)
    same = keys[by_key[:-1]] == keys[by_key[1:]]
    following[by_key[:-1][same]] = by_key[1:][same]
    wanted = round(share * len(keys))
    drawn = rng.random(len(keys)) < 1.3 * share
    drawn &= following != _NO_NEXT
    drawn &= ~drawn[following]
    held = np.flatnonzero(drawn)
    if len(held) < wanted:
        raise ValueError(f"{len(held)} events can be out of order, {wanted} are wanted: fewer keys")
    held = rng.choice(held, wanted, replace=False)
    arrivals = times.copy()
    arrivals[held] = times[following[held]] + 1
    return arrivals


def _offsets(partitions: Int64s) -> Int64s:
    offsets = np.empty(len(partitions), np.int64)
    for partition in np.unique(partitions).tolist():
        rows = np.flatnonzero(partitions == partition)
        offsets[rows] = np.arange(len(rows))
    return offsets


def disordered_share(keys: Int64s, times: Int64s) -> float:
    """Returns the share of events that come after a later event of their own key."""
    by_key = np.argsort(keys, kind="stable")
    sorted_times = times[by_key]
    starts = np.flatnonzero(np.r_[True, np.diff(keys[by_key]) != 0])
    # Each key's times are lifted above all times of the keys before it.
    lift = np.zeros(len(keys), np.int64)
    lift[starts[1:]] = int(times.max() - times.min()) + 1
    lifted = sorted_times + np.cumsum(lift)
    return float((lifted < np.maximum.accumulate(lifted)).mean())


def _first(batches: Iterator[RecordBatch], rows: list[int]) -> Iterator[RecordBatch]:
    """The beginning of a log: so many rows of each partition."""
    left = list(rows)
    for batch in batches:
        some = batch.slice(0, left[batch.partition])
        if len(some):
            yield some
            left[batch.partition] -= len(some)
