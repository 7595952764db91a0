"""Tubes over tables whose names contain %, {}, quotes, a backslash, a line break and an emoji, into sinks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from support.odd_names import CHANGE, CREATE, FILL, KEY, ODD, PARTS, TABLE, VALUE
from support.tube import TubeDatabase
from trueup.errors import CheckFailed
from trueup.sinks.base import Document
from trueup.sinks.parquet import file_name

delivered: dict[tuple[str, ...], Document] = {}


def keep(documents: list[Document]) -> None:
    """A sink for this test."""
    delivered.update({(document.table, *map(str, document.key)): document for document in documents})


def test_odd_names(tube_db: TubeDatabase, tmp_path: Path) -> None:
    tube_db.run(CREATE + FILL + "CREATE SCHEMA copied")
    tube_db.tube.attach(TABLE, shard=0, predicate=f"{VALUE} IS NOT NULL")
    tube_db.tube.attach(PARTS, shard=0)
    places = [
        f"{tube_db.database.uri}?table=copied.{{table}}",
        f"parquet:{tmp_path}/parquet",
        f"delta:{tmp_path}/delta",
        f"chdb:{tmp_path}/chdb?database=copied",
        f"python:{__name__}:keep",
    ]
    for place in places:
        tube_db.tube.backfill(TABLE, restart=True)
        tube_db.tube.run(place, until_empty=True)
    for place, number in zip(places, itertools.count(100), strict=False):
        tube_db.run(CHANGE.replace("60", str(number)))
        assert tube_db.tube.run(place, until_empty=True).dead_letters == 0
    copied = "copied." + TABLE.partition('".')[2]
    values = tube_db.run(f"SELECT {KEY}, {VALUE} FROM {copied} WHERE {KEY} IN (3, 4, 100) ORDER BY 1")
    assert values == [(3, "changed"), (100, "new")]
    assert len(list((tmp_path / "parquet").iterdir())) == len(list((tmp_path / "delta").iterdir())) == 2
    with pytest.raises(CheckFailed, match="did not create the table"):
        tube_db.tube.run(f"chdb:{tmp_path}/other", until_empty=True)


def test_different_tables_have_different_folders() -> None:
    names = [
        "a/b",
        "a_b",
        "a~2fb",
        "a.b",
        ".a",
        "_a",
        "A",
        "a b",
        "%",
        "{}",
        "\n",
        "\\",
        "é",
        "😀",
        "x" * 200,
        "😀" * 60,
        "😀" * 61,
        ODD,
    ]
    assert len({file_name(name) for name in names}) == len(names)
    assert all(len(file_name(name).encode()) <= 255 for name in names)
    assert file_name("public.orders") == "public.orders"
