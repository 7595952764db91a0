"""Databases in encodings other than UTF8: whatever trueup installs, sends and stores can be written in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from support.fixtures import Compare
from support.sqlite_sink import SqliteSink
from support.switchover import Moving
from support.sync import make_pair
from support.tube import TubeDatabase
from trueup.config.model import Node
from trueup.errors import CheckFailed, NodeError, QueryError
from trueup.sinks.base import Document, Mark, SinkRejected
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.meta import open_meta

_numbers = itertools.count(1)
# Characters that no encoding of these tests has all of, and a character that PostgreSQL has not at all.
MESSAGE = "refused: … ж 日 é \x00"

Encoded = Callable[[str], Database]


@pytest.fixture
def encoded(server: Server) -> Iterator[Encoded]:
    """`encoded(name)`: create a database in this encoding."""
    created: list[Database] = []

    def create(encoding: str) -> Database:
        name = f"encoded_{os.getpid()}_{next(_numbers)}"
        options = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        server.database("postgres").execute(f"CREATE DATABASE {name} {options}")
        created.append(server.database(name))
        created[-1].uri += "?client_encoding=UTF8"
        return created[-1]

    yield create
    for database in created:
        database.drop()


class Refusing(SqliteSink):
    """Refuses the rows with an exclamation mark, with a message in any characters."""

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        bad = [document for document in batch if document.key[0].endswith("!")]
        if bad:
            raise SinkRejected(MESSAGE, reasons={document.identity: MESSAGE for document in bad})
        super().write(batch, mark=mark)


LETTERS = {"LATIN1": "é", "ISO_8859_5": "ж", "EUC_JP": "日", "SQL_ASCII": "é日", "UTF8": "é"}


@pytest.mark.parametrize(("encoding", "letter"), LETTERS.items(), ids=list(LETTERS))
def test_tubes(encoded: Encoded, tmp_path: Path, encoding: str, letter: str) -> None:
    tubes = TubeDatabase(encoded(encoding))
    name = f'"t{letter}"'
    try:
        tubes.install()
        tubes.tube.ensure(predicate="n <> 7")
        tubes.run(f'CREATE TABLE {name} ("k{letter}" text, n int, v text, PRIMARY KEY ("k{letter}", n))')
        tubes.tube.attach(name, shard=1, predicate=f"v <> 'not {letter}'")
        tubes.run(f"INSERT INTO {name} SELECT '{letter}' || g, g, '{letter}' FROM generate_series(1, 9) g")
        tubes.run(f"INSERT INTO {name} VALUES ('{letter}', 1, 'not {letter}'), ('{letter}!', 1, '')")
        sink = Refusing(str(tmp_path / "kept.db"))
        summary = tubes.tube.run(sink, until_empty=True, attempts=1)
        assert (summary.written, summary.parked) == (8, 1)
        assert {key: row["v"] for (_, key), row in sink.rows(f"public.{name}").items()} == {
            (f"{letter}{n}", str(n)): letter for n in (1, 2, 3, 4, 5, 6, 8, 9)
        }
        (parked,) = tubes.tube.dead_letters()
        assert parked.error == (
            MESSAGE.replace("\x00", r"\x00") if encoding == "UTF8" else r"refused: \u2026 \u0436 \u65e5 \xe9 \x00"
        )
        tubes.run(f"DELETE FROM {name} WHERE n > 2")
        tubes.tube.backfill(name)
        tubes.tube.run(sink, until_empty=True, attempts=1)
        assert sorted(key for _, key in sink.rows(f"public.{name}")) == [(f"{letter}1", "1"), (f"{letter}2", "2")]
    finally:
        tubes.close()


def test_texts_of_an_unknown_encoding(encoded: Encoded, tmp_path: Path) -> None:
    """SQL_ASCII stores any bytes: such keys and rows are parked, no other text is delivered in their place."""
    tubes = TubeDatabase(encoded("SQL_ASCII"))
    try:
        tubes.install()
        tubes.tube.ensure()
        tubes.run("CREATE TABLE t1 (k text, n int, v text, PRIMARY KEY (k, n)); CREATE TABLE t2 (k text PRIMARY KEY)")
        for table in ("t1", "t2"):
            tubes.tube.attach(table, shard=0)
        with psycopg.connect(tubes.database.uri, client_encoding="LATIN1", autocommit=True) as application:
            application.execute(
                "INSERT INTO t1 VALUES ('é', 1, ''), ('a', 2, 'é'), ('b', 3, 'b'); INSERT INTO t2 VALUES ('é'), ('c')"
            )
        tubes.run("INSERT INTO t2 VALUES ('日')")
        with pytest.raises(QueryError, match="invalid byte sequence") as caught:
            tubes.pods()
        assert "SQL_ASCII" in (caught.value.cure or "")
        sink = SqliteSink(str(tmp_path / "kept.db"))
        assert tubes.tube.run(sink, until_empty=True, attempts=1).dead_letters == 3
        assert [sorted(key for _, key in sink.rows(f"public.{table}")) for table in ("t1", "t2")] == [
            [("b", "3")],
            [("c",), ("日",)],
        ]
        errors = {letter.key: letter.error for letter in tubes.tube.dead_letters()}
        assert errors.keys() == {r"\xe9", r'["\xe9", "1"]', '["a", "2"]'}
        assert errors[r"\xe9"] == "the key is not a text in UTF-8"
        assert tubes.run("SELECT count(*) FROM tube.pods_t") == [(0,)]
    finally:
        tubes.close()


@pytest.mark.parametrize("target", ["LATIN1", "UTF8"])
def test_sync_and_switchover(encoded: Encoded, compare: Compare, target: str) -> None:
    """Digests of a text differ in two encodings: a switchover without a proof is refused before it begins."""
    pair = make_pair(encoded("LATIN1"), encoded(target))
    pair.both('CREATE TABLE "té" ("ké" text PRIMARY KEY, v text)')
    pair.source.execute("""INSERT INTO "té" SELECT 'é' || g, 'é' FROM generate_series(1, 20) g""")
    plan = pair.start()
    pair.source.execute("""INSERT INTO "té" VALUES ('ÿ', 'ü'); DELETE FROM "té" WHERE "ké" = 'é1'""")
    pair.run(once=True)
    pair.check_equal(['"té"'])
    moving = Moving(pair.source, pair.target, pair.request.source, pair.request.target)
    remarks = [remark for remark in plan.remarks if "encodings differ: LATIN1 on n1, UTF8 on n2" in remark]
    assert bool(remarks) == (target == "UTF8")
    if target == "LATIN1":
        assert moving.execute().address.endswith(f"dbname={pair.target.name}")
        return
    for refused in (moving.execute, lambda: compare((pair.source, pair.target), '"té"')):
        with pytest.raises(CheckFailed, match="encodings differ: LATIN1 on n1, UTF8 on n2"):
            refused()
    # The old database is still open.
    pair.source.execute("""INSERT INTO "té" VALUES ('é', 'é')""")


def test_messages_of_a_validation(encoded: Encoded) -> None:
    with open_meta(Node("n1", encoded("LATIN1").uri)) as meta:
        meta.make()
        meta.rows("create", name="v", settings="{}", slot="", publication="", owns=False)
        meta.rows("state", name="v", state="stopped", reason=MESSAGE)
        table = {"source": "té", "target": "té", "stage": "stopped"}
        meta.rows("put_table", name="v", **table, reason=MESSAGE, remarks=[MESSAGE], rules=None)
        (stored,) = meta.rows("tables", name="v")
    escaped = r"refused: \u2026 \u0436 \u65e5 \xe9 \x00"
    assert (stored["source"], stored["reason"], stored["remarks"]) == ("té", escaped, [escaped])


def test_an_encoding_that_cannot_be_converted(encoded: Encoded) -> None:
    with pytest.raises(NodeError, match="MULE_INTERNAL") as caught:
        TubeDatabase(encoded("MULE_INTERNAL")).install()
    assert "UTF8" in (caught.value.cure or "")
