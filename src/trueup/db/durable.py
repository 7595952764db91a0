"""Durable commits: a commit that is acknowledged elsewhere waits until it is on the disk of the server.

A session whose role, database or server has `synchronous_commit = off` returns from COMMIT before the commit is on the
disk, and a crash takes it back. What was deleted on another server because of that commit is then lost. `local` waits
for the disk of the primary only, not for synchronous standbys. Sessions that write get at least `on` when they are
opened; a transaction that is acknowledged elsewhere sets it once more as its last statement, because a pooler or a
trigger may have changed the setting since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trueup.db.connection import Connection

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_log = logging.getLogger(__name__)

# `on`, unless the setting in force is durable already: `remote_write` and `remote_apply` are choices of the user.
_SET: LiteralString = (
    "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
    " THEN 'on' ELSE current_setting('synchronous_commit') END, {})"
)
FOR_SESSION: LiteralString = _SET.format("false")
FOR_TRANSACTION: LiteralString = _SET.format("true")
# Settings of the server without which a crash of its machine loses commits or damages pages.
_UNSAFE: LiteralString = (
    "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name"
)


def commit_durably(connection: Connection) -> None:
    """Make the COMMIT of the open transaction wait for the disk; call this as its last statement."""
    connection.execute(FOR_TRANSACTION)


@contextmanager
def durable_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in one transaction; when this returns, the transaction is on the disk of the server."""
    with connection.transaction():
        yield
        commit_durably(connection)


def warn_unsafe(connection: Connection, node: str) -> None:
    """Log a warning if a crash of the machine of a node can take back what is acknowledged elsewhere."""
    unsafe = [f"{name} = off" for (name,) in connection.execute(_UNSAFE).fetchall()]
    if unsafe:
        _log.warning(
            "node %s has %s: a crash of its machine can lose rows that were acknowledged; set it to on, or copy or"
            " compare all rows after a crash",
            node,
            " and ".join(unsafe),
            extra={"node": node},
        )
