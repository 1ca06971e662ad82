"""A small job of simulated shipments, in any policy."""

import re
from pathlib import Path

from jobs.simulate import Settings, write_shipments

EXAMPLE = Path(__file__).parents[2] / "examples" / "shipments"


def shipments(
    folder: Path, *, events: int, keys: int, emit: str = "on_event", late: str = "repredict"
) -> tuple[Path, Path]:
    """Writes spec, model and log into a folder and returns the paths of spec and log."""
    text = (EXAMPLE / "shipments.toml").read_text()
    text = re.sub(r'(?m)^emit = "\w+"', f'emit = "{emit}"', text)
    text = re.sub(r'(?m)^late = "\w+"', f'late = "{late}"', text)
    text = re.sub(r'(?m)^path = "', f'path = "{EXAMPLE}/', text)
    spec = folder / "shipments.toml"
    spec.write_text(text)
    log = folder / "log.jsonl"
    write_shipments(Settings(events=events, keys=keys, disorder=0.2, late=0.1), log)
    return spec, log
