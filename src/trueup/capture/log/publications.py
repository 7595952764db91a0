"""Publications of all tables: whoever makes a table in such a database stops the subscribers, who do not have it."""

from __future__ import annotations

from trueup.db.connection import Connection
from trueup.errors import CheckFailed

# Slots of our own read what a publication of our own says. A slot without a subscriber harms nobody, and cannot be
# told from one whose subscriber is away for a moment.
_QUERY = """
SELECT p.pubname::text, current_database()::text FROM pg_catalog.pg_publication p
 WHERE p.puballtables AND pg_catalog.to_regclass(%s) IS NULL
   AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                WHERE s.database = current_database() AND s.plugin = 'pgoutput'
                  AND NOT starts_with(s.slot_name::text, 'trueup_'))
 ORDER BY 1
"""


CURE = "let the subscription use a publication that names tables or schemas (FOR TABLES IN SCHEMA …)"


def who_would_stop(connection: Connection, table: str) -> str:
    """Whose subscribers would stop if this table of ours was made, in words; nothing if none would, or it is there."""
    found = connection.execute(_QUERY, [table]).fetchone()
    if found is None:
        return ""
    return (
        f"the publication {found[0]} of the database {found[1]} publishes all tables: its subscribers would stop at"
        f" {table}, which trueup would make there and they do not have"
    )


def refuse_all_tables(connection: Connection, table: str) -> None:
    """Before a table of ours is made: an error where subscribers would stop at it."""
    wrong = who_would_stop(connection, table)
    if wrong:
        raise CheckFailed([wrong], cure=CURE)
