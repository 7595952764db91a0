"""What expressions call: functions of PostgreSQL with effects, and what the parts of types add to a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

from trueup.db.connection import Connection
from trueup.db.node_tree import Calls, UnknownTree
from trueup.db.statements import load

# The first OID that is not of PostgreSQL itself.
FIRST_OWN = 16384

# Functions of pg_catalog that are stable or immutable, and nevertheless have effects or run other code.
DENIED = {
    **dict.fromkeys(
        map("".join, product(("table", "schema", "database"), ("_to_xml", "_to_xmlschema", "_to_xml_and_xmlschema"))),
        "reads other tables and views, and runs the functions of views",
    ),
    **dict.fromkeys(
        (
            *map("".join, product(("json", "jsonb"), ("_populate_record", "_populate_recordset"))),
            *map("".join, product(("json", "jsonb"), ("_to_record", "_to_recordset"))),
            *("jsonb_populate_record_valid", "pg_input_is_valid", "pg_input_error_info"),
        ),
        "reads values of any type, and runs the checks of domains",
    ),
    **dict.fromkeys(("txid_current", "pg_current_xact_id"), "assigns a transaction number"),
    **dict.fromkeys(
        ("fmgr_internal_validator", "fmgr_c_validator", "fmgr_sql_validator"), "loads or parses the code of functions"
    ),
}

# Functions of pg_catalog whose result depends on a setting of the session that no trigger function sets; and those that
# do so if their first argument is not a configuration.
_READS_SETTING = {"current_setting", "get_current_ts_config"}
_NEEDS_CONFIGURATION = {
    *("to_tsvector", "json_to_tsvector", "jsonb_to_tsvector", "ts_headline"),
    *("to_tsquery", "plainto_tsquery", "phraseto_tsquery", "websearch_to_tsquery"),
}


def reads_setting(name: str, arguments: str) -> bool:
    """Return whether a function of pg_catalog returns another value in a session with other settings."""
    return name in _READS_SETTING or (name in _NEEDS_CONFIGURATION and not arguments.startswith("regconfig"))


@dataclass(frozen=True)
class Part:
    """A type that another one contains, or the type itself; for a domain what it evaluates, as trees."""

    oid: int
    checks: tuple[str, ...]
    default: str | None
    # A domain of a role that is not a superuser.
    is_foreign: bool


# The parts of types by the type; built-in types are not in it.
Parts = Mapping[int, Sequence[Part]]


def read_parts(connection: Connection, many: Iterable[Calls]) -> Parts:
    """Return the parts of all types of these calls, and of the types that checks and default values of domains use."""
    statement = load("trueup.db", "expressions.sql")["parts"]
    parts: dict[int, list[Part]] = {}
    wanted = {oid for calls in many for oid in calls.types if oid >= FIRST_OWN}
    while wanted:
        parts.update((oid, []) for oid in wanted)
        inner = Calls()
        for of, oid, checks, default, is_foreign in connection.execute(statement, {"types": [*wanted]}).fetchall():
            part = Part(oid, tuple(checks), default, is_foreign)
            parts[of].append(part)
            for tree in (*part.checks, *([part.default] if part.default else ())):
                # What is not known is an error only for those who use it.
                with suppress(UnknownTree):
                    inner.add(tree)
        wanted = {oid for oid in inner.types if oid >= FIRST_OWN} - parts.keys()
    return parts


def add_types(calls: Calls, parts: Parts) -> None:
    """Add the parts of types, and for types that are read from a text what the checks of domains call."""
    done: set[tuple[int, bool]] = set()
    while new := {(oid, oid in calls.read_types) for oid in calls.types} - done:
        done |= new
        for oid, is_read in new:
            for part in parts.get(oid, ()):
                calls.types.add(part.oid)
                for tree in part.checks if is_read else ():
                    calls.add(tree)


def add_defaults(calls: Calls, parts: Parts) -> bool:
    """Add what the default values of domains call; return whether a role that is not a superuser owns a domain."""
    found = {part for oid in calls.types for part in parts.get(oid, ())}
    for part in found:
        if part.default is not None:
            calls.add(part.default)
    add_types(calls, parts)
    return any(part.is_foreign for part in found)
