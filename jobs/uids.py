"""A stable uid for every operator of the job, so that its state is found again.

Flink finds the state of an operator by its uid. The operators that SQL makes have none, and what
Flink then derives changes with the graph: adding a sink would orphan the state of all. So after
the statements are attached to the environment, this walks their transformations and names each by
the role it plays: the source, the sinks by their table, what lies between a sink and the scorer by
that sink, and the rest by its kind.

Danger: the uids are part of every savepoint. Changing a rule here strands the state of running
jobs.
"""

import re
from typing import Any

#: Adapter at which the branches of the sinks meet: it belongs to no one sink.
_SHARED = "DataStreamToTable"


def set_uids(env: Any) -> dict[str, str]:
    """Gives each transformation of the environment a uid, unless it has one.

    Args:
        env: the StreamExecutionEnvironment, after `StatementSet.attach_as_datastream`.

    Returns:
        uid -> name of the operator as Flink shows it, in topological order.
    """
    order = _walk(env._j_stream_execution_environment.getTransformations())
    roles = _roles(order)
    uids: dict[str, str] = {}
    for transformation in order:
        if _kind(transformation) == "PartitionTransformation":
            continue  # routes records, runs no operator
        uid = transformation.getUid()
        if uid is None:
            uid = _unused(roles.get(transformation.getId()) or _clean(transformation), uids)
            transformation.setUid(uid)
        uids[uid] = str(transformation.getName())
    return uids


def _walk(ends: Any) -> list[Any]:
    seen: set[int] = set()
    order: list[Any] = []

    def visit(transformation: Any) -> None:
        if transformation.getId() in seen:
            return
        seen.add(transformation.getId())
        for before in transformation.getInputs():
            visit(before)
        order.append(transformation)

    for end in ends:
        visit(end)
    return order


def _roles(order: list[Any]) -> dict[int, str]:
    roles: dict[int, str] = {}
    for transformation in order:
        kind = _kind(transformation)
        if kind == "SourceTransformation":
            roles[transformation.getId()] = "source"
        elif _is_end(transformation, order):
            sink = f"sink-{_sink_name(transformation)}"
            step = transformation
            while not _is_shared(step):
                roles[step.getId()] = sink if step is transformation else f"{sink}:{_clean(step)}"
                before = list(step.getInputs())
                if len(before) != 1:
                    break
                step = before[0]
    return roles


def _is_end(transformation: Any, order: list[Any]) -> bool:
    inputs = {before.getId() for each in order for before in each.getInputs()}
    return transformation.getId() not in inputs


def _is_shared(transformation: Any) -> bool:
    return (
        transformation.getUid() is not None
        or _kind(transformation) == "PartitionTransformation"
        or str(transformation.getName()).startswith(_SHARED)
    )


def _sink_name(transformation: Any) -> str:
    """The table a sink writes: its own name, or that of the stage it ends."""
    found: str = _clean(transformation)
    return found.removeprefix("Sink_")


def _kind(transformation: Any) -> str:
    return str(transformation.getClass().getSimpleName())


def _clean(transformation: Any) -> str:
    """A name without the numbers that the planner gives its nodes."""
    name = re.sub(r"\[\d+\]", "", str(transformation.getName()))
    return re.sub(r"\W+", "_", name).strip("_")


def _unused(uid: str, used: dict[str, str]) -> str:
    unused, n = uid, 1
    while unused in used:
        n += 1
        unused = f"{uid}-{n}"
    return unused
