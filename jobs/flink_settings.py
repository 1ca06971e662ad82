"""Every Flink setting that is not Flink's default, each with its reason.

Figures are from 2 cores, Flink 2.3.0, JSON events of about 110 bytes.
"""

import sys
from pathlib import Path

#: Records that are handed to Python at once.
ARROW_BATCH = 16_384


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
        # Timestamps of records reach Python as they are, wherever the machine is.
        "table.local-time-zone": "UTC",
        # Rows are not changed after they are emitted, so copies between chained operators waste.
        "pipeline.object-reuse": "true",
        # The interpreter that runs this has the packages; `python` on the PATH may not.
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
    }


def embedded_settings(work: Path, *, rest_port: int) -> dict[str, str]:
    """Returns what an embedded Flink needs on top.

    Args:
        work: the directory of the run, where Flink's temporary files go.
        rest_port: a free loopback port, for progress.
    """
    return {
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
    }


def recorded_log_settings() -> dict[str, str]:
    """Returns what the run of a recorded log needs on top of that."""
    return {
        # A failure is told at once. The log is still there, so a run is repeated, not resumed.
        "restart-strategy.type": "none",
    }


def live_settings() -> dict[str, str]:
    """Returns what a job on live topics needs, wherever it runs."""
    return {
        # A bundle's time bounds how long a record waits for others: 20 ms for a prediction that is
        # read at once. A fuller bundle is not cheaper once it holds some hundred records.
        "python.fn-execution.bundle.time": "20",
        # Buffers leave at once, for the same reason.
        "execution.buffer-timeout.interval": "1ms",
        # Flink takes these from whoever submits a job; a cluster's own configuration has no say.
        # Under `transactional` a prediction is seen at the next checkpoint, so ten seconds is also
        # its freshness; under `idempotent` it is what is read again after a failure.
        "execution.checkpointing.interval": "10s",
        "execution.checkpointing.timeout": "2min",
        # A checkpoint that fails is tried again; so many in a row mean something is wrong.
        "execution.checkpointing.tolerable-failed-checkpoints": "3",
        # A failure is mended as often as it happens; each time without a good spell in between the
        # wait doubles, so that a job that cannot go on does not hammer the broker.
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "1s",
        "restart-strategy.exponential-delay.max-backoff": "30s",
        "restart-strategy.exponential-delay.reset-backoff-threshold": "2min",
        # What is left of a job that was ended or lost is where the next one goes on.
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
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
