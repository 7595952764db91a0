"""Invalid input: exit code 2, one message, no files, sessions or objects left, no password in any output."""

from __future__ import annotations

import os
import re
import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from psycopg import sql

from support.fixtures import Cli, Databases, FreshServer, OnAll
from trueup.errors import QueryError
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until

# If it occurs in any output, it has leaked. It contains characters that must be escaped in an address.
PASSWORD = "Gr33n/Ch33se@M00n"
WRITTEN = "Gr33n%2FCh33se%40M00n"
PIECES = ("Gr33n", "Ch33se", "M00n")

# `refuse(arguments…)`, `addresses(databases, n2=…)`
Refuse: TypeAlias = Callable[..., str]
Addresses: TypeAlias = Callable[..., list[str]]
CATALOG = """
    SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
           (SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_trigger),
           (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM pg_largeobject_metadata),
           (SELECT md5(coalesce(string_agg(i::text, ',' ORDER BY id), '')) FROM items i)
"""


@pytest.fixture(scope="module")
def superuser(server: Server) -> Iterator[str]:
    """A superuser with a password: only the read-only transaction prevents writes."""
    role = f"superuser_{os.getpid()}"
    control = server.database("postgres")
    control.execute(
        sql.SQL("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER PASSWORD {password}").format(
            role=sql.Identifier(role), password=sql.Literal(PASSWORD)
        )
    )
    yield role
    control.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


OBJECTS = """
    CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
    INSERT INTO items SELECT i, 'item ' || i, i FROM generate_series(1, 20) i;
    CREATE TABLE "Sales Items" (id int PRIMARY KEY);
    CREATE VIEW seen AS SELECT id FROM items;
    CREATE SEQUENCE numbers;
    CREATE FUNCTION writes(id int) RETURNS bool VOLATILE LANGUAGE sql
        AS $$ INSERT INTO public.items VALUES (1000 + id) RETURNING true $$;
    CREATE FUNCTION writes_when_planned() RETURNS bool IMMUTABLE LANGUAGE plpgsql
        AS $$ BEGIN DELETE FROM public.items; RETURN true; END $$;
"""


def _create_objects(nodes: list[Database]) -> list[Database]:
    for node in nodes:
        node.execute(OBJECTS)
    return nodes


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[list[Database]]:
    """Two nodes with the same small table and functions that write; tests must not change them."""
    found = _create_objects([server.create_database(f"bad_{os.getpid()}_{number}") for number in (1, 2)])
    yield found
    for node in found:
        node.drop()


@pytest.fixture
def own_nodes(databases: Databases, nodes: list[Database]) -> list[Database]:
    """Two such nodes for tests that change them; `refuse` checks them too."""
    return _create_objects(databases(2))


@pytest.fixture
def addresses(server: Server, superuser: str) -> Addresses:
    """`addresses(databases)`: `--node` options with the superuser's password, without waits."""

    def options(nodes: Sequence[Database], **changed: str) -> list[str]:
        found = ["--engine", "local", "--recheck", "1", "--recheck-wait", "0"]
        for number, node in enumerate(nodes, 1):
            name = f"n{number}"
            address = changed.get(name, server.uri(node.name, superuser, PASSWORD))
            assert WRITTEN in address or name in changed
            found += ["--node", f"{name}={address}"]
        return found

    return options


@pytest.fixture
def refuse(request: pytest.FixtureRequest, cli: Cli, server: Server, nodes: list[Database], tmp_path: Path) -> Refuse:
    """`refuse(arguments…)`: run the command, check that it fails without side effects, and return its message."""

    watched = [*nodes, *(request.getfixturevalue("own_nodes") if "own_nodes" in request.fixturenames else [])]

    def call(*arguments: object, run: Cli = cli) -> str:
        before = [node.execute(CATALOG) for node in watched]
        files = _files(tmp_path)
        ran = run(*arguments)
        assert ran.code == 2, ran
        assert ran.out == ""
        assert "Traceback" not in ran.err
        assert "defect" not in ran.err
        assert ran.err.startswith("trueup: ")
        assert ran.err.count("trueup: ") == 1, "one message"
        assert ran.err.count("\n  what to do: ") == 1, "one cure"
        assert [node.execute(CATALOG) for node in watched] == before, "no object was left in a database"
        assert wait_until(lambda: not _sessions(server), 60), "no session was left"
        assert {path for path in _files(tmp_path) - files if "tasks.db" not in str(path)} == set()
        assert _leaks(ran.out, ran.err, tmp_path) == []
        return str(ran.err)

    return call


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _sessions(server: Server) -> list[tuple[Any, ...]]:
    query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'trueup%%' AND application_name <> 'trueup'"
    return server.database("postgres").execute(query, ())


def _leaks(out: str, err: str, folder: Path) -> list[str]:
    """Return where a part of the password occurs: stdout, stderr, the task store, reports."""
    texts = {
        "stdout": out.encode(),
        "stderr": err.encode(),
        **{str(path): path.read_bytes() for path in _files(folder)},
    }
    return [place for place, data in texts.items() for piece in PIECES if piece.encode() in data]


# Names.


def test_an_unknown_table_with_a_suggestion(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    message = refuse("diff", "itmes", *addresses(nodes))
    assert "nodes n1 and n2: there is no table public.itmes (did you mean public.items?)" in message
    assert "did you mean" not in refuse("check", "quite_something_else", *addresses(nodes))


def test_a_table_in_another_schema(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    assert "there is no table shop.items (did you mean public.items?)" in refuse(
        "diff", "shop.items", *addresses(nodes)
    )


def test_a_table_that_only_one_node_has(refuse: Refuse, addresses: Addresses, own_nodes: list[Database]) -> None:
    own_nodes[1].execute("CREATE TABLE lonely (id int PRIMARY KEY)")
    message = refuse("diff", "lonely", *addresses(own_nodes))
    assert "trueup: node n1: there is no table public.lonely\n" in message


@pytest.mark.parametrize(("name", "why"), [("a.b.c", "more than two parts"), ('"a', "not closed"), ("", "empty")])
def test_invalid_table_names(refuse: Refuse, addresses: Addresses, nodes: list[Database], name: str, why: str) -> None:
    assert why in refuse("diff", name, *addresses(nodes))


@pytest.mark.parametrize(("table", "kind"), [("numbers", "sequence"), ("items_pkey", "index")])
def test_relations_that_are_not_tables(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], table: str, kind: str
) -> None:
    assert f"public.{table} is a{'n' * kind.startswith('i')} {kind};" in refuse("diff", table, *addresses(nodes))


def test_a_view_with_an_option_for_tables(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    assert "public.seen is a view;" in refuse("diff", "seen", *addresses(nodes), "--gentle")


@pytest.mark.parametrize("option", ["--columns", "--exclude-columns", "--key"])
def test_an_unknown_column_with_a_suggestion(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], option: str
) -> None:
    message = refuse("diff", "items", *addresses(nodes), option, "nmae")
    assert f"{option}: there is no column nmae; did you mean name?" in message
    assert "the columns are id, name, price" in refuse("diff", "items", *addresses(nodes), option, "zzz")


def test_all_reasons_are_listed_together(refuse: Refuse, addresses: Addresses, own_nodes: list[Database]) -> None:
    own_nodes[1].execute("ALTER TABLE items ALTER price TYPE text, ADD extra int")
    message = refuse("diff", "items", *addresses(own_nodes), "--key", "ident")
    assert "cannot start:" in message
    assert "column price of public.items has different types: numeric on n1, text on n2" in message
    assert "column extra of public.items is not on n1" in message
    assert "--key: there is no column ident" in message


# Nodes.


def test_a_node_that_is_down(refuse: Refuse, addresses: Addresses, nodes: list[Database], superuser: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        port = taken.getsockname()[1]
        address = f"postgresql://{superuser}:{WRITTEN}@127.0.0.1:{port}/shop"
        message = refuse("diff", "items", *addresses(nodes, n2=address))
    assert "trueup: node n2: " in message
    assert f"{superuser}@127.0.0.1:{port}/shop" in message
    assert "check that the server is running" in message


def test_all_nodes_that_are_down_are_named(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    address = f"postgresql://u:{WRITTEN}@127.0.0.1:1/shop?connect_timeout=2"
    message = refuse("diff", "items", *addresses(nodes, n1=address, n2=address))
    assert "- node n1: " in message
    assert "- node n2: " in message


def test_an_unknown_host(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    message = refuse("diff", "items", *addresses(nodes, n1=f"postgresql://u:{WRITTEN}@nowhere.invalid/shop"))
    assert "node n1" in message
    assert "nowhere.invalid" in message


def test_a_wrong_password(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], server: Server, superuser: str
) -> None:
    wrong = server.uri(nodes[1].name, superuser, "Ch33se-wrong-M00n")
    message = refuse("diff", "items", *addresses(nodes, n2=wrong))
    assert "trueup: node n2: " in message
    assert "password authentication failed" in message
    assert "what to do: check the password" in message


def test_a_wrong_database_and_a_wrong_user(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], server: Server, superuser: str
) -> None:
    message = refuse("diff", "items", *addresses(nodes, n1=server.uri("nowhere", superuser, PASSWORD)))
    assert "node n1: " in message
    assert '"nowhere" does not exist' in message
    assert "check the database name" in message
    message = refuse("diff", "items", *addresses(nodes, n1=server.uri(nodes[0].name, "nobody", PASSWORD)))
    assert "node n1: " in message


def test_a_server_that_requires_a_password(
    fresh_server: FreshServer, refuse: Refuse, addresses: Addresses, nodes: list[Database], cli: Cli, tmp_path: Path
) -> None:
    guarded = fresh_server(name="guarded", password=PASSWORD)
    guarded.database("postgres").execute("CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)")
    assert WRITTEN in guarded.uri()
    ran = cli("diff", "items", *addresses(nodes, n2=guarded.uri()), "--json")
    assert ran.json["pairs"]["n1/n2"]["missing"] == 20
    assert _leaks(ran.out, ran.err, tmp_path) == []
    no_password = guarded.uri().replace(f":{WRITTEN}", "")
    assert "check the password" in refuse("diff", "items", *addresses(nodes, n2=no_password))


def test_unknown_nodes_and_clusters(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], tmp_path: Path, server: Server
) -> None:
    known = [server.uri(node.name) for node in nodes]
    config = tmp_path / "trueup.toml"
    config.write_text(f'[nodes]\nleft = "{known[0]}"\nright = "{known[1]}"\n[clusters]\nboth = ["left", "right"]\n')
    assert 'there is no node "lfet"' in refuse("diff", "items", "--nodes", "lfet,right")
    assert 'Did you mean "left"?' in refuse("diff", "items", "--nodes", "lfet,right")
    assert 'Did you mean "both"?' in refuse("diff", "items", "--cluster", "bohts")
    assert "at least 2 nodes needed, there is only left" in refuse("diff", "items", "--nodes", "left")
    assert 'the node "left" is listed twice' in refuse("diff", "items", "--nodes", "left,left")


def test_too_few_nodes_or_a_name_twice(refuse: Refuse, addresses: Addresses, nodes: list[Database]) -> None:
    assert "there is none" in refuse("diff", "items")
    assert "there is only n1" in refuse("diff", "items", *addresses(nodes[:1]))
    twice = addresses(nodes[:1])[-2:] * 2
    assert "the same name is used twice" in refuse("diff", "items", *twice)


@pytest.mark.parametrize(
    "node",
    [
        "n9",
        "=postgresql://h/d",
        f"postgresql://u:{WRITTEN}@h/d",
        f"n9=oracle://u:{WRITTEN}@h/d",
        f"n9=postgresql://u:{PASSWORD}@h/d",
        f"n9=host=h pasword={PASSWORD}",
        f"n9=host=h password='{PASSWORD}",
        f"a b=postgresql://u:{WRITTEN}@h/d",
        f"all=postgresql://u:{WRITTEN}@h/d",
    ],
)
def test_invalid_addresses(refuse: Refuse, node: str) -> None:
    assert "--node" in refuse("diff", "items", "--node", node, "--node", "n2=postgresql://h/d")


# Options.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--columns", "id", "--exclude-columns", "name"], "--columns and --exclude-columns"),
        (["--master", "local[1]", "--remote", "sc://h"], "--master and --remote"),
        (["--block-size", "999"], "--block-size: must be between 1000 and 1000000"),
        (["--block-size", "1000001"], "--override-block-size"),
        (["--block-size", "0", "--override-block-size"], "--block-size: must be at least 1"),
        (["--block-size", "many"], "--block-size"),
        (["--concurrency-factor", "4.1"], "--concurrency-factor: must be between 0.0 and 4.0"),
        (["--concurrency-factor", "nan"], "--concurrency-factor"),
        (["--max-connections", "1"], "--max-connections: must be 0 (no limit) or at least 2"),
        (["--max-diff-rows", "0"], "--max-diff-rows: must be at least 1"),
        (["--compare-unit-size", "0"], "--compare-unit-size: must be at least 1"),
        (["--recheck", "-1"], "--recheck: must be at least 0"),
        (["--recheck-wait", "inf"], "--recheck-wait: must be finite"),
        (["--block-timeout", "0"], "--block-timeout: must be greater than 0"),
        (["--engine", "magic"], "--engine"),
        (["--no-such-option"], "--no-such-option"),
        (["--exclude-columns", "id"], "id is part of the key"),
        (["more", "arguments"], "more"),
        (["--columns", "id,"], "ends with a comma"),
    ],
)
def test_invalid_options(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], options: list[str], expected: str
) -> None:
    message = refuse("diff", "items", *addresses(nodes)[:2], *addresses(nodes)[6:], *options)
    assert expected in message


def test_an_unknown_command_with_a_suggestion(refuse: Refuse) -> None:
    assert "there is no command 'dfif'; did you mean 'diff'?" in refuse("dfif", "items")
    assert "commands: accept, certificate, check, completion, demo, diff" in refuse("zzzz")
    assert "see trueup diff --help" in refuse("diff")


# The filter.

# Functions that a filter may not call otherwise: the second barrier is a session that cannot write.
ALLOWED = (
    "--allow-functions",
    "public.writes,public.writes_when_planned",
    "--allow-functions=nextval,lo_create,set_config",
)


@pytest.mark.parametrize(
    "text",
    [
        "true) ; DROP TABLE items; --",
        "1=1) OR (1=1",
        "true; DELETE FROM items",
        "true -- \r) OR (true",
        "name = E'a'\n'\\'' ) OR ( 1=1 --'",
        "name = 'open",
        'name = "open',
        "name = $$open",
        "(id > 1",
        "/* only a comment */",
        "-- only a comment",
        "true /* open",
        "   ",
        "id = $1",
    ],
)
def test_a_filter_that_is_not_one_expression(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], text: str
) -> None:
    assert "filter: " in refuse("diff", "items", *addresses(nodes), "--filter", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id <", "syntax error"),
        ("DELETE FROM public.items RETURNING true", "syntax error"),
        ("nme = 'x'", '"nme" does not exist'),
        ("id", "must be type boolean"),
        ("EXISTS (WITH gone AS (DELETE FROM public.items RETURNING 1) SELECT FROM gone)", "top level"),
        ("count(*) > 1", "aggregate"),
        ("f(id)", "public.f(x)"),
        ("public.writes_when_planned()", "--allow-functions public.writes_when_planned"),
        ("lo_create(0) IS NOT NULL", "lo_create(oid), which is volatile"),
    ],
)
def test_a_filter_with_an_sql_error(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], text: str, expected: str
) -> None:
    message = refuse("diff", "items", *addresses(nodes), "--filter", text)
    assert "nodes n1 and n2: filter: " in message
    assert expected in message


@pytest.mark.parametrize("snapshot", [[], ["--no-snapshot"]], ids=["snapshot", "no-snapshot"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("public.writes(id)", "read-only transaction"),
        ("nextval('public.numbers') > 0", "read-only transaction"),
        ("lo_create(0) IS NOT NULL", "read-only transaction"),
        ("public.writes_when_planned()", "DELETE is not allowed"),
        ("1 / (id - 5) = 0", "division by zero"),
    ],
)
def test_a_filter_that_fails_at_its_first_row(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], text: str, expected: str, snapshot: list[str]
) -> None:
    message = refuse("diff", "items", *addresses(nodes), "--filter", text, *snapshot, *ALLOWED)
    assert expected in message
    assert "node n" in message


@pytest.mark.parametrize("snapshot", [[], ["--no-snapshot"]], ids=["snapshot", "no-snapshot"])
def test_a_filter_that_makes_the_session_writable(
    cli: Cli, addresses: Addresses, own_nodes: list[Database], snapshot: list[str]
) -> None:
    """The first statement makes the session writable, the next ones write."""
    text = """set_config('default_transaction_read_only', 'off', false) IS NOT NULL
              AND CASE current_setting('transaction_read_only') WHEN 'off' THEN public.writes(id) ELSE true END"""
    own_nodes[1].execute("UPDATE items SET name = 'x' WHERE id = 5")
    before = [node.execute(CATALOG) for node in own_nodes]
    ran = cli("diff", "items", *addresses(own_nodes), "--filter", text, *snapshot, *ALLOWED)
    assert [node.execute(CATALOG) for node in own_nodes] == before
    assert "Traceback" not in ran.err


# Tables that cannot be compared.


def test_a_column_of_another_type(refuse: Refuse, addresses: Addresses, own_nodes: list[Database], cli: Cli) -> None:
    own_nodes[1].execute("ALTER TABLE items ALTER name TYPE bytea USING name::bytea")
    message = refuse("diff", "items", *addresses(own_nodes), "--engine", "auto")
    assert "column name: text on n1, bytea on n2 cannot be compared exactly; leave it out with --exclude-col" in message
    # Other types are compared by value.
    own_nodes[1].execute("ALTER TABLE items ALTER name TYPE varchar(50) USING convert_from(name, 'UTF8')")
    assert cli("diff", "items", *addresses(own_nodes), "--engine", "local").code == 0
    own_nodes[1].execute("UPDATE items SET name = name || '!' WHERE id = (SELECT min(id) FROM items)")
    assert cli("diff", "items", *addresses(own_nodes), "--engine", "local").code == 1


def test_a_column_that_is_missing_on_one_node(
    refuse: Refuse, addresses: Addresses, own_nodes: list[Database], cli: Cli
) -> None:
    own_nodes[1].execute("ALTER TABLE items DROP price")
    message = refuse("diff", "items", *addresses(own_nodes))
    assert "column price of public.items is not on n2; leave it out with --exclude-columns" in message
    assert cli("diff", "items", *addresses(own_nodes), "--exclude-columns", "price").code == 0


def test_keys_that_differ(refuse: Refuse, addresses: Addresses, own_nodes: list[Database], cli: Cli) -> None:
    own_nodes[1].execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (name)")
    message = refuse("diff", "items", *addresses(own_nodes))
    assert "the keys of public.items differ: (id) on n1, (name) on n2; choose one with --key" in message
    assert cli("diff", "items", *addresses(own_nodes), "--key", "id").code == 0


def test_a_given_key_with_nulls_or_duplicates(
    refuse: Refuse, addresses: Addresses, own_nodes: list[Database], cli: Cli
) -> None:
    own_nodes[1].execute("UPDATE items SET name = NULL WHERE id = 3")
    message = refuse("diff", "items", *addresses(own_nodes), "--key", "name")
    assert "node n2: --key: rows have NULL in name" in message
    own_nodes[1].execute("UPDATE items SET name = 'item 4' WHERE id = 3")
    assert cli("diff", "items", *addresses(own_nodes), "--key", "name").code == 2


def test_encodings_that_differ(refuse: Refuse, addresses: Addresses, nodes: list[Database], server: Server) -> None:
    name = f"latin_{os.getpid()}"
    control = server.database("postgres")
    control.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    try:
        latin = server.database(name)
        latin.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price numeric)")
        message = refuse("diff", "items", *addresses([nodes[0], latin]))
        assert "the databases' encodings differ: UTF8 on n1, LATIN1 on n2" in message
    finally:
        server.database(name).drop()


def test_key_collations_that_differ(
    refuse: Refuse, addresses: Addresses, own_nodes: list[Database], on_all: OnAll
) -> None:
    on_all(own_nodes, "CREATE TABLE words (word text PRIMARY KEY)")
    own_nodes[1].execute('ALTER TABLE words ALTER word TYPE text COLLATE "C"')
    message = refuse("diff", "words", *addresses(own_nodes))
    assert "the collations of key column word differ: " in message
    assert " on n1" in message
    assert " on n2" in message


def test_a_missing_privilege(refuse: Refuse, own_nodes: list[Database], server: Server) -> None:
    role = f"reader_{os.getpid()}"
    own_nodes[0].execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'; GRANT SELECT (id, name) ON items TO {role}")
    own_nodes[1].execute(f"GRANT SELECT ON items TO {role}")
    try:
        options = [f"n{number}={server.uri(node.name, role, PASSWORD)}" for number, node in enumerate(own_nodes, 1)]
        message = refuse("diff", "items", "--node", options[0], "--node", options[1])
        assert f"node n1: role {role} may not SELECT column price of public.items" in message
        assert "node n2" not in message
    finally:
        for node in own_nodes:
            node.execute(f"DROP OWNED BY {role}")
        own_nodes[0].execute(f"DROP ROLE {role}")


# Files.


def test_a_missing_report_folder(refuse: Refuse, addresses: Addresses, nodes: list[Database], tmp_path: Path) -> None:
    message = refuse("diff", "items", *addresses(nodes), "--report-dir", tmp_path / "nowhere")
    assert f"{tmp_path / 'nowhere'}" in message
    assert "--report-dir" in message


def test_a_report_folder_that_cannot_be_written(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    message = refuse("diff", "items", *addresses(nodes), "--report-dir", file / "below")
    assert str(file) in message
    assert file.read_text() == "in the way"


@pytest.mark.parametrize("fails", ["report", "differences"])
def test_a_full_disk(
    refuse: Refuse,
    addresses: Addresses,
    own_nodes: list[Database],
    on_all: OnAll,
    process: Cli,
    tmp_path: Path,
    fails: str,
) -> None:
    """A limit on the size of files makes the same system call fail as a full disk."""
    # The report repeats the names in every row, the files that collect differences do not.
    columns = [f"c{number}_{'x' * 55}" for number in range(10)]
    on_all(own_nodes, f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{name} text' for name in columns)})")
    rows, value = (600, "''") if fails == "report" else (2000, "repeat(md5(i::text), 20)")
    own_nodes[0].execute(f"INSERT INTO wide SELECT i, {value} FROM generate_series(1, {rows}) i")
    reports = tmp_path / "reports"
    reports.mkdir()

    def limited(*arguments: object) -> Any:
        # More than the task store has.
        most = 300_000
        return process(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))

    message = refuse("diff", "wide", *addresses(own_nodes), "--report-dir", reports, run=limited)
    assert ("cannot write the report" if fails == "report" else "cannot write the journal /") in message
    assert str(reports if fails == "report" else tmp_path / "tasks.db.d") in message
    assert "free space there" in message
    assert list(reports.iterdir()) == []


def test_a_damaged_task_store(refuse: Refuse, addresses: Addresses, nodes: list[Database], tmp_path: Path) -> None:
    store = tmp_path / "tasks.db"
    store.write_bytes(b"this is no database " * 100)
    for arguments in (("diff", "items", *addresses(nodes)), ("tasks",), ("report", "abc")):
        message = refuse(*arguments)
        assert f"the task store {store} is not a SQLite file" in message
        assert "TRUEUP_TASKS_DB" in message
    assert store.read_bytes() == b"this is no database " * 100


def test_a_task_store_of_another_program(
    refuse: Refuse, addresses: Addresses, nodes: list[Database], tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE precious (id)")
    connection.close()
    assert "not a task store" in refuse("diff", "items", *addresses(nodes), "--task-db", other)
    assert "is not a file" in refuse("tasks", "--task-db", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'[nodes\nn1 = "postgresql://u:{WRITTEN}@h/d"', "line 1"),
        (f'[nodes]\nn1 = "postgresql://u:{WRITTEN}@h/d', "not valid TOML"),
        (f'[nodes]\nn1 = "postgresql://u:{PASSWORD}@h/d"', "nodes.n1"),
        ("[dif]\nblock_size = 1", 'Did you mean "diff"?'),
        ("[diff]\nblok_size = 1", 'Did you mean "block_size"?'),
        ("[diff]\nblock_size = 'x'", "diff.block_size"),
        ("[diff]\nblock_size = 7", "diff.block_size"),
        ('[nodes]\nn1 = "postgresql://u:${NO_SUCH_PASSWORD}@h/d"', "NO_SUCH_PASSWORD"),
        ('[nodes]\nn1 = "postgresql://h/d"\n[clusters]\nc = ["n1", "n2"]', 'there is no node "n2"'),
    ],
)
def test_a_damaged_configuration(
    cli: Cli, tmp_path: Path, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trueup.toml").write_text(text, encoding="utf-8")
    # With this variable `trueup tasks` reads no configuration.
    monkeypatch.delenv("TRUEUP_TASKS_DB")
    for arguments in (("diff", "items"), ("tasks",)):
        ran = cli(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("trueup: trueup.toml")
        assert expected in ran.err
        assert "what to do: " in ran.err
        assert not any(piece in ran.err for piece in PIECES)


def test_verbose_shows_the_traceback_and_no_password(
    cli: Cli, addresses: Addresses, nodes: list[Database], tmp_path: Path
) -> None:
    broken = addresses(nodes, n2=f"postgresql://u:{WRITTEN}@127.0.0.1:1/x")
    for arguments in (("-v", "diff", "items", *broken), ("diff", "items", *broken, "--verbose")):
        ran = cli(*arguments)
        assert ran.code == 2
        assert "Traceback" in ran.err
        assert "\ntrueup: node n2: " in ran.err
        assert _leaks(ran.out, ran.err, tmp_path) == []


def test_an_unexpected_error_is_reported_as_a_defect(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError(f"could not use postgresql://u:{WRITTEN}@h/d")

    def refused(*_: object, **__: object) -> None:
        raise QueryError("division by zero", sqlstate="22012")

    monkeypatch.delenv("TRUEUP_TASKS_DB")
    # An error that is expected, and has no cure of its own: the traceback is none.
    monkeypatch.setattr("trueup.config.load.load", refused)
    ran = cli("tasks")
    assert ran.err == (
        "trueup: division by zero\n  what to do: fix what the message names, and run the command again\n"
    )
    monkeypatch.setattr("trueup.config.load.load", broken)
    ran = cli("tasks")
    assert ran.code == 2
    assert re.match(
        r"trueup: unexpected ValueError at test_bad_input\.py:\d+: could not use postgresql://u:\*\*\*@h/d\n", ran.err
    )
    assert "run again with -v" in ran.err
    assert "Traceback" not in ran.err
    ran = cli("-v", "tasks")
    assert ran.code == 2
    assert "in broken" in ran.err
    assert not any(piece in ran.err for piece in PIECES)
