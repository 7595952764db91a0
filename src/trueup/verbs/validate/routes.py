"""Where the rows of a table go: the same renames, filters and constant columns as the sync has.

Written as options: `shop.*=public.*` or `shop.orders=public.sales` (tables), `shop.orders.total=amount` (a column),
`shop.orders: region = 'EU'` (only these rows), `shop.orders.tenant=7` (a column that only the target has).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.names import display_name, parse_table_name
from trueup.errors import ConfigError
from trueup.rows.filter import problem_with
from trueup.verbs.validate.settings import Settings

Name = tuple[str, str]


@dataclass(frozen=True)
class Route:
    """One table: its name on both nodes, and what happens to its rows on the way."""

    source: Name
    target: Name
    columns: dict[str, str] = field(default_factory=dict)
    filter: str = ""
    constants: dict[str, str] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The source's table, for people."""
        return display_name(*self.source)


def find_routes(connection: Connection, settings: Settings) -> list[Route]:
    """A route for every table that is meant, in the order they were named."""
    known = catalog.table_names(connection)
    found: dict[Name, None] = {}
    for pattern in settings.tables:
        matched = _matching(pattern, known)
        if not matched:
            near = catalog.nearest_table(connection, display_name(*name_parts(pattern)))
            raise ConfigError(f"there is no table {pattern}{near}", cure="check the names after --tables")
        found.update(dict.fromkeys(matched))
    return [_route(name, settings, list(found)) for name in found]


def _route(name: Name, settings: Settings, all_names: Sequence[Name]) -> Route:
    target = name
    for text in settings.routes:
        left, right = _halves(text, "--route", "SCHEMA.TABLE=SCHEMA.TABLE, or SCHEMA.*=SCHEMA.*")
        if left.endswith(".*") and right.endswith(".*"):
            if name[0] == left[:-2].strip('"'):
                target = (right[:-2].strip('"'), name[1])
        elif name_parts(left) == name:
            target = name_parts(right)
    conditions = [condition for table, condition in map(_filter, settings.filters) if table == name]
    return Route(
        name,
        target,
        dict(_of_columns(settings.renames, name, "--rename", all_names)),
        " AND ".join(f"({each})" for each in conditions) if len(conditions) > 1 else "".join(conditions),
        dict(_of_columns(settings.constants, name, "--constant", all_names)),
        frozenset(_column(text, "--exclude", all_names)[1] for text in settings.excludes if _is_of(text, name)),
    )


def _matching(pattern: str, known: Sequence[Name]) -> list[Name]:
    if pattern.endswith(".*"):
        schema = pattern[:-2].strip('"')
        return [name for name in known if name[0] == schema and name[0] != "trueup"]
    parts = parse_table_name(pattern)
    spellings = [(schema, table) for schema in parts[0].spellings() for table in parts[1].spellings()]
    return [name for name in spellings if name in known][:1]


def name_parts(text: str) -> Name:
    """Return schema and table of a name as it is written in an option."""
    schema, table = parse_table_name(text)
    return schema.spellings()[0], table.spellings()[0]


def _halves(text: str, option: str, form: str) -> tuple[str, str]:
    left, sign, right = text.partition("=")
    if not sign or not left.strip() or not right.strip():
        raise ConfigError(f"{option} wants {form}, not {text!r}", cure="see trueup validate start --help")
    return left.strip(), right.strip()


def _filter(text: str) -> tuple[Name, str]:
    table, sign, condition = text.partition(":")
    if not sign or not condition.strip():
        raise ConfigError(f"--filter wants TABLE: CONDITION, not {text!r}", cure="see trueup validate start --help")
    wrong = problem_with(condition)
    if wrong:
        raise ConfigError(f"--filter {text!r} is not one expression: {wrong}", cure="write one condition")
    return name_parts(table.strip()), condition.strip()


def _of_columns(texts: Sequence[str], name: Name, option: str, known: Sequence[Name]) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        left, _, right = text.partition("=")
        if "=" not in text:
            raise ConfigError(f"{option} wants TABLE.COLUMN=VALUE, not {text!r}", cure="see --help")
        table, column = _column(left.strip(), option, known)
        if table == name:
            found.append((column, right.strip() if option == "--rename" else right))
    return found


def _is_of(text: str, name: Name) -> bool:
    return name_parts(text.rpartition(".")[0]) == name


def _column(text: str, option: str, known: Sequence[Name]) -> tuple[Name, str]:
    table, _, column = text.rpartition(".")
    if not table or name_parts(table) not in known:
        raise ConfigError(f"{option} {text!r} names no table of this validation", cure="write SCHEMA.TABLE.COLUMN")
    return name_parts(table), column.strip('"')
