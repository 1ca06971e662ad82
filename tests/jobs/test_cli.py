"""The command line: what it passes on, what it says, and how it ends."""

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jobs.cli import app
from jobs.run import RunResult
from replay.drive import ReplayResult
from schemas.log import LogRow, manifest_path, write_log

ROOT = Path(__file__).parent.parent.parent
SPEC = ROOT / "examples" / "shipments" / "shipments.toml"
COUNTERS = {"records": 100, "predictions.on_time": 97, "rejects.late": 3}
RAN = RunResult(100, COUNTERS, {0: COUNTERS}, 0.5, 2.0, "17 (here)")
REPLAYED = ReplayResult(100, COUNTERS, {0: COUNTERS}, 2.0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of a hundred simulated records."""
    path = tmp_path / "log.jsonl"
    result = _run("simulate", "shipments", "--events", 100, "--keys", 10, "--out", path, "-q")
    assert (0, "") == (result.exit_code, result.output)
    return path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _says(result: Result, code: int, *parts: str) -> None:
    """Asserts an exit code, a message on stderr with these parts, and no traceback anywhere."""
    assert code == result.exit_code, result.output
    told = _plain(result.stderr)
    assert "Traceback" not in result.output
    for part in parts:
        assert part in told


def _fake(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, function: Callable[..., Any]
) -> None:
    fake = types.ModuleType(module)
    setattr(fake, name, function)
    monkeypatch.setitem(sys.modules, module, fake)


def _command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# ---- help


@pytest.mark.parametrize(
    ("command", "teaches"),
    [
        ([], ["check", "run", "replay", "simulate", "schemas", "Exit codes"]),
        (["check"], ["Example: tidegate check", "--log"]),
        (["run"], ["--log", "--out", "--parallelism", "--open-end", "--overwrite", "predictions/"]),
        (["replay"], ["--batch-rows", "without Flink", "Example: tidegate replay"]),
        (["simulate", "shipments"], ["--disorder", "--late", "Example: tidegate simulate"]),
        (["schemas"], ["JSON Schemas", "--out"]),
    ],
)
def test_help_teaches_what_is_read_and_written(command: list[str], teaches: list[str]) -> None:
    """Every command says what it reads and writes, with an example and the exit codes."""
    result = _run(*command, "--help")
    assert 0 == result.exit_code
    told = " ".join(_plain(result.stdout).split())
    assert [] == [part for part in [*teaches, "Exit codes"] if part not in told]


def test_without_a_command_the_help_is_shown() -> None:
    """Alone, the command explains itself, and is a usage error to scripts."""
    result = _run()
    assert 2 == result.exit_code
    assert "simulate" in result.output


def test_the_version_is_shown() -> None:
    """--version names the program and needs no command."""
    result = _run("--version")
    assert 0 == result.exit_code
    assert result.stdout.startswith("tidegate")


# ---- check


def test_check_shows_what_the_job_would_do(log: Path) -> None:
    """Spec, policy in readable spans, features, model and log are shown; a run is not needed."""
    result = _run("check", SPEC, "--log", log)
    assert 0 == result.exit_code, result.output
    told = " ".join(result.stdout.split())
    for part in (
        "shipments.events, 4 partitions by murmur2",
        "1 h behind its partition's newest event",
        "repredict",
        "10 columns",
        "sha256:",
        "h -> h_next float32 [16]",
        "100",
    ):
        assert part in told


def test_check_is_silent_when_asked() -> None:
    """With --quiet only the exit code speaks."""
    result = _run("check", SPEC, "--offline", "--quiet")
    assert (0, "") == (result.exit_code, result.output)


def test_a_spec_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The path and a remedy, exit code 3."""
    _says(_run("check", tmp_path / "no.toml"), 3, "refused", "no.toml", "remedy")


def test_a_spec_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    """The key path is named, exit code 3."""
    spec = tmp_path / "s.toml"
    spec.write_text(SPEC.read_text().replace('tombstone = "reject"', 'tombston = "reject"'))
    _says(_run("check", spec), 3, "refused", "tombston", "remedy")


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The model's path is named, exit code 3."""
    spec = tmp_path / "s.toml"
    spec.write_text(SPEC.read_text())
    _says(_run("check", spec), 3, "refused", "model.onnx", "remedy")


def test_a_log_of_another_topic_is_refused(tmp_path: Path) -> None:
    """Both numbers of partitions are named, exit code 3."""
    path = tmp_path / "log.jsonl"
    write_log(path, [LogRow(0, 0, 0, b"k", b"{}")], partitions=8)
    _says(_run("check", SPEC, "--log", path), 3, "8 partitions", "4 partitions", "remedy")


# ---- simulate


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz", "s.parquet"])
def test_simulate_writes_a_log_and_says_so(tmp_path: Path, name: str) -> None:
    """The closing line has count, rate and path; log and manifest are there."""
    out = tmp_path / "new" / name
    result = _run("simulate", "shipments", "--events", 1000, "--keys", 20, "--out", out)
    assert 0 == result.exit_code
    assert re.fullmatch(r"1,000 records in [\d.,]+ s \([\d,]+/s\); the log is .*\n", result.stdout)
    assert 1000 == json.loads(manifest_path(out).read_text())["rows"]


def test_settings_that_contradict_each_other_are_a_usage_error(tmp_path: Path) -> None:
    """Exit code 2, and nothing is written."""
    out = tmp_path / "s.jsonl"
    result = _run("simulate", "shipments", "--events", 10, "--keys", 20, "--out", out)
    _says(result, 2, "error", "20 keys", "10 events")
    assert [] == list(tmp_path.iterdir())


def test_a_log_with_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    """The known forms are listed, exit code 3."""
    out = tmp_path / "s.csv"
    result = _run("simulate", "shipments", "--events", 10, "--keys", 2, "--out", out)
    _says(result, 3, ".csv", ".jsonl or .jsonl.gz or .parquet")


# ---- run and replay


def test_run_passes_everything_on(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job gets paths, parallelism and open end; the closing line counts what it reported."""
    seen: dict[str, Any] = {}

    def run_log(spec: Path, log: Path, out: Path, **options: Any) -> RunResult:
        options.pop("progress")(100)
        seen.update(spec=spec, log=log, out=out, **options)
        return RAN

    _fake(monkeypatch, "jobs.run", "run_log", run_log)
    out = tmp_path / "out"
    result = _run("run", SPEC, "--log", log, "--out", out, "--parallelism", 2, "--open-end")
    assert 0 == result.exit_code, result.output
    assert {
        "spec": SPEC,
        "log": log,
        "out": out,
        "parallelism": 2,
        "open_end": True,
        "settings": {},
    } == seen
    assert "100 events in 2.0 s, Flink's start included: 50 events/s" in result.stdout
    run = json.loads((out / "run.json").read_text())
    assert ("flink", 100, {"late": 3}) == (
        run["engine"],
        run["counts"]["records"],
        run["counts"]["rejects"],
    )


def test_replay_passes_everything_on(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay gets the loaded spec and the batch size; with --quiet nothing is said."""
    seen: dict[str, Any] = {}

    def replay_log(spec: Any, log: Path, out: Path, **options: Any) -> ReplayResult:
        options.pop("progress")(100)
        seen.update(spec=spec.name, log=log, out=out, **options)
        return REPLAYED

    _fake(monkeypatch, "replay.drive", "replay_log", replay_log)
    out = tmp_path / "out"
    result = _run("replay", SPEC, "--log", log, "--out", out, "--batch-rows", 7, "--quiet")
    assert (0, "") == (result.exit_code, result.output)
    expected = {"spec": "shipments", "log": log, "out": out, "batch_rows": 7, "open_end": False}
    assert expected == seen


@pytest.mark.parametrize("command", ["run", "replay"])
def test_outputs_of_an_earlier_run_are_kept_unless_told(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Exit code 2 without --overwrite; with it they go, and other files stay."""
    _fake(monkeypatch, "jobs.run", "run_log", lambda *_, **__: RAN)
    _fake(monkeypatch, "replay.drive", "replay_log", lambda *_, **__: REPLAYED)
    out = tmp_path / "out"
    (out / "predictions").mkdir(parents=True)
    (out / "predictions" / "0.jsonl").write_text("{}")
    (out / "run.json").write_text("{}")
    (out / "mine.txt").write_text("keep")
    arguments = [command, SPEC, "--log", log, "--out", out]
    _says(_run(*arguments), 2, "predictions, run.json", "--overwrite")
    _says(_run(command, tmp_path / "no.toml", *arguments[2:], "--overwrite"), 3, "no.toml")
    assert (out / "predictions" / "0.jsonl").exists()
    assert 0 == _run(*arguments, "--overwrite").exit_code
    assert ["mine.txt", "run.json"] == sorted(path.name for path in out.iterdir())
    assert "{}" != (out / "run.json").read_text()


def test_more_subtasks_than_partitions_are_a_usage_error(tmp_path: Path, log: Path) -> None:
    """Both numbers are named, exit code 2."""
    result = _run("run", SPEC, "--log", log, "--out", tmp_path / "o", "--parallelism", 5)
    _says(result, 2, "--parallelism 5", "4 partitions")


def test_an_out_that_is_a_file_is_a_usage_error(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's file is replaced by a directory."""
    _fake(monkeypatch, "replay.drive", "replay_log", lambda *_, **__: None)
    (tmp_path / "o").write_text("mine")
    _says(_run("replay", SPEC, "--log", log, "--out", tmp_path / "o"), 2, "is a file")


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Exit code 3, before anything is written."""
    result = _run("run", SPEC, "--log", tmp_path / "no.jsonl", "--out", tmp_path / "o")
    _says(result, 3, "no such log", "remedy")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RuntimeError("the broker is gone"), 1, "failed: the broker is gone"),
        (ZeroDivisionError(), 1, "no message"),
        (ModuleNotFoundError("no", name="pyflink.table"), 1, "pip install 'tidegate[cluster]'"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_a_run_that_fails_says_why_in_a_line(
    tmp_path: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    says: str,
) -> None:
    """Exit code 1 and the message, 130 for Ctrl-C; the traceback only where it is asked for."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    _fake(monkeypatch, "jobs.run", "run_log", fail)
    monkeypatch.delenv("TIDEGATE_DEBUG", raising=False)
    _says(_run("run", SPEC, "--log", log, "--out", tmp_path / "o"), code, says)
    if code == 1:
        monkeypatch.setenv("TIDEGATE_DEBUG", "1")
        result = _run("run", SPEC, "--log", log, "--out", tmp_path / "o")
        assert "Traceback" in result.stderr


# ---- as a process


def test_a_pipe_gets_no_progress_and_errors_go_to_stderr(tmp_path: Path) -> None:
    """Where no person looks, stdout has the closing line only, and stderr has nothing."""
    out = tmp_path / "s.jsonl"
    done = _command("simulate", "shipments", "--events", 50_000, "--keys", 500, "--out", out)
    assert (0, "") == (done.returncode, done.stderr)
    assert 1 == done.stdout.count("\n")
    failed = _command("check", tmp_path / "no.toml")
    assert (3, "") == (failed.returncode, failed.stdout)
    assert failed.stderr.startswith("refused: ")


def test_help_needs_no_flink_and_no_onnx_runtime() -> None:
    """The command line loads what it needs when it needs it."""
    code = (
        "import sys; from typer.testing import CliRunner; from jobs.cli import app;"
        "CliRunner().invoke(app, ['--help']);"
        "print([m for m in ('pyflink', 'onnxruntime', 'onnx', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "[]\n" == done.stdout


def test_the_same_seed_gives_the_same_log_from_the_command_line(tmp_path: Path) -> None:
    """Two processes under two hash seeds write the same bytes."""
    for seed in ("1", "2"):
        done = _command(
            *("simulate", "shipments", "--events", 2000, "--keys", 40, "--seed", 3, "-q"),
            *("--out", tmp_path / f"{seed}.jsonl.gz"),
            PYTHONHASHSEED=seed,
        )
        assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert (tmp_path / "1.jsonl.gz").read_bytes() == (tmp_path / "2.jsonl.gz").read_bytes()
