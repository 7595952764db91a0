"""A plain role tries to become superuser through what a superuser does with trueup, in all verbs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from types import ModuleType

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import trueup
from support.fixtures import Compare, Databases
from support.hostile import PASSWORD, Hostile, hostile_role
from support.sync import make_pair, wire
from support.tube import TubeDatabase
from trueup.config.model import Node
from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.foreign_code import foreign_code, foreign_code_of
from trueup.db.node import connect
from trueup.errors import CheckFailed, QueryError
from trueup.rows.digest import digest_query
from trueup.rows.encode import column_spec, key_order, scalar_value, value_of
from trueup.rows.keys import Block, in_block, key_texts, order_by, source, where
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.types import TYPES
from trueup.rows.write.key_lists import in_key_list, key_list
from trueup.rows.write.triggers import require_silent_triggers
from trueup.sinks import open_sink
from trueup.sinks.base import Document, Mark, SourceTable
from trueup.verbs.repair import write_node
from trueup.verbs.sync import copy as copy_parts
from trueup.verbs.sync import large as sync_large
from trueup.verbs.sync import members, state
from trueup.verbs.sync import round as sync_round
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync_ddl import apply_ddl

# The role writes these rows itself, without casts.
TABLE = """
CREATE TABLE t (m mood, id int, c comp, a mood[], s span, d calm, n small, x text, PRIMARY KEY (m, id));
INSERT INTO t
SELECT (enum_range(NULL::mood))[1 + i % 3], i, ROW(i, 'b')::comp, '{sad,ok}'::mood[], span(i, i + 2), 'ok'::calm, i, 'x'
  FROM generate_series(1, 30) i;
"""


@pytest.fixture
def hostile(databases: Databases) -> Iterator[Hostile]:
    with hostile_role(databases(2)) as role:
        role.make_types(TABLE)
        yield role


def test_diff_and_repair_call_no_cast_of_the_owner_of_a_type(hostile: Hostile, compare: Compare) -> None:
    n1, n2 = hostile.databases
    assert n1.execute("SELECT count(*) FROM pg_cast WHERE oid > 16384")[0][0] > 300
    changes = "UPDATE t SET c = '(0,z)' WHERE id = 7; UPDATE t SET a = NULL WHERE id = 4; DELETE FROM t WHERE id = 3"
    hostile.run(changes, n2)
    result = compare([n1, n2], "public.t")
    assert (result.verdict, result.pairs["n1/n2"].total) == ("DIFFER", 3)
    assert compare([n1, n2], "public.t", quick=True, key=("id",)).verdict == "DIFFER"
    nodes = {"n1": n1.uri, "n2": n2.uri}
    repaired = trueup.repair(result.report, source_of_truth="n1", execute=True, nodes=nodes, engine="local")
    assert not repaired.failed
    assert compare([n1, n2], "public.t").verdict == "MATCH"
    assert not hostile.is_superuser()


def test_a_type_that_is_changed_while_a_statement_waits_is_refused(hostile: Hostile) -> None:
    """The statement was built for a built-in type. When it is parsed, the column has a type with hostile casts."""
    database = hostile.databases[0]
    node = Node("n1", database.uri)
    names = [name for name, row in TYPES.items() if name not in ("json", "xml")]
    columns = ", ".join(f'"c_{name}" pg_catalog."{name}"' for name in names)
    hostile.run(
        f"CREATE TABLE w (id int PRIMARY KEY, {columns}, c_array int[], c_range int4range, c_domain small,"
        " c_vector int2vector, c_row pg_catalog.pg_am)"
    )
    hostile.run("INSERT INTO w (id) VALUES (1)")
    with connect(node, application="test", read_only=False) as connection:
        table = catalog.read_table(connection, "public", "w")
        assert table is not None
        statements: list[tuple[str, sql.Composed]] = []
        for column in table.columns[1:]:
            part = KeySpec(column_spec(column), key_order([column]))
            spec = TableSpec("public", "w", (part,), (part.column,), seed=1)
            literal = "{1}" if part.column.type.endswith('_int4"') else "2024-02-29"
            literal = TYPES[column.base_name].sample if column.base_name in TYPES else literal
            literal = "[1,2)" if column.base_name == "int4range" else literal
            literal = "(1,b,1,i)" if column.base_name == "pg_am" else literal
            literal = "1" if column.base_name == "int2vector" else literal
            block = where(spec, *in_block(spec, Block((literal,), None)))
            selected = [key_texts(spec), value_of(part.column, spec), scalar_value(column)]
            select = sql.SQL("SELECT {} FROM {} t{}")
            statements += [(column.name, select.format(expression, source(spec), block)) for expression in selected]
            statements.append((column.name, digest_query(spec, sql.SQL("1"), [])))
            statements.append((column.name, select.format(order_by(spec), source(spec), sql.SQL(""))))
            listed = sql.SQL(" WHERE ") + in_key_list(spec, key_list(spec, [literal]))
            statements.append((column.name, select.format(sql.SQL("1"), source(spec), listed)))
        for _, statement in statements:
            connection.execute(statement)
        refused = 0
        for kind in ("comp", "mood", "mood[]", "span"):
            changes = ", ".join(f'DROP "{column.name}", ADD "{column.name}" {kind}' for column in table.columns[1:])
            value = {"comp": "(1,b)", "mood": "sad", "mood[]": "{sad}", "span": "[1,2)"}[kind]
            sets = ", ".join(f""""{column.name}" = '{value}'""" for column in table.columns[1:])
            hostile.run(f"ALTER TABLE w {changes}; UPDATE w SET {sets}", database)
            for name, statement in statements:
                context = ""
                try:
                    connection.execute(statement)
                except psycopg.Error as error:
                    refused += 1
                    context = error.diag.context or ""
                assert "seize" not in context, (name, statement.as_string(None))
                assert not hostile.is_superuser(), (name, statement.as_string(None))
        assert refused > 300


def test_a_trigger_of_a_tube_calls_no_cast(hostile: Hostile) -> None:
    tubes = TubeDatabase(hostile.databases[0])
    try:
        tubes.install()
        tubes.tube.ensure()
        hostile.run("CREATE TABLE e (m mood PRIMARY KEY, x int); CREATE TABLE i (id int PRIMARY KEY)", tubes.database)
        hostile.run("CREATE TABLE k (a mood[] PRIMARY KEY); CREATE TABLE p (d calm, n small, PRIMARY KEY (d, n))")
        for table in ("e", "i", "k", "p", "t"):
            tubes.tube.attach(f"public.{table}", shard=0)
        hostile.run(
            "INSERT INTO e VALUES ('sad', 1); UPDATE e SET m = 'ok'; INSERT INTO k VALUES ('{sad,ok}');"
            "INSERT INTO p VALUES ('ok', 7); INSERT INTO i VALUES (5)",
            tubes.database,
        )
        keys = {key for pod in tubes.pods() for key in (*pod.ids, *(pod.keys or ()))}
        assert keys == {5, "sad", "ok", "{sad,ok}", '["ok", "7"]'}
        # The owner changes the type of the key after the trigger was created.
        hostile.run(
            "ALTER TABLE i DROP id CASCADE, ADD id mood; INSERT INTO i VALUES ('sad');"
            "ALTER TABLE i DROP id CASCADE, ADD id comp; INSERT INTO i VALUES ('(1,b)')",
            tubes.database,
        )
        assert not hostile.is_superuser()
        tubes.take()
        tubes.tube.backfill("public.t")
        assert len(tubes.keys()) == 30
        assert not hostile.is_superuser()
        # The same for columns of a predicate and of a routing expression.
        hostile.run("CREATE TABLE q (id int PRIMARY KEY, amount numeric, part int)", tubes.database)
        tubes.tube.attach("public.q", routing="r.part", predicate="r.amount > 5")
        hostile.run("INSERT INTO q VALUES (1, 7, 0), (2, 1, 0)", tubes.database)
        assert [pod.ids for pod in tubes.pods() if pod.ids] == [(1,)]
        for column in ("amount", "part"):
            hostile.run(f"ALTER TABLE q DROP {column}, ADD {column} mood DEFAULT 'sad'", tubes.database)
            hostile.run("DELETE FROM q; INSERT INTO q (id) VALUES (3)", tubes.database)
            assert not hostile.is_superuser()
        # A type that has no casts yet.
        hostile.run("CREATE TYPE later AS ENUM ('x'); CREATE TABLE z (id int PRIMARY KEY, m later)", tubes.database)
        with pytest.raises(QueryError, match=r"the owner of its type public\.later could run code with the rights of"):
            tubes.tube.attach("public.z", shard=0, predicate="r.m IS NOT NULL")
        assert not hostile.is_superuser()
    finally:
        tubes.close()


def test_a_sync_calls_no_cast(hostile: Hostile) -> None:
    n1, n2 = hostile.databases
    hostile.run("DELETE FROM t", n2)
    hostile.run("CREATE TABLE parent (n small PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY REFERENCES parent)")
    pair = make_pair(n1, n2)
    pair.start()
    pair.run(once=True)
    hostile.run("UPDATE t SET x = 'y' WHERE id < 5; DELETE FROM t WHERE id = 9", n1)
    hostile.run("INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1)", n1)
    pair.run(once=True)
    query = 'SELECT ROW(t.*)::text COLLATE "C" FROM public.t ORDER BY 1'
    assert n1.execute(query) == n2.execute(query)
    assert n2.execute("SELECT count(*) FROM public.child") == [(1,)]
    assert not hostile.is_superuser()
    pair.drop()


# What a role with CREATE on the database makes before trueup is used there: schema, kind of trap.
TRAPS = {
    "schema": "CREATE SCHEMA {schema}",
    "view": "CREATE SCHEMA {schema}; CREATE VIEW {schema}.{table} AS SELECT public.seize()::text AS sync",
    "table": "CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} (sync text);"
    "CREATE TRIGGER seize BEFORE INSERT ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION public.seize_row()",
    "function": "CREATE SCHEMA {schema}; CREATE FUNCTION {schema}.{function}(text) RETURNS text LANGUAGE sql"
    " AS 'SELECT public.seize()'",
    "operator": "CREATE SCHEMA {schema};"
    " CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
}
SEIZE = """
CREATE FUNCTION public.seize() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
    IF current_user <> '{role}' THEN ALTER ROLE {role} SUPERUSER; END IF; RETURN ''; END $$;
CREATE FUNCTION public.seize_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM public.seize(); RETURN NEW; END $$;
"""


@pytest.fixture
def squatter(databases: Databases) -> Iterator[Hostile]:
    with hostile_role(databases(2)) as role:
        role.run(SEIZE.replace("{role}", role.role))
        for database in role.databases:
            database.execute("CREATE TABLE items (id int PRIMARY KEY)")
        yield role


def test_schemas_that_another_role_made_are_refused_by_every_verb(squatter: Hostile) -> None:
    n1, n2 = squatter.databases
    pair, nodes = make_pair(n1, n2), {"n1": n1.uri, "n2": n2.uri}
    tube, validation = TubeDatabase(n1), trueup.Validation("v", nodes=nodes)
    switchover = trueup.Switchover("n1", "n2", nodes=nodes)
    verbs: dict[str, tuple[str, str, list[Callable[[], object]]]] = {
        "tube": ("installation", "tube_list", [tube.install, tube.tubes, lambda: tube.uninstall(force=True)]),
        "trueup_log": ("installation", "tube_list", [pair.start]),
        "trueup": (
            "syncs",
            "sync_check_epoch",
            [
                pair.start,
                pair.status,
                lambda: validation.create(source="n1", target="n2", tables=("public.*",)),
                validation.status,
                lambda: switchover.status(),
            ],
        ),
    }
    for trap, statements in TRAPS.items():
        for schema, (table, function, calls) in verbs.items():
            squatter.run(statements.format(schema=schema, table=table, function=function))
            for call in calls:
                with pytest.raises(CheckFailed, match=f"the schema {schema} is not safe to use") as caught:
                    call()
                assert squatter.role in str(caught.value), trap
                assert not squatter.is_superuser(), (trap, schema)
            tube.close()
            squatter.run(f"DROP SCHEMA {schema} CASCADE")


def test_a_schema_of_trueup_is_refused_while_other_roles_can_create_objects_in_it(squatter: Hostile) -> None:
    database = squatter.databases[0]
    tube = TubeDatabase(database)
    tube.install()
    tube.close()
    for grant, problem in (
        (f"GRANT CREATE ON SCHEMA tube TO {squatter.role}", f"the role {squatter.role} may create objects in it"),
        ("GRANT CREATE ON SCHEMA tube TO PUBLIC", "every role may create objects in it"),
    ):
        database.execute(grant)
        with pytest.raises(CheckFailed, match=problem):
            TubeDatabase(database).tubes()
        database.execute(grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
    # An object that the role made while it could, with arguments that fit better.
    database.execute(f"GRANT ALL ON SCHEMA tube TO {squatter.role}")
    squatter.run(
        "CREATE FUNCTION tube.tube_list(x int DEFAULT 1) RETURNS text LANGUAGE sql AS 'SELECT public.seize()'", database
    )
    database.execute(f"REVOKE ALL ON SCHEMA tube FROM {squatter.role}")
    with pytest.raises(CheckFailed, match=f"the function tube_list belongs to the role {squatter.role}"):
        TubeDatabase(database).install()
    assert not squatter.is_superuser()


# Objects that a role made in the schema while it could, and the problem that names each.
LEFT_OBJECTS = {
    # Without a row type, which would be a type of the role.
    "relation": ("CREATE SEQUENCE tube.left_one", "the relation left_one belongs"),
    "function": (
        "CREATE FUNCTION tube.left_one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "the function left_one belongs",
    ),
    "operator": (
        "CREATE OPERATOR tube.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
        "the operator = belongs",
    ),
    "type": ("CREATE DOMAIN tube.left_one AS int", "the type left_one belongs"),
    "trigger": (
        "CREATE TRIGGER left_one BEFORE INSERT ON tube.of_superuser FOR EACH ROW EXECUTE FUNCTION public.seize_row()",
        "the function of the trigger left_one of of_superuser belongs",
    ),
}


def test_each_kind_of_object_of_another_role_makes_a_schema_unsafe(squatter: Hostile) -> None:
    database = squatter.databases[0]
    TubeDatabase(database).install()
    database.execute("CREATE TABLE tube.of_superuser (id int)")
    for kind, (statement, problem) in LEFT_OBJECTS.items():
        database.execute(f"GRANT ALL ON SCHEMA tube TO {squatter.role}")
        database.execute(f"GRANT TRIGGER ON tube.of_superuser TO {squatter.role}")
        squatter.run(statement, database)
        database.execute(f"REVOKE ALL ON SCHEMA tube FROM {squatter.role}")
        with pytest.raises(CheckFailed, match=f"{problem} to the role {squatter.role}"):
            TubeDatabase(database).tubes()
        database.execute(_drop_of(kind))
        assert TubeDatabase(database).tubes() == (), kind


def _drop_of(kind: str) -> str:
    special = {
        "relation": "DROP SEQUENCE tube.left_one",
        "operator": "DROP OPERATOR tube.= (text, text)",
        "trigger": "DROP TRIGGER left_one ON tube.of_superuser",
    }
    return special.get(kind, f"DROP {kind} tube.left_one")


# Code of a table's owner that runs when a row is written, also while ordinary triggers are silenced.
WRITE_TRAPS = {
    "trigger": "CREATE TRIGGER seize BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION seize_row();"
    "ALTER TABLE w ENABLE ALWAYS TRIGGER seize",
    "constraint": "ALTER TABLE w ADD CONSTRAINT seize CHECK (seize() IS NOT NULL)",
    "generated": "ALTER TABLE w ADD g text GENERATED ALWAYS AS (seize()) STORED",
    "index": "CREATE INDEX seize ON w ((seize() || v))",
    "domain": "ALTER DOMAIN d ADD CONSTRAINT seize CHECK (seize() IS NOT NULL)",
    "domain in a constraint": "CREATE DOMAIN trap AS text CHECK (seize() IS NOT NULL);"
    "ALTER TABLE w ADD CHECK (v::trap IS NOT NULL)",
    "default of a domain": "ALTER DOMAIN d SET DEFAULT seize()",
    # The planner and GiST indexes call the difference function of a range.
    "range": "CREATE FUNCTION difference(int, int) RETURNS float8 IMMUTABLE LANGUAGE sql AS 'SELECT seize()::float8';"
    "CREATE TYPE trapped AS RANGE (subtype = int, subtype_diff = public.difference); ALTER TABLE w ADD r trapped;"
    "CREATE INDEX ON w USING gist (r)",
    # Functions of PostgreSQL, as query_to_xml, which runs any SQL.
    "built-in": "ALTER TABLE w ADD CHECK (set_config('a.b', v, false) IS NOT NULL)",
    "condition": "CREATE TRIGGER c BEFORE UPDATE ON w FOR EACH ROW WHEN (set_config('a.b', NEW.v, false) IS NOT NULL)"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger(); ALTER TABLE w ENABLE ALWAYS TRIGGER c",
    "rule": "CREATE RULE seize AS ON INSERT TO w DO ALSO SELECT 1; ALTER TABLE w ENABLE ALWAYS RULE seize",
    "multirange": "CREATE DOMAIN bound AS int CHECK (seize() IS NOT NULL);"
    "CREATE TYPE bounded AS RANGE (subtype = bound); ALTER TABLE w ADD b bounded_multirange",
    "parent": "CREATE TABLE other (v text PRIMARY KEY); CREATE INDEX ON other ((seize() || v));"
    "ALTER TABLE w ADD o text REFERENCES other",
}
# Traps whose function does not belong to the role.
CHOSEN = {
    "built-in": r"calls set_config\(.*\), which may have any effect and would run with superuser rights",
    "condition": r"the trigger c of public\.w calls set_config\(.*\), which may have any effect",
    "rule": r"the rule seize of public\.w would run with superuser rights",
}
# A sync disables these while it writes.
DISABLED = ("trigger", "condition", "rule")


def test_a_superuser_uses_no_table_whose_owner_would_run_code(squatter: Hostile, compare: Compare) -> None:
    """The planner evaluates functions of constraints and indexes when a table is read; a write runs the others too."""
    n1, n2 = squatter.databases
    nodes = {"n1": n1.uri, "n2": n2.uri}
    squatter.run("ALTER FUNCTION seize() IMMUTABLE; CREATE DOMAIN d AS text")
    for trap, statements in WRITE_TRAPS.items():
        owned = CHOSEN.get(trap, f"of the role {squatter.role}, which would run with superuser rights")
        squatter.run("DROP DOMAIN d CASCADE; CREATE DOMAIN d AS text")
        squatter.run("DROP TABLE IF EXISTS w; CREATE TABLE w (id int PRIMARY KEY, v text, x d)")
        squatter.run(statements)
        squatter.run("INSERT INTO w (id, v) VALUES (1, 'a')", n1)
        if trap in ("constraint", "index"):
            with pytest.raises(CheckFailed, match=owned):
                compare([n1, n2], "public.w")
        else:
            report = compare([n1, n2], "public.w").report
            with pytest.raises(CheckFailed, match=owned):
                trueup.repair(report, source_of_truth="n1", execute=True, nodes=nodes, engine="local")
        pair = make_pair(n1, n2)
        if trap in DISABLED:
            pair.start()
            pair.check_equal(["w"])
            pair.drop()
        else:
            with pytest.raises(CheckFailed, match=owned):
                pair.start()
        assert not squatter.is_superuser(), trap
    # After SET ROLE, a function can go back to the role that logged in.
    with psycopg.connect(n2.uri, options=f"-c role={squatter.role}") as connection:
        assert foreign_code(connection, "public", "w", writes=True)
    # A role without superuser rights is not refused.
    uris = [make_conninfo(database.uri, user=squatter.role, password=PASSWORD) for database in (n1, n2)]
    plain = dict(zip(nodes, uris, strict=True))
    assert trueup.diff("public.w", nodes=plain, engine="local", recheck=0).verdict == "DIFFER"


# Statements of the source that `sync ddl --apply` would run on the target: the server evaluates an expression while it
# plans the statement, reads a literal, compares values, or builds an index.
DDL_TRAPS = {
    "t1": "CREATE TABLE t1 (id int) PARTITION BY RANGE ((id + length(seize())))",
    "t2": "CREATE INDEX ON t2 ((seize() || id))",
    "t3": "CREATE INDEX ON t3 (id) WHERE seize() = ''",
    "t4": "ALTER TABLE t4 ADD COLUMN x trap",
    "t5": "ALTER TABLE t5 ADD COLUMN x trap[] DEFAULT '{a}'",
    "t6": "ALTER TABLE t6 ADD EXCLUDE USING btree ((seize() || id) WITH =)",
    "t7": "ALTER TABLE t7 ADD CHECK (cardinality('{a}'::trap[]) > 0)",
    "t8": "CREATE TABLE t8 (id int, x text) PARTITION BY LIST (x traps);"
    "CREATE TABLE t8_1 PARTITION OF t8 FOR VALUES IN ('a', 'b')",
    "t9": "ALTER TABLE t9 ADD COLUMN x text DEFAULT seize()",
    "t10": "ALTER TABLE t10 ADD CHECK (set_config('a.b', id::text, false) IS NOT NULL)",
}


def test_sync_ddl_runs_no_code_of_another_role(squatter: Hostile) -> None:
    n1, n2 = squatter.databases
    squatter.run("ALTER FUNCTION seize() IMMUTABLE; CREATE DOMAIN trap AS text CHECK (seize() = '')")
    body = "'SELECT length(seize()) + bttextcmp($1, $2)'"
    squatter.run(f"CREATE FUNCTION compare(text, text) RETURNS int IMMUTABLE LANGUAGE sql AS {body}")
    # Only a superuser can create an operator class, also over a function of another role.
    traps = "CREATE OPERATOR CLASS public.traps FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,"
    for database in squatter.databases:
        database.execute(f"{traps} OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 public.compare(text, text)")
    existing = [name for name, statement in DDL_TRAPS.items() if not statement.startswith("CREATE TABLE")]
    squatter.run("".join(f"CREATE TABLE {name} (id int PRIMARY KEY);" for name in existing))
    pair = make_pair(n1, n2)
    pair.start()
    for statement in DDL_TRAPS.values():
        squatter.run(statement, n1)
    done = {each.change.table: each.problem for each in apply_ddl.apply(pair.request, drops=True, timeout=30)[0]}
    assert not squatter.is_superuser(), done
    assert set(done) == {f"public.{name}" for name in DDL_TRAPS}
    for name, problem in done.items():
        assert "would run with superuser rights" in problem, name
    # A function of a superuser, which the role only uses.
    squatter.run("DROP INDEX t3_id_idx; CREATE TABLE harmless (id int PRIMARY KEY, at timestamptz DEFAULT now())", n1)
    for database in squatter.databases:
        database.execute("CREATE FUNCTION ours(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'")
    squatter.run("CREATE INDEX fine ON t3 (ours(id)) WHERE id <> 7; CREATE INDEX ON harmless (at)", n1)
    done = {each.change.table: each.problem for each in apply_ddl.apply(pair.request, drops=True, timeout=30)[0]}
    assert (done["public.t3"], done["public.harmless"]) == ("", "")
    # An event trigger with a function of the role.
    n2.execute("CREATE FUNCTION event() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.seize(); END'")
    n2.execute(f"ALTER FUNCTION event() OWNER TO {squatter.role}")
    n2.execute("CREATE EVENT TRIGGER seize ON ddl_command_end EXECUTE FUNCTION event()")
    squatter.run("CREATE INDEX later ON t3 (id)", n1)
    done = {each.change.table: each.problem for each in apply_ddl.apply(pair.request, drops=True, timeout=30)[0]}
    n2.execute("DROP EVENT TRIGGER seize")
    assert "the event trigger seize" in done["public.t3"]
    assert not squatter.is_superuser()
    pair.drop()


# What the owner of a target can do between a check of its table and a write. Triggers and rules are disabled, and the
# rows arrive; a table with another trap is set aside.
LATE_TRAPS = {name: WRITE_TRAPS[name] for name in ("trigger", "rule", "constraint", "domain")} | {
    "enabled": "ALTER TABLE w ENABLE ALWAYS TRIGGER late",
    "of a partition": "ALTER TABLE p1 ENABLE REPLICA TRIGGER late",
    "looks like a tube": "CREATE SCHEMA IF NOT EXISTS odd; COMMENT ON SCHEMA odd IS 'Tubes of trueup.';"
    "CREATE FUNCTION odd.seize() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN public.seize_row(); END';"
    "CREATE TRIGGER seize BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION odd.seize();"
    "ALTER TABLE w ENABLE ALWAYS TRIGGER seize",
}
REMOVE = (
    "DROP TRIGGER IF EXISTS seize ON w; DROP RULE IF EXISTS seize ON w; ALTER TABLE w DROP CONSTRAINT IF EXISTS seize;"
    "DROP INDEX IF EXISTS seize; ALTER DOMAIN d DROP CONSTRAINT IF EXISTS seize; DROP TRIGGER IF EXISTS c ON w;"
    "ALTER TABLE w DISABLE TRIGGER late; ALTER TABLE p1 DISABLE TRIGGER late"
)


# What waits for the end of a transaction that writes the table.
LOCKED = {
    "ALTER SCHEMA theirs RENAME TO others": "theirs.t",
    "ALTER TABLE q ATTACH PARTITION q2 FOR VALUES IN (5)": "q",
    "ALTER TABLE w ADD CHECK (seize() IS NULL) NOT VALID": "w",
}


def test_an_owner_who_adds_code_between_a_check_and_a_write(squatter: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy, small rounds and large ones lock a table, then check it, then write."""
    n1, n2 = squatter.databases
    squatter.run(
        "ALTER FUNCTION seize() IMMUTABLE; CREATE DOMAIN d AS text; CREATE TABLE w (id int PRIMARY KEY, v text, x d);"
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p DEFAULT;"
        "CREATE TRIGGER late BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION seize_row();"
        "CREATE TRIGGER late BEFORE INSERT ON p1 FOR EACH ROW EXECUTE FUNCTION seize_row();"
        "CREATE SCHEMA theirs; CREATE TABLE theirs.t (id int PRIMARY KEY); CREATE TABLE q2 (id int PRIMARY KEY);"
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1)"
    )
    rows = "INSERT INTO w SELECT coalesce(max(id), 0) + 1, 'a', 'b' FROM w;"
    rows += "INSERT INTO p SELECT coalesce(max(id), 0) + 1 FROM p"
    squatter.run(f"{REMOVE}; {rows}", n1)
    pair = make_pair(n1, n2)
    pending: list[str] = []

    def before(module: ModuleType, name: str) -> None:
        """Add the code just before this function is called."""
        function = getattr(module, name)

        def call(*arguments: object, **named: object) -> object:
            while pending:
                squatter.run(pending.pop(), n2)
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, call)

    before(copy_parts, "borrow_writer")
    before(sync_round, "apply_rows")
    before(sync_large, "borrow_writer")
    pending.append(LATE_TRAPS["enabled"])
    with pytest.raises(CheckFailed, match=r"the trigger late of public\.w was created or enabled on the target"):
        pair.start()
    pair.start()
    for trap in LATE_TRAPS:
        monkeypatch.setattr(sync_round, "SMALL", 0 if trap == "enabled" else 60_000)
        squatter.run(rows, n1)
        pending.append(LATE_TRAPS[trap])
        totals = pair.run(once=True)
        assert not pending
        assert not squatter.is_superuser(), trap
        is_aside = trap not in ("enabled", "of a partition", *DISABLED)
        assert {problem.where for problem in totals.aside} == ({"public.w"} if is_aside else set()), trap
        squatter.run(REMOVE, n2)
    squatter.run(REMOVE, n2)
    # Between the check and the end of the transaction.
    with connect(pair.request.target, application="test", read_only=False) as writer:
        for statement, written in LOCKED.items():
            names = [f"public.{written}"] if "." not in written else [written]
            shape = members.shape(writer, "main", names)
            values = {"sync": "main", "names": names, "shape": shape, "written": names}
            with writer.transaction():
                writer.execute(state.statement("check_tables"), values)
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    squatter.run(f"SET lock_timeout = '100ms'; {statement}", n2)
    # At any time.
    toggle = ("ALTER TABLE w ENABLE ALWAYS TRIGGER late", "ALTER TABLE w DISABLE TRIGGER late")

    def enable_and_disable() -> None:
        for statement in toggle * 20:
            squatter.run(statement, n2)

    enable = threading.Thread(target=enable_and_disable)
    enable.start()
    while enable.is_alive():
        squatter.run(rows, n1)
        pair.run(once=True)
    enable.join()
    assert not pair.run(once=True).aside
    pair.check_equal(["w", "p"])
    pair.drop()
    assert not squatter.is_superuser()


def test_an_owner_who_adds_code_before_a_sink_or_a_repair_writes(
    squatter: Hostile, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    n1, n2 = squatter.databases
    squatter.run(
        "CREATE TABLE w (id int PRIMARY KEY); CREATE TABLE kid (id int REFERENCES w ON DELETE CASCADE);"
        "CREATE TRIGGER late AFTER DELETE ON kid FOR EACH ROW EXECUTE FUNCTION seize_row();"
        "ALTER TABLE kid DISABLE TRIGGER late"
    )
    source = SourceTable("public.w", (("id", "integer"),), ("id",), routed=False)
    mark = Mark(1, datetime.now(timezone.utc))
    sink = open_sink(n2.uri)
    sink.setup([source])
    for key in "12":
        sink.write([Document("public.w", 0, (key,), "U", {"id": key})], mark=mark)
    squatter.run("INSERT INTO kid VALUES (1); ALTER TABLE kid ENABLE TRIGGER late", n2)
    with pytest.raises(CheckFailed, match=r"the trigger late of public\.kid calls the function"):
        sink.write([Document("public.w", 0, ("1",), "D", None)], mark=mark)
    squatter.run("ALTER TABLE kid DISABLE TRIGGER late; INSERT INTO kid VALUES (1)", n2)
    sink.write([Document("public.w", 0, ("1",), "D", None)], mark=mark)
    assert n2.execute("SELECT id FROM w") == [(2,)]
    sink.close()
    squatter.run("ALTER TABLE w DROP trueup_shard, DROP trueup_seq, DROP trueup_at", n2)
    report = compare([n1, n2], "public.w").report

    def add_code(connection: Connection) -> None:
        require_silent_triggers(connection)
        squatter.run(
            "CREATE TRIGGER seize BEFORE DELETE ON w FOR EACH ROW EXECUTE FUNCTION seize_row();"
            "ALTER TABLE w ENABLE ALWAYS TRIGGER seize",
            n2,
        )

    monkeypatch.setattr(write_node, "require_silent_triggers", add_code)
    nodes = {"n1": n1.uri, "n2": n2.uri}
    failed = trueup.repair(report, source_of_truth="n1", execute=True, nodes=nodes, engine="local").failed
    assert "the trigger seize of public.w calls the function" in str(failed)
    assert n2.execute("SELECT id FROM w") == [(2,)]
    assert not squatter.is_superuser()


def test_the_planner_runs_no_code_of_tables_of_tubes_and_of_tables_in_filters(squatter: Hostile) -> None:
    n1, n2 = squatter.databases
    squatter.run(
        "ALTER FUNCTION seize() IMMUTABLE; CREATE TABLE w (id int PRIMARY KEY, v text); INSERT INTO w VALUES (1)"
    )
    squatter.run("CREATE TABLE other (LIKE w INCLUDING ALL); CREATE TABLE clean (LIKE w)")
    trap = "CREATE INDEX ON {} ((seize() || v))"
    squatter.run(trap.format("other"))
    owned = f"of the role {squatter.role}, which would run with superuser rights"
    tubes = TubeDatabase(n1)
    tubes.install()
    tubes.tube.ensure()
    tubes.tube.attach("public.w", shard=0)
    squatter.run(trap.format("w"), n1)
    calls: list[Callable[[], object]] = [
        lambda: tubes.tube.attach("public.other", shard=0),
        lambda: tubes.tube.backfill("public.w"),
        lambda: tubes.tube.touch("public.w", ["1"]),
        lambda: tubes.tube.touch_query("public.w", "SELECT o.id FROM public.other o"),
        lambda: trueup.diff(
            "public.clean",
            key=("id",),
            nodes={"n1": n1.uri, "n2": n2.uri},
            engine="local",
            filter="id IN (SELECT o.id FROM public.other o WHERE o.v = 'a')",
        ),
    ]
    for call in calls:
        with pytest.raises(CheckFailed, match=owned):
            call()
        assert not squatter.is_superuser()
    tubes.tube.detach("public.w")
    tubes.close()


def test_a_superuser_runs_no_trigger_of_a_table_that_a_foreign_key_writes_to(squatter: Hostile) -> None:
    """Before PostgreSQL 18, an AFTER trigger of the other table runs with the rights of the session."""
    squatter.run(
        "CREATE TABLE w (id int PRIMARY KEY, n bigserial, u uuid DEFAULT gen_random_uuid() CHECK (u <> v), v uuid)"
    )
    squatter.run("CREATE TABLE kid (id int REFERENCES w ON DELETE CASCADE)")
    with psycopg.connect(squatter.databases[0].uri) as connection:
        assert foreign_code(connection, "public", "w", writes=True) == []
        squatter.run("CREATE TRIGGER seize AFTER DELETE ON kid FOR EACH ROW EXECUTE FUNCTION seize_row()")
        assert foreign_code(connection, "public", "w", writes=True, silenced=True) == []
        (reason,) = foreign_code(connection, "public", "w", writes=True)
    assert "the trigger seize of kid calls the function seize_row() of the role" in reason


def test_functions_of_packages_in_triggers_are_judged_by_their_effect(squatter: Hostile, compare: Compare) -> None:
    """lo_manage deletes the large object that a row names, with the rights of who writes the row."""
    n1, n2 = squatter.databases
    for database in (n1, n2):
        database.execute("CREATE EXTENSION lo; CREATE EXTENSION refint; CREATE EXTENSION moddatetime")
    squatter.run("CREATE TABLE w (id int PRIMARY KEY, blob oid, at timestamp)")
    (victim,) = n2.execute("SELECT lo_create(0)")[0]
    n2.execute(f"INSERT INTO w VALUES (1, {victim}, '2026-01-01')")
    report = compare([n1, n2], "public.w").report
    fires = "CREATE TRIGGER fires BEFORE UPDATE OR DELETE ON w FOR EACH ROW EXECUTE FUNCTION {};"
    fires += "ALTER TABLE w ENABLE ALWAYS TRIGGER fires"
    nodes = {"n1": n1.uri, "n2": n2.uri}
    for function in ("lo_manage(blob)", "check_foreign_key(1, 'cascade', 'id', 'kid', 'id')"):
        squatter.run(fires.format(function), n2)
        name = function.partition("(")[0]
        with pytest.raises(
            CheckFailed, match=rf"the trigger fires of public\.w calls .*{name}\(\), which may have any"
        ):
            trueup.repair(report, source_of_truth="n1", execute=True, nodes=nodes, engine="local")
        squatter.run("DROP TRIGGER fires ON w", n2)
    # A role that may create triggers on the table of a superuser.
    n2.execute(
        "CREATE TABLE lent (id int, blob oid); CREATE TRIGGER t BEFORE DELETE ON lent EXECUTE FUNCTION lo_manage(blob)"
    )
    with psycopg.connect(n2.uri) as connection:
        assert foreign_code(connection, "public", "lent", writes=True) == []
        n2.execute("GRANT TRIGGER ON lent TO PUBLIC")
        assert "lo_manage" in foreign_code(connection, "public", "lent", writes=True)[0]
    squatter.run(fires.replace(" OR DELETE", "").format("moddatetime(at)"), n2)
    squatter.run(
        "CREATE TRIGGER same BEFORE UPDATE ON w FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", n2
    )
    done = trueup.repair(report, source_of_truth="n1", execute=True, nodes=nodes, engine="local")
    assert done.written["n2"] == {"insert": 0, "update": 0, "delete": 1}
    assert n2.execute(f"SELECT count(*) FROM pg_largeobject_metadata WHERE oid = {victim}") == [(1,)]


@pytest.mark.parametrize(
    ("target", "expression"),
    [
        ("json", "to_jsonb(m)"),
        ("json", "json_build_object('m', ARRAY[m])"),
        ("json", "row_to_json(w)"),
        ("text", "quote_literal(m)"),
        ("text", "quote_nullable(m)"),
    ],
)
def test_casts_that_a_function_looks_up_are_found(
    squatter: Hostile, compare: Compare, target: str, expression: str
) -> None:
    """They are in no list of dependencies: the function looks for them when it gets a value of the type."""
    n1, n2 = squatter.databases
    squatter.run(
        f"""CREATE TYPE mood AS ENUM ('sad');
        CREATE FUNCTION of_mood(mood) RETURNS {target} LANGUAGE plpgsql AS $$ BEGIN RETURN public.seize(); END $$;
        CREATE CAST (mood AS {target}) WITH FUNCTION of_mood(mood);
        CREATE TABLE w (id int PRIMARY KEY, m mood DEFAULT 'sad', n int DEFAULT abs(-1) CHECK (n > 0))"""
    )
    n1.execute("INSERT INTO w VALUES (1)")
    report = compare([n1, n2], "public.w").report
    with psycopg.connect(n2.uri) as connection:
        # Nothing gets the value.
        assert foreign_code(connection, "public", "w", writes=True) == []
    squatter.run(f"ALTER TABLE w ADD CONSTRAINT looks CHECK (({expression}) IS NOT NULL)", n2)
    with pytest.raises(CheckFailed, match=r"the constraint looks of public\.w calls the function public\.of_mood"):
        trueup.repair(report, source_of_truth="n1", execute=True, nodes={"n1": n1.uri, "n2": n2.uri}, engine="local")
    assert not squatter.is_superuser()


def test_the_checks_of_many_tables_take_as_many_queries_as_those_of_few(squatter: Hostile) -> None:
    """And each finding belongs to its table, also if the code is in a table that a foreign key writes to."""
    n1, n2 = squatter.databases
    squatter.run(
        """CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE mood AS ENUM ('a');
        DO $$ BEGIN FOR i IN 0..299 LOOP
            EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, n positive DEFAULT 1, m mood, at timestamptz'
                           ' DEFAULT now(), CHECK (n < 9))', i);
        END LOOP; END $$"""
    )
    pair = make_pair(n1, n2)

    def trips(pattern: str, count: int) -> tuple[int, int]:
        with wire(pair) as counted:
            plan = sync.plan(replace(counted.request, scope=Scope("main", (pattern,))))
            assert (len(plan.tables), plan.problems) == (count, ())
            return counted.source_trips(), counted.target_trips()

    assert trips("public.t?", 10) == trips("public.t*", 300)
    squatter.run("ALTER FUNCTION seize() IMMUTABLE; CREATE INDEX ON t7 ((seize() || n))", n2)
    squatter.run("ALTER TABLE t11 ADD FOREIGN KEY (id) REFERENCES t200 ON DELETE CASCADE", n2)
    squatter.run("ALTER TABLE t11 ALTER n SET DEFAULT length(set_config('a', 'b', false))", n2)
    tables = [("public", f"t{number}") for number in range(300)]
    with psycopg.connect(n2.uri) as connection:
        read = foreign_code_of(connection, tables, writes=False)
        silenced = foreign_code_of(connection, tables, writes=True, silenced=True)
        written = foreign_code_of(connection, tables, writes=True)
        for name in (*read, *silenced, *written):
            assert foreign_code(connection, *name, writes=True) == written[name]
    index, default = "the index t7_expr_idx of t7 calls the function seize()", "the default or generated value of the"
    for found, expected in (
        (read, {"t7": index}),
        (silenced, {"t7": index, "t11": default}),
        (written, {"t7": index, "t11": default, "t200": default}),
    ):
        assert {table for _, table in found} == set(expected)
        for table, reason in expected.items():
            assert found["public", table][0].startswith(reason)


def test_a_view_in_place_of_a_table_is_not_read(squatter: Hostile) -> None:
    squatter.run("CREATE VIEW shown AS SELECT 1 AS id, seize() AS x")
    node = Node("n1", squatter.databases[0].uri)
    with (
        connect(node, application="test", read_only=False) as connection,
        pytest.raises(psycopg.Error, match="restricted"),
    ):
        connection.execute("SELECT * FROM public.shown")
    assert not squatter.is_superuser()


def test_who_locks_a_table_does_not_stop_work_on_others(squatter: Hostile) -> None:
    """As its owner may, also for hours: of tables that are not needed, nothing is asked that waits for their locks."""
    n1, n2 = squatter.databases
    squatter.run("CREATE SCHEMA own CREATE TABLE held (id int PRIMARY KEY)")
    squatter.run("CREATE TABLE own.kept (id int) PARTITION BY LIST (id)")
    squatter.run("CREATE TABLE own.part PARTITION OF own.kept FOR VALUES IN (1)")
    request = replace(make_pair(n1, n2).request, scope=Scope("main", ("public.*",)))
    with psycopg.connect(n1.uri) as one, psycopg.connect(n2.uri) as two:
        for connection in (one, two):
            connection.execute("LOCK TABLE own.held, own.kept IN ACCESS EXCLUSIVE MODE")
        plan = sync.plan(request)
        assert ([table.name for table in plan.tables], plan.problems) == ([("public", "items")], ())
        run = trueup.diff_many(schemas=["public"], nodes={"n1": n1.uri, "n2": n2.uri}, engine="local", recheck=0)
        assert [(table.table, table.verdict) for table in run.tables] == [("public.items", "MATCH")]
