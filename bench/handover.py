"""Compare `--engine auto` with `--engine local`: when Spark takes over, and what that costs or saves.

    .venv/bin/python bench/handover.py [--cases 1000000:none,10000000:none,20000000:none,10000000:1%,2000000:none:100]
                                       [--repeat 3] [--only NAME,…] [--seconds 10] [--output FILE]

A case is ROWS:DIFFERENT[:MS]. With a latency of MS milliseconds between the command and the server, most of the time is
waited, so that cores are idle as if the nodes were on other machines; blocks have 10,000 rows then. The tables are those of `bench/diff.py`. The contestants run in turn, in one run. Other work on the machine changes the
elapsed time, so the processor time is given too: of the command with its children, and of the server for it. The
class-data archive of Java is made before, as the first run of a user does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import psutil
from delay import delayed
from diff import SETTINGS, databases, environment
from machine import machine, measure

import trueup
from trueup.config.settings import SparkSettings
from trueup.engine.archive import archive_for
from trueup.engine.java import find_java
from trueup.testing.postgres import Database, Server

# The engine of a contestant, and its settings. "At once": Spark is started after the first second, whatever is left.
CONTESTANTS: dict[str, tuple[str, dict[str, str]]] = {
    "local": ("local", {}),
    "auto": ("auto", {}),
    "auto at once": ("auto", {"TRUEUP__SPARK__LOCAL_SECONDS": "0"}),
    "spark": ("spark", {}),
}
_EVERY = 0.1
_ARCHIVE_SECONDS = 600.0


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


def run(server: Server, options: Sequence[str], contestant: str, runs: Runs, count: int) -> None:
    """Run `trueup diff` once."""
    engine, settings = CONTESTANTS[contestant]
    command = [sys.executable, "-m", "trueup", "diff", "public.orders", "--engine", engine, "--json", "-q", *options]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        assert server.pid is not None
        own = Processor(psutil.Process(), besides=server.pid)
        with Processor(psutil.Process(server.pid)) as server_time, own as own_time:
            measured = measure(command, place, 1800, {**environment(place), **settings})
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
    show(
        f"{contestant}: {measured.seconds:.1f} s, {own_time.seconds:.1f} + {server_time.seconds:.1f} CPU s, {result['ran_on']}"
    )


@contextmanager
def connected(nodes: Sequence[Database], latency: float) -> Iterator[list[str]]:
    """Yield the options that name the nodes, behind proxies that add a latency."""
    with ExitStack() as stack:
        uris = [node.uri for node in nodes]
        if latency:
            ports = [stack.enter_context(delayed("127.0.0.1", node.server.port, latency)).port for node in nodes]
            uris = [
                uri.replace(f":{node.server.port}/", f":{port}/")
                for uri, node, port in zip(uris, nodes, ports, strict=True)
            ]
        options = [option for name, uri in zip("ab", uris, strict=True) for option in ("--node", f"{name}={uri}")]
        yield [*options, *(("--block-size", "10000") if latency else ())]


def case_lines(server: Server, case: str, chosen: Sequence[str], repeat: int) -> Iterator[str]:
    """Run one case; yield the lines of its table."""
    rows, drift, *latency = case.split(":")
    show(case)
    all_runs = {contestant: Runs() for contestant in chosen}
    with databases(server, int(rows), [drift]) as cases:
        for _, count, left, right in cases:
            for node in (left, right):
                node.execute("SELECT count(o::text) FROM public.orders o")
            with connected((left, right), float(latency[0]) / 1000 if latency else 0.0) as options:
                for _ in range(repeat):
                    for contestant, runs in all_runs.items():
                        run(server, options, contestant, runs, count)
    base = statistics.median(all_runs[chosen[0]].seconds)
    for contestant, runs in all_runs.items():
        shares = [ran_on.get("spark", 0) / sum(ran_on.values()) for ran_on in runs.ran_on]
        yield (
            f"| {int(rows):,}, {drift} different{f', {latency[0]} ms' if latency else ''} | {contestant} | {statistics.median(runs.seconds):.1f} |"
            f" {statistics.median(runs.seconds) / base:.2f} | {statistics.median(runs.own):.1f} |"
            f" {statistics.median(runs.server):.1f} | {max(runs.peak) // 2**20:,} | {statistics.median(shares):.0%} |"
        )


def wait_for_archive() -> None:
    """Make the class-data archive, unless there is one: otherwise the first run would make it during the next ones."""
    java = find_java()
    archive = archive_for(java, {})
    if archive is None or archive.is_ready():
        return
    before = dict(os.environ)
    os.environ["JAVA_HOME"] = str(java)
    archive.start_making()
    os.environ.clear()
    os.environ.update(before)
    end = time.monotonic() + _ARCHIVE_SECONDS
    while not archive.is_ready():
        if time.monotonic() > end:
            raise SystemExit("the class-data archive was not made")
        time.sleep(1)


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="1000000:none,10000000:none,20000000:none,10000000:1%,2000000:none:100")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="local,auto,auto at once", help="contestants; the first is the base")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS-handover.md"))
    parser.add_argument("--seconds", type=float, default=SparkSettings().local_seconds, help="local_seconds of auto")
    arguments = parser.parse_args()
    CONTESTANTS["auto"][1]["TRUEUP__SPARK__LOCAL_SECONDS"] = str(arguments.seconds)
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(CONTESTANTS):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: known are {', '.join(CONTESTANTS)}")
    wait_for_archive()
    text = [
        "# Threads, and Spark after them",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {machine()}.",
        f"trueup {trueup.__version__}; `local_seconds` = {arguments.seconds:g}; medians of {arguments.repeat} runs, in turn.",
        "Written by `bench/handover.py`; see there what is counted. Processor: seconds of the command, and of the server.",
        "",
        "| rows | engine | seconds | / local | processor | of the server | peak MB | blocks on Spark |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    with Server.start(name="bench", settings=SETTINGS) as server:
        for case in arguments.cases.split(","):
            text += case_lines(server, case, chosen, arguments.repeat)
            arguments.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
