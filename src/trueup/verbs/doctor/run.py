"""The path of doctor: configuration, this machine, each node, across nodes, tables, switchover, Spark.

Each group of checks is a module of this package. Slow checks, Spark and the connections to nodes, start first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from trueup.engine.java import find_java
from trueup.verbs.doctor import across, configuration, disk, machine, nodes, spark, switchover, tables, tasks
from trueup.verbs.doctor.guarded import Background, guarded
from trueup.verbs.doctor.model import DoctorRequest, Finding


def examine(request: DoctorRequest) -> Iterator[Finding]:
    """Yield the findings of all checks, in this order. An error in a check becomes a finding."""
    java = Background(find_java)
    started = Background(lambda: spark.try_out(request, java)) if spark.is_enabled(request) else None
    connecting = nodes.start_connecting(request.nodes)

    yield from guarded("configuration", "trueup", lambda: configuration.check(request))
    yield from guarded("python", "this machine", machine.check_python)
    yield from guarded("java", "this machine", lambda: machine.check_java(request, java))
    yield from guarded("disk", "this machine", lambda: disk.check(request))
    yield from guarded("tasks", "task store", lambda: tasks.check(request))

    with nodes.connected(connecting) as reached:
        yield from guarded("nodes", "all nodes", lambda: nodes.check(request, reached))
        yield from guarded("nodes", "all nodes", lambda: across.check(request, reached))
        for table in request.tables:
            yield from guarded("table", table, partial(tables.check, request, reached, table))
        yield from guarded("switchover", "all nodes", lambda: switchover.check(request, reached))
    yield from guarded("spark", "this machine", lambda: spark.check(request, started))
