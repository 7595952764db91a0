"""Compare `--engine auto` with `--engine local`: when Spark takes over, and what that costs or saves.

    .venv/bin/python bench/handover.py [--cases 1000000:none,10000000:none,20000000:none,10000000:1%] [--repeat 3]
                                       [--seconds 10] [--output FILE]

The tables are those of `bench/diff.py`. Both contestants run in turn, in one run. Other work on the machine changes the
elapsed time, so the processor time is given too: of the command with its children, and of the server for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import psutil
from diff import SETTINGS, databases
from machine import machine, measure

import trueup
from trueup.testing.postgres import Database, Server

_EVERY = 0.1


@dataclass
class Runs:
    """The runs of one contestant in one case."""

    seconds: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    ran_on: list[dict[str, int]] = field(default_factory=list)


class Processor:
    """The processor time of what a process has started, while the block runs, without one of its children."""

    def __init__(self, root: psutil.Process, *, besides: int = 0) -> None:
        self._root, self._besides = root, besides
        self._known: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Processor:
        self._look()
        self._before = dict(self._known)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """The sum of all processes, as last seen."""
        return sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._known.items())

    def _watch(self) -> None:
        while not self._done.wait(_EVERY):
            self._look()
        self._look()

    def _look(self) -> None:
        children = self._root.children()
        for process in [each for each in children if each.pid != self._besides]:
            children += [each for each in _below(process) if each not in children]
        for process in children:
            try:
                if process.pid == self._besides:
                    continue
                times = process.cpu_times()
                self._known[process.pid] = times.user + times.system
            except psutil.Error:
                continue


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def run(server: Server, nodes: tuple[Database, Database], engine: str, seconds: float, runs: Runs, count: int) -> None:
    """Run `trueup diff` once."""
    left, right = nodes
    command = [sys.executable, "-m", "trueup", "diff", "public.orders", "--engine", engine, "--json", "-q"]
    command += ["--node", f"a={left.uri}", "--node", f"b={right.uri}"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TRUEUP_TASKS_DB": f"{folder}/tasks.db",
            "TRUEUP__SPARK__LOCAL_SECONDS": str(seconds),
        }
        assert server.pid is not None
        own = Processor(psutil.Process(), besides=server.pid)
        with Processor(psutil.Process(server.pid)) as server_time, own as own_time:
            measured = measure(command, Path(folder) / "run", 1800, environment)
        if measured.code not in (0, 1):
            raise SystemExit(measured.errors)
        result = json.loads(measured.out.read_text())
    found = sum(counts["missing"] + counts["extra"] + counts["changed"] for counts in result["pairs"].values())
    if found != count:
        raise SystemExit(f"wrong: {found} of {count} differences")
    runs.seconds.append(measured.seconds)
    runs.own.append(own_time.seconds)
    runs.server.append(server_time.seconds)
    runs.peak.append(measured.peak)
    runs.ran_on.append(result["ran_on"])


def case_lines(server: Server, case: str, repeat: int, seconds: float) -> Iterator[str]:
    """Run one case; yield the lines of its table."""
    rows, drift = case.split(":")
    with databases(server, int(rows), [drift]) as cases:
        for _, count, left, right in cases:
            all_runs = {"local": Runs(), "auto": Runs()}
            for node in (left, right):
                node.execute("SELECT count(o::text) FROM public.orders o")
            for _ in range(repeat):
                for engine, runs in all_runs.items():
                    run(server, (left, right), engine, seconds, runs, count)
    base = statistics.median(all_runs["local"].seconds)
    for engine, runs in all_runs.items():
        shares = [ran_on.get("spark", 0) / sum(ran_on.values()) for ran_on in runs.ran_on]
        yield (
            f"| {int(rows):,}, {drift} different | {engine} | {statistics.median(runs.seconds):.1f} |"
            f" {statistics.median(runs.seconds) / base:.2f} | {statistics.median(runs.own):.1f} |"
            f" {statistics.median(runs.server):.1f} | {max(runs.peak) // 2**20:,} | {statistics.median(shares):.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1000000:none,10000000:none,20000000:none,10000000:1%")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="spark.local_seconds")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS-handover.md"))
    arguments = parser.parse_args()
    text = [
        "# Threads, and Spark after them",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {machine()}.",
        f"trueup {trueup.__version__}; `spark.local_seconds` = {arguments.seconds:g}; medians of {arguments.repeat} runs, in turn.",
        "Written by `bench/handover.py`; see there what is counted. Processor: seconds of the command, and of the server.",
        "",
        "| rows | engine | seconds | / local | processor | of the server | peak MB | blocks on Spark |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    with Server.start(name="bench", settings=SETTINGS) as server:
        for case in arguments.cases.split(","):
            text += case_lines(server, case, arguments.repeat, arguments.seconds)
    arguments.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
