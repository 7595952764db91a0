"""Routes: the target table of each source table, with renamed columns, a filter, and constant columns.

Options define them: `shop.*=public.*` or `shop.orders=public.sales` (tables), `shop.orders.total=amount` (a column),
`shop.orders: region = 'EU'` (a filter), `shop.orders.tenant=7` (a column that only the target has).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trueup.db import catalog
from trueup.db.connection import Connection
from trueup.db.names import display_name, parse_table_name
from trueup.db.scan import problem_with
from trueup.errors import ConfigError
from trueup.verbs.validate.settings import Settings

Name = tuple[str, str]


@dataclass(frozen=True)
class Route:
    """One table: its names on both nodes, and how its rows are changed on their way to the target."""

    source: Name
    target: Name
    columns: dict[str, str] = field(default_factory=dict)
    filter: str = ""
    constants: dict[str, str] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()
    # The columns that the publication of the subscription publishes; None: all.
    carried: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the source table for messages."""
        return display_name(*self.source)


def find_routes(connection: Connection, settings: Settings, stored: Sequence[str] = ()) -> list[Route]:
    """Return the routes of all selected tables, in the order of the option --tables.

    `stored` are the tables that were selected before: they have a route even if they do not exist any more.
    """
    selected = selected_tables(connection, settings, stored)
    return [_route(name, settings, selected) for name in selected]


def selected_tables(connection: Connection, settings: Settings, stored: Sequence[str] = ()) -> list[Name]:
    """Return the tables that match --tables and were not removed; raise ConfigError for a pattern without a match."""
    existing = catalog.table_names(connection)
    known = list(dict.fromkeys([*existing, *map(name_parts, stored)]))
    selected: dict[Name, None] = {}
    for pattern in settings.tables:
        matched = _matching(pattern, known)
        if not matched:
            near = catalog.nearest_table(connection, display_name(*name_parts(pattern)))
            raise ConfigError(f"table {pattern} does not exist on the source{near}", cure="check the names in --tables")
        selected.update(dict.fromkeys(matched))
    return [name for name in selected if display_name(*name) not in settings.removed]


def is_match(pattern: str, name: Name) -> bool:
    """Return whether an entry of --tables selects a table."""
    return bool(_matching(pattern, [name]))


def without_tables(settings: Settings, tables: Sequence[Name]) -> Settings:
    """Return the settings without these tables and without the options about them."""

    def others(texts: Sequence[str], option: str) -> tuple[str, ...]:
        return tuple(text for text in texts if _table_of(text, option) not in tables)

    exact = [pattern for pattern in settings.tables if not pattern.endswith(".*")]
    dropped = {pattern for pattern in exact if any(is_match(pattern, name) for name in tables)}
    remaining = tuple(pattern for pattern in settings.tables if pattern not in dropped)
    still_matched = [name for name in tables if any(is_match(pattern, name) for pattern in remaining)]
    return replace(
        settings,
        tables=remaining,
        removed=tuple(dict.fromkeys((*settings.removed, *(display_name(*name) for name in still_matched)))),
        routes=others(settings.routes, "--map"),
        filters=others(settings.filters, "--filter"),
        renames=others(settings.renames, "--map-columns"),
        constants=others(settings.constants, "--constant"),
        excludes=others(settings.excludes, "--exclude-columns"),
    )


def _route(name: Name, settings: Settings, all_names: Sequence[Name]) -> Route:
    target = name
    for text in settings.routes:
        left, right = _halves(text, "--map", "SCHEMA.TABLE=SCHEMA.TABLE, or SCHEMA.*=SCHEMA.*")
        if left.endswith(".*") and right.endswith(".*"):
            if name[0] == left[:-2].strip('"'):
                target = (right[:-2].strip('"'), name[1])
        elif name_parts(left) == name:
            target = name_parts(right)
    conditions = [condition for table, condition in map(_filter, settings.filters) if table == name]
    return Route(
        name,
        target,
        dict(_of_columns(settings.renames, name, "--map-columns", all_names)),
        " AND ".join(f"({condition})" for condition in conditions) if len(conditions) > 1 else "".join(conditions),
        dict(_of_columns(settings.constants, name, "--constant", all_names)),
        frozenset(_column(text, "--exclude-columns", all_names)[1] for text in settings.excludes if _is_of(text, name)),
    )


def option_tables(settings: Settings) -> list[tuple[str, Name]]:
    """Return the options that name a table, as text, and the table; `*` is the table of a whole schema."""
    options = {
        "--map": settings.routes,
        "--filter": settings.filters,
        "--map-columns": settings.renames,
        "--constant": settings.constants,
        "--exclude-columns": settings.excludes,
    }
    return [(f"{option} {text!r}", _table_of(text, option)) for option, texts in options.items() for text in texts]


def _table_of(text: str, option: str) -> Name:
    """Return the table that an option is about."""
    if option == "--filter":
        return _filter(text)[0]
    left = text.partition("=")[0].strip()
    if option == "--map":
        return (left[:-2].strip('"'), "*") if left.endswith(".*") else name_parts(left)
    table, _, column = left.rpartition(".")
    if not table or not column:
        raise ConfigError(f"{option} {text!r} is not valid", cure="write SCHEMA.TABLE.COLUMN")
    return name_parts(table)


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
        raise ConfigError(f"{option} {text!r} is not valid", cure=f"write {form}")
    return left.strip(), right.strip()


def _filter(text: str) -> tuple[Name, str]:
    table, sign, condition = text.partition(":")
    if not sign or not condition.strip():
        raise ConfigError(f"--filter {text!r} is not valid", cure="write SCHEMA.TABLE: CONDITION")
    problem = problem_with(condition)
    if problem:
        raise ConfigError(f"--filter {text!r} is not one SQL expression: {problem}", cure="write one condition")
    return name_parts(table.strip()), condition.strip()


def _of_columns(texts: Sequence[str], name: Name, option: str, known: Sequence[Name]) -> list[tuple[str, str]]:
    columns = []
    for text in texts:
        left, sign, right = text.partition("=")
        if not sign:
            raise ConfigError(f"{option} {text!r} is not valid", cure="write SCHEMA.TABLE.COLUMN=VALUE")
        table, column = _column(left.strip(), option, known)
        if table == name:
            columns.append((column, right.strip() if option == "--map-columns" else right))
    return columns


def _is_of(text: str, name: Name) -> bool:
    return name_parts(text.rpartition(".")[0]) == name


def _column(text: str, option: str, known: Sequence[Name]) -> tuple[Name, str]:
    table, _, column = text.rpartition(".")
    if not table or name_parts(table) not in known:
        raise ConfigError(
            f"{option} {text!r}: the table is not part of this validation",
            cure="write SCHEMA.TABLE.COLUMN of a selected table",
        )
    return name_parts(table), column.strip('"')
