"""Expressions over columns that never call a cast made by the owner of a type.

CREATE CAST needs only the ownership of one type, and the function of a cast runs with the rights of the session that
uses it. The owner of a table can change the type of a column at any time, also while a statement waits for the lock of
the table, so each expression is safe for whatever type the column has when the statement is parsed.
"""

from __future__ import annotations

import re

from psycopg import sql

# Arrays, ranges, and rows of system catalogs. Types without an array type are left out: no table stores them.
_OF_CREATABLE_CATEGORY = re.compile(
    r'\."(_.*|.*range|int2vector|oidvector|pg_(?!(lsn|snapshot|node_tree|ndistinct|dependencies|mcv_list|brin_.*)").*)"$'
)


def is_built_in(type_name: str) -> bool:
    """Return whether a quoted type with its schema is of pg_catalog, so that only a superuser can make casts for it."""
    return type_name.startswith('"pg_catalog".')


def is_array(type_name: str) -> bool:
    """Return whether a quoted type with its schema is an array."""
    return type_name.rpartition(".")[2].startswith('"_')


def is_scalar(type_name: str) -> bool:
    """Return whether a quoted type with its schema is of pg_catalog, and is no array, range or row of a catalog.

    Roles without superuser rights cannot create types of the category of such a type.
    """
    return is_built_in(type_name) and not _OF_CREATABLE_CATEGORY.search(type_name)


def as_type(value: sql.Composable, type_name: str, *, is_domain: bool = False) -> sql.Composed:
    """Return a column as a value of this quoted type, which is the base type of its domain.

    The planner removes the CASE; it is a check when the statement is parsed. The types of both branches must have the
    same category, and all types that a role without superuser rights can create (enums, composites, ranges, arrays)
    have other categories than scalar types. For the other types, ARRAY[column] must have the type of the array.
    """
    if is_scalar(type_name):
        return sql.SQL("(CASE WHEN true THEN {} ELSE NULL::{} END)").format(value, sql.SQL(type_name))
    if is_domain:
        return sql.SQL("{}::{}").format(output_of(value), sql.SQL(type_name))
    array = type_name if is_array(type_name) else f"{type_name}[]"
    return sql.SQL("(CASE WHEN pg_catalog.array_eq(NULL::{}, ARRAY[{value}]) IS NULL THEN {value} END)").format(
        sql.SQL(array), value=value
    )


def output_of(value: sql.Composable) -> sql.Composed:
    """Return the text of a value as its output function prints it, which is never a function of the type's owner."""
    # IS NULL is true for a composite whose fields are all NULL; IS DISTINCT FROM NULL looks at the value itself.
    return sql.SQL("(CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.concat({value}) END)").format(value=value)
