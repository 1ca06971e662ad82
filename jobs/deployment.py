"""A job on a cluster: submitted, watched, stopped, and replaced by its next version.

`upgrade` is the one that must never leave a job worse off than it found it: everything that can be
checked is checked while the old job runs; then it is stopped with a savepoint, the new one starts
from that, and must complete a checkpoint; if it does not, it is cancelled and the old release
starts from the same savepoint.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jobs.flink_failure import summarize
from jobs.flink_process import EmbeddedFlink
from jobs.flink_rest import ENDED, Cluster, ClusterError
from jobs.flink_settings import job_settings, live_settings
from jobs.jars import find_connector
from jobs.java import find_java
from jobs.job import Request
from jobs.kafka_job import Start, kafka_job, place_start
from jobs.releases import (
    SHIPPED_AS,
    SHIPPED_SPEC,
    Release,
    make_release,
    read_release,
    release_spec,
    releases_dir,
)
from operators.scorer import Scorer
from schemas.spec import Spec, load_spec

#: How long a job may take to run and to complete its first checkpoint.
HEALTHY_SECONDS = 180.0
#: How long a savepoint may take.
SAVEPOINT_SECONDS = 600.0

_POLL_SECONDS = 0.5
#: Restarts after which a job that should begin to run has failed: one can be a slot still held.
_RESTARTS = 2

Say = Callable[[str], None]


class DeploymentError(RuntimeError):
    """A job that cannot be deployed so, or did not become healthy."""


@dataclass(frozen=True)
class Deployed:
    """A job on a cluster.

    Attributes:
        job_id: Flink's id.
        release: what runs.
        parallelism: subtasks of each operator.
    """

    job_id: str
    release: Release
    parallelism: int


def submit(
    scorer: Scorer,
    cluster: Cluster,
    *,
    parallelism: int,
    savepoint: str | None = None,
    start: Start | None = None,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    say: Say = lambda _line: None,
) -> Deployed:
    """Ships code, models and spec to a cluster and starts the job there.

    Args:
        scorer: the spec, with its models loaded and checked.
        cluster: where to.
        parallelism: subtasks of each operator.
        savepoint: the state to go on from; None to begin without.
        start: where a job without state begins to read; not with `savepoint`.
        settings: Flink settings that win over those of `jobs.flink_settings`.
        environ: where secrets, and the directory of releases, are taken from.
        say: told what is being done.

    Raises:
        DeploymentError, ClusterError, KafkaError, FlinkError: it was not started.
    """
    spec = scorer.spec
    running = find_job(cluster, spec.name)
    if running:
        raise DeploymentError(
            f"job {spec.name!r} is on that cluster already\n"
            f"  found:  {running['jid']}, {running['state']}\n"
            "  needed: one job of a name: two would take the same transactions and outputs\n"
            "  remedy: `tidegate upgrade`, or `tidegate stop` first"
        )
    if savepoint is None:
        offsets = place_start(spec, start or Start("earliest"), environ=environ)
        told = ", ".join(f"{partition}: {offset:,}" for partition, offset in offsets.items())
        say(f"begins without state, at offsets {told}")
    release, folder = make_release(scorer, releases_dir(environ))
    say(f"release {release.id}, kept in {folder}")
    deployed = _start(
        spec,
        (release, folder),
        cluster,
        parallelism=parallelism,
        savepoint=savepoint,
        settings=settings or {},
        environ=environ,
    )
    _need_alone(cluster, spec.name, deployed.job_id)
    return deployed


def _need_alone(cluster: Cluster, name: str, job_id: str) -> None:
    """Cancels a job that was submitted while another of its name was, unless it came first."""
    alive = [job for job in cluster.jobs() if job["name"] == name and job["state"] not in ENDED]
    first = min(alive, key=lambda job: (job["start-time"], job["jid"]), default=None)
    if first is None or first["jid"] == job_id:
        return
    cluster.cancel(job_id)
    raise DeploymentError(
        f"job {name!r} was submitted twice at once\n"
        f"  found:  {first['jid']}, which came first and goes on\n"
        "  needed: one job of a name\n"
        "  remedy: nothing: this one was cancelled"
    )


def find_job(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """Returns the job of that name that is not over; None if there is none."""
    for job in cluster.jobs():
        if job["name"] == name and job["state"] not in ENDED:
            return job
    return None


def need_job(cluster: Cluster, name: str) -> dict[str, Any]:
    """Returns the job of that name that is not over.

    Raises:
        DeploymentError: there is none.
    """
    job = find_job(cluster, name)
    if job:
        return job
    others = [f"{each['name']} ({each['state']})" for each in cluster.jobs()]
    raise DeploymentError(
        f"no job {name!r} runs on {cluster.url}\n"
        f"  found:  {', '.join(others) or 'no job at all'}\n"
        "  remedy: `tidegate submit`, or correct --cluster"
    )


def wait_healthy(cluster: Cluster, deployed: Deployed, *, seconds: float = HEALTHY_SECONDS) -> None:
    """Waits until every task runs and a checkpoint has completed since.

    Raises:
        DeploymentError: the job ended, keeps failing, or is not there in time; names its failure.
    """
    job_id, until = deployed.job_id, time.monotonic() + seconds
    while True:
        try:
            job = cluster.job(job_id)
            counts = cluster.checkpoints(job_id).get("counts", {})
            restarts = cluster.restarts(job_id)
        except ClusterError:  # a JobManager that comes back may need a moment
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_SECONDS)
            continue
        if job["state"] == "RUNNING" and counts.get("completed", 0) > 0:
            return
        if job["state"] in ENDED or restarts >= _RESTARTS or time.monotonic() > until:
            trace = cluster.failure(job_id)
            raise DeploymentError(
                f"job {job_id} did not become healthy\n"
                f"  found:  {job['state']}, {restarts} restarts, "
                f"{counts.get('completed', 0)} checkpoints; "
                f"{summarize(trace) if trace else 'no failure told'}\n"
                f"  needed: every task running, and a checkpoint, within {seconds:.0f} s"
            )
        time.sleep(_POLL_SECONDS)


def upgrade(
    scorer: Scorer,
    cluster: Cluster,
    *,
    parallelism: int | None,
    directory: str | None,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    before_start: Callable[[str], None] = lambda _savepoint: None,
    healthy_seconds: float = HEALTHY_SECONDS,
    savepoint_seconds: float = SAVEPOINT_SECONDS,
    say: Say = lambda _line: None,
) -> Deployed:
    """Replaces the running job of that name by a new release, or puts the old one back.

    Args:
        scorer: the new spec, with its models loaded and checked.
        cluster: where it runs.
        parallelism: subtasks of each operator; None for as many as now.
        directory: where the savepoint goes; None for the cluster's own directory.
        settings: Flink settings that win over those of `jobs.flink_settings`.
        environ: where secrets, and the directory of releases, are taken from.
        before_start: called with the savepoint; what it raises puts the old job back.
        healthy_seconds: how long the new job may take to become healthy.
        savepoint_seconds: how long the savepoint may take.
        say: told what is being done.

    Raises:
        DeploymentError: the new job did not become healthy; says what runs now.
        ClusterError, ReleaseError: refused before anything was touched.
    """
    spec = scorer.spec
    job_id = str(need_job(cluster, spec.name)["jid"])
    parameters = cluster.parameters(job_id)
    old, old_folder = read_release(
        releases_dir(environ), spec.name, parameters.get("tidegate.release", "of another tool")
    )
    _same_log(spec, old, old_folder)
    old_parallelism = int(parameters["tidegate.parallelism"])
    old_settings = _settings_of(parameters)
    new = make_release(scorer, releases_dir(environ))
    say(f"release {old.id} runs as {job_id}; release {new[0].id} is to take its place")
    savepoint = _stopped(cluster, job_id, directory, savepoint_seconds)
    say(f"stopped with savepoint {savepoint}")
    started: Deployed | None = None
    try:
        before_start(savepoint)
        started = _start(
            spec,
            new,
            cluster,
            parallelism=parallelism or old_parallelism,
            savepoint=savepoint,
            settings=settings or old_settings,
            environ=environ,
        )
        say(f"started as {started.job_id}; waiting until it is healthy")
        wait_healthy(cluster, started, seconds=healthy_seconds)
    except (Exception, KeyboardInterrupt) as error:  # a Ctrl-C must not leave nothing running
        why = str(error) or "it was interrupted"
        say("the new release failed: putting the old one back")
        try:
            if started:
                _end(cluster, started.job_id)
            back = _put_back(
                (old, old_folder), cluster, old_parallelism, savepoint, old_settings, environ
            )
        except (Exception, KeyboardInterrupt) as second:
            raise DeploymentError(
                "upgrade failed, and the old release did not come back: see `tidegate status`\n"
                f"  why:    {why}\n"
                f"  then:   {str(second) or 'it was interrupted'}\n"
                f"  remedy: `tidegate submit SPEC --savepoint {savepoint}` with the spec that ran; "
                f"what was shipped for it is in {old_folder}"
            ) from error
        raise DeploymentError(
            f"upgrade failed; release {old.id} runs again, as {back.job_id}\n"
            f"  why:    {why}\n"
            f"  nothing is lost: it went on from {savepoint}"
        ) from error
    return started


def _stopped(cluster: Cluster, job_id: str, directory: str | None, seconds: float) -> str:
    """Stops a job with a savepoint; whatever comes between, says that it may still stop."""
    try:
        return cluster.stop(job_id, directory, wait_seconds=seconds)
    except (ClusterError, KeyboardInterrupt) as error:
        raise DeploymentError(
            f"nothing was upgraded, but job {job_id} may stop yet\n"
            f"  found:  {str(error) or 'an interrupt'}, while its savepoint was being taken\n"
            f"  remedy: see `tidegate status`; if it has ended, {cluster.url}/#/job/completed/"
            f"{job_id} names its savepoint, for `tidegate submit SPEC --savepoint URI`"
        ) from error


def _same_log(spec: Spec, old: Release, folder: Path) -> None:
    """The state holds positions of one log; in another they would pass for its own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as work:
        before = load_spec(release_spec(folder, Path(work)))
    if before.source.topic != spec.source.topic:
        raise DeploymentError(
            "an upgrade cannot change the topic that is read\n"
            f"  found:  source.topic = {spec.source.topic!r}\n"
            f"  needed: {before.source.topic!r}, which release {old.id} reads: offsets and state "
            "are of that log\n"
            "  remedy: `tidegate stop`, then `tidegate submit` under a new generation"
        )


def _put_back(
    release: tuple[Release, Path],
    cluster: Cluster,
    parallelism: int,
    savepoint: str,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
) -> Deployed:
    """Starts a release that ran before from the savepoint it was stopped with."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as work:
        spec = load_spec(release_spec(release[1], Path(work)))
    back = _start(
        spec,
        release,
        cluster,
        parallelism=parallelism,
        savepoint=savepoint,
        settings=settings,
        environ=environ,
    )
    wait_healthy(cluster, back)
    return back


def _end(cluster: Cluster, job_id: str) -> None:
    if cluster.job(job_id)["state"] in ENDED:
        return
    try:
        cluster.cancel(job_id)
    except ClusterError:
        if cluster.job(job_id)["state"] not in ENDED:  # else it ended by itself meanwhile
            raise


def _start(
    spec: Spec,
    release: tuple[Release, Path],
    cluster: Cluster,
    *,
    parallelism: int,
    savepoint: str | None,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
) -> Deployed:
    described, folder = release
    host, port = cluster.host_and_port
    request = Request(
        job=kafka_job(spec, SHIPPED_SPEC, environ=environ),
        parallelism=parallelism,
        settings=job_settings()
        | live_settings()
        | {
            "execution.target": "remote",
            "rest.address": host,
            "rest.port": str(port),
            "python.files": str(folder / "code.zip"),
            "python.archives": f"{folder / 'job.zip'}#{SHIPPED_AS}",
            "pipeline.global-job-parameters": _json(
                {
                    "tidegate.release": described.id,
                    "tidegate.generation": str(described.generation),
                    "tidegate.spec_digest": described.spec_digest,
                    "tidegate.models": " ".join(described.models),
                    "tidegate.parallelism": str(parallelism),
                    **{f"{_SETTING}{name}": value for name, value in settings.items()},
                }
            ),
        }
        | ({"execution.state-recovery.path": savepoint} if savepoint else {})
        | dict(settings),
        wait=False,
    )
    ids: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-") as work:
        log = folder / "submit.log"
        with EmbeddedFlink(find_java(environ), log, Path(work), [find_connector(environ)]) as flink:
            flink.run(request, submitted=ids.append)
    return Deployed(ids[0], described, parallelism)


#: What a Flink setting of the submitter is kept under, for an upgrade to use again.
_SETTING = "tidegate.set."


def _settings_of(parameters: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_SETTING): value
        for name, value in parameters.items()
        if name.startswith(_SETTING)
    }


def _json(parameters: dict[str, str]) -> str:
    return msgspec.json.encode(parameters).decode()  # Flink reads maps as YAML, of which this is
