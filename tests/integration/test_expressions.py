"""Functions in SQL expressions of the user: harmless ones are accepted, all others need to be allowed by name.

A refused expression runs nothing: functions of the other role raise the error "the code ran".
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import trueup
from support.expressions import Spied
from support.fixtures import Databases, FreshServer
from support.tube import TubeDatabase
from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.db.called import DENIED
from trueup.db.expressions import Expression, refusal
from trueup.db.node import connect
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed, TrueupError

DEBIAN = Path("/usr/lib/postgresql/15/bin")
HARMLESS = [
    "id > 5 AND name = 'x' AND day >= date '2020-01-01' AND at < now() - interval '1 day'",
    "name LIKE 'x%' AND id IN (1, 2) AND name = ANY ('{a,b}') AND name ~ 'x' AND extract(year FROM day) > 3",
    "CASE WHEN id > 1 THEN name ELSE 'x' END = coalesce(name, 'y') AND greatest(id, 3) > 2 AND nullif(id, 3) > 2",
    "(id, name) < (3, 'x') AND name IS DISTINCT FROM 'x' AND numbers[1] = 2 AND (name = 'x') IS NOT TRUE",
    "name COLLATE \"C\" < 'b' AND ARRAY[id] && numbers AND ROW(id, name) = ROW(1, 'a') AND current_date > day",
    "id::text = '4' AND name::int > 4 AND doc ->> 'a' = '1' AND doc @> '{\"a\": 1}' AND jsonb_path_exists(doc, '$.a')",
    "EXISTS (SELECT FROM public.items x WHERE x.id = items.id GROUP BY x.name HAVING count(*) > 1 ORDER BY x.name)",
    "EXTRACT('year' FROM day) > 4 AND format('%s', id) = 'x' AND 'a' IS NOT NULL AND to_jsonb(items) IS NOT NULL",
    "at AT TIME ZONE 'UTC' > timestamp '2026-01-01' -- a comment",
    "id = any(SELECT generate_series(1, 3)) AND xmlserialize(CONTENT name::xml AS text) <> '' AND name || 1 = 'x1'",
]
# An expression, and the function that its message names.
HOSTILE = {
    "public.spy(id) > 0": "public.spy(integer), which belongs to the role",
    "id OPERATOR(public.===) 4": "public.spy_equal(integer, integer)",
    "EXISTS (SELECT FROM public.watched)": "watched",
    "'5'::public.positive = 1": "public.spy",
    "'(5,1)'::public.pair IS NULL": "public.spy",
    "public.pair '(5,1)' IS NULL": "CAST('…' AS type)",
    "'{5}'::public.positive[] IS NULL": "public.spy",
    "name::public.pair IS NULL": "public.spy",
    "json_populate_record(NULL::public.pair, '{\"a\": 5}') IS NULL": "json_populate_record",
    "random() > 0.5": "random(), which is volatile",
    "nextval('public.s') > 0": "nextval(regclass), which is volatile",
    "pg_terminate_backend(0)": "pg_terminate_backend",
    "lo_export(1, '/tmp/x') = 1": "lo_export",
    "pg_read_file('x') = ''": "pg_read_file",
    "set_config('role', 'postgres', false) = ''": "set_config",
    "pg_notify('x', 'y') IS NULL": "pg_notify",
    "query_to_xml('SELECT public.spy(1)', true, true, '') IS NULL": "query_to_xml",
    "table_to_xml('public.watched', true, true, '') IS NULL": "table_to_xml",
    "ts_rewrite('a & b', 'SELECT public.spy(1)') IS NULL": "ts_rewrite",
    "domain_in('5', 'public.positive'::regtype, -1) IS NULL": "domain_in",
    "txid_current() > 0": "txid_current(), which assigns a transaction number",
    "(SELECT id FROM public.items x WHERE x.id = 1 FOR UPDATE) = 1": "ROWMARKCLAUSE",
    "EXISTS (SELECT FROM public.far)": "the foreign table public.far, which may reach another server",
    "EXISTS (SELECT FROM public.near)": "the foreign table public.far, which may reach another server",
    "true) OR (public.spy(1) > 0": "not one expression",
    "true; DELETE FROM public.items": "not one expression",
    "true) UNION SELECT (public.spy(1)": "not one expression",
}
HOSTILE_WITH_OWN_TYPES = {
    "list = '{3}'": "public.spy",
    'coalesce(own, \'(1,good,5,{5},"(5,1)","[1,2]")\') IS NULL': "public.spy",
    "to_jsonb(own) IS NULL": "public.pair_json",
    "quote_literal(pr) = ''": "public.pair_text",
    "pr::text = ''": "public.pair_text",
    "r @> 5": "public.spy_difference",
    "m = 'good' AND list = '{1}' AND EXTRACT('year' FROM now()) > 1": "cannot be checked as parameters",
}
HARMLESS_WITH_OWN_TYPES = ["m = 'good' AND p > 5 AND m::text = 'bad'", "list IS NOT NULL AND p IS NULL"]


def _check_all(spied: Spied) -> None:
    database = spied.database
    node = Node("n1", database.uri)
    connection = connect(node, application="trueup test")
    settings: dict[str, str] = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())

    def why(text: str, table: str) -> str:
        name = sql.Identifier("public", table)
        expression = Expression("filter", text, name, table=name.as_string())
        reason = refusal(connection, node, expression, ExpressionSettings()) or ""
        assert "the code ran" not in reason, text
        return reason

    try:
        for table, accepted, refused in (
            ("items", HARMLESS, HOSTILE),
            ("own", HARMLESS_WITH_OWN_TYPES, HOSTILE_WITH_OWN_TYPES),
        ):
            assert {text: why(text, table) for text in accepted} == dict.fromkeys(accepted, "")
            for text, part in refused.items():
                assert part in why(text, table), text
        # Inside of a transaction, as in a diff with a snapshot; afterwards all settings are as before.
        with connection.transaction():
            assert "--allow-functions random" in why("random() > 1", "items")
            assert connection.execute("SELECT count(*) FROM public.items").fetchone() == (20,)
        now: dict[str, str] = dict(connection.execute("SELECT name, setting FROM pg_settings").fetchall())
        assert now == settings
    finally:
        connection.close()


def test_what_is_refused_and_what_is_not(spied: Spied) -> None:
    _check_all(spied)


def test_on_a_standby(fresh_server: FreshServer) -> None:
    server = fresh_server(bin_dir=DEBIAN) if DEBIAN.is_dir() else fresh_server()
    database = server.database("postgres")
    spied = Spied(database)
    _check_all(spied)
    server.stop()
    (server.data_dir / "standby.signal").touch()
    os.chmod(server.data_dir / "standby.signal", 0o644)
    server.restart()
    assert database.execute("SELECT pg_is_in_recovery()") == [(True,)]
    _check_all(spied)


def test_the_built_in_functions_of_the_deny_list_exist(spied: Spied) -> None:
    names = "SELECT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY (%s)"
    with psycopg.connect(spied.uri) as connection:
        known = {name for (name,) in connection.execute(names, [list(DENIED)]).fetchall()}
    # Newer versions have some more.
    assert set(DENIED) - known <= {"jsonb_populate_record_valid", "pg_input_is_valid", "pg_input_error_info"}
    assert len(known) > 15


def test_names_of_any_length_in_the_tree(spied: Spied) -> None:
    """The server breaks long lines of a tree, also inside of names: then a filter may be refused, but hides nothing."""
    names = ["}" * 63, ":funcid", "a b " * 15, ":" * 63, "\\" * 63]
    node = Node("n1", spied.uri)
    connection = connect(node, application="trueup test")
    for number, name in enumerate(names):
        spied.database.execute(f'CREATE TABLE odd{number} (id int PRIMARY KEY, "{name}" int)')
        for call, accepted in (("", True), (" AND public.spy(1) = 1", False)):
            table = sql.Identifier("public", f"odd{number}")
            expression = Expression("filter", f'"{name}" = 1{call}', table, table=table.as_string())
            reason = refusal(connection, node, expression, ExpressionSettings())
            assert reason is None or not accepted or len(name) == 63
            assert accepted or reason is not None
    connection.close()


def test_a_plan_of_a_repair(spied: Spied, databases: Databases, tmp_path: Path) -> None:
    other = databases(1)[0]
    other.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, day date, doc jsonb, numbers int[], at timestamptz)"
    )
    nodes = {"n1": spied.uri, "n2": other.uri}
    report = trueup.diff("items", nodes=nodes, engine="local", recheck=0).report
    plan = tmp_path / "plan.yaml"
    rule = "tables: {{items: {{default: skip, rules: [{{when: {{where: '{where}'}}, action: {{keep: n1}}}}]}}}}"
    plan.write_text(rule.format(where="public.spy(n1.id) > 0"))
    message = r"the plan: items: rule 1: where: it calls public.spy\(integer\).*--allow-functions"
    with pytest.raises(CheckFailed, match=message):
        trueup.repair(report, plan=str(plan), nodes=nodes)
    plan.write_text(rule.format(where="n1.id > key.id - 1 AND n2.name IS NULL"))
    assert trueup.repair(report, plan=str(plan), nodes=nodes, execute=True).verdict == "REPAIRED"
    with pytest.raises(CheckFailed, match="--allow-functions random"):
        trueup.diff("items", nodes=nodes, engine="local", filter="random() > 2")


def test_functions_of_extensions(databases: Databases) -> None:
    nodes = databases(2)
    for node in nodes:
        node.execute("CREATE EXTENSION citext; CREATE TABLE c (id int PRIMARY KEY, name citext)")
    addresses = {"n1": nodes[0].uri, "n2": nodes[1].uri}
    text = "name OPERATOR(public.=) 'x'"
    with pytest.raises(CheckFailed, match="belongs to the extension citext"):
        trueup.diff("c", nodes=addresses, engine="local", filter=text)
    allowed = ExpressionSettings(allow_extensions="citext, hstore")
    config = replace(trueup.load(nodes=addresses), expressions=allowed)
    assert trueup.diff("c", config=config, engine="local", filter=text, require_rows=False).verdict == "MATCH"
    # The owner of an extension can add functions of other roles to it.
    nodes[1].execute("""CREATE ROLE adder; GRANT CREATE ON SCHEMA public TO adder; SET ROLE adder;
        CREATE FUNCTION added(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'; RESET ROLE;
        ALTER EXTENSION citext ADD FUNCTION added(int)""")
    nodes[0].execute("CREATE FUNCTION added(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'")
    try:
        with pytest.raises(CheckFailed) as caught:
            trueup.diff("c", config=config, engine="local", filter="public.added(id) = 1")
        # Catalogs differ: every node is checked.
        assert "node n1: filter" in str(caught.value)
        assert "node n2: filter" in str(caught.value)
    finally:
        nodes[1].execute("DROP EXTENSION citext CASCADE; DROP OWNED BY adder CASCADE; DROP ROLE adder")


def test_stored_expressions_of_tubes_are_checked_again(spied: Spied, tmp_path: Path) -> None:
    """Triggers run with the rights of the owner of the tube: an allowed function must not belong to another role."""
    spied.database.execute("""CREATE FUNCTION is_even(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 % 2 = 0';
                     CREATE FUNCTION shard_of(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'""")
    tubes = TubeDatabase(spied.database)
    tubes.install()
    tubes.tube.ensure()
    with pytest.raises(CheckFailed, match=r"ALTER FUNCTION public\.spy OWNER TO postgres"):
        tubes.tube.attach("items", shard=1, predicate="public.spy(id) > 0", allow_functions=["public.spy"])
    with pytest.raises(CheckFailed, match=r"routing for .*public.mood_number"):
        tubes.tube.attach("own", routing="public.mood_number(m)")
    names = ["public.is_even,public.shard_of"]
    tubes.tube.ensure(predicate="public.is_even(id)", allow_functions=names)
    tubes.tube.attach("items", routing="public.shard_of(id)", predicate="public.is_even(id)", allow_functions=names)
    spied.database.execute("UPDATE items SET name = 'x'")
    assert len(tubes.ids()) == 10
    assert [table.problem for info in tubes.tubes() for table in info.tables] == [None]
    sink = str(tmp_path / "sink.db")
    spied.database.execute(f"ALTER FUNCTION is_even(int) OWNER TO {spied.owner}")
    (info,) = tubes.tubes()
    assert "could replace it by code that runs with the rights of postgres" in (info.tables[0].problem or "")
    with pytest.raises(TrueupError, match="could replace it"):
        tubes.tube.backfill("items")
    # The table is set aside: its rows are not read.
    summary = tubes.tube.run(f"parquet:{sink}", until_empty=True, task_db=str(tmp_path / "tasks.db"))
    assert "could replace it" in summary.problems[0]
    spied.database.execute("ALTER FUNCTION is_even(int) OWNER TO postgres")
    tubes.tube.backfill("items")
    tubes.close()


def test_a_type_that_changes_later_runs_no_code(spied: Spied) -> None:
    """The owner of a table changes the type of a column to one with a cast of its own, which expressions would call."""
    run = spied.database.execute
    run(f"""CREATE TABLE ran (who text); GRANT INSERT ON ran TO PUBLIC; ALTER TABLE items OWNER TO {spied.owner};
            CREATE TABLE routed (LIKE items INCLUDING ALL); ALTER TABLE routed OWNER TO {spied.owner}""")
    tubes = TubeDatabase(spied.database)
    tubes.install()
    tubes.tube.ensure(predicate="length(name) > 0")
    tubes.tube.attach("items", shard=1, predicate="name LIKE 'item%' AND numbers IS NULL AND doc ->> 'a' IS NULL")
    tubes.tube.attach("routed", routing="length(name)")
    for text in ("to_jsonb(r) IS NOT NULL", "EXISTS (SELECT FROM public.own)"):
        with pytest.raises(CheckFailed, match="only columns of this table, by their names"):
            tubes.tube.attach("items", shard=1, predicate=text)
    run("INSERT INTO items VALUES (101, 'item 1'), (102, 'other'); INSERT INTO routed VALUES (103, 'abc')")
    assert [(pod.shard, pod.ids) for pod in tubes.take()] == [(1, (101,)), (3, (103,))]
    run(f"""SET ROLE {spied.owner};
            CREATE TYPE trap AS ENUM ('item 1');
            CREATE FUNCTION trap_text(trap) RETURNS text LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN 'item 1'; END $$;
            CREATE CAST (trap AS text) WITH FUNCTION trap_text(trap) AS IMPLICIT;
            ALTER TABLE items ALTER name TYPE trap USING 'item 1';
            ALTER TABLE routed ALTER name TYPE trap USING 'item 1'""")
    run("INSERT INTO items VALUES (104, 'item 1'); INSERT INTO routed VALUES (105, 'item 1')")
    # Both keys are recorded, without predicate and routing, and the problem is named.
    assert {104, 105} <= set(tubes.ids())
    assert all("trap_text" in (table.problem or "") for info in tubes.tubes() for table in info.tables)
    assert run("SELECT * FROM ran") == []
    tubes.close()


def test_a_filter_does_not_use_a_type_that_changes_during_a_run(spied: Spied, databases: Databases) -> None:
    """The filter is guarded: with another type than when it was checked, no statement can be parsed."""
    other = databases(1)[0]
    run = spied.database.execute
    run("CREATE TABLE t (id int PRIMARY KEY, name text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    other.execute("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9)); INSERT INTO t VALUES (1, 'a'), (2, 'x')")
    run(f"CREATE TABLE ran (who text); GRANT INSERT ON ran TO PUBLIC; ALTER TABLE t OWNER TO {spied.owner}")
    nodes = {"n1": spied.uri, "n2": other.uri}
    options: dict[str, Any] = {
        "engine": "local",
        "recheck": 0,
        "columns": ["id"],
        "filter": "length(name) > 0 AND id > '0'",
    }
    # Keys of different types are compared by value.
    assert trueup.diff("t", nodes=nodes, **options).verdict == "MATCH"
    other.execute("ALTER TABLE t ALTER id TYPE int")
    assert trueup.diff("t", nodes=nodes, **options).verdict == "MATCH"

    class Change(Silent):
        def stage(self, name: str, total: int) -> None:
            if not run("SELECT to_regtype('trap')")[0][0]:
                run(f"""SET ROLE {spied.owner}; CREATE TYPE trap AS ENUM ('a', 'b');
                    CREATE FUNCTION trap_text(trap) RETURNS text LANGUAGE plpgsql AS
                        $$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN 'a'; END $$;
                    CREATE CAST (trap AS text) WITH FUNCTION trap_text(trap) AS IMPLICIT;
                    ALTER TABLE t ALTER name TYPE trap USING 'a'""")

    result = trueup.diff("t", nodes=nodes, snapshot=False, retries=0, progress=Change(), **options)
    assert (result.verdict, "cannot be matched" in " ".join(result.incomplete)) == ("INCOMPLETE", True)
    assert run("SELECT * FROM ran") == []
