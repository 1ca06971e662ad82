"""The Flink of the installed wheel: where it lies, its configuration, its command lines.

The JVMs are started directly, as Flink's scripts would, but without them: those take a layout of
directories that the wheel does not have, and leave shells between a process and its signals. How
much memory each part gets is computed by Flink itself, from the configuration.
"""

import importlib.util
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from deploy.local.errors import LocalError
from jobs.java import Java

#: The configuration that all clusters begin with.
BASE = Path(__file__).parents[1] / "flink" / "config.yaml"

_RESULT = "BASH_JAVA_UTILS_EXEC_RESULT:"
_MEMORY = {"jobmanager": "GET_JM_RESOURCE_PARAMS", "taskmanager": "GET_TM_RESOURCE_PARAMS"}
_CLASSES = {
    "jobmanager": "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
    "taskmanager": "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
    "zookeeper": "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer",
}


@dataclass(frozen=True)
class Distribution:
    """The Flink that the wheel apache-flink carries.

    Attributes:
        home: the directory with its bin, lib, opt and plugins.
        java: what runs it.
        connector: the Kafka connector's jar.
    """

    home: Path
    java: Java
    connector: Path

    @classmethod
    def find(cls, java: Java, connector: Path) -> "Distribution":
        """Returns that of this Python's environment.

        Raises:
            LocalError: there is none.
        """
        found = importlib.util.find_spec("pyflink")
        places = list(found.submodule_search_locations or ()) if found else []
        if not places or not list(Path(places[0]).glob("lib/flink-dist-*.jar")):
            raise LocalError(
                "no Flink\n"
                f"  found:  {places[0] if places else 'no package pyflink'}\n"
                "  needed: the wheel apache-flink, which carries Flink's jars\n"
                "  remedy: pip install 'tidegate[cluster]', or `make setup` in a source tree"
            )
        return cls(Path(places[0]), java, connector)

    @cached_property
    def classpath(self) -> str:
        """Jars of every process: Flink's lib, flink-python, the connector; flink-dist last."""
        jars = sorted(self.home.glob("lib/*.jar"), key=lambda jar: "flink-dist" in jar.name)
        python = sorted(self.home.glob("opt/flink-python-*.jar"))
        return os.pathsep.join(map(str, [*python, self.connector, *jars]))

    def environ(self, configuration: Path, temporary: Path) -> dict[str, str]:
        """The environment of every process."""
        return {
            **os.environ,
            "JAVA_HOME": str(self.java.home),
            "FLINK_CONF_DIR": str(configuration),
            "FLINK_LIB_DIR": str(self.home / "lib"),
            "FLINK_OPT_DIR": str(self.home / "opt"),
            "FLINK_PLUGINS_DIR": str(self.home / "plugins"),
            "MAX_LOG_FILE_NUMBER": "3",
            # What Python workers unpack and log lies with the rest.
            "TMPDIR": str(temporary),
        }

    def command(
        self, role: str, log: Path, options: Sequence[str], arguments: Sequence[str]
    ) -> list[str]:
        """The words that start a process.

        Args:
            role: jobmanager, taskmanager or zookeeper.
            log: where it logs; rolled over at 100 MB and at each start.
            options: the JVM's.
            arguments: its own.
        """
        return [
            self._program,
            *options,
            f"-Dlog.file={log}",
            f"-Dlog4j.configurationFile={(self.home / 'conf' / 'log4j.properties').as_uri()}",
            "-classpath",
            self.classpath,
            _CLASSES[role],
            *arguments,
        ]

    def memory(self, role: str, configuration: Path) -> tuple[list[str], list[str]]:
        """Computes the sizes of a process: options of its JVM, and arguments.

        Raises:
            LocalError: the sizes in the configuration contradict each other.
        """
        (dist,) = self.home.glob("lib/flink-dist-*.jar")
        jars = os.pathsep.join([str(self.home / "bin" / "bash-java-utils.jar"), str(dist)])
        command = [self._program, "-XX:TieredStopAtLevel=1", "-classpath", jars]
        command += ["org.apache.flink.runtime.util.bash.BashJavaUtils", _MEMORY[role]]
        done = subprocess.run(  # noqa: S603 (our own command)
            [*command, "--configDir", str(configuration)],
            capture_output=True,
            text=True,
            check=False,
        )
        results = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
        if done.returncode or len(results) != 2:
            told = (done.stderr + done.stdout).strip().splitlines()
            raise LocalError(
                f"Flink cannot divide the memory of a {role}\n"
                f"  found:  {told[0] if told else 'no answer'}\n"
                f"  needed: sizes that fit, in {configuration / 'config.yaml'}\n"
                f"  remedy: raise {role}.memory.process.size, or take a size out"
            )
        options, arguments = (line.removeprefix(_RESULT).split() for line in results)
        return options, arguments

    @property
    def _program(self) -> str:
        return str(self.java.home / "bin" / "java")


def read_base(path: Path = BASE) -> dict[str, str]:
    """Returns a configuration as Flink reads it: names joined by dots, values as text."""
    return dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8")), ""))


def write_configuration(folder: Path, settings: Mapping[str, str]) -> None:
    """Writes settings as the `config.yaml` of a directory, one line each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = yaml.safe_dump(dict(sorted(settings.items())), width=2**20, allow_unicode=True)
    (folder / "config.yaml").write_text(lines, encoding="utf-8")


def java_options(settings: Mapping[str, str], role: str) -> list[str]:
    """The JVM options that a configuration has for a role; Flink leaves them to its scripts."""
    names = ("env.java.opts.all", f"env.java.opts.{role}")
    return [word for name in names for word in shlex.split(settings.get(name, ""))]


def _flat(settings: Any, prefix: str) -> list[tuple[str, str]]:
    if not isinstance(settings, dict):
        text = str(settings).lower() if isinstance(settings, bool) else str(settings)
        return [(prefix, text)]
    return [
        pair
        for key, inner in settings.items()
        for pair in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    ]
