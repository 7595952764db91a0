"""Certificates in the meta database: what was stored comes back, what was voided stays void."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from support.validate import Copy
from trueup.db.server_identity import ServerPosition
from trueup.proof import store
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared
from trueup.rows.digest import Digest
from trueup.rows.keys import Block, chain
from trueup.verbs.validate.meta import Meta, open_meta

_NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _table(node: str) -> CertifiedTable:
    return CertifiedTable(node, 'public."T"', 7, (("id", "int8"), ("ä", "text")), ServerPosition("1/2", 3, 2**40))


CERTIFICATE = Certificate(
    "v",
    "public.t",
    "scrub",
    _table("n1"),
    _table("n2"),
    ("id",),
    Compared(filter="a > 'x'"),
    _NOW,
    _NOW,
)


@pytest.fixture
def meta(copy: Copy) -> Iterator[Meta]:
    copy.create("public.t")
    copy.down.execute(
        "INSERT INTO trueup.validation_table (validation, source, target, stage)"
        " VALUES ('v', 'public.t', 'public.t', '')"
    )
    node = copy.validation.config.select(names=["n2"], at_least=1)[0]
    with open_meta(node) as opened:
        yield opened


def test_a_certificate_comes_back_and_a_void_one_is_lifted_by_a_later_proof_only(meta: Meta) -> None:
    connection = meta.connection
    store.put(connection, CERTIFICATE)
    assert store.certificates(connection, "v") == {"public.t": CERTIFICATE}
    store.void(connection, "v", "slot lost", ["public.other"])
    assert store.certificates(connection, "v")["public.t"].is_valid
    store.void(connection, "v", "slot lost")
    store.void(connection, "v", "restored")
    void = store.certificates(connection, "v")["public.t"].void
    assert void is not None
    assert void.reason == "slot lost"
    store.put(connection, replace(CERTIFICATE, how="diff"))
    assert not store.certificates(connection, "v")["public.t"].is_valid
    later = replace(CERTIFICATE, how="diff", proven_at=void.at + timedelta(seconds=1))
    store.put(connection, later)
    assert store.certificates(connection, "v")["public.t"] == later


def test_blocks(meta: Meta) -> None:
    connection = meta.connection
    blocks = [
        CertificateBlock(block, Digest(n, -(2**80) + n), _NOW + timedelta(hours=n), 5, 6, is_touched=False)
        for n, block in enumerate(chain([("1", "ä"), ("2", "")]))
    ]
    store.replace_all(connection, "v", "public.t", blocks)
    stored = store.blocks(connection, "v", "public.t")
    assert stored == blocks
    assert store.ages(connection, "v") == {"public.t": store.Age(3, 0, 0, _NOW)}
    oldest = store.oldest(connection, "v", "public.t")
    assert oldest == stored[0]
    assert oldest is not None
    again = replace(oldest, digest=Digest(9, 9), hashed_at=_NOW + timedelta(days=1), target_lsn=None)
    assert store.replace_block(connection, "v", "public.t", oldest, [again]) == [again]
    assert store.oldest(connection, "v", "public.t") == stored[1]
    start, end = stored[1].block.start, stored[1].block.end
    parts = [CertificateBlock(Block(start, ("1", "b"))), CertificateBlock(Block(("1", "b"), end))]
    split = store.replace_block(connection, "v", "public.t", stored[1], parts)
    assert store.blocks(connection, "v", "public.t") == [again, *split, stored[2]]
    store.touch(connection, [stored[2].id])
    assert store.blocks(connection, "v", "public.t")[-1].is_touched
    assert store.ages(connection, "v") == {"public.t": store.Age(4, 2, 3, _NOW + timedelta(hours=2))}


def test_certificates_go_with_their_table_and_the_tables_with_the_last_validation(copy: Copy, meta: Meta) -> None:
    connection = meta.connection
    store.put(connection, CERTIFICATE)
    store.replace_all(connection, "v", "public.t", [CertificateBlock(Block(None, None))])
    meta.rows("request_tables", name="v", sources=["public.t"], requested="remove")
    meta.apply_requests("v")
    assert not store.certificates(connection, "v")
    assert not store.ages(connection, "v")
    copy.validation.delete()
    assert copy.down.execute("SELECT to_regclass('trueup.certificate'), to_regnamespace('trueup')") == [(None, None)]
