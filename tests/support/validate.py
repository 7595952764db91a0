"""A source and a target with PostgreSQL's replication between them, and a validation that runs in a thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import psycopg

from support.waiting import Pause
from trueup.api.validate import Validation
from trueup.testing.postgres import Database
from trueup.verbs.validate.fence import Fence
from trueup.verbs.validate.row_errors import ErrorRow
from trueup.verbs.validate.status import Status

PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
PATIENCE = 120.0
# A period of 0 would scrub all the time, which is most of the processor time of such a test.
QUICK = {"check_interval": 0.2, "row_error_delay": 0.4, "scrub_period": 1.0}


class Copy:
    """A source, a target that PostgreSQL fills from it, and a validation of them that runs in a thread."""

    def __init__(self, up: Database, down: Database) -> None:
        self.up = up
        self.down = down
        # Addresses of nodes that are not those of the superuser.
        self.nodes: dict[str, str] = {}
        self.name = "v"
        self.engine: Literal["local", "spark"] = "local"
        # Named, because each call would look for the validation on both nodes.
        self.meta = "n2"
        self.messages: list[str] = []
        self.ended: list[Any] = []
        self._thread: threading.Thread | None = None

    @property
    def validation(self) -> Validation:
        """Return the validation."""
        return Validation(self.name, meta=self.meta, nodes={"n1": self.up.uri, "n2": self.down.uri, **self.nodes})

    @property
    def slot(self) -> str:
        """Return the name of the slot of the validation, and of its own publication."""
        meta = self.up if self.meta == "n1" else self.down
        return str(meta.execute(f"SELECT slot FROM trueup.validation WHERE name = '{self.name}'")[0][0])

    def left(self) -> list[str]:
        """Return the slots and publications of validations on the source."""
        found = self.up.execute(
            "SELECT slot_name::text FROM pg_replication_slots"
            " WHERE slot_name LIKE 'trueup%' AND database = current_database()"
            " UNION ALL SELECT pubname FROM pg_publication WHERE pubname LIKE 'trueup%' ORDER BY 1"
        )
        return [row[0] for row in found]

    def left_on_target(self) -> list[str]:
        """Return the slots, publications and triggers of validations on the target, and the schema of change logs."""
        found = self.down.execute(
            "SELECT slot_name::text FROM pg_replication_slots"
            " WHERE slot_name LIKE 'trueup%' AND database = current_database()"
            " UNION ALL SELECT pubname FROM pg_publication WHERE pubname LIKE 'trueup%'"
            " UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE 'trueup%'"
            " UNION ALL SELECT nspname FROM pg_namespace WHERE nspname = 'trueup_changes' ORDER BY 1"
        )
        return [row[0] for row in found]

    def both(self, statements: str) -> None:
        """Run statements on both databases."""
        self.up.execute(statements)
        self.down.execute(statements)

    def replicate(self, tables: str = "ALL TABLES") -> None:
        """Create a subscription, and wait until its initial copy is complete."""
        what = tables if tables.startswith(("ALL TABLES", "TABLES IN")) else f"TABLE {tables}"
        self.up.execute(f"CREATE PUBLICATION p FOR {what}")
        self.down.execute(f"CREATE SUBSCRIPTION {self.down.name} CONNECTION '{self.up.uri}' PUBLICATION p")
        self.until(lambda: not self.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))

    def create(self, tables: str = "public.*", **settings: Any) -> None:
        """Create the validation."""
        all_settings = {**QUICK, **settings}
        self.validation.create(source="n1", target="n2", tables=tuple(tables.split(",")), **all_settings)

    def start(self, tables: str = "public.*", **settings: Any) -> None:
        """Create and start the validation, and wait until it runs."""
        self.create(tables, **settings)
        self.go_on()

    def go_on(self) -> None:
        """Start the validation in a thread, and wait until it runs."""

        def run() -> None:
            try:
                self.ended.append(self.validation.start(engine=self.engine, log=self.messages.append))
            except BaseException as error:
                self.ended.append(error)

        self.ended.clear()
        self.messages.clear()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.until(lambda: bool(self.ended) or any(text.startswith("validating") for text in self.messages))
        assert not self.ended, self.ended

    def stop(self) -> None:
        """Stop the validation if it runs."""
        if self._thread is not None and self._thread.is_alive():
            self.validation.stop()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), self.messages

    def status(self) -> Status:
        """Return the status."""
        return self.validation.status()

    def errors(self, state: str = "new") -> list[ErrorRow]:
        """Return the errors in a state."""
        return self.validation.errors(state=state)

    def fence(self, timeout: float = PATIENCE) -> Fence:
        """Write a fence and wait for it."""
        return self.validation.fence(timeout=timeout)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition holds; return its value."""
        give_up = time.monotonic() + PATIENCE
        pause = Pause(0.1)
        while not (found := condition()):
            assert time.monotonic() < give_up, (self.messages, self.ended)
            pause()
        return found

    def spoil(self, table: str, body: str, when: str = "INSERT OR UPDATE OR DELETE") -> None:
        """Create a trigger on the target that changes what is applied; `body` is PL/pgSQL."""
        self.down.execute(
            f"CREATE OR REPLACE FUNCTION spoil_{table}() RETURNS trigger LANGUAGE plpgsql AS $f$"
            f"BEGIN {body} IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $f$;"
            f"CREATE OR REPLACE TRIGGER spoil BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION spoil_{table}();"
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER spoil"
        )

    def remove(self) -> None:
        """Stop the validation, and drop subscriptions, slots and databases."""
        self.stop()
        slots = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        with psycopg.connect(self.down.uri, autocommit=True) as session:
            for sub in session.execute(
                "SELECT subname FROM pg_subscription WHERE subname = current_database()"
            ).fetchall():
                session.execute(f"ALTER SUBSCRIPTION {sub[0]} DISABLE")
                session.execute(f"DROP SUBSCRIPTION {sub[0]}")
            session.execute(slots)
        self.up.execute(slots)
        self.up.drop()
        self.down.drop()
