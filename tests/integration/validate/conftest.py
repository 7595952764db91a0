"""Fixtures for validations: two real servers, and in each test two databases with PostgreSQL's replication between."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trueup.api.validate import Validations
from trueup.testing.postgres import Database, Server
from trueup.verbs.validate.fence import Fence
from trueup.verbs.validate.findings import ErrorRow
from trueup.verbs.validate.status import Status

PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
PATIENCE = 60.0
QUICK = {"check_interval": 0.1, "row_error_delay": 0.4}
_numbers = itertools.count(1)


class Copy:
    """A source, a target that PostgreSQL fills from it, and a validation of them that runs in a thread."""

    def __init__(self, up: Database, down: Database) -> None:
        self.up = up
        self.down = down
        self.name = "v"
        self.said: list[str] = []
        self.ended: list[Any] = []
        self.validations = Validations(nodes={"n1": up.uri, "n2": down.uri})
        self._thread: threading.Thread | None = None

    def both(self, statements: str) -> None:
        """The same on both sides."""
        self.up.execute(statements)
        self.down.execute(statements)

    def replicate(self, tables: str = "ALL TABLES") -> None:
        """Let PostgreSQL fill the target, and wait until the first copy is done."""
        what = tables if tables == "ALL TABLES" else f"TABLE {tables}"
        self.up.execute(f"CREATE PUBLICATION p FOR {what}")
        self.down.execute(f"CREATE SUBSCRIPTION {self.down.name} CONNECTION '{self.up.uri}' PUBLICATION p")
        self.until(lambda: not self.down.execute("SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"))

    def create(self, tables: str = "public.*", **settings: Any) -> None:
        """Write the validation down."""
        given = {**QUICK, **settings}
        self.validations.create(self.name, source="n1", target="n2", tables=tuple(tables.split(",")), **given)

    def start(self, tables: str = "public.*", **settings: Any) -> None:
        """Begin, and wait until it runs."""
        self.create(tables, **settings)
        self.go_on()

    def go_on(self) -> None:
        """Run it, again or for the first time."""

        def run() -> None:
            try:
                self.ended.append(self.validations.start(self.name, engine="local", say=self.said.append))
            except BaseException as error:
                self.ended.append(error)

        self.ended.clear()
        self.said.clear()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.until(lambda: bool(self.ended) or any(text.startswith("validating") for text in self.said))
        assert not self.ended, self.ended

    def stop(self) -> None:
        """End it, if it runs."""
        if self._thread is not None and self._thread.is_alive():
            self.validations.stop(self.name)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), self.said

    def status(self) -> Status:
        """How it stands."""
        return self.validations.status(self.name)

    def errors(self, state: str = "new") -> list[ErrorRow]:
        """Its errors."""
        return self.validations.errors(self.name, state=state)

    def fence(self, timeout: float = PATIENCE) -> Fence:
        """A fence."""
        return self.validations.fence(self.name, timeout=timeout)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something."""
        give_up = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < give_up, (self.said, self.ended)
            time.sleep(0.03)
        return found

    def spoil(self, table: str, body: str, when: str = "INSERT OR UPDATE OR DELETE") -> None:
        """Let a trigger of the target spoil what is applied: `body` is PL/pgSQL."""
        self.down.execute(
            f"CREATE OR REPLACE FUNCTION spoil_{table}() RETURNS trigger LANGUAGE plpgsql AS $f$"
            f"BEGIN {body} IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $f$;"
            f"CREATE OR REPLACE TRIGGER spoil BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION spoil_{table}();"
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER spoil"
        )

    def remove(self) -> None:
        """End all, and drop the databases."""
        self.stop()
        for sub in self.down.execute("SELECT subname FROM pg_subscription WHERE subname = current_database()"):
            self.down.execute(f"ALTER SUBSCRIPTION {sub[0]} DISABLE")
            self.down.execute(f"DROP SUBSCRIPTION {sub[0]}")
        for slot in self.up.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"):
            self.up.execute(f"SELECT pg_drop_replication_slot('{slot[0]}')")
        self.up.drop()
        self.down.drop()


@pytest.fixture(scope="session")
def two_servers() -> Iterator[tuple[Server, Server]]:
    """Two servers, in two time zones."""
    with (
        Server.start(name="up", bin_dir=PG_BIN, settings={"timezone": "Asia/Kolkata"}) as up,
        Server.start(name="down", bin_dir=PG_BIN, settings={"timezone": "America/New_York"}) as down,
    ):
        yield up, down


@pytest.fixture
def copy(two_servers: tuple[Server, Server]) -> Iterator[Copy]:
    """Two fresh databases."""
    number = next(_numbers)
    up, down = (server.create_database(f"{server.name}_{os.getpid()}_{number}") for server in two_servers)
    made = Copy(up, down)
    yield made
    made.remove()
