"""A block is taken from a certificate only if nothing touched it and it was hashed before the run began."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.db.server_identity import ServerPosition
from trueup.proof.model import Certificate, CertificateBlock, CertifiedTable, Compared, Void
from trueup.proof.since import proven_table
from trueup.rows.digest import Digest
from trueup.rows.keys import Block, chain
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = (ColumnSpec("id", "pg_catalog.int4", "native"), ColumnSpec("a", "pg_catalog.text", "native"))
SPEC = TableSpec("public", "t", (KeySpec(COLUMNS[0]),), COLUMNS)
TABLES = {"n1": ("1/2", 10), "n2": ("3/4", 20)}
# Per block: touched before, hashed before, touched after, hashed again.
FLAGS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8)


def _side(node: str) -> CertifiedTable:
    system, oid = TABLES[node]
    columns = tuple((column.name, column.type) for column in COLUMNS)
    return CertifiedTable(node, "public.t", oid, columns, ServerPosition(system, 1, 100))


def _certificate(**changes: Any) -> Certificate:
    certificate = Certificate("v", "public.t", "scrub", _side("n1"), _side("n2"), ("id",), Compared(), NOW, NOW)
    return replace(certificate, **changes)


def _blocks(flags: list[tuple[bool, bool, bool, bool]]) -> tuple[list[CertificateBlock], list[CertificateBlock]]:
    ranges = chain([(str(number),) for number in range(1, len(flags))], within=Block(None, None))
    before, after = [], []
    for number, (block, (was_touched, is_hashed, is_touched, again)) in enumerate(zip(ranges, flags, strict=True)):
        hashed_at = NOW if is_hashed else None
        one = CertificateBlock(block, Digest(10, 7), hashed_at, 1, 1, was_touched or not is_hashed, number)
        before.append(one)
        touched = is_touched or (one.is_touched and not again)
        at = NOW + timedelta(seconds=1) if again else hashed_at
        after.append(replace(one, is_touched=touched, hashed_at=at))
    return before, after


@given(FLAGS)
def test_what_is_proven_was_hashed_before_and_never_touched(flags: list[tuple[bool, bool, bool, bool]]) -> None:
    before, after = _blocks(flags)
    found = proven_table(_certificate(), before, after, SPEC, TABLES)
    proven = [block for block, each in zip(after, flags, strict=True) if each == (False, True, False, False)]
    assert found.reason == ""
    assert found.proven_blocks == len(proven)
    assert set(found.touched) == {block.block for block in after} - {block.block for block in proven}
    assert found.touched_rows + found.proven_rows == 10 * len(flags)


def test_blocks_that_were_cut_again_are_read() -> None:
    before, _ = _blocks([(False, True, False, False)] * 3)
    merged = [replace(before[0], block=Block(None, ("2",))), before[2]]
    found = proven_table(_certificate(), before, merged, SPEC, TABLES)
    assert (found.proven_blocks, found.touched) == (1, (Block(None, ("2",)),))


@pytest.mark.parametrize(
    ("certificate", "spec", "tables", "reason"),
    [
        (None, SPEC, TABLES, "has no certificate"),
        (_certificate(void=Void("slot lost", NOW)), SPEC, TABLES, "void: slot lost"),
        (_certificate(), SPEC, {"n1": TABLES["n1"], "n3": TABLES["n2"]}, "of the nodes n1, n2"),
        (_certificate(), SPEC, {**TABLES, "n3": ("5/6", 1)}, "of the nodes n1, n2"),
        (_certificate(), SPEC, {**TABLES, "n2": ("9/4", 20)}, "n2 is another server"),
        (_certificate(), SPEC, {**TABLES, "n1": ("1/2", 11)}, "the table on n1 was created again"),
        (_certificate(key=("a",)), SPEC, TABLES, "has the key a"),
        (_certificate(), replace(SPEC, key=()), TABLES, "has the key id"),
        (_certificate(compared=Compared(mode="fast")), SPEC, TABLES, "the mode fast"),
        (_certificate(compared=Compared(float_tolerance=0.1)), SPEC, TABLES, "tolerance"),
        (_certificate(compared=Compared(filter="a")), SPEC, TABLES, "filtered"),
        (_certificate(), replace(SPEC, filter="a"), TABLES, "filtered"),
        (_certificate(), replace(SPEC, numeric="representation"), TABLES, "numerics by value"),
        (_certificate(), replace(SPEC, columns=(*COLUMNS, ColumnSpec("b", "x", "text"))), TABLES, "not cover b of n1"),
        (_certificate(target=replace(_side("n2"), columns=(("id", "pg_catalog.int4"),))), SPEC, TABLES, "a of n2"),
    ],
)
def test_why_nothing_is_taken(
    certificate: Certificate | None, spec: TableSpec, tables: dict[str, tuple[str, int]], reason: str
) -> None:
    before, after = _blocks([(False, True, False, False)] * 2)
    found = proven_table(certificate, before, after, spec, tables)
    assert reason in found.reason
    assert (found.proven_blocks, found.touched) == (0, ())
