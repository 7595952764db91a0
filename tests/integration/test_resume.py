"""A stopped or killed diff is resumed: finished blocks are not hashed again, and no difference is lost."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trueup
from support.fixtures import Databases, FreshServer, OnAll
from trueup.db import reader
from trueup.engine.progress import Silent
from trueup.engine.work import Room
from trueup.errors import CheckFailed, Interrupted, StoreError
from trueup.report.json_reader import open_report
from trueup.report.text import report_text, summary
from trueup.rows.keys import Block
from trueup.store import TaskStore
from trueup.task.compare.model import Answer
from trueup.task.compare.recheck import recheck
from trueup.task.job import Job
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until
from trueup.verbs.diff import hash as hashing
from trueup.verbs.diff import units
from trueup.verbs.diff.journal import journal_path, read_journal
from trueup.verbs.diff.work import HashBlock

ROWS = 20_000
SETTINGS: dict[str, Any] = {
    "engine": "local",
    "block_size": 1000,
    "compare_unit_size": 200,
    "recheck": 1,
    "recheck_wait": 0,
}
# A diff that hangs in the middle, so that it can be killed; the store has its progress.
HANGS = """
import sys, time, trueup
from trueup.verbs.diff import hash as hashing
original, left = hashing.hash_units, iter(range(12))
def units(*arguments):
    if next(left, None) is None:
        time.sleep(600)
    return original(*arguments)
hashing.hash_units = units
trueup.diff("t", nodes={"n1": sys.argv[1], "n2": sys.argv[2]}, engine="local", block_size=1000,
            compare_unit_size=200, recheck=1, recheck_wait=0)
"""


@pytest.fixture
def nodes(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes that differ in their first, a middle and their last block."""
    pair: list[Database] = databases(2)
    on_all(
        pair,
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i; ANALYZE t",
    )
    pair[1].execute(f"UPDATE t SET v = 'x' WHERE id = 5; DELETE FROM t WHERE id = {ROWS // 2}")
    pair[1].execute(f"INSERT INTO t VALUES ({ROWS + 1}, 'y')")
    return pair


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Every block that is hashed."""
    seen: list[Block] = []
    original = hashing.hash_units

    def units(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
        seen.append(task.block)
        return original(job, task, room)

    monkeypatch.setattr(hashing, "hash_units", units)
    return seen


class StopAfter(Silent):
    """Interrupts the run, like Ctrl-C, after `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        self._left = blocks

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        if not stage:
            self._left -= steps
        if self._left <= 0:
            raise KeyboardInterrupt


def _addresses(nodes: list[Database]) -> dict[str, str]:
    return {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}


def _interrupted_task(nodes: list[Database], blocks: int = 8) -> str:
    with pytest.raises(Interrupted):
        trueup.diff("t", nodes=_addresses(nodes), progress=StopAfter(blocks), **SETTINGS)
    with TaskStore() as store:
        return store.list(limit=1)[0].task_id


def _found(report: str) -> list[Any]:
    document = json.loads(Path(report).read_text(encoding="utf-8"))
    return sorted(
        (
            (difference["kind"], difference["key"], difference["rows"])
            for difference in document["diffs"]["n1/n2"]["differences"]
        ),
        key=str,
    )


def test_after_ctrl_c_only_the_remaining_blocks_are_hashed(nodes: list[Database], hashed: list[Block]) -> None:
    uninterrupted = trueup.diff("t", nodes=_addresses(nodes), **SETTINGS)
    task = _interrupted_task(nodes)
    with TaskStore() as store:
        path = journal_path(store, task)
        assert store.get(task).task_status == "INTERRUPTED"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with TaskStore() as store:
        before = read_journal(store, task)
    assert before is not None
    every = set(before.plan.ranges.blocks)
    assert 5 <= len(before.done) < len(every)
    finished = {before.plan.ranges.blocks[number] for number in before.done}
    hashed.clear()
    result = trueup.resume(task[:8], nodes=_addresses(nodes))
    assert not finished & set(hashed)
    assert finished | set(hashed) == every
    assert (result.task_id, result.verdict, result.rows_checked) == (task, "DIFFER", uninterrupted.rows_checked)
    assert result.rows == uninterrupted.rows
    assert result.pairs == uninterrupted.pairs
    assert _found(result.report) == _found(uninterrupted.report)
    document = json.loads(Path(result.report).read_text(encoding="utf-8"))["proof"]
    assert [sorted(each) for each in document["earlier"]] == [["n1", "n2"]]
    assert not path.exists()
    with TaskStore() as store:
        assert store.get(task).task_status == "COMPLETED"
    with pytest.raises(StoreError, match="COMPLETED"):
        trueup.resume(task, nodes=_addresses(nodes))


def test_a_killed_diff_is_resumed(nodes: list[Database], hashed: list[Block]) -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS, *[node.uri for node in nodes]], env=os.environ.copy())
    with TaskStore() as store:

        def far_enough() -> bool:
            tasks = store.list(limit=1)
            before = read_journal(store, tasks[0].task_id) if tasks else None
            return before is not None and len(before.done) >= 5

        try:
            assert wait_until(far_enough, 60)
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
        task = store.list(limit=1)[0]
        assert task.task_status == "FAILED"
        # A partially written entry is skipped.
        path = journal_path(store, task.task_id)
        with open(path, "ab") as file:
            file.write(b"\x00\x00\x10\x00half a record")
        before = read_journal(store, task.task_id)
        assert before is not None
    config = trueup.load(nodes=_addresses(nodes))
    result = trueup.resume(task.task_id, config=config)
    finished = {before.plan.ranges.blocks[number] for number in before.done}
    assert not finished & set(hashed)
    counts = result.pairs["n1/n2"]
    assert (counts.changed, counts.missing, counts.extra) == (1, 1, 1)
    assert result.rows == {"n1": ROWS, "n2": ROWS}


def test_a_failed_block_is_compared_again(
    nodes: list[Database], hashed: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = units.marks_of

    def broken(*arguments: Any) -> Any:
        raise trueup.QueryError("no", node="n2")

    # The first block differs and its rows cannot be read: INCOMPLETE, and can be resumed.
    monkeypatch.setattr("trueup.verbs.diff.hash.marks_of", broken)
    result = trueup.diff("t", nodes=_addresses(nodes), **SETTINGS)
    assert result.verdict == "INCOMPLETE"
    monkeypatch.setattr("trueup.verbs.diff.hash.marks_of", original)
    hashed.clear()
    again = trueup.resume(result.task_id, nodes=_addresses(nodes))
    counts = again.pairs["n1/n2"]
    assert (again.verdict, counts.changed, counts.missing, counts.extra) == ("DIFFER", 1, 1, 1)
    assert len(set(hashed)) == 3


def test_a_check_is_resumed(nodes: list[Database]) -> None:
    with pytest.raises(Interrupted):
        trueup.check("t", nodes=_addresses(nodes), progress=StopAfter(8), **SETTINGS)
    with TaskStore() as store:
        task = store.list(limit=1)[0].task_id
    result = trueup.resume(task, nodes=_addresses(nodes))
    assert (result.mode, result.verdict, result.mismatched_blocks) == ("check", "DIFFER", 3)


def test_a_changed_table_is_refused(nodes: list[Database]) -> None:
    task = _interrupted_task(nodes)
    nodes[0].execute("ALTER TABLE t ADD c int")
    nodes[1].execute("ALTER TABLE t ADD c int")
    with pytest.raises(CheckFailed, match="its columns were altered"):
        trueup.resume(task, nodes=_addresses(nodes))


REPLACED = {
    "dropped and created": "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text, m mood[] DEFAULT '{ok}'); "
    "INSERT INTO t SELECT i, 'wrong' FROM generate_series(1, 30000) i",
    "swapped": "CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u SELECT id, 'wrong', m FROM t; "
    "ALTER TABLE t RENAME TO old; ALTER TABLE u RENAME TO t",
    "loaded again": "BEGIN; TRUNCATE t; INSERT INTO t SELECT i, 'wrong' FROM generate_series(1, 30000) i; COMMIT",
    "another column": "ALTER TABLE t DROP v; ALTER TABLE t ADD v text DEFAULT 'wrong'",
    "another label": "ALTER TYPE mood RENAME VALUE 'ok' TO 'wrong'",
    "another partition": "BEGIN; ALTER TABLE p DETACH PARTITION p2; UPDATE p2 SET v = 'wrong'; "
    "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10001) TO (99999); COMMIT",
}


def test_blocks_of_a_table_that_was_replaced_are_refused(databases: Databases, on_all: OnAll) -> None:
    """The rows after the finished blocks are equal; those in the finished blocks differ by now."""
    filled = "SELECT i, 'v' || i FROM generate_series(1, 20000) i"
    pair = databases(2)
    for number, (case, statements) in enumerate(REPLACED.items()):
        on_all(pair, "DROP TABLE IF EXISTS t, old, p; DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('ok')")
        on_all(pair, f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t {filled}")
        on_all(
            pair,
            "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10001);"
            f"CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10001) TO (99999); INSERT INTO p {filled};"
            "ALTER TABLE t ADD m mood[] DEFAULT '{ok}'; ANALYZE",
        )
        table = "p" if "partition" in case else "t"
        with pytest.raises(Interrupted):
            trueup.diff(table, nodes=_addresses(pair), progress=StopAfter(8), **{**SETTINGS, "snapshot": number != 2})
        with TaskStore() as store:
            task = store.list(limit=1)[0].task_id
        pair[1].execute(statements)
        with pytest.raises(CheckFailed, match="node n2: since the table was read") as refused:
            trueup.resume(task, nodes=_addresses(pair))
        assert "node n1" not in str(refused.value), case
        assert "without --resume" in refused.value.cure


def test_what_is_resumed_says_so_in_the_verdict(databases: Databases, on_all: OnAll) -> None:
    """Rows that were changed in finished blocks are not read again: the verdict names the moment."""
    pair = databases(2)
    on_all(pair, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i FROM generate_series(1, 20000) i")
    on_all(pair, "CREATE UNLOGGED TABLE w (id int PRIMARY KEY, v text); INSERT INTO w TABLE t; ANALYZE")
    task = _interrupted_task(pair)
    pair[1].execute("UPDATE t SET v = 'x' WHERE id < 10")
    result = trueup.resume(task, nodes=_addresses(pair))
    assert result.verdict == "MATCH"
    assert re.match(r"\d+ of 2\d blocks at an earlier moment, since 20", result.earlier)
    assert summary(result).splitlines()[0].endswith(f"all rows were compared and are equal; {result.earlier}")
    assert f"; {result.earlier}" in report_text(open_report(Path(result.report))).splitlines()[0]
    # A crash empties an unlogged table: all of it is read again.
    with pytest.raises(Interrupted):
        trueup.diff("w", nodes=_addresses(pair), progress=StopAfter(8), **SETTINGS)
    with TaskStore() as store:
        unlogged = store.list(limit=1)[0].task_id
    assert trueup.resume(unlogged, nodes=_addresses(pair)).earlier == ""


def test_views_are_compared_again(databases: Databases, on_all: OnAll) -> None:
    """They are compared by value, and have no journal."""
    pair = databases(2)
    on_all(pair, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE VIEW w AS TABLE t")

    class StopAtHashing(Silent):
        def stage(self, name: str, total: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        trueup.diff("w", nodes=_addresses(pair), key=("id",), progress=StopAtHashing(), **SETTINGS)
    with TaskStore() as store:
        task = store.list(limit=1)[0].task_id
    pair[1].execute("DELETE FROM t WHERE id = 2")
    assert trueup.resume(task, nodes=_addresses(pair)).pairs["n1/n2"].missing == 1


def test_a_table_that_is_replaced_while_suspects_are_read_again(
    databases: Databases, on_all: OnAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suspect is equal in the new table, and another row differs: neither of the two tables was equal."""
    pair = databases(2)
    on_all(pair, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i FROM generate_series(1, 100) i")
    pair[1].execute("CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u TABLE t; UPDATE u SET v = 'x' WHERE id = 7")
    pair[1].execute("UPDATE t SET v = 'x' WHERE id = 5")

    def swap(*arguments: Any) -> None:
        reader.close_idle()
        pair[1].execute("ALTER TABLE t RENAME TO old; ALTER TABLE u RENAME TO t")
        recheck(*arguments)

    monkeypatch.setattr("trueup.verbs.diff.run.recheck", swap)
    result = trueup.diff("t", nodes=_addresses(pair), **SETTINGS)
    assert result.verdict == "INCOMPLETE"
    assert "it became another one: another table has its name" in result.incomplete[0]


def test_another_server_is_refused(nodes: list[Database], fresh_server: FreshServer) -> None:
    """The blocks that are finished were compared with the rows of another server."""
    task = _interrupted_task(nodes)
    other = fresh_server(name="other").database("postgres")
    other.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with pytest.raises(CheckFailed, match="n1 is another server"):
        trueup.resume(task, nodes={**_addresses(nodes), "n1": other.uri})
    assert trueup.resume(task, nodes=_addresses(nodes)).verdict == "DIFFER"


def test_a_run_without_a_journal_starts_over(nodes: list[Database]) -> None:
    task = _interrupted_task(nodes)
    with TaskStore() as store:
        journal_path(store, task).unlink()
    assert trueup.resume(task, nodes=_addresses(nodes)).rows_checked >= ROWS


def test_a_journal_that_others_can_write_is_not_read(nodes: list[Database]) -> None:
    task = _interrupted_task(nodes)
    with TaskStore() as store:
        journal_path(store, task).chmod(0o622)
    with pytest.raises(StoreError, match="other users can write"):
        trueup.resume(task, nodes=_addresses(nodes))


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    """Replace a text of the same length in all records of a journal."""
    assert len(old) == len(new)
    data, written = path.read_bytes(), b""
    while data:
        length = int.from_bytes(data[:4], "big")
        record = data[8 : 8 + length].replace(old, new)
        written += length.to_bytes(4, "big") + zlib.crc32(record).to_bytes(4, "big") + record
        data = data[8 + length :]
    assert new in written
    path.write_bytes(written)


def test_a_journal_names_classes_without_their_modules(nodes: list[Database], hashed: list[Block]) -> None:
    task = _interrupted_task(nodes)
    with TaskStore() as store:
        rewrite(journal_path(store, task), b"trueup.verbs.diff.journal", b"trueup.older.diff.journal")
        before = read_journal(store, task)
    assert before is not None
    assert before.done
    hashed.clear()
    assert trueup.resume(task, nodes=_addresses(nodes)).pairs["n1/n2"].total == 3
    assert len(hashed) < ROWS // 1000


def test_a_journal_loads_no_other_classes(nodes: list[Database]) -> None:
    task = _interrupted_task(nodes)
    with TaskStore() as store:
        rewrite(journal_path(store, task), b"TableSpec", b"Something")
    with pytest.raises(StoreError, match=r"another version of trueup wrote \(unknown class trueup.rows.spec.Something"):
        trueup.resume(task, nodes=_addresses(nodes))


def test_a_keyless_table_starts_over(databases: Databases, on_all: OnAll) -> None:
    pair = databases(2)
    on_all(pair, "CREATE TABLE t (v text); INSERT INTO t SELECT 'v' || i FROM generate_series(1, 5000) i; ANALYZE t")
    pair[1].execute("DELETE FROM t WHERE v = 'v7'")
    task = _interrupted_task(pair, 1)
    assert trueup.resume(task, nodes=_addresses(pair)).pairs["n1/n2"].total == 1


@pytest.mark.parametrize("gentle", [False, True])
def test_pause_resume_and_stop_from_another_process(
    nodes: list[Database], gentle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process pauses the run after some blocks, resumes it, and stops it."""
    monkeypatch.setattr("trueup.task.steering.ASK_SECONDS", 0.0)

    class Outside(Silent):
        def __init__(self) -> None:
            self.reasons: list[str] = []
            self.seen = 0

        def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
            self.seen += steps
            with TaskStore() as store:
                task = store.list(limit=1)[0].task_id
                if self.seen == 3 and not self.reasons:
                    store.ask(task, "pause")
                elif self.seen >= 10:
                    store.ask(task, "stop")

        def wait(self, reason: str) -> None:
            self.reasons.append(reason)
            with TaskStore() as store:
                task = store.list(limit=1)[0]
                if reason:
                    store.ask(task.task_id, "")
                    assert task.task_status == "RUNNING"

    outside = Outside()
    with pytest.raises(Interrupted, match="trueup tasks stop") as stopped:
        trueup.diff("t", nodes=_addresses(nodes), progress=outside, gentle=gentle, **SETTINGS)
    assert outside.reasons[0].startswith("paused")
    assert outside.reasons[-1] == ""
    assert stopped.value.exit_code == 130
    with TaskStore() as store:
        task = store.list(limit=1)[0]
    assert task.task_status == "INTERRUPTED"
    assert trueup.resume(task.task_id, nodes=_addresses(nodes)).pairs["n1/n2"].total == 3


def test_only_running_tasks_can_be_controlled(nodes: list[Database], tmp_path: Path) -> None:
    task = _interrupted_task(nodes)
    with TaskStore() as store, pytest.raises(StoreError, match="is not running"):
        store.ask(task, "pause")
