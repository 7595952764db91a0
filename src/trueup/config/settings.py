"""The settings of diff, Spark, tasks and expressions as frozen dataclasses, with the rules for their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from trueup.config.secrets import mask
from trueup.errors import ConfigError

# Formats of reports; html and parquet are written in addition to json.
OUTPUTS = ("json", "html", "parquet")


@dataclass(frozen=True)
class DiffSettings:
    """The section [diff]: how tables are compared."""

    block_size: int = 100_000
    min_block_size: int = 1_000
    max_block_size: int = 1_000_000
    override_block_size: bool = False
    concurrency_factor: float = 0.5
    max_connections: int = 0
    compare_unit_size: int = 10_000
    max_diff_rows: int = 1_000_000
    recheck: int = 2
    recheck_wait: float = 2.0
    snapshot: bool = True
    numeric: str = "value"
    digest: str = "auto"
    block_timeout: float = 60.0
    retries: int = 3
    long_value: int = 1_048_576
    report_dir: str = ""
    # "json", or "json, html". The JSON report is always written, because rerun and repair read it.
    output: str = "json"
    # For a live system: small queries one at a time, and pauses while a node exceeds these limits.
    gentle: bool = False
    gentle_seconds: float = 0.5
    max_rows_per_second: int = 0
    max_lag: float = 10.0
    max_active_sessions: int = 25
    max_lock_waits: int = 3
    # Defaults for what is compared of each table; columns as "a, b".
    table_filter: str = ""
    columns: str = ""
    exclude_columns: str = ""
    key: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the formats of the report."""
        return _words(self.output)

    def validated(self, name_of: Callable[[str], str] = str) -> DiffSettings:
        """Return the settings, or raise a ConfigError that lists all wrong values; `name_of` names a field."""
        _raise_if_any(_wrong_types(self, name_of) or self._wrong_values(name_of))
        return self

    def _wrong_values(self, name_of: Callable[[str], str]) -> list[str]:
        rules = [
            *_at_least(self, 1, "block_size", "min_block_size", "compare_unit_size", "max_diff_rows", "long_value"),
            *_at_least(self, 0, "max_connections", "recheck", "recheck_wait", "retries", "max_rows_per_second"),
            *_at_least(self, 0, "max_lag", "max_active_sessions", "max_lock_waits"),
            ("gentle_seconds", 0 < self.gentle_seconds < math.inf, "must be greater than 0, and finite"),
            ("max_connections", self.max_connections != 1, "must be 0 (no limit) or at least 2"),
            ("concurrency_factor", 0.0 <= self.concurrency_factor <= 4.0, "must be between 0.0 and 4.0"),
            ("block_timeout", self.block_timeout > 0, "must be greater than 0"),
            ("recheck_wait", math.isfinite(self.recheck_wait), "must be finite"),
            ("block_timeout", math.isfinite(self.block_timeout), "must be finite"),
            _one_of(self, "numeric", "value", "representation"),
            _one_of(self, "digest", "auto", "native", "portable"),
            ("output", bool(self.outputs) and set(self.outputs) <= {*OUTPUTS}, f"must be some of {', '.join(OUTPUTS)}"),
            (
                "max_block_size",
                self.max_block_size >= self.min_block_size,
                f"must be at least {name_of('min_block_size')} ({self.min_block_size})",
            ),
            (
                "block_size",
                self.override_block_size or self.min_block_size <= self.block_size <= self.max_block_size,
                f"must be between {self.min_block_size} and {self.max_block_size} "
                f"({name_of('min_block_size')}, {name_of('max_block_size')}), "
                f"unless {name_of('override_block_size')} is set",
            ),
        ]
        return _broken(self, rules, name_of)


@dataclass(frozen=True, repr=False)
class SparkSettings:
    """The section [spark]: whether and where Spark runs."""

    engine: str = "auto"
    master: str = ""
    remote: str = ""
    local_rows: int = 100_000_000
    local_seconds: float = 10.0
    stall_seconds: float = 300.0
    slots: int = 0
    class_archive: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        # A remote may contain a token, a Spark setting a storage key.
        shown = [f"engine={self.engine!r}", f"master={self.master!r}", f"remote={mask(self.remote)!r}"]
        shown += [f"local_rows={self.local_rows!r}", f"local_seconds={self.local_seconds!r}", f"slots={self.slots!r}"]
        shown += [f"stall_seconds={self.stall_seconds!r}"]
        shown += [f"class_archive={self.class_archive!r}", f"conf={sorted(self.conf)!r}"]
        return f"SparkSettings({', '.join(shown)})"

    def validated(self, name_of: Callable[[str], str] = str) -> SparkSettings:
        """Return the settings, or raise a ConfigError that lists all wrong values; `name_of` names a field."""
        _raise_if_any(_wrong_types(self, name_of) or self._wrong_values(name_of))
        return self

    def _wrong_values(self, name_of: Callable[[str], str]) -> list[str]:
        rules = [
            _one_of(self, "engine", "auto", "spark", "local"),
            *_at_least(self, 0, "local_rows", "local_seconds", "stall_seconds", "slots"),
        ]
        broken = _broken(self, rules, name_of)
        if self.master and self.remote:
            broken.append(f"{name_of('master')} and {name_of('remote')} cannot be used together")
        return broken


@dataclass(frozen=True, repr=False)
class TaskSettings:
    """The section [tasks]: the path of the task store."""

    task_db: str = ""

    def __repr__(self) -> str:
        return f"TaskSettings(task_db={mask(self.task_db)!r})"


@dataclass(frozen=True)
class ExpressionSettings:
    """The section [expressions]: functions that SQL expressions of the user may call, in every command."""

    # Names as "public.f, random", and of extensions as "citext, hstore".
    allow_functions: str = ""
    allow_extensions: str = ""

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the allowed functions."""
        return _words(self.allow_functions)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The names of the extensions whose functions are allowed."""
        return _words(self.allow_extensions)

    def with_functions(self, names: Sequence[str] | str | None) -> ExpressionSettings:
        """Return the settings with these functions allowed as well."""
        more = _words(names if isinstance(names, str) else ",".join(names or ()))
        return replace(self, allow_functions=", ".join(dict.fromkeys((*self.functions, *more))))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


# A rule: the field, whether its value is valid, and the requirement.
_Rule = tuple[str, bool, str]


def _at_least(settings: object, least: int, *names: str) -> list[_Rule]:
    return [(name, getattr(settings, name) >= least, f"must be at least {least}") for name in names]


def _one_of(settings: object, name: str, *choices: str) -> _Rule:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return name, getattr(settings, name) in choices, f"must be one of {listed}"


def _broken(settings: object, rules: Sequence[_Rule], name_of: Callable[[str], str]) -> list[str]:
    """Return one message per field with a wrong value: that of the first broken rule."""
    wrong: dict[str, str] = {}
    for name, right, must in rules:
        if not right:
            wrong.setdefault(name, f"{name_of(name)}: {must}, not {getattr(settings, name)!r}")
    return list(wrong.values())


def _wrong_types(settings: DiffSettings | SparkSettings, name_of: Callable[[str], str]) -> list[str]:
    wrong = []
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if setting.default is not MISSING and not has_type(value, type(setting.default)):
            wrong.append(f"{name_of(setting.name)}: {expected_found(type(setting.default), value)}")
    return wrong


def has_type(value: Any, kind: type) -> bool:
    """Return whether a value has the type: a bool is not a number, an int is also a float."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def kind_name(kind: type) -> str:
    """Return the name of a type for messages."""
    return _KINDS.get(kind, f"a {kind.__name__}")


def expected_found(kind: type, value: Any) -> str:
    """Return the message for a value of a wrong type; the value may be a secret and is not shown."""
    return f"expected {kind_name(kind)}, found {kind_name(type(value))}"


def _raise_if_any(wrong: list[str]) -> None:
    if wrong:
        raise ConfigError(mask("\n".join(wrong)), cure="Correct the setting.")
