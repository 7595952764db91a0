"""The reader behind `spark.readStream.format("trueup_changes")`, called as Spark calls it."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from support.validate import Copy
from trueup.capture.log import slot
from trueup.capture.log.pgoutput import identity_places
from trueup.capture.log.reader import SlotReader
from trueup.capture.log.slot import SlotLost
from trueup.db.node import connect
from trueup.errors import TrueupError
from trueup.spark.changes import SCHEMA, ChangesReader, ChangesSource

Offset = dict[str, Any]


def _rows(reader: ChangesReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    """Read a batch with a pickled copy of the reader, like an executor."""
    [part] = reader.partitions(start, end)
    there = pickle.loads(pickle.dumps(reader))
    return [row for batch in there.read(part) for row in batch.to_pylist()]


def test_the_stream_returns_every_change_once_and_replays_uncommitted_batches(copy: Copy) -> None:
    up = copy.up
    up.execute("CREATE TABLE t (a int, b text, v text, PRIMARY KEY (a, b)); CREATE PUBLICATION p FOR TABLE t")
    node = copy.validation.config.nodes["n1"]
    with connect(node, application="test", read_only=False) as session:
        slot.make_slot(session, "s")
    options = {"address": up.uri, "slot": "s", "publication": "p", "batch_rows": "1000"}
    reader = ChangesSource(options).streamReader(SCHEMA)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start or reader.partitions(start, start) == []
    up.execute("INSERT INTO t SELECT i, E'\\t' || i FROM generate_series(1, 3000) i; UPDATE t SET v = a")
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = _rows(reader, start, end)
    assert Counter(row["op"] for row in rows) == {"insert": 3000, "update": 3000}
    assert (rows[0]["table"], rows[0]["key"]) == ("public.t", ["1", "\t1"])
    assert len({row["lsn"] for row in rows}) == 1
    # A batch that was never committed is read again, by another process.
    assert _rows(ChangesSource(options).streamReader(SCHEMA), start, end) == rows

    up.execute("UPDATE t SET a = -a WHERE a = 1; SELECT pg_logical_emit_message(true, 'hello', 'x'); TRUNCATE t")
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert reader.latestOffset(end, ReadMaxBytes(1)) != later
    rows = _rows(reader, end, later)
    assert [(row["op"], row["key"]) for row in rows] == [
        ("delete", ["1", "\t1"]), ("insert", ["-1", "\t1"]), ("message", []), ("truncate", []),
    ]  # fmt: skip
    reader.commit(later)
    assert reader.initialOffset() == later
    # After a failover or a restore, positions of the checkpoint mean nothing.
    behind = f"{int(later['position'].split('/')[0], 16) + 1:X}/0"
    for wrong in ({"timeline": 7}, {"system": "1"}, {"position": behind}):
        with pytest.raises(Exception, match=r"changes after .* were not seen"):
            reader.latestOffset({**later, **wrong}, ReadAllAvailable())
    with pytest.raises(TrueupError, match="were not seen"):
        _rows(reader, start, end)
    for options, words in (
        ({"slt": "x"}, "(?i)did you mean"),
        ({}, "give the options slot"),
        ({"slot": "none", "publication": "p"}, "slot none does not exist"),
        ({"slot": "s", "publication": "p", "address": f"{up.uri}?password=x"}, "contains a password"),
    ):
        with pytest.raises(TrueupError, match=words):
            ChangesSource({"address": up.uri, **options}).streamReader(SCHEMA).initialOffset()


def test_the_position_of_a_read_is_never_ahead_of_its_changes(copy: Copy) -> None:
    up = copy.up
    up.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    node = copy.validation.config.nodes["n1"]
    with connect(node, application="test", read_only=False) as session:
        start = slot.make_slot(session, "s")
        for first in (1, 4, 7):
            up.execute(f"INSERT INTO t SELECT generate_series({first}, {first + 2})")
        end = slot.flushed_position(session)
        reader = SlotReader(session, node, "s", "p")
        everything = reader.changes(start, end, identity_places)
        commits = [change.lsn for change in everything]
        assert (len(commits), everything.is_cut) == (9, False)
        assert everything.position >= end
        # An end between two commits: the transaction that starts at the end is left for the next read.
        middle = reader.changes(start, commits[3], identity_places)
        assert len(list(middle)) == 3
        assert (middle.position, middle.is_cut) == (commits[3], False)
        keys: list[tuple[str | None, ...]] = []
        position = start
        while position < end:
            # One message is enough to end a read with the first transaction behind the position of the slot.
            changes = reader.changes(position, end, identity_places, max_messages=1)
            assert changes.position == position
            batch = list(changes)
            assert changes.is_cut == bool(batch)
            assert all(change.lsn < changes.position for change in batch)
            keys += [change.key for change in batch]
            assert [lsn for lsn in commits if lsn < changes.position] == commits[: len(keys)]
            position = changes.position
            reader.advance(position)
        assert keys == [(str(number),) for number in range(1, 10)]
        with pytest.raises(SlotLost, match="were not seen"):
            reader.changes(start, end, identity_places)
