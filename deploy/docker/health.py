"""Tells whether a role answers in this container: exits with 0, or with 1 and one line of why.

The slim image has no curl, and ZooKeeper is asked in its own words. What is asked is what another
container would need: the REST interface, the metrics, a leader.

    python health.py jobmanager | taskmanager | zookeeper
"""

import socket
import sys
import urllib.request

_TIMEOUT_SECONDS = 4
_URLS = {
    "jobmanager": "http://localhost:8081/overview",
    # The process ends itself when it cannot register, so one that serves its metrics is in.
    "taskmanager": "http://localhost:9249/metrics",
}
_ZOOKEEPER = ("localhost", 2181)


def check(role: str) -> None:
    """Asks the role.

    Raises:
        OSError: it does not answer, or not as a healthy one does.
    """
    if role == "zookeeper":
        with socket.create_connection(_ZOOKEEPER, _TIMEOUT_SECONDS) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        if b"Mode:" not in answer:
            raise OSError(f"answers {answer[:80]!r} to srvr")
    else:
        url = _URLS[role]
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 (ours)
            response.read()


def main() -> int:
    """Checks the role that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1] not in (*_URLS, "zookeeper"):
        sys.stderr.write(f"usage: health {' | '.join((*_URLS, 'zookeeper'))}\n")
        return 2
    try:
        check(sys.argv[1])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
