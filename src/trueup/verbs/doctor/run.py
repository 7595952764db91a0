"""The doctor's round from end to end: the configuration, this machine, each node, the nodes together, the tables.

This is the whole path on one screen; each family of checks is a module of this folder. What takes long, Spark and the
way to the nodes, is begun first and asked for last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from trueup.engine.java import find_java
from trueup.verbs.doctor import across, configuration, disk, machine, nodes, spark, switchover, tables, tasks
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import Finding
from trueup.verbs.doctor.request import DoctorRequest


def examine(request: DoctorRequest) -> Iterator[Finding]:
    """Every check once, in this order; a check that breaks is a finding, and the others go on."""
    java = Background(find_java)
    started = Background(lambda: spark.try_out(request, java)) if spark.is_wanted(request) else None
    asked = nodes.begin(request.nodes)

    yield from guarded("configuration", "trueup", lambda: configuration.check(request))
    yield from guarded("python", "this machine", machine.check_python)
    yield from guarded("java", "this machine", lambda: machine.check_java(request, java))
    yield from guarded("disk", "this machine", lambda: disk.check(request))
    yield from guarded("tasks", "task store", lambda: tasks.check(request))

    with nodes.meet(asked) as met:
        yield from guarded("nodes", "all nodes", lambda: nodes.check(request, met))
        yield from guarded("nodes", "all nodes", lambda: across.check(request, met))
        for table in request.tables:
            yield from guarded("table", table, partial(tables.check, request, met, table))
        yield from guarded("switchover", "all nodes", lambda: switchover.check(request, met))
    yield from guarded("spark", "this machine", lambda: spark.check(request, started))
