"""A failover or a restore that lost rows on one of the databases is refused; one that lost nothing is not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import trueup
from support.fixtures import Databases, FreshServer
from support.servers import Backup, fail_over, wait_for_replay
from support.sync import Pair, make_pair
from trueup.cli.main import run
from trueup.config.model import Node
from trueup.errors import CheckFailed
from trueup.testing.postgres import Server
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import round as rounds
from trueup.verbs.sync import state
from trueup.verbs.sync_ddl import change_tables
from trueup.verbs.sync_ddl.accept import accept as accept_sync

LOST = "went back .a failover to a standby that was behind, or a restore."


@pytest.fixture
def servers(fresh_server: FreshServer) -> Iterator[tuple[Server, Server, list[Backup]]]:
    """Two servers, and the backups to remove."""
    backups: list[Backup] = []
    yield fresh_server(name="first"), fresh_server(name="second"), backups
    for backup in backups:
        backup.remove()


@pytest.fixture
def synced(servers: tuple[Server, Server, list[Backup]]) -> Pair:
    return start(make_pair(servers[0].create_database("shop"), servers[1].create_database("shop")))


def start(pair: Pair) -> Pair:
    pair.both("CREATE TABLE items (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO items SELECT g, 'old' FROM generate_series(1, 100) g")
    pair.start()
    pair.run()
    return pair


def moved_to(pair: Pair, source: Server) -> Pair:
    """Return the same sync, whose source is another server now."""
    node = Node("n1", source.uri("shop"))
    return replace(pair, source=source.database("shop"), request=replace(pair.request, source=node))


def test_a_source_that_fails_over_without_and_with_lost_rows(
    synced: Pair, servers: tuple[Server, Server, list[Backup]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, backups = servers
    backups += [Backup(first), Backup(first)]
    harmless, behind = (backup.standby() for backup in backups)
    try:
        # The standby `behind` ends here; `harmless` has everything.
        wait_for_replay(first, behind)
        behind.stop()
        synced.source.execute("UPDATE items SET v = 'new' WHERE id <= 50; DELETE FROM items WHERE id = 60")
        synced.run()
        wait_for_replay(first, harmless)
        synced.source.execute("INSERT INTO items VALUES (101, 'not copied')")
        fail_over(first, harmless)
        after = moved_to(synced, harmless)
        harmless.database("shop").execute("INSERT INTO items VALUES (102, 'of the new primary')")
        after.run()
        after.check_equal(["items"])
        assert not after.status().problem

        fail_over(harmless, behind)
        after = moved_to(synced, behind)
        # Row 102 and the updates are on the target; the new primary does not have them, and grows beyond the lost log.
        behind.database("shop").execute("INSERT INTO items SELECT g, 'after' FROM generate_series(1000, 60000) g")
        for attempt in (after.run, after.start):
            with pytest.raises(CheckFailed, match=f"n1 {LOST}: n2 has rows that n1 lost"):
                attempt()
        assert "n2 has rows that n1 lost" in after.status().problem
        ends = [f"--node={node.name}={node.conninfo}" for node in (after.request.source, after.request.target)]
        assert run(["sync", "status", "--from=n1", "--to=n2", *ends]) == 2
        assert "STOPPED: n1 went back" in capsys.readouterr().out
        with pytest.raises(CheckFailed, match="n2 has rows that n1 lost"):
            prepare_only(SwitchoverRequest("main", after.request.source, after.request.target))
        assert after.source.execute("SELECT to_regclass('trueup.switchover')") == [(None,)]
        nodes = {"n1": after.source.uri, "n2": second.uri("shop")}
        accept(after, nodes)
    finally:
        for standby in (harmless, behind):
            standby.remove()


def accept(pair: Pair, nodes: dict[str, str]) -> None:
    """Use the cure: compare, repair, accept; then rounds make both databases equal."""
    result = trueup.diff("items", nodes=nodes, engine="local", recheck=0, recheck_wait=0)
    assert result.verdict == "DIFFER"
    trueup.repair(result.task_id, source_of_truth="n1", execute=True, nodes=nodes)
    pair.source.execute("INSERT INTO items VALUES (-1, 'during the repair')")
    assert "went back" in accept_sync(pair.request)
    assert accept_sync(pair.request) == ""
    pair.run()
    pair.check_equal(["items"])
    assert not pair.status().problem


@pytest.mark.parametrize("side", ["n1", "n2"])
def test_a_database_that_is_restored_from_a_copy_of_its_files(
    synced: Pair, servers: tuple[Server, Server, list[Backup]], side: str
) -> None:
    """It has the same system identifier and timeline, and its log grows beyond the position that it had."""
    restored = servers[0] if side == "n1" else servers[1]
    synced.source.execute("UPDATE items SET v = 'in the backup' WHERE id = 1")
    synced.run()
    backup = Backup(restored)
    servers[2].append(backup)
    # Nothing was copied since: nothing is lost.
    backup.restore()
    synced.run()
    assert not synced.status().problem
    synced.source.execute("UPDATE items SET v = 'lost' WHERE id = 2")
    synced.run()
    backup.restore()
    restored.database("shop").execute(
        "CREATE TABLE growth AS SELECT g FROM generate_series(1, 100000) g; DROP TABLE growth; CHECKPOINT"
    )
    expected = "n2 has rows that n1 lost" if side == "n1" else "it lost rows that were copied to it"
    with pytest.raises(CheckFailed, match=f"{side} {LOST}: {expected}") as error:
        synced.run()
    assert "trueup sync accept" in (error.value.cure or "")
    accept(synced, {"n1": synced.source.uri, "n2": synced.target.uri})


def test_a_target_that_is_restored_from_a_dump(pair: Pair, databases: Databases) -> None:
    """All of its tables have other oids, and numbers of columns: their rows are unknown."""
    pair.both("CREATE TABLE items (gone int, id int PRIMARY KEY, v text); ALTER TABLE items DROP gone;")
    pair.both("CREATE TABLE more (id int PRIMARY KEY); CREATE TABLE odd (id int PRIMARY KEY)")
    pair.source.execute("INSERT INTO items SELECT g, 'old' FROM generate_series(1, 100) g; INSERT INTO more VALUES (1)")
    pair.start()
    pair.run()
    (new,) = databases(1)
    programs = pair.target.server.bin_dir
    dump = subprocess.run([str(programs / "pg_dump"), pair.target.uri], capture_output=True, check=True).stdout
    pair.source.execute("UPDATE items SET v = 'lost' WHERE id = 2; DELETE FROM more")
    pair.run()
    subprocess.run([str(programs / "psql"), "-q", "-v", "ON_ERROR_STOP=1", new.uri], input=dump, check=True)
    restored = replace(pair, target=new, request=replace(pair.request, target=Node("n2", new.uri)))
    with pytest.raises(CheckFailed, match="n2 went back"):
        restored.run()
    with pytest.raises(CheckFailed, match=r"items, public.more, public.odd: replaced by") as error:
        accept_sync(restored.request)
    assert "trueup sync accept TABLE" in (error.value.cure or "")
    with pytest.raises(CheckFailed, match="n2 went back"):
        restored.run()
    nodes = {"n1": pair.source.uri, "n2": new.uri}
    for table in ("items", "more"):
        result = trueup.diff(table, nodes=nodes, engine="local", recheck=0, recheck_wait=0)
        trueup.repair(result.task_id, source_of_truth="n1", execute=True, nodes=nodes)
    pair.source.execute("INSERT INTO items VALUES (-1, 'during the repair'); INSERT INTO odd VALUES (3)")
    accepted = accept_sync(restored.request, ["items", "public.m*"])
    assert "went back" in accepted
    assert "the rows of public.items, public.more on n2" in accepted
    # What was not named stays set aside, and is copied again.
    totals = restored.run()
    assert [problem.where for problem in totals.aside] == ["public.odd"]
    assert "trueup sync accept public.odd" in totals.aside[0].cure
    restored.check_equal(["items", "more"])

    new.execute("DROP TABLE more; CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (77)")
    assert {problem.where for problem in restored.run().aside} == {"public.odd", "public.more"}
    for names, text in (([], r"more, public.odd: replaced"), (["items"], "items: no such table was replaced")):
        with pytest.raises(CheckFailed, match=text):
            accept_sync(restored.request, names)
    with pytest.raises(CheckFailed, match="not empty on the target"):
        change_tables.add(restored.request, ["more", "odd"])
    new.execute("TRUNCATE more")
    change_tables.add(restored.request, ["more", "odd"])
    assert not restored.run().aside
    restored.check_equal(["items", "more", "odd"])
    assert accept_sync(restored.request) == ""


def test_a_round_that_ends_between_its_commits_is_not_a_loss(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the target commits, and killed before the entries are deleted; twice in a row, as a crash loop."""
    synced = start(pair)
    for function in ("apply_rows", "finish", "apply_rows", "apply_rows", "finish", "finish"):
        synced.source.execute("UPDATE items SET v = v || '!' WHERE id = 3")
        with monkeypatch.context() as patch:
            patch.setattr(rounds, function, kill)
            with pytest.raises(Killed):
                synced.run()
        assert not synced.status().problem
    synced.run()
    synced.check_equal(["items"])


def test_a_copy_does_not_continue_without_its_change_log(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that was restored from before the start has none: what was copied is of another history."""
    pair.both("CREATE TABLE items (id int PRIMARY KEY, v text)")
    pair.source.execute("INSERT INTO items SELECT g, 'old' FROM generate_series(1, 100) g")
    with monkeypatch.context() as patch:
        patch.setattr(state, "set_phase", kill)
        with pytest.raises(Killed):
            pair.start()
    pair.source.execute("DROP SCHEMA trueup_log CASCADE; UPDATE items SET v = 'after the restore' WHERE id = 7")
    attempts: tuple[Callable[[], object], ...] = (pair.start, pair.run, lambda: accept_sync(pair.request))
    for attempt in (attempts[0], attempts[2]):
        with pytest.raises(CheckFailed, match="n1 has no change log") as error:
            attempt()
        assert "accept" not in (error.value.cure or "")
    assert "n1 has no change log" in pair.status().problem
    assert pair.drop() == (False, True)
    pair.target.execute("DELETE FROM items")
    pair.start()
    pair.source.execute("DROP SCHEMA trueup_log CASCADE")
    for attempt in attempts:
        with pytest.raises(CheckFailed, match="n1 has no change log"):
            attempt()
    pair.check_equal(["items"])


class Killed(BaseException):
    """Not caught by the code of a round."""


def kill(*arguments: object, **options: object) -> None:
    raise Killed
