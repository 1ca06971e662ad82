"""What must hold before a job starts: looked at, told, and refused while nothing has been touched.

Every check says what it found; one that fails says what is needed and what to do, too. A check
whose ground is missing (no broker, so no topics) is skipped and says why, so that the first failure
is also the first thing to mend. What can run but is worth a look is a warning.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from jobs.findings import Finding, Verdict
from jobs.flink_rest import Cluster, ClusterError
from jobs.flink_settings import live_settings
from jobs.jars import CONNECTOR, JarError, connector_version, find_connector
from jobs.java import JavaError, find_java
from jobs.kafka_client import KafkaError, sink_access, source_access
from jobs.kafka_job import REQUEST_BYTES, Start, needed_bytes
from jobs.savepoint_state import SavepointError, read_positions
from jobs.spans import span
from jobs.topics import MESSAGE_BYTES, Topics
from operators.codec import StateRefused
from operators.compatibility import check_compatible, made_under
from operators.model import StepModel
from operators.model_probe import LARGEST_BATCH
from operators.scorer import Scorer
from schemas.spec import Spec

#: The Flink that this release is tested with.
FLINK = "2.3"
#: How long a cluster may be away before the broker aborts what was not committed, at the least.
_DOWNTIME_MS = 60_000


_KNOWN = (JavaError, JarError, ClusterError, KafkaError, SavepointError, StateRefused)


def preflight(
    scorer: Scorer,
    *,
    cluster: str | None = None,
    savepoint: str | None = None,
    start: Start | None = None,
    parallelism: int = 1,
    running: str | None = None,
) -> list[Finding]:
    """Looks at everything a job needs.

    Args:
        scorer: the spec, with its models loaded and probed.
        cluster: HOST:PORT of the cluster that it is to run on; None for an embedded Flink.
        savepoint: the state it is to go on from; None to begin without.
        start: where a job without state begins.
        parallelism: subtasks of each operator.
        running: id of the job on the cluster that it replaces, whose slots become free, and whose
            state it goes on from.
    """
    findings = [*_machine(), *_models(scorer)]
    if cluster:
        findings += _cluster(cluster, parallelism, running)
    with_state = bool(savepoint or running)
    findings += _kafka(scorer.spec, lambda ends: _generation(scorer, ends, start, with_state))
    if cluster and running:
        findings += _newest_checkpoint(scorer, cluster, running)
    if savepoint:
        unreachable = any(f.check == "broker" and f.verdict is Verdict.FAILED for f in findings)
        findings += (
            _state(scorer, savepoint, None)
            if unreachable
            else savepoint_findings(scorer, savepoint)
        )
    return findings


def savepoint_findings(scorer: Scorer, uri: str) -> list[Finding]:
    """Looks at a savepoint: made under this spec, and at positions that the log still has.

    Args:
        scorer: the spec, with its models loaded.
        uri: the savepoint's directory.
    """
    spec = scorer.spec
    try:
        with Topics(source_access(spec)) as topics:
            return _state(scorer, uri, topics.log_range(spec.source.topic))
    except KafkaError as error:
        return [*_state(scorer, uri, None), Finding("log", Verdict.FAILED, str(error))]


def _tried(check: str, look: Callable[[], Iterable[Finding] | str]) -> list[Finding]:
    """Runs one check; what it raises for people is its failure."""
    try:
        found = look()
        return [Finding(check, Verdict.OK, found)] if isinstance(found, str) else list(found)
    except _KNOWN as error:
        return [Finding(check, Verdict.FAILED, str(error))]


def _refusal(
    check: str, what: str, found: str, needed: str, remedy: str, verdict: Verdict = Verdict.FAILED
) -> Finding:
    return Finding(
        check,
        verdict,
        f"{what}\n  found:  {found}\n  needed: {needed}\n  remedy: {remedy}",
    )


# ---- this machine ---------------------------------------------------------------------------


def _machine() -> list[Finding]:
    return [
        *_tried("java", lambda: f"{(java := find_java()).version}, {java.place}"),
        *_tried("flink", _flink),
        *_tried("connector", lambda: f"{CONNECTOR} {connector_version(find_connector())}"),
    ]


def _flink() -> list[Finding]:
    try:
        found = version("apache-flink")
    except PackageNotFoundError:
        found = "none"
    if found == FLINK or found.startswith(f"{FLINK}."):
        return [Finding("flink", Verdict.OK, found)]
    return [
        _refusal(
            "flink",
            "no Flink that this release is made for",
            found,
            f"apache-flink {FLINK}.x",
            "pip install 'tidegate[cluster]', or `make setup` in a source tree",
        )
    ]


def _models(scorer: Scorer) -> Iterator[Finding]:
    """Loading the scorer has checked them: what breaks the contract has been refused by now."""
    for index, model in enumerate(scorer.models):
        name = "model" if index == 0 else f"model.next {index}"
        yield Finding(name, Verdict.OK, f"{model.digest}; {_batches(model)}")


def _batches(model: StepModel) -> str:
    if model.single:
        return "stepped one by one, as the spec says"
    return (
        f"the same bits alone and among up to {LARGEST_BATCH:,} on this machine "
        f"(largest difference {model.batch_difference:g})"
    )


# ---- the cluster ----------------------------------------------------------------------------


def _cluster(address: str, parallelism: int, running: str | None) -> list[Finding]:
    def look() -> Iterator[Finding]:
        cluster = Cluster(address)
        overview = cluster.overview()
        yield _version(address, str(overview["flink-version"]))
        free = overview["slots-available"] + (_slots_of(cluster, running) if running else 0)
        if free >= parallelism:
            told = f"{free} free, TaskManagers: {overview['taskmanagers']}"
            yield Finding("slots", Verdict.OK, told)
        else:
            yield _refusal(
                "slots",
                "too few free slots",
                f"{free} of {overview['slots-total']}, TaskManagers: {overview['taskmanagers']}",
                f"{parallelism}, one for each subtask",
                "add TaskManagers, stop what else runs there, or lower --parallelism",
            )
        yield from _configured(cluster.configuration())

    return _tried("cluster", look)


def _version(address: str, found: str) -> Finding:
    if found.startswith(f"{FLINK}."):
        return Finding("cluster", Verdict.OK, f"{address}, Flink {found}")
    return _refusal(
        "cluster",
        "a cluster of another Flink",
        f"{found} at {address}",
        f"{FLINK}.x, for which the job is made here",
        "submit to another cluster, or from a release made for that Flink",
    )


def _slots_of(cluster: Cluster, job_id: str) -> int:
    """All operators share a slot, so a job takes as many as its widest one."""
    return max((v["parallelism"] for v in cluster.job(job_id)["vertices"]), default=0)


def _configured(settings: Mapping[str, str]) -> Iterator[Finding]:
    """What of a cluster's own configuration decides whether a Python job survives there."""
    checkpoints = settings.get("execution.checkpointing.dir") or settings.get(
        "state.checkpoints.dir"
    )
    if checkpoints:
        yield Finding("checkpoints", Verdict.OK, checkpoints)
    else:
        yield _refusal(
            "checkpoints",
            "the cluster has nowhere to put checkpoints",
            "no execution.checkpointing.dir: they would stay in the JobManager's heap, where state "
            "of 5 MB and more is refused",
            "a directory that every JobManager and TaskManager can reach",
            "set it in the cluster's configuration, or for this job with --set",
            Verdict.WARNING,
        )
    options = " ".join(
        value for name, value in settings.items() if name.startswith("env.java.opts")
    )
    if "--add-opens" not in options:
        yield _refusal(
            "java options",
            "the cluster's JVMs may not open what Flink needs",
            "env.java.opts.all without --add-opens",
            "the ones in the configuration that comes with Flink; without them the first "
            "checkpoint of a Python job fails",
            "keep Flink's own env.java.opts.all when adding to it",
            Verdict.WARNING,
        )


def _newest_checkpoint(scorer: Scorer, address: str, job_id: str) -> list[Finding]:
    """The newest checkpoint of a running job stands in for the savepoint it will be stopped with.

    A spec that does not fit is refused before that. A checkpoint that is gone already, or cannot
    be read from here, is no refusal: the savepoint is looked at after the stop.
    """
    try:
        latest = Cluster(address).checkpoints(job_id).get("latest") or {}
        path = (latest.get("completed") or {}).get("external_path")
    except ClusterError:
        path = None
    findings = _state(scorer, str(path), None) if path else []
    told = [each for each in findings if each.check == "state"]
    if told and told[0].told.startswith(("no savepoint at", f"{path} cannot be")):
        return [
            Finding("state", Verdict.SKIPPED, f"{told[0].told.splitlines()[0]}: looked at later")
        ]
    return told


# ---- Kafka ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ends:
    """The topics of a job that can be reached."""

    source: Topics
    sink: Topics


def _kafka(spec: Spec, generation: Callable[[_Ends], list[Finding]]) -> list[Finding]:
    try:
        with Topics(source_access(spec)) as source, Topics(sink_access(spec)) as sink:
            source.partition_counts()
            sink.partition_counts()
            servers = source_access(spec).bootstrap_servers
            findings = [Finding("broker", Verdict.OK, servers)]
            findings += _tried("source", lambda: _source(spec, source))
            findings += _tried(
                "predictions", lambda: _sink(spec.sink.predictions, sink, keyed=True)
            )
            findings += _tried("rejects", lambda: _sink(spec.sink.rejects, sink, keyed=False))
            findings += _tried("record size", lambda: _record_size(spec, source, sink))
            findings += _tried("transactions", lambda: _transactions(spec, sink))
            if any(each.verdict is Verdict.FAILED for each in findings):
                told = "needs the topics"
                return [*findings, Finding("generation", Verdict.SKIPPED, told)]
            return findings + _tried("generation", lambda: generation(_Ends(source, sink)))
    except KafkaError as error:
        return [
            Finding("broker", Verdict.FAILED, str(error)),
            Finding("topics", Verdict.SKIPPED, "needs the broker"),
        ]


def _source(spec: Spec, topics: Topics) -> Iterator[Finding]:
    topic, needed = spec.source.topic, spec.source.partitions
    count = topics.partitions(topic)
    if count != needed:
        yield _refusal(
            "source",
            f"topic {topic!r} has another number of partitions",
            f"{count}",
            f"{needed}, source.partitions: keys would change partitions under their state",
            "correct the spec before the first run; after that, republish the log into a new topic "
            "and rerun it under a new generation",
        )
        return
    yield Finding("source", Verdict.OK, f"{topic}, {count} partitions")
    config = topics.topic_config(topic)
    yield _retention(spec, config)
    if "compact" in config.get("cleanup.policy", ""):
        yield _refusal(
            "compaction",
            f"topic {topic!r} is compacted",
            f"cleanup.policy = {config['cleanup.policy']}",
            "every event of a key: a rerun or a replay later would see fewer than the job saw",
            "set cleanup.policy = delete on the topic of events",
            Verdict.WARNING,
        )


def _retention(spec: Spec, config: Mapping[str, str]) -> Finding:
    lateness = 0 if spec.policy.late == "drop" else spec.time.allowed_lateness_ms
    horizon = spec.time.out_of_orderness_ms + lateness
    found = int(config.get("retention.ms", "-1"))
    size = int(config.get("retention.bytes", "-1"))
    shown = "for ever" if found < 0 else span(found)
    if size >= 0:
        shown += f", at most {size:,} bytes a partition"
    needed = horizon + spec.policy.idle_ttl_ms
    if size < 0 and (found < 0 or found >= needed):
        return Finding("retention", Verdict.OK, f"{shown}; lives last up to {span(needed)}")
    return _refusal(
        "retention",
        f"topic {spec.source.topic!r} may lose events that matter still",
        shown,
        f"{span(needed)}: late events are taken for {span(horizon)}, and a key lives "
        f"{span(spec.policy.idle_ttl_ms)} after its newest event; a job that begins without state "
        "would know only a part of the lives, and one that is away for longer cannot go on at all",
        "raise retention.ms (and retention.bytes), or keep savepoints and accept it",
        Verdict.WARNING,
    )


def _sink(topic: str, topics: Topics, *, keyed: bool) -> Iterator[Finding]:
    count = topics.partitions(topic)
    policy = topics.topic_config(topic).get("cleanup.policy", "delete")
    if "compact" in policy and not keyed:
        yield _refusal(
            "rejects",
            f"topic {topic!r} is compacted",
            f"cleanup.policy = {policy}",
            "delete: rejects have no key, and a compacted topic refuses such records",
            "change the topic's cleanup.policy",
        )
        return
    yield Finding("predictions" if keyed else "rejects", Verdict.OK, f"{topic}, {count} partitions")


def _record_size(spec: Spec, source: Topics, sink: Topics) -> Iterator[Finding]:
    """An output that its topic refuses would stop the job again and again."""
    taken = int(source.topic_config(spec.source.topic).get("max.message.bytes", MESSAGE_BYTES))
    needed = needed_bytes(taken)
    small = []
    for topic in (spec.sink.predictions, spec.sink.rejects):
        allowed = int(sink.topic_config(topic).get("max.message.bytes", MESSAGE_BYTES))
        if allowed < needed:
            small.append(f"max.message.bytes = {allowed:,} of {topic!r}")
    request = spec.sink.properties.get("max.request.size", str(REQUEST_BYTES))
    if request.isdecimal() and int(request) < needed:
        small.append(f"max.request.size = {int(request):,} of the sinks")
    if not small:
        yield Finding("record size", Verdict.OK, f"up to {taken:,} bytes in, {needed:,} out")
        return
    yield _refusal(
        "record size",
        "an output may be larger than its topic takes",
        "; ".join(small),
        f"{needed:,}: what may be made of a record of {taken:,} bytes, the source topic's "
        "max.message.bytes; a reject holds its record, escaped as JSON",
        "raise it, or lower that of the source; if no record comes near an eighth of it, leave it",
        Verdict.WARNING,
    )


def _transactions(spec: Spec, topics: Topics) -> Iterator[Finding]:
    if spec.sink.guarantee != "transactional":
        yield Finding("transactions", Verdict.OK, "none: the sinks are idempotent")
        return
    asked = spec.sink.transaction_timeout_ms
    greatest = topics.broker_config().get("transaction.max.timeout.ms")
    if greatest is not None and asked > int(greatest):
        yield _refusal(
            "transactions",
            "the broker refuses transactions that long",
            f"sink.transaction_timeout_ms = {asked:,}",
            f"at most the broker's transaction.max.timeout.ms, {int(greatest):,}",
            "lower the one, or raise the other",
        )
        return
    settings = live_settings()
    between = _milliseconds(settings["execution.checkpointing.interval"])
    takes = _milliseconds(settings["execution.checkpointing.timeout"])
    needed = between + takes + _DOWNTIME_MS
    if asked < needed:
        yield _refusal(
            "transactions",
            "transactions may end before they are committed",
            f"sink.transaction_timeout_ms = {asked:,}",
            f"{needed:,}: the time between checkpoints, the longest checkpoint and a minute away; "
            "what the broker aborts is lost, and ends the job",
            "raise it, up to the broker's transaction.max.timeout.ms",
        )
        return
    yield Finding(
        "transactions", Verdict.OK, f"{span(asked)}: the longest that the cluster may be away"
    )


def _milliseconds(duration: str) -> int:
    """Of a duration as `jobs.flink_settings` writes it."""
    for unit, factor in (("min", 60_000), ("ms", 1), ("s", 1_000)):
        if duration.endswith(unit):
            return int(duration.removesuffix(unit)) * factor
    raise ValueError(duration)


def _generation(
    scorer: Scorer, ends: _Ends, start: Start | None, with_state: bool
) -> list[Finding]:
    """Compares the spec's generation with the newest predictions in the sink."""
    spec = scorer.spec
    newest: list[dict[str, Any]] = []
    for value in ends.sink.newest_values(spec.sink.predictions):
        try:
            record = msgspec.json.decode(value)
        except msgspec.DecodeError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("generation"), int):
            return [_foreign(spec, value)]
        newest.append(record)
    if not newest:
        return [Finding("generation", Verdict.OK, f"{spec.generation}, the sink is empty")]
    found = max(record["generation"] for record in newest)
    if found > spec.generation:
        return [
            _refusal(
                "generation",
                "consumers would pass over what this job writes",
                f"predictions of generation {found} in {spec.sink.predictions!r}",
                f"at least that; the spec says {spec.generation}",
                f"set generation = {found + 1}, or go on from a savepoint of generation {found}",
            )
        ]
    if found < spec.generation or with_state:
        return [Finding("generation", Verdict.OK, f"{spec.generation}, the sink has {found}")]
    return [_again(scorer, ends, start, newest)]


def _foreign(spec: Spec, value: bytes) -> Finding:
    return _refusal(
        "generation",
        f"topic {spec.sink.predictions!r} holds something else",
        value[:80].decode(errors="replace"),
        "prediction records, or nothing",
        "name a topic of its own as sink.predictions",
    )


def _again(
    scorer: Scorer, ends: _Ends, start: Start | None, newest: list[dict[str, Any]]
) -> Finding:
    """A start without state under a generation whose predictions are in the sink already.

    The same log from its start gives the same records again; anything else would give other
    records the same (key, generation, epoch, sequence).
    """
    spec = scorer.spec
    ranges = ends.source.log_range(spec.source.topic)
    cut = {p: begin for p, (begin, _) in ranges.items() if begin > 0}
    others = {record.get("model_digest") for record in newest} - {m.digest for m in scorer.models}
    if start is not None and start.text != "earliest":
        found = f"a start at {start.text}"
    elif cut:
        found = "a log that begins at offset " + ", ".join(
            f"{offset:,} of partition {partition}" for partition, offset in cut.items()
        )
    elif others:
        found = f"predictions of another model, {', '.join(sorted(map(str, others)))}"
    else:
        return Finding(
            "generation",
            Verdict.OK,
            f"{spec.generation}, the sink has it: the whole log again gives the same records, if "
            "the spec is the one that made them",
        )
    return _refusal(
        "generation",
        f"predictions of generation {spec.generation} are in {spec.sink.predictions!r} already",
        f"{found}, and no state",
        "the whole log and the same job, which gives the same records again",
        f"set generation = {spec.generation + 1}, or go on from a savepoint",
    )


# ---- state ----------------------------------------------------------------------------------


def _state(scorer: Scorer, uri: str, ranges: Mapping[int, tuple[int, int]] | None) -> list[Finding]:
    def look() -> Iterator[Finding]:
        positions = read_positions(uri)
        if not positions:
            yield Finding(
                "state",
                Verdict.WARNING,
                f"{uri} cannot be looked into: no shard was found (a state backend that "
                "compresses, or a job that has scored nothing); the operator checks it, too",
            )
            return
        job = made_under(scorer.spec, scorer.models)
        greatest = max(p["max_event_time"] or -math.inf for p in positions.values())
        for partition, position in sorted(positions.items()):
            try:
                check_compatible(position, job)
            except StateRefused as error:
                yield Finding("state", Verdict.FAILED, f"partition {partition}: {error}")
                return
        yield Finding(
            "state",
            Verdict.OK,
            f"made under {scorer.spec_digest}, {len(positions)} partitions, events up to "
            f"{greatest:.0f}",
        )
        if ranges is None:
            yield Finding("log", Verdict.SKIPPED, "needs the broker")
        else:
            yield _positions(scorer.spec, positions, ranges)

    return _tried("state", look)


def _positions(
    spec: Spec, positions: Mapping[int, dict[str, Any]], ranges: Mapping[int, tuple[int, int]]
) -> Finding:
    """The log must still have the record after the last one of the state, of every partition."""
    lost, behind = [], []
    for partition, position in sorted(positions.items()):
        following = position["last_offset"] + 1
        begin, end = ranges.get(partition, (0, 0))
        if following < begin:
            lost.append(
                f"partition {partition}: the state needs {following:,}, the log begins at "
                f"{begin:,} ({begin - following:,} records are gone)"
            )
        elif following > end:
            behind.append(
                f"partition {partition}: the state is at {following:,}, the log ends at {end:,}"
            )
    if lost:
        return _refusal(
            "log",
            f"topic {spec.source.topic!r} no longer has what comes after the state",
            "; ".join(lost),
            "every record since the savepoint: the job would go on without them, unseen",
            "take a newer savepoint, or rerun what there is under a new generation; for the next "
            "time, raise the topic's retention",
        )
    if behind:
        return _refusal(
            "log",
            f"topic {spec.source.topic!r} is not the log that the state is of",
            "; ".join(behind),
            "a log that goes on from there",
            "correct the topic or the savepoint; if the topic was made anew, begin without state "
            "under a new generation",
        )
    away = sum(ranges[p][1] - position["last_offset"] - 1 for p, position in positions.items())
    return Finding("log", Verdict.OK, f"has all that comes after the state, {away:,} records")
