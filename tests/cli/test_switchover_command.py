"""`trueup switchover` on the command line, with a role that owns its databases and has no other privilege."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from psycopg import sql

from support.fixtures import Cli, Databases
from trueup.store import TaskStore
from trueup.testing.postgres import Database, Server

SECRET = "s3cret-of-the-owner"
SCHEMA = """
CREATE TABLE people (id serial PRIMARY KEY, name text UNIQUE);
CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, person int REFERENCES people, price numeric);
"""

Owned = tuple[list[Database], list[str], str]


@pytest.fixture
def owned(server: Server, databases: Databases) -> Owned:
    """Two databases of an ordinary role, the options with their addresses, and the name of the role."""
    role = f"owner_{os.getpid()}"
    admin = server.database("postgres")
    admin.execute(
        sql.SQL("DROP ROLE IF EXISTS {0}; CREATE ROLE {0} LOGIN PASSWORD {1}").format(sql.Identifier(role), SECRET)
    )
    both = databases(2)
    options: list[str] = []
    for name, database in zip(("n1", "n2"), both, strict=True):
        admin.execute(
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database.name), sql.Identifier(role))
        )
        database.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(role)))
        database.uri = server.uri(database.name, role, SECRET)
        database.execute(SCHEMA)
        options += ["--node", f"{name}={database.uri}"]
    both[0].execute(
        "INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, 50) g;"
        " INSERT INTO visits (person, price) SELECT 1 + g % 50, g FROM generate_series(1, 200) g"
    )
    return both, ["--from", "n1", "--to", "n2", *options], role


def test_switchover_and_rollback_by_the_owner(cli: Cli, owned: Owned, server: Server) -> None:
    both, ends, _ = owned
    old, new = both
    started = cli("sync", "start", *ends, "--engine", "local")
    assert started.out.startswith("copied 2 tables to n2, engine local; next: "), started
    early = cli("switchover", "status", *ends)
    assert "n1 is in use (not prepared)" in early.out
    prepared = cli("switchover", "prepare", *ends)
    assert prepared.code == 0, prepared.err
    assert "n1 is in use; created 4 guards" in prepared.out
    wrong = cli("switchover", "execute", *ends, "--proof", "validated", "--validation", "shop", "--meta", "n2")
    assert (wrong.code, "there is no validation shop from n1 to n2 on n2" in wrong.err) == (2, True)
    wrong = cli("switchover", "execute", *ends, "--second-address", f"host=db2 password={SECRET}")
    assert (wrong.code, "all roles can read the pointer" in wrong.err) == (2, True)
    old.execute("UPDATE people SET name = 'changed' WHERE id = 7; DELETE FROM visits WHERE person = 9")
    # A rehearsal decides nothing. What a rollback needs is a condition.
    Path("reports").mkdir()
    rehearse = ("switchover", "rehearse", *ends, "--budget", "60s", "--report-dir", "reports")
    rehearsed = cli(*rehearse, "--json")
    assert rehearsed.code == 0, rehearsed.err
    assert all(condition["holds"] for condition in rehearsed.json["conditions"])
    assert "n1 is in use (not moved)" in cli("switchover", "status", *ends).out
    shown = cli("report", rehearsed.json["task_id"], "--output", "html", "--to", "again.html")
    for page in (Path(rehearsed.json["page"]), Path("again.html")):
        assert page.stat().st_mode & 0o777 == 0o600
        text = page.read_text(encoding="utf-8")
        assert "Switchover n1 → n2" in text
        assert SECRET not in text
    old.execute("REVOKE DELETE ON visits FROM CURRENT_USER")
    closed = cli(*rehearse, "--accept-schema", "grants:*,role:*")
    assert (closed.code, "delete rows of public.visits on n1" in closed.err) == (2, True), closed.err
    old.execute("GRANT DELETE ON visits TO CURRENT_USER")
    assert sum("NOT READY" in page.read_text(encoding="utf-8") for page in Path("reports").iterdir()) == 1
    moved = cli("switchover", "execute", *ends, "--budget", "60s", "--proof", "keys", "--json")
    assert moved.code == 0, moved.err
    report = moved.json
    assert report["from"], report["to"] == ("n1", "n2")
    assert 0 < report["pause_ms"] < 60_000
    assert {"fence", "final round", "sequences", "gate", "pointer", "open"} <= set(report["phases_ms"])
    assert all(condition["holds"] for condition in report["conditions"])
    assert f"dbname={new.name}" in report["address"]
    with TaskStore() as store:
        task = store.get(report["task_id"])
    assert (task.task_type, task.task_status) == ("SWITCHOVER", "COMPLETED")
    assert task.task_context["diff_summary"]["pause_ms"] == report["pause_ms"]
    new.execute("INSERT INTO people (name) VALUES ('on the new one')")
    seen = cli("switchover", "status", *ends)
    assert "n2 is in use (moved)" in seen.out
    assert "change log: 1 key in" in seen.out
    back = cli("switchover", "rollback", *ends, "--budget", "60s")
    assert back.code == 0, back.err
    assert "moved back from n2 to n1" in back.out
    assert old.execute("SELECT count(*) FROM people WHERE name = 'on the new one'") == [(1,)]
    again = cli("switchover", "rollback", *ends)
    assert (again.code, "nothing to do: n1 is in use since" in again.out) == (0, True)
    assert "no switchover was running" in cli("switchover", "abort", *ends).out
    assert cli("switchover", "reset", *ends).code == 0
    done = cli("switchover", "finish", *ends, "--json")
    assert done.json["in_use"] == "n1"
    for database in both:
        assert database.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'trueup%'") == [(0,)]
    for each in (early, prepared, rehearsed, shown, closed, moved, seen, back, again, done):
        assert SECRET not in each.out + each.err


def test_the_doctor_reports_what_is_missing_for_a_switchover(cli: Cli, owned: Owned, server: Server) -> None:
    both, ends, role = owned
    nodes = ends[4:]
    fine = cli("doctor", "--switchover", "n1,n2", "--no-spark", *nodes)
    assert "FAIL  switchover" not in fine.out, fine.out
    assert "foreign keys" in fine.out  # not needed with session_replication_role
    as_admin = {each.name: server.database(each.name) for each in both}
    as_admin[both[0].name].execute("CREATE TABLE theirs (id int PRIMARY KEY); CREATE TABLE bare (id int)")
    as_admin[both[1].name].execute(f"REVOKE CREATE ON DATABASE {both[1].name} FROM {role}")
    as_admin[both[1].name].execute(f"ALTER DATABASE {both[1].name} OWNER TO postgres")
    lacking = cli("doctor", "--switchover", "n1,n2", "--no-spark", "--quiet", *nodes)
    assert lacking.code == 2
    assert "the role cannot create the schema trueup" in lacking.out
    assert "theirs" in lacking.out
