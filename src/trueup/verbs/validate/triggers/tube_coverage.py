"""Checks that the triggers of a tube capture all changes of the validated tables, without interruption."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from psycopg import sql

from trueup.capture.log.slot import SlotLost
from trueup.capture.triggers import tubes as tube_functions
from trueup.capture.triggers.model import Attached, TubeInfo
from trueup.capture.triggers.session import Session
from trueup.db.statements import load
from trueup.errors import CheckFailed, QueryError
from trueup.verbs.validate.log import FULL_CHECK
from trueup.verbs.validate.source import Coverage

_FULL_SECONDS = 10.0


class TubeCoverage:
    """Compares the triggers of the attached tables with those of the last check."""

    def __init__(
        self, session: Session, tube: str, reader: str, node: str, *, is_changelog: bool, counts_writes: bool = False
    ) -> None:
        self._session = session
        self._tube = tube
        self._reader = reader
        # What the node is: the source or the target.
        self._node = node
        self._is_changelog = is_changelog
        # Whether the text of a capture is another one also when the same functions were written again.
        self._counts_writes = counts_writes
        # The attached tables, by their number in pods.
        self.sources: dict[int, Attached] = {}
        # Per attached table: hashes of its partitions, of the triggers that capture it, and of their functions.
        self._triggers: dict[int, tuple[str, str, str]] = {}
        self._checked_at = 0.0

    def find(self) -> TubeInfo:
        """Return the tube with its tables; raise if it does not exist."""
        info = tube_functions.find(self._session, self._tube)
        if info is not None:
            return info
        if self._is_changelog:
            raise SlotLost(f"the change log does not exist on the {self._node} any more", cure=FULL_CHECK)
        raise CheckFailed(
            [f"tube {self._tube} does not exist"],
            cure=f"create it with trueup tube ensure {self._tube}",
            node=self._session.node.name,
        )

    def check(self, keys: Mapping[str, tuple[str, ...]]) -> Coverage:
        """Check the tables of `keys`; return what changed since the last check. Creates triggers on new partitions."""
        before, triggers = self._triggers, self._read_triggers()
        if triggers and (not before or any(before.get(n, hashes)[0] != hashes[0] for n, hashes in triggers.items())):
            # Partitions were added or removed. Rows that came with them are reported by a control pod.
            tube_functions.cover(self._session, self._tube)
            triggers = self._read_triggers()
        if triggers == before and triggers and time.monotonic() - self._checked_at <= _FULL_SECONDS:
            return Coverage()
        self._triggers, self._checked_at = triggers, time.monotonic()
        return self._compare(self.find(), keys)

    def replaced(self) -> dict[int, list[str]]:
        """Return the attached tables with replaced triggers or functions, and statements that drop such triggers."""
        try:
            return self._replaced(None)
        except QueryError:
            # A table has a problem, for example no key. `find` reports it; it does not hide what is wrong with others.
            found: dict[int, list[str]] = {}
            for number in self._read_triggers():
                with suppress(QueryError):
                    found.update(self._replaced(number))
            return found

    def _replaced(self, number: int | None) -> dict[int, list[str]]:
        session = self._session
        names = {name: session.name(name) for name in ("sources", "tube_relations", "tube_trigger_body")}
        query = sql.SQL(load("trueup.verbs.validate.triggers", "tubes.sql")["replaced"]).format(**names)
        values = {"tube": self._tube, "schema": session.schema, "prefix": self._prefix, "source": number}
        return {number: list(statements) for number, statements in session.rows(query, values)}

    @property
    def _prefix(self) -> str:
        return f"{self._session.schema}_{self._tube}_"

    def _read_triggers(self) -> dict[int, tuple[str, str, str]]:
        session = self._session
        names = {"sources": session.name("sources"), "relations": session.name("tube_relations")}
        query = sql.SQL(load("trueup.verbs.validate.triggers", "tubes.sql")["triggers"]).format(**names)
        values = {"tube": self._tube, "prefix": self._prefix, "schema": session.schema}
        try:
            session.call("tube_parents_follow", self._tube)
            return {number: (hashes[0], hashes[1], hashes[2]) for number, *hashes in session.rows(query, values)}
        except CheckFailed:
            return {}

    def _other_readers(self) -> list[str]:
        session = self._session
        names = {"workers": session.name("workers"), "readers": session.name("readers")}
        query = sql.SQL(load("trueup.verbs.validate.triggers", "tubes.sql")["other_readers"]).format(**names)
        return [row[0] for row in session.rows(query, {"tube": self._tube, "reader": self._reader})]

    def _compare(self, tube: TubeInfo, keys: Mapping[str, tuple[str, ...]]) -> Coverage:
        self.sources = {attached.source: attached for attached in tube.tables}
        others = self._other_readers()
        replaced = self.replaced()
        by_name = {attached.table: attached for attached in tube.tables}
        problems: dict[str, str] = {}
        captures: dict[str, str] = {}
        for name, key in keys.items():
            attached = by_name.get(name)
            problem = _problem(tube, attached, key)
            if not problem and attached is not None and attached.source in replaced:
                problem = "changes may be missed: its triggers, or their functions, were replaced"
            if attached is None or problem:
                problems[name] = problem
                continue
            # Another key, a later attachment or other triggers: changes between the two were not captured, or waiting
            # pods contain other keys. If something else has read the tube, it has deleted pods.
            parts = (attached.source, attached.attached_at.isoformat(), *attached.key, *others)
            hashes = self._triggers.get(attached.source, ())[: 3 if self._counts_writes else 2]
            captures[name] = " ".join(map(str, (*parts, *hashes)))
        return Coverage(problems, captures)


def _problem(tube: TubeInfo, attached: Attached | None, key: tuple[str, ...]) -> str:
    """Return why changes of a table may be missed; an empty text if they are not."""
    if attached is None:
        return f"it is not attached to tube {tube.tube}"
    if attached.capture_problem:
        return f"changes may be missed: {attached.capture_problem}"
    if attached.predicate or tube.predicate:
        return f"tube {tube.tube} captures only rows of a predicate"
    if not {*key} <= {*attached.key}:
        return f"tube {tube.tube} uses the key ({', '.join(attached.key)}), the validation ({', '.join(key)})"
    return ""
