"""Whether source and target are the servers that were validated so far, and neither went back.

After a failover or a restore, positions of the log mean something else, and rows that were proven may be lost. That is
a gap: nothing is validated until all rows have been compared.
"""

from __future__ import annotations

from dataclasses import replace

from trueup.capture.log.slot import SlotLost
from trueup.db.server_identity import ServerPosition, server_position
from trueup.db.storable import as_json
from trueup.verbs.validate.log import FULL_CHECK
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.sessions import Sessions

SOURCE, TARGET = "source", "target"


class History:
    """Compares the servers with those of the last check, and stores them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._known: dict[str, ServerPosition] = {}

    def open(self, stored: Stored) -> None:
        """Check the servers of new sessions; at a new start, any server is right."""
        is_new = stored.needs_new_start
        self._known = {} if is_new else {side: ServerPosition.from_json(at) for side, at in stored.servers.items()}
        self.check()

    @property
    def target_position(self) -> int | None:
        """Return where the log of the target was at the last check."""
        return self._known[TARGET].position if TARGET in self._known else None

    def check(self) -> None:
        """Raise SlotLost if a server was replaced or went back; else store their positions."""
        sessions = self._sessions
        with sessions.source_errors():
            servers = {SOURCE: server_position(sessions.source)}
        with sessions.target_errors():
            servers[TARGET] = server_position(sessions.target)
        for node, (side, server) in zip(sessions.nodes, servers.items(), strict=True):
            reason = server.why_other(self._known.get(side, server))
            if reason:
                raise SlotLost(f"the {side} {node.name} {reason}", cure=FULL_CHECK, node=node.name)
        self._known = servers
        values = {side: server.as_json() for side, server in servers.items()}
        sessions.meta.rows("put_servers", name=sessions.name, servers=as_json(values))


def other_source(stored: Stored, server: ServerPosition) -> str:
    """Return why positions of `server`, asked after `stored` was read, say nothing about this validation, if so."""
    if SOURCE not in stored.servers or stored.needs_new_start:
        return ""
    before = ServerPosition.from_json(stored.servers[SOURCE])
    reason = server.why_other(replace(before, position=max(before.position or 0, stored.upstream or 0)))
    return f"the source {stored.settings.source} {reason}; changes were not seen: {FULL_CHECK}" if reason else ""
