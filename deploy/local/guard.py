"""Ends processes whose starter has died: run by path, knows nothing but its standard input.

Each line is a sign and a number: `+` and `-` say which process groups to end. When the input ends,
for whatever reason, SIGKILL goes to those that are left. In a process of its own, because the one
it guards may be killed in a way that lets it do nothing; by the group, because a TaskManager that
is killed can leave its Python workers.
"""

import os
import signal
import sys


def main() -> None:
    """Reads until the input ends, then ends what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
