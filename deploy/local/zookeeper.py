"""The ZooKeeper that remembers which JobManager leads, and which jobs it must recover.

Flink's own peer, which is in its distribution; one, because this is one machine.
"""

from pathlib import Path

from deploy.local.flink import Distribution
from deploy.local.processes import Child, listens

_CONFIGURATION = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
# The session of a JobManager that was killed may be as short as two ticks.
tickTime=1000
maxClientCnxns=0
# Flink's shaded ZooKeeper has no Jetty for the admin server.
admin.enableServer=false
# Without these, snapshots and logs are kept for ever.
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


class ZooKeeper:
    """One ZooKeeper.

    Args:
        distribution: the Flink that carries it.
        folder: its own directory; another one on the same directory knows what this one knew.
        port: where it listens.
    """

    def __init__(self, distribution: Distribution, folder: Path, port: int) -> None:
        self.port = port
        self._distribution = distribution
        self._folder = folder

    @property
    def serves(self) -> bool:
        """Whether it accepts connections."""
        return listens(self.port)

    def start(self, log: Path) -> Child:
        """Starts the process, and does not wait."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "zoo.cfg"
        file.write_text(_CONFIGURATION.format(data=self._folder / "data", port=self.port))
        command = self._distribution.command(
            "zookeeper",
            log,
            ["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC"],
            ["--zkConfigFile", str(file), "--peerId", "1"],
        )
        environ = self._distribution.environ(self._folder, self._folder)
        return Child("ZooKeeper", command, log.with_suffix(".out"), environ)
