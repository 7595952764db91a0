"""The job of a run: what all its tasks share, and how they read the nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from trueup.config.model import Node
from trueup.config.settings import DiffSettings
from trueup.db.reader import Reader, borrow
from trueup.db.snapshot import Control
from trueup.rows.spec import TableSpec
from trueup.task.connections import as_connected
from trueup.task.steering import is_gentle
from trueup.task.together import together

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What all tasks of a run share. It is pickled and sent to the workers, with the addresses of the nodes."""

    spec: TableSpec
    nodes: tuple[Node, ...]
    snapshots: Mapping[str, str | None]
    application: str
    timeout: float
    retries: int
    unit: int
    digests_only: bool = False
    # Longest duration of a query of a gentle run; 0: no limit.
    query_seconds: float = 0.0
    max_rows_per_query: int = 0

    def read(self, names: Sequence[str], ask: Callable[[Reader], T], *, fresh: bool = False) -> dict[str, T]:
        """Query these nodes at the same time, in the snapshots of the run or, with `fresh`, outside of them."""
        nodes = [node for node in self.nodes if node.name in names]
        with ExitStack() as stack:
            readers = [
                stack.enter_context(
                    borrow(
                        node,
                        None if fresh else self.snapshots.get(node.name),
                        application=self.application,
                        retries=self.retries,
                    )
                )
                for node in nodes
            ]
            return dict(zip((node.name for node in nodes), together(readers, ask), strict=True))


def job_of(
    settings: DiffSettings,
    spec: TableSpec,
    controls: Sequence[Control],
    application: str,
    *,
    digests_only: bool = False,
) -> Job:
    """Return the job of a run over one table; the nodes' snapshots are those that `controls` hold now."""
    return Job(
        spec=spec,
        nodes=tuple(map(as_connected, controls)),
        snapshots={control.node.name: control.snapshot_id for control in controls},
        application=application,
        timeout=settings.block_timeout,
        retries=settings.retries,
        unit=settings.compare_unit_size,
        digests_only=digests_only,
        query_seconds=settings.gentle_seconds if is_gentle(settings) else 0.0,
        # The limit of rows per second applies to each second, so it limits each query too.
        max_rows_per_query=math.ceil(settings.max_rows_per_second * min(1.0, settings.gentle_seconds)),
    )
