"""What a running sync sets aside: tables whose rows it cannot write at present. All other tables go on.

Changes of a table that is set aside stay in the change log, and its rows on the target are not up to date. When its
definitions are in step again, rounds write the changes. Where foreign keys fire on the target (`ordered`), tables that
refer to it, or that it refers to, are set aside too: their rows could not be written or deleted without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trueup.db.connection import Connection
from trueup.db.foreign_keys import read_foreign_keys
from trueup.db.names import display_name
from trueup.verbs.sync.members import Member
from trueup.verbs.sync.model import LARGE_OBJECTS, Plan, Problem, SyncTable
from trueup.verbs.sync.target_schema.plan_target import KEY_CURE

SEQUENCE = "sequence "
SAME = "make both tables the same: trueup sync ddl"
_AGAIN = "empty it on the target, and copy it again: trueup sync add {}"


def split(
    plan: Plan, members: Mapping[int, Member], names: Mapping[int, str], partitions: Mapping[int, int]
) -> tuple[Plan, list[Problem]]:
    """Return the plan with only what can be synced, and the problems of the rest.

    `names` are those of the source, `partitions` the tables of the sync that are parts of others there now. Problems
    that concern no single object stay in the plan.
    """
    aside: list[Problem] = []
    live: list[SyncTable] = []
    # The tables of the source that have a problem: a name may be that of one table before, and of another one now.
    wrong: set[int] = set()
    by_name = {member.name: member for member in members.values()}
    of_source = set(names.values())
    oids = {**{name: oid for oid, name in names.items()}, **{str(table): table.oid for table in plan.tables}}
    for table in plan.tables:
        member = members.get(table.oid)
        if member is None:
            aside.append(_not_a_member(str(table), by_name.get(str(table)), names, table.target_oid))
        elif member.target_oid != table.target_oid:
            aside.append(_moved(member, str(table)))
            wrong.add(table.oid)
        else:
            live.append(table)
    stopping: list[Problem] = []
    for problem in plan.problems:
        oid = oids.get(problem.where, 0)
        member = members.get(oid)
        wrong.add(oid)
        if problem.where.startswith(SEQUENCE) or problem.where == LARGE_OBJECTS:
            aside.append(problem)
        elif problem.where not in by_name and problem.where not in of_source:
            stopping.append(problem)
        elif member is not None and member.name != problem.where:
            aside.append(_moved(member, problem.where))
        elif problem.where not in of_source:
            # It was dropped: what the target's table has is no problem of a table that exists.
            continue
        elif member is None and problem.where in by_name:
            aside.append(_not_a_member(problem.where, by_name[problem.where], names))
        else:
            aside.append(_with_cure(problem, is_member=member is not None))
    # A table with a problem of its own is not live, even if the plan has it.
    seen, shown = wrong | {table.oid for table in live}, {problem.where for problem in aside}
    named = {problem.where for problem in plan.problems}
    live = [table for table in live if table.oid not in wrong and str(table) not in named]
    aside += [
        _gone(member, names, partitions)
        for oid, member in members.items()
        # Of a table that was dropped and replaced, the replacement is named.
        if oid not in seen and (oid in names or member.name not in shown)
    ]
    return only(replace(plan, problems=tuple(stopping)), live, aside), _distinct(aside)


def only(plan: Plan, live: Iterable[SyncTable], aside: Iterable[Problem]) -> Plan:
    """Return the plan with these tables, and without the sequences that are set aside."""
    tables = tuple(live)
    inside = {table.name for table in tables}
    # A foreign key of another table of the target is only checked.
    of_plan = {table.name for table in plan.tables}
    wrong = {problem.where for problem in aside}
    return replace(
        plan,
        tables=tables,
        sequences=tuple(sequence for sequence in plan.sequences if f"{SEQUENCE}{sequence}" not in wrong),
        foreign_keys=tuple(
            key
            for key in plan.foreign_keys
            if key.parent_root in inside and (key.child_root in inside or key.child_root not in of_plan)
        ),
    )


def with_relatives(target: Connection, tables: Sequence[SyncTable], members: Iterable[Member]) -> list[Problem]:
    """Return the problems of tables that are connected by foreign keys of the target with a table that is set aside."""
    live = {table.name for table in tables}
    of_sync = {member.table for member in members} | live
    keys = [(key.child_root, key.parent_root) for key in read_foreign_keys(target, of_sync)]
    problems: list[Problem] = []
    lost = of_sync - live
    while True:
        following = {
            (name, other) for ends in keys for name, other in (ends, ends[::-1]) if name in live and other in lost
        }
        if not following:
            return problems
        for name, other in sorted(following):
            if name in live:
                what = f"a foreign key connects it with {display_name(*other)}, which is set aside"
                problems.append(Problem(display_name(*name), what, f"fix {display_name(*other)}"))
                live.discard(name)
                lost.add(name)


def _with_cure(problem: Problem, *, is_member: bool) -> Problem:
    """Return the problem with the cure for a started sync: statements are shown for its tables and for new ones."""
    # The option is one of `trueup sync start`.
    excluding = f"trueup sync remove {problem.where}"
    problem = replace(problem, cure=problem.cure.replace(f"--exclude-tables {problem.where}", excluding))
    if problem.cure.startswith("create the table there"):
        cure = f"create and add it: trueup sync ddl --apply; or exclude it: trueup sync remove {problem.where}"
        return replace(problem, cure=cure)
    if problem.cure not in SAME and problem.cure != KEY_CURE:
        return problem
    add = "drop it on the target, then create and add it: trueup sync ddl --apply; or exclude it: trueup sync remove {}"
    return replace(problem, cure=SAME if is_member else add.format(problem.where))


def _not_a_member(name: str, former: Member | None, names: Mapping[int, str], target_oid: int = 0) -> Problem:
    """Return the problem of a table that is not in the sync; `former` is the one of the sync that had its name."""
    if former is not None and former.source_oid not in names:
        what = "it was replaced by another table with its name on the source"
        return Problem(name, what, f"replace it on the target too: trueup sync ddl --apply; or {_AGAIN.format(name)}")
    if former is not None and target_oid in (0, former.target_oid):
        what = f"it was created with the name of a table that was renamed to {names[former.source_oid]} on the source"
        return Problem(name, what, "rename that one, create and add this one: trueup sync ddl --apply")
    what = "it was created after the sync was started, and is not in the sync"
    if former is not None:
        return Problem(name, what, f"add it: trueup sync add {name}")
    return Problem(name, what, f"add it: trueup sync add {name}; or exclude it: trueup sync remove {name}")


def _moved(member: Member, name: str) -> Problem:
    if member.name != name:
        return Problem(member.name, f"it was renamed to {name} on the source", SAME)
    what = "another table has its name on the target (restored from a dump, created again, or renamed)"
    cure = f"rename it back; or compare and repair it, then trueup sync accept {name}; or {_AGAIN.format(name)}"
    return Problem(name, what, cure)


def _gone(member: Member, names: Mapping[int, str], partitions: Mapping[int, int]) -> Problem:
    name = names.get(member.source_oid)
    if root := partitions.get(member.source_oid):
        what = f"it became a partition of {names[root]} on the source"
        return Problem(member.name, what, f"create and add {names[root]}: trueup sync ddl --apply")
    if name == member.name:
        what = "it belongs to an extension now"
        return Problem(name, what, f"remove it from the sync: trueup sync remove {name}")
    if name is not None:
        return _moved(member, name)
    cure = f"drop it on the target too: trueup sync ddl --apply; or keep it there: trueup sync remove {member.name}"
    return Problem(member.name, "it was dropped on the source", cure)


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
