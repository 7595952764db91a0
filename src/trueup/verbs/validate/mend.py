"""What a repair needs to know of a validation: the rows that stayed wrong, by table, and the columns that name them.

A table whose rows do not go to the target as they are (another name, a filter, …) is refused by name: whoever writes
must never write another row than the one that was found wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg

from trueup.config.model import Node
from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.foreign_keys import in_order, read_foreign_keys
from trueup.db.names import display_name, parse_table_name
from trueup.db.node import connect, error_from_server
from trueup.db.patterns import Patterns, parse_patterns
from trueup.errors import CheckFailed, ConfigError
from trueup.rows.keys import KeyValues, canonical
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.pending import FILE, key_values
from trueup.verbs.validate.plan import Pair, plan_pair
from trueup.verbs.validate.routes import Name, Route, find_routes
from trueup.verbs.validate.settings import Settings

if TYPE_CHECKING:
    from trueup.api.validate import Validations


@dataclass(frozen=True)
class WrongRows:
    """The open errors of one table that has the same name on both nodes."""

    table: str
    key: tuple[str, ...]
    # Columns that one of the nodes has not.
    left_out: tuple[str, ...]
    keys: tuple[KeyValues, ...]


@dataclass(frozen=True)
class ToMend:
    """The open errors of a validation; tables that others refer to come first."""

    name: str
    source: Node
    target: Node
    numeric: str
    is_running: bool
    tables: tuple[WrongRows, ...]
    # Open errors of tables that were not asked for.
    others: int = 0


def to_mend(validations: Validations, name: str, tables: Sequence[str] = ()) -> ToMend:
    """Read the open errors (ignored ones are none), of all tables or of those that fit; writes nothing."""
    with validations.meta_of(name) as found:
        node = found.node
    meta = Meta(node, application="trueup repair", read_only=True)
    try:
        stored = meta.need(name)
        settings = stored.settings
        # All columns are written, also where only the existence of rows is validated.
        settings = replace(settings, mode="full")
        wrong, others = _wanted(meta, name, parse_patterns(tables=tables) if tables else None)
        nodes = validations.node(settings.source), validations.node(settings.target)
        rows: list[WrongRows] = []
        if wrong:
            with _session(nodes[0]) as source, _session(nodes[1]) as target:
                rows = _read(meta, settings, wrong, source, target)
        return ToMend(name, *nodes, settings.numeric, meta.is_running(name), tuple(rows), others)
    finally:
        meta.close()


@contextmanager
def _session(node: Node) -> Iterator[Any]:
    connection = connect(node, application="trueup repair")
    try:
        yield connection
    except psycopg.Error as error:
        raise error_from_server(error, node) from None
    finally:
        connection.close()


def _wanted(meta: Meta, name: str, patterns: Patterns | None) -> tuple[dict[str, set[str]], int]:
    """Tables with open errors that are meant, with their names on the target; and how many errors are not meant."""
    known = [str(row["source"]) for row in meta.rows("tables", name=name)]
    if patterns and not any(_plain(each) in patterns for each in known):
        raise ConfigError(
            f"no table of the validation {name} fits --tables {patterns}",
            cure=f"it has {', '.join(known) or 'none yet'}",
        )
    wrong: dict[str, set[str]] = {}
    others = 0
    for row in meta.rows("wrong_tables", FILE, name=name):
        if patterns and _plain(row["source"]) not in patterns:
            others += int(row["count"])
        else:
            wrong.setdefault(row["source"], set()).add(row["target"])
    return wrong, others


def _plain(text: str) -> Name:
    schema, table = parse_table_name(text)
    return schema.spellings()[0], table.spellings()[0]


def _read(
    meta: Meta, settings: Settings, wrong: Mapping[str, set[str]], source: Connection, target: Connection
) -> list[WrongRows]:
    """The keys of all these tables, or every reason why one of them cannot be mended."""
    routes = {route.name: route for route in find_routes(source, settings)}
    stages = {row["source"]: row for row in meta.rows("tables", name=settings.name)}
    refused: list[str] = []
    found: dict[Name, WrongRows] = {}
    for table, targets in wrong.items():
        route, stage = routes.get(table), stages.get(table)
        try:
            if route is None or stage is None:
                raise CheckFailed(["it is no table of the validation any more"])
            if stage["stage"] == "stopped":
                raise CheckFailed([f"it is not validated any more: {stage['reason']}"])
            _check_route(route, targets)
            found[route.source] = _of_table(meta, settings, route, source, target)
        except CheckFailed as error:
            refused.append(f"{table}: {error}")
    if refused:
        raise CheckFailed(
            refused,
            cure="nothing was written; mend these by hand or by the report of a trueup diff, and name the others with"
            " --tables",
        )
    order = in_order(found, read_foreign_keys(target, found))
    return [found[each] for each in order.tables if each in found]


def _check_route(route: Route, targets: set[str]) -> None:
    """Rows must go to the target as they are."""
    renamed = sorted(targets - {route.name} | ({display_name(*route.target)} - {route.name}))
    ways = [
        (f"it is {', '.join(renamed)} on the target", bool(renamed)),
        (f"columns have other names on the target: {', '.join(route.columns)}", bool(route.columns)),
        ("only rows that meet a filter go to the target", bool(route.filter)),
        (f"columns have a constant value on the target: {', '.join(route.constants)}", bool(route.constants)),
    ]
    reasons = [text for text, holds in ways if holds]
    if reasons:
        raise CheckFailed([f"{'; '.join(reasons)}: a repair carries rows as they are"])


def _of_table(meta: Meta, settings: Settings, route: Route, source: Connection, target: Connection) -> WrongRows:
    pair = plan_pair(source, target, route, settings)
    theirs = catalog.read_table(target, *route.target)
    there = {column.name for column in theirs.columns} if theirs else set()
    kept_back = sorted(route.excluded & there & set(pair.seen))
    if kept_back:
        # A row that lacks would get them, and perhaps they are kept from the target on purpose.
        raise CheckFailed([f"{', '.join(kept_back)} is excluded, and a new row would get it from the source"])
    return WrongRows(route.name, pair.key, tuple(sorted(there ^ set(pair.seen))), _keys(meta, settings.name, pair))


def _keys(meta: Meta, name: str, pair: Pair) -> tuple[KeyValues, ...]:
    """The keys, proven to be of the columns that are the table's key now: 7 may be the number of another row."""
    keys: list[KeyValues] = []
    for row in meta.rows("wrong_keys", FILE, name=name, source=pair.name, columns=list(pair.key)):
        key, noted = key_values(row["key"]), row["noted"]
        fits = noted is not None and len(key) == len(noted)
        if not fits or canonical(pair.source, [b if a is None else a for a, b in zip(noted, key, strict=True)]) != key:
            now = ", ".join(pair.key)
            raise CheckFailed([f"its key is ({now}) now, and the error of ({', '.join(key)}) was found by another one"])
        keys.append(key)
    return tuple(keys)
