"""Measure what the model of `scale_model.py` needs, and check its predictions: slots, drift, latency.

    .venv/bin/python bench/scale.py [--rows 1000000] [--executors] [--output FILE]

The tables are those of `bench/diff.py`. Costs are processor time, bytes and round trips, which depend little on other
work on the machine. The elapsed time of the checks depends on it, so most of them use small blocks and a latency that is
a large part of the time. Proxies add the latency (`bench/delay.py`). With
`--executors`, also between the driver and two executors.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from delay import Traffic, delayed
from diff import SETTINGS, databases
from handover import show, wait_for_archive
from machine import machine, server_seconds
from scale_model import MEASURED, Costs, Run, predict

import trueup
from trueup.config.model import Node
from trueup.db.reader import Reader
from trueup.engine.session import start_session
from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.testing.postgres import Database, Server, free_port

SMALL_BLOCKS, BLOCKS = 10_000, 100_000
LATENCIES = (0.02, 0.1)
NONE, SMALL, SOME, MANY = "none", "none, small blocks", "0.1% different", "1% different"


@dataclass
class Measured:
    """A run on threads: processor seconds of a node, of the tasks and of the thread that runs them; traffic of a node."""

    server: float
    worker: float
    driver: float
    traffic: Traffic


@dataclass
class Found:
    """What was measured."""

    costs: dict[str, Measured]
    runs: list[tuple[Run, float]]
    session_trips: int = 0
    starts: tuple[float, float] = (0.0, 0.0)
    jobs: tuple[float, float] = (0.0, 0.0)
    spark_start: float = 0.0
    row_bytes: float = 0.0


@contextmanager
def network(nodes: Sequence[Database], latency: float) -> Iterator[tuple[list[str], list[Traffic]]]:
    """Yield addresses of proxies in front of the nodes; after the block, their traffic."""
    traffic: list[Traffic] = []
    with ExitStack() as stack:
        proxies = [stack.enter_context(delayed("127.0.0.1", node.server.port, latency)) for node in nodes]
        ports = [
            (node.uri, f":{node.server.port}/", f":{proxy.port}/") for node, proxy in zip(nodes, proxies, strict=True)
        ]
        yield [uri.replace(port, other) for uri, port, other in ports], traffic
    traffic += [proxy.traffic for proxy in proxies]


def diff(uris: Sequence[str], run: Run) -> float:
    """Run a diff in this process, without re-checks, and return its time; Spark has the session of this process."""
    os.environ["TRUEUP__SPARK__SLOTS"] = str(run.slots)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        trueup.diff(
            "public.orders",
            nodes={f"n{number}": uri for number, uri in enumerate(uris)},
            engine=run.engine,
            recheck=0,
            block_size=run.block_size,
            override_block_size=True,
            report_dir=folder,
            task_db=f"{folder}/tasks.db",
        )
        return time.monotonic() - started


def costs_of_run(nodes: Sequence[Database], run: Run) -> Measured:
    """Return what a run on threads costs."""
    pid = nodes[0].server.pid
    assert pid is not None
    with network(nodes, 0.0) as (uris, traffic):
        before = server_seconds(pid), time.thread_time(), time.process_time()
        diff(uris, run)
        after = server_seconds(pid), time.thread_time(), time.process_time()
    server, driver, all_threads = (end - start for start, end in zip(before, after, strict=True))
    return Measured(server / len(nodes), all_threads - driver, driver, traffic[0])


def elapsed(nodes: Sequence[Database], run: Run) -> float:
    """Return the time of a run."""
    with network(nodes, run.latency) as (uris, _):
        return diff(uris if run.latency else [node.uri for node in nodes], run)


def session_trips(node: Database) -> int:
    """Return the round trips of a new session of a task, without its query."""
    with network([node], 0.0) as (uris, traffic):
        reader = Reader(Node("n", uris[0]), None, application="trueup bench", retries=0)
        reader.warm_up()
        reader.close()
    # Joining a snapshot takes two more.
    return traffic[0].trips - 1 + 2


def starts(node: Database, rows: int) -> tuple[float, float]:
    """Return the time of a diff of one block without latency, and with 0.1 s: their difference is in round trips."""
    one_block = Run(rows, slots=1, block_size=rows)
    with network((node, node), 0.1) as (uris, _):
        return diff([node.uri, node.uri], one_block), diff(uris, one_block)


def job_seconds(engine: SparkEngine, slices: int) -> float:
    """Return the shortest time of a job whose slices have no task."""

    def once() -> float:
        started = time.monotonic()
        engine.wave(len, [()] * slices, "bench")
        return time.monotonic() - started

    return min(once() for _ in range(10))


def measure_all(server: Server, rows: int) -> Found:
    """Measure the costs on threads, then the runs of the check on both engines."""
    found = Found({}, [])
    base = Run(rows, one_machine=True, server_cores=os.cpu_count() or 1)
    latencies = [replace(base, block_size=SMALL_BLOCKS, latency=latency) for latency in LATENCIES]
    checks = [replace(run, slots=slots) for run in (base, *latencies) for slots in (1, 2)]
    with databases(server, rows, ["none", "0.1%", "1%"]) as cases:
        for case, count, left, right in cases:
            nodes = (left, right)
            name = {"none": NONE, "0.1%": SOME, "1%": MANY}[case]
            # The first run of a process imports modules.
            diff([left.uri, right.uri], base)
            found.costs[name] = costs_of_run(nodes, base)
            show(f"{name}: {found.costs[name]}")
            if case == "none":
                found.costs[SMALL] = costs_of_run(nodes, replace(base, block_size=SMALL_BLOCKS))
                show(f"{SMALL}: {found.costs[SMALL]}")
                ((size,),) = left.execute("SELECT pg_table_size('public.orders')")
                found.row_bytes = size / rows
                found.session_trips = session_trips(left)
                found.starts = starts(left, rows)
                for run in checks:
                    found.runs.append((run, elapsed(nodes, run)))
                    show(str(found.runs[-1]))
                found.runs += on_spark(nodes, checks, found)
            if case == "1%":
                run = replace(base, drift=count / rows)
                found.runs.append((run, elapsed(nodes, run)))
                show(str(found.runs[-1]))
    return found


def on_spark(nodes: Sequence[Database], checks: Sequence[Run], found: Found) -> Iterator[tuple[Run, float]]:
    """Yield the time of the same runs on Spark, with one session, which has started before."""
    started = time.monotonic()
    engine = SparkEngine(start_session(slots=2), Share(fixed=2), owned=True)
    found.spark_start = time.monotonic() - started
    engine.warm_up(len)
    found.jobs = job_seconds(engine, 2), job_seconds(engine, 12)
    try:
        for run in checks:
            spark = replace(run, engine="spark")
            yield spark, elapsed(nodes, spark)
    finally:
        engine.close()


def costs_of(found: Found, rows: int) -> Costs:
    """Return the costs of a row, a block and a difference."""
    none, small, some, many = (found.costs[name] for name in (NONE, SMALL, SOME, MANY))
    more_blocks = rows / SMALL_BLOCKS - rows / BLOCKS
    # With both shares nearly every unit differs: all rows are marked, and none are hashed before.
    few, more = rows * 0.001, rows * 0.009
    read_row = (many.server - some.server) / more
    difference_worker = (many.worker - some.worker) / more
    return Costs(
        hash_row=none.server / rows,
        mark_row=(some.server - few * read_row) / rows,
        read_row=read_row,
        block_worker=(small.worker - none.worker) / more_blocks,
        mark_worker=max(0.0, some.worker - none.worker - few * difference_worker) / rows,
        difference_worker=difference_worker,
        block_driver=(small.driver - none.driver) / more_blocks,
        difference_driver=(many.driver - some.driver) / more,
        recheck=MEASURED.recheck,
        start_trips=(found.starts[1] - found.starts[0]) / 0.1,
        session_trips=found.session_trips,
        block_trips=(small.traffic.trips - none.traffic.trips) / more_blocks,
        differing_trips=(some.traffic.trips - none.traffic.trips) / (rows / BLOCKS),
        block_bytes=(small.traffic.bytes - none.traffic.bytes) / more_blocks,
        difference_bytes=(many.traffic.bytes - some.traffic.bytes) / more,
        spark_start=found.spark_start,
        job=found.jobs[0],
        slice=(found.jobs[1] - found.jobs[0]) / 5,
        # By --executors.
        job_trips=MEASURED.job_trips,
        slice_trips=MEASURED.slice_trips,
        start=max(0.0, found.starts[0] - none.server),
    )


def check_line(run: Run, seconds: float, costs: Costs) -> str:
    """Return a line of the check; the session of Spark had started before."""
    predicted = predict(run, replace(costs, spark_start=0.0))
    return (
        f"| {run.engine} | {run.slots} | {run.latency * 1000:g} | {run.block_size:,} | {run.drift:.0%} | {seconds:.1f} |"
        f" {predicted.seconds:.1f} | {predicted.seconds / seconds:.2f} | {predicted.limit} |"
    )


def executor_latency(server: Server, rows: int) -> Iterator[str]:
    """Run on a cluster of two executors, with latency between them and the driver."""
    with databases(server, rows, ["none"]) as cases:
        for _, _, left, right in cases:
            for latency in (0.0, 0.02, 0.1):
                with ExitStack() as stack:
                    ports = [free_port(), free_port()]
                    for port in ports:
                        stack.enter_context(delayed("127.0.0.1", port, latency, "127.0.0.2", port))
                    conf = {
                        "spark.driver.host": "127.0.0.2",
                        "spark.driver.bindAddress": "127.0.0.1",
                        "spark.driver.port": str(ports[0]),
                        "spark.driver.blockManager.port": str(ports[1]),
                        "spark.executor.memory": "512m",
                    }
                    session = start_session(slots=2, master="local-cluster[2,1,512]", conf=conf)
                    engine = SparkEngine(session, Share(fixed=2), owned=True)
                    stack.callback(engine.close)
                    engine.warm_up(len)
                    jobs = [job_seconds(engine, slices) for slices in (2, 12)]
                    run = Run(rows, engine="spark", block_size=SMALL_BLOCKS)
                    uris = [left.uri, right.uri]
                    one, two = (min(diff(uris, replace(run, slots=slots)) for _ in range(2)) for slots in (1, 2))
                    line = f"| {latency * 1000:g} | {jobs[0]:.2f} | {jobs[1]:.2f} | {one:.1f} | {two:.1f} |"
                    show(line)
                    yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--executors", action="store_true", help="latency between the driver and executors, only")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS-scale.md"))
    arguments = parser.parse_args()
    wait_for_archive()
    text = [
        "# Costs of a diff, and a check of the model",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {machine()}.",
        f"trueup {trueup.__version__}; {arguments.rows:,} rows in each of two databases of one server on the same machine.",
        "Written by `bench/scale.py`; see there what is counted.",
    ]
    with Server.start(name="bench", settings=SETTINGS) as server:
        if arguments.executors:
            text += ["", "| latency (ms) | job of 2 slices | of 12 slices | diff, 1 slot | diff, 2 slots |"]
            text += ["|--:|--:|--:|--:|--:|"]
            text += executor_latency(server, arguments.rows)
        else:
            found = measure_all(server, arguments.rows)
            costs = costs_of(found, arguments.rows)
            text += ["", "| cost | seconds, trips or bytes |", "|---|--:|"]
            text += [f"| {name} | {value:.3g} |" for name, value in asdict(costs).items()]
            text += [f"| bytes of a row on a node | {found.row_bytes:.0f} |", ""]
            text += ["| engine | slots | latency (ms) | rows per block | drift | seconds | model | ratio | limit |"]
            text += ["|---|--:|--:|--:|--:|--:|--:|--:|---|"]
            text += [check_line(run, seconds, costs) for run, seconds in found.runs]
    arguments.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
