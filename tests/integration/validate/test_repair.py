"""A repair of a validation writes only the rows of its open errors, and only on the target."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from support.validate import Copy
from trueup.cli.main import run as command

TABLES = """
    CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
    CREATE TABLE carts (item int REFERENCES items, b boolean, at timestamptz, n numeric, v text,
                        PRIMARY KEY (item, b, at, n));
    CREATE TABLE owner (id int PRIMARY KEY);
    CREATE TABLE owned (id int PRIMARY KEY, owner int REFERENCES owner);
    -- The log names its rows by another column than the primary key.
    CREATE TABLE codes (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text);
    ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_code_key;
"""
ELSEWHERE = """
    CREATE TABLE moved (id int PRIMARY KEY); CREATE TABLE part (id int PRIMARY KEY);
    CREATE TABLE secret (id int PRIMARY KEY, hidden text);
    CREATE TABLE rekeyed (id int PRIMARY KEY, other int NOT NULL UNIQUE)
"""
GOOD = ("items", "carts", "owner", "owned", "codes")
ONLY = ",".join(f"public.{table}" for table in GOOD)
WRONG = 15


def _rows(copy: Copy) -> list[Any]:
    return [[node.execute(f"SELECT * FROM {table} ORDER BY 1, 2") for table in GOOD[:2] + GOOD[3:]]
            for node in (copy.up, copy.down)]  # fmt: skip


def _start_with_errors(copy: Copy) -> None:
    """Create wrong rows of all kinds, and run a validation that finds them."""
    copy.both(TABLES + ELSEWHERE)
    copy.down.execute("ALTER TABLE moved RENAME TO gone_there; ALTER TABLE items ADD COLUMN mine text DEFAULT 'own'")
    copy.replicate("items, carts, owner, owned, codes")
    copy.up.execute("""
        INSERT INTO items SELECT i, 'item ' || i, i / 4.0 FROM generate_series(1, 20) i;
        INSERT INTO carts VALUES (1, true, '2024-03-10 08:30+00', 1.50, 'x');
        INSERT INTO carts VALUES (8, false, '2024-03-10 08:30+00', 2.0, 'y');
        INSERT INTO owner VALUES (6); INSERT INTO owned VALUES (60, 6);
        INSERT INTO codes VALUES (1, 2, 'a'), (2, 1, 'b'), (3, 3, 'c');
    """)
    copy.until(lambda: copy.down.execute("SELECT 1 FROM codes WHERE id = 3"))
    copy.down.execute("""
        SET session_replication_role = replica;
        UPDATE items SET name = 'wrong', mine = 'kept' WHERE id = 7; DELETE FROM items WHERE id = 8;
        INSERT INTO items VALUES (99, 'extra'); UPDATE items SET name = 'ignored' WHERE id = 9;
        UPDATE carts SET v = 'wrong' WHERE item = 1; DELETE FROM carts WHERE item = 8;
        -- Parent and child are missing, others are extra: no order of the tables suits both.
        DELETE FROM owned; DELETE FROM owner;
        INSERT INTO owner VALUES (5); INSERT INTO owned VALUES (50, 5);
        -- The code 1 is wrong; the row with the id 1 is wrong too, but was not reported.
        UPDATE codes SET v = 'wrong' WHERE code = 1;
    """)
    copy.start(
        "public.*", scrub_share=0.9, routes=("public.moved=public.gone_there",), filters=("public.part: id > 0",),
        exclude_columns=("public.secret.hidden",),
    )  # fmt: skip
    copy.up.execute(
        "INSERT INTO moved VALUES (1); INSERT INTO part VALUES (1); INSERT INTO secret VALUES (1, 'h');"
        "INSERT INTO rekeyed VALUES (1, 2)"
    )
    copy.until(lambda: len(copy.errors()) == WRONG)
    ignored = [error.id for error in copy.errors() if error.key == ("9",)]
    copy.validation.ignore(ignored)
    # Only the errors of the validation are repaired; later errors are not found any more.
    copy.stop()


def test_open_errors_are_repaired_and_resolved(copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _start_with_errors(copy)
    copy.down.execute("UPDATE codes SET v = 'unseen' WHERE id = 1")
    before = _rows(copy)
    nodes = [text for name, node in (("n1", copy.up), ("n2", copy.down)) for text in ("--node", f"{name}={node.uri}")]
    common = [
        "--engine",
        "local",
        "--recheck",
        "0",
        "--report-dir",
        str(tmp_path),
        "--task-db",
        str(tmp_path / "tasks.db"),
        *nodes,
    ]

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = command(["repair", "--validation", "v", *words, *common])
        output = capsys.readouterr()
        return code, output.out or output.err

    # Rows that cannot be copied unchanged: all are listed in one error, and nothing is written.
    copy.both("ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey; ALTER TABLE rekeyed ADD PRIMARY KEY (other)")
    code, refused = run("--execute")
    assert code == 2
    for text in (
        "public.moved: it is named public.gone_there on the target",
        "public.part: a filter selects the rows",
        "public.secret: hidden is excluded",
        "public.rekeyed: its key is now (other), but the error of (1) has another key",
    ):
        assert text in refused
    assert "matches no table of validation v" in run("--tables", "public.nothing")[1]
    assert _rows(copy) == before

    code, dry = run("--tables", ONLY)
    assert (code, _rows(copy)) == (1, before), dry
    for text in ("DRY RUN: repair of 5 tables on n1, n2", "of the validation v; 4 to insert, 3 to update, 3 to delete"):
        assert text in dry
    assert "4 open errors of other tables" in dry
    assert _rows(copy) == before

    # One transaction and one undo file for all tables: a row that nothing in the repair can delete stops all of them.
    copy.down.execute("CREATE TABLE more (owner int REFERENCES owner); INSERT INTO more VALUES (5)")
    code, failed = run("--tables", ONLY, "--execute")
    assert (code, "more_owner_fkey" in failed, _rows(copy)) == (2, True, before), failed
    copy.down.execute("DROP TABLE more")
    code, output = run("--tables", ONLY, "--execute", "--undo", "u.gz", "--json")
    done = json.loads(output)
    assert (code, done["verdict"], done["failed"], len(done["tables"])) == (0, "REPAIRED", {}, 5), done
    assert (done["validation"], done["is_running"], done["others"]) == ("v", False, 4)
    assert [error.kind for error in copy.errors() if error.source == "public.codes"] == ["changed"]  # it does not run
    up, down = _rows(copy)
    assert [row[:3] for row in down[0] if row[0] != 9] == [row for row in up[0] if row[0] != 9]
    assert {row[0]: row[3] for row in down[0]} == {**dict.fromkeys(range(1, 21), "own"), 7: "kept"}
    assert (down[0][8][1], down[1:3], copy.down.execute("SELECT * FROM owner")) == ("ignored", up[1:3], [(6,)])
    assert down[3] == [(1, 2, "unseen"), (2, 1, "b"), (3, 3, "c")]
    assert {each["undo"] for each in done["tables"]} == {done["undo"]} == {str(Path("u.gz").absolute())}
    assert b"wrong" in gzip.decompress(Path(done["undo"]).read_bytes())

    code, again = run("--tables", "public.items")  # rows that agree by now need nothing
    assert (code, "nothing to write" in again) == (0, True)
    copy.validation.update(scrub_share=0.0)
    copy.messages.clear()
    copy.go_on()
    copy.until(lambda: not [error for error in copy.errors() if error.source in ONLY.split(",")])
    code, nothing = run("--tables", ONLY)
    assert (code, "NOTHING TO DO: the validation v has no open errors in these tables" in nothing) == (0, True)


@pytest.mark.parametrize(
    "words", [[], ["3f2a", "--validation", "v"], ["3f2a", "--meta", "n1"], ["--validation", "v", "--write-plan", "p"]]
)
def test_a_report_and_a_validation_are_mutually_exclusive(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["repair", *words]) == 2
    output = capsys.readouterr().err
    assert any(text in output for text in ("REPORT, or --validation", "needs --validation", "needs a report"))
