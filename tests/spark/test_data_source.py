"""The format trueup: every row is read once for any key, options limit what is read, errors have a cure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import trueup
from support.fixtures import Databases, FreshServer, Spark
from trueup.errors import NodeError, QueryError, TrueupError
from trueup.spark.table.datasource import TrueupSource
from trueup.testing.postgres import Database, Server

SECRET = "q7-Zebra-0451"


def _read(spark: Spark, database: Database, table: str, **options: Any) -> DataFrame:
    return spark.read.format("trueup").option("address", database.uri).options(**options).load(table)


def _direct(database: Database, table: str, **options: Any) -> list[list[dict[str, Any]]]:
    """Return the rows of each part, read one after the other as the workers of Spark do."""
    texts = {"address": database.uri, "table": table, **{name: str(value) for name, value in options.items()}}
    source = TrueupSource(texts)
    reader = source.reader(source.schema())
    return [[row for batch in reader.read(part) for row in batch.to_pylist()] for part in reader.partitions()]


Batches = Iterator[Any]
KEYS = {
    "id bigint": "i",
    "id uuid": "md5(i::text)::uuid",
    "id text": "chr(65 + i % 58) || 'é' || i",
    'id text COLLATE "C"': "chr(65 + i % 58) || i",
    "id numeric": "i / 7.0",
    "id float8": "-i / 3.0",
    "id date": "'2000-01-01'::date + i",
    "id bytea": "int8send(i * 7919)",
    "id small": "i",
    "id timestamptz": "'2000-01-01'::timestamptz + i * interval '1 hour'",
    "id inet": "'10.0.0.0'::inet + i",
}


def test_every_row_is_in_one_part_for_any_key(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("CREATE DOMAIN small AS int")
    for at, (column, value) in enumerate(KEYS.items()):
        database.execute(
            f"CREATE TABLE t{at} ({column} PRIMARY KEY, n int);"
            f"INSERT INTO t{at} SELECT {value}, i FROM generate_series(1, 3000) i; ANALYZE t{at}"
        )
        parts = _direct(database, f"t{at}", partitions=4, columns="n")
        assert len(parts) == 4, column
        assert sorted(row["n"] for part in parts for row in part) == list(range(1, 3001)), column
        assert min(len(part) for part in parts) > 300, column


def test_composite_keys_enums_partitions_and_the_option_key(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("""
        CREATE TYPE mood AS ENUM ('z', 'a', 'm');
        CREATE TABLE pairs (a int, b text, n int, PRIMARY KEY (b, a));
        INSERT INTO pairs SELECT i % 50, 'b' || i / 50, i FROM generate_series(1, 3000) i;
        CREATE TABLE moods (m mood, i int, n int, PRIMARY KEY (m, i));
        INSERT INTO moods SELECT (ARRAY['a', 'm', 'z']::mood[])[1 + i % 3], i, i FROM generate_series(1, 3000) i;
        CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000);
        CREATE TABLE parted_2 PARTITION OF parted DEFAULT;
        INSERT INTO parted SELECT i, i FROM generate_series(1, 3000) i;
        CREATE TABLE many (id int NOT NULL, maybe int, n int);
        INSERT INTO many SELECT i % 7, i, i FROM generate_series(1, 3000) i;
        CREATE VIEW seen AS SELECT n FROM many;
        ANALYZE;
    """)
    tables = {"pairs": 4, "moods": 4, "parted": 4, "many": 1, "seen": 1}
    for table, count in tables.items():
        parts = _direct(database, table, partitions=4, columns="n")
        assert sorted(row["n"] for part in parts for row in part) == list(range(1, 3001)), table
        assert len(parts) == count, table
    parts = _direct(database, "many", partitions=4, columns="n", key="id")
    assert sorted(row["n"] for part in parts for row in part) == list(range(1, 3001))
    assert len(parts) > 1
    with pytest.raises(TrueupError, match="column maybe may be NULL"):
        _direct(database, "many", partitions=4, key="maybe")


def test_spark_reads_several_partitions(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    database.execute(
        "CREATE TABLE items (id uuid PRIMARY KEY, n int, name text);"
        "INSERT INTO items SELECT md5(i::text)::uuid, i, 'item ' || i FROM generate_series(1, 20000) i;"
        "CREATE TABLE nothing (id int PRIMARY KEY, a int[]); ANALYZE"
    )
    frame = _read(spark, database, "items", rows_per_partition=6000, batch_bytes=65536)
    found = frame.selectExpr("spark_partition_id() AS part", "n").collect()
    assert sorted(row.n for row in found) == list(range(1, 20001))
    assert len(Counter(row.part for row in found)) == 4
    assert frame.filter("n = 7").select("name").collect()[0].name == "item 7"
    assert frame.count() == 20000
    assert _read(spark, database, "nothing", partitions=3).collect() == []


def test_the_server_returns_only_selected_columns_and_rows(fresh_server: FreshServer) -> None:
    server = fresh_server(settings={"log_statement": "all"})
    database = server.create_database("shop")
    database.execute("""
        CREATE TABLE items (id int PRIMARY KEY, name text, "it's %s" text);
        INSERT INTO items SELECT i, 'O''Neil ' || i, NULL FROM generate_series(1, 1000) i;
        ANALYZE items;
    """)
    parts = _direct(database, "items", columns="""id, "it's %s\"""", filter="name = 'O''Neil 7' -- one", partitions=2)
    assert [row for part in parts for row in part] == [{"id": 7, "it's %s": None}]
    log = server.log.read_text()
    copies = [line for line in log.splitlines() if "COPY (SELECT" in line and "items" in line]
    assert len(copies) == len(parts)
    assert not any('"name"' in line for line in copies)
    assert log.count("name = 'O''Neil 7' -- one") >= len(parts)
    assert "READ ONLY" in log


def test_filters_are_one_expression_that_cannot_write(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("CREATE TABLE items AS SELECT 1 AS id, NULL::text AS name; CREATE SEQUENCE s")
    assert _direct(database, "items", filter="name IS NULL OR name <> '%s;'") == [[{"id": 1, "name": None}]]
    assert _direct(database, "items", filter="name = 'x'") == [[]]
    for wrong, why in {
        "true) OR (true": "a closing bracket",
        "id = 1; DROP TABLE items": "more than one statement",
        "nope = 1": 'column "nope" does not exist',
    }.items():
        with pytest.raises(TrueupError, match=why):
            _direct(database, "items", filter=wrong)
    with pytest.raises(TrueupError, match="read-only transaction"):
        _direct(database, "items", filter="nextval('public.s') > 0", allow_functions="nextval")


def test_all_parts_see_the_same_held_snapshot(spark: Spark, databases: Databases) -> None:
    [database] = databases(1)
    database.execute("""
        CREATE TABLE items (id int PRIMARY KEY, n int); INSERT INTO items SELECT i, 1 FROM generate_series(1, 2000) i;
        CREATE TABLE keyless AS SELECT * FROM items; ANALYZE;
    """)
    with trueup.snapshot(address=database.uri) as held:
        frames = {
            table: _read(spark, database, table, snapshot=held.id, partitions=4) for table in ("items", "keyless")
        }
        # Every row moves to another part, and to other pages.
        database.execute(
            "UPDATE items SET id = -id, n = 2; UPDATE keyless SET n = 2; DELETE FROM keyless WHERE id > 1000"
        )
        for table, frame in frames.items():
            rows = frame.selectExpr("spark_partition_id() AS part", "id", "n").collect()
            assert sorted(row.id for row in rows) == list(range(1, 2001)), table
            assert {row.n for row in rows} == {1}
            assert len({row.part for row in rows}) > 1, table
    assert _read(spark, database, "items").filter("id < 0").count() == 2000


def test_a_snapshot_does_not_hide_a_truncate(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("""
        CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1);
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted DEFAULT; INSERT INTO parted VALUES (1);
    """)
    with trueup.snapshot(address=database.uri) as held:
        source = TrueupSource({"address": database.uri, "table": "items", "snapshot": held.id})
        reader = source.reader(source.schema())
        [part] = reader.partitions()
        assert [batch.num_rows for batch in reader.read(part)] == [1]
        database.execute("TRUNCATE items, parted_1")
        with pytest.raises(TrueupError, match="truncated or rewritten"):
            list(reader.read(part))
        with pytest.raises(TrueupError, match="truncated or rewritten"):
            _direct(database, "parted", snapshot=held.id)


def test_a_snapshot_that_no_longer_exists_is_an_error(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("CREATE TABLE items AS SELECT 1 AS id")
    with trueup.snapshot(address=database.uri) as held:
        source = TrueupSource({"address": database.uri, "table": "items", "snapshot": held.id})
        reader = source.reader(source.schema())
    # Planned before, read after.
    with pytest.raises(TrueupError, match=f"the snapshot {held.id} cannot be joined.*keep the session"):
        list(reader.read(reader.partitions()[0]))
    with pytest.raises(TrueupError, match="cannot be joined"):
        source.schema()


def test_snapshot_true_is_one_statement(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("CREATE TABLE items AS SELECT i AS id FROM generate_series(1, 5000) i; ANALYZE items")
    assert [len(part) for part in _direct(database, "items", snapshot="true", rows_per_partition=100)] == [5000]
    with pytest.raises(TrueupError, match=r"trueup\.snapshot"):
        _direct(database, "items", snapshot="true", partitions=2)


def _kill_the_workers_once(mark: str) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            if not Path(mark).exists():
                Path(mark).touch()
                me = psutil.Process()
                for worker in [*me.parent().children(), me]:
                    worker.kill()
            yield batch

    return run


def test_parts_are_read_again_after_workers_are_killed(spark: Spark, databases: Databases, tmp_path: Path) -> None:
    [database] = databases(1)
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, t text);"
        "INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series(1, 30000) i; ANALYZE items"
    )
    mark = str(tmp_path / "killed")
    with trueup.snapshot(address=database.uri) as held:
        frame = _read(spark, database, "items", partitions=3, snapshot=held.id, batch_bytes=65536)
        rows = frame.select("id").mapInArrow(_kill_the_workers_once(mark), "id int").collect()
    assert os.path.exists(mark)
    assert sorted(row.id for row in rows) == list(range(1, 30001))


def test_passwords_are_in_no_log(spark: Spark, server: Server, databases: Databases) -> None:
    [database] = databases(1)
    database.execute(f"CREATE TABLE items AS SELECT 1 AS id; CREATE ROLE reader LOGIN PASSWORD '{SECRET}'")
    address = f"postgresql://reader:{SECRET}@127.0.0.1:{server.port}/{database.name}"
    try:
        database.execute("GRANT SELECT ON items TO reader")
        trueup.register(spark, nodes={"shop": address, "wrong": address.replace("0451", "0452")})
        frame = spark.read.format("trueup").option("node", "shop").load("items")
        assert frame.count() == 1
        frame.createOrReplaceTempView("seen_items")
        assert spark.sql("SELECT * FROM seen_items").collect()[0].id == 1
        plans = frame._jdf.queryExecution().toString()
        store = spark._jsparkSession.sharedState().statusStore().executionsList()
        # The last ones: those of all tests of this session would take long.
        newest = range(max(0, store.size() - 20), store.size())
        plans += "".join(store.apply(at).physicalPlanDescription() for at in newest)
        assert "seen_items" in plans
        assert SECRET not in plans
        with pytest.raises(Exception, match="password authentication failed") as caught:
            spark.read.format("trueup").option("node", "wrong").load("items")
        assert "Zebra" not in str(caught.value)
        # Spark would write the options into its event log.
        with pytest.raises(Exception, match="it contains a password") as caught:
            spark.read.format("trueup").option("address", address).load("items")
        assert "Zebra" not in str(caught.value)
    finally:
        trueup.register(spark)
        database.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_the_password_of_any_source_is_sent_with_the_read(
    server: Server, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [database] = databases(1)
    database.execute(f"CREATE TABLE items AS SELECT 1 AS id; CREATE ROLE reader2 LOGIN PASSWORD '{SECRET}'")
    place = f"host=127.0.0.1 port={server.port} user=reader2 dbname={database.name}"
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:reader2:{SECRET}\n")
    passfile.chmod(0o600)
    services = tmp_path / "pg_service.conf"
    services.write_text("\n".join(["[shop]", *place.split(), f"password={SECRET}"]))
    try:
        database.execute("GRANT SELECT ON items TO reader2")
        for variable, value, address in (
            ("PGPASSWORD", SECRET, place),
            ("PGPASSFILE", str(passfile), place),
            ("SHOP_PW", SECRET, f"{place} password=${{SHOP_PW}}"),
            ("PGSERVICEFILE", str(services), "service=shop"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(variable, value)
                source = TrueupSource({"address": address, "table": "items"})
                reader = source.reader(source.schema())
            assert [batch.num_rows for part in reader.partitions() for batch in reader.read(part)] == [1], variable
            assert SECRET not in repr(vars(reader))
    finally:
        database.execute("DROP OWNED BY reader2; DROP ROLE reader2")


def test_errors_have_node_object_and_cure(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("""
        CREATE TABLE items (id int PRIMARY KEY, secret text); CREATE SCHEMA closed; CREATE TABLE closed.t (a int);
        CREATE ROLE guest LOGIN PASSWORD 'g'; GRANT SELECT (id) ON items TO guest; CREATE SEQUENCE s;
        CREATE TABLE mine (id int); ALTER TABLE mine ENABLE ROW LEVEL SECURITY; GRANT SELECT ON mine TO guest;
    """)
    guest = {"address": f"host=127.0.0.1 port={database.server.port} user=guest dbname={database.name} password=${{G}}"}
    os.environ["G"] = "g"
    try:
        for options, why in (
            ({"table": "itmes"}, r"there is no table public\.itmes \(did you mean public\.items\?\)"),
            ({"table": "s"}, "not a table but a sequence"),
            ({"table": "items", **guest}, "may not SELECT column secret of public.items"),
            ({"table": "closed.t", **guest}, "GRANT USAGE ON SCHEMA"),
            ({"table": "mine", **guest}, "row security hides rows"),
            ({"table": "items", "colums": "id"}, 'no option "colums".*Did you mean "columns"'),
            ({"table": "items", "columns": "idd"}, 'no column idd.*Did you mean "id"'),
            ({"table": "items", "partitions": "many"}, "option partitions: expected a whole number"),
            ({"table": "items", "snapshot": "x'; DROP TABLE items"}, "this is not the id of a snapshot"),
            (
                {"table": "items", "snapshot": "00000003-0000001B-1"},
                "the snapshot 0.*1 cannot be joined",
            ),
            ({"table": "items", "unfit": "clip"}, "option unfit: it must be error or null"),
            ({"table": "items", "address": "postgresql://127.0.0.1:1/x"}, "check that the server is running"),
            ({"table": "items", "node": "n1"}, "address and node are both set"),
            ({"address": database.uri}, "the table is missing"),
        ):
            with pytest.raises(TrueupError, match=why):
                TrueupSource({"address": database.uri, **options}).schema()
        assert _direct(database, "items", columns="id", **guest) == [[]]
    finally:
        del os.environ["G"]
        database.execute("DROP OWNED BY guest; DROP ROLE guest")


def test_a_node_of_the_configuration(spark: Spark, databases: Databases, tmp_path: Path) -> None:
    [database] = databases(1)
    database.execute('CREATE TABLE "It" AS SELECT 1 AS id')
    (tmp_path / "shop.toml").write_text(f'[nodes]\nn1 = "{database.uri}"\n')
    read = spark.read.format("trueup").option("node", "n1").option("config", str(tmp_path / "shop.toml"))
    assert read.load('public."It"').count() == 1
    with trueup.snapshot(node="n1", config=str(tmp_path / "shop.toml")) as held:
        assert read.option("snapshot", held.id).option("table", "It").load().count() == 1


def test_an_error_after_the_first_batch_is_raised(databases: Databases) -> None:
    [database] = databases(1)
    database.execute("CREATE TABLE items AS SELECT i, repeat('x', 1000) AS t FROM generate_series(1, 20000) i")
    source = TrueupSource({"address": database.uri, "table": "items", "batch_bytes": "65536"})
    reader = source.reader(source.schema())
    batches = reader.read(reader.partitions()[0])
    next(batches)
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trueup source'")
    with pytest.raises(NodeError, match=r"terminat|closed the connection"):
        list(batches)
    with pytest.raises(QueryError, match="division by zero"):
        _direct(database, "items", filter="1 / (20000 - i) >= 0", batch_bytes=65536)


def test_filter_pushdown_of_spark_still_affects_other_queries(spark: Spark) -> None:
    """The reason why it is not used. If this fails, Spark has fixed it, and `pushFilters` can be used."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter

    class Reader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: list[Filter]) -> list[Filter]:
            self.wanted = next((each.value for each in filters if isinstance(each, EqualTo)), None)
            return filters

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield from ((number,) for number in range(5) if self.wanted in (None, number))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "trueup_hook"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> Reader:
            return Reader()

    spark.dataSource.register(Source)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("trueup_hook").load()
        assert frame.filter("n = 1").count() == 1
        assert frame.count() == 1  # of 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
