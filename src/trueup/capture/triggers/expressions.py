"""Check the functions in predicates and routings: triggers run them with the rights of the owner of the tube.

The functions that the user allowed are stored by name with the tube and the table, and checked again when a worker or a
backfill uses the expressions: catalogs change, and an allowed function may have another owner since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import sql

from trueup.capture.triggers.session import Session, block
from trueup.config.settings import ExpressionSettings
from trueup.db.connection import one_value
from trueup.db.expressions import CURE, Expression, examine
from trueup.errors import CheckFailed

STORED_CURE = "attach the table again with another expression, or with --allow-functions"


def check_new(
    session: Session, table: str, expressions: Mapping[str, str | None], allow_functions: Sequence[str]
) -> tuple[list[str], str | None]:
    """Return the functions to store as allowed, and the guard of the expressions over this table.

    `expressions` are the predicates and the routing by name, `table` is the quoted name. Raise CheckFailed if one of
    them cannot be used. Call it in a transaction: the table is locked, so that its types stay as they are.
    """
    if not any(expressions.values()):
        return [], None
    allowed = session.expressions.with_functions(allow_functions)
    with session.errors():
        owner = str(one_value(session.connection.execute("SELECT current_user")))
        session.connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(sql.SQL(table)))
        reason, names, guard = _examine(session, table, expressions, allowed, owner)
        if reason:
            raise CheckFailed([reason], cure=CURE, node=session.node.name)
        return names, guard


def refused(session: Session, tube: str | None = None, *, source: int | None = None) -> dict[int, str]:
    """Return why the stored expressions of tables cannot be used, by source; of all tubes without `tube`."""
    reasons = {}
    values = {"tube": tube, "source": source}
    for row in session.records(block(session, "expressions", quoted=sql.Literal(session.schema)), values):
        allowed = session.expressions.with_functions(row["allow_functions"])
        texts = {
            "predicate of the tube": row["tube_predicate"],
            **{name: row[name] for name in ("predicate", "routing")},
        }
        with session.errors():
            reason, *_ = _examine(session, row["table"], texts, allowed, row["owner"])
        if reason:
            reasons[row["source"]] = reason
    return reasons


def check_stored(session: Session, tube: str, source: int) -> None:
    """Raise CheckFailed if a stored expression of a table cannot be used any more."""
    if reason := refused(session, tube, source=source).get(source):
        raise CheckFailed([reason], cure=STORED_CURE, node=session.node.name)


def _examine(
    session: Session, table: str, expressions: Mapping[str, str | None], allowed: ExpressionSettings, owner: str
) -> tuple[str | None, list[str], str]:
    names: list[str] = []
    guards: list[str] = []
    # The row is called r, as in the triggers.
    source = sql.SQL("ONLY {} r").format(sql.SQL(table))  # type: ignore[arg-type, unused-ignore]
    for what, text in expressions.items():
        if text:
            form = "shard" if what == "routing" else "condition"
            expression = Expression(f"{what} for {table}", text, source, form, table, "r")
            examined = examine(session.connection, session.node, expression, allowed, definer=owner)
            if examined.reason:
                return examined.reason, [], ""
            names += examined.allowed
            guards.append(examined.guard)
    return None, names, " AND ".join(dict.fromkeys(guards))
