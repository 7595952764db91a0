"""Tables that are a partition or a child of another table for a time: statements on it fire no statement triggers."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from support.copied import FORMER, Copied, problem_of
from support.tube import TubeDatabase
from trueup.testing.processes import wait_until

REASON = "it was a partition or a child of another table"
PROBLEM = f"the copy may be incomplete ({REASON}): run trueup tube backfill t public."
PARTITIONED = "CREATE TABLE parent (id int, day int) PARTITION BY RANGE (id)"
ATTACH = (
    "ALTER TABLE parent ATTACH PARTITION {0} FOR VALUES FROM (0) TO (1000)",
    "ALTER TABLE parent DETACH PARTITION {0}",
)
INHERIT = "ALTER TABLE {0} INHERIT parent", "ALTER TABLE {0} NO INHERIT parent"
CASES = {
    "partitioned table": ("events", PARTITIONED, *ATTACH),
    "table": ("items", PARTITIONED, *ATTACH),
    "child": ("items", "CREATE TABLE parent (id int, day int)", *INHERIT),
    "child of a table with one column": ("items", "CREATE TABLE parent (day int)", *INHERIT),
}
WRITE = "UPDATE parent SET day = day + 1 WHERE day = 2; DELETE FROM parent WHERE day = 1"


@pytest.fixture
def copied(tube_db: TubeDatabase, tmp_path: Path, request: pytest.FixtureRequest) -> Copied:
    table, capture = request.param
    made = Copied(tube_db, table, str(tmp_path / "kept.db"), capture)
    tube_db.run(f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 10)")
    assert made.run() == ""
    return made


@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize(
    ("copied", "create", "join", "leave"),
    [((table, "statement"), *statements) for table, *statements in CASES.values()],
    indirect=["copied"],
    ids=CASES,
)
def test_what_is_written_through_the_parent(copied: Copied, create: str, join: str, leave: str, is_seen: bool) -> None:
    """It is a problem until a backfill, whether a job runs meanwhile or not."""
    tube_db, table = copied.tube_db, copied.table
    tube_db.run(f"{create}; {join.format(table)}")
    tube_db.run(WRITE)
    if is_seen:
        assert "would not be captured" in copied.run()
    tube_db.run(leave.format(table))
    assert problem_of(tube_db, table) == f"{PROBLEM}{table}"
    for _ in range(2):
        assert PROBLEM in copied.run()
        tube_db.tube.attach(table)
    tube_db.tube.backfill(table)
    assert (copied.run(), problem_of(tube_db, table)) == ("", "")
    copied.check_equal()
    # Seen by no check before the backfill began, which brings all changes.
    tube_db.run(f"{join.format(table)}; UPDATE parent SET day = day + 1; {leave.format(table)}")
    tube_db.tube.backfill(table)
    assert (copied.run(), problem_of(tube_db, table)) == ("", "")
    copied.check_equal()


@pytest.mark.parametrize("copied", [("events", "row"), ("items", "row")], indirect=True)
def test_row_by_row_all_is_captured(copied: Copied) -> None:
    tube_db, table = copied.tube_db, copied.table
    join, leave = ATTACH
    tube_db.run(f"{PARTITIONED}; {join.format(table)}")
    tube_db.run(WRITE)
    tube_db.run(leave.format(table))
    assert (copied.run(), problem_of(tube_db, table)) == ("", "")
    copied.check_equal()


@pytest.mark.parametrize("copied", [("events", "statement"), ("items", "statement")], indirect=True)
def test_other_changes_of_columns_are_no_problem(copied: Copied) -> None:
    tube_db, table = copied.tube_db, copied.table
    for change in (
        *(f"ALTER TABLE {table} ALTER day {how}" for how in ("SET DEFAULT 1", "SET DEFAULT 2", "SET STATISTICS 500")),
        f"ALTER TABLE {table} ADD note text",
        f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
        f"ALTER TABLE {table} DROP note",
        f"GRANT SELECT (id) ON {table} TO pg_monitor",
        f"VACUUM FULL {table}",
    ):
        tube_db.run(change)
        assert (copied.run(), problem_of(tube_db, table)) == ("", ""), change


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_a_parent_without_columns_that_a_job_has_seen(copied: Copied) -> None:
    """Nothing of it remains in the catalog."""
    tube_db = copied.tube_db
    tube_db.run("CREATE TABLE parent (); ALTER TABLE items INHERIT parent")
    tube_db.run("DELETE FROM parent")
    assert "would not be captured" in copied.run()
    tube_db.run("ALTER TABLE items NO INHERIT parent")
    assert problem_of(tube_db, "items") == f"{PROBLEM}items"


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_each_check_notes_it(copied: Copied) -> None:
    """Also the first one after it has no parent any more: a backfill may have begun before that."""
    tube_db = copied.tube_db

    def note() -> str:
        [(noted,)] = tube_db.run("SELECT tube.tube_parents_follow('t'); SELECT incomplete FROM tube.sources")
        tube_db.run("UPDATE tube.sources SET incomplete = NULL, incomplete_at = NULL")
        return noted or ""

    assert note() == ""
    tube_db.run("CREATE TABLE parent (); ALTER TABLE items INHERIT parent")
    assert note() == REASON
    tube_db.run("ALTER TABLE items NO INHERIT parent")
    assert note() == REASON
    assert note() == ""


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_before_an_upgrade(copied: Copied) -> None:
    tube_db = copied.tube_db
    join, leave = ATTACH
    tube_db.run(f"{PARTITIONED}; {join.format('items')}; {WRITE}; {leave.format('items')}; {FORMER}")
    tube_db.install()
    assert PROBLEM in copied.run()


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_a_parent_during_an_upgrade(copied: Copied) -> None:
    """The former version knew its columns; the first check notes it, before the table has no parent any more."""
    tube_db = copied.tube_db
    tube_db.run("CREATE TABLE parent (id int, day int); ALTER TABLE items INHERIT parent")
    tube_db.run(f"SELECT tube.tube_storage_follow('t'); {FORMER}")
    tube_db.install()
    tube_db.run("SELECT tube.tube_parents_follow('t')")
    assert tube_db.run("SELECT incomplete FROM tube.sources") == [(REASON,)]


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_a_column_is_rewritten_while_another_table_is_checked(copied: Copied) -> None:
    tube_db = copied.tube_db
    tube_db.run("CREATE TABLE later (id int PRIMARY KEY, day int); INSERT INTO later VALUES (1, 1)")
    tube_db.tube.attach("later", shard=1)
    # Both are in the list of tables that are to be checked.
    for table in ("items", "later"):
        tube_db.run(f"VACUUM FULL {table}")
    check = threading.Thread(target=tube_db.run, args=["SELECT tube.tube_storage_follow('t')"])
    with psycopg.connect(tube_db.database.uri) as holder:
        holder.execute("SELECT FROM tube.sources WHERE name LIKE '%items' FOR UPDATE")
        check.start()
        assert wait_until(lambda: bool(tube_db.run("SELECT FROM pg_locks WHERE NOT granted")), 60)
        tube_db.run("ALTER TABLE later ALTER day TYPE int USING day + 1")
    check.join()
    assert "day may have been rewritten" in problem_of(tube_db, "later")


@pytest.mark.parametrize("copied", [("items", "statement")], indirect=True)
def test_no_function_of_a_type_is_called(copied: Copied) -> None:
    """It belongs to the owner of the table, and would run with the rights of the role that checks it."""
    tube_db = copied.tube_db
    tube_db.run(
        "CREATE TYPE kind AS ENUM ('a'); CREATE FUNCTION called(kind) RETURNS json LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'called'; END $$;"
        "CREATE CAST (kind AS json) WITH FUNCTION called(kind); ALTER TABLE items ADD kind kind DEFAULT 'a'"
    )
    with pytest.raises(psycopg.Error, match="called"):
        tube_db.run("SELECT to_json('a'::kind)")
    assert "kind (new)" in problem_of(tube_db, "items")
    tube_db.tube.attach("items")
    tube_db.run("SELECT tube.tube_storage_follow('t'), tube.tube_reload_follow('t')")
    assert tube_db.tube.cover() == 0
