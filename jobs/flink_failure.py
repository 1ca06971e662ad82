"""What a failed job says, out of the two hundred lines that Flink says it in."""

import re

#: A Python worker's own traceback, as Beam passes it on inside a Java message.
_PYTHON = "Traceback (most recent call last):"
_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_JAVA_FRAME = re.compile(r"^\s+at |^\s+\.\.\. \d+ (?:common frames|more)")


def summarize(trace: str) -> str:
    """Returns the message of the exception that a job died of.

    That is the last line of the Python worker's traceback if there is one, with the lines of a
    message that has several; else the innermost Java cause; else the first line.
    """
    if _PYTHON in trace:
        return _python_error(trace)
    causes = _CAUSE.findall(trace)
    lines = trace.strip().splitlines()
    return str(causes[-1]) if causes else (lines[0] if lines else "no message")


def _python_error(trace: str) -> str:
    lines = trace[trace.index(_PYTHON) :].splitlines()[1:]
    message: list[str] = []
    for line in lines:
        if _JAVA_FRAME.match(line) or line.startswith("Caused by: "):
            break
        if line.startswith((" ", "\t")) and not message:
            continue  # a frame of the traceback, or its source line
        if line.startswith((_PYTHON, "The above exc", "During handling")):
            message = []  # a chain: the last link is what ended the job
            continue
        message.append(line)
    return "\n".join(message).strip() or "no message"
