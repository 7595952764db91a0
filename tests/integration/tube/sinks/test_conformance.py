"""What every sink must do: insert, overwrite, delete, repeat a batch, list old documents, survive an outage, reject."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from support.sinks import Rig
from trueup.errors import CheckFailed
from trueup.sinks.base import Document, Mark, Shards, Sink, SinkDown, SinkRejected

SINKS = ["postgres", "redis", "search", "parquet", "delta", "chdb"]
NOW = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
LONG_AGO = NOW - timedelta(days=1)


def _thing(number: int, name: str | None, *, shard: int = 7, **more: Any) -> Document:
    row = {"id": number, "name": name, "price": "1.50", "seen": "2024-01-01 00:00:00+00", "n": None, **more}
    return Document("public.things", shard, (str(number),), "U", row if name is not None else None)


def _part(shard: int, a: str, b: str, note: str | None) -> Document:
    row = {"a": a, "b": b, "note": note}
    return Document('public."Odd Parts"', shard, (a, b), "U", row if note is not None else None)


def _pages(sink: Sink, table: str, shards: Shards, seq: int, at: datetime, most: int) -> list[list[Any]]:
    pages: list[list[Any]] = []
    after = None
    while page := sink.older(table, shards, seq, at, after, most):
        pages.append(list(page))
        after = page[-1][1]
        assert len(pages) < 100
    return pages


def _deliver(sink: Sink, batch: Sequence[Document], mark: Mark) -> dict[Any, str]:
    """Write like the job: without rejected documents, in halves if they are not named. Return the reasons."""
    try:
        sink.write(batch, mark=mark)
        return {}
    except SinkRejected as error:
        refused = dict(error.reasons)
        if refused:
            assert set(refused) <= {document.identity for document in batch}
            return refused | _deliver(sink, [document for document in batch if document.identity not in refused], mark)
        assert len(batch) > 1
        half = len(batch) // 2
        return _deliver(sink, batch[:half], mark) | _deliver(sink, batch[half:], mark)


def _names(rig: Rig) -> dict[str, Any]:
    return {key[-1]: row["name"] for key, row in rig.stored(rig.things).items()}


@pytest.mark.parametrize("rig", SINKS, indirect=True)
def test_every_sink(rig: Rig) -> None:
    sink = rig.open()
    sink.setup([rig.things, rig.parts])
    if not sink.driver_only:
        sink = pickle.loads(pickle.dumps(sink))

    # Insert, overwrite, delete, delete a missing document; and repeat all of it.
    sink.write([_thing(number, f"name {number}") for number in range(1, 6)], mark=Mark(10, NOW))
    assert _names(rig) == {str(number): f"name {number}" for number in range(1, 6)}
    assert {str(row["price"]) for row in rig.stored(rig.things).values()} == {"1.50"}
    second = [_thing(2, "new"), _thing(3, None), _thing(99, None), _thing(6, "its 'odd' \\ \n\t ж")]
    expected = {"1": "name 1", "2": "new", "4": "name 4", "5": "name 5", "6": "its 'odd' \\ \n\t ж"}
    for _ in range(2):
        sink.write(second, mark=Mark(20, NOW))
        assert _names(rig) == expected

    # Old documents, by number and by time, in pages.
    pages = _pages(sink, "public.things", [7], 15, LONG_AGO, 2)
    assert sorted(identity for page in pages for identity in page) == [(7, ("1",)), (7, ("4",)), (7, ("5",))]
    assert [len(page) for page in pages] == [2, 1]
    assert len(_pages(sink, "public.things", [7], 0, NOW + timedelta(seconds=1), 100)[0]) == 5
    assert _pages(sink, "public.things", [7], 10, LONG_AGO, 2) == []
    # A table that had another shard before: its documents belong to the new one.
    assert len(_pages(sink, "public.things", [8], 15, LONG_AGO, 100)[0]) == 3
    shard = 7 if "{shard}" in str(rig.options) else 8
    sink.write([_thing(1, "moved", shard=shard), _thing(4, None, shard=shard)], mark=Mark(30, NOW))
    assert _names(rig) == {**{k: v for k, v in expected.items() if k != "4"}, "1": "moved"}

    _check_moving_rows(rig, sink)

    # After an outage nothing is lost, and nothing of the failed write is left.
    rig.down()
    with pytest.raises(SinkDown) as caught:
        sink.write([_thing(1, "while it was down")], mark=Mark(40, NOW))
    assert "heim" not in str(caught.value) + caught.value.cure + repr(sink)
    rig.up()
    assert _names(rig)["1"] == "moved"
    sink.write([_thing(1, "after")], mark=Mark(41, NOW))
    assert _names(rig)["1"] == "after"

    # A rejected document is reported, and the others are written.
    bad = _thing(8, "bad", **rig.poison)
    refused = _deliver(sink, [_thing(7, "good"), bad, _thing(9, "good too")], Mark(50, NOW))
    assert set(refused) == {bad.identity}
    assert refused[bad.identity]
    assert {key: name for key, name in _names(rig).items() if key in "789"} == {"7": "good", "9": "good too"}

    # An unknown column is an error.
    if sink.driver_only or rig.address.startswith("postgresql"):
        with pytest.raises(SinkDown, match="new column later"):
            sink.write([_thing(1, "x", later="y")], mark=Mark(60, NOW))
    sink.close()


def _check_moving_rows(rig: Rig, sink: Sink) -> None:
    """A key in two shards is two documents; keys may have several columns and special characters."""
    odd = ["plain", "a:b", "q\"uo'te", "per%cent {x}", "back\\slash", "new\nline", "ж" * 300, "", "1"]
    sink.write([_part(shard, a, "1.0", f"{shard} {a}") for shard in (1, 2) for a in odd], mark=Mark(10, NOW))
    assert len(rig.stored(rig.parts)) == 2 * len(odd)
    # Equal numbers with different texts are different documents.
    sink.write([_part(1, "plain", "1.00", None), _part(1, "a:b", "1.0", None)], mark=Mark(20, NOW))
    # If one replaces the other, the new one is kept, in any order of writes.
    sink.write([_part(1, "1", "1.00", "new form")], mark=Mark(10, NOW))
    sink.write([_part(1, "1", "1.0", None)], mark=Mark(10, NOW))
    left = rig.stored(rig.parts)
    assert len(left) == 2 * len(odd) - 1
    assert left["1", "1", "1.00"]["note"] == "new form"
    assert ("1", "a:b", "1.0") not in left
    assert left["2", "a:b", "1.0"]["note"] == "2 a:b"
    pages = _pages(sink, rig.parts.table, "all", 15, LONG_AGO, 1)
    assert sorted(identity for page in pages for identity in page) == sorted(
        (int(shard), (a, b)) for shard, a, b in left
    )
    assert len(pages) in (len(odd), len(odd) + 1), "the shards of a key are in one page"
    only = _pages(sink, rig.parts.table, [2], 15, LONG_AGO, 100)
    assert {shard for shard, _ in only[0]} == {2}
    assert len(only[0]) == len(odd)
    sink.write([_part(int(shard), a, b, None) for shard, a, b in left], mark=Mark(30, NOW))
    assert rig.stored(rig.parts) == {}
    assert _pages(sink, rig.parts.table, "all", 1000, NOW + timedelta(days=1), 10) == []


@pytest.mark.parametrize("rig", ["postgres", "redis", "search"], indirect=True)
def test_ambiguous_document_names_are_refused(rig: Rig) -> None:
    rig.options = {"redis": {"mode": "set"}, "http": {}}.get(rig.address.partition(":")[0], {"table": "copy.one"})
    with pytest.raises(CheckFailed, match=r"shard|several tables"):
        rig.open().setup([rig.things, rig.parts])
