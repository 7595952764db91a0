"""`--since-proof` with a validation that captures both nodes: what is not read is proven, and the rest is read."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import psycopg
import pytest

import trueup
from support.validate import Copy
from trueup.cli.main import run
from trueup.errors import ConfigError, TrueupError

ROWS = 2000
PROOF = {"both_sides": True, "scrub_share": 0.9, "scrub_rows": 100, "scrub_period": 7 * 86400.0}


def _begin(copy: Copy, **settings: Any) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.up.execute(f"INSERT INTO t SELECT i, i FROM generate_series(1, {ROWS}) i; ANALYZE t")
    copy.replicate()
    copy.start("public.*", **{**PROOF, **settings})


def _nodes(copy: Copy) -> dict[str, str]:
    return {"n1": copy.up.uri, "n2": copy.down.uri}


def _compare(copy: Copy, *, quick: bool = True, **options: Any) -> trueup.DiffResult:
    verb = trueup.check if quick else trueup.diff
    options = {"since_proof": "v", "engine": "local", "recheck_wait": 0, **options}
    return verb("t", nodes=_nodes(copy), **options)


def _taken(copy: Copy, **options: Any) -> trueup.DiffResult:
    """Wait until blocks are taken from the certificate."""
    found: list[trueup.DiffResult] = []

    def is_taken() -> bool:
        found.append(_compare(copy, **options))
        return not found[-1].since_proof["reason"]

    copy.until(is_taken)
    return found[-1]


def test_only_what_was_touched_is_read(copy: Copy) -> None:
    _begin(copy)
    first = _taken(copy)
    assert (first.verdict, first.rows_checked) == ("MATCH", 0), first
    assert first.since_proof["proven_rows"] == ROWS
    assert set(first.since_proof["positions"]) == {"n1", "n2"}
    copy.validation.update(scrub_share=0.0)
    copy.up.execute("UPDATE t SET n = -1 WHERE id BETWEEN 300 AND 310; DELETE FROM t WHERE id = 5")
    copy.up.execute("INSERT INTO t VALUES (5000, 1)")
    for quick in (True, False):
        again = _taken(copy, quick=quick)
        assert again.verdict == "MATCH"
        assert 0 < again.rows_checked <= 500
        assert again.since_proof["proven_rows"] + again.rows_checked >= ROWS - 100
    # Written by hand on the target: a diff finds exactly that row, and reads all rows because of it.
    copy.down.execute("UPDATE t SET n = 0 WHERE id = 1500")
    found = _compare(copy, quick=False)
    assert (found.verdict, found.pairs["n1/n2"].changed) == ("DIFFER", 1)


def test_scattered_changes_make_it_a_scan(copy: Copy) -> None:
    _begin(copy)
    _taken(copy)
    copy.validation.update(scrub_share=0.0)
    copy.up.execute("UPDATE t SET n = n + 1 WHERE id % 50 = 0")
    copy.until(lambda: "of the rows were touched" in _compare(copy).since_proof["reason"])
    found = _compare(copy)
    assert (found.verdict, found.rows_checked, found.since_proof["proven_blocks"]) == ("MATCH", ROWS, 0)


def test_what_is_not_proven_is_read(copy: Copy) -> None:
    _begin(copy, both_sides=False)
    copy.until(lambda: copy.status().tables[0].certificate)
    # The target is not captured: a change there is found because all rows are read.
    copy.down.execute("UPDATE t SET n = 0 WHERE id = 1500")
    found = _compare(copy)
    assert (found.verdict, found.rows_checked) == ("DIFFER", ROWS)
    assert "--both-sides" in found.since_proof["reason"]
    with pytest.raises(ConfigError, match="--since-proof needs a snapshot"):
        _compare(copy, snapshot=False)
    with pytest.raises(TrueupError):
        _compare(copy, since_proof="nothing")


def test_a_table_that_is_swapped_or_filtered(copy: Copy) -> None:
    _begin(copy)
    _taken(copy)
    assert "filtered" in _compare(copy, filter="id > 0").since_proof["reason"]
    copy.down.execute("""
        BEGIN; ALTER TABLE t RENAME TO old; CREATE TABLE t (LIKE old INCLUDING ALL);
        INSERT INTO t SELECT id, CASE WHEN id = 7 THEN -7 ELSE n END FROM old; COMMIT
    """)
    found = _compare(copy)
    assert (found.verdict, found.rows_checked) == ("DIFFER", ROWS)
    assert found.since_proof["reason"]


def test_under_load(copy: Copy) -> None:
    """Some keys are written all the time: a row that differs is found, and nothing else when they rest."""
    _begin(copy)
    _taken(copy)
    is_over = threading.Event()

    def load() -> None:
        number = 0
        with psycopg.connect(copy.up.uri, autocommit=True) as session:
            while not is_over.is_set():
                number += 1
                session.execute("UPDATE t SET n = %s WHERE id BETWEEN 100 AND 120", [number])
                time.sleep(0.02)

    writer = threading.Thread(target=load)
    writer.start()
    try:
        # A hot row may stay different at every look.
        assert _compare(copy, recheck=1, recheck_wait=0.3).verdict in ("MATCH", "DIFFER")
        copy.down.execute("UPDATE t SET n = -3 WHERE id = 1700")
        found = _compare(copy, quick=False, recheck=1, recheck_wait=0.3)
        assert found.verdict in ("DIFFER", "INCOMPLETE")
        assert "1700" in set(found.to_pandas()["key"].map(str).str.extract(r"(\d+)")[0])
    finally:
        is_over.set()
        writer.join()
    copy.down.execute("UPDATE t SET n = 1700 WHERE id = 1700")
    copy.until(lambda: _compare(copy).verdict == "MATCH")


def test_the_command(copy: Copy, capfd: pytest.CaptureFixture[str]) -> None:
    _begin(copy)
    _taken(copy)
    nodes = ("--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}", "--engine", "local")
    capfd.readouterr()
    assert run(["check", "t", "--since-proof", "v", *nodes]) == 0
    assert "proven at" in capfd.readouterr().out
    assert run(["check", "--schema", "public", "--since-proof", "v", *nodes, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"] == "MATCH"
