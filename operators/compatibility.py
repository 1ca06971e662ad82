"""What state was made under, and whether a job may go on with it.

State carries every setting that decides records, and the models' digests with their times. A job
whose settings differ is refused, naming what differs. Models may change in two ways, because
their cut-over is part of the log's time: one may be added whose time no record has reached, and
the oldest may be left out once no kept event needs it.
"""

import hashlib
import json
from typing import Any

from operators.codec import StateRefused
from operators.model import StepModel
from schemas.spec import Spec


def made_under(spec: Spec, models: list[StepModel]) -> dict[str, Any]:
    """Returns everything that decides records, as plain data."""
    return {
        "spec": json.loads(json.dumps(spec.decisions())),
        "models": [
            {
                "digest": model.digest,
                "from_event_time_ms": model.declaration.from_event_time_ms if i else None,
                "carry": model.declaration.carry,
                "step": _step(model),
            }
            for i, model in enumerate(models)
        ],
    }


def _step(model: StepModel) -> dict[str, Any]:
    return {
        "input": model.declaration.input,
        "output": model.declaration.output,
        "window": model.window,
        "single": model.single,
        "states": [[t.input, t.output, str(t.dtype), list(t.shape)] for t in model.states],
    }


def spec_digest(decides: dict[str, Any]) -> str:
    """Returns the digest of everything that decides records."""
    canonical = json.dumps(decides, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def check_compatible(state: dict[str, Any], job: dict[str, Any]) -> int | None:
    """Refuses state made under other settings than the job's.

    Args:
        state: the decoded shard, with `spec`, `models` and `max_event_time`.
        job: what `made_under` says of the job.

    Returns:
        The time before which the model state of events is void, because a model that was left out
        handed over to the first one of the job by `reset`; None where there is no such time.

    Raises:
        StateRefused: names both digests and what differs.
    """
    made = {"spec": state["spec"], "models": state["models"]}
    problems = _differences("", made["spec"], job["spec"])
    void, model_problems = _models(state, job)
    if problems or model_problems:
        listed = "\n  ".join(problems + model_problems)
        raise StateRefused(
            f"the state was made under spec {spec_digest(made)}, the job is {spec_digest(job)}:\n"
            f"  {listed}\n  remedy: restore with the spec that made it, or rerun the log under a "
            "new generation"
        )
    return void


def _models(state: dict[str, Any], job: dict[str, Any]) -> tuple[int | None, list[str]]:
    old, first = state["models"], job["models"][0]["digest"]
    # A model may have come back; at most one of its places fits the times.
    starts = [i for i, model in enumerate(old) if model["digest"] == first]
    if not starts:
        return None, [f"models[0].digest: {old[0]['digest']} in the state, {first} here"]
    verdicts = [_models_from(start, state, job) for start in starts]
    return next((verdict for verdict in verdicts if not verdict[1]), verdicts[0])


def _models_from(
    start: int, state: dict[str, Any], job: dict[str, Any]
) -> tuple[int | None, list[str]]:
    """Compares models, the job's first one being the state's at `start`."""
    old, new = state["models"], job["models"]
    times, lateness = job["spec"]["time"], job["spec"]["policy"]["late"] != "drop"
    greatest = state["max_event_time"]
    void = None
    if start:
        cut = old[start]["from_event_time_ms"]
        horizon = None if greatest is None else greatest - times["out_of_orderness_ms"]
        if horizon is not None and lateness:
            horizon -= times["allowed_lateness_ms"]
        if horizon is None or horizon < cut:
            return None, [
                f"model {old[0]['digest']} is left out, but the horizon {horizon} has not reached "
                f"the cut-over {cut}: keep it in the spec until then"
            ]
        resets = [m["from_event_time_ms"] for m in old[1 : start + 1] if not m["carry"]]
        void = max(resets) if resets else None
    problems = []
    kept = [dict(model) for model in old[start:]]
    kept[0]["from_event_time_ms"], kept[0]["carry"] = None, new[0]["carry"]
    for i, (before, after) in enumerate(zip(kept, new, strict=False)):
        problems.extend(_differences(f"models[{i}].", before, after))
    for model in kept[len(new) :]:
        if greatest is not None and greatest >= model["from_event_time_ms"]:
            problems.append(f"model {model['digest']} is left out, but has stepped events")
    for model in new[len(kept) :]:
        if greatest is not None and greatest >= model["from_event_time_ms"]:
            problems.append(
                f"model {model['digest']} takes over at {model['from_event_time_ms']}, but the "
                f"partition has events up to {greatest}: choose a later time"
            )
    return void, problems


def _differences(path: str, old: Any, new: Any) -> list[str]:
    """Lists the leaves that differ, as key path and both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            line
            for name in names
            for line in _differences(
                f"{path}{name}" + ("." if isinstance(old.get(name), dict) else ""),
                old.get(name),
                new.get(name),
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        where = path.rstrip(".")
        return [
            line
            for i, (before, after) in enumerate(zip(old, new, strict=True))
            for line in _differences(f"{where}[{i}].", before, after)
        ]
    return [] if old == new else [f"{path.rstrip('.')}: {old!r} in the state, {new!r} here"]
