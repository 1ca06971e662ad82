"""A stable uid for every operator of the job, so that its state is found again.

Flink finds the state of an operator by its uid. The operators that SQL makes have none, and what
Flink then derives changes with the graph: adding a sink would orphan the state of all. So when a
stage has been attached to the environment, everything that is still without a uid gets one from the
stage and from what it does there. One stage at a time, because nothing in the operators of a file
sink tells which table they write.

Danger: the uids are part of every savepoint. Changing a rule here strands the state of running
jobs.
"""

import re
from collections.abc import Iterable
from typing import Any


def set_uids(stage: str, ends: Iterable[Any]) -> None:
    """Gives each operator up to some ends a uid `stage:operator`, unless it has one.

    Args:
        stage: the stage that was attached since the last call.
        ends: the Java transformations where it ends.
    """
    used: set[str] = set()
    for transformation in _upstream(ends):
        if _kind(transformation) == "PartitionTransformation":
            continue  # it routes records and runs no operator
        if transformation.getUid() is None:
            transformation.setUid(_unused(f"{stage}:{_role(transformation)}", used))
        used.add(str(transformation.getUid()))


def ends_of(env: Any) -> dict[int, Any]:
    """Returns the transformations that are attached to an environment, by Flink's id of them."""
    attached = env._j_stream_execution_environment.getTransformations()
    return {int(each.getId()): each for each in attached}


def _upstream(ends: Iterable[Any]) -> list[Any]:
    """All transformations that lead to the ends, each after its inputs."""
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


def _role(transformation: Any) -> str:
    """The operator's name, without the numbers that the planner gives its nodes."""
    if _kind(transformation) == "SourceTransformation":
        return "source"
    name = re.sub(r"\[\d+\]", "", str(transformation.getName()))
    return re.sub(r"\W+", "_", name).strip("_")


def _kind(transformation: Any) -> str:
    return str(transformation.getClass().getSimpleName())


def _unused(uid: str, used: set[str]) -> str:
    unused, n = uid, 1
    while unused in used:
        n += 1
        unused = f"{uid}-{n}"
    return unused
