"""Ports that a directory keeps, so that what is started on it again is found at the same place."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from jobs.run import free_port


def kept_ports(folder: Path, names: Iterable[str], given: Mapping[str, int]) -> dict[str, int]:
    """Returns a port for each name: the given one, the one of last time, or a free one.

    Args:
        folder: remembers them, in ports.json.
        names: what they are for.
        given: those that are fixed.
    """
    file = folder / "ports.json"
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports = known | dict(given)
    for name in names:
        while name not in ports or list(ports.values()).count(ports[name]) > 1:
            ports[name] = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    return ports
