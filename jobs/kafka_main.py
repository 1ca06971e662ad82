"""The live job for a cluster that starts it itself: application mode, or `flink run -pym`.

    flink run -pym jobs.kafka_main --spec /opt/tidegate/job/spec.toml

The code and the spec are where the job runs, in the image. What the cluster's configuration sets
wins over the settings of `jobs.flink_settings`: whoever deploys it decides.

It may run again at any time, because a JobManager that comes back does so before it restores the
job. So it must not judge what only holds for a start without state: `tidegate check` does that,
before. Writing the start offsets again does no harm, because a restored job has its own.
"""

import argparse
from pathlib import Path

from jobs.flink_settings import job_settings, live_settings
from jobs.kafka_job import Start, StartError, kafka_job, place_start
from jobs.pipeline import attach, environments
from schemas.spec import load_spec


def main(arguments: list[str] | None = None) -> None:
    """Builds the job of a spec and hands it to the cluster that runs this."""
    parser = argparse.ArgumentParser(prog="jobs.kafka_main", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the job spec, in the image")
    parser.add_argument(
        "--start", default="earliest", help="where a job without state begins: see tidegate submit"
    )
    told = parser.parse_args(arguments)
    spec = load_spec(told.spec)
    try:
        start = Start.parse(told.start)
    except StartError as error:
        parser.error(f"--start: {error}")
    job = kafka_job(spec, str(told.spec.absolute()))
    place_start(spec, start)
    env, tables = environments(job_settings() | live_settings(), overridable=True)
    attach(env, tables, job)
    env.execute_async(job.name)


if __name__ == "__main__":
    main()
