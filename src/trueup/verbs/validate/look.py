"""A look at the catalogs: whether the selected tables are the same tables as before, and all their changes are seen.

A validation proves something about tables, not about names: a table that was renamed, dropped and created again, taken
out of the publication, or truncated without a message in the log is noticed by a look. Positions move only after a
look that found nothing new; what a look finds is stored before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import sql
from typing_extensions import LiteralString

from trueup.capture.log.publications import Carried, Published, carried_by, read_published
from trueup.capture.log.syncer import Syncer
from trueup.capture.log.visible import invisible
from trueup.db.connection import Connection, one_value
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import TrueupError
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.routes import Name, Route
from trueup.verbs.validate.sessions import Sessions

_PARTS = {
    "source": "another table has its name on the source",
    "target": "another table has its name on the target",
    "key": "its key was changed",
    "publication": "its publication was altered",
}


class CatalogChanged(TrueupError):
    """The catalogs differ from the last look: tables are planned and checked again before anything else is judged."""


@dataclass(frozen=True)
class Look:
    """What the catalogs of both nodes say at one moment; two looks are equal if nothing changed between them."""

    source: Mapping[Name, int]
    target: Mapping[Name, int]
    # The columns of the tables of the source and of the target: name, type, number, and whether rows have a default.
    columns: Mapping[Name, tuple[str, ...]]
    target_columns: Mapping[Name, tuple[str, ...]]
    # Per table: its files, by partition, and definitions that its values depend on. On the target also its columns.
    files: Mapping[int, Mapping[str, str]]
    target_files: Mapping[Name, Mapping[str, str]]
    # Per table of the source: partitions and heirs whose changes are not seen.
    limits: Mapping[int, Mapping[str, str | None]]
    # Per table of the target: a table that inherits from it, or None. Its rows are rows of the table.
    target_heirs: Mapping[Name, str | None]
    # The publications of the subscriptions, and what they and the publication of the slot publish of the tables.
    subscribed: tuple[str, ...]
    published: Mapping[tuple[str, int], Published]
    # Whether a transaction that alters a table or a publication may be committed, and is not visible yet.
    is_undecided: bool = field(default=False, compare=False)

    def difference(self, before: Look) -> str:
        """Return which tables or publications differ from an earlier look."""
        names = [
            *(f"source {display_name(*name)}" for name, _ in self.source.items() ^ before.source.items()),
            *(f"target {display_name(*name)}" for name, _ in self.target.items() ^ before.target.items()),
            *(f"columns of {display_name(*name)}" for name, _ in self.columns.items() ^ before.columns.items()),
            *(
                f"columns of target {display_name(*name)}"
                for name, _ in self.target_columns.items() ^ before.target_columns.items()
            ),
            *(
                f"partitions or heirs of {display_name(*name)}"
                for name, oid in self.source.items()
                if self.limits[oid] != before.limits.get(oid, self.limits[oid])
            ),
            *(
                f"heirs of target {display_name(*name)}"
                for name, _ in self.target_heirs.items() ^ before.target_heirs.items()
            ),
            *(f"publication {name}" for name in {*self.subscribed} ^ {*before.subscribed}),
            *(
                f"publication {place[0]}"
                for place in {*self.published, *before.published}
                if self.published.get(place) != before.published.get(place)
            ),
        ]
        return ", ".join(sorted(set(names))[:5])

    def identity(self, route: Route, pair: Pair, publication: str) -> dict[str, Any]:
        """Return what identifies a table and the capture of its changes, to be stored."""
        published = self.published.get((publication, pair.oid))
        source, target = _by_name(self.columns[route.source]), _by_name(self.target_columns[route.target])
        return {
            "source": pair.oid,
            "target": pair.target_oid,
            "key": list(pair.key),
            "publication": published.version if published else "",
            "files": dict(self.files.get(pair.oid, {})),
            "target_files": dict(self.target_files.get(route.target, {})),
            "columns": list(pair.seen),
            # Per column: type and number on both nodes, and whether rows may have a value that no change has set.
            "compared": {
                name: [*source[name][:2], *target[other][:2], source[name][2] or target[other][2]]
                for name in pair.comparable
                if (other := route.columns.get(name, name))
            },
        }

    def is_planned(self, route: Route, pair: Pair) -> bool:
        """Return whether the tables are those that were planned, with the same columns."""
        return (
            (self.source.get(route.source), self.target.get(route.target)) == (pair.oid, pair.target_oid)
            and _names(self.columns[route.source]) == pair.seen
            and _names(self.target_columns[route.target]) == pair.target_seen
        )

    def without_files(self) -> Look:
        """Return what must not change without a new plan."""
        return replace(self, files={}, target_files={})

    def carried(self, oid: int) -> Carried:
        """Return what the subscriptions replicate of a table."""
        return carried_by([self.published[name, oid] for name in self.subscribed if (name, oid) in self.published])


@dataclass
class Looker:
    """Takes looks with the sessions of a validation."""

    sessions: Sessions
    # The publication of the slot; "" if changes are not read from the log.
    publication: str = ""

    def take(self, routes: Iterable[Route], syncer: Syncer) -> Look:
        """Return how the catalogs are now; `routes` are the tables of the plan."""
        sources, targets = [route.source for route in routes], [route.target for route in routes]
        sessions, statements = self.sessions, _statements()
        patterns = [text[:-2].strip('"') for text in sessions.settings.tables if text.endswith(".*")]
        with sessions.target_errors():
            on_target = _targets(sessions.target, statements["targets"], targets)
            target_meanings = _meanings(sessions.target, [oid for oid, *_ in on_target.values()])
            subscribed: tuple[str, ...] = ()
            if syncer.oids:
                rows = sessions.target.execute(statements["subscribed"], {"oids": list(syncer.oids)}).fetchall()
                subscribed = tuple(str(row[0]) for row in rows)
        with sessions.source_errors():
            values = {
                "schemas": patterns,
                "named_schemas": [name[0] for name in sources],
                "named_tables": [name[1] for name in sources],
            }
            selected = sessions.source.execute(statements["selected"], values).fetchall()
            source = {(str(schema), str(table)): int(oid) for schema, table, oid, *_ in selected}
            meanings = _meanings(sessions.source, source.values())
            publications = (*subscribed, *([self.publication] if self.publication else []))
            published = read_published(sessions.source, publications, source.values())
            altering = {int(xid) for row in selected for xid in row[5] or ()}
            writers = altering.union(*(each.writers for each in published.values())) - {0}
            is_undecided = bool(writers) and _may_be_committed(sessions.source, writers)
        return Look(
            source,
            {name: oid for name, (oid, *_) in on_target.items()},
            {(str(schema), str(table)): tuple(columns) for schema, table, _, _, columns, *_ in selected},
            {name: columns for name, (_, columns, *_) in on_target.items()},
            {int(oid): {**files, **meanings.get(oid, {})} for _, _, oid, files, *_ in selected},
            {name: {**files, **target_meanings.get(oid, {})} for name, (oid, _, files, _) in on_target.items()},
            {int(oid): dict(limits) for _, _, oid, _, _, _, limits in selected},
            {name: heir for name, (*_, heir) in on_target.items()},
            subscribed,
            published,
            is_undecided,
        )

    def problem(self, look: Look, pair: Pair) -> str:
        """Return why changes of a table are not seen; "" if all are."""
        limits = look.limits[pair.oid]
        if limits["heir"]:
            return f"{limits['heir']} inherits from it, so its rows are rows of two tables; compare it with trueup diff"
        if heir := next((look.target_heirs[name] for name, oid in look.target.items() if oid == pair.target_oid), None):
            return f"{heir} inherits from it on the target: its rows are rows of two tables; use trueup diff"
        if not self.publication:
            return ""
        if limits["unlogged"]:
            return f"its partition {limits['unlogged']} is unlogged: it is not in the log; run ALTER TABLE … SET LOGGED"
        published = look.published.get((self.publication, pair.oid))
        if published is None:
            return f"it is not in publication {self.publication}; run ALTER PUBLICATION … ADD TABLE"
        return published.problem(pair.key, look.carried(pair.oid).filter)

    def missed(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return why changes of a table may have been missed between two looks; "" if none were."""
        texts = [text for part, text in _PARTS.items() if before.get(part) != now.get(part)]
        # Changes before the source had the column cannot have changed it.
        late = ({*now["compared"]} - {*before["compared"]}) & {*before["columns"]}
        texts += [f"column {name} was not compared before" for name in sorted(late)]
        return "; ".join(texts)

    def rewritten(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return what `is_rewritten` found, for a user."""
        gone = {place for place in before["files"] if place.isdigit()} - {*now["files"]}
        if gone:
            return "a partition was detached or dropped"
        if any(now["files"].get(place) != file for place, file in before["files"].items() if place.isdigit()):
            return "the table, or a partition, was truncated or written again without row changes in the log"
        if _files(before.get("target_files", {})) != _files(now["target_files"]):
            return "the table on the target, or a partition, was truncated, detached or written again"
        return "a type, a column or a new partition changed rows without row changes in the log"

    def is_rewritten(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Return whether rows came, went or have other values without a message in the log.

        A file that is gone or replaced: a partition was detached (perhaps attached again), dropped or truncated, or a
        table was written again. A new file with rows: a partition was attached with them. A compared column that is
        another one, or a new one with a default: all rows have other values. A label of an enumeration that was
        renamed: rows have other values with the same file.
        """
        if any(now["files"].get(oid) != file for oid, file in before["files"].items()):
            return True
        if _is_target_rewritten(before.get("target_files", {}), now["target_files"]):
            return True
        if self.sessions.settings.both_sides and _files(before.get("target_files", {})) != _files(now["target_files"]):
            # A TRUNCATE of one partition, and partitions that come and go, are not in the log.
            return True
        for name, (*numbers, has_default) in now["compared"].items():
            if name in before["compared"]:
                if before["compared"][name][:-1] != numbers:
                    return True
            elif has_default:
                return True
        new = [place for place in now["files"] if place not in before["files"] and place.isdigit()]
        return any(self._has_rows(int(oid)) for oid in new)

    def _has_rows(self, oid: int) -> bool:
        with self.sessions.source_errors():
            name = table_name(self.sessions.source, oid)
            if name is None:
                return True
            query = sql.SQL("SELECT EXISTS (SELECT FROM ONLY {})").format(sql.Identifier(*name))
            return bool(one_value(self.sessions.source.execute(query)))


def _may_be_committed(connection: Connection, xids: set[int]) -> bool:
    """Return whether a transaction may be in the log and not visible, because it waits for a synchronous standby."""
    hidden = invisible(connection, xids)
    if not hidden:
        return False
    idle = connection.execute(_statements()["idle"], {"xids": [str(xid) for xid in hidden]}).fetchall()
    return len(idle) < len(hidden)


def table_name(connection: Connection, oid: int) -> Name | None:
    """Return the present name of a table; None if it does not exist any more."""
    row = connection.execute(_statements()["name"], {"oid": oid}).fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def _names(columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(column.rsplit(" ", 4)[0] for column in columns)


def _by_name(columns: Iterable[str]) -> dict[str, tuple[int, int, bool]]:
    """Return type and number of columns, and whether rows may have a value that no change has set."""
    parts = [column.rsplit(" ", 4) for column in columns]
    return {name: (int(type_oid), int(number), has == "t") for name, type_oid, _, number, has in parts}


def _is_target_rewritten(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether rows of the target went or have other values without a change of the source.

    ALTER COLUMN … TYPE … USING changes both files and columns; VACUUM FULL, CLUSTER and a TRUNCATE that was replicated
    change only files, SET DEFAULT only columns.
    """
    changed = {place for place, value in before.items() if now.get(place) != value}
    files = {place for place in changed if place.isdigit() and place in now}
    return bool(changed - files - {"columns"}) or bool(files and "columns" in changed)


def _files(places: Mapping[str, str]) -> dict[str, str]:
    return {place: file for place, file in places.items() if place.removeprefix("attached ").isdigit()}


def _meanings(connection: Connection, oids: Iterable[int]) -> dict[int, dict[str, str]]:
    return dict(connection.execute(_statements()["meanings"], {"oids": list(oids)}).fetchall())


def _targets(
    connection: Connection, statement: LiteralString, names: Iterable[Name]
) -> dict[Name, tuple[int, tuple[str, ...], dict[str, str], str | None]]:
    listed = list(names)
    values = {"schemas": [name[0] for name in listed], "tables": [name[1] for name in listed]}
    rows = connection.execute(statement, values).fetchall()
    return {
        (str(schema), str(table)): (int(oid), tuple(columns), files, heir)
        for schema, table, oid, columns, files, heir in rows
    }


def _statements() -> dict[str, LiteralString]:
    return dict(load("trueup.verbs.validate", "look.sql"))
