"""The version log beside one DuckDB script that does the same to the same Parquet files, in one run, as ratios.

    .venv/bin/pip install -c constraints.txt -e '.[bench]'
    .venv/bin/python bench/difflog.py [--state 5000000] [--visits 500000] [--rows 200000] [--large] [--growth] [--spread]

Both read the state, the new visits and three side logs, and write the signed log of each step, the new states of each
step, all states after each step, and the wide log. trueup also replaces the touched files of its state table and keeps
a manifest; DuckDB writes the new states once. The start of the JVM is not counted, the generation of data neither.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from trueup.config.settings import SparkSettings
from trueup.engine.bulk_session import spark_session
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.manifest import Runs
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.record import open_record
from trueup.verbs.difflog.run import run
from trueup.verbs.difflog.state import StateTable

CONFIG = """
work = "."
[entity]
name = "visit"
key = ["VisitID"]
fast_version = "F"
dropped = ["UserAgent"]
[entity.kept]
Duration = "max"
[[log]]
name = "conversions"
key = ["VisitID"]
[log.columns]
Goals = "sum"
[[log]]
name = "money"
key = ["VisitID"]
[log.columns]
Revenue = "sum"
[[log]]
name = "scores"
key = ["VisitID"]
[log.columns]
Score = "max"
[state]
path = "state"
buckets = 8
[clickhouse]
path = "clickhouse"
table = "visits"
"""
LOGS = {"conversions": "Goals", "money": "Revenue", "scores": "Score"}
RULES = {
    "Duration": "greatest(n.Duration, o.Duration)",
    "Goals": "CASE WHEN n.Goals IS NULL THEN o.Goals WHEN o.Goals IS NULL THEN n.Goals ELSE n.Goals + o.Goals END",
    "Revenue": "CASE WHEN n.Revenue IS NULL THEN o.Revenue WHEN o.Revenue IS NULL THEN n.Revenue"
    " ELSE n.Revenue + o.Revenue END",
    "Score": "greatest(n.Score, o.Score)",
}
STATE_COLUMNS = list(RULES)


def generate(session: Any, folder: Path, state: int, visits: int, rows: int, *, spread: bool = False) -> DiffLogConfig:
    """A state of old visits, new visits (a fifth of them new versions of recent ones), and side rows of recent visits.

    With `spread`, the side rows are of any visit.
    """
    folder.mkdir(parents=True)
    (folder / "difflog.toml").write_text(CONFIG)
    log = load_difflog(str(folder / "difflog.toml"))
    table = StateTable(Path(log.state.path), log.entity.key, log.state.buckets)
    known = session.range(state).selectExpr(
        "id AS VisitID", "1L AS F", "1L AS SlowVersion", "false AS IsDeleted", "CAST(id % 600 AS INT) AS Duration",
        "CAST(id % 4 AS BIGINT) AS Goals", "CAST(id % 90 AS DOUBLE) AS Revenue", "CAST(id % 100 AS INT) AS Score",
        "struct(concat('Browser ', id % 50) AS UserAgent, CAST(id % 600 AS INT) AS Duration) AS Fast",
    )  # fmt: skip
    runs = Runs(Path(log.work))
    record = open_record(log, table, runs)
    record.write(table, runs)
    table.commit(1, known.schema, table.write_files(known, 1), [], record=record.number)
    done = {"run": 1, "outputs": {}, "chunks": [], "finished": "before"}
    (folder / "runs" / "000001").mkdir(parents=True)
    (folder / "runs" / "000001" / "manifest.json").write_text(json.dumps(done))
    updated = visits // 5
    chunk = folder / "chunks" / "a"
    session.range(state - updated, state + visits - updated).selectExpr(
        "id AS VisitID", f"IF(id < {state}, 2L, 1L) AS F", "concat('Browser ', id % 51) AS UserAgent",
        "CAST(id % 700 AS INT) AS Duration", "CAST(NULL AS BIGINT) AS Goals", "CAST(NULL AS DOUBLE) AS Revenue",
        "CAST(NULL AS INT) AS Score",
    ).write.parquet(str(chunk / "visit"))  # fmt: skip
    recent = state if spread else min(state, visits)
    for seed, (name, column) in enumerate(LOGS.items()):
        value = {"Goals": "1L", "Revenue": "2.5D", "Score": "CAST(id % 100 AS INT)"}[column]
        key = f"{state - recent} + pmod(xxhash64(id, {seed}), {recent + visits - updated})"
        session.range(rows).selectExpr(f"{key} AS VisitID", f"{value} AS {column}").selectExpr(
            "VisitID", f"IF(VisitID BETWEEN {state - updated} AND {state - 1}, 2L, 1L) AS F", column
        ).write.parquet(str(chunk / name))  # fmt: skip
    return log


def duckdb_script(folder: Path, out: Path, files: list[str]) -> str:
    """The same transformation as one SQL script."""
    listed = ", ".join(f"'{file}'" for file in files)
    chunk = folder / "chunks" / "a"
    sources = {"visit": [*STATE_COLUMNS], **{name: [column] for name, column in LOGS.items()}}
    lines = [
        "CREATE TEMP TABLE keys AS SELECT DISTINCT VisitID FROM ("
        + " UNION ALL ".join(f"SELECT VisitID FROM '{chunk}/{name}/*.parquet'" for name in sources)
        + ");",
        f"CREATE TEMP TABLE p0 AS SELECT * FROM read_parquet([{listed}]) SEMI JOIN keys USING (VisitID);",
        f"COPY p0 TO '{out}/state0.parquet';",
    ]
    for number, (name, columns) in enumerate(sources.items(), 1):
        agg = {
            "Goals": "sum(Goals)::BIGINT",
            "Revenue": "sum(Revenue)",
            "Score": "max(Score)",
            "Duration": "max(Duration)",
        }
        folded = ", ".join(f"{agg[column]} AS {column}" for column in columns)
        merged = ", ".join(f"{RULES[c]} AS {c}" if c in columns else f"o.{c}" for c in STATE_COLUMNS)
        state = "n.VisitID IS NOT NULL AND (o.F IS NULL OR o.F <= n.F)"
        lines += [
            f"CREATE TEMP TABLE u{number} AS SELECT VisitID, max(F) AS F, {folded}"
            f" FROM '{chunk}/{name}/*.parquet' GROUP BY VisitID;",
            f"CREATE TEMP TABLE j{number} AS SELECT coalesce(o.VisitID, n.VisitID) AS VisitID, o.F AS old_F, n.F AS new_F,"
            f" o.SlowVersion AS old_S, {', '.join(f'o.{c} AS old_{c}' for c in STATE_COLUMNS)}, {merged}, {state} AS fresh"
            f" FROM p{number - 1} o FULL JOIN u{number} n ON o.VisitID = n.VisitID;",
            f"CREATE TEMP TABLE d{number} AS " + " UNION ALL ".join(_blocks(number)) + ";",
            f"COPY d{number} TO '{out}/visit_log_slow_{number}.parquet';",
            f"CREATE TEMP TABLE p{number} AS SELECT VisitID, CASE WHEN fresh THEN new_F ELSE old_F END AS F,"
            f" CASE WHEN fresh THEN 1 + coalesce(old_S, 0) ELSE old_S END AS SlowVersion,"
            f" {', '.join(f'CASE WHEN fresh THEN {c} ELSE old_{c} END AS {c}' for c in STATE_COLUMNS)}, fresh FROM j{number};",
            f"COPY (SELECT * FROM p{number} WHERE fresh) TO '{out}/visits_patched_new_only_{number}.parquet';",
            f"COPY p{number} TO '{out}/visits_patched_{number}.parquet';",
            f"DROP TABLE j{number}; DROP TABLE u{number};",
        ]
    last = len(sources)
    lines += [
        "CREATE TEMP TABLE fast AS SELECT VisitID, F, any_value(UserAgent) AS UserAgent FROM ("
        f"SELECT VisitID, F, UserAgent FROM '{chunk}/visit/*.parquet' UNION ALL SELECT VisitID, F, Fast.UserAgent FROM p0)"
        " GROUP BY VisitID, F;",
        "COPY (SELECT d.*, fast.UserAgent FROM ("
        + " UNION ALL ".join(f"SELECT * FROM d{number}" for number in range(1, last + 1))
        + f") d LEFT JOIN fast USING (VisitID, F)) TO '{out}/visit_log_wide.parquet';",
        f"COPY (SELECT p{last}.*, fast.UserAgent FROM p{last} LEFT JOIN fast USING (VisitID, F))"
        f" TO '{out}/states.parquet';",
    ]
    return "\n".join(lines)


def _blocks(number: int) -> list[str]:
    old = ", ".join(f"old_{c} AS {c}" for c in STATE_COLUMNS)
    new = ", ".join(STATE_COLUMNS)
    none = ", ".join(f"NULL AS {c}" for c in STATE_COLUMNS)
    s, f = "coalesce(old_S, 0)", "F"
    rows = [
        (-1, s, "old_F", old, "old_F <= new_F"), (1, f"1 + {s}", "new_F", new, "old_F <= new_F"),
        (-1, "0", "new_F", none, "old_F < new_F"), (1, "0", "old_F", none, "old_F < new_F"),
        (1, "1", "new_F", new, "old_F IS NULL"), (-1, "0", "new_F", none, "old_F IS NULL"),
    ]  # fmt: skip
    return [
        f"SELECT VisitID, {sign} AS Sign, {slow} AS SlowVersion, {fast} AS {f}, 1000 * ({slow}) + {fast} AS Version, {state}"
        f" FROM j{number} WHERE new_F IS NOT NULL AND {when}"
        for sign, slow, fast, state, when in rows
    ]


def measure(
    session: Any, folder: Path, state: int, visits: int, rows: int, *, peer: bool, spread: bool = False
) -> dict[str, Any]:
    """One comparison: seconds of both, and whether they wrote the same log."""
    from dataclasses import replace

    from trueup.verbs.difflog.model import Target

    log = generate(session, folder, state, visits, rows, spread=spread)
    files = [
        str(Path(log.state.path) / each.path) for each in StateTable(Path(log.state.path), ("VisitID",), 8).files()
    ]
    found: dict[str, Any] = {"state": state, "visits": visits, "rows": rows}
    if peer:
        import duckdb

        out = folder / "duckdb"
        out.mkdir()
        script = duckdb_script(folder, out, files)
        started = time.monotonic()
        connection = duckdb.connect()
        connection.execute(f"SET threads = {os.cpu_count()}")
        used = time.process_time()
        for statement in script.split(";\n"):
            connection.execute(statement)
        found["duckdb"] = time.monotonic() - started
        found["duckdb_cpu"] = time.process_time() - used
    started, used = time.monotonic(), _processor_time()
    result = run(session, replace(log, target=Target()))
    found["trueup"] = time.monotonic() - started
    found["trueup_cpu"] = _processor_time() - used
    found["files"] = f"{result.files_read} of {result.files_in_state}"
    found["signed_rows"] = sum(result.rows.values())
    if peer:
        wide = str(Path(result.folder) / "visit_log_wide" / "*.parquet")
        query = (
            "SELECT count(*), sum(Sign), sum(hash(VisitID, Sign, Version, Goals, Revenue, Score, Duration, UserAgent)"
        )
        ours = connection.execute(f"{query}) FROM '{wide}' WHERE SlowVersion > 0").fetchone()
        theirs = connection.execute(f"{query}) FROM '{out}/visit_log_wide.parquet' WHERE SlowVersion > 0").fetchone()
        found["same"] = ours == theirs
    return found


def _processor_time() -> float:
    """Return the seconds of processor time of this process, of Java and of its workers.

    Other work on the machine changes it less than the elapsed time.
    """
    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=int, default=5_000_000)
    parser.add_argument("--visits", type=int, default=500_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--large", action="store_true", help="also a state of 10 million with 5 million changes")
    parser.add_argument("--growth", action="store_true", help="also states of 1 and 20 million")
    parser.add_argument("--spread", action="store_true", help="also 21,000 changed keys in states of 0.2 and 2 million")
    arguments = parser.parse_args()
    # State, visits, rows per side log, whether DuckDB does the same, and whether keys are spread over the state.
    cases = [(arguments.state, arguments.visits, arguments.rows, True, False)]
    cases += [(10_000_000, 2_300_000, 900_000, True, False)] if arguments.large else []
    if arguments.growth:
        cases += [(size, arguments.visits, arguments.rows, False, False) for size in (1_000_000, 20_000_000)]
    if arguments.spread:
        cases += [(size, 0, 7_000, False, True) for size in (200_000, 2_000_000)]
    lines = []
    with tempfile.TemporaryDirectory() as temporary, spark_session(SparkSettings()) as session:
        # Both are measured warm: the first rounds of a JVM compile what it runs.
        for number in range(5):
            warm = Path(temporary) / f"warm{number}"
            measure(session, warm, 1_000_000, arguments.visits, arguments.rows, peer=False)
            shutil.rmtree(warm)
        for state, visits, rows, peer, spread in cases:
            folder = Path(temporary) / "log"
            one = measure(session, folder, state, visits, rows, peer=peer, spread=spread)
            shutil.rmtree(folder)
            lines.append(one)
            sys.stdout.write(f"{one}\n")
            sys.stdout.flush()
    write_results(lines)


def write_results(lines: list[dict[str, Any]]) -> None:
    """The table, with the machine and the versions."""
    import duckdb
    import pyspark

    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    text = [
        "# Version log",
        "",
        f"{datetime.now(timezone.utc):%Y-%m-%d}; {machine}, PySpark {pyspark.__version__}, DuckDB {duckdb.__version__}.",
        "Written by `bench/difflog.py`; see there what is counted.",
        "",
        "| state | new visits | side rows (x3) | trueup s | DuckDB s | ratio | processor s | DuckDB | ratio | state files read"
        " | signed rows | same log |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in lines:
        peer = one.get("duckdb")
        ratio = f"{one['trueup'] / peer:.2f}" if peer else ""
        cpu = one.get("duckdb_cpu")
        of_cpu = f"{one['trueup_cpu'] / cpu:.2f}" if cpu else ""
        text.append(
            f"| {one['state']:,} | {one['visits']:,} | {one['rows']:,} | {one['trueup']:.1f} |"
            f" {f'{peer:.1f}' if peer else ''} | {ratio} | {one['trueup_cpu']:.1f} | {f'{cpu:.1f}' if cpu else ''} | {of_cpu} |"
            f" {one['files']} | {one['signed_rows']:,} | {one.get('same', '')} |"
        )
    Path(__file__).with_name("RESULTS-difflog.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
