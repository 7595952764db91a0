"""`--create-schema` copies owners, privileges, default privileges and settings, and creates the missing roles."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures import Databases, FreshServer
from support.schema_zoo import CREATE_ROLES, ROLES, ROWS, SCHEMA, database_facts, dump, role_facts
from support.sync import Pair, make_pair
from trueup.cli.main import run
from trueup.testing.postgres import Database, find_bin
from trueup.verbs.sync.request import Scope

TIMEOUTS = ("transaction_timeout", "statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def targets(databases: Databases) -> Iterator[list[Database]]:
    """Two databases of the shared server, without the roles."""
    made = databases(2)
    yield made
    for database in made:
        database.drop()
    for role in ROLES:
        made[0].server.database("postgres").execute(f"DROP ROLE IF EXISTS {role}")


def ends(pair: Pair) -> list[str]:
    nodes = [f"--node={node.name}={node.conninfo}" for node in (pair.request.source, pair.request.target)]
    return ["--from=n1", "--to=n2", *nodes]


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 with contrib is not installed")
def test_owners_and_privileges_arrive(
    targets: list[Database], fresh_server: FreshServer, capsys: pytest.CaptureFixture[str]
) -> None:
    old = fresh_server(name="old", bin_dir=DEBIAN).create_database("zoo")
    old.execute(CREATE_ROLES)
    old.execute(SCHEMA)
    old.execute(ROWS)
    old.execute(
        "ALTER DATABASE zoo SET statement_timeout = '30s'; ALTER DATABASE zoo SET search_path = \"$user\", zoo;"
        " ALTER DATABASE zoo SET app.secret = 'do not show'; ALTER ROLE zoo_app IN DATABASE zoo SET work_mem = '5MB';"
        " REVOKE CONNECT ON DATABASE zoo FROM PUBLIC; GRANT CONNECT ON DATABASE zoo TO zoo_rw;"
        " CREATE PUBLICATION zoo_pub FOR TABLE zoo.rooms;"
    )
    pair = make_pair(old, targets[0])
    watch_settings(targets[0])
    options = [*ends(pair), "--create-schema", "--exclude-tables=zoo.scratch"]
    assert run(["sync", "plan", *options, "--json"]) == 2
    plan = json.loads(capsys.readouterr().out)
    assert {problem["where"] for problem in plan["problems"]} == {
        f"role {name}" for name in ROLES if name != "zoo_idle"
    }
    assert run(["sync", "plan", *options, "--create-roles", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["roles"] == sorted(ROLES[:-1])
    for text in ("publication zoo_pub is not created", "view zoo.scratched is not created"):
        assert any(text in remark for remark in plan["remarks"]), plan["remarks"]
    assert run(["sync", "start", *options, "--create-roles", "-q"]) == 0
    output = capsys.readouterr()
    assert "SCRAM" not in output.out + output.err
    assert "do not show" not in output.out + output.err
    assert targets[0].execute("SELECT DISTINCT settings FROM watching.seen") == [("0 0 0 0",)]
    stop_watching(targets[0])
    check(pair)
    assert role_facts(old) == role_facts(targets[0])
    # From 18 to 18: the roles exist.
    onward = make_pair(targets[0], targets[1]).with_scope(Scope("main", create_schema=True))
    onward.start()
    check(onward)


def watch_settings(target: Database) -> None:
    """Set time-outs of the database that would end a restore, and record those of sessions that create objects."""
    settings = " || ' ' || ".join(f"current_setting('{name}')" for name in TIMEOUTS)
    target.execute(
        "CREATE SCHEMA watching; CREATE TABLE watching.seen (settings text); CREATE FUNCTION watching.f()"
        f" RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO watching.seen VALUES ({settings}); END $$"
    )
    for name in TIMEOUTS:
        target.execute(f"ALTER DATABASE {target.name} SET {name} = '1h'")
    target.execute("CREATE EVENT TRIGGER watching ON ddl_command_end EXECUTE FUNCTION watching.f()")


def stop_watching(target: Database) -> None:
    target.execute("DROP EVENT TRIGGER watching; DROP SCHEMA watching CASCADE")
    for name in set(TIMEOUTS) - {"statement_timeout"}:
        target.execute(f"ALTER DATABASE {target.name} RESET {name}")


def check(pair: Pair) -> None:
    """Compare both sides after the sync was dropped, so that nothing of trueup is part of the schemas."""
    assert pair.target.execute("SELECT id, label FROM zoo.a_rooms ORDER BY 1") == [(1, "one"), (2, "two")]
    assert pair.target.execute("SELECT relispopulated FROM pg_class WHERE relname = 'empty_view'") == [(False,)]
    unknown = (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'm') AND oid >= 16384 AND reltuples < 0"
        " AND relnamespace <> 'trueup'::regnamespace AND relname <> 'empty_view'"
    )
    assert pair.target.execute(unknown) == []
    pair.drop()
    programs = find_bin()
    hidden = ("zoo.scratch", "zoo.scratch_id_seq", "zoo.scratched")
    source, target = dump(pair.source, programs, *hidden), dump(pair.target, programs)
    assert list(difflib.unified_diff(source.splitlines(), target.splitlines(), lineterm="", n=0)) == []
    assert database_facts(pair.source) == database_facts(pair.target)
