"""A sync is recognized by its identity, not by its name, and not by anything that an application's role can set."""

from __future__ import annotations

import pytest

from support.fixtures import Databases
from support.sync import make_pair
from trueup.errors import CheckFailed

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
    assert "--force" in caught.value.cure
    # A second sync with this name into one target would replace the state of the first one.
    with pytest.raises(CheckFailed, match="comes from another source"):
        make_pair(fourth, third).start()
    first.execute("INSERT INTO items VALUES (101, 'after')")
    for hop in hops:
        hop.run()
        hop.check_equal(["items"])
        assert hop.drop() == (True, True)
