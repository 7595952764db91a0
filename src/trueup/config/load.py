"""Load trueup.toml, with ${VAR}, TRUEUP__… variables and nodes from options, as a Config."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from trueup.config import address, sources
from trueup.config.model import Config, Node
from trueup.config.settings import DiffSettings, ExpressionSettings, SparkSettings, TaskSettings, expected_found
from trueup.config.values import Setting
from trueup.config.wording import problem, suggest

_NODE_NAME = r"[\w.\-]+"


def load(
    path: str | None = None, *, nodes: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Config:
    """Return the configuration; `nodes` (name -> URI or conninfo) are added to those of the file, or replace them.

    Without `path`: the file of TRUEUP_CONFIG, ./trueup.toml, or that of the user or the system; without a file, the
    defaults. Raises ConfigError for anything that is wrong in the file or in a variable.
    """
    env = os.environ if env is None else env
    file = sources.find_file(path, env)
    tables = sources.read_file(file) if file else {}
    settings = sources.from_file(tables, file)
    sources.add_environment(settings, env)
    for name, conninfo in (nodes or {}).items():
        settings["nodes"][name] = Setting(f"--node {name}", conninfo, is_text=True)

    known = {name: _node(name, setting, env) for name, setting in settings["nodes"].items()}
    diff = settings["diff"]
    return Config(
        path=file,
        nodes=known,
        clusters={name: _cluster(setting, known, env) for name, setting in settings["clusters"].items()},
        diff=DiffSettings(**_values(DiffSettings, diff, env)).validated(_name_in("diff", diff)),
        spark=_spark(settings, env),
        tasks=TaskSettings(**_values(TaskSettings, settings["tasks"], env)),
        expressions=ExpressionSettings(**_values(ExpressionSettings, settings["expressions"], env)),
        warnings=sources.warnings_about(tables, file) if file else (),
    )


def load_spark(path: str | None = None, *, env: Mapping[str, str] | None = None) -> SparkSettings:
    """Return the section [spark] of a file that has one, else of trueup.toml; other sections are not evaluated."""
    env = os.environ if env is None else env
    named = Path(path).expanduser() if path else None
    if named is None or not named.is_file() or "spark" not in sources.read_file(named):
        named = sources.find_file(None, env)
    settings = sources.from_file(sources.read_file(named) if named else {}, named)
    sources.add_environment(settings, env)
    return _spark(settings, env)


def _spark(settings: sources.Settings, env: Mapping[str, str]) -> SparkSettings:
    spark = settings["spark"]
    conf = {key: setting.convert(str, env) for key, setting in settings["spark.conf"].items()}
    return SparkSettings(**_values(SparkSettings, spark, env), conf=conf).validated(_name_in("spark", spark))


def _values(
    kind: type[DiffSettings] | type[SparkSettings] | type[TaskSettings] | type[ExpressionSettings],
    section: Mapping[str, Setting],
    env: Mapping[str, str],
) -> dict[str, Any]:
    types = {field.name: type(field.default) for field in fields(kind) if field.default is not MISSING}
    return {key: setting.convert(types[key], env) for key, setting in section.items()}


def _name_in(section: str, settings: Mapping[str, Setting]) -> Callable[[str], str]:
    """Return a function that names a field in messages: the place where it was set, else its key."""
    return lambda name: settings[name].where if name in settings else f"{section}.{name}"


def _node(name: str, setting: Setting, env: Mapping[str, str]) -> Node:
    if not re.fullmatch(_NODE_NAME, name):
        cure = "Use letters, digits, '_', '-' and '.'."
        raise problem(setting.where, "invalid name of a node", cure)
    if name == "all":
        raise problem(setting.where, 'a node cannot be called "all"', 'Choose another name: "all" means all nodes.')
    if isinstance(setting.value, dict):
        conninfo = _conninfo_of_table(setting, env)
    elif isinstance(setting.value, str):
        conninfo = setting.convert(str, env)
    else:
        cure = "Write a URI, or libpq keywords below a line [nodes.NAME]."
        raise problem(setting.where, expected_found(str, setting.value), cure)
    wrong = address.problem_of(conninfo)
    if wrong:
        cure = "Write postgresql://user@host:port/dbname, or libpq keywords: host=... dbname=... user=..."
        if address.kind_of(conninfo) != address.POSTGRESQL:
            cure = "Write the path, the table or the server after it; see docs/cross-engine.md."
        raise problem(setting.where, f"invalid address: {wrong}", cure)
    return Node(name, conninfo)


# Keywords that users try for the address of a node.
_ADDRESSES = ("uri", "url", "dsn", "address", "conninfo")


def _conninfo_of_table(setting: Setting, env: Mapping[str, str]) -> str:
    known = address.known_keywords()
    keywords: dict[str, str] = {}
    for keyword, value in setting.value.items():
        item = Setting(f"{setting.where}.{keyword}", value)
        if keyword not in known:
            hint = suggest(keyword, known)
            if keyword.lower() in _ADDRESSES:
                name = setting.where.rpartition(".")[2]
                hint = f'Write the address itself: {name} = "postgresql://…" below a line [nodes].'
            raise problem(item.where, "unknown libpq keyword", hint)
        # Keywords of libpq are texts; port = 5432 is accepted, too.
        kind = int if type(value) is int else str
        keywords[keyword] = str(item.convert(kind, env))
    return address.join(keywords)


def _cluster(setting: Setting, nodes: Mapping[str, Node], env: Mapping[str, str]) -> tuple[str, ...]:
    names = setting.words(env)
    if not names:
        raise problem(setting.where, "the cluster has no nodes", "List at least one node.")
    for position, name in enumerate(names):
        if name not in nodes:
            raise problem(setting.where, f'there is no node "{name}"', suggest(name, nodes))
        if name in names[:position]:
            raise problem(setting.where, f'the node "{name}" is listed twice', "List each node once.")
    return names
