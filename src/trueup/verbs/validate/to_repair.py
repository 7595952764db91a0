"""The open errors of a validation, prepared for a repair: the keys by table, and the columns of the key.

A table whose rows are not copied to the target unchanged (other name, filter, …) is rejected: a repair must write only
the row that the error is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg

from trueup.config.model import Config, Node
from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.db.patterns import Patterns, parse_patterns
from trueup.errors import CheckFailed, ConfigError
from trueup.rows.keys import KeyValues, canonical
from trueup.verbs.validate.meta import Meta, meta_of
from trueup.verbs.validate.pending import FILE, key_values
from trueup.verbs.validate.plan import Pair, plan_pair
from trueup.verbs.validate.routes import Route, find_routes, name_parts
from trueup.verbs.validate.settings import Settings


@dataclass(frozen=True)
class TableErrors:
    """The keys of the open errors of one table, which has the same name on both nodes."""

    table: str
    key: tuple[str, ...]
    # Columns that only one of the nodes has.
    left_out: tuple[str, ...]
    keys: tuple[KeyValues, ...]


@dataclass(frozen=True)
class OpenErrors:
    """The open errors of a validation."""

    name: str
    source: Node
    target: Node
    numeric: str
    is_running: bool
    tables: tuple[TableErrors, ...]
    # Number of open errors of tables that were not selected.
    others: int = 0
    # All tables of the validation.
    validated: tuple[str, ...] = ()


def open_errors(config: Config, name: str, tables: Sequence[str] = (), *, meta_node: str = "") -> OpenErrors:
    """Return the open errors (without ignored ones) of all tables, or of those that match `tables`. Writes nothing.

    Raises CheckFailed, with all reasons, if the errors of a selected table cannot be repaired.
    """
    with meta_of(config, name, meta_node, read_only=True) as meta:
        # A repair writes all columns, even if the validation checks only that rows exist.
        settings = replace(meta.need(name).settings, mode="full")
        validated = tuple(str(row["source"]) for row in meta.rows("tables", name=name))
        patterns = parse_patterns(tables=tables) if tables else None
        targets, others = _selected(meta, name, validated, patterns)
        source, target = config.select(names=[settings.source, settings.target])
        errors: list[TableErrors] = []
        if targets:
            with _session(source) as source_session, _session(target) as target_session:
                errors = _read(meta, settings, targets, source_session, target_session)
        is_running = meta.is_running(name)
        return OpenErrors(name, source, target, settings.numeric, is_running, tuple(errors), others, validated)


@contextmanager
def _session(node: Node) -> Iterator[Connection]:
    connection = connect(node, application="trueup repair")
    try:
        yield connection
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
    finally:
        connection.close()


def _selected(
    meta: Meta, name: str, tables: Sequence[str], patterns: Patterns | None
) -> tuple[dict[str, set[str]], int]:
    """Return the target names of each selected table with open errors, and the number of errors of other tables."""
    if patterns and not any(name_parts(table) in patterns for table in tables):
        raise ConfigError(
            f"--tables {patterns} matches no table of validation {name}",
            cure=f"use one of its tables: {', '.join(tables) or 'it has none yet'}",
        )
    targets: dict[str, set[str]] = {}
    others = 0
    for row in meta.rows("wrong_tables", FILE, name=name):
        if patterns and name_parts(row["source"]) not in patterns:
            others += int(row["count"])
        else:
            targets.setdefault(row["source"], set()).add(row["target"])
    return targets, others


def _read(
    meta: Meta, settings: Settings, targets: Mapping[str, set[str]], source: Connection, target: Connection
) -> list[TableErrors]:
    """Return the keys of all these tables, or raise with every reason why a table cannot be repaired."""
    routes = {route.name: route for route in find_routes(source, settings)}
    stages = {row["source"]: row for row in meta.rows("tables", name=settings.name)}
    reasons: list[str] = []
    errors: list[TableErrors] = []
    for table, target_names in targets.items():
        route, stage = routes.get(table), stages.get(table)
        try:
            if route is None or stage is None:
                raise CheckFailed(["the validation no longer includes this table"])
            if stage["stage"] == "stopped":
                raise CheckFailed([f"the table is no longer validated: {stage['reason']}"])
            _check_route(route, target_names)
            errors.append(_of_table(meta, settings, route, source, target))
        except CheckFailed as error:
            reasons.append(f"{table}: {error}")
    if reasons:
        raise CheckFailed(
            reasons,
            cure="nothing was written; fix these tables by hand or with trueup diff and trueup repair, and select the"
            " other tables with --tables",
        )
    return errors


def _check_route(route: Route, target_names: set[str]) -> None:
    """Raise if rows are changed on their way to the target."""
    renamed = sorted((target_names | {display_name(*route.target)}) - {route.name})
    reasons = [
        (f"it is named {', '.join(renamed)} on the target", bool(renamed)),
        (f"columns have other names on the target: {', '.join(route.columns)}", bool(route.columns)),
        ("a filter selects the rows that are copied to the target", bool(route.filter)),
        (f"columns have a constant value on the target: {', '.join(route.constants)}", bool(route.constants)),
    ]
    changes = [text for text, applies in reasons if applies]
    if changes:
        raise CheckFailed([f"{'; '.join(changes)}; a repair can only copy rows unchanged"])


def _of_table(meta: Meta, settings: Settings, route: Route, source: Connection, target: Connection) -> TableErrors:
    pair = plan_pair(source, target, route, settings)
    table = catalog.read_table(target, *route.target)
    target_columns = {column.name for column in table.columns} if table else set()
    excluded = sorted(route.excluded & target_columns & set(pair.seen))
    if excluded:
        # An inserted row would contain these columns, and they may be kept from the target on purpose.
        raise CheckFailed([f"{', '.join(excluded)} is excluded, but an inserted row would contain its source value"])
    left_out = tuple(sorted(target_columns ^ set(pair.seen)))
    return TableErrors(route.name, pair.key, left_out, _keys(meta, settings.name, pair))


def _keys(meta: Meta, name: str, pair: Pair) -> tuple[KeyValues, ...]:
    """Return the keys, after checking that they belong to the current key columns of the table."""
    keys: list[KeyValues] = []
    for row in meta.rows("wrong_keys", FILE, name=name, source=pair.name, columns=list(pair.key)):
        key, stored = key_values(row["key"]), row["noted"]
        # A value that is too long to be stored in the error is taken from the key.
        values = [part if value is None else value for value, part in zip(stored or (), key, strict=False)]
        if stored is None or len(key) != len(stored) or canonical(pair.source, values) != key:
            raise CheckFailed(
                [f"its key is now ({', '.join(pair.key)}), but the error of ({', '.join(key)}) has another key"]
            )
        keys.append(key)
    return tuple(keys)
