"""Finds code of other roles that a superuser would run by using a table of theirs.

The planner of a query evaluates functions in expressions of indexes, constraints, statistics and partition keys. A
write also runs those of rules, defaults, generated columns, domains, ranges in indexes and triggers, also of the tables
that a foreign key with an action writes to. Both compare values with the functions of operator classes. Functions of
PostgreSQL itself and of extensions belong to a superuser, but the owner of a table chooses what they do:
`CHECK (query_to_xml('SELECT …') IS NOT NULL)`, or a trigger with `lo_manage`, which deletes any large object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.rows import class_row

from trueup.db.called import DENIED, FIRST_OWN, Parts, add_defaults, add_types, read_parts
from trueup.db.connection import Connection, one_row, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.node_tree import Calls, UnknownTree
from trueup.db.statements import load
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from typing_extensions import LiteralString

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
    # Functions of triggers that only change the row that is written, or send a notification.
    *("suppress_redundant_updates_trigger", "tsvector_update_trigger", "tsvector_update_trigger_column"),
    *("moddatetime", "insert_username", "triggered_change_notification", "postgis_cache_bbox"),
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
    # As in `_Evaluated.callers`.
    called_by: list[str]

    def problem(self, *, is_foreign: bool) -> str | None:
        """Return what is wrong with a call; `is_foreign`: a role that is not a superuser wrote it."""
        if not self.is_of_superuser:
            return f"calls the function {self.signature} of the role {self.owner}, which {_RUNS}"
        effect = self.is_volatile or self.name in DENIED
        if is_foreign and self.is_packaged and effect and self.name not in _HARMLESS:
            return f"calls {self.signature}, which may have any effect and {_RUNS}"
        return None


@dataclass
class _Evaluated:
    """Something that a write evaluates."""

    place: str
    calls: Calls
    # A role that is not a superuser wrote it.
    is_foreign: bool
    # The tables whose writes evaluate it, by their places in a list.
    roots: Sequence[int] = ()
    problems: list[str] = field(default_factory=list)

    def add(self, tree: str) -> None:
        """Add what a tree calls; something unknown in it is a problem."""
        with self._known():
            self.calls.add(tree)

    def add_types(self, parts: Parts) -> None:
        """Add what the types call."""
        if not self.problems:
            with self._known():
                add_types(self.calls, parts)
                self.is_foreign |= add_defaults(self.calls, parts)

    @contextmanager
    def _known(self) -> Iterator[None]:
        try:
            yield
        except UnknownTree as error:
            self.problems = [f"{self.place} contains {error}, which cannot be checked and {_RUNS}"]

    def callers(self) -> set[str]:
        """Return what it calls, as in the column called_by."""
        calls = self.calls
        kinds = {"function": calls.functions, "operator": calls.operators, "type": calls.types}
        if calls.functions or calls.operators:
            kinds["value"] = calls.types
        return {f"{kind} {oid}" for kind, oids in kinds.items() for oid in oids}


def foreign_code(
    connection: Connection,
    schema: str,
    table: str,
    *,
    writes: bool,
    silenced: bool = False,
) -> list[str]:
    """Return the functions of other roles that a superuser runs by using a table: see `foreign_code_of`."""
    found = foreign_code_of(connection, [(schema, table)], writes=writes, silenced=silenced)
    return found.get((schema, table), [])


def foreign_code_of(
    connection: Connection,
    tables: Sequence[TableName],
    *,
    writes: bool,
    silenced: bool = False,
    disabled: bool = False,
    for_superuser: bool = False,
) -> dict[TableName, list[str]]:
    """Return the functions of other roles that a superuser runs by using tables, by table: none, if it is not in it.

    `FOREIGN_CODE_CURE` is the cure. `silenced`: only the triggers fire that fire anyway; `disabled`: the caller
    disables these before it writes. For a role without superuser rights the result is empty, unless `for_superuser`: a
    superuser will use copies of the tables. The number of queries does not depend on the number of tables.
    """
    statements = load("trueup.db", "foreign_code.sql")
    if not tables or not (for_superuser or one_value(connection.execute(statements["is_superuser"]))):
        return {}
    names = {"schemas": [schema for schema, _ in tables], "tables": [table for _, table in tables]}
    values = {**names, "writes": writes, "silenced": silenced, "disabled": disabled}
    reasons: dict[int, list[str]] = defaultdict(list)
    # The question about all functions takes a fraction of the time: planning the other one takes milliseconds.
    if one_value(connection.execute(statements["has_functions"])):
        for root, *found in connection.execute(_using("foreign_code"), values).fetchall():
            reasons[root].append(_calls(*found))
    if writes:
        for root, place in connection.execute(_using("rules"), values).fetchall():
            reasons[root].append(f"{place} {_RUNS}")
        for each in _evaluated(connection, values):
            for root in each.roots:
                reasons[root] += each.problems
    return {tables[root - 1]: list(dict.fromkeys(reasons[root]))[:_SHOWN] for root in sorted(reasons) if reasons[root]}


def _using(statement: str) -> LiteralString:
    statements = load("trueup.db", "foreign_code.sql")
    return statements["used"] + "\n" + statements[statement]


def code_of_definitions(connection: Connection, classes: Sequence[str]) -> list[str]:
    """Return the functions of other roles that a superuser may run by a statement that uses these operator classes."""
    statement = load("trueup.db", "foreign_code.sql")["definitions"]
    return [_calls(*found) for found in connection.execute(statement, {"classes": list(classes)}).fetchall()]


def _calls(place: str, function: str, owner: str) -> str:
    return f"{place} calls the function {function} of the role {owner}, which {_RUNS}"


def lock_checked(
    connection: Connection, schema: str, table: str, *, silenced: bool = False, known: str | None = None
) -> str | None:
    """Lock a table before a transaction writes to it, and raise CheckFailed if its owner has added code since a check.

    The lock comes first: no other session can create or enable a trigger, a rule, a default value or a constraint until
    the end of the transaction, or rename the schema. Return a fingerprint of the code, for `known` of later calls,
    which are faster; None, and no lock, for a role without superuser rights.
    """
    is_superuser, role, may_lock = one_row(connection.execute(load("trueup.db", "foreign_code.sql")["writer"]))
    if not is_superuser:
        return None
    values = {"schemas": [schema], "tables": [table], "writes": True, "silenced": silenced}
    # The table is written by its name: no lock on it keeps its schema from being renamed.
    if not may_lock:
        connection.execute("SET LOCAL ROLE NONE")
    connection.execute(load("trueup.db", "foreign_code.sql")["lock_schema"], {"schema": schema})
    if not may_lock:
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    locked: set[str] = set()
    others = {sql.Identifier(schema, table).as_string(connection)}
    while others - locked:
        names = ", ".join(sorted(others - locked))
        connection.execute(f"LOCK TABLE {names} IN ROW EXCLUSIVE MODE".encode())
        locked |= others
        fingerprint, written = one_row(connection.execute(_using("fingerprint"), values))
        others = set(written)
    if fingerprint != known and (reasons := foreign_code(connection, schema, table, writes=True, silenced=silenced)):
        raise CheckFailed(reasons, cure=FOREIGN_CODE_CURE)
    return str(fingerprint)


def problems_of(connection: Connection, place: str, calls: Calls) -> list[str]:
    """Return the functions that a superuser must not run of something that another role wrote."""
    each = _Evaluated(place, calls, is_foreign=True)
    _check(connection, [each])
    return each.problems


def _evaluated(connection: Connection, values: Mapping[str, object]) -> list[_Evaluated]:
    """Return what writes to tables evaluate, with the problems."""
    many = []
    for roots, place, tree, types, is_foreign, function in connection.execute(_using("written"), values).fetchall():
        calls = Calls(types={*(types or ())}, read_types={*(types or ())}, functions={function} if function else set())
        each = _Evaluated(place, calls, is_foreign, roots)
        if tree is not None:
            each.add(tree)
        many.append(each)
    _check(connection, many)
    return many


def _check(connection: Connection, many: Sequence[_Evaluated]) -> None:
    """Add the problems of the functions that these call."""
    parts = read_parts(connection, (each.calls for each in many))
    for each in many:
        each.add_types(parts)
    usable = [each for each in many if not each.problems]
    oids = {
        "functions": {oid for each in usable for oid in each.calls.functions},
        "operators": {oid for each in usable for oid in each.calls.operators},
        "types": {oid for each in usable for oid in each.calls.types if oid >= FIRST_OWN},
    }
    if not any(oids.values()):
        return
    with connection.cursor(row_factory=class_row(_Function)) as cursor:
        values = {kind: [*found] for kind, found in oids.items()}
        functions = cursor.execute(load("trueup.db", "foreign_code.sql")["called"], values).fetchall()
    suspicious = [function for function in functions if function.problem(is_foreign=True)]
    for each in usable if suspicious else ():
        callers = each.callers()
        found = [
            function.problem(is_foreign=each.is_foreign)
            for function in suspicious
            if not callers.isdisjoint(function.called_by)
        ]
        each.problems += [f"{each.place} {problem}" for problem in found if problem]
