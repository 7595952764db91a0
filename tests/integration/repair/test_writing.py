"""What a repair writes: exact values, all rows of a node or none, with or without triggers, no broken references."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.repair import NodesWith
from trueup.errors import CheckFailed
from trueup.rows.request import TableRequest
from trueup.rows.write.references import check_references
from trueup.store import TaskStore
from trueup.verbs.repair import decide, undo, write_table
from trueup.verbs.repair.request import RepairRequest, table_of_keys
from trueup.verbs.repair.tasks import repair_table

EVERYTHING = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE TABLE items (
    k1 text COLLATE "C", k2 numeric, k3 mood, k4 timestamptz,
    id int GENERATED ALWAYS AS IDENTITY UNIQUE, parent int REFERENCES items (id), place int UNIQUE,
    sum int GENERATED ALWAYS AS (place + 1) STORED,
    j json, jb jsonb, by bytea, f float8, n numeric, a text[][], p pair, s small, i interval, b bool, ip inet,
    c char(5), r int4range, m money, long text,
    PRIMARY KEY (k1, k2, k3, k4));
"""
ROW = """
INSERT INTO items (k1, k2, k3, k4, id, parent, place, j, jb, by, f, n, a, p, s, i, b, ip, c, r, m, long)
OVERRIDING SYSTEM VALUE VALUES
 (E'a\\tb\\n\\\\N', 1.50, 'ok', '2026-01-01 00:00:00.000001+00', 1, 2, {0}, '{{"a" :  1.0, "a":2}}', '{{"z": 1e400}}',
  '\\x00ff5c', '-0', 'NaN', '{{{{a,NULL}},{{"b,c","\\\\\\\\"}}}}', ROW(1, 'x,"y'), 7, '1 year -2 days 03:04:05.000006',
  true, '10.0.0.1', 'ab', '[1,5)', 12.34, repeat('é', 700000)),
 (E'\\\\.', 2, 'happy', 'infinity', 2, 1, {1}, 'null', '[]', '', 'Infinity', 1.10, '{{}}', NULL, NULL, NULL, NULL, NULL,
  '', 'empty', NULL, ''),
 ('', 0.0, 'sad', '0044-03-15 BC', 3, NULL, {2}, '{{}}', NULL, NULL, 0.1::float4, 1e-10, NULL, ROW(NULL, ''), 0,
  '-1 mon', false, '::1/64', NULL, '(,)', -1, NULL)
"""
# Exact texts, even if values compare as equal.
BYTES = (
    "SELECT md5(string_agg(r, E'\\n' ORDER BY r)) FROM (SELECT (i.*)::text || j::text || n::text || f::text AS r"
    " FROM items i) x"
)


def test_all_types_are_copied_exactly(nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch) -> None:
    """Composite keys of any type, identities, generated columns, self-references, swapped unique values, long ones."""
    nodes = nodes_with(EVERYTHING, ROW.format(10, 20, 30), ROW.format(20, 10, 30))
    nodes[2].execute(
        "UPDATE items SET long = 'short', j = '{\"a\": 1.0}', n = 1 WHERE id = 1;"
        "UPDATE items SET n = 1.100 WHERE id = 2;"
        "DELETE FROM items WHERE id = 3; INSERT INTO items (k1, k2, k3, k4, id)"
        " OVERRIDING SYSTEM VALUE VALUES ('x', 1, 'ok', '2026-01-01', 50)"
    )
    before = nodes[2].execute(BYTES)
    # Batches of several rows, and of one row if rows are long.
    monkeypatch.setattr(decide, "MAX_BYTES", 100_000)
    monkeypatch.setattr(undo, "MAX_BYTES", 100_000)
    monkeypatch.setattr(decide, "batch_sizes", {})
    report = nodes.diff(numeric="representation")
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert done.written["n2"] == {"insert": 1, "update": 2, "delete": 1}
    assert done.verdict == "REPAIRED"
    assert nodes[1].execute(BYTES) == nodes[2].execute(BYTES)
    assert nodes.diff(numeric="representation").verdict == "MATCH"
    assert nodes[2].execute("SELECT sum FROM items ORDER BY id") == [(11,), (21,), (31,)]
    back = nodes.undo(done, execute=True)
    assert (back.verdict, nodes[2].execute(BYTES)) == ("UNDONE", before)
    assert nodes.undo(back.undo, execute=True).verdict == "UNDONE"
    assert nodes[1].execute(BYTES) == nodes[2].execute(BYTES)


def test_a_column_that_is_generated_on_one_node_only(nodes_with: NodesWith) -> None:
    """As on a logical replica: the plain column gets the value, the generated one is computed, both can be undone."""
    nodes = nodes_with(
        "CREATE TABLE items (id int PRIMARY KEY, a int, g int, own text DEFAULT 'o',"
        " sum int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE items DROP g; ALTER TABLE items ADD g int GENERATED ALWAYS AS (a * 2) STORED;"
        "ALTER TABLE items DROP own; INSERT INTO items (id, a) VALUES (1, 1), (2, 2), (3, 3), (5, 5)",
        "INSERT INTO items VALUES (2, 2, 5), (3, 9, 18), (4, 4, 8), (5, 5, 10)",
    )
    rows = "SELECT id, a, g FROM items ORDER BY id"
    before = nodes[2].execute(f"{rows}"), nodes[1].execute(rows)
    down = nodes.repair(nodes.diff(exclude_columns=["own"]), source_of_truth="n1", execute=True)
    assert (down.verdict, down.left_counts) == ("REPAIRED", {})
    assert down.written["n2"] == {"insert": 1, "update": 2, "delete": 1}
    assert down.remarks == (
        "column g is generated on n1, which computes it; the other nodes get its value",
        "columns that were not compared: own",
    )
    assert nodes[2].execute(rows) == before[1] == [(1, 1, 2), (2, 2, 4), (3, 3, 6), (5, 5, 10)]
    assert nodes[2].execute("SELECT own FROM items WHERE id = 1") == [("o",)]
    back = nodes.undo(down, execute=True)
    assert (back.verdict, nodes[2].execute(rows)) == ("UNDONE", before[0])
    # The other way, row 2 cannot be made equal, and the reason is said.
    up = nodes.repair(nodes.diff(exclude_columns=["own"]), source_of_truth="n2", execute=True)
    assert (up.verdict, up.remaining, up.written["n1"]) == ("REMAINS", 1, {"insert": 1, "update": 1, "delete": 1})
    assert list(up.left_counts) == ["only generated columns differ: they are computed, and cannot be written"]
    assert nodes[1].execute(rows) == [(2, 2, 4), (3, 9, 18), (4, 4, 8), (5, 5, 10)]
    assert (nodes.undo(up, execute=True).verdict, nodes[1].execute(rows)) == ("UNDONE", before[1])
    # Generated on both, by other expressions.
    nodes[2].execute(
        "TRUNCATE items; ALTER TABLE items DROP g; ALTER TABLE items ADD g int GENERATED ALWAYS AS (1) STORED"
    )
    nodes[2].execute("INSERT INTO items (id, a) VALUES (1, 1), (2, 2), (3, 3), (5, 5)")
    none = nodes.repair(nodes.diff(exclude_columns=["own"]), source_of_truth="n1", execute=True)
    assert (none.verdict, list(none.left_counts.values())) == ("REMAINS", [4])


ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"


def test_a_failed_node_is_rolled_back_and_the_other_is_repaired(nodes_with: NodesWith) -> None:
    fill = "INSERT INTO items SELECT i, 'n' FROM generate_series(1, 300) i"
    nodes = nodes_with(ITEMS, fill, "", "")
    nodes[3].execute("ALTER TABLE items ADD CHECK (id <> 250); INSERT INTO items VALUES (7, 'other')")
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert (done.verdict, done.exit_code) == ("FAILED", 2)
    assert list(done.failed) == ["n3"]
    assert "items_id_check" in done.failed["n3"]
    assert nodes.rows()[1] == nodes.rows()[0]
    assert nodes.rows()[2] == [(7, "other")]
    with trueup.TaskStore() as store:
        task = store.get(done.task_id)
    assert task.task_status == "FAILED"
    assert "items_id_check" in task.task_context["error"]
    # The undo restores the written nodes, and leaves the third node, which was not written.
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    assert nodes.rows()[1:] == [[], [(7, "other")]]


def test_an_undo_file_that_cannot_be_completed_stops_the_repair(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = nodes_with(ITEMS, "INSERT INTO items VALUES (1, 'a')", "")
    report = nodes.diff()
    before = sorted(Path().rglob("*"))

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        with pytest.raises(trueup.StoreError, match=r"cannot write the undo file .* No space left"):
            nodes.repair(report, source_of_truth="n1", execute=True)
    assert nodes.rows()[1] == []
    assert sorted(Path().rglob("*")) == before


TREE = """
CREATE TABLE items (id int PRIMARY KEY, parent int REFERENCES items, name text, place int UNIQUE);
CREATE TABLE child (item int REFERENCES items ON DELETE CASCADE);
CREATE TABLE log (what text);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.log VALUES (TG_OP); RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER noted BEFORE INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION noted();
INSERT INTO items VALUES (9, NULL, 'nine', 9); TRUNCATE log;
"""
LOG = "SELECT what, count(*) FROM log GROUP BY 1 ORDER BY 1"


def test_fire_triggers(nodes_with: NodesWith) -> None:
    """Rows that refer to each other are written in any order; updated rows keep their children."""
    truth = "INSERT INTO items VALUES (1, 2, 'a', 1), (2, NULL, 'b', 2), (3, 1, 'c', 3); TRUNCATE log"
    other = "INSERT INTO items VALUES (3, NULL, 'x', 4), (5, 3, 'gone', 5), (6, 5, 'gone', 8), (7, 9, 'gone', 7);"
    nodes = nodes_with(TREE, truth, other, other)
    for node in (nodes[2], nodes[3]):
        node.execute(
            "INSERT INTO child VALUES (3), (9); TRUNCATE log; UPDATE items SET parent = 6 WHERE id = 3; TRUNCATE log"
        )
    report = nodes.diff()
    silent = nodes.repair(report, source_of_truth="n1", execute=True)
    assert silent.verdict == "REPAIRED"
    assert nodes[2].execute(LOG) == []
    assert nodes[2].execute("SELECT * FROM child ORDER BY 1") == [(3,), (9,)]
    assert nodes.undo(silent, execute=True).verdict == "UNDONE"
    loud = nodes.repair(report, source_of_truth="n1", execute=True, fire_triggers=True)
    assert loud.verdict == "REPAIRED"
    assert nodes[2].execute(LOG) == [("DELETE", 3), ("INSERT", 2), ("UPDATE", 1)]
    assert nodes[3].execute("SELECT * FROM child ORDER BY 1") == [(3,), (9,)]
    assert nodes.rows()[0] == nodes.rows()[1] == nodes.rows()[2]


def test_a_role_without_the_right_to_silence_triggers(nodes_with: NodesWith) -> None:
    """Rows are written in foreign-key order, with a remark; missing rights raise before the first write."""
    nodes = nodes_with(TREE, "INSERT INTO items VALUES (1, NULL, 'a', 1)", "INSERT INTO items VALUES (2, NULL, 'b', 2)")
    name = nodes[2].name
    nodes[2].execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'p'; GRANT SELECT, INSERT ON items TO {name}; GRANT INSERT ON log TO {name}"
    )
    report = nodes.diff()
    nodes.addresses["n2"] = nodes[2].server.uri(name, user=name, password="p")
    rows = nodes.rows()
    try:
        dry = nodes.repair(report, source_of_truth="n1")
        assert any("would fail" in remark and "may not DELETE" in remark for remark in dry.remarks)
        with pytest.raises(CheckFailed, match=r"may not DELETE from public\.items"):
            nodes.repair(report, source_of_truth="n1", execute=True)
        assert nodes.rows() == rows
        # For inserts, the INSERT privilege is enough.
        done = nodes.repair(report, source_of_truth="n1", insert_only=True, execute=True)
        assert any("may not set session_replication_role" in remark for remark in done.remarks)
        assert [row[0] for row in nodes.rows()[1]] == [1, 2, 9]
        nodes[2].execute(f"GRANT DELETE ON items TO {name}")
        assert nodes.repair(report, source_of_truth="n1", execute=True).verdict == "REPAIRED"
    finally:
        nodes[2].execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_constraints_that_silenced_triggers_do_not_check_are_verified(nodes_with: NodesWith) -> None:
    """Missing parents, remaining children and duplicate deferrable unique values fail before the commit."""
    late = TREE + "ALTER TABLE items ADD late int, ADD UNIQUE (late) DEFERRABLE;"
    nodes = nodes_with(late, "INSERT INTO items VALUES (1, NULL, 'a', 1)", "INSERT INTO items VALUES (2, NULL, 'b', 2)")
    nodes[2].execute("INSERT INTO child VALUES (2)")
    report, rows = nodes.diff(), nodes.rows()
    done = nodes.repair(report, source_of_truth="n1", execute=True)
    assert (done.verdict, nodes.rows()) == ("FAILED", rows)
    assert "child_item_fkey" in done.failed["n2"]
    nodes[2].execute("DELETE FROM child; TRUNCATE log")
    # A row that refers to a missing row.
    nodes[1].execute("INSERT INTO items VALUES (4, NULL, 'p', 4), (5, 4, 'q', 5)")
    keys = [("5",)]
    config = trueup.load(nodes=nodes.addresses)

    def repair(keys: list[tuple[str]]) -> trueup.RepairResult:
        settings, spark = replace(config.diff, recheck=0), replace(config.spark, engine="local")
        table = TableRequest("items", tuple(config.nodes.values()), settings=settings, spark=spark)
        request = RepairRequest(source_of_truth="n1", execute=True)
        with TaskStore() as store:
            return repair_table(request, table_of_keys(table, "a test", keys), store=store)

    done = repair(keys)
    assert "items_parent_fkey" in done.failed["n2"]
    done = repair([*keys, ("4",)])
    assert (done.verdict, done.written["n2"]) == ("REPAIRED", {"insert": 2, "update": 0, "delete": 0})
    # A unique value that another row of the target has.
    nodes[1].execute("UPDATE items SET late = 7 WHERE id = 4")
    nodes[2].execute("UPDATE items SET late = 7 WHERE id = 9")
    done = repair([("4",)])
    assert "items_late_key" in done.failed["n2"]
    assert nodes[2].execute("SELECT count(*) FROM items WHERE late = 7") == [(1,)]


def test_an_undo_leaves_rows_that_changed_since(nodes_with: NodesWith) -> None:
    nodes = nodes_with(
        ITEMS, "INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')", "INSERT INTO items VALUES (2, 'x'), (4, 'd')"
    )
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    nodes[2].execute("UPDATE items SET name = 'later' WHERE id = 2; INSERT INTO items VALUES (4, 'again')")
    dry = nodes.undo(done)
    assert (dry.verdict, dry.exit_code, dry.planned["n2"]) == ("DRY RUN", 1, {"insert": 0, "update": 0, "delete": 2})
    rows = nodes.rows()
    back = nodes.undo(done, execute=True)
    assert nodes.rows()[1] == [(2, "later"), (4, "again")] != rows[1]
    assert sorted(each.key["id"] for each in back.left) == ["2", "4"]
    assert (back.verdict, back.exit_code) == ("REMAINS", 1)
    # A truncated file, or one of another table, is refused.
    cut = Path("cut.gz")
    cut.write_bytes(Path(done.undo).read_bytes()[:-30])
    with pytest.raises(trueup.StoreError, match=r"truncated|damaged"):
        nodes.undo(str(cut))
    nodes[2].execute("ALTER TABLE items ALTER name TYPE varchar(9)")
    with pytest.raises(CheckFailed, match="columns or their types changed"):
        nodes.undo(done)


def test_a_parent_is_not_deleted_between_the_check_and_the_commit(
    nodes_with: NodesWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion waits for the repair; so does the same value of a deferrable unique constraint."""
    schema = """
        CREATE TABLE parents (id int PRIMARY KEY);
        CREATE TABLE items (id int PRIMARY KEY, parent int REFERENCES parents, late int UNIQUE DEFERRABLE);
        INSERT INTO parents VALUES (1), (2)
    """
    nodes = nodes_with(schema, "INSERT INTO items VALUES (1, 1, 1)", "")
    report = nodes.diff()
    refused: list[str] = []

    def check_then_disturb(*args: Any) -> None:
        check_references(*args)
        for statement in ("DELETE FROM parents WHERE id = 1", "INSERT INTO items VALUES (7, 2, 1)"):
            try:
                nodes[2].execute(f"SET lock_timeout = '300ms'; {statement}")
            except psycopg.errors.LockNotAvailable:
                refused.append(statement.split()[0])

    monkeypatch.setattr(write_table, "check_references", check_then_disturb)
    assert nodes.repair(report, source_of_truth="n1", execute=True).verdict == "REPAIRED"
    assert refused == ["DELETE", "INSERT"]
    assert nodes[2].execute("SELECT * FROM items") == [(1, 1, 1)]
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        nodes[2].execute("DELETE FROM parents WHERE id = 1")


def test_foreign_keys_of_a_partitioned_table_are_checked_for_its_partitions(nodes_with: NodesWith) -> None:
    schema = """
        CREATE TABLE parents (id int PRIMARY KEY);
        CREATE TABLE whole (id int, parent int REFERENCES parents, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE items PARTITION OF whole FOR VALUES FROM (0) TO (100);
        CREATE TABLE notes (item int REFERENCES whole);
    """
    nodes = nodes_with(schema, "INSERT INTO parents VALUES (1); INSERT INTO items VALUES (1, 1)", "")
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert "whole_parent_fkey" in done.failed["n2"]
    nodes[2].execute("INSERT INTO parents VALUES (1); INSERT INTO items VALUES (2, 1); INSERT INTO notes VALUES (2)")
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert "notes_item_fkey" in done.failed["n2"]


def test_a_role_that_may_not_lock_parents_lets_foreign_keys_fire(nodes_with: NodesWith) -> None:
    schema = """
        CREATE TABLE parents (id int PRIMARY KEY);
        CREATE TABLE items (id int PRIMARY KEY, parent int REFERENCES parents);
        INSERT INTO parents VALUES (1)
    """
    nodes = nodes_with(schema, "INSERT INTO items VALUES (1, 1)", "")
    report, name = nodes.diff(), nodes[2].name
    nodes[2].execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'p'; GRANT SELECT, INSERT, UPDATE, DELETE ON items TO {name};"
        f" GRANT SET ON PARAMETER session_replication_role TO {name}"
    )
    nodes.addresses["n2"] = nodes[2].server.uri(name, user=name, password="p")
    try:
        done = nodes.repair(report, source_of_truth="n1", execute=True)
        assert done.verdict == "REPAIRED"
        assert any("may not lock rows of public.parents" in remark for remark in done.remarks)
    finally:
        nodes[2].execute(
            f"REVOKE SET ON PARAMETER session_replication_role FROM {name}; DROP OWNED BY {name}; DROP ROLE {name}"
        )


# A trigger that fires in both modes logs how a row is written.
LOGGED = """
CREATE TABLE log (what text, id int);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.log VALUES (TG_OP, coalesce(NEW.id, OLD.id)); RETURN coalesce(NEW, OLD); END $$;
"""
ALWAYS = (
    "CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION noted();"
    "ALTER TABLE items ENABLE ALWAYS TRIGGER noted"
)
WRITTEN = "SELECT id, string_agg(what, ' ' ORDER BY what) FROM log GROUP BY 1 ORDER BY 1"


def test_only_rows_that_must_be_are_deleted_and_inserted_again(nodes_with: NodesWith) -> None:
    """Rows in the way of another row's unique value, and identities; all others are updated in place."""
    table = (
        LOGGED
        + """
        CREATE TABLE items (id int PRIMARY KEY, place int NOT NULL UNIQUE, name text, span int4range,
            number int GENERATED ALWAYS AS IDENTITY, EXCLUDE USING gist (span WITH &&));
        CREATE UNIQUE INDEX ON items (lower(name));
    """
    )
    rows = "INSERT INTO items OVERRIDING SYSTEM VALUE VALUES "
    # 1 and 2 swap their places; 3 takes a free place; 4 takes the place of a row that is deleted; 5 has another number.
    truth = (
        "(1, 1, 'a', NULL, 1), (2, 2, 'b', NULL, 2), (3, 30, 'c', NULL, 3), (4, 9, 'd', NULL, 4), (5, 5, 'e', NULL, 5)"
    )
    other = (
        "(1, 2, 'a', NULL, 1), (2, 1, 'b', NULL, 2), (3, 3, 'c', NULL, 3), (4, 4, 'd', NULL, 4), (5, 5, 'e', NULL, 50),"
        "(9, 9, 'x', NULL, 9)"
    )
    nodes = nodes_with(table, rows + truth, rows + other)
    nodes[2].execute(ALWAYS)
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert (done.failed, done.verdict) == ({}, "REPAIRED")
    again = "DELETE INSERT"
    assert nodes[2].execute(WRITTEN) == [
        (1, again), (2, again), (3, "UPDATE"), (4, "UPDATE"), (5, again), (9, "DELETE"),
    ]  # fmt: skip
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    # Collisions of an index over an expression and of an exclusion constraint: 3 changes neither.
    nodes[2].execute(
        "DELETE FROM items; INSERT INTO items OVERRIDING SYSTEM VALUE VALUES (1, 1, 'B', '[1,5)', 1),"
        "(2, 2, 'A', '[5,9)', 2), (3, 3, 'c', NULL, 3), (4, 9, 'd', NULL, 4), (5, 5, 'e', NULL, 5); TRUNCATE log"
    )
    nodes[1].execute("UPDATE items SET span = '[4,9)' WHERE id = 1; UPDATE items SET span = '[1,4)' WHERE id = 2")
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert (done.failed, done.verdict) == ({}, "REPAIRED")
    assert nodes[2].execute(WRITTEN) == [(1, again), (2, again), (3, "UPDATE")]


def test_a_row_keeps_its_place_if_its_key_is_equal_but_has_another_text(nodes_with: NodesWith) -> None:
    """A diff sees two keys; the target has one row, to which other rows refer."""
    table = (
        LOGGED
        + """
        CREATE TABLE items (key interval, n numeric, id int, note text, PRIMARY KEY (n, key));
        CREATE TABLE child (key interval, n numeric, FOREIGN KEY (n, key) REFERENCES items (n, key) ON DELETE CASCADE);
    """
    )
    nodes = nodes_with(
        table,
        "INSERT INTO items VALUES ('1 day', 1.0, 1, 'a'), ('2 days', 2.00, 2, 'b'), ('3 days', 3, 3, 'c')",
        "INSERT INTO items VALUES ('24:00:00', 1, 1, 'x'), ('2 days', 2, 2, 'b'), ('4 days', 4, 4, 'd')",
    )
    nodes[2].execute("INSERT INTO child VALUES ('1 day', 1), ('2 days', 2);" + ALWAYS)
    written = [(1, "UPDATE"), (2, "UPDATE"), (3, "INSERT"), (4, "DELETE")]
    rows = nodes[2].execute("SELECT * FROM items ORDER BY id")
    texts = "SELECT key::text, n::text, note FROM items ORDER BY id"
    for fire in (False, True):
        report = nodes.diff(numeric="representation")
        done = nodes.repair(report, source_of_truth="n1", execute=True, fire_triggers=fire)
        assert (done.failed, done.verdict) == ({}, "REPAIRED")
        assert nodes[2].execute(WRITTEN) == written
        assert nodes[2].execute(texts) == nodes[1].execute(texts)
        assert nodes.undo(done, execute=True, fire_triggers=fire).verdict == "UNDONE"
        assert nodes[2].execute("SELECT * FROM items ORDER BY id") == rows
        assert nodes[2].execute("SELECT count(*) FROM child") == [(2,)]
        nodes[2].execute("TRUNCATE log")


def test_more_sets_of_columns_than_statements(nodes_with: NodesWith) -> None:
    columns = [f"c{number}" for number in range(5)]
    nodes = nodes_with(
        f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(f'{name} int' for name in columns)})",
        "INSERT INTO items SELECT i, 0, 0, 0, 0, 0 FROM generate_series(0, 31) i",
        "INSERT INTO items SELECT i, i & 1, i & 2, i & 4, i & 8, i & 16 FROM generate_series(0, 31) i",
    )
    before = nodes.rows()[1]
    done = nodes.repair(nodes.diff(), source_of_truth="n1", execute=True)
    assert (done.verdict, done.written["n2"]["update"]) == ("REPAIRED", 31)
    assert nodes.undo(done, execute=True).verdict == "UNDONE"
    assert nodes.rows()[1] == before
