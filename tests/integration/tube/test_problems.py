"""One table with a problem is set aside by name with its reason; the others of its tube go on, and the run says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.fixtures import Databases
from support.sqlite_sink import SqliteSink
from support.tube import TubeDatabase
from support.waiting import Pause
from trueup.api.tube import Tube
from trueup.capture.triggers.problems import find_problems
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.expressions import Examined, Expression, examine
from trueup.engine.progress import Silent
from trueup.verbs.tube.model import Summary
from trueup.verbs.tube.watch import look


class Messages(Silent):
    """Records the messages of a job."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def empty(tube_db: TubeDatabase, sink: SqliteSink, messages: Messages | None = None, **options: Any) -> Summary:
    """Run a job until the tube is empty; a job that waits without an end is stopped, and the test fails."""
    stop = threading.Event()
    timer = threading.Timer(90, stop.set)
    timer.start()
    with Tube("t", tube_db.database.uri) as tube:
        summary: Summary = tube.run(
            SqliteSink(sink.path), until_empty=True, stop=stop, progress=messages or Silent(), **options
        )
    timer.cancel()
    assert not stop.is_set(), "the job did not end"
    return summary


def ids(sink: SqliteSink, table: str) -> list[str]:
    return sorted(key[0] for _, key in sink.rows(f"public.{table}"))


@pytest.fixture
def sink(tmp_path: Path) -> SqliteSink:
    return SqliteSink(str(tmp_path / "kept.db"))


BROKEN: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # Table -> options of attach, the change after it, the reason, and the cure of the user.
    "filtered": ({"shard": 0, "predicate": "NOT hidden"}, "ALTER TABLE {0} DROP COLUMN hidden", "hidden", "ATTACH"),
    "routed": ({"routing": "n"}, "ALTER TABLE {0} RENAME n TO m", "does not exist", "ALTER TABLE {0} RENAME m TO n"),
    "renamed": (
        {"shard": 0},
        "ALTER TABLE {0} RENAME TO other_name",
        "was renamed from public.renamed to public.other_name",
        "ALTER TABLE other_name RENAME TO {0}",
    ),
    "rekeyed": (
        {"shard": 0},
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey",
        "no key",
        "ALTER TABLE {0} ADD CONSTRAINT {0}_pkey PRIMARY KEY (id)",
    ),
    "dropped": ({"shard": 0}, "DROP TABLE {0}", "does not exist any more", "DETACH"),
}


def test_tables_with_problems_are_set_aside(tube_db: TubeDatabase, sink: SqliteSink) -> None:
    for table, (options, _, _, _) in {**BROKEN, "good": ({"shard": 0}, "", "", "")}.items():
        tube_db.run(f"CREATE TABLE {table} (id int PRIMARY KEY, n int DEFAULT 0, hidden bool DEFAULT false)")
        tube_db.tube.attach(table, **options)
        tube_db.run(f"INSERT INTO {table} VALUES (1)")
    assert empty(tube_db, sink).problems == ()
    for table, (_, change, _, _) in BROKEN.items():
        tube_db.run(f"INSERT INTO {table} VALUES (2); TRUNCATE {table}; INSERT INTO {table} VALUES (3)")
        tube_db.run(change.format(table))
    tube_db.run("INSERT INTO good VALUES (2)")
    for _ in range(2):
        messages = Messages()
        summary = empty(tube_db, sink, messages)
        problems = dict(problem.split(": ", 1) for problem in summary.problems)
        assert set(problems) == {f"public.{'other_name' if table == 'renamed' else table}" for table in BROKEN}
        for table, (_, _, reason, _) in BROKEN.items():
            shown = "public.other_name" if table == "renamed" else f"public.{table}"
            assert reason in problems[shown]
            # Said once, and in the list.
            assert [text for text in messages.texts if f"{shown} is set aside" in text] == [
                f"t: {shown} is set aside: {problems[shown]}"
            ]
            (listed,) = [each for each in tube_db.tubes()[0].tables if each.table == shown]
            assert listed.problem == problems[shown]
            # The copy is as it was, and the pods wait.
            assert ids(sink, table) == ["1"]
        assert ids(sink, "good") == ["1", "2"]
    assert {pod.op for pod in tube_db.pods()} == {"I", "X"}
    values, text = look(tube_db.tube.session)
    assert "PROBLEM of t: public.dropped: the table does not exist any more" in text
    assert len(values["problems"]) == len(BROKEN)
    for table, (_, _, _, cure) in BROKEN.items():
        if cure == "ATTACH":
            tube_db.tube.attach(table, shard=0, predicate="")
            tube_db.tube.backfill(table)
        elif cure == "DETACH":
            assert tube_db.tube.detach(f"public.{table}")
        else:
            tube_db.run(cure.format(table))
    # Renamed and truncated between two checks: the column could have been rewritten.
    tube_db.tube.backfill("routed")
    summary = empty(tube_db, sink)
    assert summary.problems == ()
    for table in BROKEN:
        # A dropped table that was detached: its documents stay.
        assert ids(sink, table) == (["1"] if table == "dropped" else ["3"]), table
    assert tube_db.pods() == []


def test_dropped_and_created_again_and_swapped(tube_db: TubeDatabase, sink: SqliteSink) -> None:
    """The table that has the name now is attached: the documents of the other one are replaced."""
    for table in ("again", "swapped"):
        tube_db.run(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1), (2)")
        tube_db.tube.attach(table, shard=0)
        tube_db.tube.backfill(table)
    assert empty(tube_db, sink).problems == ()
    tube_db.run("""INSERT INTO again VALUES (7); DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY);
                   INSERT INTO again VALUES (2), (3); ALTER TABLE swapped RENAME TO former;
                   CREATE TABLE swapped (LIKE former INCLUDING ALL); INSERT INTO swapped VALUES (4)""")
    dropped, renamed = empty(tube_db, sink).problems
    assert "dropped, and another table has its name: run trueup tube attach t public.again" in dropped
    assert "renamed from public.swapped to public.former" in renamed
    for table in ("again", "swapped"):
        assert ids(sink, table) == ["1", "2"]
        tube_db.tube.attach(table, shard=0)
    tube_db.tube.detach("former")
    assert empty(tube_db, sink).problems == ()
    assert (ids(sink, "again"), ids(sink, "swapped")) == (["2", "3"], ["4"])


def test_pods_of_detached_tables_that_cannot_be_read_are_parked(tube_db: TubeDatabase, sink: SqliteSink) -> None:
    tube_db.run("""CREATE TABLE filtered (id int PRIMARY KEY, n int); CREATE TABLE renamed (id int PRIMARY KEY);
                   CREATE TABLE good (id int PRIMARY KEY)""")
    tube_db.tube.attach("filtered", shard=0, predicate="n > 0")
    for table in ("renamed", "good"):
        tube_db.tube.attach(table, shard=0)
    tube_db.run("INSERT INTO filtered VALUES (1, 1); INSERT INTO renamed VALUES (2); INSERT INTO good VALUES (3)")
    for table in ("filtered", "renamed", "good"):
        tube_db.tube.detach(table)
    tube_db.run("ALTER TABLE filtered DROP COLUMN n; ALTER TABLE renamed RENAME TO other")
    assert (empty(tube_db, sink).dead_letters, ids(sink, "good"), tube_db.pods()) == (2, ["3"], [])
    reasons = {letter.key: letter.error for letter in tube_db.tube.dead_letters()}
    assert "public.filtered is detached: predicate for public.filtered" in reasons["1"]
    assert reasons["2"] == "public.other is detached: it was renamed from public.renamed to public.other"


def test_the_check_of_many_tables(tube_db: TubeDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost grows with the number of tables, not with its square; attach checks one table."""
    examined: list[str] = []
    count = 5
    for number in range(count):
        tube_db.run(f"CREATE TABLE t_{number} (id int PRIMARY KEY, n int)")
        tube_db.tube.attach(f"t_{number}", predicate="n > 0")

    def counted(connection: Connection, node: Node, expression: Expression, *rest: Any, **options: Any) -> Examined:
        examined.append((expression.table or "").replace('"', ""))
        return examine(connection, node, expression, *rest, **options)

    monkeypatch.setattr("trueup.capture.triggers.expressions.examine", counted)
    assert find_problems(tube_db.tube.session, "t") == {}
    assert len(examined) == 2 * count
    examined.clear()
    tube_db.tube.attach("t_1", predicate="n > 1")
    assert set(examined) == {"public.t_1"}


def test_renamed_schema_and_accepted_name(tube_db: TubeDatabase, sink: SqliteSink) -> None:
    tube_db.run("CREATE SCHEMA a; CREATE TABLE a.items (id int PRIMARY KEY)")
    tube_db.tube.attach("a.items", shard=0)
    tube_db.run("INSERT INTO a.items VALUES (1); ALTER SCHEMA a RENAME TO b")
    (problem,) = empty(tube_db, sink).problems
    assert "renamed from a.items to b.items" in problem
    tube_db.tube.attach("b.items", shard=0)
    assert "incomplete (it was renamed)" in empty(tube_db, sink).problems[0]
    tube_db.tube.backfill("b.items")
    assert empty(tube_db, sink).problems == ()
    assert list(sink.rows("b.items")) == [(0, ("1",))]


UNSEEN: dict[str, tuple[str, str]] = {
    # Table -> changes that no touch brings to the copy, and the reason that is reported.
    "used": ("ALTER TABLE {0} ALTER n TYPE int USING n + 1", "n may have been rewritten"),
    "scaled": ("ALTER TABLE {0} ALTER m TYPE numeric(9, 2)", "m may have been rewritten"),
    # Its target would round the values.
    "widened": ("ALTER TABLE {0} ALTER m TYPE numeric(12, 6)", "m may have been rewritten"),
    "generated": (
        "ALTER TABLE {0} DROP g; ALTER TABLE {0} ADD g int GENERATED ALWAYS AS (id + 2) STORED",
        "stale columns: g (dropped and added again)",
    ),
    "labelled": ("ALTER TYPE label RENAME VALUE 'a' TO 'z'", "l (its type public.label[] was altered)"),
    "paired": ("ALTER TYPE pair ADD ATTRIBUTE c int", "p (its type public.pair was altered)"),
    "disabled": (
        "ALTER TABLE {0} DISABLE TRIGGER ALL; UPDATE {0} SET n = 9; SELECT tube.tube_table_ensure_attached('t', '{0}')",
        "its triggers were missing, disabled or replaced",
    ),
    "detached": (
        "SELECT tube.tube_table_ensure_detached('t', '{0}'); DELETE FROM {0} WHERE id = 1;"
        "SELECT tube.tube_table_ensure_attached('t', '{0}', 0)",
        "it was not attached since ",
    ),
    "seen": ("ALTER TABLE {0} DISABLE TRIGGER ALL", "triggers"),
    "lost": (
        "SELECT tube.tube_trouble(s.source, 'boom', true, '{0}') FROM tube.sources s WHERE name ~ '{0}'",
        "touches were lost: boom",
    ),
    # No value changes.
    "same": (
        "ALTER TYPE fine ADD VALUE 'b' BEFORE 'c'; VACUUM FULL {0}; TRUNCATE {0}; INSERT INTO {0} VALUES (4)",
        "",
    ),
    "quiet": ("ALTER TABLE {0} ALTER n SET DEFAULT 7, ALTER v TYPE varchar(9)", ""),
}


def test_what_no_touch_brings_is_a_problem_until_a_backfill(tube_db: TubeDatabase, databases: Databases) -> None:
    """The copy differs from the table: the run never ends without saying so, also if the cause is gone."""
    [target] = databases(1)
    types = (
        "CREATE TYPE label AS ENUM ('a', 'b'); CREATE TYPE pair AS (a int, b int); CREATE TYPE fine AS ENUM ('a', 'c')"
    )
    tube_db.run(types)
    more = {"labelled": ", l label[] DEFAULT '{a}'", "paired": ", p pair DEFAULT (1, 2)"}

    def run() -> dict[str, str]:
        problems = tube_db.tube.run(target.uri, until_empty=True).problems
        return dict(problem.removeprefix("public.").split(": ", 1) for problem in problems)

    def equal(table: str) -> bool:
        column = more.get(table, ", n")[2]
        rows = f"SELECT id, n, m, g, f::text, v, {column}::text FROM {table} ORDER BY id"
        return tube_db.run(rows) == target.execute(rows)

    for table in UNSEEN:
        tube_db.run(f"""CREATE TABLE {table} (id int PRIMARY KEY, n int DEFAULT 0, m numeric(9, 4) DEFAULT 1.2345,
                            g int GENERATED ALWAYS AS (id + 1) STORED, f fine DEFAULT 'c',
                            v varchar(7) DEFAULT 'x'{more.get(table, "")});
                        SELECT tube.tube_table_ensure_attached('t', '{table}', 0);
                        INSERT INTO {table} VALUES (1), (2)""")
    assert run() == {}
    for table, (change, _) in UNSEEN.items():
        for statement in change.format(table).split(";"):
            tube_db.run(statement)
    listed = {each.table.removeprefix("public."): each.problem for each in tube_db.tubes()[0].tables}
    problems = run()
    names = [row[0] for row in tube_db.run("SELECT tgname FROM pg_trigger WHERE tgrelid = 'seen'::regclass")]
    tube_db.run("UPDATE seen SET n = 5")
    for name in names:
        tube_db.run(f"ALTER TABLE seen ENABLE ALWAYS TRIGGER {name}")
    assert problems.pop("seen").startswith("triggers are missing, disabled or replaced: ")
    assert "its column m is numeric(9,4), but numeric(12,6) in the source" in problems["widened"]
    problems["widened"] = listed["widened"] or ""
    target.execute("ALTER TABLE widened ALTER m TYPE numeric(12, 6)")
    for table, (_, reason) in UNSEEN.items():
        if reason:
            assert table == "seen" or reason in problems.get(table, ""), table
            # A lost touch is noted by the job.
            assert table in ("lost", "seen") or listed[table] == problems[table]
    problems = run()
    assert set(problems) == {table for table, (_, reason) in UNSEEN.items() if reason}
    assert "(its triggers were missing, disabled or replaced" in problems["seen"]
    for table in problems:
        assert f"run trueup tube backfill t public.{table}" in problems[table]
        tube_db.tube.backfill(table)
    assert run() == {}
    assert [table for table in UNSEEN if not equal(table)] == []


def test_a_job_that_runs_goes_on_when_the_problem_is_gone(
    tube_db: TubeDatabase, sink: SqliteSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column disappears while the job runs; the pods of the table wait, those of the other table do not."""
    monkeypatch.setattr("trueup.verbs.tube.aside.CHECK_SECONDS", 0.2)
    for table in ("one", "two"):
        tube_db.run(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        tube_db.tube.attach(table, shard=0, predicate="n > 0" if table == "one" else "")
    stop, messages = threading.Event(), Messages()
    results: list[Summary] = []

    def run() -> None:
        with Tube("t", tube_db.database.uri) as tube:
            results.append(tube.run(SqliteSink(sink.path), stop=stop, progress=messages))

    sink.setup([])
    thread = threading.Thread(target=run)
    thread.start()
    try:
        tube_db.run("INSERT INTO one VALUES (1, 1); INSERT INTO two VALUES (1, 1)")
        until(lambda: ids(sink, "one") == ids(sink, "two") == ["1"])
        tube_db.run("ALTER TABLE one RENAME n TO m; INSERT INTO one VALUES (2, 1); INSERT INTO two VALUES (2, 1)")
        until(lambda: ids(sink, "two") == ["1", "2"])
        until(lambda: any("public.one is set aside" in text for text in messages.texts))
        assert ids(sink, "one") == ["1"]
        tube_db.run("ALTER TABLE one RENAME m TO n")
        until(lambda: ids(sink, "one") == ["1", "2"])
        until(lambda: "t: public.one: the problem is gone" in messages.texts)
        # Stopped while there is a problem: the summary names it.
        tube_db.run("DROP TABLE one")
        until(lambda: any("does not exist any more" in text for text in messages.texts))
    finally:
        stop.set()
        thread.join(60)
    assert "the table does not exist any more" in results[0].problems[0]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    pause = Pause(0.02)
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        pause()


def test_a_partition_that_cannot_be_checked_is_a_problem(tube_db: TubeDatabase, sink: SqliteSink) -> None:
    """The copy still has the rows of a dropped partition, and a lock prevents the backfill that removes them."""
    tube_db.run("""CREATE TABLE days (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
                   CREATE TABLE days_1 PARTITION OF days FOR VALUES IN (1);
                   CREATE TABLE days_2 PARTITION OF days FOR VALUES IN (2); INSERT INTO days VALUES (1, 1), (2, 2);
                   CREATE TABLE items (id int PRIMARY KEY)""")
    for table in ("days", "items"):
        tube_db.tube.attach(table, shard=0)
        tube_db.tube.backfill(table)
    assert empty(tube_db, sink).problems == ()
    tube_db.run("""ALTER TABLE days DETACH PARTITION days_1; CREATE TABLE days_3 PARTITION OF days FOR VALUES IN (3);
                   INSERT INTO items VALUES (5)""")
    with psycopg.connect(tube_db.database.uri) as other:
        other.execute("LOCK TABLE days_3 IN ACCESS EXCLUSIVE MODE")
        (problem,) = empty(tube_db, sink).problems
    assert problem.startswith("public.days: a partition was dropped or detached")
    assert "lock" in problem
    assert ids(sink, "items") == ["5"]
    assert len(sink.rows("public.days")) == 2
    assert empty(tube_db, sink).problems == ()
    assert ids(sink, "days") == ["2"]


def test_changed_columns_are_stale_until_a_backfill(
    tube_db: TubeDatabase, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """The sink gets the columns; rows that were not touched since lack their values, which is reported."""
    [target] = databases(1)
    tube_db.run("CREATE TABLE items (id int PRIMARY KEY, a int, b int); INSERT INTO items VALUES (1, 1, 1), (2, 2, 2)")
    tube_db.run("CREATE TABLE refused (id int PRIMARY KEY); INSERT INTO refused VALUES (1)")
    for table in ("items", "refused"):
        tube_db.tube.attach(table, shard=0)
        tube_db.tube.backfill(table)

    def run() -> tuple[Summary, list[str]]:
        messages = Messages()
        return tube_db.tube.run(target.uri, until_empty=True, progress=messages), messages.texts

    assert run()[0].problems == ()
    tube_db.run("""ALTER TABLE items ADD COLUMN c int DEFAULT 5, ADD COLUMN d int, DROP COLUMN b;
                   ALTER TABLE items RENAME a TO e; UPDATE items SET d = 7 WHERE id = 1""")
    with caplog.at_level("INFO", logger="trueup"):
        summary, messages = run()
    (problem,) = summary.problems
    assert "stale columns: e (renamed from a), c (new)" in problem
    assert "run trueup tube backfill t public.items" in problem
    added = {record.getMessage() for record in caplog.records if "was added to the target" in record.getMessage()}
    assert added == {f"column {name} was added to the target public.items" for name in "cde"}
    stale = ("e (renamed from a)", "c (new)")
    assert {each.table: each.stale_columns for each in tube_db.tubes()[0].tables}["public.items"] == stale
    assert f"t: {problem}" in messages
    copied = "SELECT id, c, e FROM items ORDER BY id"
    assert target.execute(copied) == [(1, 5, 1), (2, None, None)]
    tube_db.tube.backfill("items")
    assert run()[0].problems == ()
    assert target.execute(copied) == tube_db.run(copied)
    # The sink keeps the values of a column that is dropped; the new one of this name has none.
    for change in (
        "ALTER TABLE items DROP e; ALTER TABLE items ADD e int",
        "ALTER TABLE items DROP COLUMN e",
        "ALTER TABLE items ADD COLUMN e int",
    ):
        tube_db.run(change)
        (problem, *_) = run()[0].problems or ("",)
        assert ("stale columns: e (dropped and added again)" in problem) == ("ADD" in change), change
        tube_db.tube.backfill("items")
        assert run()[0].problems == ()
    assert target.execute(copied) == tube_db.run(copied) == [(1, 5, None), (2, 5, None)]
    tube_db.run("CREATE TYPE pair AS (a int, b text); ALTER TABLE items ADD p pair")
    tube_db.run("UPDATE items SET p = '(1,x)'")
    tube_db.tube.backfill("items")
    assert run()[0].problems == ()
    tube_db.run("ALTER TYPE pair DROP ATTRIBUTE b, ADD ATTRIBUTE b text")
    assert "stale columns: p (its type public.pair was altered)" in run()[0].problems[0]
    tube_db.tube.backfill("items")
    # A table that the sink refuses does not stop the others.
    target.execute("ALTER TABLE refused DROP CONSTRAINT refused_pkey")
    tube_db.run("INSERT INTO refused VALUES (2); INSERT INTO items VALUES (3)")
    (problem,) = run()[0].problems
    assert problem.startswith("public.refused: the sink refuses it: ")
    assert "no unique index" in problem
    assert target.execute("SELECT count(*) FROM items") == [(3,)]
    target.execute("ALTER TABLE refused ADD PRIMARY KEY (id)")
    assert run()[0].problems == ()
    assert target.execute("SELECT count(*) FROM refused") == [(2,)]
