"""What all tests share: figures that tests measure are printed at the end of the run."""

import pytest

#: The property of a test that holds a measured figure.
FIGURE = "figure"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures of tests that passed."""
    reports = terminalreporter.stats.get("passed", [])
    lines = [line for report in reports for name, line in report.user_properties if name == FIGURE]
    if lines:
        terminalreporter.section("measured on this machine, in this run")
        for line in lines:
            terminalreporter.line(line)
