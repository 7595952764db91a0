"""A failover or a restore of the source, the target or the meta database: nothing is validated until a scrub."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.fixtures import FreshServer
from support.servers import Backup, fail_over, wait_for_replay
from support.validate import Copy
from trueup.capture.log.slot import SlotLost
from trueup.testing.postgres import Server


@pytest.fixture
def servers(fresh_server: FreshServer) -> tuple[Server, Server]:
    settings = {"wal_level": "logical"}
    return fresh_server(name="up", settings=settings), fresh_server(name="down", settings=settings)


@pytest.fixture
def backups() -> Iterator[list[Backup]]:
    made: list[Backup] = []
    yield made
    for backup in made:
        backup.remove()


@pytest.fixture
def copy(servers: tuple[Server, Server]) -> Iterator[Copy]:
    made = Copy(servers[0].create_database("a"), servers[1].create_database("b"))
    made.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    yield made
    made.stop()


def start(copy: Copy, changes: str) -> None:
    copy.start(changes=changes, syncer="lag:0.1", scrub_share=0.9)
    copy.until(lambda: copy.status().tables and copy.status().tables[0].certificate)
    copy.validation.update(scrub_share=0.0)


def write(copy: Copy, rows: str) -> None:
    copy.both(f"INSERT INTO t VALUES {rows}")
    assert copy.fence().exit_code == 0


def refuse(copy: Copy) -> str:
    """Expect that the validation ends, and return why."""
    with pytest.raises(AssertionError):
        copy.go_on()
    (error,) = copy.ended
    assert isinstance(error, SlotLost), error
    assert copy.status().gap
    certificate = copy.status().tables[0].certificate
    assert certificate
    assert certificate["void"]["reason"] == error.message
    return str(error)


def scrub(copy: Copy, lost: int, wrong: int) -> None:
    """Use the cure: row `lost`, which one side does not have any more, is an error; after its removal all is proven."""
    copy.validation.update(scrub_share=0.9)
    copy.go_on()
    copy.until(lambda: copy.status().gap is None)
    assert copy.fence().exit_code == 1
    assert [error.key for error in copy.errors()] == [(str(lost),)]
    copy.both(f"DELETE FROM t WHERE id = {lost}")
    copy.until(lambda: not copy.errors())
    assert copy.fence().exit_code == 0
    # Changes of the new history are judged.
    copy.up.execute(f"INSERT INTO t VALUES ({wrong}, 0)")
    copy.until(lambda: [error.key for error in copy.errors()] == [(str(wrong),)])
    copy.both(f"DELETE FROM t WHERE id = {wrong}")
    copy.until(lambda: not copy.errors())
    copy.stop()


def test_a_failover_of_the_source_to_a_standby_that_was_behind(
    copy: Copy, servers: tuple[Server, Server], backups: list[Backup]
) -> None:
    backups.append(Backup(servers[0]))
    start(copy, "log")
    write(copy, "(1, 1)")
    standby = backups[0].standby()
    try:
        wait_for_replay(servers[0], standby)
        standby.stop()
        write(copy, "(2, 2)")
        # Much more log than the new primary has, so that its positions are lower for a while.
        servers[0].database("postgres").execute("CREATE TABLE much AS SELECT g FROM generate_series(1, 50000) g")
        write(copy, "(3, 3)")
        copy.stop()
        copy.both("DELETE FROM t WHERE id = 2")
        fail_over(servers[0], standby)
        copy.up = standby.database("a")
        fence = copy.fence()
        assert (fence.exit_code, fence.validated) == (2, False)
        assert "timeline 2, before on 1" in fence.reasons[0]
        assert "timeline 2, before on 1" in refuse(copy)
        assert copy.fence().exit_code == 2
        scrub(copy, lost=3, wrong=10)
        validated = copy.status().validated
        assert standby.database("a").execute("SELECT %s <= pg_current_wal_lsn()", [validated]) == [(True,)]
    finally:
        copy.stop()
        standby.remove()


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_a_restore_from_a_copy_of_the_files(
    copy: Copy, servers: tuple[Server, Server], backups: list[Backup], changes: str
) -> None:
    """System identifier and timeline are the same, and the log has grown beyond the position of the last check."""
    start(copy, changes)
    write(copy, "(1, 1)")
    copy.stop()
    for server in servers:
        # A crash that loses nothing is not a gap.
        server.kill()
        server.restart()
    copy.go_on()
    write(copy, "(2, 2)")
    copy.stop()
    for server, expected in zip(
        servers, ("last mark|source n1 went back", "advanced by|meta database on n2 went"), strict=True
    ):
        lost = 3 + servers.index(server)
        backup = Backup(server)
        backups.append(backup)
        copy.go_on()
        write(copy, f"({lost}, 0)")
        copy.stop()
        backup.restore()
        grow = "CREATE TABLE much AS SELECT g FROM generate_series(1, 50000) g; DROP TABLE much; CHECKPOINT"
        server.database("postgres").execute(grow)
        assert re.search(expected, refuse(copy))
        scrub(copy, lost=lost, wrong=10)


def _prove_with_triggers(copy: Copy) -> None:
    """Start a proof with triggers on both sides; the meta database remembers what the target forgets."""
    copy.meta = "n1"
    copy.start(changes="changelog", syncer="lag:0.1", both_sides=True, scrub_share=0.9)
    copy.until(lambda: copy.validation.prove().verdict == "MATCH")
    copy.validation.update(scrub_share=0.0)


def _lose_proven_row(copy: Copy) -> None:
    """Write a row that is proven; the caller lets the target lose it."""
    write(copy, "(2, 2)")
    assert copy.validation.prove().verdict == "MATCH"


def test_a_failover_of_the_target_to_a_standby_that_was_behind(
    copy: Copy, servers: tuple[Server, Server], backups: list[Backup]
) -> None:
    backups.append(Backup(servers[1]))
    standby = backups[0].standby()
    try:
        _prove_with_triggers(copy)
        write(copy, "(1, 1)")
        wait_for_replay(servers[1], standby)
        standby.stop()
        _lose_proven_row(copy)
        # The process of the validation runs on, and has no target.
        fail_over(servers[1], standby)
        copy.down = standby.database("b")
        proof = copy.validation.prove(timeout=1)
        reason = "the target n2 is on timeline 2, before on 1: a failover or a restore"
        assert (proof.verdict, proof.tables[0].reasons) == ("INCOMPLETE", (reason,))
        copy.stop()
        assert reason in refuse(copy)
        scrub(copy, lost=2, wrong=10)
    finally:
        copy.stop()
        standby.remove()


def test_a_restore_of_the_target_with_triggers(
    copy: Copy, servers: tuple[Server, Server], backups: list[Backup]
) -> None:
    """System identifier and timeline are the same, and its log has grown beyond the position of the last check."""
    _prove_with_triggers(copy)
    write(copy, "(1, 1)")
    copy.stop()
    backups.append(Backup(servers[1]))
    copy.go_on()
    _lose_proven_row(copy)
    copy.stop()
    backups[0].restore()
    servers[1].database("postgres").execute("CREATE TABLE much AS SELECT g FROM generate_series(1, 50000) g")
    assert "the target n2 went back: a failover or a restore" in refuse(copy)
    assert copy.validation.prove(timeout=1).verdict == "INCOMPLETE"
    scrub(copy, lost=2, wrong=10)
