"""Columns that are added while a validation runs: compared as soon as both nodes have them."""

from __future__ import annotations

import pytest

from support.validate import Copy


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_a_column_is_compared_as_soon_as_both_nodes_have_it(copy: Copy, changes: str) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1), (2), (3), (4)")
    copy.start(changes=changes, syncer="lag:0.1")

    def error_of(key: str, column: str) -> None:
        copy.until(lambda: [(error.key, error.columns) for error in copy.errors()] == [((key,), (column,))])

    # On the target first: no change was judged without the column.
    copy.down.execute("ALTER TABLE t ADD COLUMN a int")
    assert copy.fence().exit_code == 0
    copy.up.execute("BEGIN; ALTER TABLE t ADD COLUMN a int; UPDATE t SET a = 1 WHERE id = 1; COMMIT")
    error_of("1", "a")
    assert copy.fence().exit_code == 1
    copy.down.execute("UPDATE t SET a = 1 WHERE id = 1")
    copy.until(lambda: not copy.errors())
    assert copy.fence().exit_code == 0
    # On the source first: the change of row 2 was judged without the column.
    copy.up.execute("ALTER TABLE t ADD COLUMN b int; UPDATE t SET b = 1 WHERE id = 2")
    assert copy.fence().validated
    copy.down.execute("ALTER TABLE t ADD COLUMN b int")
    copy.until(lambda: copy.status().blind_spots)
    fence = copy.fence()
    assert (fence.exit_code, fence.reasons[0].count("column b was not compared before")) == (2, 1)
    copy.up.execute("UPDATE t SET b = 1 WHERE id = 3")
    error_of("3", "b")
    copy.down.execute("UPDATE t SET b = 1 WHERE id = 3")
    copy.until(lambda: not copy.errors())
    # Also across a stop: what changes meanwhile is read with the column, row 2 needs a scrub.
    copy.stop()
    copy.go_on()
    assert copy.fence().exit_code == 2
    copy.validation.update(scrub_share=0.9)
    error_of("2", "b")
    copy.until(lambda: not copy.status().blind_spots)
    assert copy.fence().exit_code == 1
    # While it does not run, on the source first.
    copy.down.execute("UPDATE t SET b = 1 WHERE id = 2")
    copy.until(lambda: not copy.errors())
    copy.validation.update(scrub_share=0.0)
    copy.stop()
    copy.both("ALTER TABLE t ADD COLUMN c int")
    copy.up.execute("UPDATE t SET c = 1 WHERE id = 4")
    copy.go_on()
    error_of("4", "c")
    assert copy.fence().exit_code == 1
