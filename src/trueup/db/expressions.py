"""Check the functions that an SQL expression of the user calls, before a statement contains it.

The server parses the expression, without planning or running it, and prints its tree. Allowed are functions of
pg_catalog that are not volatile, except those below, functions of extensions that the configuration names, and those
that the user allows by name. Operators, casts and the checks of domains are functions as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import psycopg
from psycopg import pq, sql
from psycopg.rows import class_row

from trueup.config.model import Node
from trueup.config.settings import ExpressionSettings
from trueup.db.called import DENIED, add_types, read_parts, reads_setting
from trueup.db.connection import Connection, one_value
from trueup.db.foreign_code import foreign_code_of, problems_of
from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.node_tree import Calls, UnknownTree
from trueup.db.scan import has_qualified_name, problem_with, with_parameters
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError

_HINTS = {
    "42601": " (it must be one complete expression)",
    "42P01": " (write tables with their schema: public.orders)",
    "42883": " (write functions and operators with their schema: public.f(x))",
    "42704": " (write types with their schema: x::public.mood)",
}
CURE = "change the expression, or allow its functions with --allow-functions"
_CONDITION = sql.SQL("SELECT 1 FROM {source} WHERE (\n{text}\n)")
_VALUE = sql.SQL("SELECT (\n{text}\n) FROM {source}")
_SHARD = sql.SQL("SELECT (\n{text}\n)::bigint FROM {source}")
_QUERY = sql.SQL("SELECT 1 FROM (\n{text}\n) q")
FORMS = {"condition": _CONDITION, "value": _VALUE, "shard": _SHARD, "query": _QUERY}
_TREE = "SET LOCAL debug_print_rewritten = on; SET LOCAL debug_pretty_print = off; SET LOCAL client_min_messages = log"


@dataclass(frozen=True)
class Function:
    """A function that an expression calls."""

    schema: str
    name: str
    arguments: str
    is_built_in: bool
    is_volatile: bool
    is_internal: bool
    owner: str
    is_of_superuser: bool
    extension: str

    @property
    def names(self) -> tuple[str, ...]:
        """How the user may name the function; the first is shown."""
        qualified = (display_name(self.schema, self.name), f"{self.schema}.{self.name}")
        return (self.name, *qualified) if self.is_built_in else qualified

    def problem(self, allowed: ExpressionSettings, *, in_trigger: bool = False) -> str | None:
        """Return why the function is refused, or None; `in_trigger`: it runs in the sessions of writers."""
        if set(self.names) & set(allowed.functions):
            return None
        if self.is_built_in:
            if self.is_volatile:
                return "is volatile: it may write, or return another value for the same row"
            if self.is_internal:
                return "is internal"
            if in_trigger and reads_setting(self.name, self.arguments):
                return "depends on a setting of the session that writes"
            return DENIED.get(self.name)
        # The owner of an extension can add functions to it, also functions of other roles.
        if self.extension and self.extension in allowed.extensions and self.is_of_superuser:
            return None
        origin = f"extension {self.extension}" if self.extension else f"role {self.owner}"
        return f"belongs to the {origin} and may run any code with the rights of this session"


@dataclass(frozen=True)
class Expression:
    """An expression as the user wrote it, what to call it in messages, and its statement: condition, shard or query."""

    what: str
    text: str
    # The FROM clause; not used by a query.
    source: sql.Composable = field(default_factory=lambda: sql.SQL(""))
    form: str = "condition"
    # The quoted name of the table, to look up the types of its columns, and its alias.
    table: str = ""
    alias: str = ""


@dataclass(frozen=True)
class Examined:
    """Why an expression cannot be used (None: it can), and the functions in it that the user had to allow, by name."""

    reason: str | None
    allowed: tuple[str, ...] = ()
    # A condition that is always true, and cannot be parsed once a column of the expression has another type: to be put
    # before the expression, which was checked for these types. For another type its operators may need a cast, which is
    # a function of the type's owner. The server parses the conditions of a statement in their order.
    guard: str = ""


def examine(
    connection: Connection, node: Node, expression: Expression, allowed: ExpressionSettings, *, definer: str = ""
) -> Examined:
    """Return whether the expression can be used on this node. Reads no rows, and runs none of its functions.

    Works on a standby, inside or outside of a transaction. `definer` is the role whose rights the expression gets when
    other roles write: then an allowed function must belong to this role or to a superuser.
    """
    problem = problem_with(expression.text)
    if problem:
        return Examined(f"{expression.what}: it is not one expression: {problem}")
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(_TREE)
            functions, calls = _functions(
                connection, expression, lambda function: not _problem(function, allowed, definer)
            )
            guard = _guard(connection, expression, calls)
            foreign = _foreign(connection, expression, calls)
    except _Unreadable as error:
        return Examined(f"{expression.what}: {error}: {_shown(expression)}")
    except UnknownTree as error:
        return Examined(f"{expression.what}: it contains {error}, which is not allowed: {_shown(expression)}")
    except psycopg.Error as error:
        rejected = error_from_server(error, node)
        if not isinstance(rejected, QueryError):
            raise rejected from None
        return Examined(f"{expression.what}: {rejected.message}{_HINTS.get(rejected.sqlstate, '')}")
    problems = [problem for function in functions if (problem := _problem(function, allowed, definer))]
    problems += foreign
    if definer and (len(calls.tables) > 1 or 0 in calls.columns):
        # Owners of tables can change types of columns; the guard covers named columns of one table.
        problems.append(f"it runs with the rights of {definer} and may read only columns of this table, by their names")
    if problems:
        return Examined(f"{expression.what}: {'; '.join(problems)}; the expression: {_shown(expression)}")
    names = tuple(
        function.names[0] for function in functions if function.problem(ExpressionSettings(), in_trigger=bool(definer))
    )
    return Examined(None, names, guard)


def refusal(connection: Connection, node: Node, expression: Expression, allowed: ExpressionSettings) -> str | None:
    """Return why the expression cannot be used on this node, or None: see `examine`."""
    return examine(connection, node, expression, allowed).reason


def check(connection: Connection, node: Node, expression: Expression, allowed: ExpressionSettings) -> None:
    """Raise CheckFailed if the expression cannot be used on this node: see `examine`."""
    reason = refusal(connection, node, expression, allowed)
    if reason:
        raise CheckFailed([reason], cure=CURE, node=node.name)


def foreign_calls(connection: Connection, node: Node, expression: Expression) -> list[str]:
    """Return what a superuser must not run of an expression that another role wrote; only parse it, see `foreign_code`.

    The server reads the values of strings while it parses: that happens only after what this calls was checked.
    """
    texts = [with_parameters(expression.text), expression.text]
    if problem := problem_with(expression.text):
        return [f"{expression.what}: it is not one expression: {problem}"]
    try:
        for text in dict.fromkeys(texts):
            with connection.transaction(force_rollback=True):
                connection.execute(_TREE)
                calls = _parse(connection, expression, text)
                if reasons := problems_of(connection, expression.what, calls):
                    return reasons
    except UnknownTree as error:
        return [f"{expression.what} contains {error}, which cannot be checked: {_shown(expression)}"]
    except psycopg.Error as error:
        rejected = error_from_server(error, node)
        if not isinstance(rejected, QueryError):
            raise rejected from None
        return [f"{expression.what} cannot be checked: {rejected.message}: {_shown(expression)}"]
    return []


def type_of(connection: Connection, expression: Expression) -> str:
    """Return the type of an expression that was checked; a domain is its base type. Only parses the expression."""
    statement = _VALUE.format(text=sql.SQL(expression.text), source=expression.source)
    for result in (
        connection.pgconn.prepare(b"", statement.as_bytes(connection)),
        described := connection.pgconn.describe_prepared(b""),
    ):
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")
    return str(one_value(connection.execute("SELECT format_type(%s, NULL)", [described.ftype(0)])))


class _Unreadable(Exception):
    """The strings of an expression cannot be checked before the server reads their values."""


def _problem(function: Function, allowed: ExpressionSettings, definer: str) -> str | None:
    shown = f"{function.names[0]}({function.arguments})"
    problem = function.problem(allowed, in_trigger=bool(definer))
    if problem:
        return f"it calls {shown}, which {problem} (to allow it: --allow-functions {function.names[0]})"
    if definer and not (function.is_built_in or function.is_of_superuser or function.owner == definer):
        return (
            f"it calls {shown} of the role {function.owner}, which could replace it by code that runs with the rights"
            f" of {definer} (to change the owner: ALTER FUNCTION {function.names[0]} OWNER TO {definer})"
        )
    return None


def _functions(
    connection: Connection, expression: Expression, is_allowed: Callable[[Function], bool]
) -> tuple[list[Function], Calls]:
    text = with_parameters(expression.text)
    functions: list[Function] = []
    calls = Calls()
    if text != expression.text:
        try:
            with connection.transaction():
                calls = _parse(connection, expression, text)
                functions = _called(connection, calls)
        except psycopg.Error as error:
            # Not everything can be written with parameters. Without types of users there is nothing to find.
            if _may_have_own_types(connection, expression):
                why = f"its strings cannot be checked as parameters ({error.diag.message_primary or error})"
                raise _Unreadable(f"{why}; write CAST('…' AS type)") from None
    if not all(map(is_allowed, functions)):
        return functions, calls
    # Now the server also reads the values of strings: everything that this may call is allowed.
    calls = _parse(connection, expression, expression.text)
    return _called(connection, calls), calls


def _parse(connection: Connection, expression: Expression, text: str) -> Calls:
    """Return what the expression calls: the server parses the statement, and prints its tree as a notice."""
    statement = FORMS[expression.form].format(text=sql.SQL(text), source=expression.source)
    trees: list[str] = []

    def receive(notice: psycopg.errors.Diagnostic) -> None:
        detail = notice.message_detail or ""
        if detail.startswith("({QUERY :commandType 1"):
            trees.append(detail)

    connection.add_notice_handler(receive)
    try:
        # Parse, without Bind: nothing is planned, because the planner runs immutable functions.
        result = connection.pgconn.prepare(b"", statement.as_bytes(connection))
    finally:
        connection.remove_notice_handler(receive)
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    if len(trees) != 1:
        raise UnknownTree("something whose tree the server did not print")
    calls = Calls()
    calls.add(trees[0])
    return calls


def _called(connection: Connection, calls: Calls) -> list[Function]:
    add_types(calls, read_parts(connection, [calls]))
    with connection.cursor(row_factory=class_row(Function)) as cursor:
        cursor.execute(
            load("trueup.db", "expressions.sql")["functions"],
            {"functions": [*calls.functions], "operators": [*calls.operators], "types": [*calls.types]},
        )
        return cursor.fetchall()


def _foreign(connection: Connection, expression: Expression, calls: Calls) -> list[str]:
    """Return the other servers, programs and code of other roles that a read of its tables would use."""
    statements, tables = load("trueup.db", "expressions.sql"), [*calls.tables]
    values = {"tables": tables, "table": expression.table or None}
    reasons = [
        f"it reads the foreign table {name}, which may reach another server or run a program"
        for (name,) in connection.execute(statements["foreign_tables"], values).fetchall()
    ]
    names = connection.execute(statements["tables"], [tables]).fetchall()
    return [*reasons, *chain.from_iterable(foreign_code_of(connection, names, writes=False).values())]


def _guard(connection: Connection, expression: Expression, calls: Calls) -> str:
    if not expression.table:
        return ""
    values = {"table": expression.table, "alias": expression.alias, "columns": list(calls.columns)}
    return str(one_value(connection.execute(load("trueup.db", "expressions.sql")["guard"], values)))


def _may_have_own_types(connection: Connection, expression: Expression) -> bool:
    if expression.form == "query" or not expression.table or has_qualified_name(expression.text):
        return True
    statement = load("trueup.db", "expressions.sql")["own_types"]
    return bool(one_value(connection.execute(statement, {"table": expression.table})))


def _shown(expression: Expression) -> str:
    text = " ".join(expression.text.split())
    return text if len(text) <= 200 else f"{text[:200]}…"
