"""`check` of a table whose key has two columns, as the table grows: the processor time of a row must stay the same.

    .venv/bin/python bench/key_ranges.py [--millions 1 2 3 4] [--bin /usr/lib/postgresql/15/bin]

Two databases of one server of this machine, a key (uuid, int) in random order or (int, int) of one tenant, and ten columns.
Told is the processor time of the server, which does not depend on what else the machine does.
Writes bench/RESULTS-key-ranges.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from machine import machine

import trueup
from trueup.testing.postgres import Server

COLUMNS = "c bigint, d text, e text, f timestamptz, g numeric, h int, i text, j boolean"
VALUES = (
    "x, 'text ' || x, md5(x::text), timestamptz '2024-01-01' + x * interval '1 s', x / 7.0, x % 1000,"
    " 'some more text, a bit longer ' || x, x % 2 = 0"
)
KEYS = {
    "(uuid, int)": ("a uuid, b int", "md5(x::text)::uuid, x % 4"),
    "(int, int), one tenant": ("a int, b int", "1, x"),
}
SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "8GB", "autovacuum": "off"}


def server_time(server: Server) -> float:
    """Return the processor time of the server, with its sessions, which have ended."""
    while server.database("postgres").execute("SELECT FROM pg_stat_activity WHERE datname IN ('n1', 'n2')"):
        time.sleep(0.1)
    # A session that ends is counted by its own process, and then by that of the server.
    time.sleep(0.5)
    process = psutil.Process(server.pid)
    total = sum(process.cpu_times()[:4])
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:4])
    return total


def measured(server: Server, key: str, millions: int) -> str:
    """Return a line of the table."""
    (columns, values), rows = KEYS[key], millions * 1_000_000
    one = server.create_database("n1")
    one.execute(f"CREATE TABLE t ({columns}, {COLUMNS}, PRIMARY KEY (a, b))")
    one.execute(f"INSERT INTO t SELECT {values}, {VALUES} FROM generate_series(1, {rows}) x")
    one.execute("VACUUM ANALYZE t")
    server.database("postgres").execute("CREATE DATABASE n2 TEMPLATE n1 STRATEGY file_copy")
    other = server.database("n2")
    began, used = time.monotonic(), server_time(server)
    result = trueup.check("public.t", nodes={"n1": one.uri, "n2": other.uri}, engine="local")
    took, used = time.monotonic() - began, server_time(server) - used
    assert result.verdict == "MATCH", result
    one.drop()
    other.drop()
    return f"| {key} | {millions} | {took:.1f} | {used:.1f} | {used / rows * 1e6:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--bin", default=None, help="folder of the programs of the server")
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server.start(Path(folder) / "pg", bin_dir=options.bin, settings=SETTINGS)
        try:
            version = server.database("postgres").execute("SHOW server_version")[0][0]
            for key in KEYS:
                for millions in options.millions:
                    lines.append(measured(server, key, millions))
                    print(lines[-1], flush=True)  # noqa: T201
        finally:
            server.remove()
    head = "| key | million rows | seconds | seconds of the server's processor | µs a row |\n|---|---|---|---|---|"
    text = f"# Ranges of keys of two columns\n\n{machine()}, PostgreSQL {version}. `bench/key_ranges.py`.\n\n{head}\n"
    Path(__file__).with_name("RESULTS-key-ranges.md").write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
