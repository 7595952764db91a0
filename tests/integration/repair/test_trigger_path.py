"""Triggers that a repair or an undo fires have the search_path of a new session, and nothing in it captures a name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.repair import Nodes, NodesWith

# Functions and operators that would match the statements of a repair better than those of PostgreSQL.
HOSTILE = """
CREATE FUNCTION app.captured(varchar, varchar) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.captured(int2, int2) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.captured(int8, int8) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.hashtextextended(text, int8) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.hash_record_extended(record, int8) RETURNS int8 LANGUAGE plpgsql
    AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.int8send(int8) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE FUNCTION app.trim_scale(numeric) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN RAISE 'captured'; END $$;
CREATE OPERATOR app.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = app.captured);
CREATE OPERATOR app.= (LEFTARG = int2, RIGHTARG = int2, FUNCTION = app.captured);
CREATE OPERATOR app.+ (LEFTARG = int8, RIGHTARG = int8, FUNCTION = app.captured);
CREATE TYPE app.text AS ENUM ('captured');
CREATE TYPE app.int2 AS ENUM ('captured');
"""
# Unqualified names of a table and a function, in triggers of all kinds.
SCHEMA = f"""
CREATE SCHEMA app;
CREATE TABLE app.items (id varchar PRIMARY KEY, price numeric, size int8);
CREATE TABLE app.log (entry varchar);
CREATE FUNCTION app.name_of(name) RETURNS varchar LANGUAGE sql AS $$ SELECT format('%s of app', $1)::varchar $$;
CREATE FUNCTION app.noted() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO log VALUES (name_of(TG_NAME)); RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER row BEFORE INSERT OR UPDATE OR DELETE ON app.items FOR EACH ROW EXECUTE FUNCTION app.noted();
CREATE TRIGGER statement BEFORE INSERT OR UPDATE OR DELETE ON app.items EXECUTE FUNCTION app.noted();
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE OR DELETE ON app.items DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION app.noted();
{HOSTILE}
ALTER TABLE app.items DISABLE TRIGGER USER;
"""
ROWS = (
    "INSERT INTO app.items VALUES ('a', 1, 1), ('b', 2, 2)",
    "INSERT INTO app.items VALUES ('b', 2.5, 2), ('c', 3, 3)",
)
LOG = "SELECT entry, count(*) > 0 FROM app.log GROUP BY 1 ORDER BY 1"
FIRED = [("late of app", True), ("row of app", True), ("statement of app", True)]


@pytest.fixture
def nodes(nodes_with: NodesWith) -> Iterator[Nodes]:
    """Return two nodes whose second one has triggers, and a role that owns everything in its schema app."""
    nodes = nodes_with(SCHEMA, *ROWS, name="app.items")
    role = nodes[2].name
    nodes[2].execute(f"ALTER TABLE app.items ENABLE TRIGGER USER; CREATE ROLE {role} LOGIN PASSWORD 'p'")
    yield nodes
    nodes[2].execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_triggers_have_the_search_path_of_a_new_session(nodes: Nodes) -> None:
    role = nodes[2].name
    nodes[2].execute(
        f"GRANT ALL ON SCHEMA app TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA app TO {role};"
        f" ALTER ROLE {role} IN DATABASE {role} SET search_path = app, pg_catalog"
    )
    report = nodes.diff()
    nodes.addresses["n2"] = nodes[2].server.uri(role, user=role, password="p")
    done = nodes.repair(report, source_of_truth="n1", execute=True, fire_triggers=True)
    assert (done.failed, done.verdict) == ({}, "REPAIRED")
    assert nodes[2].execute(LOG) == FIRED
    nodes[2].execute("TRUNCATE app.log")
    undone = nodes.undo(done, execute=True, fire_triggers=True)
    assert (undone.failed, undone.verdict) == ({}, "UNDONE")
    assert nodes[2].execute(LOG) == FIRED
    # Only deletes, which this role may do without the right to UPDATE.
    nodes[2].execute(
        f"REVOKE UPDATE ON app.items FROM {role}; SET session_replication_role = replica;"
        " DELETE FROM app.items WHERE id = 'b'"
    )
    nodes[1].execute("DELETE FROM app.items")
    nodes.addresses["n2"] = nodes[2].uri
    report = nodes.diff()
    nodes.addresses["n2"] = nodes[2].server.uri(role, user=role, password="p")
    nodes[2].execute("TRUNCATE app.log")
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert (done.failed, done.verdict) == ({}, "REPAIRED")
    assert nodes[2].execute(LOG) == FIRED


def test_the_path_of_a_superuser_has_no_schema_of_other_roles(nodes: Nodes) -> None:
    """ENABLE ALWAYS: such a trigger fires without --fire-triggers too."""
    role = nodes[2].name
    nodes[2].execute(
        f"ALTER DATABASE {role} SET search_path = app; ALTER TABLE app.items DISABLE TRIGGER statement;"
        " ALTER TABLE app.items ENABLE ALWAYS TRIGGER row; ALTER TABLE app.items ENABLE ALWAYS TRIGGER late"
    )
    report = nodes.diff()
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert (done.failed, done.verdict) == ({}, "REPAIRED")
    assert nodes[2].execute(LOG) == FIRED[:2]
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    nodes[2].execute(f"GRANT CREATE ON SCHEMA app TO {role}")
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert 'relation "log" does not exist' in done.failed["n2"]
    assert any("the schema app is not safe to use" in remark for remark in done.remarks)
