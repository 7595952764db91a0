"""Accepted differences: what exactly is accepted, and whether an acceptance applies to a run.

A difference is accepted by a fingerprint: SHA-256 of the two nodes, the key, and the values of both rows. A row that
changes again on either node has another fingerprint, and is a new difference. The hash of a row in the database cannot
be used: its seed is random for each run.

An acceptance applies to a pair of nodes only if its scope is that of the run: the same tables (server, database, OID)
on both nodes, the same columns with the same types, the same key, filter, and rules for values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from trueup.errors import CheckFailed, StoreError
from trueup.rows.align import Difference, Pair
from trueup.rows.encode import LongValue, Value
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec
from trueup.store import TaskStore, times
from trueup.store.accepted import Acceptance, AcceptedDifference

# One side of a difference: the row by column, or None if there is none, and its number of copies.
Side = tuple["Mapping[str, Any] | None", int]


def fingerprint(key: Mapping[str, str] | None, sides: Mapping[str, Side]) -> bytes:
    """Return the fingerprint of a difference between two nodes; `key` is None for a table without a key."""
    document = {"key": key, "sides": {node: [row, copies] for node, (row, copies) in sides.items()}}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(b"trueup accepted difference 1\n" + text.encode()).digest()


def fingerprint_of(spec: TableSpec, difference: Difference, pair: Pair) -> bytes | None:
    """Return the fingerprint of a difference as a run has it; None if the values of a row are not known."""
    sides: dict[str, Side] = {}
    for node in pair:
        group = difference.group_of(node)
        if group is None or (group.hash is not None and group.values is None):
            return None
        row = None
        if group.hash is not None and group.values is not None:
            row = dict(zip(spec.column_names, map(_plain, group.values), strict=True))
        sides[node] = row, group.copies if row is not None and spec.is_keyless else 1
    key = None if spec.is_keyless else dict(zip(spec.key_names, difference.key, strict=True))
    return fingerprint(key, sides)


def listed_fingerprint(entry: Mapping[str, Any], *, is_keyless: bool) -> bytes:
    """Return the fingerprint of a difference as a report lists it."""
    copies = entry.get("copies") or {}
    sides: dict[str, Side] = {
        node: (row, int(copies.get(node, 1)) if row is not None and is_keyless else 1)
        for node, row in entry["rows"].items()
    }
    return fingerprint(None if is_keyless else entry["key"], sides)


def _plain(value: Value) -> Any:
    """Return a value as a report has it."""
    return {"length": value.length, "sha256": value.sha256} if isinstance(value, LongValue) else value


def scope_of(spec: TableSpec, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what was compared, and how; `tables` has the server (and database) and the OID of the table per node."""
    return {
        "tables": {node: dict(table) for node, table in tables.items()},
        "key": list(spec.key_names),
        "columns": [[column.name, column.type, column.encoding] for column in spec.columns],
        "filter": spec.filter,
        "numeric": spec.numeric,
        "long_value": spec.long_value,
    }


def why_not(before: Mapping[str, Any], now: Mapping[str, Any], pair: Sequence[str]) -> str:
    """Return why an acceptance with the scope `before` does not apply to a pair of a run; "" if it does."""
    for node in pair:
        then, here = before["tables"].get(node), now["tables"].get(node)
        if then is None or here is None:
            return f"it has no differences of node {node}"
        if then["system"] != here["system"]:
            return f"{node} is another server or database ({here['system']}, accepted for {then['system']})"
        if then["table"] != here["table"]:
            return f"the table on {node} was created again (OID {here['table']}, accepted for {then['table']})"
    if before["key"] != now["key"]:
        return f"the key is {_names(now['key'])}, accepted for {_names(before['key'])}"
    return _other_columns(before["columns"], now["columns"]) or _other_rules(before, now)


def _other_columns(before: Iterable[Sequence[str]], now: Iterable[Sequence[str]]) -> str:
    then, here = ({name: rest for name, *rest in columns} for columns in (before, now))
    added, missing = sorted(here.keys() - then.keys()), sorted(then.keys() - here.keys())
    parts = [f"{_names(added)} added"] if added else []
    parts += [f"{_names(missing)} not compared"] if missing else []
    changed = sorted(name for name in then.keys() & here.keys() if then[name] != here[name])
    parts += [f"another type of {_names(changed)}"] if changed else []
    return f"the compared columns are others: {', '.join(parts)}" if parts else ""


def _other_rules(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name, words in (("filter", "filter"), ("numeric", "rule for numerics"), ("long_value", "limit of long values")):
        if before[name] != now[name]:
            return f"the {words} is {now[name]!r}, accepted for {before[name]!r}"
    return ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def accepted_entries(
    entries: Iterable[Mapping[str, Any]], pair: str, *, is_keyless: bool
) -> Iterator[AcceptedDifference]:
    """Yield the differences that a report lists for a pair, to be accepted; those that are hot are not confirmed."""
    for entry in entries:
        if not entry.get("hot"):
            key = tuple(str(value) for value in entry["key"].values())
            yield AcceptedDifference(listed_fingerprint(entry, is_keyless=is_keyless), pair, key, str(entry["kind"]))


def active(store: TaskStore, table: str) -> list[Acceptance]:
    """Return the acceptances of a table that are in effect now."""
    now = times.now()
    return [acceptance for acceptance in store.acceptances(table) if acceptance.state(now) == "active"]


def refuse_accepted(store: TaskStore, table: str, keys: Iterable[KeyValues], listed_at: str) -> None:
    """Raise CheckFailed if a repair would write keys that were accepted after they were listed, at this time.

    A report that was written after the acceptance lists accepted differences apart, so its other keys are new ones.
    """
    then = times.parse(listed_at)
    later = [acceptance for acceptance in active(store, table) if times.parse(acceptance.accepted_at) > then]
    if not later:
        return
    wanted = set(keys)
    reasons = []
    for acceptance in later:
        count = len({each.key for each in store.accepted_differences(acceptance)} & wanted)
        if count:
            reasons.append(
                f"{count:,} of its keys have accepted differences, which a repair would overwrite: acceptance"
                f" {acceptance.short_id} ({acceptance.reason})"
            )
    if reasons:
        cure = "run a new diff and repair its report, which lists them apart; or end the acceptance: trueup accept"
        raise CheckFailed(reasons, cure=f"{cure} --revoke ID", table=table)


def scope_in(proof: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the scope of a report; raise StoreError if it has none."""
    if proof.get("digest") == "canonical":
        message = f"the report {path} is of rows that were compared by value, on nodes of any kind or with a mapping"
        raise StoreError(message, cure="only differences between PostgreSQL tables of the same columns can be accepted")
    scope = proof.get("scope")
    if not isinstance(scope, Mapping):
        raise StoreError(f"the report {path} does not say which tables it compared", cure="run a new diff")
    return scope
