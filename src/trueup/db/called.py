"""What expressions call: functions of PostgreSQL with effects, and what the parts of types add to a tree."""

from __future__ import annotations

from itertools import product

from trueup.db.connection import Connection
from trueup.db.node_tree import Calls
from trueup.db.statements import load

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


def add_types(connection: Connection, calls: Calls) -> None:
    """Add the parts of types, and what the checks of domains call, until nothing is new."""
    statement, done = load("trueup.db", "expressions.sql")["parts"], -1
    while len(calls.types) > done and max(calls.types, default=0) >= 16384:
        done = len(calls.types)
        for oid, checks in connection.execute(
            statement, {"types": [*calls.types], "read": [*calls.read_types]}
        ).fetchall():
            calls.types.add(oid)
            for tree in checks:
                calls.add(tree)
