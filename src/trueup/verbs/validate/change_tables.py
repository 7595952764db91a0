"""Add, remove and restart tables of a validation, also while it runs.

A command stores the request in the meta database, in one transaction with the new settings. The running process sees it
in its next round, opens everything again at its last checkpoint, and applies the request. If no process runs, the
command applies the request itself; the next start uses the new settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.db.storable import as_json
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.option_checks import refuse_wrong_options
from trueup.verbs.validate.plan import plan_pair
from trueup.verbs.validate.routes import (
    Name,
    Route,
    find_routes,
    is_match,
    name_parts,
    option_tables,
    selected_tables,
    without_tables,
)  # fmt: skip
from trueup.verbs.validate.settings import Settings

_APPLICATION = "trueup validate tables"
_POLL_SECONDS = 0.1


def add(meta: Meta, name: str, nodes: tuple[Node, Node], tables: Sequence[str], options: Settings) -> int:
    """Request to add tables, with the options about them; return the number of the request.

    Raises if a table cannot be validated, is part of the validation already, or an option is not about a new table.
    """
    stored = meta.need(name)
    with _session(nodes[0]) as source, _session(nodes[1]) as target:
        known = set(selected_tables(source, stored.settings))
        settings = _with_tables(source, stored.settings, tables, options)
        routes = find_routes(source, settings)
        added = [route for route in routes if route.source not in known]
        _refuse_known(tables, known, added)
        _refuse_options_of(options, added, known)
        refuse_wrong_options(source, target, nodes[0], settings, routes)
        for route in added:
            plan_pair(source, target, route, settings)
    with meta.transaction():
        meta.rows("lock_row", name=name)
        if meta.need(name).settings != stored.settings:
            raise CheckFailed([f"the settings of validation {name} were changed meanwhile"], cure="run it again")
        if stored.has_begun:
            for route in added:
                meta.rows("add_table", name=name, source=route.name, target=display_name(*route.target))
        return _store(meta, name, settings)


def remove(meta: Meta, name: str, tables: Sequence[str]) -> int:
    """Request to remove tables with all that was found about them; return the number of the request."""
    with meta.transaction():
        meta.rows("lock_row", name=name)
        names = own_names(meta, name, tables)
        if not {row["source"] for row in meta.rows("tables", name=name)} - set(names):
            raise ConfigError(
                f"{', '.join(names)}: the last table of a validation cannot be removed",
                cure=f"run trueup validate delete {name}",
            )
        meta.rows("request_tables", name=name, sources=names, requested="remove")
        settings = without_tables(meta.need(name).settings, [name_parts(table) for table in names])
        return _store(meta, name, settings)


def restart(meta: Meta, name: str, tables: Sequence[str]) -> int:
    """Request to forget what was found about tables and to validate them again; return the number of the request."""
    with meta.transaction():
        meta.rows("lock_row", name=name)
        meta.rows("request_tables", name=name, sources=own_names(meta, name, tables), requested="restart")
        return _store(meta, name, meta.need(name).settings)


def wait_until_applied(meta: Meta, name: str, number: int, *, timeout: float) -> None:
    """Wait until the running process has applied a request; if no process runs, apply it."""
    deadline = time.monotonic() + timeout
    while meta.need(name).requests_applied < number:
        with meta.transaction():
            # A starting process writes the row before it takes the lock.
            meta.rows("lock_row", name=name)
            if not meta.is_running(name):
                meta.apply_requests(name)
                return
        if time.monotonic() > deadline:
            raise TrueupError(
                f"validation {name} has not applied the request within {timeout:g} s; it does after its current step",
                cure=f"see trueup validate status {name} and its log",
            )
        time.sleep(_POLL_SECONDS)


def _with_tables(source: Connection, settings: Settings, tables: Sequence[str], options: Settings) -> Settings:
    removed = tuple(
        table for table in settings.removed if not any(is_match(pattern, name_parts(table)) for pattern in tables)
    )
    settings = replace(settings, removed=removed)
    wanted = set(selected_tables(source, replace(settings, tables=tuple(tables))))
    # A table that an earlier pattern selects again needs no pattern of its own.
    if not wanted <= set(selected_tables(source, settings)):
        settings = replace(settings, tables=tuple(dict.fromkeys((*settings.tables, *tables))))
    return replace(
        settings,
        routes=(*settings.routes, *options.routes),
        renames=(*settings.renames, *options.renames),
        filters=(*settings.filters, *options.filters),
        constants=(*settings.constants, *options.constants),
        excludes=(*settings.excludes, *options.excludes),
        allow_functions=tuple(dict.fromkeys((*settings.allow_functions, *options.allow_functions))),
    )


def _refuse_known(tables: Sequence[str], known: set[Name], added: Sequence[Route]) -> None:
    for table in tables:
        if not any(is_match(table, route.source) for route in added):
            raise ConfigError(
                f"table {table} is part of this validation already",
                cure="validate it again from now on with trueup validate restart",
            )


def _refuse_options_of(options: Settings, added: Sequence[Route], known: set[Name]) -> None:
    """Raise ConfigError for an option that would change how other tables are compared."""
    names = {route.source for route in added}
    others = {schema for schema, _ in known}
    for option, table in option_tables(options):
        is_of_added = table in names or (table[1] == "*" and table[0] not in others)
        if not is_of_added:
            raise ConfigError(
                f"{option}: {display_name(*table)} is not a table that is added", cure="name an added table"
            )


def own_names(meta: Meta, name: str, tables: Sequence[str]) -> list[str]:
    """Return the names of tables as the status shows them; raise ConfigError for one that is not validated."""
    known = [row["source"] for row in meta.rows("tables", name=name)]
    names = [display_name(*name_parts(table)) for table in tables]
    for table in names:
        if table not in known:
            raise ConfigError(
                f"table {table} is not part of validation {name}", cure=f"use one of its tables: {', '.join(known)}"
            )
    return names


def _store(meta: Meta, name: str, settings: Settings) -> int:
    return int(meta.value("request", name=name, settings=as_json(settings.checked().as_json())))


@contextmanager
def _session(node: Node) -> Iterator[Connection]:
    connection = connect(node, application=_APPLICATION)
    try:
        yield connection
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
    finally:
        connection.close()
