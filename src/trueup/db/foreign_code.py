"""Finds code of other roles that a superuser would run by using a table of theirs.

The planner of a query evaluates functions in expressions of indexes, constraints, statistics and partition keys. A
write also runs those of rules, defaults, generated columns, domains, ranges in indexes and triggers, also of the tables
that a foreign key with an action writes to. Both compare values with the functions of operator classes. Functions of
PostgreSQL itself and of extensions belong to a superuser, but the owner of a table chooses what they do:
`CHECK (query_to_xml('SELECT …') IS NOT NULL)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import class_row

from trueup.db.called import DENIED, add_types
from trueup.db.connection import Connection, one_row, one_value
from trueup.db.node_tree import Calls, UnknownTree
from trueup.db.statements import load
from trueup.errors import CheckFailed

FOREIGN_CODE_CURE = (
    "connect as the owner of the table or as another role without superuser rights (a member of pg_read_all_data can"
    " read all tables), or make a superuser the owner of the function"
)
_RUNS = "would run with superuser rights"
# Volatile functions, and some that expressions of users may not call, with no effect but their value.
_HARMLESS = {
    *("nextval", "currval", "lastval", "random", "random_normal", "clock_timestamp", "timeofday"),
    *("gen_random_uuid", "uuidv4", "uuidv7", "uuid_generate_v1", "uuid_generate_v1mc", "uuid_generate_v4"),
    *("gen_random_bytes", "gen_salt", "txid_current", "pg_current_xact_id"),
}
_SHOWN = 5


@dataclass(frozen=True)
class _Function:
    signature: str
    name: str
    owner: str
    is_of_superuser: bool
    is_volatile: bool
    # Part of PostgreSQL or of an extension.
    is_packaged: bool

    def problem(self, *, is_foreign: bool) -> str | None:
        """Return what is wrong with a call; `is_foreign`: a role that is not a superuser wrote it."""
        if not self.is_of_superuser:
            return f"calls the function {self.signature} of the role {self.owner}, which {_RUNS}"
        effect = self.is_volatile or self.name in DENIED
        if is_foreign and self.is_packaged and effect and self.name not in _HARMLESS:
            return f"calls {self.signature}, which may have any effect and {_RUNS}"
        return None


def foreign_code(
    connection: Connection,
    schema: str,
    table: str,
    *,
    writes: bool,
    silenced: bool = False,
    disabled: bool = False,
    for_superuser: bool = False,
) -> list[str]:
    """Return the functions of other roles that a superuser runs by using a table; `FOREIGN_CODE_CURE` is the cure.

    `silenced`: only the triggers fire that fire anyway; `disabled`: the caller disables these before it writes. For a
    role without superuser rights the result is empty, unless `for_superuser`: a superuser will use a copy of the table.
    """
    statements = load("trueup.db", "foreign_code.sql")
    if not for_superuser and not one_value(connection.execute(statements["is_superuser"])):
        return []
    values = {"schema": schema, "table": table, "writes": writes, "silenced": silenced, "disabled": disabled}
    # The question about all functions takes a fraction of the time: planning the other one takes milliseconds.
    has_functions = one_value(connection.execute(statements["has_functions"]))
    reasons = _found(connection, "foreign_code", values) if has_functions else []
    if not writes:
        return reasons
    rules = connection.execute(statements["rules"], values).fetchall()
    reasons += [f"{place} {_RUNS}" for (place,) in rules]
    for place, tree, types, is_foreign in connection.execute(statements["written"], values).fetchall():
        reasons += _problems(connection, place, tree, types or (), is_foreign=is_foreign)
    return list(dict.fromkeys(reasons))[:_SHOWN]


def code_of_definitions(connection: Connection, classes: Sequence[str]) -> list[str]:
    """Return the functions of other roles that a superuser may run by a statement that uses these operator classes."""
    return _found(connection, "definitions", {"classes": list(classes)})


def _found(connection: Connection, statement: str, values: Mapping[str, object]) -> list[str]:
    rows = connection.execute(load("trueup.db", "foreign_code.sql")[statement], values).fetchall()
    return [
        f"{place} calls the function {function} of the role {owner}, which {_RUNS}" for place, function, owner in rows
    ]


def lock_checked(
    connection: Connection, schema: str, table: str, *, silenced: bool = False, known: str | None = None
) -> str | None:
    """Lock a table before a transaction writes to it, and raise CheckFailed if its owner has added code since a check.

    The lock comes first: no other session can create or enable a trigger, a rule, a default value or a constraint until
    the end of the transaction. Return a fingerprint of the code, for `known` of later calls, which are faster; None,
    and no lock, for a role without superuser rights.
    """
    statements = load("trueup.db", "foreign_code.sql")
    if not one_value(connection.execute(statements["is_superuser"])):
        return None
    values = {"schema": schema, "table": table, "writes": True, "silenced": silenced}
    locked: set[str] = set()
    others = {sql.Identifier(schema, table).as_string(connection)}
    while others - locked:
        names = ", ".join(sorted(others - locked))
        connection.execute(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE".encode())
        locked |= others
        fingerprint, written = one_row(connection.execute(statements["fingerprint"], values))
        others = set(written)
    if fingerprint != known and (reasons := foreign_code(connection, schema, table, writes=True, silenced=silenced)):
        raise CheckFailed(reasons, cure=FOREIGN_CODE_CURE)
    return str(fingerprint)


def _problems(
    connection: Connection, place: str, tree: str | None, types: tuple[int, ...], *, is_foreign: bool
) -> list[str]:
    calls = Calls(types={*types}, read_types={*types})
    try:
        if tree is not None:
            calls.add(tree)
    except UnknownTree as error:
        return [_unknown(place, error)]
    return problems_of(connection, place, calls, is_foreign=is_foreign)


def _unknown(place: str, error: UnknownTree) -> str:
    return f"{place} contains {error}, which cannot be checked and {_RUNS}"


def problems_of(connection: Connection, place: str, calls: Calls, *, is_foreign: bool) -> list[str]:
    """Return the functions among these that a superuser must not run; `is_foreign`: another role wrote the calls."""
    statements = load("trueup.db", "foreign_code.sql")
    try:
        add_types(connection, calls)
        domains = connection.execute(statements["domains"], {"types": [*calls.types]}).fetchall()
        for default, _ in domains:
            if default is not None:
                calls.add(default)
        add_types(connection, calls)
    except UnknownTree as error:
        return [_unknown(place, error)]
    is_foreign = is_foreign or any(is_of_other for _, is_of_other in domains)
    with connection.cursor(row_factory=class_row(_Function)) as cursor:
        cursor.execute(
            statements["called"],
            {"functions": [*calls.functions], "operators": [*calls.operators], "types": [*calls.types]},
        )
        found = [problem for each in cursor.fetchall() if (problem := each.problem(is_foreign=is_foreign))]
    return [f"{place} {problem}" for problem in found]
