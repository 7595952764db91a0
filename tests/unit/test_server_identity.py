"""Whether a server is the later state of one that was seen before."""

from __future__ import annotations

import pytest

from trueup.db.server_identity import ServerPosition, TableIdentity, lsn_number

BEFORE = ServerPosition("7", 2, 100)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (ServerPosition("7", 2, 100), ""),
        (ServerPosition("7", 2, 101), ""),
        # A standby has no position.
        (ServerPosition("7", 2, None), ""),
        (ServerPosition("8", 2, 100), "is another server or database (8, before 7)"),
        (ServerPosition("7", 3, 200), "is on timeline 3, before on 2: a failover or a restore"),
        (ServerPosition("7", 1, 200), "is on timeline 1, before on 2: a failover or a restore"),
        (ServerPosition("7", 2, 99), "went back from position 0/64 to 0/63: it was restored"),
    ],
)
def test_a_server_that_was_replaced_or_went_back_is_named(now: ServerPosition, reason: str) -> None:
    assert now.why_other(BEFORE) == reason
    assert ServerPosition.from_json(now.as_json()) == now


TABLE = TableIdentity("7/16384", "shop", 20000)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        # Also after a failover: a standby has the system identifier of its primary.
        (TABLE, ""),
        # A service hides the system identifier.
        (TableIdentity("/16384", "shop", 20000), ""),
        (TableIdentity("7/16384", "renamed", 20000), ""),
        (TableIdentity("8/16384", "shop", 20000), "is another server: its system identifier is 8, before 7"),
        (TableIdentity("7/16385", "other", 20000), "is the database other, before shop"),
        (TableIdentity("/16385", "shop", 1), "the database shop was created again (OID 16385, before 16384)"),
        (TableIdentity("7/16384", "shop", 20001), "the table was created again (OID 20001, before 20000)"),
    ],
)
def test_another_database_or_table_is_named(now: TableIdentity, reason: str) -> None:
    assert now.why_other(TABLE) == reason
    assert bool(TABLE.why_other(now)) == bool(reason)
    assert TableIdentity.from_json(now.as_json()) == now


def test_positions_are_numbers() -> None:
    assert lsn_number("1/10") == (1 << 32) + 16
