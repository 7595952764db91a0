"""The tables of a running validation: planned, planned again when they are altered, or stopped by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trueup.capture.log.pgoutput import Relation
from trueup.db.connection import Connection
from trueup.db.names import display_name
from trueup.errors import CheckFailed
from trueup.verbs.validate import pending
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.plan import Pair, plan_pair, why_altered
from trueup.verbs.validate.routes import Route, find_routes
from trueup.verbs.validate.settings import Settings

Say = Callable[[str], None]


class Tables:
    """Routes by the source's name, and pairs of those that can be validated."""

    def __init__(self, name: str, say: Say) -> None:
        self.name = name
        self.say = say
        self.routes: dict[str, Route] = {}
        self.pairs: dict[str, Pair] = {}

    def open(self, source: Connection, target: Connection, meta: Meta, settings: Settings) -> None:
        """Plan all of them; raises if not one can be validated."""
        self._source, self._target, self._meta, self._settings = source, target, meta, settings
        self.routes = {route.name: route for route in find_routes(source, settings)}
        self.pairs.clear()
        for route in self.routes.values():
            self._plan(route)
        if not self.pairs:
            reasons = [f"{row['source']}: {row['reason']}" for row in meta.rows("tables", name=self.name)]
            raise CheckFailed(reasons, cure="no table can be validated")

    def use(self, settings: Settings) -> None:
        """Other settings: another mode compares other columns."""
        again = settings.mode != self._settings.mode
        self._settings = settings
        if again:
            for name in list(self.pairs):
                self._plan(self.routes[name])

    def replan(self, name: str) -> None:
        """A table was altered."""
        self.say(f"{name} was altered: planning it again")
        self._plan(self.routes[name])

    def stop(self, name: str, reason: str) -> None:
        """This table is not validated any more, and everybody is told why; the others go on."""
        route = self.routes[name]
        self.pairs.pop(name, None)
        self.say(f"{name} is not validated: {reason}")
        self._put(route, "stopped", reason, ())
        self._meta.rows("drop_table", pending.FILE, name=self.name, source=name)

    def places(self, relation: Relation) -> tuple[int, ...] | None:
        """Where the key of a table stands in its rows; asked for every table that a read has changes of."""
        name = display_name(relation.schema, relation.table)
        pair = self.pairs.get(name)
        if pair is not None:
            wrong = why_altered(pair, relation.identity, relation.columns, relation.keys)
            if wrong == "columns":
                self.replan(name)
            elif wrong:
                self.stop(name, wrong)
            pair = self.pairs.get(name)
        if pair is None:
            return () if name in self.routes else None
        return tuple(relation.columns.index(column) for column in pair.key)

    def _plan(self, route: Route) -> None:
        try:
            pair = plan_pair(self._source, self._target, route, self._settings)
        except CheckFailed as error:
            self.stop(route.name, str(error))
            return
        self.pairs[route.name] = pair
        self._put(route, "running", "", pair.remarks)

    def _put(self, route: Route, stage: str, reason: str, remarks: Sequence[str]) -> None:
        self._meta.rows(
            "put_table", name=self.name, source=route.name, target=display_name(*route.target), stage=stage,
            reason=reason, remarks=list(remarks),
        )  # fmt: skip
