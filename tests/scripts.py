"""Cases, and how they are shown: as aligned event scripts, times relative to the first one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.oracle import Row
from tests.random_jobs import Setup, columns, model_bytes, model_name, spec_text


@dataclass(frozen=True)
class Case:
    """A job and its log."""

    setup: Setup
    rows: list[Row]
    seed: str | None = None

    @property
    def spec_text(self) -> str:
        """The TOML of the job."""
        return spec_text(self.setup)

    def write(self, folder: Path) -> Path:
        """Writes the spec and its models into the folder and returns the spec's path."""
        width = columns(self.setup.features)
        wanted = [(self.setup.model, self.setup.seed)]
        wanted += [(kind, seed) for kind, seed, _, _ in self.setup.cutovers]
        for kind, seed in wanted:
            path = folder / model_name(kind, width, seed)
            if not path.exists():
                path.write_bytes(model_bytes(kind, width, seed))
        path = folder / "spec.toml"
        path.write_text(self.spec_text, encoding="utf-8")
        return path

    def script(self, **outcomes: dict[tuple[int, int], str]) -> str:
        """The case as an aligned event script, one column for each answer given."""
        setup = self.setup
        head = (
            f"seed={self.seed} emit={setup.emit} late={setup.late} tick={setup.tick_ms}ms,"
            f" in ticks: out_of_orderness={setup.out_of_orderness} allowed={setup.allowed_lateness}"
            f" idle_ttl={setup.idle_ttl} finished_ttl={setup.finished_ttl}\n"
            f"unit={setup.unit} offset={setup.offset} tombstone={setup.tombstone}"
            f" partitioner={setup.partitioner}/{setup.partitions} nullable={setup.nullable}"
            f" ids={setup.ids} model={setup.model} cutovers={setup.cutovers}"
            f" start_ms={setup.start_ms}\n"
            f"features={[dict(each) for each in setup.features]}"
        )
        table = [["p", "offset", "stamp", "kafka key", "value", *outcomes]]
        last: dict[int, int] = {}
        for partition, offset, stamp, key, value in self.rows:
            redelivered = offset <= last.get(partition, -1)
            last[partition] = max(offset, last.get(partition, -1))
            cells = [str(partition), str(offset), f"{stamp - setup.start_ms:+}", short(key)]
            cells.append(short(value))
            for answers in outcomes.values():
                answer = answers.get((partition, offset), "-")
                cells.append("(redelivered)" if redelivered else answer)
            table.append(cells)
        return head + "\n" + aligned(table)


def smaller(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Takes rows away from a failing case for as long as it still fails."""
    size = len(case.rows) // 2
    while size:
        start = 0
        while start < len(case.rows):
            candidate = replace(case, rows=case.rows[:start] + case.rows[start + size :])
            if candidate.rows and fails(candidate):
                case = candidate
            else:
                start += size
        size //= 2
    return case


def aligned(table: list[list[str]]) -> str:
    """Rows of cells as columns of text."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def short(content: bytes | None) -> str:
    """Bytes as one readable cell."""
    if content is None:
        return "null"
    text = content.decode("utf-8", "backslashreplace").encode("unicode_escape").decode()
    return text if len(text) <= 150 else f"{text[:110]}...{len(text)}"


def outcomes(
    predictions: list[dict[str, Any]], rejects: list[dict[str, Any]], start_ms: int = 0
) -> dict[tuple[int, int], str]:
    """What became of each (partition, offset), in a few words, times relative to the start."""
    found: dict[tuple[int, int], list[str]] = {}
    for each in predictions:
        place = each["trigger"]["partition"], each["trigger"]["offset"]
        words = (
            f"{each['kind']} {each['epoch'] - start_ms}#{each['sequence']}"
            f" t={each['event_time_ms'] - start_ms} W={each['watermark_ms'] - start_ms}"
            f" y={each['prediction']} n={each['events_seen']}/{each['late_seen']}"
            f"{' final' if each['final'] else ''}"
        )
        found.setdefault(place, []).append(words)
    for each in rejects:
        words = f"{each['reason']} {each['lateness_ms']}{' applied' if each['applied'] else ''}"
        found.setdefault((each["partition"], each["offset"]), []).append(words)
    return {place: " & ".join(sorted(words)) for place, words in found.items()}
