"""What the local cluster refuses or fails at, told so that it can be mended."""

from pathlib import Path

_LINES = 15


class LocalError(RuntimeError):
    """What is wrong, what was found, what is needed, and the remedy."""


def end_of(log: Path) -> str:
    """Returns the last lines of a log, indented, for a message; what is said if there are none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if not lines:
        return "    nothing in its log"
    return "\n".join(f"    {line[:300]}" for line in lines[-_LINES:])
