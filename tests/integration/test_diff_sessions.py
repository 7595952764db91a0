"""Settings, privileges and policies of a node do not change the result, and a run leaves nothing behind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.fixtures import Compare, Databases, OnAll, ReportOf
from trueup import CheckFailed, TrueupError
from trueup.config.model import Node
from trueup.db.reader import allow, borrow, stop_all
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until

TABLE = """
    CREATE TABLE looks (
        id int PRIMARY KEY, n int, ts timestamp, tz timestamptz, d date, t time, ttz timetz, i interval, f4 float4,
        f8 float8, b bytea, m money, num numeric, a timestamptz[], r tstzrange, p point, j jsonb, cls regclass,
        fa float8[], ia interval[], ba bytea[], x text
    );
    INSERT INTO looks
    SELECT n, n, '2024-02-03 04:05:06.789'::timestamp + n * interval '1 day', to_timestamp(n * 100000.123),
           '2024-02-03', '04:05:06', '04:05:06+03', n * interval '1 mon 2 days 03:04:05.6', n / 7.0, sqrt(n),
           int4send(n), (n * 1234.5)::numeric::money, n / 3.0, ARRAY[to_timestamp(n)], tstzrange(to_timestamp(n), NULL),
           point(n / 7.0, sqrt(n)), jsonb_build_object('at', n / 7.0), 'looks', ARRAY[n / 7.0, 0.1],
           ARRAY[interval '-1 day 02:03:04'], ARRAY[int4send(n)], E'back\\\\slash ' || n
      FROM generate_series(1, 40) n;
    CREATE TABLE lists (k text[] PRIMARY KEY, n int, v text);
    INSERT INTO lists SELECT ARRAY[NULL, 'NULL', n::text], n, nullif(n, 5) FROM generate_series(1, 40) n;
    CREATE TABLE stamps (k timestamptz, i interval, f float8, b bytea, n int, PRIMARY KEY (k, i, f, b));
    INSERT INTO stamps
    SELECT '2024-03-31 00:00+00'::timestamptz + n * interval '3 min', n * interval '1 mon 01:00', n / 7.0,
           int4send(n), n
      FROM generate_series(1, 40) n;
"""
# One node's habits, and another's, that change how values are read, printed or looked up.
HABITS = [
    {
        "TimeZone": "Europe/Berlin",
        "DateStyle": "German, DMY",
        "IntervalStyle": "sql_standard",
        "extra_float_digits": "-15",
        "bytea_output": "escape",
        "search_path": "other, public",
        "quote_all_identifiers": "on",
        "xmlbinary": "hex",
        "default_transaction_isolation": "serializable",
        "array_nulls": "off",
        "enable_indexscan": "off",
        "synchronize_seqscans": "on",
        "statement_timeout": "60000",
    },
    {
        "TimeZone": "Asia/Kathmandu",
        "DateStyle": "SQL, MDY",
        "IntervalStyle": "iso_8601",
        "extra_float_digits": "0",
        "bytea_output": "hex",
        "search_path": "",
        "client_encoding": "LATIN1",
        "default_transaction_read_only": "on",
        "default_transaction_deferrable": "on",
        "idle_in_transaction_session_timeout": "60000",
        "enable_hashagg": "off",
        "row_security": "off",
        "transform_null_equals": "on",
        "backslash_quote": "off",
        "lock_timeout": "60000",
    },
]
SMALL = {"block_size": 10, "override_block_size": True, "compare_unit_size": 3}
_numbers = itertools.count(1)

AsRole = Callable[..., list[Database]]


@pytest.fixture
def role(server: Server) -> Iterator[AsRole]:
    """`role(nodes, grants)`: the nodes with addresses of a new role; `grants` is SQL in which {role} is its name."""
    made: list[tuple[str, list[Database]]] = []

    def make(nodes: list[Database], grants: str, *, options: str = "") -> list[Database]:
        name = f"reader_{os.getpid()}_{next(_numbers)}"
        server.database("postgres").execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' {options}")
        made.append((name, nodes))
        for node in nodes:
            node.execute(grants.format(role=name))
        return [Database(node.name, server.uri(node.name, user=name, password="pw"), server) for node in nodes]

    yield make
    for name, nodes in made:
        for node in nodes:
            server.database("postgres").execute(f"ALTER DATABASE {node.name} RESET ALL")
            node.execute(f"DROP OWNED BY {name}")
        server.database("postgres").execute(f"DROP ROLE {name}")


def _set(node: Database, who: str, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        # A list of schemas is not one schema of that name.
        shown = value if name == "search_path" and value else "'" + value + "'"
        node.server.database("postgres").execute(f"ALTER {who} SET {name} = {shown}")


@pytest.mark.parametrize("digest", ["native", "portable"])
@pytest.mark.parametrize("by", ["database", "role"])
def test_settings_of_databases_and_roles_change_nothing(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare, report_of: ReportOf, by: str, digest: str
) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE SCHEMA other; " + TABLE)
    grants = "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON looks, stamps, lists TO {role}"
    readers = [role([node], grants)[0] for node in nodes]
    for node, reader, habits in zip(nodes, readers, HABITS, strict=True):
        user = psycopg.conninfo.conninfo_to_dict(reader.uri)["user"]
        _set(node, f"DATABASE {node.name}" if by == "database" else f"ROLE {user}", habits)
    shown = {str(reader.execute("SELECT i::text, b::text, tz::text FROM public.looks")) for reader in readers}
    assert len(shown) == 2, "an ordinary session should have these settings"
    for table in ("looks", "stamps", "lists"):
        result = compare(readers, table, digest=digest, **SMALL)
        assert (result.verdict, result.rows_checked) == ("MATCH", 40)
    assert compare(readers, "lists", filter="v = NULL").rows == {"n1": 0, "n2": 0}
    for node in nodes:
        node.server.database("postgres").execute(f"ALTER DATABASE {node.name} RESET ALL")
    nodes[1].execute(
        "UPDATE looks SET tz = tz + interval '1 us' WHERE n = 7; UPDATE looks SET f8 = f8 + 1e-15 WHERE n = 8;"
        "DELETE FROM stamps WHERE n = 9; DELETE FROM lists WHERE n = 9; UPDATE lists SET v = 'x' WHERE n = 10"
    )
    if by == "database":
        for node, habits in zip(nodes, HABITS, strict=True):
            _set(node, f"DATABASE {node.name}", habits)
    found = report_of(compare(readers, "looks", digest=digest, **SMALL))["diffs"]["n1/n2"]["differences"]
    assert {each["key"]["id"]: each["columns"] for each in found} == {"7": ["tz"], "8": ["f8"]}
    assert compare(readers, "stamps", digest=digest, **SMALL).pairs["n1/n2"].missing == 1
    counts = compare(readers, "lists", digest=digest, **SMALL).pairs["n1/n2"]
    assert (counts.missing, counts.extra, counts.changed) == (1, 0, 1)


def test_money_is_printed_the_same_way(databases: Databases, on_all: OnAll, compare: Compare) -> None:
    """If the machine has a locale with another currency, one node uses it."""
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE purse (m money PRIMARY KEY, n money); INSERT INTO purse VALUES ('1234.5', '-0.01')")
    for locale in ("de_DE.UTF-8", "en_US.UTF-8", "C.UTF-8", "POSIX"):
        try:
            nodes[1].execute(f"ALTER DATABASE {nodes[1].name} SET lc_monetary = '{locale}'")
        except psycopg.Error:
            continue
        assert compare(nodes, "purse").verdict == "MATCH"
        break


def test_operators_and_functions_of_the_search_path_are_not_used(
    databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    """Functions, operators and tables that come first in the search path are not used."""
    nodes = databases(2)
    on_all(
        nodes,
        "CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items SELECT i, i FROM generate_series(1, 30) i",
    )
    nodes[1].execute(
        "CREATE SCHEMA evil; CREATE TABLE evil.pg_class AS SELECT 1 AS oid;"
        "CREATE FUNCTION evil.hash_record_extended(record, int8) RETURNS int8 LANGUAGE plpgsql"
        " AS 'BEGIN RETURN 1; END';"
        "CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE sql AS $$SELECT '00000000000000000000000000000000'$$;"
        "CREATE FUNCTION evil.hashtextextended(text, int8) RETURNS int8 LANGUAGE sql AS 'SELECT 1::int8';"
        "CREATE FUNCTION evil.never(int, int) RETURNS bool LANGUAGE sql AS 'SELECT false';"
        "CREATE OPERATOR evil.>= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.never);"
        f"ALTER DATABASE {nodes[1].name} SET search_path = evil, pg_catalog, public;"
        "UPDATE items SET v = 'x' WHERE id = 17"
    )
    for digest in ("native", "portable"):
        found = report_of(compare(nodes, "items", digest=digest, **SMALL))["diffs"]["n1/n2"]["differences"]
        assert [each["key"]["id"] for each in found] == ["17"]


POLICY = "ALTER TABLE looks ENABLE ROW LEVEL SECURITY; CREATE POLICY half ON looks USING (n <= 20)"


@pytest.mark.parametrize("quick", [False, True])
def test_hidden_rows_are_refused_not_matched(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare, quick: bool
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    readers = role(nodes, "GRANT SELECT ON looks TO {role}")
    nodes[1].execute(POLICY)
    nodes[1].execute("DELETE FROM looks WHERE n = 30")
    with pytest.raises(CheckFailed, match=r"n2.*row security hides rows of public.looks"):
        compare(readers, "looks", quick=quick)
    # Roles that the policy does not apply to see all rows.
    assert compare(nodes, "looks", quick=quick).verdict == "DIFFER"
    seeing = role(nodes, "GRANT SELECT ON looks TO {role}", options="BYPASSRLS")
    assert compare(seeing, "looks", quick=quick).verdict == "DIFFER"


def test_owners_under_forced_row_security_are_refused(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    owners = role(nodes, "ALTER TABLE looks OWNER TO {role}")
    nodes[0].execute(POLICY)
    assert compare(owners, "looks").verdict == "MATCH"
    nodes[0].execute("ALTER TABLE looks FORCE ROW LEVEL SECURITY")
    with pytest.raises(CheckFailed, match=r"n1.*row security"):
        compare(owners, "looks")


KINDS = {
    "keyed": "CREATE TABLE {t} (id int PRIMARY KEY, v text, secret text)",
    "unique": "CREATE TABLE {t} (id int NOT NULL UNIQUE, v text, secret text)",
    "keyless": "CREATE TABLE {t} (id int, v text, secret text)",
    "parts": "CREATE TABLE {t} (id int PRIMARY KEY, v text, secret text) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (20); CREATE TABLE {t}_2 PARTITION OF {t} DEFAULT",
}


@pytest.mark.parametrize("digest", ["native", "portable"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_select_alone_is_enough(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare, kind: str, digest: str
) -> None:
    """CONNECT, USAGE on the schema and SELECT on the table, or on the compared columns, are enough."""
    nodes = databases(2)
    on_all(nodes, "CREATE SCHEMA app; " + KINDS[kind].format(t="app.items"))
    on_all(nodes, "INSERT INTO app.items SELECT i, 'v', 's' FROM generate_series(1, 40) i; ANALYZE")
    for node in nodes:
        node.execute(f"REVOKE ALL ON DATABASE {node.name} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC;")
    usage = "GRANT CONNECT ON DATABASE {db} TO {{role}}; GRANT USAGE ON SCHEMA app TO {{role}};"
    readers = [role([node], usage.format(db=node.name) + "GRANT SELECT ON app.items TO {role}")[0] for node in nodes]
    partial = [
        role([node], usage.format(db=node.name) + "GRANT SELECT (id, v) ON app.items TO {role}")[0] for node in nodes
    ]
    options = {"digest": digest, **SMALL}
    assert compare(readers, "app.items", **options).verdict == "MATCH"
    assert compare(readers, "app.items", filter="id < 10", **options).verdict == "MATCH"
    assert compare(partial, "app.items", exclude_columns=["secret"], **options).verdict == "MATCH"
    nodes[1].execute("UPDATE app.items SET v = 'x' WHERE id = 3; UPDATE app.items SET secret = 'x' WHERE id = 4")
    changed = 0 if kind == "keyless" else 1
    for who, how, count in ((readers, {}, 2), (partial, {"columns": ["id", "v"]}, 1)):
        result = compare(who, "app.items", **how, **options)
        counts = result.pairs["n1/n2"]
        expected = (0, 0, count) if changed else (count, count, 0)
        assert (result.verdict, (counts.missing, counts.extra, counts.changed)) == ("DIFFER", expected)


def test_missing_rights_are_refused_by_name(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare
) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE SCHEMA app; CREATE TABLE app.items (id int PRIMARY KEY, v text, secret text)")
    usage = "GRANT USAGE ON SCHEMA app TO {role};"
    partial = role(nodes, usage + "GRANT SELECT (id, v) ON app.items TO {role}")
    name = psycopg.conninfo.conninfo_to_dict(partial[0].uri)["user"]
    with pytest.raises(CheckFailed) as refused:
        compare(partial, "app.items")
    for node in ("n1", "n2"):
        assert f"node {node}: role {name} may not SELECT column secret of app.items" in str(refused.value)
    nothing = role(nodes, usage)
    with pytest.raises(CheckFailed, match=r"n1.* may not SELECT"):
        compare(nothing, "app.items")
    outside = role(nodes, "GRANT SELECT ON app.items TO {role}")
    with pytest.raises(CheckFailed, match=r"n2.*USAGE"):
        compare(outside, "app.items")
    with pytest.raises(CheckFailed, match=r"n2.*may not SELECT"):
        compare([nodes[0], nothing[1]], "app.items")


def test_types_of_a_schema_that_the_role_may_not_use(
    databases: Databases, on_all: OnAll, role: AsRole, compare: Compare
) -> None:
    """SELECT on a table is enough, even if its types are in a schema without USAGE."""
    nodes = databases(2)
    on_all(
        nodes,
        "CREATE SCHEMA closed; CREATE TYPE closed.mood AS ENUM ('a', 'b', 'c'); CREATE DOMAIN closed.word AS text;"
        "CREATE TYPE closed.pair AS (x int, y text);"
        "CREATE TABLE moods (k closed.mood, m int, w closed.word, p closed.pair, PRIMARY KEY (k, m));"
        "CREATE TABLE words (k closed.word PRIMARY KEY, v closed.mood);"
        "INSERT INTO moods SELECT (ARRAY['a', 'b', 'c'])[i % 3 + 1]::closed.mood, i, i, ROW(i, 'y')::closed.pair"
        " FROM generate_series(1, 30) i;"
        "INSERT INTO words SELECT i, 'a' FROM generate_series(1, 30) i",
    )
    readers = role(nodes, "GRANT SELECT ON moods, words TO {role}")
    for table in ("moods", "words"):
        assert compare(readers, table, **SMALL).verdict == "MATCH"
    nodes[1].execute("DELETE FROM moods WHERE m = 4; DELETE FROM words WHERE k = '4'")
    for table in ("moods", "words"):
        assert compare(readers, table, **SMALL).pairs["n1/n2"].missing == 1


def _state(node: Database) -> list[tuple[Any, ...]]:
    """Return what a run could have changed: relations, functions, types, locks, row versions, settings."""
    return node.execute(
        """SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
                  (SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_db_role_setting),
                  (SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY ctid)) FROM looks),
                  (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM pg_replication_slots),
                  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
                  (SELECT count(*) FROM pg_largeobject_metadata)"""
    )


def _sessions(node: Database) -> list[tuple[Any, ...]]:
    return node.execute(
        "SELECT pid, application_name, state FROM pg_stat_activity WHERE datname = current_database()"
        " AND (application_name LIKE 'trueup%' OR pid <> pg_backend_pid() AND backend_type = 'client backend')"
    )


@pytest.mark.parametrize("options", [{}, {"quick": True}, {"snapshot": False}, {"digest": "portable"}], ids=str)
def test_a_run_writes_nothing_and_leaves_no_session(
    databases: Databases, on_all: OnAll, compare: Compare, options: dict[str, Any]
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute("DELETE FROM looks WHERE n = 3; UPDATE looks SET x = 'x' WHERE n = 30")
    before = [_state(node) for node in nodes]
    assert compare(nodes, "looks", **SMALL, **options).verdict == "DIFFER"
    assert compare(nodes, "stamps", **SMALL, **options).verdict == "MATCH"
    for node in nodes:
        assert wait_until(lambda node=node: not _sessions(node), 60), _sessions(node)  # type: ignore[misc]
    assert [_state(node) for node in nodes] == before


@pytest.mark.parametrize("table", ["looks", "no_such_table", "broken"])
def test_an_error_leaves_no_session(databases: Databases, on_all: OnAll, compare: Compare, table: str) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE + "CREATE TABLE broken (a int, b int); INSERT INTO broken VALUES (1, 1), (1, 1)")
    nodes[1].execute("UPDATE broken SET b = 2")
    options: dict[str, dict[str, Any]] = {"looks": {"filter": "1 / (n - 5) > 0"}, "broken": {"key": ["a"]}}
    try:
        assert compare(nodes, table, **options.get(table, {})).verdict == "INCOMPLETE"
    except TrueupError:
        assert table != "broken"
    for node in nodes:
        assert wait_until(lambda node=node: not _sessions(node), 60), _sessions(node)  # type: ignore[misc]


NOTES = """
    CREATE TABLE notes (n int); CREATE SEQUENCE numbers; CREATE FUNCTION write_down(int) RETURNS int
    LANGUAGE sql AS 'INSERT INTO public.notes VALUES ($1) RETURNING n';
"""


@pytest.mark.parametrize(
    "where",
    [
        "public.write_down(n) IS NOT NULL",
        "nextval('public.numbers') > 0",
        "set_config('transaction_read_only', 'off', false) IS NULL AND public.write_down(n) IS NOT NULL",
    ],
)
def test_a_filter_cannot_write(databases: Databases, on_all: OnAll, compare: Compare, where: str) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE + NOTES)
    with pytest.raises(TrueupError, match=r"to allow it: --allow-functions"):
        compare(nodes, "looks", filter=where)
    # Functions that the user allows cannot write either: the sessions are read-only.
    allowed = ["public.write_down, nextval", "set_config"]
    with pytest.raises(TrueupError, match=r"read-only|read-write"):
        compare(nodes, "looks", filter=where, allow_functions=allowed)
    _check_nothing_was_written(nodes)


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_filter_cannot_write_in_the_re_check(
    databases: Databases, on_all: OnAll, compare: Compare, snapshot: bool
) -> None:
    """The filter writes only outside of the transactions that plan and hash."""
    nodes = databases(2)
    on_all(nodes, TABLE + NOTES)
    nodes[1].execute("UPDATE looks SET x = 'x' WHERE n = 7")
    where = "current_setting('transaction_isolation') = 'repeatable read' OR public.write_down(n) IS NOT NULL"
    result = compare(nodes, "looks", filter=where, snapshot=snapshot, allow_functions=["public.write_down"])
    assert result.verdict == "INCOMPLETE"
    assert "read-only" in " ".join(result.incomplete)
    _check_nothing_was_written(nodes)


def _check_nothing_was_written(nodes: list[Database]) -> None:
    for node in nodes:
        assert node.execute("SELECT count(*) FROM notes") == [(0,)]
        assert node.execute("SELECT is_called FROM numbers") == [(False,)]


def test_a_session_that_was_busy_when_its_run_was_stopped_is_closed(databases: Databases) -> None:
    [database] = databases(1)
    with borrow(Node("n1", database.uri), None, application="trueup stopped", retries=0) as reader:
        reader.warm_up()
        stop_all("trueup stopped")
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'trueup stopped'"
    assert wait_until(lambda: database.execute(query) == [(0,)], 60)


def test_a_lasting_run_keeps_its_sessions_while_another_run_reads(databases: Databases) -> None:
    [database] = databases(1)
    node, own = Node("n1", database.uri), sql.SQL("SELECT pg_backend_pid()").format()

    def session_of(application: str) -> int:
        with borrow(node, None, application=application, retries=0) as reader:
            return int(reader.rows(own)[0][0])

    allow("trueup lasting", lasting=True)
    first = session_of("trueup lasting"), session_of("trueup brief")
    assert session_of("trueup lasting") == first[0]
    assert session_of("trueup brief") != first[1]
    for application in ("trueup lasting", "trueup brief"):
        stop_all(application)
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('trueup lasting', 'trueup brief')"
    assert wait_until(lambda: database.execute(query) == [(0,)], 60)
