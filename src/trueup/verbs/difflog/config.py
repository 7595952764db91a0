"""Loads difflog.toml, or the section [difflog] of trueup.toml, and tells at once all that is wrong with it."""

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
from trueup.verbs.difflog.model import RULES, Difflog, Entity, Rule, RuleName, SideLog, StatePlace, Target

FILE_NAME = "difflog.toml"
VARIABLE = "TRUEUP_DIFFLOG"
SECTION = "difflog"

MAKER = "trueup difflog init"
_NAME = r"[\w\-]+"
_PLACE = 'url = "clickhouse://..." for a server, or path = "..." for a table embedded in a folder'
_T = TypeVar("_T")


def load_difflog(path: str | None = None, *, env: Mapping[str, str] | None = None) -> Difflog:
    """The version log of the given file, else of $TRUEUP_DIFFLOG, ./difflog.toml, [difflog] in the trueup.toml."""
    env = os.environ if env is None else env
    file, tables = _find(path, env)
    top = _top(file, tables, env)
    difflog = _difflog(top, file.parent.absolute())
    _raise_if_any([*top.wrong, *wrong_settings(difflog, top.prefix)])
    return _with_ttl_column(difflog)


def difflog_warnings(path: str | None = None, *, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The warning that others can read the password in the file, if so."""
    file, tables = _find(path, os.environ if env is None else env)
    return sources.warnings_about(tables, file)


def _find(path: str | None, env: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """The file, and all that is in it."""
    named = sources.named_file(path, env, VARIABLE, MAKER)
    own = named or (Path(FILE_NAME) if Path(FILE_NAME).is_file() else None)
    if own:
        return own, sources.read_file(own)
    shared = sources.find_file(None, env)
    tables = sources.read_file(shared) if shared else {}
    if shared and SECTION in tables:
        return shared, tables
    also = f", and {shared} has no section [{SECTION}]" if shared else ""
    raise problem(FILE_NAME, f"there is no such file{also}", f"Make one with `{MAKER}`, or name one with {VARIABLE}.")


def _top(file: Path, tables: Mapping[str, Any], env: Mapping[str, str]) -> _Table:
    if SECTION in tables:
        return _Table(f"{file}: ", tables, env).table(SECTION)
    if any(section in tables for section in sources.SECTIONS):
        cure = f"Write one, or a file of its own: `{MAKER}` makes one to start from."
        raise problem(str(file), f"there is no section [{SECTION}]", cure)
    return _Table(f"{file}: ", tables, env)


def _raise_if_any(wrong: list[ConfigError]) -> None:
    if len(wrong) > 1:
        told = "\n".join(f"{error}. {error.cure}".strip() for error in wrong)
        raise ConfigError(told, cure="Change the named settings.")
    if wrong:
        raise wrong[0]


@dataclass(frozen=True)
class _Table:
    """One table of the file; what is wrong with a value is noted, so that the reading goes on."""

    # What a message writes before a key of this table: the file and the tables around.
    prefix: str
    values: Mapping[str, Any] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    wrong: list[ConfigError] = field(default_factory=list)

    def note(self, key: str, what: str, cure: str) -> None:
        self.wrong.append(problem(f"{self.prefix}{key}", what, cure))

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                self.note(key, "there is no such key", suggest(key, known))

    def text(self, key: str, example: str = "", default: str = "") -> str:
        """A text; with an example it must be there."""
        found = self._read(key, lambda setting: str(setting.convert(str, self.env)), default)
        if not found and example and not self._is_wrong(key):
            self.note(key, "it is missing or empty", f"Write {example}.")
        return found

    def number(self, key: str, default: int) -> int:
        return self._read(key, lambda setting: int(setting.convert(int, self.env)), default)

    def names(self, key: str, example: str = "") -> tuple[str, ...]:
        """A list of columns, none of them twice; with an example there must be one."""
        found: tuple[str, ...] = self._read(key, lambda setting: setting.words(self.env), ())
        if not found and example and not self._is_wrong(key):
            self.note(key, "it is missing or empty", f"Write {example}.")
        for name in dict.fromkeys(name for name in found if found.count(name) > 1 or not name):
            self.note(key, f'"{name}" is there twice' if name else "a name is empty", "Name each column once.")
        return tuple(name for name in dict.fromkeys(found) if name)

    def table(self, key: str, example: str = "") -> _Table:
        """A table in this one; with an example it must be there."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            self.note(key, expected_found(dict, value), f"Write {example or f'[{key}] on its own line'}.")
        elif example and key not in self.values:
            self.note(key, "it is missing", f"Write {example}.")
        return _Table(f"{self.prefix}{key}.", value if isinstance(value, dict) else {}, self.env, self.wrong)

    def tables(self, key: str, example: str) -> list[_Table]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value) or not value:
            self.note(key, "there is none" if key not in self.values else "expected a list of tables", example)
            return []
        return [_Table(f"{self.prefix}{key}[{at}].", each, self.env, self.wrong) for at, each in enumerate(value)]

    def _read(self, key: str, convert: Callable[[Setting], _T], default: _T) -> _T:
        if key not in self.values:
            return default
        try:
            return convert(Setting(f"{self.prefix}{key}", self.values[key]))
        except ConfigError as error:
            self.wrong.append(error)
            return default

    def _is_wrong(self, key: str) -> bool:
        return any(error.message.startswith(f"{self.prefix}{key}") for error in self.wrong)


def _difflog(top: _Table, folder: Path) -> Difflog:
    top.only("work", "multiplier", "entity", "log", "state", "clickhouse")
    work = top.text("work", 'work = "difflog"', default="difflog")
    return Difflog(
        entity=_entity(top.table("entity")),
        logs=tuple(_log(each) for each in top.tables("log", "Write [[log]] with name, key and columns for each log.")),
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
        table.note("name", "this cannot be a name", "It names folders too: use letters, digits, '_' and '-'.")
    return name


def _log(table: _Table) -> SideLog:
    table.only("name", "key", "id", "order_by", "columns")
    columns = table.table("columns", '[log.columns] with a line like Revenue = "sum" for each column')
    if "columns" in table.values and not columns.values:
        table.note("columns", "the log brings no column", 'Write a line like Revenue = "sum" for each.')
    return SideLog(
        name=_name(table, 'name = "conversions"'),
        key=_log_key(table),
        columns=_rules(columns),
        id=table.names("id"),
        order_by=table.text("order_by"),
    )


def _log_key(table: _Table) -> dict[str, str]:
    """The entity's key -> the column of this log; a list where the names are the same."""
    example = 'key = { VisitID = "visit_id" }, or key = ["VisitID"] where the names are the same'
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
        table.note(column, f'there is no rule "{name}"', suggest(name, RULES))
    known: RuleName = next((rule for rule in RULES if rule == name), "replace")
    if known == "last" and not by:
        table.note(column, 'the rule "last" needs a time', 'Write { rule = "last", by = "EventTime" }.')
    if known == "expr" and not sql:
        cure = 'Write { rule = "expr", sql = "..." } over old.COLUMN and new.COLUMN.'
        table.note(column, 'the rule "expr" needs an expression', cure)
    for key, given, owner in (("by", by, "last"), ("sql", sql, "expr")):
        if given and name in RULES and name != owner:
            table.note(f"{column}.{key}", f'only the rule "{owner}" has it', f'Remove it, or write rule = "{owner}".')
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
    table.only("database", "table", "url", "path")
    given = [key for key in ("url", "path") if table.values.get(key)]
    if len(given) != 1:
        what = "cannot be given together" if given else "are both missing"
        table.note("url", f"url and path {what}", f"Write {_PLACE}.")
    examples = dict.fromkeys(given, _PLACE)
    return Target(
        database=table.text("database", 'database = "default"', default="default"),
        table=table.text("table", 'table = "visits"'),
        # Hides the password also in the repr of what dataclasses.asdict makes.
        url=Conninfo(table.text("url", examples.get("url", ""))),
        path=_under(folder, table.text("path", examples.get("path", ""))),
    )


def _with_ttl_column(difflog: Difflog) -> Difflog:
    """The age of a state is looked up in the state: so its column is kept, also where nobody said so."""
    if not lacks_ttl_column(difflog):
        return difflog
    kept = {**difflog.entity.kept, difflog.state.ttl_column: Rule()}
    return replace(difflog, entity=replace(difflog.entity, kept=kept))
