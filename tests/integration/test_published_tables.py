"""Tables of trueup in a publication FOR ALL TABLES that is created after them: rows can still be deleted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.fixtures import Databases
from support.sqlite_sink import SqliteSink
from support.switchover import Moving
from support.sync import make_pair
from support.validate import Copy
from trueup.api.tube import Tube
from trueup.capture.log.publications import CURE
from trueup.capture.triggers import tubes
from trueup.capture.triggers.session import Session
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.sinks.base import Document, Mark
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

WITHOUT_IDENTITY = """SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname ~ '^(trueup|tube)' AND c.relkind = 'r' AND c.relreplident <> 'f'
   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"""


def with_column_lists(source: Database, tube: Tube, path: str) -> None:
    """With a column list, the server refuses to delete pods: before the start of a job, and while it runs."""
    make = "CREATE PUBLICATION limited FOR TABLE tube.pods_t (seq, shard)"

    class Publishing(SqliteSink):
        def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
            source.execute(make)

    for sink, before in ((SqliteSink(path), make), (Publishing(path), "")):
        source.execute(f"{before}; INSERT INTO t VALUES (100)")
        with pytest.raises(CheckFailed, match="publication limited has a column list") as caught:
            tube.run(sink, until_empty=True)
        assert caught.value.cure == "run ALTER PUBLICATION limited DROP TABLE tube.pods_t"
        source.execute("DROP PUBLICATION limited; DELETE FROM t WHERE id = 100")
    tube.run(SqliteSink(path), until_empty=True)


class Messages(Silent):
    """Records the messages of a job."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, text: str) -> None:
        self.messages.append(text)


def created_during_a_job(source: Database, tube: Tube, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on, and names the publication once, with a cure."""
    checks: list[str] = []
    published = tubes.published

    def counted(session: Session, name: str) -> str:
        checks.append(published(session, name))
        return checks[-1]

    monkeypatch.setattr(tubes, "published", counted)
    monkeypatch.setattr("trueup.verbs.tube.aside.CHECK_SECONDS", 0.05)
    progress, stop = Messages(), threading.Event()
    job = threading.Thread(target=lambda: tube.run(SqliteSink(path), stop=stop, progress=progress))
    job.start()
    try:
        assert wait_until(lambda: bool(checks), 60)
        source.execute("CREATE PUBLICATION during FOR ALL TABLES")
        source.execute("SELECT pg_create_logical_replication_slot('subscriber', 'pgoutput')")
        assert wait_until(lambda: len([text for text in checks if text]) > 3, 60)
        source.execute("INSERT INTO t VALUES (200); DELETE FROM t WHERE id = 200")
        assert wait_until(lambda: source.execute("SELECT count(*) FROM tube.pods_t") == [(0,)], 60)
    finally:
        stop.set()
        job.join(60)
        source.execute("SELECT pg_drop_replication_slot('subscriber')")
        source.execute("DROP PUBLICATION during")
    (notice,) = [text for text in progress.messages if "publication during" in text]
    assert notice.endswith(CURE)


def test_a_publication_for_all_tables_that_is_created_later(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = databases(2)
    pair, copy = make_pair(source, target), Copy(source, target)
    pair.both("CREATE TABLE t (id int PRIMARY KEY)")
    pair.start()
    pair.run(once=True)
    Tube.install(source.uri)
    tube = Tube("t", source.uri)
    tube.ensure()
    tube.attach("public.t", shard=1)
    with_column_lists(source, tube, str(tmp_path / "other.db"))
    created_during_a_job(source, tube, str(tmp_path / "during.db"), monkeypatch)
    copy.create("public.t", changes="changelog", syncer="sync:main")
    copy.go_on()
    pair.both("CREATE PUBLICATION everything FOR ALL TABLES")
    # Changed by hand: the next job restores it.
    source.execute("ALTER TABLE tube.pods_t REPLICA IDENTITY NOTHING")
    source.execute("INSERT INTO t SELECT i FROM generate_series(1, 10) i")
    stop = threading.Event()
    # A job repeats a delete that fails: stop it then.
    timer = threading.Timer(60, stop.set)
    timer.start()
    tube.run(SqliteSink(str(tmp_path / "kept.db")), until_empty=True, stop=stop)
    timer.cancel()
    assert source.execute("SELECT count(*) FROM tube.pods_t") == [(0,)]
    pair.run(once=True)
    assert source.execute("SELECT count(*) FROM trueup_log.pods_main") == [(0,)]
    waiting = "SELECT sum(live_pods) FROM trueup_changes.tube_stats()"
    copy.until(lambda: pair.run(once=True) and source.execute(waiting) == [(0,)])
    assert copy.status().total("inserts") == 10
    copy.stop()
    Moving(source, target, pair.request.source, pair.request.target).prepare()
    for database in (source, target):
        assert database.execute(WITHOUT_IDENTITY) == []
    copy.validation.delete()
    tube.drop()
    tube.close()
