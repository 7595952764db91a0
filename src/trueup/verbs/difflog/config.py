"""Loads difflog.toml, or the section [difflog] of trueup.toml, and reports all errors at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from trueup.config import sources
from trueup.config.secrets import Conninfo
from trueup.config.settings import expected_found
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest
from trueup.errors import ConfigError
from trueup.verbs.difflog.checks import lacks_ttl_column, wrong_settings
from trueup.verbs.difflog.model import RULES, DiffLogConfig, Entity, Rule, RuleName, SideLog, StatePlace, Target

FILE_NAME = "difflog.toml"
VARIABLE = "TRUEUP_DIFFLOG"
SECTION = "difflog"

INIT_COMMAND = "trueup difflog init"
_NAME = r"[\w\-]+"
_PLACE = 'url = "clickhouse://..." for a server, or path = "..." for a table embedded in a folder'
_T = TypeVar("_T")


def load_difflog(path: str | None = None, *, env: Mapping[str, str] | None = None) -> DiffLogConfig:
    """Load the file `path`, else $TRUEUP_DIFFLOG, ./difflog.toml, or [difflog] in trueup.toml.

    Raises ConfigError that lists all errors.
    """
    env = os.environ if env is None else env
    file, tables = _find(path, env)
    top = _top(file, tables, env)
    difflog = _difflog(top, file.parent.absolute())
    _raise_if_any([*top.errors, *wrong_settings(difflog, top.prefix)])
    return replace(_with_ttl_column(difflog), warnings=sources.warnings_about(tables, file))


def _find(path: str | None, env: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """Return the configuration file and its content."""
    own = sources.named_file(path, env, VARIABLE, INIT_COMMAND) or sources.file_here(FILE_NAME, VARIABLE)
    if own:
        return own, sources.read_file(own)
    shared = sources.find_file(None, env)
    tables = sources.read_file(shared) if shared else {}
    if shared and SECTION in tables:
        return shared, tables
    also = f", and {shared} has no section [{SECTION}]" if shared else ""
    raise problem(FILE_NAME, f"the file does not exist{also}", f"Create it with `{INIT_COMMAND}`, or set {VARIABLE}.")


def _top(file: Path, tables: Mapping[str, Any], env: Mapping[str, str]) -> _Table:
    if SECTION in tables:
        return _Table(f"{file}: ", tables, env).table(SECTION)
    if any(section in tables for section in sources.SECTIONS):
        cure = f"Write the section, or create a separate file with `{INIT_COMMAND}`."
        raise problem(str(file), f"section [{SECTION}] does not exist", cure)
    return _Table(f"{file}: ", tables, env)


def _raise_if_any(errors: list[ConfigError]) -> None:
    if len(errors) > 1:
        lines = "\n".join(f"{error}. {error.cure}".strip() for error in errors)
        raise ConfigError(lines, cure="Change the named settings.")
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class _Table:
    """One table of the file. Errors are collected, so that all are reported at once."""

    # The file and the enclosing tables, which precede a key in messages.
    prefix: str
    values: Mapping[str, Any] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    errors: list[ConfigError] = field(default_factory=list)

    def note(self, key: str, what: str, cure: str) -> None:
        """Collect an error of a key."""
        self.errors.append(problem(f"{self.prefix}{key}", what, cure))

    def only(self, *known: str) -> None:
        """Collect an error for each unknown key."""
        for key in self.values:
            if key not in known:
                self.note(key, "unknown key", suggest(key, known))

    def text(self, key: str, example: str = "", default: str = "") -> str:
        """Return a string; with an example, it is required."""
        value = self._read(key, lambda setting: str(setting.convert(str, self.env)), default)
        if not value and example and not self._has_error(key):
            self.note(key, "missing or empty", f"Write {example}.")
        return value

    def number(self, key: str, default: int) -> int:
        """Return an integer."""
        return self._read(key, lambda setting: int(setting.convert(int, self.env)), default)

    def yes_no(self, key: str) -> bool:
        """Return a boolean; false if it is missing."""
        return self._read(key, lambda setting: bool(setting.convert(bool, self.env)), False)

    def names(self, key: str, example: str = "") -> tuple[str, ...]:
        """Return a list of distinct columns; with an example, at least one is required."""
        values: tuple[str, ...] = self._read(key, lambda setting: setting.words(self.env), ())
        if not values and example and not self._has_error(key):
            self.note(key, "missing or empty", f"Write {example}.")
        for name in dict.fromkeys(name for name in values if values.count(name) > 1 or not name):
            self.note(key, f'"{name}" is listed twice' if name else "a name is empty", "Name each column once.")
        return tuple(name for name in dict.fromkeys(values) if name)

    def table(self, key: str, example: str = "") -> _Table:
        """Return a table inside this one; with an example, it is required."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            self.note(key, expected_found(dict, value), f"Write {example or f'[{key}] on its own line'}.")
        elif example and key not in self.values:
            self.note(key, "missing", f"Write {example}.")
        return _Table(f"{self.prefix}{key}.", value if isinstance(value, dict) else {}, self.env, self.errors)

    def tables(self, key: str, example: str) -> list[_Table]:
        """Return a required list of tables."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value) or not value:
            self.note(key, "missing" if key not in self.values else "expected a list of tables", example)
            return []
        return [
            _Table(f"{self.prefix}{key}[{index}].", item, self.env, self.errors) for index, item in enumerate(value)
        ]

    def _read(self, key: str, convert: Callable[[Setting], _T], default: _T) -> _T:
        if key not in self.values:
            return default
        try:
            return convert(Setting(f"{self.prefix}{key}", self.values[key]))
        except ConfigError as error:
            self.errors.append(error)
            return default

    def _has_error(self, key: str) -> bool:
        return any(error.message.startswith(f"{self.prefix}{key}") for error in self.errors)


def _difflog(top: _Table, folder: Path) -> DiffLogConfig:
    top.only("work", "multiplier", "entity", "log", "state", "clickhouse")
    work = top.text("work", 'work = "difflog"', default="difflog")
    return DiffLogConfig(
        entity=_entity(top.table("entity")),
        logs=tuple(
            _log(table) for table in top.tables("log", "Write [[log]] with name, key and columns, once per log.")
        ),
        state=_state(top.table("state"), folder, f"{work}/state"),
        target=_target(top.table("clickhouse"), folder),
        work=_under(folder, work),
        multiplier=top.number("multiplier", 1000),
    )


def _under(folder: Path, path: str) -> str:
    return str(folder / Path(path).expanduser()) if path else ""


def _entity(table: _Table) -> Entity:
    table.only("name", "key", "fast_version", "dropped", "deleted", "kept")
    return Entity(
        name=_name(table, 'name = "visit"'),
        key=table.names("key", 'key = ["VisitID"]'),
        fast_version=table.text("fast_version", 'fast_version = "y_VisitVersion"'),
        dropped=table.names("dropped"),
        kept=_rules(table.table("kept")),
        deleted=table.text("deleted"),
    )


def _name(table: _Table, example: str) -> str:
    name = table.text("name", example)
    if name and not re.fullmatch(_NAME, name):
        table.note("name", "not a valid name", "Use letters, digits, '_' and '-': it is also the name of folders.")
    return name


def _log(table: _Table) -> SideLog:
    table.only("name", "key", "id", "order_by", "columns")
    columns = table.table("columns", '[log.columns] with a line such as Revenue = "sum" per column')
    if "columns" in table.values and not columns.values:
        table.note("columns", "the log has no columns", 'Write a line such as Revenue = "sum" per column.')
    return SideLog(
        name=_name(table, 'name = "conversions"'),
        key=_log_key(table),
        columns=_rules(columns),
        id=table.names("id"),
        order_by=table.text("order_by"),
    )


def _log_key(table: _Table) -> dict[str, str]:
    """Return the columns of the entity's key -> the columns of this log; a list if the names are the same."""
    example = 'key = { VisitID = "visit_id" }, or key = ["VisitID"] if the names are the same'
    if not isinstance(table.values.get("key", {}), dict):
        return {name: name for name in table.names("key", example)}
    key = table.table("key", example)
    return {name: key.text(name, f'{name} = "column of this log"') for name in key.values}


def _rules(table: _Table) -> dict[str, Rule]:
    return {column: _rule(table, column) for column in table.values}


def _rule(table: _Table, column: str) -> Rule:
    if isinstance(table.values[column], dict):
        parts = table.table(column)
        parts.only("rule", "by", "sql")
        name, by, sql = parts.text("rule", 'rule = "replace"'), parts.text("by"), parts.text("sql")
    else:
        name, by, sql = table.text(column, f'{column} = "replace"'), "", ""
    if name and name not in RULES:
        table.note(column, f'unknown rule "{name}"', suggest(name, RULES))
    known: RuleName = next((rule for rule in RULES if rule == name), "replace")
    if known == "last" and not by:
        table.note(column, 'the rule "last" needs a time column', 'Write { rule = "last", by = "EventTime" }.')
    if known == "expr" and not sql:
        cure = 'Write { rule = "expr", sql = "..." } over old.COLUMN and new.COLUMN.'
        table.note(column, 'the rule "expr" needs an expression', cure)
    for key, value, owner in (("by", by, "last"), ("sql", sql, "expr")):
        if value and name in RULES and name != owner:
            table.note(f"{column}.{key}", f'only the rule "{owner}" uses it', f'Remove it, or write rule = "{owner}".')
    return Rule(known, by if known == "last" else "", sql if known == "expr" else "")


def _state(table: _Table, folder: Path, default: str) -> StatePlace:
    table.only("path", "buckets", "ttl_days", "ttl_column")
    return StatePlace(
        path=_under(folder, table.text("path", 'path = "difflog/state"', default=default)),
        buckets=table.number("buckets", 16),
        ttl_days=table.number("ttl_days", 0),
        ttl_column=table.text("ttl_column"),
    )


def _target(table: _Table, folder: Path) -> Target:
    table.only("database", "table", "url", "path", "insecure")
    present = [key for key in ("url", "path") if table.values.get(key)]
    if len(present) != 1:
        what = "cannot be used together" if present else "are both missing"
        table.note("url", f"url and path {what}", f"Write {_PLACE}.")
    examples = dict.fromkeys(present, _PLACE)
    return Target(
        database=table.text("database", 'database = "default"', default="default"),
        table=table.text("table", 'table = "visits"'),
        # Hides the password in the repr of dataclasses.asdict as well.
        url=Conninfo(table.text("url", examples.get("url", ""))),
        path=_under(folder, table.text("path", examples.get("path", ""))),
        insecure=table.yes_no("insecure"),
    )


def _with_ttl_column(difflog: DiffLogConfig) -> DiffLogConfig:
    """Add the column with the age of a state to the kept columns, if no setting names it."""
    if not lacks_ttl_column(difflog):
        return difflog
    kept = {**difflog.entity.kept, difflog.state.ttl_column: Rule()}
    return replace(difflog, entity=replace(difflog.entity, kept=kept))
