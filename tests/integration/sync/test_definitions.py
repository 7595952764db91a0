"""Definitions that change under a sync: what no round can show is set aside, and `sync ddl --apply` makes it equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.sync import Pair
from trueup.cli.main import run
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.store import TaskStore
from trueup.verbs.switchover import prepare as preparation
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.gate import TABLES, GateClosed
from trueup.verbs.switchover.request import EXECUTE, REHEARSE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.text import status_text
from trueup.verbs.sync_ddl import apply_ddl, change_tables
from trueup.verbs.sync_ddl.text import ddl_text

PLAIN = "CREATE TABLE {0} (id int PRIMARY KEY, n int, c int);"
PARTS = """CREATE TABLE {0} (id int, day int, n int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (10);
CREATE TABLE {0}_2 PARTITION OF {0} FOR VALUES FROM (10) TO (20);
CREATE TABLE {0}_rest PARTITION OF {0} DEFAULT;"""
AGAIN = "DROP TABLE {0}; CREATE TABLE {0} (id int PRIMARY KEY, n int, c int); INSERT INTO {0} VALUES (1, 2, 3)"
# Name -> the tables, what is done with them on the source, and, if it cannot be read from the rows, its reason.
# "": they are equal after the next round, without anything else. Each statement is a transaction of its own.
REPLACED = "was replaced by another table"
ANEW = "was dropped and added again on the source"
CASES = {
    # Tables that get the name of another one.
    "dropped": (PLAIN, [AGAIN], REPLACED),
    "rebuilt": (
        PLAIN + "CREATE INDEX ON {0} (n); CREATE VIEW {0}_view AS SELECT id FROM {0};",
        [
            "BEGIN; DROP VIEW {0}_view; ALTER TABLE {0} RENAME TO {0}_bak;"
            "CREATE TABLE {0} (LIKE {0}_bak INCLUDING ALL);"
            "INSERT INTO {0} SELECT id, n + 1, c FROM {0}_bak; DROP TABLE {0}_bak;"
            "CREATE VIEW {0}_view AS SELECT id FROM {0}; COMMIT"
        ],
        REPLACED,
    ),
    "other_columns": (
        PLAIN,
        ["DROP TABLE {0}; CREATE TABLE {0} (id int, v text PRIMARY KEY); INSERT INTO {0} VALUES (1, 'x')"],
        REPLACED,
    ),
    "made_plain": (PARTS, [AGAIN], REPLACED),
    "other_parts": (
        PARTS,
        [
            "DROP TABLE {0}; CREATE TABLE {0} (id int, day int, n int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
            "CREATE TABLE {0}_2 PARTITION OF {0} FOR VALUES FROM (0) TO (7);"
            "CREATE TABLE {0}_3 PARTITION OF {0} FOR VALUES FROM (7) TO (90); INSERT INTO {0} VALUES (1, 8, 9)"
        ],
        REPLACED,
    ),
    "taken_over": (
        PLAIN + "CREATE TABLE {0}_by (id int PRIMARY KEY, v text);",
        ["DROP TABLE {0}; ALTER TABLE {0}_by RENAME TO {0}; CREATE TABLE {0}_by (id int PRIMARY KEY, w int)"],
        "it was dropped on the source",
    ),
    # Values that change without a change of a row.
    "added_again": (PLAIN, ["ALTER TABLE {0} DROP c; ALTER TABLE {0} ADD c int"], ANEW),
    "in_the_middle": (
        PLAIN + "CREATE INDEX ON {0} (n);",
        ["ALTER TABLE {0} DROP n", "ALTER TABLE {0} ADD n int", "CREATE INDEX ON {0} (n)"],
        ANEW,
    ),
    "other_type": (
        PLAIN,
        ["ALTER TABLE {0} DROP n; ALTER TABLE {0} ADD n bigint NOT NULL DEFAULT 5"],
        "column n differs",
    ),
    "computed": (
        "CREATE TABLE {0} (id int PRIMARY KEY, n int, day int, x int GENERATED ALWAYS AS (n * 2) STORED);",
        ["ALTER TABLE {0} DROP x; ALTER TABLE {0} ADD x int GENERATED ALWAYS AS (n * 3) STORED"],
        ANEW,
    ),
    "volatile": (
        PLAIN,
        ["ALTER TABLE {0} ADD d float DEFAULT random(); ALTER TABLE {0} ALTER d DROP DEFAULT"],
        "column d does not exist",
    ),
    "rewritten": (
        PLAIN,
        ["ALTER TABLE {0} ADD d int DEFAULT 7", "ALTER TABLE {0} ALTER d DROP DEFAULT", "VACUUM FULL {0}"],
        "column d does not exist",
    ),
    "default_of_partitions": (
        PARTS,
        ["ALTER TABLE {0} ADD d int DEFAULT 7; ALTER TABLE {0} ALTER d DROP DEFAULT"],
        "column d does not exist",
    ),
    "shortened": (
        "CREATE TABLE {0} (id int PRIMARY KEY, n int, day numeric(10, 4));",
        ["ALTER TABLE {0} ALTER day TYPE numeric(3, 1) USING 9.5"],
        "type of column day differs",
    ),
    "attribute": (
        "CREATE TYPE {0}_type AS (a int, b int); CREATE TABLE {0} (id int PRIMARY KEY, n int, day int, v {0}_type[]);",
        ["ALTER TYPE {0}_type DROP ATTRIBUTE b; ALTER TYPE {0}_type ADD ATTRIBUTE b int"],
        "",
    ),
    # Partitions.
    "split": (
        PARTS,
        [
            "BEGIN; CREATE TABLE {0}_3 (LIKE {0} INCLUDING ALL);"
            "WITH m AS (DELETE FROM {0}_rest WHERE day < 30 RETURNING *) INSERT INTO {0}_3 SELECT * FROM m;"
            "ALTER TABLE {0} ATTACH PARTITION {0}_3 FOR VALUES FROM (20) TO (30); COMMIT"
        ],
        "",
    ),
    "merged": (
        PARTS,
        ["BEGIN; ALTER TABLE {0} DETACH PARTITION {0}_2; INSERT INTO {0} SELECT * FROM {0}_2;DROP TABLE {0}_2; COMMIT"],
        "",
    ),
    "taken_out": (PARTS, ["ALTER TABLE {0} DETACH PARTITION {0}_2; INSERT INTO {0}_2 VALUES (99, 99, 9)"], ""),
    "taken_in": (
        PLAIN,
        [
            "CREATE TABLE {0}_all (id int PRIMARY KEY, n int, c int) PARTITION BY RANGE (id);"
            "DELETE FROM {0} WHERE id > 30;"
            "ALTER TABLE {0}_all ATTACH PARTITION {0} FOR VALUES FROM (0) TO (31);"
            "UPDATE {0}_all SET n = 0 WHERE id = 9"
        ],
        "became a partition of public.taken_in_all",
    ),
    "converted": (
        PLAIN,
        [
            "ALTER TABLE {0} RENAME TO {0}_old;"
            "CREATE TABLE {0} (id int PRIMARY KEY, n int, c int) PARTITION BY RANGE (id);"
            "ALTER TABLE {0} ATTACH PARTITION {0}_old FOR VALUES FROM (0) TO (1000);"
            "CREATE TABLE {0}_new PARTITION OF {0} DEFAULT; INSERT INTO {0} VALUES (2000, 1, 1)"
        ],
        "became a partition of public.converted",
    ),
    "taken_in_here": (
        PARTS + "CREATE TABLE {0}_3 (n int, id int, day int, PRIMARY KEY (id, day));",
        [
            "INSERT INTO {0}_3 VALUES (1, 1, 100)",
            "ALTER TABLE {0} ATTACH PARTITION {0}_3 FOR VALUES FROM (100) TO (200); INSERT INTO {0} VALUES (2, 150, 2)",
        ],
        "",
    ),
    "given_over": (
        PARTS + PARTS.replace("{0}", "{0}_to"),
        [
            "BEGIN; DROP TABLE {0}_to_1; ALTER TABLE {0} DETACH PARTITION {0}_1;"
            "ALTER TABLE {0}_to ATTACH PARTITION {0}_1 FOR VALUES FROM (0) TO (10);"
            "INSERT INTO {0}_to VALUES (1, 50, 1); COMMIT"
        ],
        "",
    ),
    "divided": (
        PARTS,
        [
            "BEGIN; CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT * FROM {0}_1; DROP TABLE {0}_1;"
            "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);"
            "CREATE TABLE {0}_1a PARTITION OF {0}_1 FOR VALUES FROM (0) TO (4);"
            "CREATE TABLE {0}_1b PARTITION OF {0}_1 DEFAULT; INSERT INTO {0} SELECT * FROM kept; COMMIT"
        ],
        "",
    ),
    "undivided": (
        PARTS.replace("TO (10)", "TO (10) PARTITION BY RANGE (id)") + "CREATE TABLE {0}_1a PARTITION OF {0}_1 DEFAULT;",
        [
            "BEGIN; CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT * FROM {0}_1; DROP TABLE {0}_1;"
            "CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (10); INSERT INTO {0} SELECT * FROM kept;"
            "COMMIT"
        ],
        "",
    ),
    "widened": (
        PARTS,
        [
            "BEGIN; ALTER TABLE {0} DETACH PARTITION {0}_1;"
            "ALTER TABLE {0} ATTACH PARTITION {0}_1 FOR VALUES FROM (-10) TO (10); COMMIT",
            # The target's default partition gets it.
            "INSERT INTO {0} VALUES (99, -5, 9)",
        ],
        "",
    ),
}
SCHEMA = "CREATE SCHEMA store; CREATE TABLE store.t (id serial PRIMARY KEY, n int);"
# Two tables exchange their schemas, and so their names and those of their indexes. And a sequence.
MORE = """CREATE SCHEMA east; CREATE TABLE east.t (id int PRIMARY KEY, n int);
CREATE SCHEMA west; CREATE TABLE west.t (id int PRIMARY KEY, n int); CREATE SEQUENCE counted;"""
MORE_CHANGES = """BEGIN; ALTER SCHEMA east RENAME TO north; ALTER SCHEMA west RENAME TO east;
ALTER SCHEMA north RENAME TO west; COMMIT; DROP SEQUENCE counted; CREATE SEQUENCE counted INCREMENT -1"""


def test_a_definition_that_changes_is_never_taken_for_rows_in_step(versions: Pair) -> None:
    """Before the statements for the target, each table is equal or set aside; after them, all are equal."""
    pair = versions
    pair.both("".join(tables.format(name) for name, (tables, *_) in CASES.items()) + SCHEMA + MORE)
    rows = "INSERT INTO {0} (id, n, {1}) SELECT g, g, g FROM generate_series(1, 40) g;"
    third = {name: "c" if tables.startswith(PLAIN) else "day" for name, (tables, *_) in CASES.items()}
    pair.source.execute("".join(rows.format(name, column) for name, column in third.items()))
    pair.source.execute("UPDATE attribute SET v = ARRAY[(n, n)::attribute_type]; INSERT INTO store.t VALUES (1, 1)")
    pair.source.execute(
        "INSERT INTO east.t VALUES (1, 1); INSERT INTO west.t VALUES (2, 2); SELECT setval('counted', 9)"
    )
    pair.start()
    pair.run()
    before = pair.target.execute("SELECT * FROM added_again ORDER BY 1")
    for name, (_, statements, _) in CASES.items():
        for statement in statements:
            pair.source.execute(statement.format(name))
    pair.source.execute(f"ALTER SCHEMA store RENAME TO store_old; {SCHEMA} INSERT INTO store.t VALUES (2, 2)")
    pair.source.execute(MORE_CHANGES)
    aside = {problem.where: problem for problem in pair.run().aside}
    reasons = {name: aside[f"public.{name}"].what if f"public.{name}" in aside else "" for name in CASES}
    assert {name: reason for name, (*_, expected) in CASES.items() if expected not in (reason := reasons[name])} == {}
    assert reasons["attribute"] == reasons["split"] == reasons["merged"] == reasons["taken_out"] == ""
    pair.check_equal([name for name, reason in reasons.items() if not reason])
    # Not without the user: what a column, a table or a partition had is dropped.
    apply_ddl.apply(pair.request, drops=False, timeout=30)
    assert pair.target.execute("SELECT * FROM added_again ORDER BY 1") == before
    assert pair.target.execute("SELECT count(*) FROM dropped") == [(40,)]
    for _ in range(2):
        done, found = apply_ddl.apply(pair.request, drops=True, timeout=30)
        assert [each for each in done if each.problem] == []
        assert not pair.run().aside
    assert done == [] == list(found.notes)
    now = [*CASES, "taken_over_by", "taken_in_all", "converted_old", "split_3", "taken_out_2", "store.t", "store_old.t"]
    now += ["east.t", "west.t", "taken_in_here_3", "given_over_to"]
    pair.check_equal(now)
    assert ddl_text(apply_ddl.differences(pair.request)) == "the tables of both databases are the same"
    # Their changes are recorded, also those of partitions that were tables.
    pair.source.execute("UPDATE taken_in SET n = 0 WHERE id < 9; DELETE FROM converted WHERE id < 9")
    pair.source.execute("INSERT INTO taken_out_2 VALUES (100, 1, 1); TRUNCATE split_3; UPDATE dropped SET n = 9")
    pair.run()
    pair.check_equal(now)
    # Of these, the columns of the target are known to be empty, and no table was copied for them.
    columns = "SELECT columns FROM trueup.sync_tables WHERE name = 'public.in_the_middle'"
    assert pair.target.execute(columns) == [({"id": [1, 1], "c": [3, 3], "n": [4, 4]},)]
    tables = pair.source.execute("SELECT count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|information|trueup)'")
    parts = pair.source.execute("SELECT count(*) FROM pg_class WHERE relispartition AND relkind IN ('r', 'p')")
    count = tables[0][0] - parts[0][0]
    assert _gate(pair, REHEARSE)[TABLES] == f"{count} tables of n1, {count} in the sync"


def test_a_column_that_a_user_added_on_the_target_is_not_trusted(pair: Pair) -> None:
    pair.both(PLAIN.format("filled") + PLAIN.format("empty") + PLAIN.format("renamed"))
    for name in ("filled", "empty", "renamed"):
        pair.source.execute(f"INSERT INTO {name} SELECT g, g, -g FROM generate_series(1, 40) g")
    pair.start()
    pair.run()
    written = pair.target.execute("SELECT id, xmin FROM empty ORDER BY 1")
    pair.both("ALTER TABLE filled ADD d int; ALTER TABLE empty ADD d int")
    pair.target.execute("UPDATE filled SET d = id")
    # The same names, and other columns.
    pair.source.execute("ALTER TABLE renamed DROP n; ALTER TABLE renamed RENAME c TO n")
    pair.target.execute("ALTER TABLE renamed DROP c")
    assert not pair.run().aside
    pair.check_equal(["filled", "empty", "renamed"])
    assert pair.target.execute("SELECT id, xmin FROM empty ORDER BY 1") == written


def test_a_table_that_no_sync_can_have_is_removed_by_its_cure(pair: Pair) -> None:
    pair.both(PLAIN.format("kept") + PLAIN.format("lost"))
    pair.start()
    pair.source.execute("ALTER TABLE lost SET UNLOGGED")
    (problem,) = pair.run().aside
    assert problem.cure == "ALTER TABLE public.lost SET LOGGED, or exclude it: trueup sync remove public.lost"
    assert change_tables.remove(pair.request, ["public.lost"], timeout=30) == ("public.lost",)
    assert not pair.run().aside


def test_every_table_is_counted_and_each_excluded_one_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the user decided for one table does not hold for another table that gets its name."""
    pair.both("".join(PLAIN.format(name) for name in ("kept", "removed", "archive", "logs_1")))
    pair.target.execute("CREATE TABLE local (id int PRIMARY KEY)")
    pair.source.execute("INSERT INTO kept VALUES (1, 1, 1)")
    pair.with_scope(Scope(exclude_tables=("archive", "logs_*"))).start()
    change_tables.remove(pair.request, ["removed"], timeout=30)
    # By another name it is the same table: in the sync, or not.
    pair.both("ALTER TABLE kept RENAME TO logs_2; ALTER TABLE removed RENAME TO removed_2")
    assert not pair.run().aside
    pair.check_equal(["logs_2"])
    outside = "public.archive (--exclude-tables archive), public.logs_1 (--exclude-tables logs_*)"
    shown = f"not in the sync: {outside}, public.removed_2 (trueup sync remove)"
    assert shown in status_text(pair.status())
    assert f"4 tables of n1, 1 in the sync; {shown}" == _gate(pair, REHEARSE)[TABLES]
    pair.source.execute("DROP TABLE removed_2; " + PLAIN.format("removed_2"))
    ends = [f"--node=n1={pair.source.uri}", f"--node=n2={pair.target.uri}", "--from=n1", "--to=n2"]
    assert run(["sync", "run", *ends]) == run(["sync", "status", *ends]) == 2
    assert "public.removed_2: it was created after the sync was started" in capsys.readouterr().out
    with pytest.raises(CheckFailed, match=r"public\.removed_2: it was created after the sync was started"):
        _gate(pair, REHEARSE)
    change_tables.remove(pair.request, ["removed_2"], timeout=30)

    def create(*arguments: object) -> tuple[()]:
        pair.source.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
        return ()

    # After the preparation has counted them.
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "remarks_on", lambda *arguments, **options: create())
        with pytest.raises(GateClosed, match=r"every table counted: public\.late of n1 is not in the sync"):
            _gate(pair, REHEARSE)
    change_tables.remove(pair.request, ["late"], timeout=30)
    assert "public.late (trueup sync remove)" in _gate(pair, EXECUTE)[TABLES]
    # On the way back the same names are excluded, and what was on n2 before.
    back = _gate(pair, ROLLBACK)[TABLES]
    assert back.startswith(
        "5 tables of n2, 1 in the sync; not in the sync: public.archive (--exclude-tables archive), "
    )
    assert "public.local (not in the sync before n2 came into use)" in back
    _gate(pair, EXECUTE)
    pair.target.execute("DROP TABLE local; CREATE TABLE local (id int PRIMARY KEY)")
    with pytest.raises(CheckFailed, match=r"public\.local: it does not exist on the target"):
        _gate(pair, ROLLBACK)


def _gate(pair: Pair, action: str) -> dict[str, str]:
    """Move, or rehearse that, and return what the conditions of the gate say."""
    request = SwitchoverRequest("main", pair.request.source, pair.request.target, budget=60.0, jobs=1)
    with TaskStore(Path("tasks.db")) as store:
        outcome = switchover.move(request, action, store=store, progress=Silent())
    return {condition.name: condition.detail for condition in outcome.conditions}
