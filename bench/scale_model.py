"""What a diff costs: time, load of the nodes, connections and traffic, as a function of rows, nodes, cores, network, drift.

The costs of one row, block and difference are measured by `bench/scale.py`; `docs/design/scale.md` explains the model.
A run is limited by the slowest of: its slots, the cores of a node, the network, and Python in this process or in the
workers. The formulas add up what one block needs of each, and divide.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

# As in trueup: see verbs/diff/blocks.py, engine/spark.py.
DENSE = 0.3
WAVE_SECONDS, SLICES_PER_SLOT, LARGEST_WAVE = 4.0, 3, 4096
MARK_BYTES = 16


@dataclass(frozen=True)
class Costs:
    """What one row, block or difference costs, in seconds of one core unless named otherwise."""

    # On each node: to hash a row, to mark a row of a unit that differs, to read a row that differs.
    hash_row: float
    mark_row: float
    read_row: float
    # In a worker: per block, per marked row, per difference.
    block_worker: float
    mark_worker: float
    difference_worker: float
    # In the driver, which is one process: per block, per difference (journal, spool, report).
    block_driver: float
    difference_driver: float
    # In the driver and the workers, per difference and re-check.
    recheck: float
    # Round trips with each node: before the first block, per session, per block, and more for a block that differs.
    start_trips: float
    session_trips: float
    block_trips: float
    differing_trips: float
    # Bytes from and to each node: per block, per difference.
    block_bytes: float
    difference_bytes: float
    # Spark: to start it, per job, per slice; round trips with the executors per job and per slice.
    spark_start: float
    job: float
    slice: float
    job_trips: float
    slice_trips: float
    # To connect, check and plan.
    start: float


# By `bench/scale.py` on 2 cores (RESULTS-scale.md), without other work, the trips with executors by `--executors`;
# `start` and `recheck` by `bench/handover.py` on the same machine without other work (RESULTS-handover.md).
MEASURED = Costs(
    hash_row=0.91e-6,
    mark_row=1.47e-6,
    read_row=19e-6,
    block_worker=0.00094,
    mark_worker=0.25e-6,
    difference_worker=22e-6,
    block_driver=0.00012,
    difference_driver=22e-6,
    recheck=32e-6,
    start_trips=55.0,
    session_trips=10.0,
    block_trips=1.0,
    differing_trips=3.6,
    block_bytes=167.0,
    difference_bytes=175.0,
    spark_start=2.5,
    job=0.052,
    slice=0.0084,
    job_trips=4.2,
    slice_trips=0.7,
    start=0.7,
)


@dataclass(frozen=True)
class Run:
    """A table, and where and how it is compared; `drift` is the share of the rows that differ, anywhere in the table."""

    rows: float
    nodes: int = 2
    drift: float = 0.0
    engine: str = "local"
    slots: int = 2
    # Of each node, and of the machine or the cluster that compares; `one_machine`: nodes and workers share `server_cores`.
    server_cores: int = 2
    worker_cores: int = 2
    one_machine: bool = False
    # Seconds of a round trip between a task and a node, and between driver and executors; bytes per second of a node.
    latency: float = 0.0
    driver_latency: float = 0.0
    bandwidth: float = math.inf
    # Of the table on a node: bytes per row, and bytes per second that its storage reads; infinity: in memory.
    row_bytes: float = 0.0
    storage: float = math.inf
    block_size: int = 100_000
    unit_size: int = 10_000
    # Whether workers keep their sessions between slices (a whole cluster without limits), see docs/clusters.md.
    keeps_sessions: bool = False
    recheck: int = 0
    recheck_wait: float = 2.0


@dataclass(frozen=True)
class Prediction:
    """What a run costs, and what limits it."""

    seconds: float
    blocks: int
    limit: str
    # Of each node.
    server_seconds: float
    connections: int
    statements: float
    bytes: float
    # Of all workers, and of the driver.
    worker_seconds: float
    driver_seconds: float
    differences: float

    @property
    def server_load(self) -> float:
        """The cores of a node that are busy, on average."""
        return self.server_seconds / self.seconds


@dataclass(frozen=True)
class _Block:
    """What one block needs."""

    server: float
    worker: float
    driver: float
    trips: float
    bytes: float
    statements: float


def predict(run: Run, costs: Costs) -> Prediction:
    """Return what a run costs."""
    blocks = max(1, math.ceil(run.rows / run.block_size))
    each = _block(run, costs)
    rates = _rates(run, each)
    limit = min(rates, key=lambda name: rates[name])
    seconds = blocks / rates[limit]
    if run.engine == "spark":
        seconds = _on_spark(run, costs, each, rates[limit], blocks)
        limit = "the driver" if each.driver > 1 / rates[limit] else limit
    seconds += costs.start + costs.start_trips * run.latency
    seconds += costs.spark_start if run.engine == "spark" else 0.0
    if run.drift:
        seconds += run.recheck * (run.recheck_wait + run.rows * run.drift * costs.recheck)
    return Prediction(
        seconds=seconds,
        blocks=blocks,
        limit=limit,
        server_seconds=blocks * each.server,
        # One for the driver, and one that watches the node.
        connections=run.slots + 2,
        statements=blocks * each.statements,
        bytes=blocks * each.bytes,
        worker_seconds=blocks * each.worker,
        driver_seconds=blocks * each.driver,
        differences=run.rows * run.drift,
    )


def _block(run: Run, costs: Costs) -> _Block:
    rows = min(run.block_size, run.rows)
    unit_differs = 1 - (1 - run.drift) ** run.unit_size
    block_differs = 1 - (1 - run.drift) ** rows
    is_dense = unit_differs > DENSE
    marked = rows if is_dense else rows * unit_differs
    differences = rows * run.drift
    return _Block(
        server=rows * (0.0 if is_dense else costs.hash_row) + marked * costs.mark_row + differences * costs.read_row,
        worker=costs.block_worker + marked * costs.mark_worker + differences * costs.difference_worker,
        driver=costs.block_driver + differences * costs.difference_driver,
        trips=costs.block_trips + block_differs * costs.differing_trips,
        bytes=costs.block_bytes + marked * MARK_BYTES + differences * costs.difference_bytes,
        statements=1 + block_differs * costs.differing_trips,
    )


def _rates(run: Run, each: _Block) -> dict[str, float]:
    """Return the blocks per second that each resource allows."""
    is_local = run.engine == "local"
    slot = each.server + each.worker + each.trips * run.latency + each.bytes / run.bandwidth
    rates = {
        "the slots": run.slots / slot,
        "the cores of a node": run.server_cores / each.server,
        "the network of a node": run.bandwidth / max(each.bytes, 1.0),
        "the storage of a node": run.storage / max(run.block_size * run.row_bytes, 1.0),
    }
    if is_local:
        # Threads of one process compute one at a time.
        rates["Python in this process"] = 1 / (each.worker + each.driver)
    else:
        rates["the cores of the workers"] = run.worker_cores / each.worker
    if run.one_machine:
        rates["the cores of the machine"] = run.server_cores / (run.nodes * each.server + each.worker + each.driver)
    return rates


def _on_spark(run: Run, costs: Costs, each: _Block, rate: float, blocks: int) -> float:
    """Return the time of all waves: the driver handles the answers of a wave before it starts the next one."""
    rounds = SLICES_PER_SLOT if run.keeps_sessions else 1
    overhead = costs.job + costs.job_trips * run.driver_latency
    overhead += rounds * (costs.slice + costs.slice_trips * run.driver_latency)
    if not run.keeps_sessions:
        overhead += costs.session_trips * run.latency
    seconds, size = 0.0, run.slots * SLICES_PER_SLOT
    while blocks > 0:
        wave = overhead + min(size, blocks) * (1 / rate + each.driver)
        seconds += wave
        blocks -= size
        size = min(LARGEST_WAVE, max(run.slots * SLICES_PER_SLOT, int(size * min(WAVE_SECONDS / wave, 2))))
    return seconds


# A table of 1 TB with the rows of the bench, on two nodes with 32 cores each, 10 Gbit/s and 2 GB/s of storage; 20 machines
# with 16 cores each compare it.
_ROW_BYTES = 183
TERABYTE = Run(
    1e12 / _ROW_BYTES,
    engine="spark",
    slots=32,
    server_cores=32,
    worker_cores=320,
    latency=0.0005,
    driver_latency=0.0005,
    bandwidth=1.25e9,
    row_bytes=_ROW_BYTES,
    storage=2e9,
    recheck=2,
)
_CASES = {
    "one machine, threads, 2 slots": replace(TERABYTE, engine="local", slots=2, worker_cores=16),
    "one machine, threads, 32 slots": replace(TERABYTE, engine="local", slots=32, worker_cores=16),
    "20 machines, 32 slots": TERABYTE,
    "20 machines, 160 slots": replace(TERABYTE, slots=160),
    "20 machines, 32 slots, tables in memory": replace(TERABYTE, storage=math.inf),
    "20 machines, 160 slots, nodes with 128 cores, in memory": replace(
        TERABYTE, slots=160, server_cores=128, storage=math.inf
    ),
    "20 machines, 32 slots, latency of 20 ms": replace(TERABYTE, latency=0.02),
    "20 machines, 32 slots, 0.0001 % different": replace(TERABYTE, drift=1e-6),
    "one machine, threads, 32 slots, 0.01 % different": replace(TERABYTE, engine="local", worker_cores=16, drift=1e-4),
    "20 machines, 32 slots, 0.01 % different": replace(TERABYTE, drift=1e-4),
    "20 machines, 32 slots, 1 % different": replace(TERABYTE, drift=0.01),
}


def tables() -> list[str]:
    """Return the tables of docs/design/scale.md that the model predicts."""
    lines = [
        "| 1 TB on two nodes | minutes | limit | cores of a node | connections per node | statements per second and node | MB/s per node |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for name, run in _CASES.items():
        found = predict(run, MEASURED)
        lines.append(
            f"| {name} | {found.seconds / 60:,.0f} | {found.limit} | {found.server_load:.0f} | {found.connections} |"
            f" {found.statements / found.seconds:,.0f} | {found.bytes / found.seconds / 1e6:,.1f} |"
        )
    return ["\n".join(lines)]


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(tables()) + "\n")
