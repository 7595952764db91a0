"""Compare definitions by their meaning: a server parses the definition of another one and prints it again.

Servers print definitions from their parsed form, and versions print them differently. All of this happens in a
transaction that is rolled back. An expression becomes the column of a temporary view, because CREATE VIEW evaluates
nothing: an index or a generated column would call functions while it is created. What is left are the input functions
of literals, which check domains: for a superuser, literals of types that could run code of other roles are not
parsed. Event triggers are silenced where the role may do that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.db.scan import problem_with
from trueup.db.schema import PRINTED, Item, Name, SchemaDifference
from trueup.db.statements import load

_NAME = r"""(?:"(?:[^"]|"")*"|[\w$]+)"""
# A literal of a type outside of pg_catalog: everything is printed with `search_path = pg_catalog`.
_TYPED_LITERAL = re.compile(rf"'::({_NAME}\.{_NAME})")
_CHECK = re.compile(r"CHECK \((.*)\)((?: NO INHERIT| NOT ENFORCED)*)", re.DOTALL)
_LOCK_TIMEOUT = "200ms"
# What can only be parsed by replacing it, which locks its table.
_LOCKING = ("rule", "trigger")

# The parts of a text that are compared as they are, and the texts that the server prints again.
Reprinted = tuple[str, ...]


def without_equal_meaning(
    connection: Connection,
    differences: Sequence[SchemaDifference],
    here: Mapping[Name, Item],
    there: Mapping[Name, Item],
    *,
    is_in_use: bool = False,
) -> list[SchemaDifference]:
    """Return the differences without objects that only print differently on the server of `connection` and another.

    `here` are the objects of this server, `there` those of the other one. What cannot be compared stays a difference:
    a server does not know the syntax of newer ones. Where the meaning was compared and differs, the remark that
    versions may print it differently is left out. If the database `is_in_use`, rules and triggers are not compared:
    that would lock tables.
    """
    candidates = [
        difference
        for difference in differences
        if _is_printed(difference, here, there) and not (is_in_use and difference.kind in _LOCKING)
    ]
    if not candidates:
        return list(differences)
    same: dict[Name, bool | None] = {}
    with _silent(connection) as is_safe:
        if is_safe is None:
            return list(differences)
        for difference in candidates:
            name = (difference.kind, difference.schema, difference.name)
            results = [_same(connection, there[name], here[name], fact, is_safe) for fact in difference.facts]
            same[name] = False if False in results else None if None in results else True
    kept = [(each, same.get((each.kind, each.schema, each.name))) for each in differences]
    return [replace(each, remark="") if result is False else each for each, result in kept if result is not True]


def _is_printed(difference: SchemaDifference, here: Mapping[Name, Item], there: Mapping[Name, Item]) -> bool:
    name = (difference.kind, difference.schema, difference.name)
    return (
        difference.how == "changed"
        and set(difference.facts) <= set(PRINTED)
        and here[name].version != there[name].version
    )


@contextmanager
def _silent(connection: Connection) -> Iterator[Callable[[str], bool] | None]:
    """Open a transaction that is rolled back; yield whether a text may be parsed, or None if no text may be."""
    statements = load("trueup.db", "meaning.sql")
    with connection.transaction(force_rollback=True):
        # A session that reads only; a query would fix that for the transaction.
        if one_value(connection.execute("SHOW transaction_read_only")) == "on":
            connection.execute("SET TRANSACTION READ WRITE")
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'; SET LOCAL check_function_bodies = off")
        try:
            with connection.transaction():
                connection.execute("SET LOCAL session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            pass
        if not one_value(connection.execute(load("trueup.db", "foreign_code.sql")["is_superuser"])):
            yield lambda text: True
        elif one_value(connection.execute(statements["foreign_event_triggers"])):
            yield None
        else:
            yield lambda text: bool(
                one_value(connection.execute(statements["are_safe"], {"types": _TYPED_LITERAL.findall(text)}))
            )


def _same(connection: Connection, one: Item, other: Item, fact: str, is_safe: Callable[[str], bool]) -> bool | None:
    """Return whether two definitions mean the same; None if that cannot be compared here."""
    texts, others = _texts(one.facts[fact]), _texts(other.facts[fact])
    if texts.keys() != others.keys() or (fact == "body" and not _is_parsed(texts.get("", "")) and texts != others):
        return False
    result: bool | None = True
    for name, text in texts.items():
        if not (is_safe(text) and is_safe(others[name])):
            result = None
            continue
        printed, expected = _reprint(connection, one, fact, text), _reprint(connection, other, fact, others[name])
        if printed is None or expected is None:
            result = None
        elif printed[1] != expected[1]:
            return False
        elif printed != expected:
            # What is not parsed again may be printed differently.
            result = None
    return result


def _is_parsed(body: str) -> bool:
    """Return whether a body is in standard SQL, which the server prints; it stores others as they were written."""
    return body.startswith("CREATE OR REPLACE ")


def _texts(value: Any) -> dict[str, str]:
    """Return the definitions of a fact by name: the constraints of a domain have names, others have one text."""
    texts = value if isinstance(value, dict) else {"": value}
    return {name: text for name, text in texts.items() if isinstance(text, str)} or {"none": "none"}


def _reprint(connection: Connection, item: Item, fact: str, text: str) -> Reprinted | None:
    """Return a definition as this server prints it, or None if it cannot be parsed here."""
    parts = _statement(item, fact, text)
    if parts is None:
        return None
    plain, statement, query = parts
    try:
        with connection.transaction(force_rollback=True), connection.cursor() as cursor:
            # As one statement only, whatever the text contains.
            cursor.execute(statement.encode(), binary=True)
            return plain, str(one_value(connection.execute(query)))
    except (psycopg.errors.QueryCanceled, psycopg.OperationalError):
        if connection.closed:
            raise
        return None
    except psycopg.Error:
        return None


def _statement(item: Item, fact: str, text: str) -> tuple[str, str, sql.SQL | sql.Composed] | None:
    """Return what is compared as it is, the statement that parses the rest, and the query that prints it again."""
    if fact == "defaults":
        return None if problem_with(text) else _as_view("", f"SELECT ({text}) AS e")
    if item.kind in ("view", "materialized view"):
        return _as_view("", text.rstrip().rstrip(";"))
    if item.kind in ("rule", "trigger") and item.table is not None:
        return _replaced(item, text)
    if item.kind in ("function", "procedure") and fact == "body":
        return _function(item, text)
    if item.facts.get("expressions"):
        return _with_expressions(item, text)
    plain = ""
    if fact == "generated":
        plain, _, text = text.partition(": ")
    elif fact in ("definition", "constraints"):
        match = _CHECK.fullmatch(text)
        if match is None:
            return None
        text, plain = match[1], match[2]
    if item.kind == "type":
        base = item.facts["base"]
        return _as_view(plain, f"SELECT ({text}) AS e FROM (SELECT NULL::{base} AS value) d")
    if item.table is None or fact == "index" or problem_with(text):
        return None
    return _as_view(plain, f"SELECT ({text}) AS e FROM {sql.Identifier(*item.table).as_string(None)}")


def _with_expressions(item: Item, text: str) -> tuple[str, str, sql.SQL | sql.Composed] | None:
    """Return the expressions of a definition as columns of a view, and the definition without them.

    Of an index, an exclusion constraint, a statistics object, a partition key, and the defaults of arguments.
    """
    expressions = item.facts["expressions"]
    if any(problem_with(each) for each in expressions):
        return None
    for expression in expressions:
        if expression not in text:
            return None
        text = text.replace(expression, "…", 1)
    columns = ", ".join(f"({expression}) AS e{number}" for number, expression in enumerate(expressions))
    rows = f" FROM {sql.Identifier(*item.table).as_string(None)}" if item.table is not None else ""
    return _as_view(text, f"SELECT {columns}{rows}")


def _as_view(plain: str, query: str) -> tuple[str, str, sql.SQL | sql.Composed]:
    printed = sql.SQL("SELECT pg_get_viewdef('pg_temp.trueup_meaning'::regclass)")
    return plain, f"CREATE TEMP VIEW trueup_meaning AS {query}", printed


def _function(item: Item, text: str) -> tuple[str, str, sql.SQL | sql.Composed] | None:
    """Return the statement that replaces a function with a body in standard SQL, which is printed with its head."""
    name, _, arguments = item.name.partition("(")
    head = f"CREATE OR REPLACE {item.kind.upper()} {_quoted(item.schema)}.{name}("
    if not text.startswith(head):
        return None
    signature = f"{_quoted(item.schema)}.{name}({arguments}"
    return "", text, sql.SQL("SELECT pg_get_functiondef({}::regprocedure)").format(sql.Literal(signature))


def _replaced(item: Item, text: str) -> tuple[str, str, sql.SQL | sql.Composed] | None:
    """Return the statement that replaces a rule or a trigger of a table until the transaction is rolled back."""
    assert item.table is not None
    head = f"CREATE {item.kind.upper()} "
    match = re.match(rf"{head}({_NAME}) ", text)
    if match is None:
        return None
    query = sql.SQL(load("trueup.db", "meaning.sql")[item.kind])
    printed = query.format(table=sql.Literal(sql.Identifier(*item.table).as_string(None)), name=sql.Literal(match[1]))
    return "", f"CREATE OR REPLACE {item.kind.upper()} {text[len(head) :]}", printed


def _quoted(name: str) -> str:
    """Return a name as the server prints it."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else sql.Identifier(name).as_string(None)
