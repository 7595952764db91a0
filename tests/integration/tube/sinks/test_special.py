"""Features of single sinks: exact types, existing tables, caches, buckets, busy servers, secrets."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from redis import Redis

from support.fixtures import Databases
from support.sinks import THINGS, Rig
from support.tube import TubeDatabase
from trueup.errors import CheckFailed, ConfigError, QueryError
from trueup.sinks import open_sink
from trueup.sinks.base import Document, Mark, Sink, SinkDown, SinkRejected, SourceTable
from trueup.sinks.parquet import current_state

NOW = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
THING = SourceTable("public.things", (("id", "bigint"), ("name", "text")), ("id",), routed=False)


def _thing(number: int, name: str | None, **more: Any) -> Document:
    row = {"id": number, "name": name, **more}
    return Document("public.things", 7, (str(number),), "U", row if name is not None else None)


def _write(sink: Sink, *documents: Document, seq: int = 10) -> None:
    sink.write(documents, mark=Mark(seq, NOW))


@contextmanager
def _served(*command: str, **options: Any) -> Iterator[int]:
    """Run a server during the block; yield its port."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


# --- PostgreSQL

EVERY_TYPE = r"""
    CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
    CREATE DOMAIN small AS int CHECK (VALUE < 100);
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE every (
        a text COLLATE "C", b numeric, "odd % {name}" text, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8,
        n numeric(12, 2), nn numeric, o bool, c char(5), v varchar(3), by bytea, d date, t time, tz timetz,
        ts timestamp, tstz timestamptz, iv interval, j json, jb jsonb, u uuid, ip inet, m money, bits bit(3),
        r int4range, ia int[], ta text[], p point, e mood, s small, co pair, oid oid, PRIMARY KEY (a, b));
    INSERT INTO every VALUES
        ('k1', 1.0, E'tab\t nl\n back\\ quote" ж \\N', -1, 2147483647, -9223372036854775808, 'NaN', 'Infinity',
         'NaN', 'Infinity', true, 'ab', 'xyz', '\x00ff5c', 'infinity', '24:00', '12:00+02', '-infinity',
         'infinity', '1 mon -3 days', E'{"a": 1, "a": 2,\n "b": 1.0000000000000000000001}', '{"b": [1, null]}',
         gen_random_uuid(), '10.0.0.1/8', '$1.50', '101', '[1,5)', '{{1,2},{NULL,4}}',
         '[0:1]={"a,b","NULL"}', '(1,2)', 'it''s ok', 7, '(1,"x y")', 4000000000),
        ('k2', 1.00, NULL, NULL, NULL, NULL, 0.1, 1e-300,
         1.5, 1e-30, false, NULL, NULL, '', '0044-03-15 BC', NULL, NULL, '4713-01-01 00:00:00 BC',
         '294276-12-31 23:59:59.999999+00', NULL, 'null', 'null',
         NULL, NULL, NULL, NULL, 'empty', '{}', NULL, NULL, NULL, NULL, NULL, NULL);
"""
COLUMNS = (
    "SELECT attname::text, atttypid::regtype::text FROM pg_attribute"
    " WHERE attrelid = 'every'::regclass AND attnum > 0 ORDER BY attnum"
)


def test_values_of_every_type_are_exact(
    tube_db: TubeDatabase, databases: Databases, redis: Rig, tmp_path: Path
) -> None:
    """In PostgreSQL every value has the same text; other sinks keep these texts, and exact JSON."""
    tube_db.run(EVERY_TYPE)
    tube_db.tube.attach("every", routing="length(a)")
    target = databases(1)[0]
    for address, options in (
        (target.uri, {}),
        (f"parquet:{tmp_path / 'lake'}", {}),
        (redis.address, {"mode": "set", "key": "every:{shard}:{key}"}),
    ):
        tube_db.tube.backfill("every")
        assert tube_db.tube.run(address, sink_options=options, until_empty=True).written == 2
    columns = [name for name, _ in tube_db.run(COLUMNS)]
    quoted = ", ".join(f'"{name}"::text' for name in columns)
    query = f"SELECT {quoted} FROM every ORDER BY a"
    assert target.execute(query) == tube_db.run(query)
    # Values of unknown types are kept as text.
    types = dict(target.execute(COLUMNS))
    assert [types[name] for name in ("e", "s", "co", "jb", "ia")] == ["text", "text", "text", "jsonb", "integer[]"]

    expected = dict(zip(columns, tube_db.run(query)[0], strict=True))
    lake = {row["a"]: row for row in current_state(tmp_path / "lake" / "public.every").to_pylist()}
    for name in ("n", "nn", "d", "ts", "tstz", "iv", "j", "jb", "ia", "ta", "ip", "e", "odd % {name}"):
        assert lake["k1"][name] == expected[name], name
    assert (lake["k1"]["by"], lake["k1"]["i8"], str(lake["k1"]["f8"])) == (b"\x00\xff\x5c", -(2**63), "inf")
    assert (lake["k2"]["d"], lake["k2"]["nn"], lake["k2"]["i4"]) == ("0044-03-15 BC", "0." + "0" * 29 + "1", None)

    client: Any = Redis.from_url(redis.address)
    body = client.get('every:2:["k1","1.0"]').decode()
    client.close()
    assert '"j":{"a": 1, "a": 2,  "b": 1.0000000000000000000001}' in body
    row = json.loads(body, parse_float=str, parse_int=str)
    assert (row["n"], row["nn"], row["i8"], row["b"]) == ("NaN", "Infinity", "-9223372036854775808", "1.0")
    assert row["odd % {name}"] == expected["odd % {name}"]


def test_keys_in_the_former_and_the_present_shard(tube_db: TubeDatabase, databases: Databases, tmp_path: Path) -> None:
    """A table is attached with another shard while touches wait: a batch has each row once."""
    tube_db.run("CREATE TABLE things (id bigint PRIMARY KEY, name text)")
    [target] = databases(1)
    for number, address in enumerate((f"parquet:{tmp_path}", f"delta:{tmp_path / 'delta'}", target.uri)):
        tube_db.tube.attach("things", shard=0)
        tube_db.run(f"INSERT INTO things VALUES ({number}, 'a'), ({number + 10}, 'a')")
        tube_db.tube.detach("things")
        tube_db.tube.attach("things", shard=1)
        tube_db.run("UPDATE things SET name = 'b' WHERE id < 10")
        assert tube_db.tube.run(address, until_empty=True).written == number + 2
        tube_db.tube.detach("things")
    assert sorted(current_state(tmp_path / "public.things")["id"].to_pylist()) == [0, 10]
    assert sorted(DeltaTable(str(tmp_path / "delta" / "public.things")).to_pyarrow_table()["id"].to_pylist()) == [
        0,
        1,
        11,
    ]
    assert target.execute("SELECT id, name FROM things ORDER BY 1") == [(0, "b"), (1, "b"), (2, "b"), (12, "a")]


def test_another_shard_in_another_partition(tube_db: TubeDatabase, databases: Databases) -> None:
    """One job gets all touches of a key, dead letters follow, and no document of the former shard stays."""
    [target] = databases(1)
    tube_db.tube.ensure(partitions=2)
    tube_db.run("CREATE TABLE things (id bigint PRIMARY KEY, name text); INSERT INTO things VALUES (7, 'deleted')")
    tube_db.tube.attach("things", shard=0)
    tube_db.tube.backfill("things")
    tube_db.tube.run(target.uri, until_empty=True)
    target.execute("ALTER TABLE things ADD CHECK (name <> 'bad')")
    tube_db.run("INSERT INTO things VALUES (8, 'bad'), (9, 'a')")
    assert tube_db.tube.run(target.uri, until_empty=True, attempts=1).dead_letters == 1
    tube_db.run("UPDATE things SET name = 'b' WHERE id = 9")
    tube_db.tube.detach("things")
    # Not captured.
    tube_db.run("DELETE FROM things WHERE id = 7; UPDATE things SET name = 'good' WHERE id = 8")
    with tube_db.of("t").lock(0):
        with pytest.raises(QueryError, match="a job of partition 0 is delivering touches with it") as caught:
            tube_db.tube.attach("things", shard=1)
        assert "stop that job" in caught.value.cure
    tube_db.tube.attach("things", shard=1)
    assert [pod.ids for pod in tube_db.pods(partition=1)] == [(9,)]
    tube_db.tube.backfill("things")
    summary = tube_db.tube.run(target.uri, until_empty=True, partitions=[1])
    assert summary.dead_letters == 0
    assert target.execute("SELECT id, name FROM things ORDER BY 1") == [(8, "good"), (9, "b")]


def test_an_existing_table_keeps_its_own_columns_and_rows(postgres: Rig, databases: Databases) -> None:
    database = databases(1)[0]
    database.execute(
        "CREATE TABLE mine (nr bigint PRIMARY KEY, title text, own text DEFAULT 'mine', made text GENERATED ALWAYS AS"
        " (upper(title)) STORED); INSERT INTO mine VALUES (1, 'before', 'kept'), (5, 'stale', 'x');"
        "CREATE TABLE child (nr bigint REFERENCES mine ON DELETE CASCADE); INSERT INTO child VALUES (1)"
    )
    sink = open_sink(f"{database.uri}?table=mine&map=id:nr,name:title")
    sink.setup([THING])
    _write(sink, _thing(1, "new"), _thing(2, "two"))
    assert database.execute("SELECT nr, title, own, made FROM mine ORDER BY 1") == [
        (1, "new", "kept", "NEW"),
        (2, "two", "mine", "TWO"),
        (5, "stale", "x", "STALE"),
    ]
    # An upsert, not a delete: referring rows are kept. Existing rows have no mark, and count as older.
    assert database.execute("SELECT nr FROM child") == [(1,)]
    assert sink.older("public.things", [7], 5, NOW, None, 10) == [(7, ("5",))]
    sink.close()

    # A new column is added if all columns are copied; the key must be a unique index of the same type.
    all_columns = open_sink(database.uri, {"table": "made.{table}"})
    all_columns.setup([THING])
    more = SourceTable(THING.table, (*THING.columns, ("later", "numeric(5,2)")), ("id",), routed=False)
    all_columns.setup([more])
    _write(all_columns, _thing(1, "x", later="1.50"))
    assert database.execute("SELECT later::text FROM made.things") == [("1.50",)]
    all_columns.close()
    for table, options, why in (
        ("CREATE TABLE bad1 (id bigint, name text)", {"table": "bad1"}, "no unique index over exactly"),
        ("CREATE TABLE bad2 (id numeric PRIMARY KEY, name text)", {"table": "bad2"}, "the texts of keys may differ"),
        ("CREATE VIEW bad3 AS SELECT 1", {"table": "bad3"}, "it is not a table"),
        ("SELECT", {"table": "mine", "map": "name:title"}, "key column id is not mapped"),
        ("SELECT", {"table": "mine", "map": "id:nr,nope:title"}, "has no column nope"),
    ):
        database.execute(table)
        with pytest.raises(CheckFailed, match=why):
            open_sink(database.uri, options).setup([THING])


def test_a_sink_never_writes_into_its_own_source(tube_db: TubeDatabase) -> None:
    tube_db.run("CREATE TABLE things (id bigint PRIMARY KEY, name text)")
    tube_db.tube.attach("things", shard=1)
    with pytest.raises(CheckFailed, match="may be the source"):
        tube_db.tube.run(tube_db.database.uri, until_empty=True)
    assert len(tube_db.run("SELECT FROM pg_attribute WHERE attrelid = 'things'::regclass AND attnum > 0")) == 2


# --- Redis


def test_a_cache_is_invalidated_also_by_truncate(tube_db: TubeDatabase, redis: Rig) -> None:
    tube_db.run("CREATE TABLE things (id bigint PRIMARY KEY, name text); INSERT INTO things VALUES (1, 'a'), (2, 'b')")
    tube_db.tube.attach("things", shard=1)
    client: Any = Redis.from_url(redis.address)

    def keys() -> set[str]:
        return {name.decode() for name in client.scan_iter()}

    client.mset({"thing[*]:1": "x", "thing[*]:2": "y", "other:1": "z"})
    tube_db.run("UPDATE things SET name = 'c' WHERE id = 1")
    address = f"{redis.address}?key=thing[*]:{{key}}"
    assert tube_db.tube.run(address, until_empty=True).written == 1
    assert keys() == {"thing[*]:2", "other:1"}
    tube_db.run("TRUNCATE things")
    tube_db.tube.run(address, until_empty=True)
    assert keys() == {"other:1"}

    sink = open_sink(redis.address, {"mode": "set", "ttl": "100", "key": "t:{key}"})
    sink.setup([THING])
    _write(sink, _thing(1, "a"))
    assert 0 < client.ttl("t:1") <= 100
    sink.close()
    client.close()
    wrong = open_sink(redis.address.replace("heim", "wrong"))
    with pytest.raises(SinkDown, match="invalid username-password pair") as caught:
        wrong.setup([THING])
    assert "wrong" not in str(caught.value) + repr(wrong)


def test_sinks_that_can_lose_acknowledged_documents_are_named(
    redis: Rig, search: Rig, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    index, _, options = search.address.partition("?")
    for address, warning in (
        (f"{redis.address}?mode=set", "has no append-only file"),
        (f"{index.rpartition('/')[0]}/careless?{options}", "index.translog.durability = async"),
        (databases(1)[0].uri, "has fsync = off"),
    ):
        caplog.clear()
        sink = open_sink(address)
        # Threads and tasks have copies, which must not repeat it.
        copy = pickle.loads(pickle.dumps(sink))
        for one in (sink, sink, copy):
            one.setup([THINGS])
            one.close()
        assert [warning in record.getMessage() for record in caplog.records] == [True], address


# --- a search index


def test_a_search_server_that_is_busy_or_rejects_documents(search: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SourceTable("public.things", (*THING.columns, ("busy", "boolean"), ("n", "jsonb")), ("id",), routed=False)
    sink = open_sink(search.address)
    sink.setup([source])
    with pytest.raises(SinkDown, match="queue is full"):
        _write(sink, _thing(1, "a"), _thing(2, "b", busy=True))
    # Requests that are too large for the server are split, down to one document.
    large = [_thing(number, "x" * 1500) for number in range(3, 9)]
    with pytest.raises(SinkRejected) as caught:
        _write(sink, _thing(2, "b", busy=True), *large, _thing(9, "x" * 4000), _thing(10, "t", n='"text"'))
    assert {key[2]: reason for key, reason in caught.value.reasons.items()} == {
        ("9",): "too_large: request entity too large",
        ("10",): "failed to parse [n]",
    }
    assert {key[-1] for key in search.stored(source)} == {str(number) for number in range(1, 9)}
    sink.close()

    with _served(str(Path(__file__).with_name("search_server.py")), "0", "geheim123") as port:
        address = f"http://127.0.0.1:{port}/deep/path/index"
        for key, works in (("wrong456", False), ("geheim123", True)):
            monkeypatch.setenv("TRUEUP_SINK_API_KEY", key)
            sink = open_sink(address)
            assert key not in repr(sink) + repr(vars(sink))
            if works:
                sink.setup([THING])
                _write(sink, _thing(1, "a"))
            else:
                with pytest.raises(SinkDown, match="answered 401") as refused:
                    sink.setup([THING])
                assert key not in str(refused.value) + refused.value.cure
            sink.close()


# --- ClickHouse


def test_a_clickhouse_server(tmp_path: Path, tube_db: TubeDatabase) -> None:
    program = Path(__file__).parents[2] / "clickhouse_http_server.py"
    with _served(str(program), str(tmp_path / "server"), cwd=tmp_path) as port:
        location = f"127.0.0.1:{port}/db"
        wrong = open_sink(f"clickhouse://me:geheim123@{location}")
        with pytest.raises(SinkDown) as caught:
            wrong.setup([THING])
        assert "geheim123" not in str(caught.value) + repr(wrong)
        sink: Any = open_sink(f"clickhouse://me:ge%20heim%2F123@{location}?table=it's_{{table}}")
        sink.setup([THING])
        # A later write is newer even if its number is lower.
        for name, seq in (("first", 50), ("second", 20)):
            _write(sink, _thing(1, name), _thing(2, "gone soon"), seq=seq)
        _write(sink, _thing(2, None), seq=10)
        rows = sink._rows("SELECT id, name FROM db.`it's_things` FINAL")
        assert rows == [(1, b"second")]
        assert sink.older("public.things", [7], 21, NOW, None, 5) == [(7, ("1",))]
        sink._backend().execute(
            "CREATE TABLE db.plain (id Int64, name Nullable(String)) ENGINE = MergeTree ORDER BY id"
        )
        with pytest.raises(CheckFailed, match="its engine is MergeTree"):
            open_sink(f"clickhouse://me:ge%20heim%2F123@{location}", {"table": "plain"}).setup([THING])
        # A whole job.
        tube_db.run("CREATE TABLE words (k text, n int, v text, PRIMARY KEY (k, n))")
        tube_db.tube.attach("words", shard=0)
        tube_db.run("INSERT INTO words SELECT 'ké' || g, g, 'v' FROM generate_series(1, 300) g")
        for change, rows in (
            ("UPDATE words SET v = 'w' WHERE n < 9; DELETE FROM words WHERE n > 50", 50),
            ("UPDATE words SET n = n + 100 WHERE n < 9", 50),
            ("TRUNCATE words; INSERT INTO words VALUES ('a', 1, NULL)", 1),
        ):
            tube_db.run(change)
            summary = tube_db.tube.run(f"clickhouse://me:ge%20heim%2F123@{location}", until_empty=True)
            assert (summary.dead_letters, summary.problems) == (0, ())
            stored = sink._rows("SELECT k, n, v FROM db.words FINAL")
            texts = [(k.decode(), n, v if v is None else v.decode()) for k, n, v in stored]
            assert len(texts) == rows
            assert sorted(texts) == sorted(tube_db.run("SELECT k, n, v FROM words"))
    with pytest.raises(SinkDown):
        _write(sink, _thing(1, "too late"))


# --- folders


def test_only_touched_buckets_are_rewritten(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    address = f"delta:{tmp_path / 'lake'}"
    sink = open_sink(address, {"buckets": "8"})
    sink.setup([THING])
    empty: Any = open_sink(address)
    empty.setup([THING])
    before_all = empty._open("public.things")
    _write(sink, *(_thing(number, f"name {number}") for number in range(100)))
    before = set(DeltaTable(str(tmp_path / "lake" / "public.things")).file_uris())
    assert len(before) == 8
    _write(sink, _thing(5, "new"))
    table = DeltaTable(str(tmp_path / "lake" / "public.things"))
    assert len(before - set(table.file_uris())) == 1
    assert table.to_pyarrow_table().num_rows == 100
    # A concurrent commit: nothing of the batch is written, and it is tried again.
    second: Any = open_sink(address)
    second.setup([THING])
    stale = second._open("public.things")
    _write(sink, _thing(5, "newer"))
    second._open = lambda name: stale
    with pytest.raises(SinkDown, match="cannot be written"):
        _write(second, _thing(5, "lost?"))
    # Also if there was nothing to remove, which Delta treats as two appends.
    empty._open = lambda name: before_all
    with pytest.raises(SinkDown, match="cannot be written"):
        _write(empty, _thing(5, "twice?"))
    assert _delta_rows(tmp_path).num_rows == 100
    names = {row["id"]: row["name"] for row in _delta_rows(tmp_path).to_pylist()}
    assert (names[5], len(names)) == ("newer", 100)
    with pytest.raises(CheckFailed, match="it has 8 buckets, not 4"):
        open_sink(address, {"buckets": "4"}).setup([THING])
    more = SourceTable(THING.table, (*THING.columns, ("later", "integer")), ("id",), routed=False)
    sink.setup([more])
    _write(sink, _thing(5, "x", later=3), *(_thing(number, None) for number in range(10, 100)))
    rows = {row["id"]: row["later"] for row in _delta_rows(tmp_path).to_pylist()}
    assert rows == {**dict.fromkeys(range(10)), 5: 3}


def _delta_rows(folder: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(folder / "lake" / "public.things")).to_pyarrow_table()


# --- addresses


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nothing://me:geheim123@host/x", "unknown kind of sink 'nothing:'"),
        ("nowhere", "unknown node 'nowhere'"),
        ("redis://me:geheim123@/0?mode=set", "invalid address of the Redis sink"),
        ("redis://:geheim123@a:1,b:2/0", "need cluster=yes or sentinel=NAME"),
        ("redis://:geheim123@a:1,b:2/0?sentinel=s&cluster=yes", "cannot be combined"),
        ("redis://:geheim123@a/0?ca=/x.pem", "need TLS"),
        ("redis://localhost/0?mode=burn", "must be one of delete, set, not 'burn'"),
        ("redis://localhost/0?mod=set", "has no option 'mod'"),
        ("redis://localhost/0?key={id}", "not a valid template"),
        ("http://me:geheim123@host:9200/", "has no index"),
        ("clickhouse://me:geheim123@host:8123/db?tabel=x", "unknown options: tabel"),
        ("postgresql://me:geheim123@host/db?tabel=x", "that libpq does not know"),
        ("delta:", "has no folder"),
        ("delta:x?buckets=many", "a whole number of at least 0"),
    ],
)
def test_the_error_of_a_wrong_address_has_no_secrets(address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        open_sink(address)
    assert caught.value.cure
    assert "geheim123" not in f"{caught.value!r} {caught.value.cure}"
