"""What a validation does not see is named, and no fence is green then: publications, replaced tables, partitions."""

from __future__ import annotations

import threading

import psycopg
import pytest

from support.standby import WAITING, missing_standby
from support.validate import Copy
from trueup.capture.log.pgoutput import identity_places
from trueup.capture.log.reader import SlotReader
from trueup.capture.log.slot import SlotLost, flushed_position, make_slot
from trueup.config.model import Node
from trueup.errors import CheckFailed

TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, n int);"


def _tables(*names: str) -> str:
    return "".join(TABLE.format(name) for name in names)


def _reasons(copy: Copy) -> dict[str, str]:
    """Return why the tables are not validated, after a fence that is not green."""
    fence = copy.fence()
    assert fence.exit_code == 2, fence
    assert copy.status().blind_spots == list(fence.reasons)
    named = {table.source.removeprefix("public."): table for table in copy.status().tables}
    return {
        name: next(reason for reason in fence.reasons if table.source in reason)
        for name, table in named.items()
        if any(f"{table.source} " in reason for reason in fence.reasons)
    }


def _scrubbed(copy: Copy) -> dict[str, list[int]]:
    """Scrub all tables; return the keys of the errors of each table."""
    copy.fence()
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: not any(table.unchecked for table in copy.status().tables if table.stage == "running"))
    copy.validation.update(scrub_share=0.0)
    copy.fence()
    wrong: dict[str, list[int]] = {}
    for error in copy.errors():
        wrong.setdefault(error.source.removeprefix("public."), []).append(int(error.key[0]))
    return {name: sorted(keys) for name, keys in wrong.items()}


def test_what_a_publication_does_not_publish_is_named(copy: Copy) -> None:
    copy.both(
        _tables("whole", "missing", "filtered")
        + "CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parted DEFAULT"
    )
    copy.up.execute("CREATE PUBLICATION q FOR TABLE whole, parted, filtered WHERE (id > 10)")
    copy.replicate()
    copy.spoil("missing", "RETURN NULL;")
    copy.name = "nothing"
    copy.create("public.missing", publication="q")
    with pytest.raises(CheckFailed, match="it is not in publication q"):
        copy.validation.start(engine="local")
    copy.validation.delete()
    copy.name = "v"
    copy.start(publication="q")
    reasons = _reasons(copy)
    assert set(reasons) == {"missing", "filtered", "parted"}
    assert "is not in publication q" in reasons["missing"]
    assert "row filter (id > 10)" in reasons["filtered"]
    assert "publish_via_partition_root" in reasons["parted"]

    copy.up.execute("ALTER PUBLICATION q ADD TABLE missing; ALTER PUBLICATION q SET TABLE whole, missing, filtered")
    copy.up.execute("INSERT INTO missing VALUES (1, 1)")
    assert set(_reasons(copy)) == {"missing", "filtered", "parted"}
    copy.up.execute("ALTER PUBLICATION q ADD TABLE parted; ALTER PUBLICATION q SET (publish_via_partition_root = true)")
    assert _scrubbed(copy) == {"missing": [1]}
    assert copy.fence().exit_code == 1

    # Altered and altered back: between two looks, and so that a look sees it.
    copy.spoil("whole", "RETURN NULL;", "DELETE")
    copy.up.execute("INSERT INTO whole SELECT i FROM generate_series(1, 4) i")
    assert copy.fence().errors == 1
    copy.up.execute("""
        BEGIN; ALTER PUBLICATION q SET (publish = 'insert'); DELETE FROM whole WHERE id = 1;
        ALTER PUBLICATION q SET (publish = 'insert, update, delete, truncate'); COMMIT
    """)
    assert "its publication was altered" in _reasons(copy)["whole"]
    copy.up.execute("ALTER PUBLICATION q SET (publish = 'insert'); DELETE FROM whole WHERE id = 2")
    assert "does not publish update, delete, truncate" in _reasons(copy)["whole"]
    copy.up.execute("ALTER PUBLICATION q SET (publish = 'insert, update, delete, truncate')")
    assert _scrubbed(copy) == {"missing": [1], "whole": [1, 2]}

    copy.up.execute("DROP PUBLICATION q; DELETE FROM whole WHERE id = 3")
    copy.until(lambda: copy.ended)
    assert isinstance(copy.ended[0], SlotLost)
    assert any("publication q" in reason and "full check" in reason for reason in copy.fence().reasons)


def test_a_table_is_not_its_name(copy: Copy) -> None:
    names = ("quiet", "swapped", "remade", "target_remade", "removed", "back", "limited", "renamed", "there_and_back")
    copy.both(_tables(*names) + "CREATE TABLE other (LIKE swapped INCLUDING ALL)")
    copy.up.execute("".join(f"INSERT INTO {name} VALUES (1, 1);" for name in names))
    copy.replicate()
    copy.down.execute("CREATE TABLE x (id int PRIMARY KEY, n int)")
    copy.start(",".join(f"public.{name}" for name in names))
    assert copy.fence().exit_code == 0
    own = copy.slot
    copy.up.execute(f"""
        ALTER TABLE swapped RENAME TO swapped_old; ALTER TABLE other RENAME TO swapped;
        INSERT INTO swapped VALUES (2, 2);
        DROP TABLE remade; CREATE TABLE remade (id int PRIMARY KEY, n int); INSERT INTO remade VALUES (3, 3);
        ALTER PUBLICATION {own} DROP TABLE removed; INSERT INTO removed VALUES (2, 2);
        BEGIN; ALTER PUBLICATION {own} DROP TABLE back; INSERT INTO back VALUES (2, 2);
        ALTER PUBLICATION {own} ADD TABLE back; COMMIT;
    """)
    copy.up.execute(f"ALTER PUBLICATION {own} DROP TABLE limited")
    copy.up.execute(f"ALTER PUBLICATION {own} ADD TABLE limited (id) WHERE (id > 5)")
    copy.down.execute("DELETE FROM removed; DELETE FROM back")
    copy.both("ALTER TABLE renamed RENAME TO renamed_2")
    copy.down.execute("DROP TABLE target_remade; CREATE TABLE target_remade (id int PRIMARY KEY, n int)")
    # The log reports this change with another name.
    copy.up.execute("""
        BEGIN; ALTER TABLE there_and_back RENAME TO x; INSERT INTO x VALUES (2, 2);
        ALTER TABLE x RENAME TO there_and_back; COMMIT
    """)
    reasons = _reasons(copy)
    assert set(reasons) == {*names} - {"quiet", "there_and_back"}
    assert "another table has its name on the source" in reasons["swapped"]
    assert "another table has its name on the source" in reasons["remade"]
    assert "another table has its name on the target" in reasons["target_remade"]
    assert "its publication was altered" in reasons["removed"]
    assert "its publication was altered" in reasons["back"]
    assert "its publication was altered" in reasons["limited"]
    # The publication of the validation is corrected.
    copy.up.execute(f"ALTER PUBLICATION {own} SET (publish = 'insert', publish_via_partition_root = false)")
    assert "its publication was altered" in _reasons(copy)["quiet"]
    (options,) = copy.up.execute(f"SELECT pubdelete, pubviaroot FROM pg_publication WHERE pubname = '{own}'")
    assert options == (True, True)
    assert copy.up.execute("SELECT 1 FROM pg_publication_rel WHERE prqual IS NOT NULL") == []
    assert "does not exist on n1" in reasons["renamed"]
    assert "public.renamed_2" in reasons["renamed"]
    assert [(error.source, error.key) for error in copy.errors()] == [("public.there_and_back", ("2",))]


def test_what_happens_while_it_is_stopped_and_later_tables(copy: Copy) -> None:
    copy.both(_tables("a", "b") + "CREATE TABLE b_new (LIKE b INCLUDING ALL)")
    copy.up.execute("INSERT INTO a VALUES (1, 0)")
    copy.replicate()
    copy.start()
    assert copy.fence().exit_code == 0
    copy.stop()
    copy.up.execute("DROP TABLE b_new; ALTER TABLE b RENAME TO b_old; CREATE TABLE b (LIKE a INCLUDING ALL)")
    copy.up.execute("INSERT INTO b VALUES (1, 1)")
    copy.go_on()
    reasons = _reasons(copy)
    assert set(reasons) == {"b", "b_new", "b_old"}
    assert "another table has its name" in reasons["b"]
    assert "does not exist on n1" in reasons["b_new"]
    # With another key, errors of the former key cannot be checked again.
    copy.down.execute("DELETE FROM a")
    copy.up.execute("UPDATE a SET n = 1")
    assert copy.fence().errors == 1
    copy.both("DROP TABLE a; CREATE TABLE a (x int, y int, PRIMARY KEY (x, y))")
    assert "its key was changed" in _reasons(copy)["a"]
    assert not copy.errors()
    copy.up.execute("DROP TABLE b_old")
    copy.both("CREATE TABLE late (id int PRIMARY KEY)")
    copy.up.execute("INSERT INTO late VALUES (7)")
    assert "late" in _reasons(copy)
    copy.down.execute("TRUNCATE b")
    assert _scrubbed(copy) == {"b": [1], "late": [7]}


def test_a_table_that_is_created_while_the_tables_are_planned(copy: Copy) -> None:
    copy.both(_tables("t"))
    copy.replicate()
    copy.create()
    starting = threading.Thread(target=copy.go_on)
    with psycopg.connect(copy.up.uri) as other:
        # A publication of the table waits for this lock: the tables are listed then, and not looked at yet.
        other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        starting.start()
        copy.until(lambda: copy.up.execute("SELECT FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"))
        copy.both("CREATE TABLE late (id int PRIMARY KEY)")
    starting.join()
    assert {table.source for table in copy.status().tables} == {"public.t", "public.late"}


def test_an_alteration_that_is_not_visible_yet_holds_back_the_position(copy: Copy) -> None:
    copy.both(_tables("t"))
    copy.replicate()
    copy.spoil("t", "RETURN NULL;")
    copy.start("public.t")
    assert copy.fence().exit_code == 0
    # A transaction that is open, or was rolled back, holds back nothing.
    with psycopg.connect(copy.up.uri) as other:
        other.execute(f"ALTER PUBLICATION {copy.slot} DROP TABLE t".encode())
        assert copy.fence().exit_code == 0
        other.rollback()
        assert copy.fence().exit_code == 0
    with missing_standby(copy.up):
        alter = f"ALTER PUBLICATION {copy.slot} DROP TABLE t"
        waiting = threading.Thread(target=copy.up.execute, args=(alter,), daemon=True)
        waiting.start()
        copy.until(lambda: copy.up.execute(WAITING))
        copy.up.execute("SET synchronous_commit = local; INSERT INTO t VALUES (1, 1)")
        assert copy.fence(timeout=1.0).exit_code == 2
    waiting.join(60)
    assert "its publication was altered" in _reasons(copy)["t"]


def test_partitions(copy: Copy) -> None:
    copy.both("""
        CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
        CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300);
    """)
    copy.up.execute("INSERT INTO p VALUES (1), (101), (201)")
    # Partitions that are published one by one, without TRUNCATE.
    copy.up.execute("CREATE PUBLICATION p FOR TABLE p1, p2, p3 WITH (publish = 'insert, update, delete')")
    copy.down.execute(f"CREATE SUBSCRIPTION {copy.down.name} CONNECTION '{copy.up.uri}' PUBLICATION p")
    copy.until(lambda: not copy.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))
    copy.start("public.p")
    assert copy.fence().exit_code == 0
    copy.up.execute("TRUNCATE p1")
    assert copy.fence().errors == 1
    copy.up.execute("ALTER TABLE p DETACH PARTITION p2")
    assert copy.fence().errors == 2
    copy.up.execute("CREATE TABLE p4 (LIKE p INCLUDING ALL); INSERT INTO p4 VALUES (301)")
    copy.up.execute("ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (300) TO (400)")
    assert copy.fence().errors == 3
    assert [error.key for error in copy.errors()] == [("1",), ("101",), ("301",)]
    # A new partition without rows costs nothing, and changes of it are seen.
    before = copy.status().total("truncates"), len(copy.messages)
    copy.both("CREATE TABLE p5 PARTITION OF p FOR VALUES FROM (400) TO (500)")
    assert copy.fence().errors == 3
    assert (copy.status().total("truncates"), len(copy.messages)) == before
    copy.up.execute("INSERT INTO p VALUES (401)")
    assert copy.fence().errors == 4
    # Written again with other values, and not in the log.
    copy.up.execute("ALTER TABLE p ALTER n TYPE int USING 5")
    assert copy.fence().errors == 5


def test_filters_and_columns_of_the_subscription_are_used(copy: Copy) -> None:
    copy.both("CREATE TABLE f (id int PRIMARY KEY, n int); CREATE TABLE c (id int PRIMARY KEY, n int, secret text)")
    copy.both("CREATE TABLE g (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE g1 PARTITION OF g DEFAULT")
    copy.up.execute("ALTER TABLE f REPLICA IDENTITY FULL; INSERT INTO f VALUES (1, 1), (2, 20)")
    copy.replicate("f WHERE (n > 10), c (id, n)")
    copy.spoil("f", "IF NEW.id = 5 THEN RETURN NULL; END IF;", "INSERT")
    copy.start(scrub_share=0.5)
    copy.up.execute("INSERT INTO f VALUES (3, 3), (4, 40), (5, 50); INSERT INTO c VALUES (1, 1, 'x')")
    copy.up.execute("UPDATE f SET n = 30 WHERE id = 1; UPDATE f SET n = 2 WHERE id = 2; UPDATE c SET secret = 'y'")
    copy.until(lambda: all(table.scrub_passes for table in copy.status().tables))
    assert copy.fence().exit_code == 1
    assert [(error.source, error.key) for error in copy.errors()] == [("public.f", ("5",))]
    remarks = {table.source: table.remarks for table in copy.status().tables}
    assert "(n > 10)" in remarks["public.f"][0]
    assert remarks["public.c"] == ("column secret is not compared: the publication of the subscription lacks it",)
    # Another filter is another set of rows; a row that is filtered out now must not be on the target.
    copy.up.execute("ALTER PUBLICATION p SET TABLE f WHERE (n > 35), c (id, n)")
    copy.up.execute("INSERT INTO f VALUES (6, 33)")
    copy.until(lambda: any("(n > 35)" in remark for table in copy.status().tables for remark in table.remarks))
    copy.until(lambda: sorted(int(error.key[0]) for error in copy.errors()) == [1, 5])
    # Filters of single partitions are not known for the partitioned table.
    copy.up.execute("ALTER PUBLICATION p ADD TABLE g1 WHERE (id > 5)")
    assert "publication p of the subscription has row filters" in _reasons(copy)["g"]


def test_a_slot_that_another_reader_advances_is_a_gap(copy: Copy) -> None:
    copy.both(_tables("t"))
    copy.up.execute("CREATE PUBLICATION p FOR TABLE t")
    with psycopg.connect(copy.up.uri, autocommit=True) as connection:
        start = make_slot(connection, "trueup_read")
        copy.up.execute("INSERT INTO t VALUES (1, 1)")
        reader = SlotReader(connection, Node("n1", copy.up.uri), "trueup_read", "p")
        end = flushed_position(connection)
        assert [change.key for change in reader.changes(start, end, identity_places)] == [("1",)]
        changes = reader.changes(start, end, identity_places)
        copy.up.execute("SELECT pg_replication_slot_advance('trueup_read', pg_current_wal_lsn())")
        with pytest.raises(SlotLost, match="were not seen"):
            list(changes)
