"""Writing rows: exact values, swaps and cycles in any order, and the order of foreign keys if needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.fixtures import OnAll
from trueup.config.load import load
from trueup.db.catalog import read_table
from trueup.db.connection import Connection, one_row
from trueup.db.foreign_keys import ForeignKey, in_order, orphans, read_foreign_keys
from trueup.db.node import connect
from trueup.errors import QueryError, TrueupError
from trueup.rows.encode import column_spec
from trueup.rows.spec import KeySpec, TableSpec
from trueup.rows.write.copy import pipe, rows_in, rows_out, send_rows
from trueup.rows.write.delete import delete_keys
from trueup.rows.write.insert import insert_rows, select_rows
from trueup.rows.write.key_lists import KeyList, in_key_list, key_list
from trueup.rows.write.origin import origin_transaction
from trueup.rows.write.stage import stage
from trueup.rows.write.target import Target, target_of
from trueup.rows.write.triggers import require_silent_triggers, silence_triggers
from trueup.rows.write.upsert import upsert
from trueup.testing.postgres import Database

Databases = Callable[[int], list[Database]]

_TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE t (
    a int, b text, u int UNIQUE, n numeric, f float8, j json, x bytea, m mood[], at timestamptz,
    twice int GENERATED ALWAYS AS (u * 2) STORED, no bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (a, b));
"""


def opened(database: Database) -> Connection:
    return connect(load(nodes={"n": database.uri}).nodes["n"], application="test", read_only=False)


def target(connection: Connection, table: str = "t", key: tuple[str, ...] = ("a", "b")) -> Target:
    found = read_table(connection, "public", table)
    assert found is not None
    columns = {column.name: column_spec(column) for column in found.columns}
    spec = TableSpec("public", table, tuple(KeySpec(columns[name]) for name in key), tuple(columns.values()))
    return target_of(spec, found)


def copy_keys(source: Connection, to: Connection, table: Target, keys: KeyList) -> int:
    return pipe(source, rows_out(table.columns, table.name, in_key_list(table.spec, keys)), to, rows_in(table))


def row_type(connection: Connection, table: str = "t") -> list[str]:
    found = read_table(connection, "public", table)
    assert found is not None
    return [column.name for column in found.columns]


def test_rows_are_copied_exactly_and_swaps_need_no_order(
    databases: Databases, compare: Callable[..., Any], on_all: OnAll
) -> None:
    nodes = databases(2)
    on_all(nodes, _TABLE)
    nodes[0].execute(
        """INSERT INTO t (a, b, u, n, f, j, x, m, at) VALUES
           (1, E'tab\\tand\\nline\\\\', 10, 1.50, 'NaN', '{"a":1, "a" : 2}', '\\x00ff', '[2:3]={sad,NULL}', 'infinity'),
           (2, '', 20, 'NaN', '-0', 'null', '', '{}', '-infinity'),
           (3, '\\N', 30, NULL, NULL, NULL, NULL, NULL, NULL)"""
    )
    nodes[1].execute("INSERT INTO t (a, b, u) VALUES (1, E'tab\\tand\\nline\\\\', 20), (2, '', 10), (9, 'extra', 30)")
    texts = [("1", "tab\tand\nline\\"), ("2", ""), ("3", "\\N"), ("9", "extra")]
    with opened(nodes[0]) as source_connection, opened(nodes[1]) as target_connection:
        writable = target(target_connection)
        keys = key_list(writable.spec, [json.dumps(text) for text in texts])
        assert writable.columns == ("a", "b", "u", "n", "f", "j", "x", "m", "at", "no")
        with target_connection.transaction():
            assert silence_triggers(target_connection)
            assert delete_keys(target_connection, writable.spec, keys).rowcount == 3
            assert copy_keys(source_connection, target_connection, writable, keys) == 3
    assert compare(nodes, "t").verdict == "MATCH"
    # Given texts are written unchanged.
    with opened(nodes[0]) as source_connection, opened(nodes[1]) as target_connection:
        columns = ", ".join(f'"{name}"::text' for name in writable.columns)
        rows = source_connection.execute(f"SELECT {columns} FROM public.t").fetchall()
        with target_connection.transaction():
            delete_keys(target_connection, writable.spec, keys)
            assert send_rows(target_connection, rows_in(writable), rows) == 3
    assert compare(nodes, "t").verdict == "MATCH"
    # Rows of an array literal as well.
    with opened(nodes[0]) as source_connection, opened(nodes[1]) as target_connection:
        count, literal = one_row(select_rows(source_connection, writable.spec, row_type(target_connection), keys))
        with target_connection.transaction():
            delete_keys(target_connection, writable.spec, keys)
            assert insert_rows(target_connection, writable, literal).rowcount == count == 3
    assert compare(nodes, "t").verdict == "MATCH"


def test_rows_that_a_trigger_drops_are_an_error(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(nodes, "CREATE TABLE t (a int PRIMARY KEY); ")
    nodes[0].execute("INSERT INTO t VALUES (1), (2)")
    nodes[1].execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RETURN CASE WHEN NEW.a = 2 THEN NULL ELSE NEW END; END';"
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()"
    )
    with opened(nodes[0]) as source_connection, opened(nodes[1]) as target_connection:
        writable = target(target_connection, key=("a",))
        with pytest.raises(TrueupError, match="2 rows were sent and 1 arrived"):
            copy_keys(source_connection, target_connection, writable, key_list(writable.spec, ["1", "2"]))


def test_a_role_that_cannot_silence_triggers_updates_in_place(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(
        nodes,
        """CREATE TABLE parent (
               id int PRIMARY KEY, up int REFERENCES parent, no int GENERATED ALWAYS AS IDENTITY, v text UNIQUE);
           CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent ON DELETE CASCADE)""",
    )
    nodes[0].execute(
        "INSERT INTO parent (id, up, v) VALUES (1, 2, 'new'), (2, 1, 'two'); INSERT INTO child VALUES (1, 1)"
    )
    nodes[1].execute("INSERT INTO parent (id, v) VALUES (1, 'old'); INSERT INTO child VALUES (1, 1)")
    with opened(nodes[0]) as source_connection, opened(nodes[1]) as target_connection:
        target_connection.execute("CREATE ROLE plain_owner; ")
        try:
            target_connection.execute(
                "ALTER TABLE public.parent OWNER TO plain_owner; ALTER TABLE public.child OWNER TO plain_owner"
            )
            target_connection.execute("SET ROLE plain_owner")
            parent = target(target_connection, "parent", ("id",))
            out = rows_out(parent.columns, parent.name, in_key_list(parent.spec, key_list(parent.spec, ["1", "2"])))
            with target_connection.transaction():
                assert not silence_triggers(target_connection)
                with pytest.raises(QueryError, match="no longer allowed"):
                    require_silent_triggers(target_connection)
                staged = stage(target_connection, parent.name, parent.columns)
                assert pipe(source_connection, out, target_connection, rows_in(parent, staged)) == 2
                assert upsert(target_connection, parent, staged) == (1, 1)
            target_connection.execute("RESET ROLE")
            same = "SELECT id, up, v FROM public.parent ORDER BY id"
            assert target_connection.execute(same).fetchall() == source_connection.execute(same).fetchall()
            # The child of the changed parent still exists: nothing was deleted in between.
            assert target_connection.execute("SELECT count(*) FROM public.child").fetchone() == (1,)
            # A difference that an UPDATE cannot fix must be reported.
            source_connection.execute("UPDATE public.parent SET no = DEFAULT WHERE id = 1")
            with target_connection.transaction(force_rollback=True):
                staged = stage(target_connection, parent.name, parent.columns)
                pipe(source_connection, out, target_connection, rows_in(parent, staged))
                with pytest.raises(TrueupError, match="column no, which is GENERATED ALWAYS"):
                    upsert(target_connection, parent, staged)
        finally:
            target_connection.execute("RESET ROLE; DROP OWNED BY plain_owner; DROP ROLE plain_owner")


def test_foreign_keys_are_read_ordered_and_verified(databases: Databases) -> None:
    (node,) = databases(1)
    node.execute(
        """CREATE TABLE a (id int PRIMARY KEY, b int, UNIQUE (id, b));
           CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);
           ALTER TABLE a ADD CONSTRAINT a_b FOREIGN KEY (b) REFERENCES b DEFERRABLE;
           CREATE TABLE c (id int PRIMARY KEY, x int, y int, FOREIGN KEY (x, y) REFERENCES a (id, b) MATCH FULL);
           CREATE TABLE d (id int PRIMARY KEY, c int REFERENCES c, d int REFERENCES d);
           CREATE TABLE p (id int REFERENCES d) PARTITION BY LIST (id);
           CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"""
    )
    with opened(node) as connection:
        keys = read_foreign_keys(connection)
        assert {str(key) for key in keys} == {
            "a_b of public.a", "b_a_fkey of public.b", "c_x_y_fkey of public.c",
            "d_c_fkey of public.d", "d_d_fkey of public.d", "p_id_fkey of public.p",
        }  # fmt: skip
        order = in_order([("public", name) for name in "pdcba"], keys)
        assert [tuple(name for _, name in group) for group in order.groups] == [("a", "b"), ("c",), ("d",), ("p",)]
        assert order.cycles == ((("public", "a"), ("public", "b")),)
        by_name = {key.name: key for key in keys}
        assert by_name["a_b"].deferrable
        connection.execute(
            """SET session_replication_role = replica; INSERT INTO public.d VALUES (1, NULL, 7), (2, 5, 1);
               INSERT INTO public.c VALUES (1, 3, NULL), (2, NULL, NULL)"""
        )
        found = {name: orphans(connection, key) for name, key in by_name.items()}
        assert {name: rows for name, rows in found.items() if rows} == {
            "c_x_y_fkey": [("3", None)],  # MATCH FULL: all or none
            "d_c_fkey": [("5",)],
            "d_d_fkey": [("7",)],
        }


def test_periods_that_refer_to_several_rows(databases: Databases) -> None:
    (node,) = databases(1)
    if int((node.server.data_dir / "PG_VERSION").read_text()) < 18:
        return
    node.execute(
        """CREATE EXTENSION btree_gist;
           CREATE TABLE prices (id int, at daterange, PRIMARY KEY (id, at WITHOUT OVERLAPS));
           CREATE TABLE offers (n int, id int, at daterange,
               FOREIGN KEY (id, PERIOD at) REFERENCES prices (id, PERIOD at));
           INSERT INTO prices VALUES (1, '[2024-01-01,2024-02-01)'), (1, '[2024-02-01,2024-03-01)'), (2, '[,)');
           INSERT INTO offers VALUES (1, 1, '[2024-01-10,2024-02-10)'), (2, 2, '[2020-01-01,)'), (3, NULL, '[,)');
           SET session_replication_role = replica; INSERT INTO offers VALUES (4, 1, '[2024-02-10,2024-03-02)')"""
    )
    with opened(node) as connection:
        (key,) = read_foreign_keys(connection)
        assert key.period
        # One row of the parent overlaps it, but does not cover it.
        assert orphans(connection, key) == [("1", "[2024-02-10,2024-03-02)")]
    node.execute(
        "DELETE FROM offers WHERE n = 4; SET session_replication_role = replica; DELETE FROM prices"
        " WHERE at = '[2024-02-01,2024-03-01)'"
    )
    with opened(node) as connection:
        assert orphans(connection, key) == [("1", "[2024-01-10,2024-02-10)")]


def test_long_chains_of_tables_are_ordered() -> None:
    tables = [("s", f"t{number:04}") for number in range(2000)]
    rest: list[Any] = [("a",), ("a",), ("=",), ("t",), ("t",), False, True, False, "a", "a", True]
    keys = [
        ForeignKey("k", child, parent, child, parent, *rest) for parent, child in zip(tables[1:], tables, strict=False)
    ]
    assert list(in_order(tables, keys).tables) == tables[::-1]


def test_names_with_percent_signs(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(nodes, 'CREATE TABLE "t%s" ("id%" int PRIMARY KEY, "50%" text)')
    nodes[0].execute("""INSERT INTO "t%s" VALUES (1, 'a'), (2, 'b')""")
    nodes[1].execute("""INSERT INTO "t%s" VALUES (2, 'x'), (3, 'y')""")
    with opened(nodes[0]) as source, opened(nodes[1]) as copy:
        table = target(copy, "t%s", ("id%",))
        keys = key_list(table.spec, ["1", "2", "3"])
        _, literal = one_row(select_rows(source, table.spec, row_type(copy, "t%s"), keys))
        delete_keys(copy, table.spec, keys)
        insert_rows(copy, table, literal)
        assert copy.execute('SELECT * FROM public."t%s" ORDER BY 1').fetchall() == [(1, "a"), (2, "b")]


def test_the_replica_role_ends_with_the_transaction(databases: Databases) -> None:
    (node,) = databases(1)
    with opened(node) as connection:
        with connection.transaction():
            assert silence_triggers(connection)
            assert connection.execute("SHOW session_replication_role").fetchone() == ("replica",)
        assert connection.execute("SHOW session_replication_role").fetchone() == ("origin",)


@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1 / 0", "INSERT INTO public.child VALUES (1, 7)"])
def test_a_session_keeps_no_replication_origin(databases: Databases, statement: str) -> None:
    """A pooler may give the session to an application, whose changes must be replicated."""
    database = databases(1)[0]
    database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        " CREATE TABLE child (id int, parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
    )
    connection = opened(database)
    is_set_up = "SELECT pg_replication_origin_session_is_setup()"
    with suppress(psycopg.Error), origin_transaction(connection):
        assert one_row(connection.execute(is_set_up)) == (True,)
        connection.execute("INSERT INTO public.parent VALUES (1)")
        connection.execute(statement)
    assert one_row(connection.execute(is_set_up)) == (False,)
    assert len(database.execute("TABLE parent")) == (statement == "SELECT 1")
    assert not database.execute("SELECT FROM pg_replication_origin WHERE starts_with(roname, 'trueup')")
    connection.close()


def test_many_rows_into_an_empty_table_are_read_once(databases: Databases) -> None:
    """The plan for an empty table must not scan the rows that the statement has inserted, for each row."""
    (node,) = databases(1)
    node.execute("CREATE TABLE t (a int PRIMARY KEY, filler text); ANALYZE t")
    with opened(node) as connection:
        writable = target(connection, key=("a",))
        with connection.transaction():
            staged = stage(connection, writable.name, writable.columns)
            rows = sql.SQL("INSERT INTO {} SELECT g, repeat('x', 500) FROM generate_series(1, 4000) g")
            connection.execute(rows.format(staged))
            assert upsert(connection, writable, staged) == (4000, 0)
        connection.execute("SELECT pg_stat_force_next_flush()")
    ((blocks,),) = node.execute("SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE relname = 't'")
    # One or two per inserted row; a scan per row would be more than 400,000.
    assert 4000 <= blocks < 40_000
