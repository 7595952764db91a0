"""`check --since-proof` beside `check`: few blocks touched, all blocks touched, none touched.

    .venv/bin/python bench/since_proof.py [--rows 2000000] [--times 3]

Two servers of this machine with the same table, native replication between them, and a validation of both sides in a
process of its own, whose certificate is that of a `check --certify`; there is no scrub. 1 % of the rows is updated: a range of
neighbouring keys, then keys all over the table. Both commands take turns; the median of each is told. The time of
`--since-proof` contains its markers and the wait for the validation; processor time is that of both servers and of the
command, and does not depend on what else the machine does. Writes bench/RESULTS-since-proof.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from machine import machine

import trueup
from trueup.testing.postgres import Server

TABLE = "CREATE TABLE big (id int PRIMARY KEY, name text, price numeric, changed timestamptz, note text)"
FILL = """INSERT INTO big SELECT i, 'item ' || i, i / 7.0, '2024-01-01'::timestamptz + i * interval '1 s', repeat('x', i % 40)
            FROM generate_series(1, {rows}) i; VACUUM ANALYZE big"""
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "wal_level": "logical"}
RUN = (
    "import sys, trueup; trueup.Validation('bench', nodes={'n1': sys.argv[1], 'n2': sys.argv[2]}).start(engine='local')"
)


def compare(nodes: dict[str, str], since: str) -> tuple[float, float, trueup.DiffResult]:
    """Return the seconds, the processor time of both servers and this process, and the result of one check."""
    began, used = time.monotonic(), processor_time()
    result = trueup.check("public.big", nodes=nodes, engine="local", since_proof=since)
    return time.monotonic() - began, processor_time() - used, result


servers: list[int] = []


def processor_time() -> float:
    """Return the processor time of the servers, with their sessions that have ended, and of this process."""
    total = sum(psutil.Process().cpu_times()[:2])
    for pid in servers:
        server = psutil.Process(pid)
        total += sum(server.cpu_times()[:4])
        for child in server.children():
            with suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:4])
    return total


def measured(name: str, nodes: dict[str, str], times: int) -> str:
    """Return a line of the table: both commands in turns."""
    seconds: dict[str, list[float]] = {"": [], "bench": []}
    used: dict[str, list[float]] = {"": [], "bench": []}
    for _ in range(times):
        for since in seconds:
            took, processor, result = compare(nodes, since)
            assert result.verdict == "MATCH", result
            seconds[since].append(took)
            used[since].append(processor)
    since_proof = result.since_proof
    said = since_proof["reason"] or f"{since_proof['blocks_now']} blocks, {result.rows_checked:,} rows"
    plain, cheap = (statistics.median(each) for each in used.values())
    cells = [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in used.values()]
    cells += [f"{cheap / plain:.2f}", *(f"{statistics.median(each):.2f}" for each in seconds.values())]
    return f"| {name} | {' | '.join(cells)} | {said} |"


def wait_for_certificate(validation: trueup.Validation) -> None:
    """Wait until the table is proven; raise if that takes longer than five minutes."""
    deadline = time.monotonic() + 300
    while (proof := validation.prove(timeout=60)).verdict != "MATCH":
        if time.monotonic() > deadline:
            raise SystemExit(str(proof))
        time.sleep(0.5)


def main() -> None:
    """Run all, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    rows = options.rows
    folder = tempfile.mkdtemp(prefix="trueup-bench-")
    os.chdir(folder)
    os.environ["TRUEUP_TASKS_DB"] = f"{folder}/tasks.db"
    with Server.start(name="up", settings=SETTINGS) as one, Server.start(name="down", settings=SETTINGS) as two:
        servers.extend(server.pid for server in (one, two) if server.pid)
        up, down = one.create_database("up"), two.create_database("down")
        for node in (up, down):
            node.execute(TABLE)
            for statement in FILL.format(rows=rows).split(";"):
                node.execute(statement)
        up.execute("CREATE PUBLICATION big FOR TABLE big")
        down.execute(f"CREATE SUBSCRIPTION big CONNECTION '{up.uri}' PUBLICATION big WITH (copy_data = false)")
        nodes = {"n1": up.uri, "n2": down.uri}
        validation = trueup.Validation("bench", nodes=nodes)
        validation.create(source="n1", target="n2", tables=["public.big"], both_sides=True, scrub_share=0.0)
        process = subprocess.Popen([sys.executable, "-c", RUN, up.uri, down.uri])
        try:
            while validation.status().state != "running":
                time.sleep(0.5)
            certified = trueup.check("public.big", nodes=nodes, engine="local", certify="bench")
            assert not certified.certified["reason"], certified
            wait_for_certificate(validation)
            lines = [measured("nothing", nodes, options.times)]
            first = rows // 2
            up.execute("UPDATE big SET price = 0 WHERE id BETWEEN %s AND %s", [first, first + rows // 100])
            wait_for_certificate(validation)
            lines.append(measured("1 %, neighbouring keys", nodes, options.times))
            up.execute("UPDATE big SET price = price + 1 WHERE id % 100 = 7")
            wait_for_certificate(validation)
            lines.append(measured("1 %, keys all over the table", nodes, options.times))
        finally:
            validation.stop()
            process.wait(60)
    text = "\n".join([
        "# check --since-proof", "", f"{rows:,} rows, {options.times} times each, engine local, in seconds (median, least and most). {machine()}", "",
        "| touched since the certificate | processor, check | processor, --since-proof | ratio | time, check | time, --since-proof | read |", "|---|---|---|---|---|---|---|", *lines, "",
    ])  # fmt: skip
    page = Path(__file__).with_name("RESULTS-since-proof.md")
    page.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
