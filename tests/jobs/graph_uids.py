"""Prints, as JSON, the uids of the job's graph in some variants; run in a process of its own.

PyFlink takes over the process it starts a JVM in, so the tests do not do it in theirs.
"""

import json
import sys
from pathlib import Path
from typing import Any

from jobs import pipeline
from jobs.flink_settings import job_settings
from jobs.pipeline import LogJob, attach, environments


def uids(folder: Path, parallelism: int, sinks: tuple[str, ...], open_end: bool) -> dict[str, Any]:
    """Builds the graph; returns the name of the operator under each uid, as Flink will run it."""
    pipeline.SINKS = sinks
    env, tables = environments(job_settings(), parallelism)
    job = LogJob(folder / "spec.toml", 4, folder, folder / "out", open_end=open_end)
    attach(env, tables, job)
    nodes = {}
    for node in (
        env._j_stream_execution_environment.getStreamGraph(False).getStreamNodes().toArray()
    ):
        nodes[str(node.getTransformationUID())] = str(node.getOperatorName())
    return nodes


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(
        json.dumps(
            {
                "all": uids(where, 1, ("predictions", "rejects", "counters"), False),
                "parallel": uids(where, 4, ("predictions", "rejects", "counters"), True),
                "one sink": uids(where, 1, ("predictions",), False),
                "other order": uids(where, 1, ("counters", "predictions"), False),
            }
        )
    )
