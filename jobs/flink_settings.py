"""Every Flink setting that is not Flink's default, each with its reason.

Figures are from 2 cores, Flink 2.3.0, JSON events of about 110 bytes.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

#: Records that are handed to Python at once.
ARROW_BATCH = 16_384
#: Records in one element of an output that goes to a file: all of a batch.
FILE_LINES_PER_ROW = 0


def job_settings(arrow_batch: int = ARROW_BATCH) -> dict[str, str]:
    """Returns what the packed job needs wherever it runs.

    Args:
        arrow_batch: the most records that `pack` takes at once.
    """
    return {
        # One call into Python for many records: throughput grows until about 16k.
        "python.fn-execution.arrow.batch.size": str(arrow_batch),
        # A bundle ends when either is reached, and at each checkpoint. The time bounds how long an
        # output waits; 1 s favours throughput. The size counts records for pack.
        "python.fn-execution.bundle.size": "100000",
        "python.fn-execution.bundle.time": "1000",
        # The write cache holds the keys touched in a bundle; if it is smaller, puts go out one by
        # one. The read cache must not evict below it either. Both are upper bounds, not memory.
        "python.map-state.read-cache-size": "10000000",
        "python.map-state.write-cache-size": "10000000",
        # A shard is read back in few round trips: a million keys in 4 s.
        "python.map-state.iterate-response-batch-size": "100000",
        # Rows are not changed after they are emitted, so copies between chained operators waste.
        "pipeline.object-reuse": "true",
        # The interpreter that runs this has the packages; `python` on the PATH may not.
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
    }


def embedded_settings(
    work: Path, *, rest_port: int, overrides: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns what an embedded run of a recorded log needs on top.

    Args:
        work: the directory of the run, where Flink's temporary files go.
        rest_port: a free loopback port, for progress.
        overrides: settings that win over all others.
    """
    return {
        # A failure is told at once. The log is still there, so a run is repeated, not resumed.
        "restart-strategy.type": "none",
        # The end of the input makes one more at once, so a short run has just that one.
        "execution.checkpointing.interval": "10s",
        # The default keeps checkpoints in the heap, and refuses state of 5 MB and more.
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        # Everything Flink puts on disk lies in the run's own directory and goes with it.
        "io.tmp.dirs": str(work / "tmp"),
        # Only this machine asks, and only for progress.
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": str(rest_port),
        "rest.bind-port": str(rest_port),
        "web.submit.enable": "false",
        "metrics.fetcher.update-interval": "500",
        # Python workers in this process take nothing from it, and the state is in the heap.
        "taskmanager.memory.managed.size": "256m",
        **(overrides or {}),
    }


#: Everything of the JVM goes to its standard output, which is the run's log file.
LOG4J_PROPERTIES = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = Out
appender.out.name = Out
appender.out.type = CONSOLE
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""
