"""Changes without a message in the log: of partitions, of columns, and comparisons that were weaker before."""

from __future__ import annotations

import psycopg
import pytest

from support.validate import Copy
from trueup.api.validate import Validation
from trueup.capture.log.slot import lsn_number
from trueup.errors import CheckFailed

PARTITIONS = """
    CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
    CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (300) PARTITION BY RANGE (id);
    CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (100) TO (200);
"""
AGAIN = """
    BEGIN; ALTER TABLE p DETACH PARTITION {0};
    DELETE FROM {0} WHERE id = {1}; INSERT INTO {0} VALUES ({1} + 1);
    ALTER TABLE p ATTACH PARTITION {0} FOR VALUES FROM {2}; COMMIT
"""


def _keys(copy: Copy) -> list[int]:
    """Return the keys of the errors, after a fence."""
    assert copy.fence().exit_code == 1
    return sorted(int(error.key[0]) for error in copy.errors())


def test_partitions_that_are_published_or_logged_otherwise_than_their_table(copy: Copy) -> None:
    copy.both(PARTITIONS)
    copy.up.execute("CREATE PUBLICATION q FOR TABLE p1, p2 WITH (publish_via_partition_root = true)")
    copy.up.execute("CREATE PUBLICATION p FOR TABLE p WITH (publish_via_partition_root = true)")
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    copy.create("public.p", publication="q")
    with pytest.raises(CheckFailed, match="publication q publishes partitions, not the table"):
        copy.validation.start(engine="local")
    copy.start("public.p")
    copy.up.execute("INSERT INTO p VALUES (1), (101)")
    assert copy.fence().exit_code == 0
    # Rows of a partition that is detached for a moment, and of one that contains partitions.
    copy.up.execute(AGAIN.format("p1", 1, "(0) TO (100)"))
    assert _keys(copy) == [1, 2]
    copy.up.execute(AGAIN.format("p2", 101, "(100) TO (300)"))
    assert _keys(copy) == [1, 2, 101, 102]
    copy.up.execute(
        "CREATE UNLOGGED TABLE p22 PARTITION OF p2 FOR VALUES FROM (200) TO (300); INSERT INTO p VALUES (201)"
    )
    assert "its partition public.p22 is unlogged" in copy.fence().reasons[0]


def test_a_partition_whose_replica_identity_lacks_the_key(copy: Copy) -> None:
    """The log has the new key of a changed one only."""
    copy.both(f"{PARTITIONS} ALTER TABLE p1 ALTER n SET NOT NULL; CREATE UNIQUE INDEX p1_n ON p1 (n)")
    copy.both("INSERT INTO p SELECT i, i FROM generate_series(1, 10) i")
    copy.start("public.p", syncer="lag:0")
    assert copy.fence().exit_code == 0
    copy.up.execute("ALTER TABLE p1 REPLICA IDENTITY USING INDEX p1_n; UPDATE p SET id = 50 WHERE id = 1")
    assert _keys(copy) == [1, 50]


def test_columns_that_are_replaced_or_come_with_values(copy: Copy) -> None:
    names = ("swapped", "replaced", "filled", "empty")
    copy.both("".join(f"CREATE TABLE {name} (id int PRIMARY KEY, a int, b int);" for name in names))
    copy.up.execute("".join(f"INSERT INTO {name} VALUES (1, 1, 2);" for name in names))
    copy.replicate()
    copy.start()
    assert copy.fence().exit_code == 0
    copy.down.execute("ALTER TABLE filled ADD c int DEFAULT 5; ALTER TABLE empty ADD c int")
    for name, other in (("a", "c"), ("b", "a"), ("c", "b")):
        copy.up.execute(f"ALTER TABLE swapped RENAME {name} TO {other}")
    copy.up.execute("ALTER TABLE replaced DROP b, ADD b int; ALTER TABLE filled ADD c int; ALTER TABLE empty ADD c int")
    assert copy.fence().exit_code == 1
    assert {error.source: error.columns for error in copy.errors()} == {
        "public.swapped": ("b", "a"), "public.replaced": ("b",), "public.filled": ("c",)
    }  # fmt: skip


def test_inheriting_tables_are_not_validated_with_their_parent(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    copy.replicate()
    copy.start("public.t,public.u", both_sides=True)
    copy.both("CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (t)")
    copy.up.execute("INSERT INTO heir VALUES (1)")
    fence = copy.fence()
    assert fence.exit_code == 2
    assert "public.heir inherits from it" in fence.reasons[0]
    copy.up.execute("ALTER TABLE heir NO INHERIT t")
    copy.down.execute("ALTER TABLE heir NO INHERIT t")
    assert "missed or not checked" in copy.fence().reasons[0]
    # On the target only, where nothing of the other table is published.
    copy.down.execute("CREATE TABLE other () INHERITS (u); INSERT INTO other VALUES (1)")
    copy.until(lambda: any("public.other inherits from it on the target" in it for it in copy.fence().reasons))
    assert copy.fence().exit_code == 2


def test_weaker_comparisons_do_not_count_for_stricter_ones(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, f float8)")
    copy.replicate()
    copy.spoil("t", "NEW.f = NEW.f + 0.1;", "INSERT OR UPDATE")
    copy.start("public.t", mode="fast", scrub_share=0.9)
    copy.up.execute("INSERT INTO t VALUES (1, 1)")
    assert copy.fence().exit_code == 0
    copy.validation.update(mode="full", float_tolerance=0.5, scrub_share=0.0)
    assert "weaker mode or tolerance" in copy.fence().reasons[0]
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: copy.fence().exit_code == 0)
    copy.stop()
    copy.create("public.t", float_tolerance=0.0, scrub_share=0.9)
    copy.go_on()
    copy.until(lambda: copy.fence().exit_code == 1)


def test_an_ignored_error_ends_when_the_row_is_proven(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "IF NEW.n < 0 THEN NEW.n = 7; END IF;", "INSERT OR UPDATE")
    copy.start("public.t")
    copy.up.execute("INSERT INTO t VALUES (1, -1)")
    assert copy.fence().exit_code == 1
    copy.validation.ignore(None)
    copy.up.execute("UPDATE t SET n = -2")
    assert copy.fence().exit_code == 0
    copy.up.execute("UPDATE t SET n = 3")
    assert copy.fence().exit_code == 0
    copy.up.execute("UPDATE t SET n = -3")
    assert copy.fence().exit_code == 1


def test_rows_are_read_from_the_server_whose_log_is_read(copy: Copy) -> None:
    """The address of the source names two servers; after the start, the first of them comes back with old rows."""

    class Several(Copy):
        @property
        def validation(self) -> Validation:
            several = f"127.0.0.1:{self.down.server.port},127.0.0.1:{self.up.server.port}"
            uri = self.up.uri.replace(f"127.0.0.1:{self.up.server.port}", several) + "?target_session_attrs=read-write"
            return Validation(self.name, nodes={"n1": uri, "n2": self.down.uri})

    several = Several(copy.up, copy.down)
    former = copy.down.server.create_database(copy.up.name)
    former.execute(f"ALTER DATABASE {former.name} SET default_transaction_read_only = on")
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute("INSERT INTO t VALUES (1, 1)")
    copy.replicate()
    copy.spoil("t", "RETURN OLD;", "UPDATE")
    try:
        several.start("public.t")
        with psycopg.connect(former.uri, autocommit=True) as session:
            session.execute("SET default_transaction_read_only = off")
            session.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
            session.execute("INSERT INTO t VALUES (1, 1)")
            session.execute(f"ALTER DATABASE {former.name} RESET default_transaction_read_only")
        copy.up.execute("UPDATE t SET n = 2")
        position = lsn_number(str(copy.up.execute("SELECT pg_current_wal_lsn()")[0][0]))
        several.until(lambda: lsn_number(several.status().validated or "0/0") >= position)
        assert [error.key for error in several.errors()] == [("1",)]
    finally:
        several.stop()
        former.drop()


def test_values_that_ddl_changes(copy: Copy) -> None:
    altered = ("source_using", "target_using", "target_virtual", "labels", "nested", "gone")
    names = (*altered, "vacuumed", "quiet")
    has_virtual = copy.up.execute("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]
    copy.both("CREATE TYPE label AS ENUM ('x', 'y'); CREATE DOMAIN labels_of AS label[]")
    copy.both("CREATE TYPE nest AS (n int, l labels_of)")
    for name in names:
        kind = {"labels": "label", "nested": "nest", "gone": "label"}.get(name, "int")
        more = ", v int GENERATED ALWAYS AS (id * 2)" if has_virtual and name.endswith("virtual") else ""
        copy.both(f"CREATE TABLE {name} (id int PRIMARY KEY, a {kind}{more})")
    copy.both("ALTER TABLE gone RENAME TO gone1; CREATE TABLE gone (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)")
    copy.both("CREATE TABLE gone2 PARTITION OF gone FOR VALUES FROM (0) TO (9)")
    values = {"labels": "'x'", "nested": "ROW(1, '{x}')"}
    copy.up.execute("".join(f"INSERT INTO {name} VALUES (1, {values.get(name, '1')});" for name in names))
    copy.up.execute("CREATE PUBLICATION p WITH (publish_via_partition_root = true)")
    copy.up.execute(f"ALTER PUBLICATION p ADD TABLE {', '.join(names)}")
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    copy.start(",".join(f"public.{name}" for name in names))
    assert copy.fence().exit_code == 0
    copy.up.execute("ALTER TABLE source_using ALTER a TYPE int USING a + id")
    copy.down.execute("ALTER TABLE target_using ALTER a TYPE int USING a + id")
    copy.down.execute("ALTER TABLE gone DETACH PARTITION gone2")
    if has_virtual:
        # The server refuses this for a published table.
        copy.down.execute("ALTER TABLE target_virtual ALTER v SET EXPRESSION AS (id * 3)")
    for node in (copy.up, copy.down):
        node.execute("VACUUM FULL vacuumed")
        node.execute("CLUSTER vacuumed USING vacuumed_pkey")
        node.execute("ALTER TABLE quiet ALTER a SET DEFAULT 5")
    copy.down.execute("ALTER TYPE label ADD VALUE 'new' BEFORE 'x'")
    assert copy.fence().exit_code == 1
    expected = {"source_using", "target_using", "gone"}
    expected |= {"target_virtual"} if has_virtual else set()
    assert {error.source for error in copy.errors()} == {f"public.{name}" for name in expected}
    copy.up.execute("ALTER TYPE label RENAME VALUE 'x' TO 'z'")
    expected |= {"labels", "nested"}
    copy.fence()
    assert {error.source for error in copy.errors()} == {f"public.{name}" for name in expected}
    # What is the same again is no error.
    copy.down.execute(
        "ALTER TYPE label RENAME VALUE 'x' TO 'z'; ALTER TABLE target_using ALTER a TYPE int USING a - id"
    )
    copy.until(
        lambda: not {"public.labels", "public.nested", "public.target_using"} & {e.source for e in copy.errors()}
    )
    assert not any("public.quiet: rows were changed" in message for message in copy.messages)


def test_a_table_that_a_server_refuses_to_read_stops_no_other(copy: Copy) -> None:
    """A label of the key that is renamed on one node is not a value of the other; a right can be revoked."""
    role = f"user_{copy.down.name}"
    copy.down.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT CREATE ON DATABASE {copy.down.name} TO {role}")
    copy.both("CREATE TYPE label AS ENUM ('x', 'y'); CREATE TABLE labels (id int, l label, PRIMARY KEY (id, l))")
    copy.both("CREATE TABLE revoked (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    copy.up.execute("INSERT INTO labels VALUES (1, 'x'); INSERT INTO revoked VALUES (1)")
    copy.replicate()
    copy.down.execute(f"GRANT SELECT ON labels, revoked, other TO {role}")
    copy.nodes["n2"] = copy.down.server.uri(copy.down.name, role, "p")
    try:
        copy.start("public.*", syncer="lag:0.2")
        assert copy.fence().exit_code == 0
        copy.down.execute(f"REVOKE SELECT ON revoked FROM {role}; ALTER TYPE label RENAME VALUE 'x' TO 'z'")
        copy.up.execute("INSERT INTO revoked VALUES (2); INSERT INTO other VALUES (1)")
        fence = copy.fence()
        assert not copy.ended
        assert fence.exit_code == 2
        assert "public.revoked" in fence.reasons[0]
        copy.until(
            lambda: (
                {(e.source, e.key) for e in copy.errors()} == {("public.labels", k) for k in (("1", "x"), ("1", "z"))}
            )
        )
    finally:
        copy.stop()
        copy.down.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
