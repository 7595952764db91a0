"""No lock of trueup can be taken by a role without privileges on its tables."""

from __future__ import annotations

import re
from pathlib import Path

import trueup

PACKAGE = Path(trueup.__file__).parent
# Statements whose lock excludes writers, or readers too: all who need the object wait behind a session that waits.
STRONG = re.compile(
    r"LOCK TABLE|ALTER TABLE|\b(?:CREATE|REPLACE) (?:EVENT )?TRIGGER|CREATE (?:UNIQUE )?INDEX|ALTER SEQUENCE"
    r"|DROP (?:EVENT )?(?:TRIGGER|INDEX|SCHEMA|TABLE|SEQUENCE|FUNCTION|TYPE)|\bTRUNCATE (?:TABLE |ONLY |\{|%)"
    r"|REFRESH MATERIALIZED|(?:CREATE|ALTER|DROP) PUBLICATION"
)
_OWN = "tables of trueup, which no application uses"
_TEXT = "a text"
# Per file: lines with such a statement, and how the time that others wait behind it is limited.
LIMITS = {
    "capture/log/pgoutput.py": (1, _TEXT),
    "capture/log/publications.py": (8, "excludes no writer: SHARE UPDATE EXCLUSIVE; REPLICA IDENTITY: " + _OWN),
    "capture/log/slot.py": (1, "excludes no writer"),
    "capture/triggers/expressions.py": (1, "ACCESS SHARE"),
    "capture/triggers/install.py": (15, _OWN + "; DROP SCHEMA is refused while a tube exists"),
    "capture/triggers/sql/old_rows.sql": (4, "tube_ddl: attempts of 300 ms"),
    "capture/triggers/sql/tables.sql": (2, _OWN),
    "capture/triggers/sql/tube_ensure_absent.sql": (1, "pods of a tube without tables"),
    "capture/triggers/sql/tube_ensure_exists.sql": (2, "a new table"),
    "capture/triggers/sql/tube_lock_all.sql": (1, _OWN),
    "capture/triggers/sql/tube_order_index.sql": (2, "tube_ddl: attempts of 300 ms"),
    "capture/triggers/sql/tube_reload_follow.sql": (1, _TEXT),
    "capture/triggers/sql/tube_rewritten.sql": (1, _TEXT),
    "capture/triggers/sql/tube_table_check.sql": (1, _TEXT),
    "capture/triggers/sql/tube_table_ensure_detached.sql": (3, "tube_ddl; functions without a trigger"),
    "capture/triggers/sql/tube_trigger_ddl.sql": (6, "tube_ddl: attempts of 300 ms"),
    "db/drop_schema.py": (1, "one attempt of 100 ms, of a schema that is empty"),
    "db/foreign_code.py": (1, "ROW EXCLUSIVE"),
    "db/snapshot.py": (1, "ACCESS SHARE"),
    "db/table_lock.py": (1, "ACCESS SHARE, attempts of 300 ms"),
    "db/trust.py": (1, _TEXT),
    "proof/store.sql": (4, _OWN),
    "rows/write/disabled_triggers.py": (1, "begin: attempts of 300 ms"),
    "rows/write/references.py": (1, "in_short_attempts: 300 ms"),
    "sinks/clickhouse.py": (1, "not PostgreSQL"),
    "sinks/postgres.sql": (1, "in_short_attempts: 300 ms"),
    "sinks/postgres_target.py": (1, "in_short_attempts: 300 ms"),
    "task/materialized.py": (1, "CONCURRENTLY if the view has rows and a unique index"),
    "verbs/difflog/clickhouse.py": (1, "not PostgreSQL"),
    "verbs/difflog/mark.py": (2, "not PostgreSQL"),
    "verbs/doctor/tables.py": (1, "NOWAIT"),
    "verbs/repair/order.py": (1, _TEXT),
    "verbs/switchover/fence.py": (1, "the pause of a switchover: its budget"),
    "verbs/switchover/guard.py": (5, "_with_retries: attempts of 200 ms"),
    "verbs/switchover/hold.py": (1, "ACCESS SHARE, attempts of 100 ms"),
    "verbs/switchover/pointer.py": (3, "guard.remove_pointer: attempts of 200 ms; LOCK: the pause"),
    "verbs/switchover/pointer.sql": (10, "guard.remove_pointer: attempts of 200 ms; LOCK: by who opens a database"),
    "verbs/switchover/rounds.py": (1, _TEXT),
    "verbs/sync/copy.py": (1, _TEXT),
    "verbs/sync/large.py": (1, "a target, to which only the sync writes; readers do not wait"),
    "verbs/sync/plan.py": (2, _TEXT),
    "verbs/sync/state.sql": (6, _OWN + "; ROW EXCLUSIVE, SHARE UPDATE EXCLUSIVE"),
    "verbs/sync/target_schema/create_schema.py": (1, "a target that is being created"),
    "verbs/sync/target_schema/dump.py": (1, _TEXT),
    "verbs/sync/target_schema/plan_schema.py": (1, _TEXT),
    "verbs/sync_ddl/apply_ddl.py": (2, "attempts of _ATTEMPT_MS"),
    "verbs/sync_ddl/ddl.py": (18, "apply_ddl: attempts of _ATTEMPT_MS"),
    "verbs/validate/look.py": (2, _TEXT),
    "verbs/validate/meta.py": (1, _OWN),
    "verbs/validate/meta.sql": (23, _OWN),
    "verbs/validate/owner.py": (1, _TEXT),
    "verbs/validate/plan.py": (1, _TEXT),
    "verbs/validate/triggers/tubes.sql": (1, "in_short_attempts: 300 ms"),
}


def test_no_advisory_locks() -> None:
    """Every role that can connect can take an advisory lock, also one that others wait for."""
    package = Path(trueup.__file__).parent
    files = [path for pattern in ("*.py", "*.sql") for path in package.rglob(pattern)]
    assert files
    assert [path.name for path in files if "_advisory_" in path.read_text(encoding="utf-8")] == []


def test_each_statement_with_a_strong_lock_is_limited() -> None:
    """A new one is listed here with what limits the time that others wait behind it."""
    found: dict[str, int] = {}
    for path in sorted(path for pattern in ("*.py", "*.sql") for path in PACKAGE.rglob(pattern)):
        name = path.relative_to(PACKAGE).as_posix()
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        count = sum(bool(STRONG.search(line)) for line in lines if not line.startswith(("#", "--")))
        # Files of the task store are SQLite; demonstrations and tests have servers of their own.
        if count and not name.startswith(("demo/", "testing/", "store/")):
            found[name] = count
    assert found == {name: count for name, (count, _) in LIMITS.items()}
