"""`run.json`: what ran, under which spec and models, and what came of it.

It is written last, so its presence says that a run is whole. Unlike the records it does hold
wall-clock figures: they describe this run and take part in nothing.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

_PACKAGES = ("tidegate", "onnxruntime", "numpy", "msgspec", "apache-flink")


class ModelUsed(msgspec.Struct, frozen=True):
    """A model of the run and the event time from which it held; null for the first."""

    digest: str
    from_event_time_ms: int | None


class Run(msgspec.Struct, frozen=True):
    """A complete run over a recorded log.

    `counts` holds `records`, `skipped`, `heartbeats`, `key_mismatch`, `predictions` by kind and
    `rejects` by reason (`late.applied` are late events that were applied under `late = "update"`).
    """

    engine: str
    spec_name: str
    generation: int
    spec_digest: str
    spec: dict[str, Any]
    models: list[ModelUsed]
    log_digest: str
    settings: dict[str, Any]
    versions: dict[str, str]
    counts: dict[str, Any]
    partitions: dict[str, dict[str, int]]
    seconds: float
    events_per_second: float


def versions() -> dict[str, str]:
    """Returns the versions that a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def grouped(counters: dict[str, int]) -> dict[str, Any]:
    """Returns a shard's flat counters with predictions by kind and rejects by reason."""
    counts: dict[str, Any] = {"records": 0, "predictions": {}, "rejects": {}}
    for name, n in sorted(counters.items()):
        group, _, rest = name.partition(".")
        if rest:
            counts[group][rest] = n
        else:
            counts[name] = n
    return counts


def write_run(run: Run, out_dir: Path) -> Path:
    """Writes `run.json` into a run's directory, whole or not at all."""
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / "run.json"
    partial = out_dir / ".run.json.partial"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
    partial.rename(path)
    return path
