"""A table that is compared because of an early change, while a row of it is pending because of a later one."""

from __future__ import annotations

from support.validate import Copy
from trueup.capture.log.slot import lsn_number
from trueup.config.model import Node
from trueup.engine.local import LocalEngine
from trueup.verbs.validate import pending
from trueup.verbs.validate.pending import TRUNCATE, Entry, Touch
from trueup.verbs.validate.proving.certify import Marks
from trueup.verbs.validate.recover import lock_meta
from trueup.verbs.validate.validator import Validator


def test_a_pending_row_holds_back_the_position_of_an_earlier_truncation(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.down.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    copy.create("public.t")
    nodes = Node("n1", copy.up.uri), Node("n2", copy.down.uri)
    engine = LocalEngine(2)
    validator = Validator("v", nodes, lock_meta("v", nodes[1]), engine, copy.messages.append)
    try:
        validator.open()
        meta, first = validator.sessions.meta, validator.positions.read
        changed = Entry.of("public.t", ("1",), Touch("update", first + 100, first + 100, 0, None))
        truncated = Entry.of("public.t", (), Touch(TRUNCATE, first + 10, first + 10, 0, None))
        validator.checker.postpone([changed, truncated], 0)
        validator.scrubber.scrub_truncated(truncated, Marks(first, None))
        known = pending.known(meta, "v", [("public.t", ("1",)), ("public.t", ("2",)), truncated.place])
        assert {key: (entry.first_lsn, entry.last_lsn) for (_, key), entry in known.items()} == {
            ("1",): (first + 10, first + 100), ("2",): (first + 10, first + 10)
        }  # fmt: skip
        validator.positions.save(first + 200)
        assert lsn_number(copy.status().validated or "") == first + 10
    finally:
        validator.close()
        validator.checker.close()
        validator.sessions.meta.close()
        engine.close()
