"""What the gate compares besides rows: definitions by their meaning, owners and grants, and what each role may do."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import Databases, FreshServer
from support.switchover import Moving, begin
from trueup.cli.main import run
from trueup.errors import ConfigError
from trueup.testing.postgres import Database
from trueup.verbs.switchover import way_back
from trueup.verbs.switchover.accepted import parse_accepted
from trueup.verbs.switchover.gate import GateClosed

DEBIAN = Path("/usr/lib/postgresql/15/bin")
_numbers = itertools.count(1)

SCHEMA = """
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0);
CREATE TABLE people (id int PRIMARY KEY, name citext UNIQUE, feeling mood DEFAULT 'ok', boss int,
    twice int GENERATED ALWAYS AS (id * 2) STORED, n even, CHECK (id > 0 AND name <> ''));
CREATE TABLE visits (id serial PRIMARY KEY, person int, at date);
ALTER TABLE visits ADD CONSTRAINT of_person FOREIGN KEY (person) REFERENCES people NOT VALID;
CREATE VIEW names AS SELECT p.name, p.feeling FROM people p
    WHERE p.feeling = 'ok'::mood AND p.id IN (SELECT v.person FROM visits v);
CREATE VIEW tree AS WITH RECURSIVE t AS (SELECT p.id, p.boss FROM people p WHERE p.boss IS NULL
    UNION ALL SELECT p.id, p.boss FROM people p JOIN t ON t.id = p.boss)
    SELECT t.id, count(*) AS c FROM t GROUP BY t.id;
CREATE VIEW latest AS
    SELECT v.person, (SELECT max(w.at) AS m FROM visits w WHERE w.person = v.person) AS m FROM visits v;
CREATE MATERIALIZED VIEW totals AS
    SELECT v.person, count(*) AS n FROM (SELECT w.person FROM visits w) v GROUP BY v.person;
ALTER TABLE visits ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON visits USING (person IN (SELECT p.id FROM people p WHERE p.name = CURRENT_USER::text));
CREATE FUNCTION oldest() RETURNS date LANGUAGE sql BEGIN ATOMIC SELECT min(v.at) FROM visits v; END;
CREATE TABLE docs (id int PRIMARY KEY, x xml, plain text DEFAULT xmlserialize(content NULL AS text) CHECK (
        plain <> xmlserialize(content x AS text)), g text GENERATED ALWAYS AS (xmlserialize(content x AS text)) STORED,
    CONSTRAINT one EXCLUDE USING btree ((xmlserialize(content x AS text)) WITH =)
        WHERE (xmlserialize(content x AS text) <> 'free'));
CREATE INDEX docs_text ON docs ((xmlserialize(content x AS text)), id);
CREATE STATISTICS docs_both ON (xmlserialize(content x AS text)), id FROM docs;
CREATE TABLE lists (x xml, n int NOT NULL) PARTITION BY LIST ((xmlserialize(content x AS text)));
CREATE TABLE list PARTITION OF lists DEFAULT;
CREATE FUNCTION given(a int, b text DEFAULT xmlserialize(content NULL AS text), c int DEFAULT 1) RETURNS int
    LANGUAGE sql AS 'SELECT 1';
CREATE RULE keep AS ON DELETE TO people
    WHERE EXISTS (SELECT v.id FROM visits v WHERE v.person = OLD.id) DO INSTEAD NOTHING;
"""


@pytest.fixture
def role(databases: Databases) -> Iterator[str]:
    """The name of a role that tests create; it is dropped from the shared server."""
    name = f"app_{os.getpid()}_{next(_numbers)}"
    (database,) = databases(1)
    yield name
    for (found,) in database.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test\\_%'"):
        if database.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]):
            database.server.database(found).execute(f"DROP OWNED BY {name} CASCADE")
    database.execute(f"DROP ROLE IF EXISTS {name}")


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 with contrib is not installed")
def test_between_versions(databases: Databases, fresh_server: FreshServer, role: str) -> None:
    """Definitions that print differently are equal; owners, grants and roles are not forgotten."""
    (new,) = databases(1)
    old = fresh_server(name="old", bin_dir=DEBIAN).create_database("shop")
    for database in (old, new):
        database.execute(SCHEMA)
    old.execute(f"CREATE ROLE {role} LOGIN; CREATE ROLE other LOGIN")
    old.execute(
        "SET session_replication_role = replica; INSERT INTO people (id, name, n) VALUES (1, 'a', 2), (2, 'b', 4);"
        " INSERT INTO visits (person, at) VALUES (1, '2026-01-01'), (77, '2026-01-02');"
        " INSERT INTO docs (id, plain) VALUES (1, 'a'), (2, 'b'); INSERT INTO lists (n) VALUES (1), (1)"
    )
    moving = begin(old, new)
    # An orphan of a NOT VALID key that is changed travels through a round.
    old.execute("UPDATE visits SET at = at + 1")
    outcome = moving.execute(proof="keys")
    assert any("NOT VALID, with the same rows on both sides: of_person" in str(each) for each in outcome.conditions)
    moving.rollback(proof="digest")
    assert moving.differences(("people", "visits", "docs", "lists")) == []
    # What means something else still closes the gate.
    new.execute(
        "CREATE OR REPLACE VIEW names AS SELECT p.name, p.feeling FROM people p WHERE p.feeling = 'sad'::mood;"
        "ALTER POLICY own ON visits USING (person IN (SELECT p.id FROM people p WHERE p.name <> CURRENT_USER::text));"
        "CREATE OR REPLACE FUNCTION oldest() RETURNS date LANGUAGE sql BEGIN ATOMIC SELECT max(v.at) FROM visits v;"
        " END; CREATE OR REPLACE RULE keep AS ON DELETE TO people WHERE NOT EXISTS (SELECT v.id FROM visits v"
        " WHERE v.person = OLD.id) DO INSTEAD NOTHING;"
        "ALTER TABLE docs DROP CONSTRAINT one, ADD CONSTRAINT one EXCLUDE USING btree"
        " ((xmlserialize(content x AS text)) WITH =) WHERE (xmlserialize(content x AS text) <> 'other');"
        "DROP STATISTICS docs_both; CREATE STATISTICS docs_both ON (xmlserialize(document x AS text)), id FROM docs;"
        "CREATE OR REPLACE FUNCTION given(a int, b text DEFAULT xmlserialize(document NULL AS text), c int DEFAULT 1)"
        " RETURNS int LANGUAGE sql AS 'SELECT 2';"
        "ALTER DOMAIN even DROP CONSTRAINT even_check;"
        "ALTER DOMAIN even ADD CONSTRAINT even_check CHECK (VALUE % 2 = 0 AND VALUE < 9)"
    )
    with pytest.raises(GateClosed) as closed:
        moving.execute()
    # All of this was compared by its meaning.
    assert "compare them manually" not in closed.value.message
    for text in (
        "function public.oldest() differs (body)",
        "view public.names differs (definition)",
        "policy public.visits.own differs (using)",
        "rule public.people.keep differs (definition)",
        "constraint public.docs.one differs (index, definition)",
        "statistics public.docs_both differs (definition)",
        "function public.given(integer, text, integer) differs (body, arguments)",
        "type public.even differs (constraints)",
    ):
        assert text in closed.value.message
    # Differences are accepted by name only, and tables and columns never.
    with pytest.raises(GateClosed, match=r"closed: schema equal: policy public\.visits\.own"):
        moving.execute(accept_schema=("oldest(),rule:public.*,docs*,given*", "names,nothing,even"))
    new.execute("ALTER TABLE people ALTER COLUMN boss SET DEFAULT 1")
    accepted = ("oldest(),rule:public.*,nothing,docs*,given*", "visits.own", "view:*,people.boss,even")
    with pytest.raises(GateClosed, match=r"closed: schema equal: column public\.people\.boss"):
        moving.execute(accept_schema=accepted)
    new.execute("ALTER TABLE people ALTER COLUMN boss DROP DEFAULT")
    _check_rights(moving, old, new, role, accepted)


def _check_rights(moving: Moving, old: Database, new: Database, role: str, accepted: tuple[str, ...]) -> None:
    # A role that the target lacks; one without privileges in this database does not matter.
    old.execute(f"GRANT SELECT, INSERT ON people TO {role}; GRANT USAGE ON SEQUENCE visits_id_seq TO {role}")
    # One that only the target has; and row security that only the source has hides rows of no role.
    new.execute(f"CREATE ROLE only_{role} LOGIN; GRANT SELECT ON people TO only_{role}")
    new.execute("ALTER TABLE visits DISABLE ROW LEVEL SECURITY")
    with pytest.raises(GateClosed) as closed:
        moving.execute(accept_schema=accepted)
    new.execute(f"ALTER TABLE visits ENABLE ROW LEVEL SECURITY; DROP OWNED BY only_{role}; DROP ROLE only_{role}")
    expected = f"role only_{role} is missing on old: it may CONNECT, SELECT public.people, log in on new"
    assert expected in closed.value.message
    assert "table public.visits differs (row security)" in closed.value.message
    assert "role postgres" not in closed.value.message
    assert f"role {role} is missing on new: it may CONNECT, INSERT public.people" in closed.value.message
    assert f"rights on public.people differ: {role} INSERT, {role} SELECT only on old" in closed.value.message
    assert "other" not in closed.value.message
    new.execute(
        f"CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT ON people TO {role};"
        f" GRANT USAGE ON SEQUENCE visits_id_seq TO {role}"
    )
    # The same grants, and more: by attributes and by a membership.
    old.execute(f"GRANT SELECT ON visits TO {role}; ALTER ROLE {role} CREATEDB")
    new.execute(
        f"GRANT SELECT ON visits TO {role}; ALTER ROLE {role} BYPASSRLS CREATEROLE; GRANT pg_write_all_data TO {role};"
        " ALTER MATERIALIZED VIEW totals OWNER TO pg_monitor"
    )
    with pytest.raises(GateClosed) as closed:
        moving.execute(accept_schema=accepted)
    for text in (
        f"role {role} differs: it may create databases (CREATEDB) on old, and not on new; it may DELETE public.",
        "bypass row security (BYPASSRLS), create roles (CREATEROLE), use the rights of pg_write_all_data on new, and",
        # The view cannot be refreshed, because its owner is another one.
        "rights on public.totals differ: owner postgres on old, pg_monitor on new",
        "materialized view public.totals cannot be refreshed on new by its owner: query would be",
    ):
        assert text in closed.value.message
    new.execute("ALTER MATERIALIZED VIEW totals OWNER TO postgres")
    remarks = moving.rehearse(accept_schema=(*accepted, f"role:{role}")).remarks
    assert f"accepted: role {role} differs: it may create databases" in str(remarks)
    new.execute(f"ALTER ROLE {role} NOBYPASSRLS NOCREATEROLE CREATEDB; REVOKE pg_write_all_data FROM {role}")
    # The same grants, but no way to them: USAGE of the schema, and an owner.
    old.execute(
        f"ALTER TABLE visits OWNER TO {role}; GRANT UPDATE (name) ON people TO {role};"
        f" ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role}"
    )
    new.execute(f"REVOKE USAGE ON SCHEMA public FROM PUBLIC; ALTER ROLE {role} NOLOGIN")
    with pytest.raises(GateClosed) as closed:
        moving.execute(accept_schema=accepted)
    for text in (
        f"role {role} differs: it may DELETE public.visits, INSERT public.people, public.visits, ",
        "log in",
        f"rights on public.visits differ: owner {role} on old, postgres on new",
        f"{role} UPDATE (name) only on old",
        "rights on public differ: PUBLIC USAGE only on old",
        "default privileges postgres.tables is missing on new",
        "--accept-schema nothing matches no difference",
    ):
        assert text in closed.value.message
    remarks = moving.execute(accept_schema=(*accepted, "rights:*,default privileges:*", f"role:{role}")).remarks
    assert "accepted: rule public.people.keep differs (definition)" in str(remarks)
    assert "--accept-schema nothing matches no difference" in remarks


def test_names_to_accept(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = ["--from=a", "--to=b", "--node=a=postgresql://h/a", "--node=b=postgresql://h/b"]
    for form in (["--accept-schema"], ["--accept-schema", "--proof=keys"], ["--accept-schema=*"], ["--accept-schema="]):
        assert run(["switchover", "execute", *nodes, *form]) == 2
        assert "--accept-schema needs the names of the objects" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="takes a list of names"):
        parse_accepted("public.v")
    names = parse_accepted(['f(integer, text), "A,b".c', "materialized view:*"])
    assert names.patterns == (("", "f(integer, text)"), ("", '"A,b".c'), ("materialized view", "*"))


@pytest.mark.parametrize("place", ["plain", "parts_1", "keyless"])
def test_no_way_back_without_triggers_on_the_new_database(
    databases: Databases, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate is closed by a table whose changes would not be recorded for a rollback."""
    old, new = databases(2)
    for database in (old, new):
        database.execute(
            "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE keyless (id int);"
            " CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
            " CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)"
        )
    moving = begin(old, new)
    problems = way_back.problems

    def late(*arguments: Any) -> Any:
        new.execute(f"ALTER TABLE {place} DISABLE TRIGGER trueup_log_main_truncate")
        return problems(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(way_back, "problems", late)
        name = place.partition("_")[0]
        lost = "triggers are missing, disabled or replaced"
        reason = f"on new, public.{name}: changes may not have been recorded: {lost}"
        with pytest.raises(GateClosed, match=reason):
            moving.execute()
    assert not moving.execute().already


def test_foreign_keys_of_excluded_tables_that_would_fire(
    databases: Databases, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rollback would delete rows that are not in the sync: the plan says it, and nothing is moved."""
    old, new = databases(2)
    old.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    nodes = []
    for name, database in (("n1", old), ("n2", new)):
        database.execute(
            f"GRANT CREATE ON DATABASE {database.name} TO {role}; GRANT CREATE, USAGE ON SCHEMA public TO {role}"
        )
        nodes.append(f"--node={name}={database.server.uri(database.name, role, 'p')}")
    old.execute(
        f"SET SESSION AUTHORIZATION {role}; CREATE TABLE parent (id int PRIMARY KEY);"
        " CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE); INSERT INTO parent VALUES (1)"
    )
    new.execute(f"SET SESSION AUTHORIZATION {role}; CREATE TABLE parent (id int PRIMARY KEY)")
    options = ["--from=n1", "--to=n2", *nodes]
    assert run(["sync", "plan", *options, "--exclude-tables=child"]) == 0
    assert "child_id_fkey of public.child would fire on n1 when a rollback writes" in capsys.readouterr().out
    assert run(["sync", "start", *options, "--exclude-tables=child", "-q"]) == 0
    assert run(["switchover", "execute", *options]) == 2
    reason = "on n1, the foreign key child_id_fkey of public.child refers to public.parent: it would fire"
    assert reason in capsys.readouterr().err
    old.execute("ALTER TABLE child DROP CONSTRAINT child_id_fkey")
    assert run(["switchover", "execute", *options, "--budget=30s"]) == 0
