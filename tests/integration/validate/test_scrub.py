"""The scrub remembers what it found: blocks with digests and times, oldest first, and a certificate per table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.fixtures import both_engines
from support.validate import Copy
from trueup.proof import store
from trueup.proof.model import Certificate, CertificateBlock
from trueup.verbs.validate.meta import Meta, open_meta

_WEEK = 7 * 86400.0
TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int)"


@contextmanager
def meta_of(copy: Copy) -> Iterator[Meta]:
    with open_meta(copy.validation.config.select(names=["n2"], at_least=1)[0]) as meta:
        yield meta


def blocks(copy: Copy, table: str = "public.t") -> list[CertificateBlock]:
    with meta_of(copy) as meta:
        return store.blocks(meta.connection, "v", table)


def certificate(copy: Copy, table: str = "public.t") -> Certificate | None:
    with meta_of(copy) as meta:
        return store.certificates(meta.connection, "v").get(table)


def is_proven(copy: Copy, table: str = "public.t") -> bool:
    found = certificate(copy, table)
    return found is not None and found.is_valid


@both_engines
def test_a_pass_is_a_certificate_and_changes_touch_their_blocks(engine: str, copy: Copy) -> None:
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate()
    copy.start(scrub_share=0.9, scrub_rows=50, scrub_period=_WEEK)
    copy.until(lambda: is_proven(copy))
    first = certificate(copy)
    assert first is not None
    assert (first.how, first.key, first.source.node, first.target.node) == ("scrub", ("id",), "n1", "n2")
    assert first.source.oid == copy.up.execute("SELECT 't'::regclass::oid")[0][0]
    assert [name for name, _ in first.target.columns] == ["id", "n"]
    found = blocks(copy)
    assert [block.digest.count for block in found] == [50] * 6
    assert not any(block.is_touched for block in found)
    copy.up.execute("UPDATE t SET n = 0 WHERE id = 120; DELETE FROM t WHERE id = 299; INSERT INTO t VALUES (-1)")
    assert copy.fence().exit_code == 0
    assert [block.is_touched for block in blocks(copy)] == [True, False, True, False, False, True]
    # They are not hashed again before the period is over, also not by the next start.
    copy.stop()
    copy.go_on()
    assert copy.fence().exit_code == 0
    assert [block.hashed_at for block in blocks(copy)] == [block.hashed_at for block in found]
    copy.up.execute("TRUNCATE t")
    assert copy.fence().exit_code == 0
    # The file of the table is another one: the certificate is void until the empty table was scrubbed.
    copy.until(lambda: [block.digest.count for block in blocks(copy)] == [0] and is_proven(copy))


def test_what_no_log_shows_is_found_by_the_scrub(copy: Copy) -> None:
    copy.both(TABLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 300) i")
    copy.replicate()
    copy.start(scrub_share=0.9, scrub_rows=50, scrub_period=_WEEK)
    copy.until(lambda: is_proven(copy) and is_proven(copy, "public.other"))
    copy.down.execute("SET session_replication_role = replica; UPDATE t SET n = -7 WHERE id = 77")
    assert copy.fence().exit_code == 0
    oldest = blocks(copy)[1]
    copy.validation.update(scrub_period=0.0)
    copy.until(lambda: [error.key for error in copy.errors()] == [("77",)])
    assert not copy.status().total("pending")
    again = blocks(copy)[1]
    assert again.is_touched
    assert again.hashed_at is not None
    assert oldest.hashed_at is not None
    assert again.hashed_at > oldest.hashed_at


def test_blocks_are_split_and_merged(copy: Copy) -> None:
    copy.both("CREATE TABLE t (a text, b int, PRIMARY KEY (a, b))")
    copy.up.execute("INSERT INTO t SELECT 'k' || i / 10, i FROM generate_series(1, 100) i")
    copy.replicate()
    copy.start(scrub_share=0.9, scrub_rows=20)
    copy.until(lambda: is_proven(copy))
    assert len(blocks(copy)) == 5
    copy.up.execute("INSERT INTO t SELECT 'k5x', i FROM generate_series(1, 100) i")
    copy.until(lambda: len(blocks(copy)) >= 10 and all(block.digest.count <= 40 for block in blocks(copy)))
    copy.up.execute("DELETE FROM t WHERE a <> 'k1'")
    copy.until(lambda: [block.digest.count for block in blocks(copy)] == [10])
    assert copy.fence().exit_code == 0


def test_the_next_start_goes_on_with_the_oldest_block(copy: Copy) -> None:
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 2000) i")
    copy.replicate()
    copy.start(scrub_share=0.9, scrub_rows=10, scrub_period=_WEEK)
    copy.until(lambda: len(blocks(copy)) > 3)
    copy.stop()
    before = [block for block in blocks(copy) if block.hashed_at is not None]
    assert before
    copy.go_on()
    copy.until(lambda: is_proven(copy))
    after = {block.block: block for block in blocks(copy)}
    assert len(after) == 200
    assert all(after[block.block].hashed_at == block.hashed_at for block in before)


def test_a_truncated_table_without_scrubs_is_cut_and_changed_again(copy: Copy) -> None:
    """The table has no blocks until it is compared after the TRUNCATE; later keys belong to those."""
    copy.both(TABLE)
    copy.up.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 20) i")
    copy.replicate()
    copy.start()
    for _ in range(2):
        copy.up.execute("TRUNCATE t; INSERT INTO t SELECT i, i FROM generate_series(1, 30) i")
        assert copy.fence().exit_code == 0
        copy.up.execute("UPDATE t SET n = 0 WHERE id = 7; DELETE FROM t WHERE id > 25")
        assert copy.fence().exit_code == 0
        copy.up.execute("TRUNCATE t")
        assert copy.fence().exit_code == 0
        copy.up.execute("INSERT INTO t VALUES (1, 1)")
        assert copy.fence().exit_code == 0
    assert not copy.ended
