"""A sync is recognized by its identity, not by its name, and not by anything that an application's role can set."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.sync import make_pair
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.verbs.switchover.prepare import prepare_only
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync.link import open_link
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.runner import Runner

TABLE = "CREATE TABLE items (id int PRIMARY KEY, v text)"


def test_chained_syncs_with_one_name_carry_everything(databases: Databases) -> None:
    first, second, third, fourth = databases(4)
    for database in (first, second, third, fourth):
        database.execute(TABLE)
    first.execute("INSERT INTO items SELECT g, 'copied' FROM generate_series(1, 50) g")
    hops = make_pair(first, second), make_pair(second, third)
    for hop in hops:
        hop.start()
    first.execute("INSERT INTO items VALUES (100, 'new'); UPDATE items SET v = 'x' WHERE id < 5")
    first.execute("DELETE FROM items WHERE id = 9")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
    # A second sync with this name from one source would take the entries of the first one.
    other = make_pair(first, fourth)
    with pytest.raises(CheckFailed, match="the name main is used by another sync from this database"):
        other.start()
    with pytest.raises(CheckFailed, match="the change log main belongs to another sync") as caught:
        other.drop()
    assert "--without-target" in caught.value.cure
    # A second sync with this name into one target would replace the state of the first one.
    with pytest.raises(CheckFailed, match="comes from another source"):
        make_pair(fourth, third).start()
    # The way back of a switchover would use the change log and the state of the other step.
    for hop, message in zip(
        hops, ("the change log main belongs to another sync", "another sync main writes"), strict=True
    ):
        with pytest.raises(CheckFailed, match=message):
            prepare_only(SwitchoverRequest("main", hop.request.source, hop.request.target))
        assert hop.target.execute("SELECT to_regclass('trueup.switchover')") == [(None,)]
    first.execute("INSERT INTO items VALUES (101, 'after')")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
        assert hop.drop() == (True, True)


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
    closing = make_pair(third, first).with_scope(only), make_pair(second, third).with_scope(only)
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
