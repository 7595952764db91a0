"""The tables of a running validation: planned, planned again when they are altered, or stopped."""

from __future__ import annotations

from trueup.capture.log.pgoutput import Relation
from trueup.db.names import display_name
from trueup.errors import CheckFailed
from trueup.verbs.validate import pending
from trueup.verbs.validate.option_checks import refuse_wrong_options
from trueup.verbs.validate.plan import Pair, plan_pair, why_altered
from trueup.verbs.validate.routes import Route, find_routes
from trueup.verbs.validate.sessions import Sessions


class Tables:
    """The routes by source table, and the pairs of the tables that are validated."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._mode = ""
        self.routes: dict[str, Route] = {}
        self.pairs: dict[str, Pair] = {}
        # Stopped tables, and why.
        self._stopped: dict[str, str] = {}

    def open(self) -> None:
        """Plan all tables; raise CheckFailed if none of them can be validated."""
        settings = self._sessions.settings
        self._mode = settings.mode
        with self._sessions.source_errors():
            self.routes = {route.name: route for route in find_routes(self._sessions.source, settings)}
            if self._sessions.stored.position is None:
                sessions, routes = self._sessions, list(self.routes.values())
                refuse_wrong_options(sessions.source, sessions.target, sessions.nodes[0], settings, routes)
        self.pairs.clear()
        self._stopped.clear()
        for route in self.routes.values():
            self._plan(route)
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

    def save_stopped(self) -> None:
        """Store the stopped tables again; needed after a transaction in which one was stopped is rolled back."""
        for name, reason in self._stopped.items():
            self._save_stopped(name, reason)

    def key_places(self, relation: Relation) -> tuple[int, ...] | None:
        """Return the places of the key columns in the rows of a table; () for a stopped table, None for other tables.

        The reader of the log calls this once per table and read. Plans the table again if columns were added, and stops
        it if its key was altered.
        """
        name = display_name(relation.schema, relation.table)
        pair = self.pairs.get(name)
        if pair is not None:
            reason = why_altered(pair, relation.identity, relation.columns, relation.keys)
            if reason == "columns":
                self.replan(name)
            elif reason:
                self.stop(name, reason)
            pair = self.pairs.get(name)
        if pair is None:
            return () if name in self.routes else None
        return tuple(relation.columns.index(column) for column in pair.key)

    def _plan(self, route: Route) -> None:
        sessions = self._sessions
        try:
            with sessions.source_errors():
                pair = plan_pair(sessions.source, sessions.target, route, sessions.settings)
        except CheckFailed as error:
            self.stop(route.name, str(error))
            return
        self.pairs[route.name] = pair
        self._stopped.pop(route.name, None)
        self._save(route, "running", "", pair.remarks)

    def _save_stopped(self, name: str, reason: str) -> None:
        self._save(self.routes[name], "stopped", reason, ())
        self._sessions.meta.rows("drop_table", pending.FILE, name=self._sessions.name, source=name)

    def _save(self, route: Route, stage: str, reason: str, remarks: tuple[str, ...]) -> None:
        self._sessions.meta.rows(
            "put_table", name=self._sessions.name, source=route.name, target=display_name(*route.target), stage=stage,
            reason=reason, remarks=list(remarks),
        )  # fmt: skip
