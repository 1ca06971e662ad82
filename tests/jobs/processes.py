"""The processes of a run, as /proc tells them."""

import os
from pathlib import Path


def children() -> set[str]:
    """Processes that this one started, directly or through one that it did; itself included."""
    parents = {}
    for entry in _entries():
        try:
            parents[entry.name] = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    found = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def processes_of(work: Path) -> list[str]:
    """Processes whose temporary files lie in this directory."""
    return [
        entry.name for entry in _entries() if f"TMPDIR={work}".encode() in _read(entry, "environ")
    ]


def workers_of(work: Path) -> list[int]:
    """The Python workers among them."""
    return [
        int(pid)
        for pid in processes_of(work)
        if b"beam_boot" in _read(Path("/proc", pid), "cmdline")
    ]


def _entries() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(entry: Path, name: str) -> bytes:
    try:
        return (entry / name).read_bytes()
    except OSError:
        return b""
