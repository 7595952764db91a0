"""`--create-schema` copies owners, privileges, default privileges and settings, creates roles; the move, and back."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.schema_zoo import CREATE_ROLES, ROLES, ROWS, SCHEMA, Load, database_facts, dump, role_facts
from support.switchover import Moving
from support.sync import Pair, make_pair, wire
from support.waiting import Pause
from trueup.cli.main import run
from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.write import large_objects
from trueup.testing.postgres import Database, Server, find_bin
from trueup.verbs.switchover.finish import finish
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.ending import drop
from trueup.verbs.sync.link import open_session
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.target_schema import dump as schema_dump

TIMEOUTS = ("transaction_timeout", "statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="module")
def old_server() -> Iterator[Server]:
    """A server of PostgreSQL 15 with the roles."""
    if not DEBIAN.exists():
        pytest.skip("Debian's PostgreSQL 15 with contrib is not installed")
    with Server.start(name="old", bin_dir=DEBIAN) as server:
        server.database("postgres").execute(CREATE_ROLES)
        yield server


@pytest.fixture
def targets(databases: Databases) -> Iterator[list[Database]]:
    """Two databases of the shared server, without the roles."""
    made = databases(2)
    yield made
    for database in made:
        database.drop()
    for role in (*ROLES, "zoo_mover"):
        made[0].server.database("postgres").execute(f"DROP ROLE IF EXISTS {role}")


def ends(pair: Pair) -> list[str]:
    nodes = [f"--node={node.name}={node.conninfo}" for node in (pair.request.source, pair.request.target)]
    return ["--from=n1", "--to=n2", *nodes]


EXCLUDED = ("zoo.scratch", "zoo.scratch_id_seq", "zoo.scratched", "zoo.cache")
LARGE_OBJECTS = "SELECT m.oid, lo_get(m.oid), m.lomowner::regrole::text, m.lomacl::text FROM pg_largeobject_metadata m"


@pytest.mark.parametrize("version", [15, 18])
def test_a_schema_is_moved_under_load_and_back(
    version: int, targets: list[Database], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Owners, privileges and all definitions are as before on both databases, and no write is lost."""
    new = targets[0]
    if version == 15:
        old: Database = request.getfixturevalue("old_server").create_database("zoo")
    else:
        # From 18 to 18: the roles exist.
        old = targets[1]
        old.execute(CREATE_ROLES)
    old.execute(SCHEMA)
    old.execute(ROWS)
    old.execute(
        f"ALTER DATABASE {old.name} SET statement_timeout = '30s';"
        f"ALTER DATABASE {old.name} SET app.secret = 'not shown'; CREATE PUBLICATION zoo_pub FOR TABLE zoo.rooms;"
        f"ALTER ROLE zoo_app IN DATABASE {old.name} SET work_mem = '5MB';"
        f"REVOKE CONNECT ON DATABASE {old.name} FROM PUBLIC; GRANT CONNECT ON DATABASE {old.name} TO zoo_rw"
    )
    before = dump(old, find_bin(), *EXCLUDED)
    pair = make_pair(old, new)
    watch_settings(new)
    options = [*ends(pair), "--create-schema", "--exclude-tables=zoo.scratch,zoo.cache"]
    if version == 15:
        check_plan(options, capsys)
    with Load(lambda: psycopg.connect(old.uri, autocommit=True)) as first:
        assert run(["sync", "start", *options, "--create-roles", "-q"]) == 0
        first.wait(5)
    output = capsys.readouterr()
    for text in ("SCRAM", "not shown"):
        assert text not in output.out + output.err
    assert new.execute("SELECT DISTINCT settings FROM watching.seen") == [("0 0 0 0",)]
    stop_watching(new)
    assert run(["switchover", "prepare", *ends(pair)]) == 0
    moving = Moving(old, new, pair.request.source, pair.request.target)
    with Load(lambda: trueup.connect(old.uri)) as load:
        load.wait(30)
        assert run(["switchover", "execute", *ends(pair), "--budget=30s", "--proof=keys"]) == 0
        assert moving.accepts_writes("DELETE FROM zoo.heap") == ["new"]
        load.wait(30)
        assert run(["switchover", "rollback", *ends(pair), "--budget=30s"]) == 0
        assert moving.accepts_writes("DELETE FROM zoo.heap") == ["old"]
        load.wait(10)
    text = capsys.readouterr().out
    assert text.count("ok  schema equal") == 2
    assert "note: view zoo.scratched is missing on n2: it uses tables outside of the sync" in text
    marks = {mark for (mark,) in old.execute("SELECT mark FROM zoo.writes")}
    assert marks == first.committed | load.committed
    pair.run()
    pair.check_equal([name for (name,) in new.execute(SYNCED)])
    assert old.execute(LARGE_OBJECTS) == new.execute(LARGE_OBJECTS)
    assert run(["switchover", "finish", *ends(pair), "--reopen-old"]) == 0
    check(old, new)
    after = dump(old, find_bin(), *EXCLUDED).splitlines()
    for other in (before, dump(new, find_bin())):
        assert list(difflib.unified_diff(after, other.splitlines(), lineterm="", n=0)) == []


def check_plan(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The plan names the missing roles, and what is not created."""
    assert run(["sync", "plan", *options, "--json"]) == 2
    plan = json.loads(capsys.readouterr().out)
    assert {problem["where"] for problem in plan["problems"]} == {
        f"role {name}" for name in ROLES if name != "zoo_idle"
    }
    assert run(["sync", "plan", *options, "--create-roles", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["roles"] == sorted(ROLES[:-1])
    # Also of tables that were never analyzed.
    assert {table["table"]: table["rows"] > 0 for table in plan["tables"]}["zoo.people"]
    assert len(plan["tables"]) == 30
    for text in ("publication zoo_pub is not created", "view zoo.scratched is not created"):
        assert any(text in remark for remark in plan["remarks"]), plan["remarks"]
    assert "materialized views stay without rows, as on the source: zoo.empty_view" in plan["remarks"]


# Tables that are no partitions.
SYNCED = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname IN ('zoo', 'public', 'Odd "Schema')
"""


def watch_settings(target: Database) -> None:
    """Set time-outs of the database that would end a restore, and record those of sessions that create objects."""
    settings = " || ' ' || ".join(f"current_setting('{name}')" for name in TIMEOUTS)
    target.execute(
        "CREATE SCHEMA watching; CREATE TABLE watching.seen (settings text); CREATE FUNCTION watching.f()"
        " RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO watching.seen"
        f" SELECT {settings} FROM pg_event_trigger_ddl_commands() WHERE command_tag ~ '^(CREATE|ALTER)'"
        " AND schema_name IN ('zoo', 'public'); END $$"
    )
    for name in TIMEOUTS:
        target.execute(f"ALTER DATABASE {target.name} SET {name} = '1h'")
    target.execute("CREATE EVENT TRIGGER watching ON ddl_command_end EXECUTE FUNCTION watching.f()")


def stop_watching(target: Database) -> None:
    target.execute("DROP EVENT TRIGGER watching; DROP SCHEMA watching CASCADE")
    for name in set(TIMEOUTS) - {"statement_timeout"}:
        target.execute(f"ALTER DATABASE {target.name} RESET {name}")


def check(source: Database, target: Database) -> None:
    """Check what is not in a dump: rows of views, statistics, settings, roles."""
    assert target.execute("SELECT id, label FROM zoo.a_rooms ORDER BY 1") == [(1, "one"), (2, "two")]
    assert target.execute("SELECT relispopulated FROM pg_class WHERE relname = 'empty_view'") == [(False,)]
    unknown = (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'm') AND oid >= 16384 AND reltuples < 0"
        " AND relname <> 'empty_view'"
    )
    assert target.execute(unknown) == []
    assert database_facts(source) == database_facts(target)
    assert role_facts(source) == role_facts(target)


def compare(pair: Pair, *hidden: str) -> None:
    """Compare what pg_dump prints, without the sync."""
    pair.drop()
    programs = find_bin()
    source, target = dump(pair.source, programs, *hidden), dump(pair.target, programs)
    assert list(difflib.unified_diff(source.splitlines(), target.splitlines(), lineterm="", n=0)) == []


APP = """
CREATE SCHEMA app AUTHORIZATION zoo_owner; GRANT CREATE ON SCHEMA public TO zoo_owner; SET ROLE zoo_owner;
CREATE TABLE app.a (id int PRIMARY KEY, n int); CREATE TYPE app.span AS RANGE (subtype = float8);
CREATE TABLE b (id int PRIMARY KEY REFERENCES app.a); CREATE TABLE app.gone (id serial PRIMARY KEY);
CREATE VIEW app.seen AS SELECT id FROM app.gone; CREATE VIEW app.over AS SELECT id FROM app.seen;
CREATE FUNCTION app.f() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'; GRANT USAGE ON SCHEMA app TO zoo_ro;
CREATE FUNCTION app.g(app.gone) RETURNS int LANGUAGE sql AS 'SELECT 1';
REVOKE ALL ON FUNCTION app.f() FROM PUBLIC; GRANT EXECUTE ON FUNCTION app.f() TO zoo_ro;
GRANT SELECT ON app.a TO zoo_ro; INSERT INTO app.a VALUES (1, 1);
ALTER TABLE app.a ENABLE ROW LEVEL SECURITY; ALTER TABLE app.a FORCE ROW LEVEL SECURITY;
RESET ROLE; REVOKE CREATE ON SCHEMA public FROM zoo_owner
"""


@contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Run statements in one transaction."""
    with connection.transaction():
        yield


def test_many_large_objects_of_different_sizes(old_server: Server) -> None:
    """PostgreSQL 15 keeps results of functions that it has called with the same arguments."""
    source, target = (old_server.create_database(name) for name in ("files", "copies"))
    source.execute("SELECT lo_from_bytea(0, repeat('x', (g % 5) * 700)::bytea) FROM generate_series(1, 400) g")
    source.execute(
        "SELECT lo_from_bytea(0, decode(repeat(md5(g::text), g * 65536), 'hex')) FROM generate_series(1, 2) g"
    )
    source.execute("VACUUM ANALYZE pg_largeobject_metadata")
    content = "SELECT oid::int, length(lo_get(oid)), md5(lo_get(oid)) FROM pg_largeobject_metadata ORDER BY 1"
    with connect(Node("n1", source.uri), application="test") as reading:
        with connect(Node("n2", target.uri), application="test", read_only=False) as writing:
            assert large_objects.make_equal(reading, writing, lambda: together(writing)) == 402
            assert large_objects.unequal(reading, writing) == []
        assert target.execute(content) == source.execute(content)
        big = max(source.execute(content), key=lambda row: row[1])[0]
        target.execute(f"SELECT lo_put({big}, 1900000, 'y')")
        with connect(Node("n2", target.uri), application="test") as compared:
            assert large_objects.unequal(reading, compared) == [f"large objects differ: {big}"]


def test_a_role_without_superuser_rights(targets: list[Database], old_server: Server) -> None:
    source, target = old_server.create_database("app"), targets[0]
    source.execute(APP)
    server = target.server.database("postgres")
    server.execute("CREATE ROLE zoo_mover LOGIN CREATEROLE PASSWORD 'secret'; CREATE ROLE zoo_owner CREATEROLE")
    server.execute(f"ALTER DATABASE {target.name} OWNER TO zoo_mover")
    pair = make_pair(source, target, target_uri=target.server.uri(target.name, "zoo_mover", "secret"))
    wanted = {
        "role zoo_ro": "does not exist on the target",
        "role zoo_owner": "zoo_mover is not a member of it",
        "function app.f()": "its owner zoo_owner has CREATEROLE",
        "app.a": "row security is forced",
        "function app.g(app.gone)": "it uses app.gone, which is not in the sync",
    }
    options = Scope("main", exclude_tables=("app.gone",), create_schema=True)
    plan = pair.with_scope(options).plan()
    problems = {problem.where: problem.what for problem in plan.problems}
    assert sorted(problems) == sorted(wanted)
    for where, what in wanted.items():
        assert what in problems[where]
    for text in ("view app.seen is not created", "view app.over is not created", "zoo_idle"):
        assert any(text in remark for remark in plan.remarks), plan.remarks
    plan = pair.with_scope(replace(options, no_owner=True)).plan()
    assert any("with --no-owner it would run with the rights of zoo_mover" in problem.what for problem in plan.problems)
    assert target.execute("SELECT count(*) FROM pg_class WHERE relname IN ('a', 'b')") == [(0,)]
    source.execute("ALTER TABLE app.a NO FORCE ROW LEVEL SECURITY; DROP FUNCTION app.g")
    server.execute("DROP ROLE zoo_owner")
    # Default privileges of the role that creates the objects do not apply.
    target.execute("ALTER DEFAULT PRIVILEGES FOR ROLE zoo_mover GRANT INSERT ON TABLES TO PUBLIC")
    pair.with_scope(replace(options, create_roles=True))
    assert "the new role zoo_owner does not get CREATEDB: zoo_mover may not grant it" in pair.plan().remarks
    pair.start()
    # A table outside of the sync may be dropped at any time.
    source.execute("INSERT INTO app.a VALUES (2, 2); INSERT INTO b VALUES (2); DROP TABLE app.gone CASCADE")
    pair.run()
    pair.check_equal(["app.a", "b"])
    target.execute("ALTER DEFAULT PRIVILEGES FOR ROLE zoo_mover REVOKE INSERT ON TABLES FROM PUBLIC")
    compare(pair)
    assert target.execute("SELECT has_schema_privilege('zoo_owner', 'public', 'CREATE')") == [(False,)]
    # What a role lacks on the target is a remark: roles that exist are not changed.
    source.execute("ALTER TABLE b ADD COLUMN n int DEFAULT app.f()")
    plan = make_pair(source, targets[1]).with_scope(Scope("main", create_schema=True)).plan()
    assert "the role zoo_owner exists on the target without CREATEDB" in plan.remarks
    # A superuser would run the function of another role whenever it writes a row.
    assert [problem.where for problem in plan.problems] == ["public.b"]
    assert "calls the function app.f() of the role zoo_owner, which would run with superuser" in plan.problems[0].what


# Indexes, keys and constraints of partitions can be dropped with those of the parent only.
PARTITIONS = """
CREATE TABLE part (id int, k int, n int, PRIMARY KEY (id, k), UNIQUE (k, n), EXCLUDE USING btree (k WITH =, id WITH =))
 PARTITION BY RANGE (k);
CREATE TABLE part0 PARTITION OF part FOR VALUES FROM (0) TO (50) PARTITION BY LIST (k);
CREATE TABLE part00 PARTITION OF part0 DEFAULT; CREATE TABLE a_part PARTITION OF part FOR VALUES FROM (50) TO (99);
CREATE INDEX part_n ON part (n); ALTER TABLE part ADD FOREIGN KEY (id, n) REFERENCES part;
CREATE TABLE child (id int PRIMARY KEY, k int, FOREIGN KEY (id, k) REFERENCES part);
CREATE STATISTICS counted ON k, n FROM part;
INSERT INTO part VALUES (1, 1, 1), (2, 60, 60); INSERT INTO child VALUES (1, 1);
CREATE VIEW grouped AS SELECT id, k FROM child GROUP BY id;
CREATE MATERIALIZED VIEW kept AS SELECT id, k FROM child GROUP BY id; CREATE INDEX kept_id ON kept (id);
CREATE POLICY mine ON t USING (true);
CREATE TYPE "Odd".pair AS (a int, b int); CREATE TABLE "Odd"."%s" (id int PRIMARY KEY, p "Odd".pair)
"""
# Indexes of partitions exist, and none is attached.
UNATTACHED = (
    "query LIKE 'CREATE INDEX slow_index%' AND 4 = (SELECT count(*) FROM pg_class"
    " WHERE relname IN ('part_n', 'part0_n_idx', 'part00_n_idx', 'a_part_n_idx'))"
)
# When most of the second step is done: indexes of partitions are attached, foreign keys exist.
SLOW_POLICY = """
CREATE FUNCTION slow_policy() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(100); END $$;
CREATE EVENT TRIGGER slow_policy ON ddl_command_start WHEN TAG IN ('CREATE POLICY') EXECUTE FUNCTION slow_policy()
"""
BUILT = (
    "query LIKE 'CREATE POLICY%' AND 12 = (SELECT count(*) FROM pg_inherits i JOIN pg_index x"
    " ON x.indexrelid = i.inhrelid) AND (SELECT relispopulated FROM pg_class WHERE relname = 'kept') IS NOT NULL"
    " AND 2 = (SELECT count(*) FROM pg_constraint WHERE conname IN ('part_id_n_fkey', 'child_id_k_fkey')"
    " AND conparentid = 0)"
)
OTHERS = """
ALTER TABLE mine ADD m "Odd".mood; CREATE VIEW my_view AS SELECT id FROM t; CREATE TABLE my_part (LIKE part);
ALTER TABLE part ATTACH PARTITION my_part FOR VALUES FROM (100) TO (200)
"""


AWKWARD = """
CREATE TABLE parent (id int PRIMARY KEY, v text); CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent);
CREATE TABLE grandchild (id int PRIMARY KEY REFERENCES child);
CREATE TABLE base (id int); CREATE TABLE heir (n int) INHERITS (base);
CREATE FUNCTION of_base(base) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TABLE without_columns (); CREATE TABLE all_generated (a int GENERATED ALWAYS AS (1) STORED);
CREATE TABLE packed (id int PRIMARY KEY, v text COMPRESSION lz4) PARTITION BY RANGE (id);
CREATE TABLE packed_1 PARTITION OF packed DEFAULT; CREATE MATERIALIZED VIEW packed_view AS SELECT v FROM packed;
ALTER MATERIALIZED VIEW packed_view ALTER v SET COMPRESSION lz4; CREATE DOMAIN page AS xml;
CREATE TABLE documents (id int PRIMARY KEY, "Doc" page, parts xml[]);
CREATE VIEW of_parent AS SELECT '<a/>'::xml, id FROM parent;
CREATE VIEW element AS SELECT xmlelement(NAME a, v) FROM parent; CREATE VIEW harmless AS SELECT NULL::xml AS x;
CREATE TABLE sorted (id int PRIMARY KEY, v text); CREATE INDEX by_name ON sorted (v COLLATE "de-x-icu");
INSERT INTO documents VALUES (1, '<a/>'); CREATE TABLE empty (id int PRIMARY KEY, x xml, y text DEFAULT
    xmlserialize(content NULL AS text)); INSERT INTO empty VALUES (1);
INSERT INTO parent SELECT g, 'v' FROM generate_series(1, 9) g;
INSERT INTO child SELECT g, g FROM generate_series(1, 3) g;
"""


def test_the_plan_finds_what_cannot_be_created(
    old_server: Server, databases: Databases, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each cure works when it is typed, none of them leads to another problem; a rollback checks excluded tables."""
    old, (new,) = old_server.create_database("awkward"), databases(1)
    old.execute(AWKWARD)
    with suppress(psycopg.errors.UniqueViolation):
        old.execute("CREATE UNIQUE INDEX CONCURRENTLY failed ON parent (v)")
    options = [*ends(make_pair(old, new)), "--create-schema"]
    remarks: list[str] = []

    def planned(*excluded: str) -> dict[str, tuple[str, str]]:
        run(["sync", "plan", *options, f"--exclude-tables={','.join(excluded)}", "--json"])
        plan = json.loads(capsys.readouterr().out)
        remarks[:], problems = plan["remarks"], plan["problems"]
        return {problem["where"]: (problem["what"], problem["cure"]) for problem in problems}

    found = planned("child", "base", "heir")
    no_column, no_xml = "it has no column that can be written", "was built without XML"
    for where, what, cure in (
        ("public.grandchild", "refers to public.child, which is not in the sync", "add public.child to the sync, or"),
        ("function public.of_base(public.base)", "it uses public.base", "drop function public.of_base(public.base)"),
        ("public.without_columns", no_column, "--exclude-tables public.without_columns"),
        ("public.all_generated", no_column, "--exclude-tables public.all_generated"),
        ("public.packed", "column v is compressed with lz4", "SET COMPRESSION pglz"),
        ("public.packed_1", "column v is compressed with lz4", "SET COMPRESSION pglz"),
        ("public.packed_view", "column v is compressed with lz4", "ALTER MATERIALIZED VIEW"),
        ("public.documents", f'{no_xml}, and cannot read values of "Doc", parts', "exclude it: --exclude-tables"),
        ("view public.of_parent", f"{no_xml}, which its definition uses", "or drop it"),
        ("view public.element", f"{no_xml}, which its definition uses", "or drop it"),
        ("collation de-x-icu", "the target's server does not have it", "what uses it: index public.by_name"),
    ):
        assert what in found[where][0], where
        assert cure in found[where][1], where
    assert len(found) == 11
    assert not found["function public.of_base(public.base)"][1].startswith("add")
    for where, (_, cure) in found.items():
        if cure.startswith("ALTER"):
            old.execute(cure.partition(" (")[0])
        elif where.startswith(("view ", "function ")):
            old.execute(f"DROP {where}")
    assert any(text.startswith("the index public.failed is invalid") for text in remarks)
    old.execute("DROP INDEX by_name; DROP INDEX failed")
    excluded = ["child", "base", "heir", "grandchild", "without_columns", "all_generated", "documents"]
    assert planned(*excluded) == {}
    # The cure of the other way: what refers to a table that is in the sync does not matter.
    assert run(["sync", "start", *options, f"--exclude-tables={','.join(excluded)}", "-q"]) == 0
    assert new.execute("SELECT to_regclass('child'), to_regclass('packed_1')") == [(None, "packed_1")]
    assert run(["switchover", "execute", *options[:-1], "--budget=30s"]) == 0
    # Nothing on the new database refers to this row.
    new.execute("DELETE FROM parent WHERE id = 2")
    for proof in ("digest", "keys"):
        capsys.readouterr()
        assert run(["switchover", "rollback", *options[:-1], "--budget=30s", f"--proof={proof}"]) == 2
        expected = "child_p_fkey of public.child refers to rows of public.parent that do not exist: (2)"
        assert expected in capsys.readouterr().err
    old.execute("DELETE FROM child WHERE p = 2")
    assert run(["switchover", "rollback", *options[:-1], "--budget=30s", "--proof=keys"]) == 0
    assert old.execute("SELECT count(*) FROM parent") == [(8,)]


def test_rows_that_a_constraint_refuses_are_fixed_on_the_source(pair: Pair) -> None:
    """Triggers of an attempt that failed do not fire for the rows of the next one."""
    pair.source.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, v text);"
        " CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := upper(NEW.v); RETURN NEW; END';"
        " CREATE TRIGGER t BEFORE UPDATE ON b FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE b ENABLE ALWAYS TRIGGER t;"
        " INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 1, 'z');"
        " SET session_replication_role = replica; DELETE FROM a WHERE id = 2"
    )
    pair.with_scope(Scope("main", create_schema=True))
    for _ in range(2):
        with pytest.raises(TrueupError, match=r"\"b_a_fkey\" DETAIL:  Key \(a\)=\(2\) is not present"):
            pair.start()
    pair.source.execute(
        "ALTER TABLE b DISABLE TRIGGER t; UPDATE b SET v = 'n' WHERE id = 3; DELETE FROM b WHERE id = 2"
    )
    pair.source.execute("ALTER TABLE b ENABLE ALWAYS TRIGGER t")
    pair.start()
    pair.check_equal(["a", "b"])
    assert pair.target.execute("SELECT tgenabled FROM pg_trigger WHERE tgname = 't'") == [("D",)]
    pair.drop()
    assert pair.target.execute("SELECT tgenabled FROM pg_trigger WHERE tgname = 't'") == [("A",)]


def test_a_start_that_is_killed_while_the_schema_is_created_continues(pair: Pair) -> None:
    pair.source.execute(
        "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_setting('test.slow', true) = 'on' THEN PERFORM pg_sleep(100); END IF; RETURN $1; END $$;"
        "CREATE TABLE t (id int PRIMARY KEY, n int); CREATE INDEX slow_index ON t (slow(n));"
        'CREATE INDEX other ON t (n); INSERT INTO t VALUES (1, 1); CREATE SCHEMA "Odd";'
        'CREATE TYPE "Odd".mood AS ENUM (\'ok\'); CREATE DOMAIN "Odd".d AS int; CREATE TABLE "Odd".t (id int GENERATED'
        ' ALWAYS AS IDENTITY PRIMARY KEY, m "Odd".mood, d "Odd".d); CREATE VIEW v AS SELECT m FROM "Odd".t;'
        "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)"
    )
    pair.source.execute(PARTITIONS)
    with psycopg.connect(pair.target.uri) as blocker:
        # The first section waits for this transaction.
        blocker.execute("CREATE TABLE t (id int)")
        kill_start(pair, "trueup sync main", "wait_event_type = 'Lock'")
        blocker.rollback()
    assert pair.target.execute("SELECT phase FROM trueup.syncs") == [("making",)]
    assert pair.target.execute("SELECT to_regclass('public.t')") == [(None,)]
    pair.target.execute(f"ALTER DATABASE {pair.target.name} SET test.slow = 'on'")
    pair.target.execute("CREATE TABLE mine (id int)")
    kill_start(pair, "trueup restore", UNATTACHED)
    pair.target.execute(f"ALTER DATABASE {pair.target.name} RESET test.slow; {SLOW_POLICY}")
    kill_start(pair, "trueup restore", BUILT)
    assert pair.target.execute("SELECT phase FROM trueup.syncs") == [("building",)]
    switching = Moving(pair.source, pair.target, pair.request.source, pair.request.target)
    for refused in (switching.prepare, switching.execute, lambda: finish(switching.request())):
        with pytest.raises(CheckFailed, match="not finished") as error:
            refused()
        assert "continue it: trueup sync start" in error.value.cure
    # What others have created is not dropped.
    pair.target.execute(OTHERS)
    with pytest.raises(CheckFailed) as error:
        drop(pair.request, timeout=30)
    assert [line.partition(" uses ")[0] for line in error.value.reasons] == [
        "column m of table public.mine", "table public.my_part", "view public.my_view"
    ]  # fmt: skip
    pair.target.execute("ALTER TABLE part DETACH PARTITION my_part; DROP TABLE my_part; DROP VIEW my_view")
    pair.target.execute("ALTER TABLE mine DROP m; INSERT INTO child VALUES (7)")
    with pytest.raises(CheckFailed, match=r"^public\.child has rows that the unfinished start has not copied$"):
        drop(pair.request, timeout=30)
    pair.target.execute("DELETE FROM child WHERE id = 7")
    # Either what was created is dropped, and nothing else, or the same command continues.
    assert drop(pair.request, timeout=30).schema
    assert pair.target.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [
        ("mine",)
    ]
    assert pair.target.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'Odd'") == [(0,)]
    kill_start(pair, "trueup restore", BUILT)
    pair.target.execute("DROP EVENT TRIGGER slow_policy; DROP FUNCTION slow_policy")
    pair.with_scope(Scope("main", create_schema=True)).start()
    pair.check_equal(["t", '"Odd".t'])
    assert [remark.partition(" are ")[0] for remark in pair.plan().remarks] == ["materialized views"]
    assert not drop(pair.request, timeout=30).schema
    pair.check_equal(["t", '"Odd".t', "part"])
    pair.target.execute("DROP TABLE mine")
    compare(pair)


def kill_start(pair: Pair, application: str, condition: str) -> None:
    """Kill a start when a session of this name is at the condition, and wait until all of its sessions have ended."""
    sessions = f"SELECT pid FROM pg_stat_activity WHERE datname = '{pair.target.name}' AND"
    sessions += f" application_name LIKE '{application}%'"
    command = [sys.executable, "-m", "trueup", "sync", "start", *ends(pair), "--create-schema", "-q", "--engine=local"]
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: bool(pair.target.execute(f"{sessions} AND {condition}")), process)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not pair.target.execute(sessions))


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    until = time.monotonic() + 60
    pause = Pause()
    while not condition():
        assert process is None or process.poll() is None, "start has ended"
        assert time.monotonic() < until
        pause()


def test_a_dump_waits_for_a_locked_table_and_is_repeated(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_dump, "LOCK_WAIT", 100)
    pair.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    waiting = f"SELECT pid FROM pg_stat_activity WHERE datname = '{pair.source.name}' AND wait_event_type = 'Lock'"
    with (
        psycopg.connect(pair.source.uri) as owner,
        open_session(pair.request.source, "main") as source,
        open_session(pair.request.target, "main") as target,
    ):
        owner.execute("LOCK TABLE t")
        request = replace(pair.request, timeout=0)
        with pytest.raises(TrueupError, match="LOCK TABLE"), schema_dump.dumped(request, source, target, ()):
            pass
        attempts: set[tuple[int, ...]] = set()

        def release() -> None:
            while len(attempts) < 2:
                attempts.update(pair.source.execute(waiting))
            owner.rollback()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(release)
            with schema_dump.dumped(pair.request, source, target, ()) as made:
                assert any("TABLE public t" in line for line in made.entries(schema_dump.PRE))
        assert len(attempts) == 2


REFUSE = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE c.object_identity = 'public.refused') THEN
        RAISE EXCEPTION 'not here';
    END IF;
END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_end EXECUTE FUNCTION refuse();
"""


def test_the_fixed_costs_of_a_start(pair: Pair) -> None:
    """An error names the object that could not be created, although all are created in one round trip."""
    tables = "".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, f text); CREATE INDEX ON t{n} (f);" for n in range(10))
    pair.source.execute(f"{tables} CREATE TABLE refused (id int PRIMARY KEY); INSERT INTO t1 VALUES (1, 'x')")
    pair.target.execute(REFUSE)
    scoped = pair.with_scope(Scope("main", create_schema=True))
    with pytest.raises(TrueupError, match=r"table public\.refused: not here"):
        scoped.start()
    assert pair.target.execute("SELECT FROM pg_class WHERE relname IN ('t1', 'refused')") == []
    pair.target.execute("DROP EVENT TRIGGER refuse; DROP FUNCTION refuse")
    drop(pair.request, timeout=30)
    with wire(pair) as wired:
        sync.start(replace(wired.request, concurrency_factor=0.0), Silent())
        # With those of pg_dump and pg_restore.
        assert [proxy.sessions for proxy in wired.proxies] == [5, 5]
        assert wired.source_trips() <= 450
        assert wired.target_trips() <= 450
    pair.check_equal(["t1"])
