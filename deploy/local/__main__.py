"""The command `python -m deploy.local`: a broker, a Flink cluster and a job on this machine.

`up` asks for everything that it needs before it starts anything, then leaves one process in the
background (`stack`), which starts and keeps the others; `down` ends that one. Exit codes are those
of `tidegate`: 0 done, 1 it failed, 2 wrong command line, 3 refused.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.local.errors import LocalError, end_of
from deploy.local.processes import Identity
from deploy.local.stack import Plan, Process, State, launch, read_state, running_state
from jobs.exits import Exit, UsageError

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "examples" / "shipments" / "shipments.toml"
_BROKER_JARS = Path(__file__).parent / "kafka" / "lib"
_LOOPBACK = ("localhost", "127.0.0.1")
_DOWN_SECONDS = 90.0

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "A Kafka broker, a Flink cluster and a job as processes of this machine, on 127.0.0.1 "
        "alone, without Docker."
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)

DirectoryOption = Annotated[
    Path,
    typer.Option(
        "--directory", "-d", metavar="DIR", help="Where all it writes lies: topics, state, logs."
    ),
]
_DIRECTORY = Path("out") / "local"
_out = Console(soft_wrap=True, highlight=False)
_err = Console(stderr=True, soft_wrap=True, highlight=False)


@app.command()
def up(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="The job spec; its broker is started here.")
    ] = _EXAMPLE,
    directory: DirectoryOption = _DIRECTORY,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A recorded log to publish; without it, the example's is simulated.",
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Records published a second.")] = 500.0,
    events: Annotated[
        int, typer.Option(min=0, help="Events to simulate for the example; 0 for none.")
    ] = 200_000,
    taskmanagers: Annotated[int, typer.Option(min=1, help="TaskManagers.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="Task slots of each.")] = 1,
    parallelism: Annotated[int, typer.Option(min=1, help="Subtasks of the job.")] = 1,
    rest_port: Annotated[int, typer.Option(min=1, max=65_535, help="Flink's page.")] = 8081,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the cluster."),
    ] = None,
    metrics_ports: Annotated[
        str | None,
        typer.Option(
            metavar="RANGE",
            help="Ports for Prometheus, such as 9249-9299. Beware: Flink's reporter listens on all "
            "interfaces. Without it there is none.",
        ),
    ] = None,
) -> None:
    """Start them, and return when the job runs. Again: show what runs.

    The broker listens where SPEC says (localhost:9092 in the example). What ends is started again.
    After `down`, the next `up` on the same directory goes on with the same topics, and Flink
    recovers the job by itself.

    Example: `python -m deploy.local up --rate 2000`
    """
    with _told():
        from jobs.cli import check_parallelism, parsed_settings
        from schemas.spec import load_spec

        if running_state(directory) is None:
            loaded = load_spec(spec)
            check_parallelism(parallelism, loaded)
            simulated = events if log is None and spec.resolve() == _EXAMPLE else 0
            plan = Plan(
                spec=str(spec.resolve()),
                name=loaded.name,
                connector=str(_need_connector()),
                broker_jars=str(_BROKER_JARS),
                broker_port=_broker_port(loaded.source.bootstrap_servers),
                rest_port=rest_port,
                taskmanagers=taskmanagers,
                slots=slots,
                parallelism=parallelism,
                log=_log_of(log, directory, simulated),
                rate=rate,
                simulate=simulated,
                partitions=loaded.source.partitions,
                settings=parsed_settings(settings),
                metrics_ports=metrics_ports,
            )
            _need(plan)
            _start(directory.absolute(), plan)
        else:
            _out.print("it runs already")
        _show(directory)


@app.command()
def down(
    directory: DirectoryOption = _DIRECTORY,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete DIR too: topics, state, savepoints, logs.")
    ] = False,
) -> None:
    """End all of it. Nothing is an error if nothing runs.

    Example: `python -m deploy.local down --forget`
    """
    with _told():
        state = read_state(directory)
        if state is None or not _end(state):
            _out.print("nothing runs")
        if forget and state is not None:  # so it is a directory of ours
            shutil.rmtree(directory)
            _out.print(f"{directory} is deleted")


@app.command()
def status(directory: DirectoryOption = _DIRECTORY) -> None:
    """Show what runs: processes, addresses, the job. Exits with 1 if nothing does.

    Example: `python -m deploy.local status`
    """
    with _told():
        if running_state(directory) is None:
            _out.print("nothing runs")
            raise typer.Exit(1)
        _show(directory)


def _broker_port(servers: str | None) -> int:
    host, _, port = (servers or "").rpartition(":")
    if host in _LOOPBACK and port.isdecimal():
        return int(port)
    raise LocalError(
        "the spec's broker is not one of this machine\n"
        f"  found:  source.bootstrap_servers = {servers or 'nothing'}\n"
        "  needed: localhost:PORT, where the broker is to listen\n"
        "  remedy: take a copy of the spec that says so"
    )


def _log_of(log: Path | None, directory: Path, simulated: int) -> str | None:
    if log is not None:
        return str(log.resolve())
    return str((directory / "simulated.jsonl.gz").absolute()) if simulated else None


def _need_connector() -> Path:
    from jobs.jars import find_connector

    return find_connector()


def _need(plan: Plan) -> None:
    """Refuses what would fail later: Java, Flink, jars, ports, slots."""
    from deploy.local.broker import need_broker_jars
    from deploy.local.flink import Distribution
    from deploy.local.processes import need_free
    from jobs.java import find_java

    if not Path("/proc/self/stat").exists():
        raise LocalError(
            "the local cluster cannot run here\n"
            f"  found:  {sys.platform}, without /proc\n"
            "  needed: Linux\n"
            "  remedy: docker compose up (deploy/README.md)"
        )
    Distribution.find(find_java(), Path(plan.connector))
    need_broker_jars(Path(plan.broker_jars))
    if plan.parallelism > plan.taskmanagers * plan.slots:
        raise LocalError(
            "the job does not fit into the cluster\n"
            f"  found:  {plan.taskmanagers} TaskManagers of {plan.slots} slots\n"
            f"  needed: {plan.parallelism} slots, one for each subtask\n"
            "  remedy: raise --taskmanagers or --slots"
        )
    need_free(plan.broker_port, "the broker", "end what listens there, or change the spec's port")
    need_free(plan.rest_port, "Flink's page", "end what listens there, or give another --rest-port")


def _start(directory: Path, plan: Plan) -> None:
    """Starts the supervisor, and shows what it says until it runs.

    Raises:
        typer.Exit: it failed, and has ended what it had started.
    """
    pid = launch(directory, plan)
    supervisor = Identity.of(pid)
    try:
        with _out.status("starting", spinner="dots"):
            failure = _follow(directory, supervisor)
    except KeyboardInterrupt:
        if supervisor:
            supervisor.end(_DOWN_SECONDS)
        _err.print(Text("stopped", style="bold red"))
        raise typer.Exit(Exit.INTERRUPTED) from None
    if failure:
        _err.print(Text("failed:", style="bold red"), Text(failure))
        raise typer.Exit(Exit.FAILED)


def _follow(directory: Path, supervisor: Identity | None) -> str:
    """Prints what the supervisor says, until it runs or has ended; returns why it ended."""
    shown = 0
    while True:
        ended = supervisor is None or not supervisor.alive  # asked first: it writes, then ends
        state = read_state(directory)
        if state:
            for line in state.said[shown:]:
                _out.print(Text(line))
            shown = len(state.said)
            if state.stage == "running":
                return ""
            if ended and state.failure:
                return state.failure
        if ended:
            log = directory / "log" / "supervisor.log"
            return f"the supervisor has ended; its log ends in\n{end_of(log)}"
        time.sleep(0.1)


def _end(state: State) -> bool:
    """Ends the supervisor, and what it may have left; returns whether there was anything."""
    known = [state.supervisor, *(p.identity for p in state.processes if p.identity)]
    left = [each for each in known if each.alive]
    if not left:
        return False
    with _out.status("stopping", spinner="dots"):
        state.supervisor.end(_DOWN_SECONDS)
        for each in left:
            each.end(5)
    _out.print(f"{len(left)} processes have ended")
    return True


def _show(directory: Path) -> None:
    state = running_state(directory)
    if state is None:
        raise LocalError(f"it ended: see {directory / 'log'}")
    plan = state.plan
    table = Table(title=f"deploy.local: {state.stage}", title_justify="left", title_style="bold")
    for heading in ("process", "pid", "started"):
        table.add_column(heading)
    table.add_row("supervisor", str(state.supervisor.pid), "")
    for process in state.processes:
        times = "once" if process.starts == 1 else f"{process.starts} times"
        table.add_row(process.name, _pid(process), times if process.starts else "not yet")
    _out.print(table)
    cluster = f"127.0.0.1:{plan.rest_port}"
    for name, value in (
        ("Flink", f"http://{cluster}"),
        ("Kafka", f"127.0.0.1:{plan.broker_port}"),
        ("job", _job(cluster, plan.name)),
        ("logs", f"{directory / 'log'}, {directory / 'flink' / 'log'}"),
        ("next", f"tidegate status {_shortest(plan.spec)} --cluster {cluster}"),
    ):
        _out.print(Text(f"{name:<6}", style="cyan"), Text(value))


def _pid(process: Process) -> str:
    if process.identity and process.identity.alive:
        return str(process.identity.pid)
    if process.exit_code is None:
        return "does not run"
    return "done" if process.exit_code == 0 else f"ended with {process.exit_code}"


def _job(cluster: str, name: str) -> str:
    from jobs.flink_rest import Cluster, ClusterError

    try:
        found = [job for job in Cluster(cluster).jobs() if job["name"] == name]
    except ClusterError:
        return "Flink does not answer"
    return f"{name}, {found[0]['state']}, {found[0]['jid']}" if found else "none"


def _shortest(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


@contextmanager
def _told() -> Iterator[None]:
    """Turns what is refused into a message and an exit code."""
    from jobs.jars import JarError
    from jobs.java import JavaError
    from schemas.spec import SpecError

    try:
        yield
    except (LocalError, JarError, JavaError, SpecError) as error:
        _err.print(Text("refused:", style="bold red"), Text(str(error)))
        raise typer.Exit(Exit.REFUSED) from None
    except UsageError as error:
        _err.print(Text("error:", style="bold red"), Text(str(error)))
        raise typer.Exit(Exit.USAGE) from None


if __name__ == "__main__":
    app(prog_name="python -m deploy.local")
