"""Kafka to Kafka on a cluster: the job beside one that only copies, in one run.

`python -m tests.benchmarks.cluster --help`. Broker and cluster are its own, on loopback and on the
same cores, as producer and consumer are; so the figures are ratios first. Each job runs once before
it is measured, since a JVM becomes fast only by running.

Throughput is read off the log ends of the output topics, between 15 % and 98 % of what will be
there. Latency is from the time in a record, taken just before it is produced, to the consumer that
gets what became of it; under `transactional` that would be the checkpoint interval, so it is that
of `idempotent`.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from deploy.local.broker import Broker
from deploy.local.cluster import LocalCluster
from jobs import deployment
from jobs.flink_process import EmbeddedFlink
from jobs.flink_rest import Cluster
from jobs.flink_settings import job_settings, live_settings
from jobs.jars import find_connector
from jobs.java import find_java
from jobs.job import Request
from jobs.kafka_client import source_access
from jobs.kafka_job import Start, kafka_job, place_start
from jobs.publish import make_topics, publish
from jobs.topics import Topics
from operators.partitioner import partitions_for
from operators.scorer import Scorer
from schemas.spec import Spec, load_spec
from tests.benchmarks import report
from tests.benchmarks.input import Input, Settings, make_input

JOB, CEILING = "tidegate", "pass-through"
GUARANTEES = ("idempotent", "transactional")
RATES = (1_000, 5_000, 20_000)
_FROM, _TO = 0.15, 0.98
_SETTLE_SECONDS = 3.0


@dataclass
class Figures:
    """What was measured.

    Attributes:
        throughput: events a second, by guarantee, parallelism and contender.
        latency_ms: p50 and p99, by events a second and contender.
    """

    throughput: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    latency_ms: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)


class Bench:
    """A broker, a cluster and an input.

    Args:
        broker: where the topics are.
        cluster: where the jobs run.
        source: the input.
        work: for releases and logs.
    """

    def __init__(self, broker: Broker, cluster: Cluster, source: Input, work: Path) -> None:
        self._cluster = cluster
        self._work = work
        self._runs = 0
        spec = load_spec(source.spec("repredict"))
        self._base = msgspec.structs.replace(
            spec,
            source=msgspec.structs.replace(spec.source, bootstrap_servers=broker.bootstrap_servers),
        )
        make_topics(self._base)
        self._events = publish(self._base, source.log(".parquet"))

    def throughput(self, contender: str, guarantee: str, parallelism: int) -> float:
        """Events a second of one run over the whole topic."""
        spec = self._spec(guarantee)
        with (
            self._running(contender, spec, parallelism, "earliest"),
            Topics(source_access(spec)) as topics,
        ):
            series: list[tuple[float, int]] = []
            until = time.monotonic() + 600
            while not series or series[-1][1] < _TO * self._events:
                written = sum(
                    end
                    for topic in (spec.sink.predictions, spec.sink.rejects)
                    for _, end in topics.log_range(topic).values()
                )
                series.append((time.monotonic(), written))
                if time.monotonic() > until:
                    raise TimeoutError(f"{contender}: {written:,} of {self._events:,} records")
                time.sleep(0.05)
        first = next(each for each in series if each[1] >= _FROM * self._events)
        last = series[-1]
        return (last[1] - first[1]) / (last[0] - first[0])

    def latency(self, contender: str, rate: int, seconds: float) -> dict[str, float]:
        """p50 and p99 in milliseconds at so many events a second."""
        spec = self._spec("idempotent")
        spec = msgspec.structs.replace(
            spec, source=msgspec.structs.replace(spec.source, topic=f"{spec.name}.events")
        )
        make_topics(spec)
        with self._running(contender, spec, 1, "latest") as job_id:
            while self._cluster.checkpoints(job_id).get("counts", {}).get("completed", 0) < 1:
                time.sleep(0.2)
            return _latency(spec, rate, seconds)

    def _spec(self, guarantee: str) -> Spec:
        self._runs += 1
        name = f"bench-{self._runs}"
        sink = msgspec.structs.replace(
            self._base.sink,
            predictions=f"{name}.predictions",
            rejects=f"{name}.rejects",
            guarantee=guarantee,
        )
        spec = msgspec.structs.replace(self._base, name=name, sink=sink)
        make_topics(spec)
        return spec

    @contextmanager
    def _running(self, contender: str, spec: Spec, parallelism: int, start: str) -> Iterator[str]:
        environ = {"TIDEGATE_RELEASES": str(self._work / "releases")} | dict(_environ())
        if contender == JOB:
            job_id = deployment.submit(
                Scorer(spec),
                self._cluster,
                parallelism=parallelism,
                start=Start.parse(start),
                environ=environ,
            ).job_id
        else:
            job_id = self._copy(spec, parallelism, start)
        try:
            yield job_id
        finally:
            self._cluster.cancel(job_id)

    def _copy(self, spec: Spec, parallelism: int, start: str) -> str:
        """Submits a job with the same ends and settings that only copies."""
        place_start(spec, Start.parse(start))
        host, port = self._cluster.host_and_port
        request = Request(
            job=kafka_job(spec, ""),
            parallelism=parallelism,
            settings=job_settings()
            | live_settings()
            | {"execution.target": "remote", "rest.address": host, "rest.port": str(port)},
            wait=False,
        )
        ids: list[str] = []
        log = self._work / "submit.log"
        with (
            tempfile.TemporaryDirectory() as work,
            EmbeddedFlink(
                find_java(),
                log,
                Path(work),
                [find_connector()],
                program="tests.benchmarks.pass_through",
            ) as flink,
        ):
            flink.run(request, submitted=ids.append)
        return ids[0]


def _environ() -> dict[str, str]:
    import os

    return dict(os.environ)


def _latency(spec: Spec, rate: int, seconds: float) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": spec.source.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign(
        [TopicPartition(spec.sink.predictions, p, 0) for p in range(spec.source.partitions)]
    )
    producing = threading.Thread(target=_produce, args=(spec, rate, seconds))
    producing.start()
    waited: list[tuple[int, float]] = []
    until = time.monotonic() + seconds + 5
    while time.monotonic() < until and len(waited) < rate * seconds:
        messages = consumer.consume(2000, 0.02)
        now = time.time() * 1000
        for message in messages:
            value = message.value()
            if message.error() is None and value is not None:
                at = value.index(b'"event_time')
                stamp = int(value[at : at + 60].split(b":")[1].split(b",")[0])
                waited.append((stamp, now - stamp))
    producing.join()
    consumer.close()
    begin = min(stamp for stamp, _ in waited) + _SETTLE_SECONDS * 1000
    settled = sorted(wait for stamp, wait in waited if stamp > begin)
    cuts = statistics.quantiles(settled, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "events": len(settled)}


def _produce(spec: Spec, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": spec.source.bootstrap_servers, "linger.ms": 1})
    names = [f"s{key}".encode() for key in range(20_000)]
    partitions = partitions_for(names, spec.source.partitioner, spec.source.partitions).tolist()
    rng = random.Random(0)
    started, sent = time.monotonic(), 0
    while sent < rate * seconds:
        due = int((time.monotonic() - started) * rate)
        for _ in range(due - sent):
            key = rng.randrange(len(names))
            now = time.time_ns() // 1_000_000
            value = (
                f'{{"shipment_id": "s{key}", "event_time": {now}, "hub": 1, "carrier": 1, '
                '"weight": 0.5, "lane": 3}'
            )
            producer.produce(spec.source.topic, value.encode(), names[key], partitions[key])
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(0.001)
    producer.flush(30)


def measure(
    bench: Bench, repetitions: int, parallelisms: list[int], seconds: float, said: Console
) -> Figures:
    """Measures everything, contenders in turn."""
    figures = Figures()
    for contender in (CEILING, JOB):
        bench.throughput(contender, "idempotent", 1)
        said.print(f"{contender}: ran once, not measured")
    for repetition in range(repetitions):
        for guarantee in GUARANTEES:
            for parallelism in parallelisms:
                place = figures.throughput.setdefault(f"{guarantee}, {parallelism}", {})
                for contender in (CEILING, JOB):
                    found = bench.throughput(contender, guarantee, parallelism)
                    place.setdefault(contender, []).append(found)
                    said.print(
                        f"{repetition + 1}: {guarantee}, parallelism {parallelism}, {contender}: "
                        f"{found:,.0f} events/s"
                    )
    for rate in RATES:
        for contender in (CEILING, JOB):
            waits = bench.latency(contender, rate, seconds)
            figures.latency_ms.setdefault(str(rate), {})[contender] = waits
            said.print(
                f"{rate:,} events/s, {contender}: p50 {waits['p50']:.0f} ms, "
                f"p99 {waits['p99']:.0f} ms"
            )
    return figures


def show(figures: Figures, console: Console) -> None:
    """Prints the tables."""
    table = Table(title="throughput, Kafka to Kafka, events/s (medians)", title_justify="left")
    for column in ("guarantee, parallelism", CEILING, JOB, "ratio"):
        table.add_column(column, justify="left" if column.startswith("g") else "right")
    for what, found in figures.throughput.items():
        ceiling, job = (statistics.median(found[name]) for name in (CEILING, JOB))
        table.add_row(what, f"{ceiling:,.0f}", f"{job:,.0f}", f"{job / ceiling:.2f}")
    console.print(table)
    table = Table(title="latency, idempotent, p50 / p99 in ms", title_justify="left")
    for column in ("events/s", CEILING, JOB, "ratio of p99"):
        table.add_column(column, justify="right")
    for rate, by_name in figures.latency_ms.items():
        shown = [f"{by_name[n]['p50']:.0f} / {by_name[n]['p99']:.0f}" for n in (CEILING, JOB)]
        ratio = by_name[JOB]["p99"] / by_name[CEILING]["p99"]
        table.add_row(f"{int(rate):,}", *shown, f"{ratio:.1f}")
    console.print(table)
    worst = min(
        statistics.median(found[JOB]) / statistics.median(found[CEILING])
        for found in figures.throughput.values()
    )
    at = figures.latency_ms["5000"]
    ratio = at[JOB]["p99"] / at[CEILING]["p99"]
    for bar, met in (
        (f"throughput at least 1/4 of pass-through: {worst:.2f} at the least", worst >= 0.25),
        (f"p99 at 5,000/s at most 2.5 of pass-through: {ratio:.1f}", ratio <= 2.5),
    ):
        console.print(f"{'met' if met else 'NOT met'}: {bar}")


def main() -> None:
    """Parses, measures, shows, writes `bench-cluster.json`."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.cluster",
        description="Measures the job between topics beside one that only copies.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="records of the topic")
    parser.add_argument("--repetitions", type=int, default=2, help="of each throughput")
    parser.add_argument("--parallelism", type=int, action="append", help="repeatable; 1 and 2")
    parser.add_argument("--seconds", type=float, default=15, help="of each latency")
    parser.add_argument("--out", type=Path, default=Path("out/bench-cluster"), help="for figures")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    on = report.machine()
    said = Console(stderr=True, highlight=False)
    source = make_input(Settings(events=options.events, few_events=1_000), out)
    jars = Path(__file__).parents[2] / "deploy" / "local" / "kafka" / "lib"
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-") as work,
        Broker(Path(work) / "broker", jars=jars) as broker,
        LocalCluster(
            Path(work) / "flink", connector=find_connector(), taskmanagers=1, slots=4
        ) as local,
    ):
        bench = Bench(broker, Cluster(local.rest), source, Path(work))
        figures = measure(
            bench, options.repetitions, options.parallelism or [1, 2], options.seconds, said
        )
    show(figures, Console(width=110))
    told = {"machine": on, "events": options.events, **asdict(figures)}
    path = out / "bench-cluster.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    said.print(f"all of it: {path}")


if __name__ == "__main__":
    main()
