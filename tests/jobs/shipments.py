"""A small job of simulated shipments, in any policy."""

from pathlib import Path

from jobs.simulate import Settings, write_shipments
from tests.jobs.example_specs import with_policy


def shipments(
    folder: Path, *, events: int, keys: int, emit: str = "on_event", late: str = "repredict"
) -> tuple[Path, Path]:
    """Writes spec and log into a folder and returns their paths."""
    spec = with_policy("shipments", folder / "shipments.toml", emit=emit, late=late)
    log = folder / "log.jsonl"
    write_shipments(Settings(events=events, keys=keys, disorder=0.2, late=0.1), log)
    return spec, log
