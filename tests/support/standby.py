"""Commits that wait for a synchronous standby which does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

# The sessions whose commit waits.
WAITING = "SELECT query FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@contextmanager
def missing_standby(database: Database) -> Iterator[None]:
    """Let the commits of a server wait during the block."""
    try:
        name_missing_standby(database)
        yield
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")


def name_missing_standby(database: Database) -> None:
    """Let the commits of a server wait from now on."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
    database.execute("SELECT pg_reload_conf()")
    assert wait_until(lambda: database.execute("SHOW synchronous_standby_names") == [("missing",)], 60)
    # Commits wait when the checkpointer has read the settings too: between two checkpoints at the latest.
    for _ in range(2):
        database.execute("CHECKPOINT")
