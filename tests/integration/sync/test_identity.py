"""A sync is recognized by its identity, not by its name, and not by anything that an application's role can set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases
from support.sync import Pair, make_pair
from trueup.capture.log.syncer import find_syncer
from trueup.config.model import Node
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed, ConfigError
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.ending import reset
from trueup.verbs.switchover.finish import Finish, finish
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.switchover.status import status as switch_status
from trueup.verbs.switchover.status import status_text
from trueup.verbs.sync import ending, reshaped, state
from trueup.verbs.sync.identity import naming
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.runner import Runner

TABLE = "CREATE TABLE items (id int PRIMARY KEY, v text)"


def test_a_chain_of_equal_names_is_switched_step_by_step(databases: Databases) -> None:
    """Syncs of one name in one database are independent in all verbs; their two databases decide which is meant."""
    first, second, third, fourth = databases(4)
    for database in (first, second, third, fourth):
        database.execute(TABLE)
    first.execute("INSERT INTO items SELECT g, 'copied' FROM generate_series(1, 50) g")
    hops = _hop("n1", first, "n2", second), _hop("n2", second, "n3", third)
    hops[0].start()
    assert hops[1].plan().name == hops[1].start().name != "main"
    assert hops[1].status().sync.startswith("main__")
    # A second sync of this name from one source, and one into one target.
    others = _hop("n1", first, "n4", fourth), _hop("n4", fourth, "n3", third)
    others[0].start()
    with pytest.raises(CheckFailed, match=r"public\.items: it is not empty on the target"):
        others[1].start()
    for database in (third, fourth):
        database.execute("CREATE TABLE others (id int PRIMARY KEY)")
    others[1].with_scope(Scope(tables=("public.others",))).start()
    # The last one shares no database with the first one.
    assert [hop.status().sync == "main" for hop in (*hops, *others)] == [True, False, False, True]
    fourth.execute("INSERT INTO others VALUES (1)")
    first.execute("INSERT INTO items VALUES (100, 'new'); UPDATE items SET v = 'x' WHERE id < 5")
    first.execute("DELETE FROM items WHERE id = 9")
    for hop in (*hops, others[0]):
        hop.run()
        hop.check_equal(["items"])
    others[1].run()
    assert third.execute("SELECT id FROM others") == [(1,)]
    _check_syncer(hops, fourth)
    _drop_one_of_several(hops, others)
    _switch_step_by_step(hops)


def _hop(source: str, first: Database, target: str, second: Database) -> Pair:
    pair = make_pair(first, second)
    pair.request = replace(pair.request, source=Node(source, first.uri), target=Node(target, second.uri))
    return pair


def _check_syncer(hops: tuple[Pair, Pair], fourth: Database) -> None:
    """A validation finds the sync by its source, not only by its name."""
    for pair, source, target in ((hops[1], hops[1].source, hops[1].target), (hops[0], hops[0].source, fourth)):
        with psycopg.connect(source.uri) as first, psycopg.connect(target.uri) as second:
            syncer = find_syncer(first, second, "sync:main", [("public", "items")])
            assert syncer.names[0].startswith("main__")
            if pair is hops[1]:
                # Two syncs into this database, but one of them from this source.
                assert find_syncer(first, second, "", [("public", "items")]).names == syncer.names
    with (
        psycopg.connect(hops[0].source.uri) as first,
        psycopg.connect(hops[1].target.uri) as second,
        pytest.raises(CheckFailed, match="no mark of a trueup sync main from this source"),
    ):
        find_syncer(first, second, "sync:main", [("public", "items")])


def _drop_one_of_several(hops: tuple[Pair, Pair], others: tuple[Pair, Pair]) -> None:
    # One database is lost, and the other one has several syncs of the name.
    lost = replace(others[0].request, target=Node("n5", "postgresql://127.0.0.1:1/none"))
    names = [hop.status().sync for hop in (hops[0], others[0])]
    with pytest.raises(CheckFailed, match=f"there are several syncs main: {names[0]}, {names[1]}") as caught:
        ending.drop(lost, timeout=30, without_target=True)
    assert "--name" in caught.value.cure
    named = replace(lost, scope=Scope(names[1]))
    assert ending.drop(named, timeout=30, without_target=True).log
    # The state that is left there.
    assert others[0].drop() == (False, True)
    assert others[1].drop() == (True, True)
    others[1].both("DROP TABLE others")
    for hop in (others[1], _hop("n3", hops[1].target, "n1", hops[0].source)):
        assert hop.drop() == (False, False)
    with pytest.raises(CheckFailed, match="the change log main belongs to another sync") as caught:
        others[0].drop()
    assert "--without-target" in caught.value.cure
    with pytest.raises(ConfigError, match="has a suffix of trueup"):
        others[0].with_scope(Scope("main__012345")).start()


def _switch_step_by_step(hops: tuple[Pair, Pair]) -> None:
    first, second, third = hops[0].source, hops[0].target, hops[1].target
    main, following = (
        SwitchoverRequest("main", hop.request.source, hop.request.target, budget=60.0, jobs=1) for hop in hops
    )
    name = hops[1].status().sync

    def accepting() -> list[bool]:
        return [_accepts(database) for database in (first, second, third)]

    def move(request: SwitchoverRequest, action: str) -> None:
        with TaskStore(Path("tasks.db")) as store:
            switchover.move(request, action, store=store, progress=Silent())

    def entered() -> list[str]:
        """Return where applications go from each database; they know the name only."""
        query = "SELECT CASE state WHEN 'use_next' THEN next_name ELSE '' END FROM trueup_app.switchover_enter()"
        return [database.execute(query)[0][0] for database in (first, second, third)]

    # The applications are on n1, and no pointer says so.
    with pytest.raises(CheckFailed, match="are copied to n2 by the sync main, and are in use elsewhere"):
        move(following, EXECUTE)
    assert accepting() == [True, True, True]
    for request in (main, following):
        prepare_only(request)
    assert accepting() == [True, False, False]
    assert entered() == ["", "n1", "n2"]
    # A preparation that is taken back leaves the other one.
    reset(following)
    assert [switch_status(request).phase for request in (main, following)] == ["not moved", "not prepared"]
    prepare_only(following)
    # The rows of the first step pass the guards of both, and are recorded for the second one.
    first.execute("INSERT INTO items VALUES (101, 'after')")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
    _repair_through_the_guard(hops)
    with pytest.raises(CheckFailed, match="tables of this sync are in use on n1: see the switchover of main"):
        move(following, EXECUTE)
    with trueup.connect(first.uri, nodes={"n1": first.uri, "n2": second.uri, "n3": third.uri}) as application:
        move(main, EXECUTE)
        assert accepting() == [False, True, False]
        assert entered() == ["n2", "", "n2"]
        application.execute("INSERT INTO items VALUES (102, 'in the middle')")
        move(following, EXECUTE)
        assert accepting() == [False, False, True]
        assert entered() == ["n2", "n3", ""]
        application.execute("INSERT INTO items VALUES (103, 'at the end')")
    assert [switch_status(request).in_use for request in (main, following)] == ["n2", "n3"]
    _check_status_of_a_step_that_was_left(main, name)
    with trueup.connect(first.uri, nodes={"n2": second.uri, "n3": third.uri}) as application:
        # From the first step to the last one.
        assert application.execute("SELECT count(*) FROM items WHERE id = 103") == [(1,)]
    with pytest.raises(CheckFailed, match=f"see the switchover of {name}"):
        move(main, ROLLBACK)
    # Each goes back on its own way, and the end of one leaves the other.
    move(following, ROLLBACK)
    assert second.execute("SELECT id FROM items WHERE id > 101 ORDER BY 1") == [(102,), (103,)]
    move(main, ROLLBACK)
    assert accepting() == [True, False, False]
    move(main, EXECUTE)
    # n2 is lost for the first step, and n1 is not needed any more.
    alone = replace(main, second=Node("n2", "postgresql://127.0.0.1:1/none"))
    with pytest.raises(CheckFailed, match=r"n1 is not in use: n2 was.* It has all commits up to 20") as refused:
        finish(alone, Finish(without_new=True))
    assert "--keep-closed" in (refused.value.cure or "")
    assert "n1: stays closed to writes" in str(finish(alone, Finish(without_new=True, keep_closed=True)).done)
    assert accepting() == [False, True, False]
    finish(main)
    assert accepting() == [False, True, False]
    second.execute("INSERT INTO items VALUES (104, 'recorded')")
    move(following, EXECUTE)
    finish(following)
    assert accepting() == [False, False, True]
    _check_status_of_a_step_that_was_left(main, name)
    assert switch_status(following).closed_by == ()
    assert third.execute("SELECT count(*) FROM items WHERE id = 104") == [(1,)]
    # A sync into a closed database is refused by name, with the cure.
    refusal = "node n2: it does not accept writes: n3 is in use since the switchover of the sync"
    with pytest.raises(CheckFailed, match=f"{refusal} {name}") as caught:
        _hop("n3", third, "n2", second).start()
    assert f"finish --name {name} --reopen-old" in caught.value.cure
    finish(following, Finish(reopen_old=True))
    finish(main, Finish(reopen_old=True))
    assert accepting() == [True, True, True]
    for database in (first, second, third):
        assert database.execute("SELECT count(*) FROM pg_namespace WHERE nspname ~ 'trueup'") == [(0,)]


def _check_status_of_a_step_that_was_left(request: SwitchoverRequest, following: str) -> None:
    """The second database is in use before the first one, but the applications are on the third one."""
    shown = switch_status(request)
    assert (shown.in_use, shown.as_json()["closed_by"]) == ("n2", [{"sync": following, "in_use": "n3"}])
    elsewhere = f"tables of n2 do not accept writes: n3 is in use since the switchover of the sync {following}"
    assert elsewhere in status_text(shown)


def _repair_through_the_guard(hops: tuple[Pair, Pair]) -> None:
    """A repair of the database in the middle is a write of the sync into it, and not of the one from it."""
    known = hops[0].status().known
    assert known is not None
    hops[0].target.execute(f"SET trueup.sync = '{known.id}'; DELETE FROM items WHERE id = 1")
    nodes = {"n1": hops[0].source.uri, "n2": hops[0].target.uri}
    report = str(trueup.diff("public.items", nodes=nodes, recheck=0, engine="local").report)
    repaired = trueup.repair(report, nodes=nodes, source_of_truth="n1", execute=True, recheck=0, engine="local")
    assert not repaired.failed
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])


def _accepts(database: Database) -> bool:
    try:
        database.execute("BEGIN; UPDATE items SET v = v; ROLLBACK")
    except psycopg.errors.ReadOnlySqlTransaction:
        return False
    return True


def test_syncs_of_one_name_that_are_started_at_the_same_time(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds the name free. One of them is refused and leaves nothing, and gets a suffix when it is run again."""
    named = dict(zip(("n1", "n2", "n3", "n4"), databases(4), strict=True))
    for database in named.values():
        database.execute(TABLE)

    def hop(source: str, target: str) -> Pair:
        return _hop(source, named[source], target, named[target])

    def start_in(pair: Pair, module: Any, function: str, start: Callable[[], object], *, before: bool) -> None:
        """Start a sync; when it calls the function, call `start` once, before or after it."""
        original = getattr(module, function)

        def call(*arguments: Any, **options: Any) -> Any:
            patch.undo()
            if before:
                start()
            result = original(*arguments, **options)
            if not before:
                start()
            return result

        with monkeypatch.context() as patch:
            patch.setattr(module, function, call)
            pair.start()

    refusal = "another sync main of this database was started at the same time"
    slow, refused = hop("n1", "n2"), f"{refusal}|a sync main into this database was started at the same time"
    # Another sync from the source, one into the target, and the next step.
    for nodes in (("n1", "n4"), ("n4", "n2"), ("n2", "n3")):
        fast = hop(*nodes)
        with pytest.raises(CheckFailed, match=refused) as caught:
            start_in(slow, state, "create", fast.start, before=True)
        assert "run the same command again" in caught.value.cure
        assert fast.status().sync == "main"
        if nodes == ("n2", "n3"):
            slow.start()
            assert slow.status().sync.startswith("main__")
            assert slow.drop() == (True, True)
        assert fast.drop() == (True, True)

    # The one that looks later is refused; the one that looked first goes on.
    def start_refused() -> None:
        with pytest.raises(CheckFailed, match=refusal):
            hop("n2", "n3").start()

    with monkeypatch.context() as blind:
        blind.setattr(naming, "free_name", lambda name, *_: name)
        start_in(slow, reshaped, "record_changes", start_refused, before=True)
    assert slow.status().sync == "main"
    # A process that was killed before it looked: the name belongs to the other one when it continues.
    killed = hop("n2", "n3")
    with monkeypatch.context() as patch:
        patch.setattr(naming, "claim", lambda *_, **__: 1 / 0)
        patch.setattr(naming, "free_name", lambda name, *_: name)
        with pytest.raises(ZeroDivisionError):
            killed.start()
    with pytest.raises(CheckFailed, match=refusal) as caught:
        killed.start()
    assert "trueup sync drop" in caught.value.cure
    assert killed.drop() == (True, True)
    assert slow.drop() == (True, True)
    for database in named.values():
        assert database.execute("SELECT count(*) FROM pg_namespace WHERE nspname ~ 'trueup'") == [(0,)]


def test_a_ring_is_refused_also_when_running_syncs_close_it(databases: Databases) -> None:
    first, second, third = databases(3)
    for database in (first, second, third):
        database.execute(f"{TABLE}; CREATE TABLE others (id int PRIMARY KEY)")
    only = Scope("items", tables=("public.items",))
    forth = make_pair(first, second).with_scope(only)
    forth.start()
    # Other tables may go the other way.
    make_pair(second, first).with_scope(Scope("others", tables=("public.others",))).start()
    with pytest.raises(CheckFailed, match=r"public\.items: the source gets its rows from this target") as caught:
        make_pair(second, first).with_scope(Scope("back", tables=("public.items",))).start()
    assert "--exclude-tables" in caught.value.cure
    # The last sync of the ring does not know of the first one: the news travels with the running syncs.
    closing = (
        make_pair(third, first).with_scope(replace(only, name="closing")),
        make_pair(second, third).with_scope(replace(only, name="between")),
    )
    for hop in closing:
        hop.start()
    with open_link(forth.request.source, forth.request.target, "items") as link:

        def go_round(runner: Runner) -> None:
            for _ in range(3):
                runner.check_chain()
                for hop in closing:
                    hop.run(once=True)

        with Runner(link, forth.request, Silent()) as runner, pytest.raises(CheckFailed, match="from this target"):
            go_round(runner)
