"""Changes of the target from triggers: a change log on the target.

The triggers fire for every statement, whatever `session_replication_role` is. The apply worker of a subscription runs
no statements: its row changes fire no statement triggers, so what the syncer applies costs nothing and is not judged
again. What triggers of other tables write in the transactions of the apply worker are statements, which are captured. A
table that another subscription than the syncer fills has row triggers, which fire for apply workers, too: all its
changes are judged. So has a partition: statements on the partitioned table fire no statement triggers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from trueup.capture.log.pgoutput import Relation
from trueup.capture.log.syncer import Syncer, Versions, recognized, subscription_versions, why_unrecognized
from trueup.capture.triggers import tubes as tube_functions
from trueup.capture.triggers.model import Attached
from trueup.db.names import display_name
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.verbs.validate.look import CatalogChanged
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.proving.target_changes import Captured, numbers_of
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.source import Coverage, Opened, Pulled
from trueup.verbs.validate.tables import Tables
from trueup.verbs.validate.triggers.sides import target_tube
from trueup.verbs.validate.triggers.tube_coverage import TubeCoverage
from trueup.verbs.validate.triggers.tubes import TubeSource


class TargetTube(TubeSource):
    """The change log on the target, named as that of the source with the suffix `_t`."""

    interrupted = "the capture by triggers on the target was interrupted"

    def __init__(self, sessions: Sessions, tables: Tables) -> None:
        super().__init__(sessions, tables, target_tube)
        self._syncer = Syncer("lag")
        # The subscriptions of the syncer, and those of them that replicate the source.
        self._subscriptions: Versions = ()
        self._syncers: list[int] = []
        # The tables of the target that need row triggers, by OID.
        self._by_row: frozenset[int] = frozenset()
        # The tables that could not be attached, by their names on the target, and why.
        self._failed: dict[str, str] = {}

    @property
    def skips_applied(self) -> bool:
        """Whether the syncer is a subscription that replicates the source, and no table has row triggers."""
        return bool(self._syncers) and not self._by_row

    def begin(self, stored: Stored, syncer: Syncer, position: int) -> tuple[Opened, Mapping[str, Captured]]:
        """Open the change log on the target; create it at a new start."""
        self._syncer = syncer
        self._look_at_subscriptions()
        self._by_row = self._find_by_row()
        opened = self.open(stored)
        self._failed = {
            name: problem for name, problem in opened.coverage.problems.items() if name not in self._attached_names()
        }
        self._detach_others()
        return opened, self._named(opened.coverage)

    def pull(self, start: int, *, at_once: bool = False) -> Pulled | None:
        """Claim pods; raise CatalogChanged if other tables need row triggers now."""
        self._idle_until = 0.0 if at_once else self._idle_until
        self._check_subscriptions()
        if self._find_by_row() != self._by_row:
            raise CatalogChanged("subscriptions or partitions of the target were changed")
        return self.read(start, 0)

    def without_keys(self, table: str) -> Mapping[str, Captured]:
        """Return nothing: triggers record keys, and a change without one counts as not checked."""
        return {}

    def take_applied(self) -> int:
        """Return 0: what the syncer applies is not recorded, or judged like the rest."""
        return 0

    def found(self, pulled: Pulled) -> Mapping[str, Captured]:
        """Return what the read has found about the triggers."""
        return self._named(pulled.coverage)

    def captured(self) -> Mapping[str, Captured]:
        """Return nothing: the triggers were looked at after the mark of the read."""
        self._check_subscriptions()
        return {}

    def _named(self, coverage: Coverage) -> dict[str, Captured]:
        """Return the coverage by table of the validation."""
        named = {}
        for name, pair in self._tables.pairs.items():
            if problem := coverage.problems.get(pair.target_name):
                problem = self._failed.get(pair.target_name, problem)
                # The cures of tubes are not those of a validation.
                what = problem.partition(": run trueup")[0]
                named[name] = Captured("", f"triggers on the target: {what}; the next start corrects it")
            elif text := coverage.captures.get(pair.target_name):
                # What an altered subscription has applied may be of another database, and was not captured.
                versions = " ".join(version for *_, version in self._subscriptions)
                named[name] = Captured(f"{text} {versions}".rstrip())
        return named

    def _look_at_subscriptions(self) -> None:
        with self._sessions.target_errors():
            self._subscriptions = subscription_versions(self._sessions.target, self._syncer.oids)
        with self._sessions.source_errors():
            self._syncers = list(recognized(self._sessions.source, self._subscriptions))
        if note := why_unrecognized(self._subscriptions, self._sessions.target.info.user):
            self._sessions.log(note)

    def _check_subscriptions(self) -> None:
        with self._sessions.target_errors():
            if subscription_versions(self._sessions.target, self._syncer.oids) != self._subscriptions:
                raise CatalogChanged("subscriptions of the target were altered")

    def _find_by_row(self) -> frozenset[int]:
        query = load("trueup.verbs.validate.proving", "target.sql")["by_row"]
        values = {"oids": [pair.target_oid for pair in self._tables.pairs.values()], "syncers": self._syncers}
        with self._sessions.target_errors():
            rows = self._sessions.target.execute(query, values).fetchall()
        return frozenset(int(row[0]) for row in rows)

    def _new_coverage(self, stored: Stored) -> TubeCoverage:
        side = self._side_of(stored)
        return TubeCoverage(
            self._session, side.tube, stored.slot, side.node, is_changelog=self._is_changelog, counts_writes=True
        )

    def _keys(self) -> dict[str, tuple[str, ...]]:
        keys: dict[str, tuple[str, ...]] = {}
        for pair in self._tables.pairs.values():
            keys[pair.target_name] = keys.get(pair.target_name, ()) + pair.target.key_names
        return keys

    def _relations(self) -> dict[str, list[Relation]]:
        relations: dict[str, list[Relation]] = {}
        numbers = numbers_of(self._tables)
        for name, pair in self._tables.pairs.items():
            key, target = pair.target.key_names, self._tables.routes[name].target
            relations.setdefault(pair.target_name, []).append(Relation(numbers[name], *target, "d", key, key))
        return relations

    def _create(self) -> None:
        super()._create()
        tube_functions.skip_applied(self._session, self._name)

    def _attach(self, name: str, attached: Attached | None) -> None:
        """Attach a table, unless it is attached as it must be: its functions must not be written again."""
        oids = {pair.target_oid for pair in self._tables.pairs.values() if pair.target_name == name}
        capture = "row" if oids & self._by_row else "statement"
        if attached is not None and attached.capture != capture:
            self._detach(name)
        elif attached is not None and not attached.capture_problem:
            return
        tube_functions.attach(self._session, self._name, name, shard=0, capture=capture)

    def _attached_names(self) -> set[str]:
        assert self._coverage is not None
        return {attached.table for attached in self._coverage.sources.values()}

    def _detach_others(self) -> None:
        """Detach tables that are not validated any more, or have another name now."""
        names = {display_name(*route.target) for route in self._tables.routes.values()}
        for name in self._attached_names() - names:
            with suppress(CheckFailed, QueryError):
                self._detach(name)

    def _write_mark(self) -> int:
        return self._sessions.mark_target()
