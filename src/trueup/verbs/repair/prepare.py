"""Check each table of a repair on its nodes before the first row is read: its columns, its key, and the mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueup.db.names import display_name
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed, ConfigError, QueryError
from trueup.report.extent import Extent
from trueup.verbs.repair.check_plan import check_plan
from trueup.verbs.repair.layout import Layout, check_tables
from trueup.verbs.repair.modes import Mode
from trueup.verbs.repair.order import members_of
from trueup.verbs.repair.plan import Plan
from trueup.verbs.repair.plan_file import has_plan_for, plan_for
from trueup.verbs.repair.request import RepairRequest, RepairTable
from trueup.verbs.repair.result import text_of


@dataclass(frozen=True)
class Prepared:
    """A table that can be repaired, with the sessions of its nodes."""

    table: RepairTable
    controls: Sequence[Control]
    layout: Layout
    mode: Mode
    remarks: tuple[str, ...]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layout of the table by node."""
        return dict.fromkeys(self.table.request.node_names, self.layout)


def prepare_all(
    request: RepairRequest,
    tables: Sequence[RepairTable],
    controls: Sequence[Control],
    plan: Mapping[str, Any],
    *,
    is_run: bool,
) -> tuple[list[Prepared], dict[str, str]]:
    """Check all tables; return those that can be repaired, and of a run the reasons why others cannot."""
    prepared: list[Prepared] = []
    failed: dict[str, str] = {}
    for table in tables:
        own = [control for name in table.request.node_names for control in controls if control.node.name == name]
        try:
            _check_mode(request, table)
            layout, remarks = check_tables(own, table.request, table.head)
        except (CheckFailed, QueryError) as error:
            if not is_run:
                raise
            failed[table.name] = text_of(error).removeprefix(f"{table.name}: ")
            continue
        # A mistake in the plan is an error of the whole run.
        mode = _mode(request, table, own, layout, plan, is_run=is_run)
        # What the report did not compare is not written, and not known to be equal.
        extent = Extent.from_json(table.head.summary.get("extent")) if table.head else Extent()
        prepared.append(Prepared(table, own, layout, mode, (*remarks, *extent.lines())))
    if len(prepared) > 1:
        _refuse_same_rows(prepared, controls)
    return prepared, failed


def _refuse_same_rows(prepared: Sequence[Prepared], controls: Sequence[Control]) -> None:
    """Raise CheckFailed if a table and one of its partitions are both in the run: a row would be written twice."""
    reasons: dict[str, None] = {}
    for control in controls:
        names = [(each.layout.spec.schema, each.layout.spec.table) for each in prepared if control in each.controls]
        try:
            members = members_of(control.connection, names)
        except Exception as error:
            raise error_from_server(error, control.node) from None
        for table in names:
            reasons |= {
                f"node {control.node.name}: {display_name(*table)} and {display_name(*other)} have the same rows,"
                " because one is a partition of the other": None
                for other in members[table]
                if other > table
            }
    if reasons:
        raise CheckFailed(list(reasons), cure="leave one of them out: name the other tables with --tables")


def _check_mode(request: RepairRequest, table: RepairTable) -> None:
    """Raise CheckFailed if the mode does not fit the nodes that have this table."""
    try:
        request.mode(table.request.node_names)
    except ConfigError as error:
        raise CheckFailed([error.message], cure=error.cure, table=table.name) from None


def _mode(
    request: RepairRequest,
    table: RepairTable,
    controls: Sequence[Control],
    layout: Layout,
    plan: Mapping[str, Any],
    *,
    is_run: bool,
) -> Mode:
    """Return the mode for a table. In a run, a table for which the plan has no entry is left as it is."""
    nodes = table.request.node_names
    mode = request.mode(nodes)
    if mode is None:
        mode = Plan() if is_run and not has_plan_for(plan, layout.spec) else plan_for(plan, nodes, layout)
        check_plan(controls, layout, mode, table.request.expressions)
    return mode
