"""Several meta databases with a validation of the same name: none touches what belongs to the other."""

from __future__ import annotations

import psycopg
import pytest

import trueup
from support.validate import Copy
from trueup.api.validate import Validation
from trueup.capture.log.slot import SlotLost
from trueup.errors import CheckFailed


def _validation(copy: Copy, meta: str = "") -> Validation:
    return Validation("v", meta=meta, nodes={"n1": copy.up.uri, "n2": copy.down.uri})


def test_a_second_validation_of_the_same_name_is_independent(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int)")
    copy.replicate("t, u")
    copy.spoil("t", "IF NEW.id = 3 THEN RETURN NULL; END IF;", "INSERT")
    copy.start("public.t")
    copy.up.execute("INSERT INTO t VALUES (1)")
    assert copy.fence().exit_code == 0
    first = copy.left()
    other = Copy(copy.up, copy.down)
    other.meta = "n1"
    other.start("public.u")
    try:
        # Without --meta it is not known which one is meant.
        with pytest.raises(CheckFailed, match="exists in the meta databases on n1 and n2") as ambiguous:
            _validation(copy).status()
        assert "--meta" in str(ambiguous.value.cure)
        assert len(copy.left()) == 4
        copy.up.execute("INSERT INTO t VALUES (2), (3)")
        copy.until(lambda: [error.key for error in copy.errors()] == [("3",)])
        other.up.execute("INSERT INTO u VALUES (1)")
        assert other.fence().exit_code == 0
    finally:
        other.stop()
    other.validation.delete()
    assert copy.left() == first
    assert copy.fence().errors == 1
    copy.stop()
    copy.validation.delete()
    assert copy.left() == []
    # A second one is not created by accident.
    other.create("public.u")
    with pytest.raises(CheckFailed, match="validation v exists in the meta database on n1") as refused:
        _validation(copy).create(source="n1", target="n2", tables=("public.t",))
    assert "--meta n1 for the existing one" in str(refused.value.cure)


def _copied(copy: Copy, name: str) -> bool:
    try:
        copy.down.server.database("postgres").execute(f"CREATE DATABASE {name} TEMPLATE {copy.down.name}")
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_a_copy_of_the_meta_database_gets_objects_of_its_own(copy: Copy, changes: str) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.start("public.t", changes=changes, syncer="lag:0.1")
    assert copy.fence().exit_code == 0
    copy.stop()
    slot = copy.slot
    server, name = copy.down.server, f"{copy.down.name}_clone"
    copy.until(lambda: _copied(copy, name))
    clone = Copy(copy.up, server.database(name))
    try:
        with pytest.raises(SlotLost, match="is a copy of another one, or was moved") as lost:
            clone.validation.start(engine="local")
        assert slot in str(lost.value)
        clone.go_on()
        assert any(slot in message and "was left" in message for message in clone.messages)
        assert clone.slot != slot
        assert "were not seen" in clone.fence().reasons[0]
        clone.stop()
        clone.validation.delete()
    finally:
        clone.stop()
        clone.down.drop()
    # The first one goes on where it was.
    copy.up.execute("INSERT INTO t VALUES (1)")
    copy.down.execute("INSERT INTO t VALUES (1)")
    copy.go_on()
    assert copy.fence().exit_code == 0
    assert copy.status().gap is None


def test_pods_that_something_else_has_read_are_missing(copy: Copy) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    tube = {"changes": "tube", "tube": "x", "syncer": "lag:0.1"}
    trueup.Tube.install(copy.up.uri)
    with trueup.Tube("x", copy.up.uri) as made:
        made.ensure()
        made.attach("public.t", shard=0)
    copy.start("public.t", **tube)
    assert copy.fence().exit_code == 0
    copy.stop()
    other = Copy(copy.up, copy.down)
    other.name = "w"
    other.start("public.t", **tube)
    # The target does not get it.
    copy.up.execute("INSERT INTO t VALUES (1)")
    other.until(lambda: other.errors())
    other.stop()
    other.validation.delete()
    copy.go_on()
    fence = copy.fence()
    assert (fence.exit_code, copy.status().total("unchecked")) == (2, 1)
    # A job of the tube has deleted pods, too.
    copy.validation.update(scrub_share=0.9)
    copy.until(lambda: not copy.status().total("unchecked"))
    copy.stop()
    copy.up.execute("SELECT tube.tube_work_begin('x', 0, '{}')")
    copy.validation.update(scrub_share=0.0)
    copy.go_on()
    assert copy.fence().exit_code == 2
