"""What can be wrong with a version log beyond the form of its file: numbers, the target, names that clash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from trueup.config.wording import problem, suggest
from trueup.errors import ConfigError
from trueup.verbs.difflog.model import DELETED, SIGN, SLOW, VERSION, Difflog, Rule, Target
from trueup.verbs.difflog.state import BUCKET

# Columns that the log, the state or the rows kept aside get from us, and that the widening works with.
RESERVED = (
    *(SIGN, SLOW, VERSION, DELETED, BUCKET, "Block", "Fast", "Expires"),
    *("reason", "newest_version", "versions", "newest"),
)
# Names that a step works with beside the key and the fast version.
STEP_WORDS = (
    *("old", "new", "all", "part", "merged", "aside", "old_F", "old_S", "new_F", "given_F"),
    *("old_deleted", "new_deleted", "was_deleted", "is_deleted"),
)
# The beginning of the names that a join works with.
OURS = "__trueup"
_URL = "Write clickhouse://user:password@host:8123/database, with odd characters of the password percent-encoded."


def wrong_settings(difflog: Difflog, prefix: str) -> Iterator[ConfigError]:
    """All that is wrong; `prefix` is what a message writes before a key: the file, and the section."""
    yield from _wrong_numbers(difflog, prefix)
    yield from _wrong_target(difflog.target, prefix)
    uses = list(_uses(difflog, prefix))
    yield from _reserved(uses)
    yield from _spelled_alike(uses)
    yield from _used_twice(uses)
    yield from _rules_that_differ(uses)
    yield from _times_of_two(difflog, prefix)
    yield from _wrong_logs(difflog, prefix)


def lacks_ttl_column(difflog: Difflog) -> bool:
    """Whether nothing names the column that tells the age of a state, so that it would not be read."""
    rules, entity = difflog.rules, difflog.entity
    named = {*entity.key, *entity.dropped, *rules, *(rule.by for rule in rules.values())}
    return bool(difflog.state.ttl_column) and difflog.state.ttl_column not in named


def _wrong_numbers(difflog: Difflog, prefix: str) -> Iterator[ConfigError]:
    state = difflog.state
    for key, value, least in (
        ("multiplier", difflog.multiplier, 2),
        ("state.buckets", state.buckets, 1),
        ("state.ttl_days", state.ttl_days, 0),
    ):
        if value < least:
            yield problem(f"{prefix}{key}", f"must be at least {least}, not {value}", "Write a larger number.")
    if state.ttl_days > 0 and not state.ttl_column:
        cure = "Write ttl_column = a date or time column of the entity, or ttl_days = 0 to keep states for ever."
        yield problem(f"{prefix}state.ttl_days", "ttl_column is missing, which tells how old a state is", cure)


def _wrong_target(target: Target, prefix: str) -> Iterator[ConfigError]:
    if target.url and not _is_address(target.url):
        yield problem(f"{prefix}clickhouse.url", "this is not the address of a ClickHouse server", _URL)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    schemes = ("clickhouse", "clickhouses", "http", "https")
    # A further "@" means that a part of the password was taken for the host or for the path.
    return parts.scheme in schemes and bool(parts.hostname) and url.count("@") <= 1


class _Use(NamedTuple):
    """A column as it is named somewhere: as `key`, `fast_version`, `deleted`, `dropped`, `state` or `row`."""

    name: str
    role: str
    where: str
    rule: Rule = Rule()


def _uses(difflog: Difflog, prefix: str) -> Iterator[_Use]:
    entity, at = difflog.entity, f"{prefix}entity."
    yield from (_Use(name, "key", f"{at}key") for name in entity.key)
    for role, name in (("fast_version", entity.fast_version), ("deleted", entity.deleted)):
        if name:
            yield _Use(name, role, f"{at}{role}")
    yield from (_Use(name, "dropped", f"{at}dropped") for name in entity.dropped)
    yield from _state_uses(entity.kept, f"{at}kept.")
    for number, log in enumerate(difflog.logs):
        at = f"{prefix}log[{number}]."
        yield from _state_uses(log.columns, f"{at}columns.")
        yield from (_Use(name, "row", f"{at}id") for name in log.id)
        if log.order_by:
            yield _Use(log.order_by, "row", f"{at}order_by")
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
        if use.name.lower() in [name.lower() for name in names] or use.name.lower().startswith(OURS):
            cure = "Rename the column, in a view or in the chunks."
            if use.role == "deleted" and use.name.lower() == DELETED.lower():
                cure = f"Write {DELETED}."
            yield problem(use.where, f'"{use.name}" is a name that the version log uses itself', cure)


def _spelled_alike(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    first: dict[str, _Use] = {}
    for use in uses:
        other = first.setdefault(use.name.lower(), use)
        if other.name != use.name:
            what = f'"{use.name}" differs only by case from "{other.name}" ({other.where.partition(": ")[2]})'
            yield problem(use.where, what, "Spark takes them for one column, ClickHouse for two: spell them alike.")


def _used_twice(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    """A column has one part to play; only a column of the state may be named by several."""
    parts = {"key": "a part of the key", "fast_version": "the fast version", "deleted": "the mark of deleted rows"}
    first: dict[str, _Use] = {}
    for use in uses:
        other = first.setdefault(use.name, use)
        if other is use or other.role in ("state", "row") or (use.role, other.role) in (("row", "key"), ("key", "key")):
            continue
        if other.role != "dropped":
            yield problem(use.where, f'"{use.name}" is {parts[other.role]} already', "Remove it here.")
        elif use.role == "state":
            cure = "Keep it in one of the two: what is merged into the state is not dropped."
            yield problem(use.where, f'"{use.name}" is in entity.dropped too', cure)


def _rules_that_differ(uses: Iterable[_Use]) -> Iterator[ConfigError]:
    first: dict[str, _Use] = {}
    for use in (each for each in uses if each.role == "state"):
        other = first.setdefault(use.name, use)
        if other.rule != use.rule:
            what = f'"{use.name}" has another rule in {other.where.partition(": ")[2]}'
            yield problem(use.where, what, "It is one column of the state: give it one rule, or two names.")


def _times_of_two(difflog: Difflog, prefix: str) -> Iterator[ConfigError]:
    """The time of a `last` is one column of the state: the times of one log would make news of another stale."""
    sources = {"entity.kept": difflog.entity.kept}
    sources.update({f"log[{number}].columns": log.columns for number, log in enumerate(difflog.logs)})
    first: dict[str, tuple[str, set[str]]] = {}
    for place, rules in sources.items():
        for time in dict.fromkeys(rule.by for rule in rules.values() if rule.by):
            followers = {name for name, rule in rules.items() if rule.by == time}
            other, others = first.setdefault(time, (place, followers))
            if others != followers:
                what = f'"{time}" tells the time of other columns in {other} already'
                cure = "Give the time another name in one of the two: the state remembers one time by this name."
                yield problem(f"{prefix}{place}.{min(followers)}.by", what, cure)


def _wrong_logs(difflog: Difflog, prefix: str) -> Iterator[ConfigError]:
    names = [difflog.entity.name.lower()]
    for number, log in enumerate(difflog.logs):
        at = f"{prefix}log[{number}]."
        # The names become folders, and not every disk tells upper from lower case.
        if log.name and log.name.lower() in names:
            yield problem(f"{at}name", f'"{log.name}" is taken', "Give the entity and each log a name of its own.")
        names.append(log.name.lower())
        missing = [name for name in difflog.entity.key if name not in log.key]
        if missing and log.key:
            cure = f'Write key = {{ {missing[0]} = "column of this log", ... }}.'
            yield problem(f"{at}key", f"it does not say where {', '.join(missing)} of the entity's key is", cure)
        for name in log.key:
            if difflog.entity.key and name not in difflog.entity.key:
                yield problem(
                    f"{at}key.{name}", "the entity's key has no such column", suggest(name, difflog.entity.key)
                )
        for name in set(log.key.values()) & set(log.columns) - set(difflog.entity.key):
            yield problem(f"{at}columns.{name}", f'"{name}" is a part of the key already', "Remove it here.")
