"""A cluster, as its REST interface shows it: jobs, checkpoints, savepoints, failures.

Answers are plain data, as Flink gives them. What cannot be reached or is refused is a
`ClusterError` that names the address.
"""

import time
from collections.abc import Iterator
from typing import Any

import requests

_TIMEOUT_SECONDS = 10
_POLL_SECONDS = 0.2

#: What to do about a savepoint that takes long.
_WAIT_MORE = {
    "savepoints": "look at the job's checkpoints and back-pressure, then try again with a longer "
    "--timeout",
    "stop": "it is still being taken, and the job stops once it is complete: look at its page for "
    "where it lies, then `tidegate submit SPEC --savepoint URI`",
}

#: States of a job that is over.
ENDED = frozenset({"FINISHED", "CANCELED", "FAILED"})


class ClusterError(RuntimeError):
    """A cluster that cannot be reached, or refuses: the address, what it said, the remedy."""


class Cluster:
    """The REST interface of a Flink cluster.

    Args:
        address: HOST:PORT of its JobManager, or a URL.
    """

    def __init__(self, address: str) -> None:
        bare = address.rstrip("/")
        self.url = bare if "://" in bare else f"http://{bare}"
        self._session = requests.Session()

    @property
    def host_and_port(self) -> tuple[str, int]:
        """What a client of Flink's own connects to."""
        host, _, port = self.url.partition("://")[2].partition("/")[0].rpartition(":")
        if not host or not port.isdecimal():
            raise ClusterError(
                f"{self.url} is no address of a cluster\n"
                "  needed: HOST:PORT of the JobManager's REST interface, such as localhost:8081\n"
                "  remedy: correct --cluster"
            )
        return host, int(port)

    def overview(self) -> dict[str, Any]:
        """Flink's version, task slots and their use."""
        return dict(self._get("/overview"))

    def configuration(self) -> dict[str, str]:
        """The cluster's own configuration; values that Flink takes for secret are hidden by it."""
        return {each["key"]: each["value"] for each in self._get("/jobmanager/config")}

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs it knows, newest first: jid, name, state, start-time, tasks."""
        jobs: list[dict[str, Any]] = self._get("/jobs/overview")["jobs"]
        return sorted(jobs, key=lambda job: -job["start-time"])

    def job(self, job_id: str) -> dict[str, Any]:
        """State and vertices of a job."""
        return dict(self._get(f"/jobs/{job_id}"))

    def parameters(self, job_id: str) -> dict[str, str]:
        """What the job was submitted with, that only people and tools read."""
        config = self._get(f"/jobs/{job_id}/config").get("execution-config", {})
        return dict(config.get("user-config", {}))

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Counts and the latest ones."""
        return dict(self._get(f"/jobs/{job_id}/checkpoints"))

    def failure(self, job_id: str) -> str:
        """The trace of the newest failure of a job; empty if there was none."""
        told = self._get(f"/jobs/{job_id}/exceptions?maxExceptions=1")
        entries = told.get("exceptionHistory", {}).get("entries", [])
        return str(entries[0]["stacktrace"]) if entries else str(told.get("root-exception") or "")

    def restarts(self, job_id: str) -> int:
        """How often a job was restarted since it was submitted."""
        told = self._get(f"/jobs/{job_id}/metrics?get=numRestarts")
        return int(float(told[0]["value"])) if told else 0

    def metrics(self, job_id: str, ending: str) -> Iterator[tuple[str, float]]:
        """Name and sum over subtasks of the metrics of a job's operators with such an ending."""
        for vertex in self.job(job_id)["vertices"]:
            path = f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics"
            names = [each["id"] for each in self._get(path) if each["id"].endswith(ending)]
            if names:
                for each in self._get(f"{path}?get={','.join(names)}&agg=sum"):
                    yield each["id"], float(each["sum"])

    def total(self, job_id: str, ending: str, *, wait_seconds: float = 3.0) -> float | None:
        """Sum of the metrics with such an ending; None if none is told.

        A cluster fetches metrics from its TaskManagers only once someone asks, so the first answer
        may come too early.
        """
        until = time.monotonic() + wait_seconds
        while True:
            found = [value for _, value in self.metrics(job_id, ending)]
            if found or time.monotonic() > until:
                return sum(found) if found else None
            time.sleep(_POLL_SECONDS)

    def savepoint(self, job_id: str, directory: str | None, *, wait_seconds: float) -> str:
        """Takes a savepoint of a running job; returns where it lies."""
        body = {"target-directory": directory, "cancel-job": False}
        return self._savepoint(job_id, "savepoints", body, wait_seconds)

    def stop(self, job_id: str, directory: str | None, *, wait_seconds: float) -> str:
        """Stops a job with a savepoint; returns where that lies. It never drains."""
        body = {"targetDirectory": directory, "drain": False}
        path = self._savepoint(job_id, "stop", body, wait_seconds)
        self.wait_ended(job_id, wait_seconds)
        return path

    def cancel(self, job_id: str, *, wait_seconds: float = 60) -> None:
        """Cancels a job, without a savepoint, and waits until it is over."""
        self._ask("PATCH", f"/jobs/{job_id}?mode=cancel")
        self.wait_ended(job_id, wait_seconds)

    def wait_ended(self, job_id: str, seconds: float) -> str:
        """Waits until a job is over; returns how it ended."""
        until = time.monotonic() + seconds
        while True:
            state = str(self.job(job_id)["state"])
            if state in ENDED:
                return state
            if time.monotonic() > until:
                raise ClusterError(f"job {job_id} is still {state} after {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _savepoint(self, job_id: str, kind: str, body: dict[str, Any], seconds: float) -> str:
        asked = self._ask("POST", f"/jobs/{job_id}/{kind}", body)["request-id"]
        until = time.monotonic() + seconds
        while True:
            told = self._get(f"/jobs/{job_id}/savepoints/{asked}")
            if told["status"]["id"] == "COMPLETED":
                operation = told["operation"]
                if "location" in operation:
                    return str(operation["location"])
                said = str(operation["failure-cause"]["stack-trace"])
                raise ClusterError(
                    f"the savepoint of job {job_id} failed\n  found:  {_innermost(said)}\n"
                    "  remedy: see the JobManager's log; the job goes on as before"
                )
            if time.monotonic() > until:
                raise ClusterError(
                    f"the savepoint of job {job_id} is not complete after {seconds:.0f} s\n"
                    f"  remedy: {_WAIT_MORE[kind]}"
                )
            time.sleep(_POLL_SECONDS)

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            answer = self._session.request(
                method, f"{self.url}{path}", json=body, timeout=_TIMEOUT_SECONDS
            )
        except requests.RequestException as error:
            raise ClusterError(
                f"no Flink cluster at {self.url}\n"
                f"  found:  {_reason(error)}\n"
                "  needed: the REST interface of a running JobManager\n"
                "  remedy: start it, or correct --cluster"
            ) from None
        if answer.ok:
            try:
                return answer.json() if answer.content else {}
            except requests.JSONDecodeError:
                raise ClusterError(
                    f"no Flink cluster at {self.url}\n"
                    f"  found:  something that answers {answer.headers.get('Content-Type')}\n"
                    "  needed: the REST interface of a running JobManager\n"
                    "  remedy: correct --cluster"
                ) from None
        raise ClusterError(
            f"the cluster at {self.url} refuses {method} {path}\n  found:  {_told(answer)}"
        )


def _told(answer: requests.Response) -> str:
    try:
        errors = answer.json()["errors"]
    except (ValueError, LookupError, TypeError):
        return f"{answer.status_code} {answer.reason}"
    return _innermost("\n".join(map(str, errors)))


def _innermost(trace: str) -> str:
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    shown = causes[-1].removeprefix("Caused by: ") if causes else (lines or ["no message"])[0]
    return shown.removeprefix("Internal server error.").strip("<> ") or shown


def _reason(error: BaseException) -> str:
    """The innermost cause, which says it shortest: connection refused, name not known."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error)
