"""Measure `trueup diff` of PostgreSQL with a Delta and a Parquet copy, beside other tools: wall time and peak memory.

    .venv/bin/python bench/cross.py [--rows 10000000] [--cases none,100,1%] [--only NAME,…] [--folder FOLDER] [--output FILE]

The table is that of bench/diff.py. Its copy is written once; the table then gets the differences. Each contestant is a
process, and its start is included. A wrong answer is shown as wrong. With `--folder`, the server, the copies and the
results are kept there, so that contestants can be measured one at a time; `--only ""` prepares them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from contestants import floor_query
from cross_contestants import QUERY
from diff import SETTINGS, differences, environment, make_left, make_right
from handover import Processor
from machine import machine, measure

from trueup.testing.postgres import Database, Server

MB = 1024 * 1024
PEERS = {
    "spark-join": "a full outer join on Spark, which is what spark-extension's diff does; PostgreSQL read in parallel",
    "datacompy": "datacompy's SparkSQLCompare over the same frames",
    "duckdb": "PostgreSQL copied to a Parquet file, then a full outer join of DuckDB",
}
OURS = {"trueup parquet": "parquet", "trueup delta": "delta"}


@dataclass(frozen=True)
class Line:
    """One contestant in one case."""

    case: str
    name: str
    seconds: float
    # Seconds of processor time, of the contestant and of PostgreSQL: other work on the machine hardly changes it.
    processor: float
    peak: int
    said: str


def export(database: Database, folder: Path) -> None:
    """Write the table as Parquet files of a million rows, and as a Delta table."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    (folder / "parquet").mkdir(parents=True)
    with adbc.connect(database.uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"{QUERY} ORDER BY id")
        reader = cursor.fetch_record_batch()
        amount = reader.schema.get_field_index("amount")
        schema = reader.schema.set(amount, pa.field("amount", pa.decimal128(12, 2)))
        batches: list[Any] = []
        number = 0
        for batch in reader:
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= 1_000_000:
                pq.write_table(pa.Table.from_batches(batches).cast(schema), folder / "parquet" / f"{number:04}.parquet")
                batches, number = [], number + 1
        if batches:
            pq.write_table(pa.Table.from_batches(batches).cast(schema), folder / "parquet" / f"{number:04}.parquet")
    files = sorted((folder / "parquet").glob("*.parquet"))
    whole = (batch for path in files for batch in pq.ParquetFile(path).iter_batches(100_000))
    write_deltalake(str(folder / "delta"), pa.RecordBatchReader.from_batches(schema, whole))


def command(name: str, uri: str, lake: Path, work: Path) -> list[str]:
    """Return the command of a contestant."""
    if name in OURS:
        kind = OURS[name]
        nodes = ["--node", f"pg={uri}", "--node", f"lake={kind}:{lake / kind}"]
        return [sys.executable, "-m", "trueup", "diff", "public.orders", "--json", "--recheck", "0", *nodes]
    script = str(Path(__file__).with_name("cross_contestants.py"))
    return [sys.executable, script, name, uri, str(lake / "parquet"), str(work)]


def answer(name: str, out: Path) -> int:
    """Return the number of differences that a contestant has printed."""
    text = out.read_text()
    if name not in OURS:
        return int(text.split()[-1])
    counts = json.loads(text)["pairs"]["pg/lake"]
    return int(counts["missing"] + counts["extra"] + counts["changed"])


def server_time(server: Server) -> Processor:
    """Return the processor time of the sessions of a server."""
    assert server.pid is not None
    return Processor(psutil.Process(server.pid))


def hash_ratio(database: Database) -> float:
    """Return the processor time of the digests of canonical rows in PostgreSQL, divided by that of its own digest."""
    from trueup.config.model import Node
    from trueup.config.settings import DiffSettings, ExpressionSettings
    from trueup.nodes.base import HashBlocks
    from trueup.nodes.plan import Request, plan_columns
    from trueup.nodes.postgres import Options, PostgresNode

    settings = DiffSettings(max_connections=1)
    node = PostgresNode(Node("pg", database.uri), "public.orders", Options(settings, ExpressionSettings()), "bench")
    try:
        plan = plan_columns({"pg": node.describe()}, Request())
        node.begin()
        plan = replace(plan, blocks=node.key_blocks(plan, 1000) or HashBlocks(10), is_short=True)
        times = []
        for _ in range(2):
            with server_time(database.server) as canonical:
                node.digests(plan)
            with server_time(database.server) as own:
                database.execute("SET max_parallel_workers_per_gather = 0; " + floor_query(database.uri))
            times.append(canonical.seconds / own.seconds)
        return min(times)
    finally:
        node.close()


def table(lines: Sequence[Line]) -> list[str]:
    """Return a table per case, with the ratio to the best of the others."""
    text = []
    for case in dict.fromkeys(line.case for line in lines):
        some = [line for line in lines if line.case == case]
        peers = [line for line in some if line.name in PEERS and not line.said.startswith(("WRONG", "FAILED"))]
        right, used = [line.seconds for line in peers], [line.processor for line in peers]
        text += ["", f"## {'No difference' if case == 'none' else f'{case} different'}", ""]
        text += ["| | seconds | / best other | processor s | / best other | peak MB | answer |"]
        text += ["|---|--:|--:|--:|--:|--:|---|"]
        for line in some:
            ratios = [f"{line.seconds / min(right):.2f}" if right else "", ""]
            ratios[1] = f"{line.processor / min(used):.2f}" if used else ""
            times = f"{line.seconds:.1f} | {ratios[0]} | {line.processor:.1f} | {ratios[1]}"
            text.append(f"| {line.name} | {times} | {line.peak / MB:,.0f} | {line.said} |")
    return text


def results(rows: int, here: str, ratio: float, lines: Sequence[Line]) -> str:
    """Return the page of the results."""
    text = [
        "# PostgreSQL beside a copy in files",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {here}. {rows:,} rows. Written by `bench/cross.py`.",
        "",
        *(f"- {name}: {what}" for name, what in PEERS.items()),
        "",
        f"The digests of canonical rows take {ratio:.2f} times the processor time of PostgreSQL's own digest, in one session.",
        *table(lines),
    ]
    return "\n".join(text) + "\n"


@contextmanager
def prepared(folder: Path | None, rows: int) -> Iterator[tuple[Server, Database, Path]]:
    """Yield the server, the database with the table, and the folder of the copies; kept in a folder, if one is named."""
    if folder is None:
        with Server.start(name="bench", settings=SETTINGS) as server, tempfile.TemporaryDirectory() as temporary:
            left = make_left(server, rows)
            export(left, Path(temporary) / "lake")
            yield server, left, Path(temporary)
        return
    if (folder / "done").exists():
        server = Server.attach(folder / "server")
        if not server.running:
            server.restart()
        yield server, server.database("left"), folder
        return
    folder.mkdir(parents=True)
    server = Server.start(folder / "server", keep=True, name="bench", settings=SETTINGS)
    left = make_left(server, rows)
    export(left, folder / "lake")
    (folder / "done").touch()
    yield server, left, folder


def case_database(server: Server, rows: int, case: str) -> Database:
    """Return the database of a case, which is made if it does not exist."""
    name = f"right_{case.replace('%', '_percent')}"
    known = server.database("postgres").execute("SELECT datname FROM pg_database")
    if (name,) not in known:
        make_right(server, rows, differences(case, rows))
        server.database("postgres").execute(f'ALTER DATABASE "right" RENAME TO "{name}"')
    right = server.database(name)
    right.execute("SELECT count(*), max(length(label)) FROM public.orders")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cases", default="none,100,1%")
    parser.add_argument("--only", help="contestants by name, separated by commas")
    parser.add_argument("--folder", type=Path, help="keep the server, the copies and the results in this folder")
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS-cross.md"))
    arguments = parser.parse_args()
    names = [*OURS, *PEERS] if arguments.only is None else [name for name in arguments.only.split(",") if name]
    here = machine()
    with prepared(arguments.folder, arguments.rows) as (server, left, folder):
        lines, ratio = known_lines(folder)
        for case in arguments.cases.split(","):
            expected = differences(case, arguments.rows)
            right = case_database(server, arguments.rows, case)
            if not ratio and names:
                ratio = hash_ratio(left)
                sys.stdout.write(f"canonical digests / own digests of PostgreSQL: {ratio:.2f}\n")
            for name in names:
                lines[case, name] = measured(case, name, expected, right, folder, arguments.timeout)
                # After each: a run that is cut short leaves those that were measured.
                keep_lines(folder, lines, ratio)
                text = results(arguments.rows, here, ratio, in_order(lines))
                arguments.output.write_text(text, encoding="utf-8")


def measured(case: str, name: str, expected: int, right: Database, folder: Path, timeout: float) -> Line:
    """Measure one contestant in one case."""
    work = folder / "work" / f"{case}-{name}".replace(" ", "-").replace("%", "")
    shutil.rmtree(work, ignore_errors=True)
    pid = right.server.pid or 0
    with server_time(right.server) as server, Processor(psutil.Process(), besides=pid) as own:
        run = measure(command(name, right.uri, folder / "lake", work), work, timeout, environment(work))
    processor = own.seconds + server.seconds
    try:
        found = answer(name, run.out)
        said = f"{found:,}" if found == expected else f"WRONG: {found:,} instead of {expected:,}"
    except Exception:
        said = f"FAILED: {(run.errors.strip().splitlines() or ['too long'])[-1]}".replace("|", "/")[:150]
    shutil.rmtree(work, ignore_errors=True)
    used = f"{processor:8.1f} s of processor (server {server.seconds:.1f})"
    sys.stdout.write(f"{case:>5} {name:<16} {run.seconds:8.1f} s {used} {run.peak / MB:7.0f} MB  {said}\n")
    sys.stdout.flush()
    return Line(case, name, run.seconds, processor, run.peak, said)


def in_order(lines: dict[tuple[str, str], Line]) -> list[Line]:
    """Return the lines by case and contestant."""
    names = [*OURS, *PEERS]
    cases = list(dict.fromkeys(case for case, _ in lines))
    return sorted(lines.values(), key=lambda line: (cases.index(line.case), names.index(line.name)))


def known_lines(folder: Path) -> tuple[dict[tuple[str, str], Line], float]:
    """Return what was measured before in the folder."""
    path = folder / "lines.json"
    if not path.exists():
        return {}, 0.0
    known = json.loads(path.read_text())
    return {(line["case"], line["name"]): Line(**line) for line in known["lines"]}, known["ratio"]


def keep_lines(folder: Path, lines: dict[tuple[str, str], Line], ratio: float) -> None:
    """Write what was measured to the folder."""
    kept = {"ratio": ratio, "lines": [asdict(line) for line in lines.values()]}
    (folder / "lines.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
