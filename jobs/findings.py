"""What checks found, for people: as a table, as warnings, or as one refusal."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        check: what was looked at.
        verdict: how it ended.
        told: one line where it is well; else what, found, needed and remedy.
    """

    check: str
    verdict: Verdict
    told: str


class PreflightError(RuntimeError):
    """A job that the preflight does not let start."""


def require(findings: Iterable[Finding], console: Console | None = None) -> None:
    """Shows warnings, and raises if anything failed.

    Args:
        findings: what the checks found.
        console: where warnings go; None for nowhere.

    Raises:
        PreflightError: tells all that failed.
    """
    failed = []
    for finding in findings:
        if finding.verdict is Verdict.FAILED:
            failed.append(f"{finding.check}: {finding.told}")
        elif finding.verdict is Verdict.WARNING and console:
            console.print(
                Text("warning", style="yellow"), Text(f"{finding.check}: {finding.told}"), sep=": "
            )
    if failed:
        raise PreflightError("\n".join(failed))


def findings_table(findings: Iterable[Finding]) -> Table:
    """Returns the findings as a table for people."""
    styles = {
        Verdict.OK: "green",
        Verdict.WARNING: "yellow",
        Verdict.FAILED: "bold red",
        Verdict.SKIPPED: "dim",
    }
    table = Table(title="preflight", title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        verdict = Text(finding.verdict.value, style=styles[finding.verdict])
        table.add_row(Text(finding.check), verdict, Text(finding.told))
    return table
