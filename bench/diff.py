"""Measure `trueup diff` and `trueup check` and other tools: wall time and peak memory, in one run on one server.

    .venv/bin/python bench/diff.py [--rows 1000000,10000000] [--cases none,100,1%] [--only NAME,…] [--repeat 3]
                                   [--growth] [--uuid [ROWS]] [--output FILE]

The tables are in two databases of one PostgreSQL server; each contestant is a process, and its start is included. Memory
is the sum of PSS of its processes, sampled five times per second, without the server. Both tables are read once before
the first contestant of a case, so that they are equally cached for all. A wrong answer is shown as wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import physical
from contestants import CHECKSUMS, RELADIFF, Contestant, contestants
from machine import Measured, machine, measure, version_of

import trueup
from trueup.testing.postgres import Database, Server

SETTINGS = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    # No background work during the measurements.
    "autovacuum": "off",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
GROWTH = (1_000_000, 5_000_000, 10_000_000, 20_000_000)
GROWING = ("floor", "trueup diff", "trueup diff --engine spark")
MB = 1024 * 1024

# One id in 65 is free, for the rows that only one side has. The numeric has a scale: without one, reladiff compares whole
# numbers only and misses the differences of a cent.
CREATE = """
CREATE TABLE public.orders AS
SELECT g + g / 64 AS id, hashint8(g) %% 1000000 AS quantity, md5(g::text) || lpad((g %% 100000000)::text, 8, '0') AS label,
       ((hashint8(g) & 16777215) / 100.0)::numeric(12, 2) AS amount, timestamptz '2024-01-01 00:00+00' + g * interval '1.7 s' AS placed_at,
       jsonb_build_object('number', g %% 1000, 'paid', g %% 2 = 0, 'tags', jsonb_build_array('a', g %% 7)) AS details
  FROM generate_series(1, %(rows)s::int8) g
"""
# Every tenth difference is a missing row, every tenth an extra one; the others change one of the five columns each.
DRIFT = """
CREATE TEMP TABLE drift AS
SELECT i, g + g / 64 AS id, 65 * (g / 64 + 1) - 1 AS free
  FROM (SELECT i, 1 + (i * step) + (hashint8(i) & 2147483647) %% step AS g
          FROM (SELECT %(rows)s::int8 / %(count)s AS step) s, generate_series(0, %(count)s::int8 - 1) i) d;
"""
APPLY = """
DELETE FROM public.orders o USING drift d WHERE o.id = d.id AND i % 10 = 0;
INSERT INTO public.orders SELECT d.free, quantity, label, amount, placed_at, details
  FROM drift d JOIN public.orders o USING (id) WHERE i % 10 = 1;
UPDATE public.orders o SET quantity = quantity + 1 FROM drift d WHERE o.id = d.id AND i % 10 IN (2, 3);
UPDATE public.orders o SET label = reverse(label) FROM drift d WHERE o.id = d.id AND i % 10 IN (4, 5);
UPDATE public.orders o SET amount = amount + 0.01 FROM drift d WHERE o.id = d.id AND i % 10 IN (6, 7);
UPDATE public.orders o SET placed_at = placed_at + interval '1 s' FROM drift d WHERE o.id = d.id AND i % 10 = 8;
UPDATE public.orders o SET details = details || '{"late": true}' FROM drift d WHERE o.id = d.id AND i % 10 = 9;
"""


@dataclass(frozen=True)
class Line:
    """One contestant in one case."""

    rows: int
    case: str
    name: str
    seconds: float | None
    peak: int
    said: str


def make_left(server: Server, rows: int) -> Database:
    """Create the first database, with a table of this many rows, vacuumed and analyzed."""
    left = server.create_database("left")
    _run(left, CREATE, {"rows": rows})
    left.execute("ALTER TABLE public.orders ADD PRIMARY KEY (id)")
    left.execute(CHECKSUMS)
    left.execute("VACUUM (FREEZE, ANALYZE) public.orders")
    left.execute("CHECKPOINT")
    return left


def make_right(server: Server, rows: int, differences: int) -> Database:
    """Create the second database: a copy of the first with this many differences."""
    server.database("postgres").execute('CREATE DATABASE "right" TEMPLATE "left" STRATEGY file_copy')
    right = server.database("right")
    if differences:
        import psycopg

        with psycopg.connect(right.uri) as connection, psycopg.ClientCursor(connection) as cursor:
            cursor.execute(DRIFT, {"rows": rows, "count": differences})
            cursor.execute("ANALYZE drift")
            cursor.execute(APPLY)
    right.execute("VACUUM (ANALYZE) public.orders")
    right.execute("CHECKPOINT")
    return right


def _run(database: Database, statement: str, values: dict[str, int]) -> None:
    import psycopg

    # CREATE TABLE AS takes no parameters, so they are filled in here.
    with psycopg.connect(database.uri, autocommit=True) as connection, psycopg.ClientCursor(connection) as cursor:
        cursor.execute(statement, values)


@contextmanager
def databases(
    server: Server, rows: int, cases: Sequence[str]
) -> Iterator[Iterator[tuple[str, int, Database, Database]]]:
    """Yield the cases of one size; drop the databases at the end."""
    left = make_left(server, rows)
    try:
        yield _each(server, rows, cases, left)
    finally:
        left.drop()


def _each(
    server: Server, rows: int, cases: Sequence[str], left: Database
) -> Iterator[tuple[str, int, Database, Database]]:
    for case in cases:
        count = differences(case, rows)
        right = make_right(server, rows, count)
        try:
            yield case, count, left, right
        finally:
            right.drop()


def differences(case: str, rows: int) -> int:
    """Return the number of differences of a case: none, a number, or a share of the rows."""
    if case == "none":
        return 0
    count = int(rows * float(case[:-1]) / 100) if case.endswith("%") else int(case)
    if not 10 <= count <= rows // 64:
        raise SystemExit(f"--cases {case}: 10 to {rows // 64:,} differences can be made in {rows:,} rows")
    return count


def one_size(
    server: Server, rows: int, cases: Sequence[str], chosen: Sequence[Contestant], arguments: argparse.Namespace
) -> list[Line]:
    """Measure all contestants in all cases of one size."""
    lines = []
    with databases(server, rows, cases) as each, tempfile.TemporaryDirectory() as temporary:
        for case, count, left, right in each:
            for database in (left, right):
                database.execute("SELECT count(*), max(length(label)) FROM public.orders")
            for contestant in chosen:
                if not count and "--recheck" in contestant.name:
                    continue
                folder = Path(temporary) / f"{case}-{contestant.name}".replace(" ", "-").replace("%", "")
                lines.append(one(contestant, case, rows, count, (left, right), folder, arguments))
                show(lines[-1])
    return lines


def one(
    contestant: Contestant,
    case: str,
    rows: int,
    expected: int,
    pair: tuple[Database, Database],
    folder: Path,
    arguments: argparse.Namespace,
) -> Line:
    """Measure one contestant in one case: the median time, and the highest peak memory."""
    if contestant.missing:
        return Line(rows, case, contestant.name, None, 0, contestant.missing)
    command = contestant.command(pair[0].uri, pair[1].uri)
    seconds, peaks, said = [], [], set()
    for number in range(arguments.repeat):
        place = folder.with_name(f"{folder.name}-{number}")
        run = measure(command, place, arguments.timeout, environment(place))
        seconds.append(run.seconds)
        peaks.append(run.peak)
        said.add(judge(contestant, run, expected))
        if run.code is None:
            break
    return Line(rows, case, contestant.name, statistics.median(seconds), max(peaks), "; ".join(sorted(said)))


def judge(contestant: Contestant, run: Measured, expected: int) -> str:
    """Return the answer, and whether it is right."""
    if run.code is None:
        return "stopped: too long"
    try:
        if run.code not in contestant.codes:
            raise ValueError(f"exit code {run.code}")
        answer = contestant.answer(run.out, run.code)
    except Exception as error:
        why = (run.errors.strip().splitlines() or [""])[-1]
        return f"FAILED: {error}; {why}".replace("|", "/")[:200]
    if isinstance(answer, bool):
        shown, right = "differ" if answer else "equal", answer == bool(expected)
    else:
        shown, right = f"{answer:,}", answer == expected
    return shown if right else f"WRONG: {shown} instead of {expected:,}"


def environment(place: Path) -> dict[str, str]:
    """Return the environment without variables that influence a contestant."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRUEUP", "PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C.UTF-8", "TRUEUP_TASKS_DB": str(place / "tasks.db")}


def show(line: Line) -> None:
    seconds = "" if line.seconds is None else f"{line.seconds:8.2f} s {line.peak / MB:7.0f} MB"
    sys.stdout.write(f"{line.rows:>12,}  {line.case:>5}  {line.name:<28} {seconds:>22}  {line.said}\n")
    sys.stdout.flush()


def size_tables(lines: Sequence[Line]) -> list[str]:
    """Return a table per size and case, with the ratios to the floor and to the merge."""
    text = []
    for rows, case in dict.fromkeys((line.rows, line.case) for line in lines):
        some = [line for line in lines if (line.rows, line.case) == (rows, case)]
        text += ["", f"## {rows:,} rows, {'no difference' if case == 'none' else f'{case} different'}", ""]
        text += ["| | seconds | / floor | / merge | peak MB | answer |", "|---|--:|--:|--:|--:|---|"]
        for line in some:
            if line.seconds is None:
                text.append(f"| {line.name} | | | | | {line.said} |")
                continue
            ratios = " | ".join(_ratio(line, some, name) for name in ("floor", "merge"))
            text.append(f"| {line.name} | {line.seconds:.2f} | {ratios} | {line.peak / MB:,.0f} | {line.said} |")
    return text


def _ratio(line: Line, some: Sequence[Line], name: str) -> str:
    base = next((other.seconds for other in some if other.name == name), None)
    return f"{line.seconds / base:.2f}" if base and line.seconds else ""


def growth_table(lines: Sequence[Line]) -> list[str]:
    """Return rows per second (per side) and peak memory by size."""
    text = ["", "## How the cost grows (no difference)", "", "| | rows | seconds | rows/s | peak MB | answer |"]
    text.append("|---|--:|--:|--:|--:|---|")
    for line in sorted(lines, key=lambda line: (GROWING.index(line.name), line.rows)):
        rate = line.rows / line.seconds if line.seconds else 0
        seconds = f"{line.seconds:.2f} | {rate:,.0f}" if line.seconds else " | "
        text.append(f"| {line.name} | {line.rows:,} | {seconds} | {line.peak / MB:,.0f} | {line.said} |")
    return text


def heading(
    server: Server, all_of_them: Sequence[Contestant], arguments: argparse.Namespace, machine: str
) -> list[str]:
    """Return the machine, the versions, the settings and the contestants."""
    import pyspark

    (postgres,) = server.database("postgres").execute("SHOW server_version")[0]
    settings = ", ".join(f"{name} = {value}" for name, value in {"fsync": "off", **SETTINGS}.items())
    versions = [
        f"trueup {trueup.__version__}", f"PySpark {pyspark.__version__}", f"Python {platform.python_version()}",
        f"PostgreSQL {postgres}", RELADIFF.replace("==", " "), version_of(["diff", "--version"]),
        f"pg_comparator: {version_of(['pg_comparator', '--version']).rpartition('version is ')[2]}",
    ]  # fmt: skip
    times = "one run of each" if arguments.repeat == 1 else f"the median of {arguments.repeat} runs of each"
    return [
        "# Diff and check beside their peers",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {machine}.",
        f"{'; '.join(versions)}.",
        f"Two databases of one server on the same machine ({settings}); {times}.",
        "Written by `bench/diff.py`; see there what is counted. Memory is looked at five times a second: what lives for less",
        "than a second may have had a higher peak.",
        "",
        *(f"- {contestant.name}: {contestant.what}" for contestant in all_of_them),
        "",
        "pg_comparator's own checksum is a C library for the server version of its package; here `cksum8` is an inlined",
        "function that calls the server's `hashtextextended`, also in C.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,10000000", help="sizes; empty for none")
    parser.add_argument("--cases", default="none,100,1%", help="none, a number, or a share")
    parser.add_argument("--only", default="", help="contestants by name, separated by commas")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run of one contestant")
    parser.add_argument("--growth", action="store_true", help="also 1, 5, 10 and 20 million rows, without differences")
    parser.add_argument("--uuid", type=int, nargs="?", const=5_000_000, help="also a table with random uuids as keys")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.rows.replace("_", "").split(",") if size]
    cases = arguments.cases.split(",")
    here = machine()
    with Server.start(name="bench", settings=SETTINGS) as server:
        known = contestants(server)
        wanted = arguments.only.split(",") if arguments.only else [each.name for each in known]
        if unknown := set(wanted) - {each.name for each in known}:
            raise SystemExit(f"--only {', '.join(sorted(unknown))}: known are {', '.join(each.name for each in known)}")
        chosen = [each for each in known if each.name in wanted]
        text = heading(server, chosen, arguments, here)
        lines = [line for rows in sizes for line in one_size(server, rows, cases, chosen, arguments)]
        text += size_tables(lines)
        if arguments.growth:
            growing = [each for each in chosen if each.name in GROWING]
            text += growth_table(
                [line for rows in GROWTH for line in one_size(server, rows, ["none"], growing, arguments)]
            )
        if arguments.uuid:
            text += physical.compare(server, arguments.uuid)
    arguments.output.write_text("\n".join(text) + "\n", encoding="utf-8")
    sys.stdout.write(f"written to {arguments.output}\n")


if __name__ == "__main__":
    main()
