"""`validate add`, `remove` and `restart` of a table, while the validation runs and while it is stopped."""

from __future__ import annotations

import json

import pytest

from support.validate import Copy
from trueup.cli.main import run
from trueup.errors import ConfigError

TABLES = """
    CREATE TABLE a (id int PRIMARY KEY, n int);
    CREATE TABLE b (id int PRIMARY KEY, n int, region text);
    CREATE TABLE c (id int PRIMARY KEY, n int)
"""


def _validate(copy: Copy, *arguments: str) -> int:
    return run(["validate", *arguments, "--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}"])


def _published(copy: Copy) -> set[str]:
    rows = copy.up.execute(f"SELECT tablename::text FROM pg_publication_tables WHERE pubname = '{copy.slot}'")
    return {name for (name,) in rows}


def _stages(copy: Copy) -> dict[str, str]:
    return {table.source: table.stage for table in copy.status().tables}


def _validated(copy: Copy) -> bool:
    return copy.fence().exit_code in (0, 1)


def test_tables_change_while_the_validation_runs(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    copy.both(TABLES)
    copy.up.execute("INSERT INTO b SELECT i, i, CASE WHEN i < 5 THEN 'EU' ELSE 'US' END FROM generate_series(1, 8) i")
    copy.replicate()
    copy.down.execute("DELETE FROM b WHERE id IN (3, 5, 6, 7, 8)")
    copy.start("public.a")
    copy.up.execute("INSERT INTO a VALUES (1)")
    assert copy.fence().exit_code == 0
    # Refused, and nothing is changed.
    for arguments in (
        ("public.typo",),
        ("public.a",),
        ("public.b", "--filter", "public.b: missing > 0"),
        ("public.b", "--filter", "public.a: id > 0"),
        ("public.b", "--exclude-columns", "public.b.missing"),
    ):
        assert _validate(copy, "add", "v", *arguments) == 2
    capfd.readouterr()
    assert _stages(copy) == {"public.a": "running"}

    # The rows that were there before are scrubbed, although the validation has no scrub.
    assert _validate(copy, "add", "v", "public.b", "--filter", "public.b: region = 'EU'", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"tables": ["public.b"], "running": True}
    assert _published(copy) == {"a", "b"}
    copy.until(lambda: [error.key for error in copy.errors()] == [("3",)])
    copy.until(lambda: _validated(copy))
    copy.up.execute("INSERT INTO b VALUES (20, 1, 'EU'), (21, 1, 'US'); INSERT INTO a VALUES (2)")
    copy.until(lambda: [error.key for error in copy.errors()] == [("3",), ("21",)])
    assert [table.inserts for table in copy.status().tables] == [2, 2]

    # A restart forgets what was found, and finds what is still wrong.
    copy.down.execute("DELETE FROM b WHERE id = 21")
    assert _validate(copy, "restart", "v", "public.b") == 0
    copy.until(lambda: [error.key for error in copy.errors()] == [("3",)])
    copy.until(lambda: _validated(copy))
    assert [error.key for error in copy.errors("all")] == [("3",)]
    assert [(table.inserts, table.scrub_passes) for table in copy.status().tables] == [(2, 0), (0, 1)]

    # A stopped table is planned again.
    copy.up.execute("ALTER TABLE a REPLICA IDENTITY NOTHING; INSERT INTO a VALUES (3)")
    copy.until(lambda: _stages(copy)["public.a"] == "stopped")
    # The change without a key is read.
    assert copy.fence().exit_code == 2
    copy.up.execute("ALTER TABLE a REPLICA IDENTITY DEFAULT; INSERT INTO a VALUES (4)")
    copy.validation.restart(["public.a"])
    assert _stages(copy)["public.a"] == "running", (copy.status().tables, copy.messages)
    copy.until(lambda: _validated(copy))

    # A removed table leaves nothing behind.
    assert _validate(copy, "remove", "v", "public.b") == 0
    assert (_stages(copy), _published(copy)) == ({"public.a": "running"}, {"a"})
    assert copy.errors("all") == []
    copy.up.execute("INSERT INTO b VALUES (30, 1, 'US'); INSERT INTO a VALUES (5)")
    assert copy.fence().exit_code == 0
    with pytest.raises(ConfigError, match="the last table"):
        copy.validation.remove(["public.a"])
    with pytest.raises(ConfigError, match=r"public\.c is not part"):
        copy.validation.restart(["public.c"])
    # It starts again with its settings.
    copy.stop()
    copy.go_on()
    assert copy.fence().exit_code == 0
    assert copy.ended == []


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_tables_change_while_the_validation_is_stopped(copy: Copy, changes: str) -> None:
    copy.both(TABLES)
    copy.replicate("a, b, c")
    copy.spoil("b", "RETURN NULL;", "INSERT")
    copy.start("public.*", changes=changes)
    copy.up.execute("INSERT INTO b VALUES (1)")
    copy.until(lambda: len(copy.errors()) == 1)
    copy.stop()
    assert copy.validation.remove(["public.b"]) == ("public.b",)
    assert set(_stages(copy)) == {"public.a", "public.c"}
    assert copy.errors("all") == []
    triggers = "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    captured = _published(copy) if changes == "log" else {name for (name,) in copy.up.execute(triggers)}
    assert captured == {"a", "c"}
    copy.go_on()
    copy.up.execute("INSERT INTO b VALUES (2); INSERT INTO a VALUES (2)")
    assert copy.fence().exit_code == 0
    assert set(_stages(copy)) == {"public.a", "public.c"}
    copy.stop()
    copy.validation.add(["public.b"])
    copy.validation.restart(["public.c"])
    assert copy.status().exit_code == 2
    assert any("public.b" in reason for reason in copy.status().blind_spots)
    copy.go_on()
    copy.until(lambda: {error.key for error in copy.errors()} == {("1",), ("2",)})
    copy.until(lambda: _validated(copy))
    assert copy.status().blind_spots == []
