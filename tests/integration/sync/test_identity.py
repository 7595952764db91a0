"""A sync is recognized by its identity, not by its name, and not by anything that an application's role can set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from support.fixtures import Databases
from support.sync import Pair, make_pair
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.verbs.switchover import run as switchover
from trueup.verbs.switchover.finish import finish
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.runner import Runner

TABLE = "CREATE TABLE items (id int PRIMARY KEY, v text)"


def test_a_chain_is_switched_step_by_step(databases: Databases) -> None:
    """Two syncs of the database in the middle are independent in all verbs; equal names are refused at the start."""
    first, second, third, fourth = databases(4)
    for database in (first, second, third, fourth):
        database.execute(TABLE)
    first.execute("INSERT INTO items SELECT g, 'copied' FROM generate_series(1, 50) g")
    hops = make_pair(first, second), make_pair(second, third)
    hops[0].start()
    # A switchover of either step would need the same names in the database in the middle: both orders are refused.
    assert "node n1: it is the target of another sync main" in str(hops[1].plan().problems[0])
    with pytest.raises(CheckFailed, match="node n1: it is the target of another sync main") as caught:
        hops[1].start()
    assert "--name" in caught.value.cure
    with pytest.raises(CheckFailed, match="node n2: it is the source of another sync main"):
        make_pair(fourth, first).start()
    hops[1].with_scope(Scope("next")).start()
    first.execute("INSERT INTO items VALUES (100, 'new'); UPDATE items SET v = 'x' WHERE id < 5")
    first.execute("DELETE FROM items WHERE id = 9")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
    # A second sync with a name from one source would take the entries of the first one.
    other = make_pair(first, fourth)
    with pytest.raises(CheckFailed, match="the name main is used by another sync from this database"):
        other.start()
    with pytest.raises(CheckFailed, match="the change log main belongs to another sync") as caught:
        other.drop()
    assert "--without-target" in caught.value.cure
    # A second sync with a name into one target would replace the state of the first one.
    with pytest.raises(CheckFailed, match="comes from another source"):
        make_pair(fourth, third).with_scope(Scope("next")).start()
    _switch_step_by_step(hops)


def _switch_step_by_step(hops: tuple[Pair, Pair]) -> None:
    first, second, third = hops[0].source, hops[0].target, hops[1].target
    main, following = (
        SwitchoverRequest(hop.request.name, hop.request.source, hop.request.target, budget=60.0, jobs=1) for hop in hops
    )

    def accepting() -> list[bool]:
        return [_accepts(database) for database in (first, second, third)]

    def move(request: SwitchoverRequest, action: str) -> None:
        with TaskStore(Path("tasks.db")) as store:
            switchover.move(request, action, store=store, progress=Silent())

    for request in (main, following):
        prepare_only(request)
    assert accepting() == [True, False, False]
    # The rows of the first step pass the guards of both, and are recorded for the second one.
    first.execute("INSERT INTO items VALUES (101, 'after')")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
    with pytest.raises(CheckFailed, match="tables of this sync are in use on n1: see the switchover of main"):
        move(following, EXECUTE)
    move(main, EXECUTE)
    assert accepting() == [False, True, False]
    second.execute("INSERT INTO items VALUES (102, 'in the middle')")
    move(following, EXECUTE)
    assert accepting() == [False, False, True]
    third.execute("INSERT INTO items VALUES (103, 'at the end')")
    with pytest.raises(CheckFailed, match="see the switchover of next"):
        move(main, ROLLBACK)
    # Each goes back on its own way, and the end of one leaves the other.
    move(following, ROLLBACK)
    assert second.execute("SELECT id FROM items WHERE id > 101 ORDER BY 1") == [(102,), (103,)]
    finish(main)
    assert accepting() == [False, True, False]
    second.execute("INSERT INTO items VALUES (104, 'recorded')")
    move(following, EXECUTE)
    finish(following)
    assert accepting() == [False, False, True]
    assert third.execute("SELECT count(*) FROM items WHERE id = 104") == [(1,)]
    # A sync into a closed database is refused by name, with the cure.
    refusal = "node n2: it does not accept writes: n2 is in use since the switchover of the sync main"
    with pytest.raises(CheckFailed, match=refusal) as caught:
        make_pair(third, first).with_scope(Scope("again")).start()
    assert "finish --name main --reopen-old" in caught.value.cure


def _accepts(database: Database) -> bool:
    try:
        database.execute("BEGIN; UPDATE items SET v = v; ROLLBACK")
    except psycopg.errors.ReadOnlySqlTransaction:
        return False
    return True


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
