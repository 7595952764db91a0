"""Certificates of diffs, checks and validations of real nodes."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Compare, Databases, FreshServer, OnAll
from trueup.db.server_identity import ServerPosition
from trueup.errors import CheckFailed, ConfigError
from trueup.proof import store as proofs
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared
from trueup.rows.digest import Digest
from trueup.rows.keys import Block
from trueup.testing.postgres import Database

DEBIAN = Path("/usr/lib/postgresql/15/bin")
TABLE = (
    "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items SELECT i, 'x' FROM generate_series(1, 99) i"
)


@pytest.fixture
def pair(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with equal tables."""
    nodes: list[Database] = databases(2)
    on_all(nodes, TABLE)
    return nodes


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A private key."""
    trueup.certificate_key(str(tmp_path / "trueup.key"))
    return str(tmp_path / "trueup.key")


def test_a_diff_and_a_check(pair: list[Database], compare: Compare, key: str) -> None:
    found, checked = compare(pair, "items"), compare(pair, "items", quick=True)
    first = trueup.certify(tasks=[found.task_id], sign=key, output="one.json")
    second = trueup.certify(tasks=[checked.task_id[:8]], sign=key)
    assert (first.verdict, first.exit_code, Path(second.path).name) == ("PROVEN", 0, "certificate-2.json")
    (table,) = first.document["statement"]["tables"]
    assert (table["table"], table["how"], table["rows"], table["compared"]["is_whole"]) == (
        "public.items",
        "diff",
        99,
        True,
    )
    nodes = {node["node"]: node for node in table["nodes"]}
    with psycopg.connect(pair[0].uri) as connection:
        oid = connection.execute("SELECT 'items'::regclass::oid::int8").fetchone()
    assert oid is not None
    assert nodes["n1"]["table_oid"] == oid[0]
    assert nodes["n1"]["system"] != nodes["n2"]["system"]
    assert table["report_sha256"]
    assert second.document["statement"]["previous"]["sha256"] == first.document["sha256"]
    assert trueup.verify_certificate(first.path, second.path, key=f"{key}.pub").exit_code == 0
    assert trueup.verify_certificate(second.path, first.path, key=f"{key}.pub").exit_code == 1
    text = Path(first.path).read_text()
    assert trueup.verify_certificate(_changed(text, '"rows": 99', '"rows": 98'), key=f"{key}.pub").exit_code == 1
    assert "public.items" in Path(first.page).read_text()


def _changed(text: str, before: str, after: str) -> str:
    assert before in text
    path = Path("changed.json")
    path.write_text(text.replace(before, after, 1))
    return str(path)


def test_only_a_match_is_certified(pair: list[Database], compare: Compare, key: str) -> None:
    pair[1].execute("UPDATE items SET name = 'y' WHERE id = 5")
    differs = compare(pair, "items")
    with pytest.raises(CheckFailed, match=r"public\.items is DIFFER"):
        trueup.certify(tasks=[differs.task_id], sign=key)
    trueup.accept(differs.report, reason="known")
    accepted = compare(pair, "items")
    assert accepted.verdict == "ACCEPTED"
    with pytest.raises(CheckFailed, match=r"public\.items is ACCEPTED"):
        trueup.certify(tasks=[accepted.task_id])
    Path(key).chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read"):
        trueup.certify(tasks=[differs.task_id], sign=key)
    for wrong in ({}, {"tasks": ["x"], "validation": "v"}, {"tasks": ["x"], "tables": ["t"]}):
        with pytest.raises(ConfigError):
            trueup.certify(**wrong)
    # Nothing was issued.
    part = compare(pair, "items", filter="id <> 5")
    stated = trueup.certify(tasks=[part.task_id]).document["statement"]
    assert (stated["number"], stated["tables"][0]["compared"]["filter"]) == (1, "id <> 5")
    assert (stated["verdict"], stated["tables"][0]["limits"]) == ("PROVEN IN PART", ["only rows with: id <> 5"])


def test_many_tables(pair: list[Database], on_all: OnAll) -> None:
    on_all(pair, "CREATE TABLE other (id int PRIMARY KEY)")
    nodes = {"n1": pair[0].uri, "n2": pair[1].uri}
    run = trueup.check_many(schemas=["public"], nodes=nodes, engine="local")
    stated = trueup.certify(tasks=[run.task_id]).document["statement"]
    assert [table["table"] for table in stated["tables"]] == ["public.items", "public.other"]
    pair[1].execute("INSERT INTO other VALUES (1)")
    run = trueup.check_many(schemas=["public"], nodes=nodes, engine="local", recheck=0)
    with pytest.raises(CheckFailed, match=r"public\.other is DIFFER"):
        trueup.certify(tasks=[run.task_id])


@pytest.mark.parametrize("version", ["default", "debian"])
def test_a_validation(pair: list[Database], fresh_server: FreshServer, version: str, key: str) -> None:
    """The certificate of the meta database is stated with its blocks; a void one as void."""
    if version == "debian":
        if not DEBIAN.exists():
            pytest.skip("Debian's PostgreSQL 15 is not installed")
        old = fresh_server(name="old", bin_dir=DEBIAN, settings={"wal_level": "logical"})
        pair = [old.create_database("one"), old.create_database("two")]
        for node in pair:
            node.execute(TABLE)
    nodes = {"n1": pair[0].uri, "n2": pair[1].uri}
    validation = trueup.Validation("shop", nodes=nodes)
    validation.create(source="n1", target="n2", tables=["public.items"], both_sides=True)
    with psycopg.connect(pair[1].uri) as meta:
        meta.execute(
            "INSERT INTO trueup.validation_table (validation, source, target, stage, rules) VALUES"
            """ ('shop', 'public.items', 'public.items', 'validating', '{"extent": {}}') ON CONFLICT DO NOTHING"""
        )
    options: dict[str, Any] = {"validation": "shop", "nodes": nodes, "sign": key}
    none = trueup.certify(**options)
    assert (none.verdict, none.exit_code) == ("VOID", 2)
    assert "has no certificate yet" in none.document["statement"]["tables"][0]["reason"]
    _certify(pair[1])
    proven = trueup.certify(["public.items"], **options)
    (table,) = proven.document["statement"]["tables"]
    assert (proven.verdict, table["rows"], table["blocks"]["count"]) == ("PROVEN", 99, 2), table
    assert trueup.verify_certificate(none.path, proven.path, key=f"{key}.pub").exit_code == 2
    assert trueup.verify_certificate(proven.path, key=f"{key}.pub").exit_code == 0
    with psycopg.connect(pair[1].uri) as meta:
        meta.execute("""UPDATE trueup.validation_table SET rules = '{"extent": {"left_out": ["name"]}}'""")
    part = trueup.certify(["public.items"], **options)
    assert (part.verdict, part.exit_code) == ("PROVEN IN PART", 2)
    with psycopg.connect(pair[1].uri) as meta:
        meta.execute("UPDATE trueup.validation_table SET rules = NULL")
    assert "not planned" in trueup.certify(**options).document["statement"]["tables"][0]["reason"]
    with psycopg.connect(pair[1].uri) as meta:
        proofs.void(meta, "shop", "the slot was lost")
    void = trueup.certify(["items"], **options)
    assert (void.verdict, void.exit_code) == ("VOID", 2)
    assert "the slot was lost" in void.document["statement"]["tables"][0]["reason"]
    assert trueup.verify_certificate(void.path, key=f"{key}.pub").verdict == "UNVERIFIED"
    with pytest.raises(CheckFailed, match="has no table nothing"):
        trueup.certify(["nothing"], **options)
    assert json.loads(Path(void.path).read_text())["statement"]["verdict"] == "VOID"


def _certify(meta_database: Database) -> None:
    """Store the certificate that a scrub would store."""
    now = datetime.now(timezone.utc) - timedelta(seconds=1)
    source, target = (
        CertifiedTable(node, "public.items", 4711, (("id", "int4"), ("name", "text")), ServerPosition("1/2", 1, 100))
        for node in ("n1", "n2")
    )
    certificate = Certificate("shop", "public.items", "scrub", source, target, ("id",), Compared(), now, now)
    blocks = [
        CertificateBlock(Block(None, ("50",)), Digest(49, 2**70), now, 100, 100, is_touched=False),
        CertificateBlock(Block(("50",), None), Digest(50, -5), now, 100, 100, is_touched=True),
    ]
    with psycopg.connect(meta_database.uri) as meta:
        proofs.put(meta, certificate)
        proofs.replace_all(meta, "shop", "public.items", blocks)
        meta.execute(
            "UPDATE trueup.validation SET position = 200, validated = 200, target_position = 200 WHERE name = 'shop'"
        )
