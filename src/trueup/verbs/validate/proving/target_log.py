"""Changes of the target from its log: a second slot.

Transactions that a subscription applies have its replication origin. They are counted and not judged: each of their
changes is one of the source, which is judged when the syncer has passed it. A transaction without that origin, without
a position of the source, or with a position that was seen before, is one of another writer. So are all, as long as
triggers of the target run for the subscription: they may write other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from psycopg.rows import dict_row

from trueup.capture.log.pgoutput import Change, Relation
from trueup.capture.log.publications import read_published
from trueup.capture.log.slot import flushed_position, written_position
from trueup.capture.log.syncer import Syncer, Versions, recognized, subscription_versions, why_unrecognized
from trueup.db.connection import one_value
from trueup.db.statements import load
from trueup.verbs.validate.log import LogSource, target_side
from trueup.verbs.validate.look import CatalogChanged
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.proving.target_changes import Captured, find_target_pair, numbers_of
from trueup.verbs.validate.routes import Name
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.source import Changes, Opened, Pulled
from trueup.verbs.validate.tables import Tables


@dataclass
class SyncerOrigins:
    """Recognizes the transactions that the syncer has applied."""

    names: frozenset[str] = frozenset()
    skipped: int = 0
    # Per origin: the position of its last transaction. They are applied in the order of the source.
    last: dict[str, int] = field(default_factory=dict)

    def is_skipped(self, name: str, position: int) -> bool:
        """Return whether a transaction is one of the syncer."""
        if name not in self.names or position <= self.last.get(name, 0):
            return False
        self.last[name] = position
        return True


class TargetLog(LogSource):
    """The slot on the target; the publication has the tables whose rows the log identifies."""

    interrupted = "the publication on the target was altered"

    def __init__(self, sessions: Sessions, tables: Tables) -> None:
        super().__init__(sessions, tables, target_side)
        self._origins = SyncerOrigins()
        self._syncer = Syncer("lag")
        self._subscriptions: Versions = ()
        self._origin_names: frozenset[str] = frozenset()
        self._skipped = 0
        # From this position until the last look, no trigger of the target could write in transactions of the syncer;
        # None: one could at the last look.
        self._quiet_from: int | None = None
        # Tables whose changes on the target are not seen, and why.
        self._problems: dict[str, str] = {}

    @property
    def skips_applied(self) -> bool:
        """Whether changes of the syncer have an origin, and nothing else has it."""
        return bool(self._origins.names)

    def begin(self, stored: Stored, syncer: Syncer, position: int) -> tuple[Opened, Mapping[str, Captured]]:
        """Open the slot on the target; create it and its publication at a new start."""
        self.prepare(stored)
        opened = self.open(stored)
        self._syncer = syncer
        with self._sessions.target_errors():
            self._subscriptions = subscription_versions(self._sessions.target, syncer.oids)
        with self._sessions.source_errors():
            own = recognized(self._sessions.source, self._subscriptions)
        if note := why_unrecognized(self._subscriptions, self._sessions.target.info.user):
            self._sessions.log(note)
        self._origin_names = frozenset(f"pg_{oid}" for oid in own)
        # Transactions that it applies from before this position are not read on the source.
        last = {name: max(position, self._origins.last.get(name, 0)) for name in self._origin_names}
        self._origins = SyncerOrigins(last=last)
        self._quiet_from = None
        problems = {name: Captured("", problem) for name, problem in self._problems.items()}
        return opened, {**self.captured(), **problems}

    def pull(self, start: int, *, at_once: bool = False) -> Pulled | None:
        """Return the changes of the target up to now, without those of the syncer."""
        target = self._sessions.target
        with self._sessions.target_errors():
            end = flushed_position(target)
            if end <= start:
                return None
            if subscription_versions(target, self._syncer.oids) != self._subscriptions:
                # It may replicate another database now.
                raise CatalogChanged("subscriptions of the target were altered")
            query = load("trueup.verbs.validate.proving", "target.sql")["may_write_more"]
            if one_value(target.execute(query)):
                self._quiet_from = None
            elif self._quiet_from is None:
                # Behind what was committed before this look, flushed or not.
                self._quiet_from = written_position(target)
        is_quiet = self._quiet_from is not None and start >= self._quiet_from
        self._origins.names = self._origin_names if is_quiet else frozenset()
        self._skipped = self._origins.skipped
        return self.read(start, end)

    def read(self, start: int, end: int) -> Pulled | None:
        """Return the changes of the target that were committed in `[start, end)`, without those of the syncer."""
        self._changes = changes = self._reader.changes(
            start, end, self._places, max_messages=self._sessions.settings.batch, origins=self._origins
        )
        is_shared = any(len(names) > 1 for names in _names_by_oid(self._tables).values())
        return Pulled(_PerPair(changes, self._tables) if is_shared else changes, needs=start)

    def take_applied(self) -> int:
        """Return the number of changes of the syncer in the last read."""
        return self._origins.skipped - self._skipped

    def found(self, pulled: Pulled) -> Mapping[str, Captured]:
        """Return nothing: the publication is looked at later."""
        return {}

    def _places(self, relation: Relation) -> tuple[int, ...] | None:
        name, pair = find_target_pair(self._tables, relation)
        if pair is None:
            return None
        # A change whose key is not known counts as one that was not checked. Of an update, the log has the former key
        # only if all its columns are in the replica identity.
        key, known = pair.target.key_names, relation.columns if relation.identity == "f" else relation.keys
        if name in self._problems or not {*key} <= {*known}:
            return ()
        return tuple(relation.columns.index(column) for column in key)

    def without_keys(self, table: str) -> Mapping[str, Captured]:
        """Leave out a table of the target: a change in the log lacks the key, also if its replica identity is right.

        The rows of a partition are identified by the replica identity of the partition.
        """
        problem = f"a change of {table} in the log of the target lacks the key; the next start looks again"
        names = [name for name, pair in self._tables.pairs.items() if pair.target_name == table]
        self._problems |= dict.fromkeys(names, problem)
        return {name: Captured("", problem) for name in names}

    def _published(self) -> list[Name]:
        pairs = self._tables.pairs
        self._problems = {name: problem for name, pair in pairs.items() if (problem := self._problem(pair))}
        by_oid = _names_by_oid(self._tables)
        for name, pair in pairs.items():
            others = [pairs[other] for other in by_oid[pair.target_oid]]
            if any(other.target.key_names != pair.target.key_names for other in others):
                self._problems[name] = f"{pair.target_name} on the target is that of another table with another key"
        return list(dict.fromkeys(self._tables.routes[name].target for name in pairs if name not in self._problems))

    def _problem(self, pair: Pair) -> str:
        """Return why the log of the target does not identify the rows of a table; "" if it does.

        The server refuses to update a published table whose rows the log does not identify.
        """
        query = load("trueup.verbs.validate.proving", "target.sql")["members"]
        with self._reader.connection.cursor(row_factory=dict_row) as cursor:
            members = cursor.execute(query, {"oid": pair.target_oid}).fetchall()
        for member in members:
            if member["persistence"] != "p":
                return f"{member['name']} on the target is unlogged"
            if member["heir"]:
                return f"{member['heir']} inherits from {member['name']} on the target"
            known = None if member["identity"] == "f" else member["columns"] or ()
            if known is not None and not {*pair.target.key_names} <= {*known}:
                return f"the replica identity of {member['name']} on the target lacks the key"
        return ""

    def captured(self) -> Mapping[str, Captured]:
        """Return per table what the publication publishes of it: another text after each alteration."""
        publication, captured = self._reader.publication, {}
        with self._sessions.target_errors():
            by_oid = _names_by_oid(self._tables)
            published = read_published(self._sessions.target, [publication], by_oid)
        for oid, names in by_oid.items():
            found = published.get((publication, oid))
            for name in names:
                if name in self._problems:
                    continue
                if found is None or found.problem(self._tables.pairs[name].target.key_names):
                    problem = f"{self.interrupted}, and does not publish all of it; the next start corrects it"
                    captured[name] = Captured("", problem)
                else:
                    captured[name] = Captured(found.version)
        return captured


class _PerPair:
    """Changes of the target, once per table of the validation that has this table as its target."""

    def __init__(self, changes: Changes, tables: Tables) -> None:
        self._changes = changes
        self._numbers = numbers_of(tables)
        self._by_oid = _names_by_oid(tables)

    @property
    def position(self) -> int:
        return self._changes.position

    @property
    def is_cut(self) -> bool:
        return self._changes.is_cut

    def __iter__(self) -> Iterator[Change]:
        for change in self._changes:
            relation = change.relation
            names = [] if relation is None else self._by_oid.get(relation.id, [])
            if relation is None or len(names) < 2:
                yield change
                continue
            for name in names:
                yield change._replace(relation=replace(relation, id=self._numbers[name]))


def _names_by_oid(tables: Tables) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, pair in tables.pairs.items():
        names.setdefault(pair.target_oid, []).append(name)
    return names
