"""Which files of the state table a run replaces."""

from __future__ import annotations

from trueup.verbs.difflog.layout import SHARE, SMALL, choose_layout, is_few
from trueup.verbs.difflog.state import BROADCAST_ROWS, DataFile

PLAIN = [DataFile(f"run-000001/bucket={bucket}/1.parquet", bucket, 1, SMALL, 0, 9) for bucket in (0, 1, 2)]
CHANGES = [DataFile(f"run-000002-changes/bucket={bucket}/1.parquet", bucket, 1, 1000, 0, 9) for bucket in (0, 1)]
EVERY = [*PLAIN, *CHANGES]


def test_few_states_are_written_beside_the_others() -> None:
    assert [file.has_changes for file in EVERY] == [False, False, False, True, True]
    paths = {file.path for file in EVERY}
    chosen = choose_layout(EVERY, paths, {0, 1, 2}, 5)
    assert (chosen.replaced, chosen.changes_only, chosen.merged) == (tuple(CHANGES), True, ())
    # Files of changes in other buckets stay. Those of the same bucket are replaced, also if they contain no key.
    chosen = choose_layout(EVERY, {PLAIN[1].path}, {1}, 5)
    assert (chosen.replaced, chosen.changes_only) == ((CHANGES[1],), True)


def test_many_changes_are_merged() -> None:
    most = 3 * SMALL // SHARE - 2000
    paths = {file.path for file in PLAIN}
    assert choose_layout(EVERY, paths, {0, 1, 2}, most).changes_only
    chosen = choose_layout(EVERY, paths, {0, 1, 2}, most + 1)
    assert (chosen.replaced, chosen.changes_only, chosen.merged) == (tuple(EVERY), False, tuple(CHANGES))
    # Only those of the buckets of the run; compared with the files that would be written again.
    chosen = choose_layout(EVERY, {PLAIN[1].path}, {1}, SMALL // SHARE)
    assert (chosen.replaced, chosen.merged) == ((PLAIN[1], CHANGES[1]), (CHANGES[1],))


def test_small_files_are_written_again() -> None:
    small = [DataFile(f"run-000001/bucket={bucket}/1.parquet", bucket, 1, 9, 0, 9) for bucket in (0, 1)]
    chosen = choose_layout(small, {small[0].path}, {0}, 1)
    assert (chosen.replaced, chosen.changes_only) == ((small[0],), False)
    assert choose_layout([], set(), set(), 1).replaced == ()


def test_keys_that_every_executor_gets() -> None:
    assert is_few(SMALL // SHARE, [PLAIN[0]])
    assert not is_few(SMALL // SHARE + 1, [PLAIN[0]])
    assert not is_few(BROADCAST_ROWS + 1, [PLAIN[0]] * 99)
    assert not is_few(1, [])
