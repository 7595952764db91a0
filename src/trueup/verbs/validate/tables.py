"""The tables of a running validation: planned, planned again when they are altered, or stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psycopg.types.json import Jsonb

from trueup.capture.log.pgoutput import Relation
from trueup.capture.log.publications import Carried
from trueup.db.names import display_name
from trueup.db.storable import as_json
from trueup.errors import CheckFailed
from trueup.proof import store
from trueup.verbs.validate import pending
from trueup.verbs.validate.look import Look, table_name
from trueup.verbs.validate.option_checks import examine_filter, refuse_wrong_options
from trueup.verbs.validate.plan import Pair, plan_pair, why_altered
from trueup.verbs.validate.proving.certify import rules_of
from trueup.verbs.validate.routes import Route, find_routes, selected_tables
from trueup.verbs.validate.sessions import Sessions


class Tables:
    """The routes by source table, and the pairs of the tables that are validated."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._mode = ""
        self.routes: dict[str, Route] = {}
        self.pairs: dict[str, Pair] = {}
        # The names of the planned tables by OID: the log reports a renamed table with another name.
        self._names: dict[int, str] = {}
        # Tables that are scrubbed once, also without --scrub-share: they were added or restarted.
        self.to_scrub: set[str] = set()
        # Stopped tables, and why.
        self._stopped: dict[str, str] = {}

    def find(self) -> None:
        """Find the selected tables, and those that were selected at an earlier start."""
        sessions = self._sessions
        stored = [row["source"] for row in self.rows()] if sessions.stored.position is not None else []
        with sessions.source_errors():
            self.routes = {route.name: route for route in find_routes(sessions.source, sessions.settings, stored)}
            if sessions.stored.position is None:
                routes = list(self.routes.values())
                refuse_wrong_options(sessions.source, sessions.target, sessions.nodes[0], sessions.settings, routes)

    def unplanned(self) -> list[str]:
        """Return the tables that are selected now and did not exist when `find` listed them."""
        sessions = self._sessions
        with sessions.source_errors():
            selected = selected_tables(sessions.source, sessions.settings, list(self.routes))
        return [shown for name in selected if (shown := display_name(*name)) not in self.routes]

    def rows(self) -> list[dict[str, Any]]:
        """Return the stored rows of the tables."""
        return self._sessions.meta.rows("tables", name=self._sessions.name)

    def open(self, look: Look) -> None:
        """Plan all tables; raise CheckFailed if none of them can be validated."""
        self._mode = self._sessions.settings.mode
        self.pairs.clear()
        self._names.clear()
        self._stopped.clear()
        for name, route in self.routes.items():
            carried = look.carried(look.source.get(route.source, 0))
            self.routes[name] = _as_carried(route, carried)
            self._plan(self.routes[name])
            if carried.limits_partitions and not route.filter and name in self.pairs:
                where = f"publication {', '.join(carried.publications)} of the subscription"
                self.stop(name, f"{where} has row filters or column lists of partitions; name the rows with --filter")
        self.to_scrub = {row["source"] for row in self.rows() if row["scrub_once"]}
        self.need_any()

    def need_any(self) -> None:
        """Raise CheckFailed with all reasons if no table can be validated."""
        if not self.pairs:
            reasons = [f"{name}: {reason}" for name, reason in self._stopped.items()]
            raise CheckFailed(reasons, cure="fix at least one of these tables, or name other tables with --tables")

    def apply_settings(self) -> None:
        """Plan the tables again if the mode was changed: another mode compares other columns."""
        if self._sessions.settings.mode != self._mode:
            self._mode = self._sessions.settings.mode
            for name in list(self.pairs):
                self._plan(self.routes[name])

    def replan(self, name: str) -> None:
        """Plan a table again that was altered."""
        self._sessions.log(f"{name} was altered: planning it again")
        self._plan(self.routes[name])

    def stop(self, name: str, reason: str) -> None:
        """Stop the validation of a table and store the reason; the other tables go on."""
        self.pairs.pop(name, None)
        self._stopped[name] = reason
        self._sessions.log(f"{name} is not validated: {reason}")
        self._save_stopped(name, reason)

    def void(self, name: str, reason: str) -> None:
        """Void the certificate of a table: changes may have been missed. The pass of the scrub begins again."""
        meta = self._sessions.meta
        with meta.errors():
            store.void(meta.connection, self._sessions.name, reason, [name])
        meta.rows("restart_pass", name=self._sessions.name, source=name)

    def save_stopped(self) -> None:
        """Store the stopped tables again; needed after a transaction in which one was stopped is rolled back."""
        for name, reason in self._stopped.items():
            self._save_stopped(name, reason)

    def key_places(self, relation: Relation) -> tuple[int, ...] | None:
        """Return the places of the key columns in the rows of a table; () for a stopped table, None for other tables.

        The reader of the log calls this once per table and read. Stops the table if its key was altered.
        """
        name, pair = self.find_pair(relation)
        if pair is not None:
            reason = why_altered(pair, relation.identity, relation.columns, relation.keys)
            if reason:
                self.stop(name, reason)
            pair = self.pairs.get(name)
        if pair is None:
            return () if name in self.routes else None
        return tuple(relation.columns.index(column) for column in pair.key)

    def find_pair(self, relation: Relation) -> tuple[str, Pair | None]:
        """Return the name and the pair of a table in the log; no pair if it is not validated, or another table."""
        name = self._names.get(relation.id)
        if name is None:
            return display_name(relation.schema, relation.table), None
        return name, self.pairs.get(name)

    def not_validated(self) -> tuple[dict[int, str], frozenset[str]]:
        """Return the tables whose changes are counted as unchecked: by OID, as far as it is known, and by name."""
        stopped = frozenset(name for name in self.routes if name not in self.pairs)
        return {oid: name for oid, name in self._names.items() if name in stopped}, stopped

    def _plan(self, route: Route) -> None:
        sessions = self._sessions
        try:
            with sessions.source_errors():
                # At every start: functions of the filter may have been replaced since.
                examined = examine_filter(sessions.source, sessions.nodes[0], sessions.settings, route)
                if examined.reason:
                    self.stop(route.name, examined.reason)
                    return
                pair = plan_pair(sessions.source, sessions.target, route, sessions.settings)
                pair = replace(pair, source=replace(pair.source, filter_guard=examined.guard))
        except CheckFailed as error:
            self.stop(route.name, f"{error}{self._renamed(route)}")
            return
        self.pairs[route.name] = pair
        self._names[pair.oid] = route.name
        self._stopped.pop(route.name, None)
        rules = {**rules_of(pair, sessions.settings).as_json(), "extent": pair.extent.as_json()}
        self._save(route, "running", "", pair.remarks, as_json(rules))

    def _renamed(self, route: Route) -> str:
        """Return the present name of a table that was planned under another name."""
        sessions = self._sessions
        identity = next((row["identity"] for row in self.rows() if row["source"] == route.name), None)
        with sessions.source_errors():
            name = table_name(sessions.source, identity["source"]) if identity else None
        return f" (it was renamed to {display_name(*name)})" if name not in (None, route.source) else ""

    def _save_stopped(self, name: str, reason: str) -> None:
        self._save(self.routes[name], "stopped", reason, ())
        self.void(name, f"it is not validated: {reason}")
        self._sessions.meta.rows("drop_table", pending.FILE, name=self._sessions.name, source=name)

    def _save(
        self, route: Route, stage: str, reason: str, remarks: tuple[str, ...], rules: Jsonb | None = None
    ) -> None:
        self._sessions.meta.rows(
            "put_table", name=self._sessions.name, source=route.name, target=display_name(*route.target), stage=stage,
            reason=reason, remarks=list(remarks), rules=rules,
        )  # fmt: skip


def _as_carried(route: Route, carried: Carried) -> Route:
    """Return a route with the row filter and the columns of the publications that the subscriptions use."""
    remarks = []
    if carried.filter:
        remarks.append(f"only rows of the filter {carried.filter} are compared (publication of the subscription)")
    filters = [text for text in (route.filter, carried.filter) if text]
    return replace(
        route,
        filter=" AND ".join(f"({text})" for text in filters) if len(filters) > 1 else "".join(filters),
        carried=carried.columns,
        remarks=tuple(remarks),
    )
