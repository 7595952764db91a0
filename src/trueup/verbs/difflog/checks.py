"""Checks of the configuration beyond the format of the file: numbers, the target, conflicting names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trueup.config.files import odd_character
from trueup.config.wording import problem, suggest
from trueup.errors import ConfigError
from trueup.verbs.difflog.model import DELETED, FOLDERS_OF_JOIN, SIGN, SLOW, VERSION, DiffLogConfig, Rule, Target
from trueup.verbs.difflog.state import BUCKET

# Columns that trueup adds to the log, the state and late rows, or uses while widening.
RESERVED = (
    *(SIGN, SLOW, VERSION, DELETED, BUCKET, "Block", "Fast", "Expires", "Since"),
    *("reason", "newest_version", "versions", "newest"),
)
# Names that a step uses besides the key and the fast version.
STEP_WORDS = (
    *("old", "new", "all", "part", "merged", "aside", "old_F", "old_S", "new_F", "given_F"),
    *("old_deleted", "new_deleted", "was_deleted", "is_deleted"),
)
# The prefix of the names that a join uses.
JOIN_PREFIX = "__trueup"
_URL = "Write clickhouse://user:password@host:8123/database, with special characters of the password percent-encoded."


def wrong_settings(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    """Yield all errors; `prefix` is the file and the section, which precede a key in messages."""
    yield from _wrong_numbers(difflog, prefix)
    yield from _wrong_paths(difflog, prefix)
    yield from _wrong_target(difflog.target, prefix)
    uses = list(_uses(difflog, prefix))
    yield from _reserved(uses)
    yield from _spelled_alike(uses)
    yield from _used_twice(uses)
    yield from _rules_that_differ(uses)
    yield from _times_of_two(difflog, prefix)
    yield from _wrong_names(difflog, prefix)
    yield from _wrong_logs(difflog, prefix)


def lacks_ttl_column(difflog: DiffLogConfig) -> bool:
    """Return whether no setting names the column with the age of a state, so that it would not be read."""
    rules, entity = difflog.rules, difflog.entity
    used = {*entity.key, *entity.dropped, *rules, *(rule.by for rule in rules.values())}
    return bool(difflog.state.ttl_column) and difflog.state.ttl_column not in used


def _wrong_numbers(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    state = difflog.state
    for key, value, minimum, maximum in (
        # Versions have 64 bits: at this multiplier, there are about 900 slow ones.
        ("multiplier", difflog.multiplier, 2, 10**16),
        ("state.buckets", state.buckets, 1, 10**5),
        ("state.ttl_days", state.ttl_days, 0, 10**6),
    ):
        if value < minimum:
            yield problem(f"{prefix}{key}", f"must be at least {minimum}, not {value}", "Write a larger number.")
        if value > maximum:
            yield problem(f"{prefix}{key}", f"must be at most {maximum}, not {value}", "Write a smaller number.")
    if state.ttl_days > 0 and not state.ttl_column:
        cure = "Write ttl_column = a date or time column of the entity, or ttl_days = 0 to keep states forever."
        yield problem(f"{prefix}state.ttl_days", "ttl_column, which has the age of a state, is missing", cure)


def _wrong_target(target: Target, prefix: str) -> Iterator[ConfigError]:
    if target.url and not _is_address(target.url):
        yield problem(f"{prefix}clickhouse.url", "not the address of a ClickHouse server", _URL)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    schemes = ("clickhouse", "clickhouses", "http", "https")
    # A second "@" means that a part of the password was parsed as host or path.
    return parts.scheme in schemes and bool(parts.hostname) and url.count("@") <= 1


class _Use(NamedTuple):
    """One use of a column, with its role: `key`, `fast_version`, `deleted`, `dropped`, `state` or `row`."""

    name: str
    role: str
    where: str
    rule: Rule = Rule()


def _uses(difflog: DiffLogConfig, prefix: str) -> Iterator[_Use]:
    entity, section = difflog.entity, f"{prefix}entity."
    yield from (_Use(name, "key", f"{section}key") for name in entity.key)
    for role, name in (("fast_version", entity.fast_version), ("deleted", entity.deleted)):
        if name:
            yield _Use(name, role, f"{section}{role}")
    yield from (_Use(name, "dropped", f"{section}dropped") for name in entity.dropped)
    yield from _state_uses(entity.kept, f"{section}kept.")
    for number, log in enumerate(difflog.logs):
        section = f"{prefix}log[{number}]."
        yield from _state_uses(log.columns, f"{section}columns.")
        yield from (_Use(name, "row", f"{section}id") for name in log.id)
        if log.order_by:
            yield _Use(log.order_by, "row", f"{section}order_by")
    if lacks_ttl_column(difflog):
        yield _Use(difflog.state.ttl_column, "state", f"{prefix}state.ttl_column")


def _state_uses(rules: Mapping[str, Rule], prefix: str) -> Iterator[_Use]:
    for name, rule in rules.items():
        yield _Use(name, "state", f"{prefix}{name}", rule)
        if rule.by and rule.by not in rules:
            yield _Use(rule.by, "state", f"{prefix}{name}.by", Rule("max"))


def _reserved(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    for use in uses:
        if use.name == DELETED and use.role == "deleted":
            continue
        names = [*RESERVED, *(STEP_WORDS if use.role in ("key", "fast_version") else ())]
        if use.name.lower() in [name.lower() for name in names] or use.name.lower().startswith(JOIN_PREFIX):
            cure = "Rename the column, in a view or in the chunks."
            if use.role == "deleted" and use.name.lower() == DELETED.lower():
                cure = f"Write {DELETED}."
            yield problem(use.where, f'"{use.name}" is a reserved name of the version log', cure)


def _spelled_alike(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    first: dict[str, _Use] = {}
    for use in uses:
        other = first.setdefault(use.name.lower(), use)
        if other.name != use.name:
            what = f'"{use.name}" differs only by case from "{other.name}" ({other.where.partition(": ")[2]})'
            yield problem(use.where, what, "Use the same spelling: Spark treats them as one column, ClickHouse as two.")


def _used_twice(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    """Yield columns with two roles; only a column of the state may be named by several logs."""
    parts = {"key": "a part of the key", "fast_version": "the fast version", "deleted": "the marker of deleted rows"}
    first: dict[str, _Use] = {}
    for use in uses:
        other = first.setdefault(use.name, use)
        if other is use or other.role in ("state", "row") or (use.role, other.role) in (("row", "key"), ("key", "key")):
            continue
        if other.role != "dropped":
            yield problem(use.where, f'"{use.name}" is already {parts[other.role]}', "Remove it here.")
        elif use.role == "state":
            cure = "Remove it from one of the two: a column of the state is not dropped."
            yield problem(use.where, f'"{use.name}" is also in entity.dropped', cure)


def _rules_that_differ(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    first: dict[str, _Use] = {}
    for use in (use for use in uses if use.role == "state"):
        other = first.setdefault(use.name, use)
        if other.rule != use.rule:
            what = f'"{use.name}" has another rule in {other.where.partition(": ")[2]}'
            yield problem(use.where, what, "Use one rule, or two different names: it is one column of the state.")


def _times_of_two(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    """Yield time columns that `last` rules of two logs share: times of one would make updates of the other stale."""
    sources = {"entity.kept": difflog.entity.kept}
    sources.update({f"log[{number}].columns": log.columns for number, log in enumerate(difflog.logs)})
    first: dict[str, tuple[str, set[str]]] = {}
    for section, rules in sources.items():
        for time in dict.fromkeys(rule.by for rule in rules.values() if rule.by):
            followers = {name for name, rule in rules.items() if rule.by == time}
            other, others = first.setdefault(time, (section, followers))
            if others != followers:
                what = f'"{time}" is already the time of other columns in {other}'
                cure = "Rename the time column in one of the two: the state stores one time under this name."
                yield problem(f"{prefix}{section}.{min(followers)}.by", what, cure)


def _wrong_paths(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    for key, path in {"work": difflog.work, "state.path": difflog.state.path}.items():
        # The library of Delta tables reads %41 as A.
        if odd := odd_character(path) or ("%" if "%" in str(Path(path).absolute()) else ""):
            what = f"Spark or Delta cannot read a path with the character {odd}"
            yield problem(f"{prefix}{key}", what, "Use another folder.")


def _wrong_names(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    names = {"entity": difflog.entity.name, **{f"log[{number}]": log.name for number, log in enumerate(difflog.logs)}}
    for section, name in names.items():
        if name.lower() in FOLDERS_OF_JOIN:
            what = f'"{name}" is the name of a folder that a join writes'
            yield problem(f"{prefix}{section}.name", what, "Use another name.")


def _wrong_logs(difflog: DiffLogConfig, prefix: str) -> Iterator[ConfigError]:
    names = [difflog.entity.name.lower()]
    for number, log in enumerate(difflog.logs):
        section = f"{prefix}log[{number}]."
        # The names become folders, and some file systems ignore case.
        if log.name and log.name.lower() in names:
            yield problem(
                f"{section}name", f'"{log.name}" is already used', "Use a different name for the entity and each log."
            )
        names.append(log.name.lower())
        missing = [name for name in difflog.entity.key if name not in log.key]
        if missing and log.key:
            cure = f'Write key = {{ {missing[0]} = "column of this log", ... }}.'
            yield problem(f"{section}key", f"{', '.join(missing)} of the entity's key is missing", cure)
        for name in log.key:
            if difflog.entity.key and name not in difflog.entity.key:
                yield problem(
                    f"{section}key.{name}", "not a column of the entity's key", suggest(name, difflog.entity.key)
                )
        for name in set(log.key.values()) & set(log.columns) - set(difflog.entity.key):
            yield problem(f"{section}columns.{name}", f'"{name}" is already a part of the key', "Remove it here.")
