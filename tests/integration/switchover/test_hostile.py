"""A role that may only write the tables cannot pass for the sync, whatever it sets, calls or writes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from support.fixtures import Databases
from support.switchover import ROWS, SCHEMA, TABLES, Moving, begin
from trueup.errors import CheckFailed
from trueup.testing.postgres import Database

# What a role can try before it writes. {id}: the identity of the sync, which is no secret.
TRICKS = (
    "SET application_name = 'trueup sync main'",
    "SET trueup.sync = '{id}'",
    "SET trueup.sync = '{id}'; SET application_name = 'trueup sync main'; SET trueup.connect = 'main'",
    "BEGIN; SET LOCAL trueup.sync = '{id}'",
    "SELECT set_config('trueup.sync', '{id}', false)",
)
# What it must not be allowed to do, in either database. {owner}: the role of trueup.
REFUSED = (
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {owner}",
    "SET session_replication_role = replica",
    "ALTER TABLE places DISABLE TRIGGER ALL",
    "SELECT trueup.sync_check_epoch('main', (SELECT 1))",
    "UPDATE trueup.switchover SET state = 'idle'",
    "BEGIN; LOCK TABLE trueup.switchover_lock IN ACCESS SHARE MODE",
    "UPDATE trueup.syncs SET epoch = epoch + 1",
    "INSERT INTO trueup.sync_mark VALUES ('main', '0/0')",
    "DELETE FROM trueup.copied",
    "DELETE FROM trueup_log.pods_main",
    "UPDATE trueup_log.tubes SET sync = 'mine'",
    "DELETE FROM trueup_log.sources",
    "SELECT setval('trueup_log.pod_seq', 1)",
    "CREATE TABLE mine (id int); CREATE TRIGGER t AFTER INSERT ON mine EXECUTE FUNCTION trueup_log.touch_1()",
    "CREATE FUNCTION trueup.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION trueup_log.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
)


@dataclass
class Roles:
    """A moved database pair whose role owns the tables, and a role that may only write them."""

    moving: Moving
    owner: str
    writer: str

    def as_writer(self, database: Database, *statements: str) -> None:
        """Run each statement in one session of the writer."""
        uri = database.server.uri(database.name, self.writer, "p")
        with psycopg.connect(uri, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture
def roles(databases: Databases) -> Iterator[Roles]:
    """Two synced databases; the owner's default privileges give the writer everything that the owner creates."""
    old, new = databases(2)
    owner, writer = f"owner_{old.name}", f"writer_{old.name}"
    old.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'p'; CREATE ROLE {writer} LOGIN PASSWORD 'p'")
    try:
        for database in (old, new):
            database.execute(f"""
                GRANT CREATE ON DATABASE {database.name} TO {owner};
                GRANT ALL ON SCHEMA public TO {owner}, {writer};
                SET SESSION AUTHORIZATION {owner};
                ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {writer};
                ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {writer};
                ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {writer};
                ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {writer}; {SCHEMA}""")
        old.execute(ROWS)
        uris = [database.server.uri(database.name, owner, "p") for database in (old, new)]
        moving = begin(old, new, first=uris[0], second=uris[1])
        moving.prepare()
        yield Roles(moving, owner, writer)
    finally:
        for database in (old, new):
            database.execute(f"DROP OWNED BY {owner} CASCADE; DROP OWNED BY {writer} CASCADE")
        old.execute(f"DROP ROLE {owner}, {writer}")


def test_a_writer_cannot_pass_for_the_sync(roles: Roles) -> None:
    moving, sync_id = roles.moving, roles.moving.as_sync().split("'")[1]
    entries = "SELECT count(*) FROM trueup_log.pods_main"
    moving.execute()
    moving.rollback()
    for trick in (trick.format(id=sync_id) for trick in TRICKS):
        # The old database is in use: every write is recorded in its change log, and arrives.
        ((before,),) = moving.old.execute(entries)
        roles.as_writer(moving.old, trick, f"UPDATE places SET note = {len(trick)} WHERE b < 10", "COMMIT")
        assert moving.old.execute(entries) == [(before + 1,)], trick
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="old is in use"):
            roles.as_writer(moving.new, trick, "DELETE FROM places")
    moving.run_sync()
    assert moving.differences(TABLES) == []
    # The sync itself is not recorded on its way.
    assert moving.new.execute(entries) == [(0,)]
    # Private objects, not only a private schema.
    moving.both(f"GRANT USAGE ON SCHEMA trueup, trueup_log TO {roles.writer}")
    for statement in (statement.format(owner=roles.owner) for statement in REFUSED):
        for database in (moving.old, moving.new):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                roles.as_writer(database, statement)
    moving.execute()
    assert moving.accepts_writes("DELETE FROM visits") == ["new"]


def test_a_role_that_triggers_do_not_recognize_is_refused(roles: Roles) -> None:
    moving = roles.moving
    for database in (moving.old, moving.new):
        database.execute(
            f"GRANT {roles.owner} TO {roles.writer}; ALTER FUNCTION trueup.switchover_guard() OWNER TO postgres"
        )
    with pytest.raises(CheckFailed, match="triggers of trueup on the target belong to postgres"):
        moving.run_sync()
