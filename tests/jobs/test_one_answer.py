"""The law: one log, one spec, one answer, whatever ran it and however it was cut and spread.

Both examples under every policy, on Flink at each parallelism, with batch sizes and Python hash
seeds rotated so that every pair of values of any two factors occurs; and in-process.
"""

import gzip
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pytest

from jobs.flink_process import EmbeddedFlink
from jobs.run import run_log
from jobs.simulate import MINUTE_MS, Settings, write_shipments
from replay.drive import replay_log
from schemas.log import LogRow, read_log
from schemas.spec import load_spec
from tests.jobs.example_specs import EXAMPLES, with_policy
from tests.jobs.flink_runs import Records, embedded, log_of, written
from tests.jobs.processes import processes_of

pytestmark = pytest.mark.slow

RECORDS = 1000
NAMES = ("flights", "shipments")
EMITS = ("on_event", "on_watermark")
LATES = ("drop", "update", "repredict")
PARALLELISMS = (1, 2, 4)
BATCHES = (1, 7, 16_384)
HASH_SEEDS = (1, 2)
POLICIES = tuple(itertools.product(NAMES, EMITS, LATES))


@dataclass(frozen=True)
class Case:
    """One run on Flink."""

    example: str
    emit: str
    late: str
    parallelism: int
    batch: int
    hash_seed: int

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))


def _cases() -> Iterator[Case]:
    """Every example, policy and parallelism; batch and seed go round with them."""
    for example, emit, late, parallelism in itertools.product(NAMES, EMITS, LATES, PARALLELISMS):
        turn = LATES.index(late) + PARALLELISMS.index(parallelism)
        seed = HASH_SEEDS[(NAMES.index(example) + EMITS.index(emit)) % 2]
        yield Case(example, emit, late, parallelism, BATCHES[turn % 3], seed)


CASES = tuple(_cases())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of each example, a spec of each policy, and the records of its replay."""
    folder = tmp_path_factory.mktemp("one-answer")
    with gzip.open(EXAMPLES / "flights" / "week.jsonl.gz") as week:
        (folder / "flights.jsonl").write_bytes(b"".join(itertools.islice(week, RECORDS)))
    _shipments(folder / "shipments.jsonl")
    for example, emit, late in POLICIES:
        spec = with_policy(example, _spec(folder, example, emit, late), emit=emit, late=late)
        if example == "shipments":
            text = spec.read_text()
            spec.write_text(text.replace('tombstone = "reject"', 'tombstone = "forget"'))
        replay_log(load_spec(spec), folder / f"{example}.jsonl", spec.with_suffix(""))
    return folder


def _shipments(path: Path) -> None:
    """Late events, duplicates, deliveries, heartbeats, and a tombstone now and then."""
    simulated = path.with_name("simulated.jsonl")
    settings = Settings(
        events=RECORDS,
        keys=50,
        disorder=0.2,
        late=0.1,
        duplicates=0.03,
        heartbeat_ms=120 * MINUTE_MS,
    )
    write_shipments(settings, simulated)
    rows = [
        LogRow(batch.partition, *each)
        for batch in read_log(simulated)
        for each in zip(
            batch.offsets.tolist(), batch.timestamps.tolist(), batch.keys, batch.values, strict=True
        )
    ]
    for i in range(50, len(rows), 97):
        rows[i] = rows[i]._replace(value=None)
    log_of(rows, path, 4)


def _spec(folder: Path, example: str, emit: str, late: str) -> Path:
    return folder / f"{example}-{emit}-{late}.toml"


def _replayed(folder: Path, example: str, emit: str, late: str) -> Records:
    return written(_spec(folder, example, emit, late).with_suffix(""))


@pytest.fixture(scope="module")
def runs(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[Records]]]:
    """All runs: a Flink for each hash seed, which takes them one after another."""
    with ExitStack() as stack:
        found: dict[Case, Future[Records]] = {}
        for seed in HASH_SEEDS:
            work = tmp_path_factory.mktemp(f"flink-{seed}")
            flink = stack.enter_context(embedded(work, PYTHONHASHSEED=str(seed)))
            queue = ThreadPoolExecutor(max_workers=1)
            stack.callback(queue.shutdown, cancel_futures=True)
            for case in CASES:
                if case.hash_seed == seed:
                    found[case] = queue.submit(_run, flink, work, folder, case)
        yield found


def _run(flink: EmbeddedFlink, work: Path, folder: Path, case: Case) -> Records:
    out = work / str(case)
    run_log(
        _spec(folder, case.example, case.emit, case.late),
        folder / f"{case.example}.jsonl",
        out,
        parallelism=case.parallelism,
        arrow_batch=case.batch,
        flink=flink,
    )
    processes = processes_of(work)
    assert processes
    for pid in processes:
        seed = f"PYTHONHASHSEED={case.hash_seed}".encode()
        assert seed in Path("/proc", pid, "environ").read_bytes().split(b"\0")
    return written(out)


def test_every_pair_of_values_of_two_factors_occurs() -> None:
    """Such as batches of 1 at parallelism 4, or `update` under the hash seed 2."""
    assert 36 == len(set(CASES))
    values = (NAMES, EMITS, LATES, PARALLELISMS, BATCHES, HASH_SEEDS)
    assert len(values) == len(fields(Case))
    for one, other in itertools.combinations(range(len(values)), 2):
        expected = set(itertools.product(values[one], values[other]))
        assert expected == {(astuple(case)[one], astuple(case)[other]) for case in CASES}


@pytest.mark.parametrize("example", NAMES)
def test_the_logs_hold_what_could_differ(folder: Path, example: str) -> None:
    """Late and disordered events, duplicates, and what else the example can have."""
    log = folder / f"{example}.jsonl"
    counters = replay_log(
        load_spec(_spec(folder, example, "on_event", "repredict")), log, folder / f"{example}-what"
    ).counters
    expected = {"predictions.on_time", "predictions.late_revision", "rejects.duplicate"}
    if example == "shipments":
        expected |= {"predictions.revision", "rejects.too_late", "rejects.after_terminal"}
        expected |= {"rejects.tombstone.applied", "heartbeats"}
    assert set() == {name for name in expected if not counters.get(name)}, counters


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flink_gives_the_records_of_the_replay(
    folder: Path, runs: dict[Case, Future[Records]], case: Case
) -> None:
    """Byte for byte after sorting."""
    expected = _replayed(folder, case.example, case.emit, case.late)
    assert expected["predictions"]
    assert expected == runs[case].result()


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("example", "emit", "late"), POLICIES)
def test_a_replay_is_the_same_in_any_batches(
    folder: Path, tmp_path: Path, example: str, emit: str, late: str, batch: int
) -> None:
    """Event by event, a few at a time, or all at once."""
    spec = load_spec(_spec(folder, example, emit, late))
    replay_log(spec, folder / f"{example}.jsonl", tmp_path / "out", batch_rows=batch)
    assert _replayed(folder, example, emit, late) == written(tmp_path / "out")


def test_a_replay_is_the_same_under_any_hash_seed(folder: Path, tmp_path: Path) -> None:
    """C19: in processes of their own, for that is when Python takes its seed."""
    code = (
        "import sys; from pathlib import Path; from replay.drive import replay_log\n"
        "from schemas.spec import load_spec\n"
        "folder, out = map(Path, sys.argv[1:])\n"
        "for spec in folder.glob('*.toml'):\n"
        "    log = folder / (spec.name.partition('-')[0] + '.jsonl')\n"
        "    replay_log(load_spec(spec), log, out / spec.stem, batch_rows=100)\n"
        "print(hash('tidegate'))"
    )
    hashes = set()
    for seed in HASH_SEEDS:
        out = tmp_path / str(seed)
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), str(out)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            cwd=EXAMPLES.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        hashes.add(done.stdout)
        for example, emit, late in POLICIES:
            expected = _replayed(folder, example, emit, late)
            assert expected == written(out / f"{example}-{emit}-{late}")
    assert len(HASH_SEEDS) == len(hashes)
