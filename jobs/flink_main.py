"""The process that Flink is embedded in: started by `jobs.flink_process`, never by hand.

It is a process of its own because PyFlink takes over the one it runs in: it replaces `print`,
removes the handlers of the root logger, changes the working directory, and starts a JVM that writes
to the same terminal. Here all of that goes to the log file that is this process's stderr. Requests
come as lines of JSON on stdin, replies leave as lines of JSON on what was stdout.

It is the leader of its process group. When stdin ends, because the parent is done or dead, the
whole group goes with it: JVM, Python workers, and all.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import IO, Any

import msgspec

from jobs.flink_failure import summarize
from jobs.job import Request

_POLL_SECONDS = 0.25

Reply = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serves jobs until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin, requests), daemon=True).start()

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")

    while True:
        request = msgspec.json.decode(requests.get(), type=Request)
        try:
            _run(request, reply)
            reply({"done": True})
        except BaseException as error:
            trace = _java_trace(error) or traceback.format_exc()
            sys.stderr.write(trace + "\n")
            sys.stderr.flush()
            reply({"failed": summarize(trace)})


def _read(stdin: IO[str], requests: queue.Queue[str]) -> None:
    for line in stdin:
        requests.put(line)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _run(request: Request, reply: Reply) -> None:
    # Imported here, so that what the import says lands in the log, too.
    from jobs.pipeline import attach, environments

    env, tables = environments(request.settings, request.parallelism)
    attach(env, tables, request.job)
    client = env.execute_async(request.job.name)
    job_id = str(client.get_job_id())
    reply({"job_id": job_id})
    if not request.wait:
        return
    future = client._j_job_client.getJobExecutionResult()
    watch = _Progress(request.settings["rest.port"], job_id)
    while not future.isDone():
        time.sleep(_POLL_SECONDS)
        done = watch.records()
        if done:
            reply({"records": done})
    future.get()


class _Progress:
    """How many records the running job has scored, by Flink's REST interface."""

    def __init__(self, port: str, job_id: str) -> None:
        self._job = f"http://127.0.0.1:{port}/jobs/{job_id}"
        self._metric = ""

    def records(self) -> int | None:
        """Returns the records scored so far; None if Flink does not tell, as it may at any time."""
        try:
            if not self._metric:
                self._metric = self._find()
            if not self._metric:
                return None
            return int(float(_get(self._metric)[0]["sum"]))
        except (OSError, ValueError, LookupError):
            return None

    def _find(self) -> str:
        from jobs.operator import RECORDS_METRIC

        for vertex in _get(self._job)["vertices"]:
            metrics = f"{self._job}/vertices/{vertex['id']}/subtasks/metrics"
            for each in _get(metrics):
                if each["id"].endswith(RECORDS_METRIC):
                    return f"{metrics}?get={each['id']}&agg=sum"
        return ""


def _get(url: str) -> Any:
    import urllib.request

    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 (our own loopback)
        return json.load(answer)


def _java_trace(error: BaseException) -> str | None:
    """The stack trace of an error that came from the JVM."""
    from py4j.protocol import Py4JJavaError

    return str(error) if isinstance(error, Py4JJavaError) else None


if __name__ == "__main__":
    main()
