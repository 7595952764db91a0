"""Load of `trueup serve`: clients that open pages and keep a stream of events, the memory of the server, and latencies.

`bench/serve.py` writes bench/RESULTS-serve.md.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
from machine import machine

from trueup.store import COMPLETED, TaskStore

PAGES = ("/", "/tables", "/tasks", "/metrics", "/api/v1/tables")


def fill(path: Path, tasks: int, tables: int) -> None:
    """Record a diff per table, and copy one of the tasks until there are `tasks`."""
    with TaskStore(path) as store:
        for number in range(tables):
            context = {"mode": "diff", "nodes": "n1,n2"}
            task = store.start("TABLE_DIFF", cluster="shop", schema="public", table=f"t{number}", context=context)
            summary = {"verdict": "DIFFER" if number % 50 == 0 else "MATCH", "nodes": ["n1", "n2"], "mode": "diff"}
            more = {"total_rows_checked": 1000, "diff_rows_count": {"n1/n2": number % 50 == 0}, "time_taken": 1.0}
            store.finish(task.task_id, COMPLETED, summary={**summary, **more})
    with closing(sqlite3.connect(path)) as connection, connection:
        info = connection.execute("PRAGMA table_info(tasks)")
        columns = ", ".join(row[1] for row in info if row[1] not in ("seq", "task_id"))
        connection.execute(
            f"INSERT INTO tasks (task_id, {columns}) WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM c"
            f" WHERE value < ?) SELECT 'x' || value, {columns} FROM tasks, c WHERE task_id = ?",
            (tasks, task.task_id),
        )


class Clients:
    """Threads that each keep a stream of events open and load pages in turn."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stop = threading.Event()
        self.seconds: dict[str, list[float]] = {page: [] for page in PAGES}
        self.failed = 0

    def run(self, number: int) -> None:
        stream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        stream.request("GET", "/events")
        stream.getresponse()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        turn = number
        while not self.stop.is_set():
            page = PAGES[turn % len(PAGES)]
            turn += 1
            began = time.perf_counter()
            try:
                connection.request("GET", page)
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status != 200
            except (OSError, http.client.HTTPException):
                self.failed += 1
                connection.close()
            self.seconds[page].append(time.perf_counter() - began)
            self.stop.wait(1.0)
        stream.close()
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.db"
        fill(path, options.tasks, options.tables)
        command = [sys.executable, "-m", "trueup", "serve", "--port", "0", "--task-db", str(path), "--interval", "1"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as process:
            assert process.stdout is not None
            found = re.search(r":(\d+)/", process.stdout.readline())
            assert found
            clients = Clients(int(found[1]))
            threads = [threading.Thread(target=clients.run, args=(number,)) for number in range(options.clients)]
            for thread in threads:
                thread.start()
            memory: list[tuple[float, float]] = []
            began, server = time.monotonic(), psutil.Process(process.pid)
            while time.monotonic() - began < options.seconds:
                memory.append((time.monotonic() - began, server.memory_info().rss / 1e6))
                with TaskStore(path) as store:
                    # Something changes: every open page is told, and pages are rendered again.
                    task = store.start("TABLE_CHECK", schema="public", table="t1", context={"nodes": "n1,n2"})
                    store.finish(
                        task.task_id, COMPLETED, summary={"verdict": "MATCH", "nodes": ["n1", "n2"], "mode": "check"}
                    )
                time.sleep(1.0)
            cpu = sum(server.cpu_times()[:2])
            clients.stop.set()
            for thread in threads:
                thread.join(60)
            process.terminate()
            process.wait(30)
    write(options, clients, memory, cpu)


def write(options: argparse.Namespace, clients: Clients, memory: list[tuple[float, float]], cpu: float) -> None:
    third = len(memory) // 3
    early, late = (statistics.median(size for _, size in part) for part in (memory[third : 2 * third], memory[-third:]))
    lines = [
        "# Results: `trueup serve`",
        "",
        f"{machine()}",
        "",
        f"{options.clients} clients for {options.seconds:.0f} s, each with an open stream of events and a page per second; {options.tasks:,}"
        f" tasks and {options.tables} tables in the task store, which changes every second; refreshed every second.",
        "",
        "| page | requests | median | 99 % | slowest |",
        "|---|---|---|---|---|",
    ]
    for page, seconds in clients.seconds.items():
        ordered = sorted(seconds)
        slow = ordered[int(len(ordered) * 0.99) - 1]
        lines.append(
            f"| `{page}` | {len(ordered):,} | {statistics.median(ordered) * 1000:.0f} ms | {slow * 1000:.0f} ms | {ordered[-1] * 1000:.0f} ms |"
        )
    lines += [
        "",
        f"Failed requests: {clients.failed}. Memory of the server: {early:.0f} MB in the second third of the time, {late:.0f} MB in the last"
        f" ({late - early:+.1f} MB). Processor time: {cpu:.1f} s.",
        "",
    ]
    target = Path(__file__).parent / "RESULTS-serve.md"
    target.write_text("\n".join(lines), encoding="utf-8")
    print(target.read_text(encoding="utf-8"))  # noqa: T201


if __name__ == "__main__":
    main()
