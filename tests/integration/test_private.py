"""Objects of trueup belong to their owner alone, whatever ALTER DEFAULT PRIVILEGES grants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from support.fixtures import Databases
from trueup.capture.triggers import tubes
from trueup.capture.triggers.install import install
from trueup.capture.triggers.session import Session
from trueup.config.model import Node
from trueup.db.node import connect
from trueup.db.private import install_privately
from trueup.verbs.switchover import pointer
from trueup.verbs.sync import state
from trueup.verbs.validate.meta import open_meta

GRANTED = """
SELECT o.name, a.privilege_type, pg_get_userbyid(a.grantee)
  FROM (SELECT n.nspname AS schema, c.relname::text AS name, c.relacl AS acl, c.relowner AS owner
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        UNION ALL
        SELECT n.nspname, p.proname, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prosecdef
        UNION ALL
        SELECT n.nspname, n.nspname, n.nspacl, n.nspowner FROM pg_namespace n) o, aclexplode(o.acl) a
 WHERE o.schema IN ('trueup', 'trueup_app', 'tube') AND a.grantee <> o.owner ORDER BY 1
"""


def test_default_privileges_grant_nothing(databases: Databases) -> None:
    """Several sessions install everything at the same time; then only two functions are for everyone."""
    (database,) = databases(1)
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS", "SCHEMAS"):
        database.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC, pg_monitor")
    node = Node("n1", database.uri)

    def install_all(number: int) -> None:
        with open_meta(node) as meta:
            meta.make()
        with connect(node, application="test", read_only=False) as connection:
            state.install(connection)
            pointer.install(connection)
            pointer.create(connection, "main", "id", pair="p", names=("n1", "n2"), address="dbname=x", is_first=True)
        with Session(node, "tube") as session:
            install(session)
            tubes.ensure(session, "t")
            session.call("tube_table_ensure_attached", "t", "public.t", 0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(install_all, range(4)))
    expected = [("switchover_enter", "EXECUTE"), ("switchover_open", "EXECUTE"), ("trueup_app", "USAGE")]
    assert [(name, privilege) for name, privilege, _ in database.execute(GRANTED)] == expected
    # A second installation keeps what the owner granted since.
    database.execute("GRANT SELECT ON trueup.validation TO pg_monitor")
    install_all(0)
    assert ("validation", "SELECT", "pg_monitor") in database.execute(GRANTED)


def test_an_installation_is_repeated_after_conflicts_and_not_after_other_errors(databases: Databases) -> None:
    (database,) = databases(1)
    messages = ["tuple concurrently updated"] * 12 + ["something else"]
    with connect(Node("n1", database.uri), application="test", read_only=False) as connection:

        def fail() -> None:
            connection.execute("CREATE TABLE trueup.t (id int)")
            if messages:
                connection.execute(f"DO $$ BEGIN RAISE '{messages.pop(0)}' USING ERRCODE = 'XX000'; END $$")

        with pytest.raises(psycopg.errors.InternalError_, match="something else"):
            install_privately(connection, "trueup", fail)
        assert not messages
        install_privately(connection, "trueup", fail)
    assert database.execute("SELECT count(*) FROM trueup.t") == [(0,)]
