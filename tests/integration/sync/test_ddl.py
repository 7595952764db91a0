"""Changes of tables while a sync runs: one table is set aside, all others go on, and no row is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import trueup
from support.sync import Pair
from support.waiting import Pause
from trueup.cli.main import run
from trueup.engine.progress import Silent
from trueup.errors import CheckFailed
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until
from trueup.verbs.sync import changelog, check, copy, ending, members, reshaped, snapshot_copy, state
from trueup.verbs.sync import following as following_module
from trueup.verbs.sync import plan as sync_plan
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.request import Scope
from trueup.verbs.sync.target_schema import plan_keys
from trueup.verbs.sync.totals import Until
from trueup.verbs.sync_ddl import apply_ddl, change_tables
from trueup.verbs.sync_ddl.text import ddl_text

# A table per kind of change, and one that must go on.
KINDS = {
    "constant": "ADD COLUMN c int NOT NULL DEFAULT 7",
    "volatile": "ADD COLUMN c uuid DEFAULT gen_random_uuid()",
    "bare": "ADD COLUMN c int",
    "typed": "ALTER n TYPE bigint USING n * 10",
    "renamed_column": "RENAME n TO m",
    "dropped_column": "DROP n",
    "renamed": "RENAME TO renamed_since",
}
NAMES = [*KINDS, "used", "other", "swapped", "t9"]
TABLES = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, u int UNIQUE);" for name in NAMES)
ROWS = "".join(f"INSERT INTO {name} SELECT g, g, g FROM generate_series(1, 40) g;" for name in (*KINDS, "used"))
ROWS += "INSERT INTO swapped VALUES (1, 1, 1); INSERT INTO parts SELECT g, g % 20 FROM generate_series(1, 40) g"
PARTS = """CREATE TABLE parts (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"""


CREATED = """CREATE TABLE created (id serial PRIMARY KEY, n int CONSTRAINT positive CHECK (n > 0), "Odd ""Name" text,
    twice int GENERATED ALWAYS AS (n * 2) STORED, o int REFERENCES other, at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON created (n) WHERE n > 3;"""
# What a running sync applies by itself.
FOLLOWED = ["constant", "volatile", "bare", "typed", "renamed_column", "parts"]
FOLLOWED += ["created", "fresh", "renamed_again", "renamed", "swapped", "used", "used_old"]
AT_ONCE = """
ALTER TABLE constant ADD COLUMN d text NOT NULL DEFAULT 'x'; ALTER TABLE volatile RENAME u TO x;
ALTER TABLE volatile RENAME n TO u; ALTER TABLE renamed RENAME TO renamed_again; ALTER TABLE swapped RENAME TO renamed;
ALTER TABLE bare ALTER n SET DEFAULT 5, ADD CHECK (id > 0);
UPDATE bare SET n = 1 WHERE n IS NULL; ALTER TABLE bare ALTER n SET NOT NULL; CREATE INDEX ON bare (n);
ALTER TABLE typed ALTER n TYPE numeric(20, 2) USING n / 3.0;
ALTER TABLE renamed_column ALTER n TYPE text; CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30);
INSERT INTO parts VALUES (4, 25); ALTER TABLE parts DETACH PARTITION parts_2; DROP TABLE parts_2;
CREATE TABLE fresh (id bigint GENERATED ALWAYS AS IDENTITY (START 7) PRIMARY KEY, x int UNIQUE);
INSERT INTO fresh (x) SELECT generate_series(1, 5); ALTER TABLE dropped_column DROP u;
ALTER TABLE created ADD COLUMN s serial; UPDATE other SET n = n + 1;
CREATE TABLE swapped (id int PRIMARY KEY, v text); INSERT INTO swapped VALUES (1, 'new');
ALTER TABLE used RENAME TO used_old; CREATE TABLE used (id int PRIMARY KEY, v text); INSERT INTO used VALUES (1, 'new');
"""


def apply(pair: Pair) -> None:
    """Apply the statements that `trueup sync ddl` shows."""
    shown = ddl_text(apply_ddl.differences(pair.request))
    done, _ = apply_ddl.apply(pair.request, drops=True, timeout=30)
    assert done
    assert all(statement.text in shown for each in done for statement in each.change.statements)
    assert not [each.problem for each in done if each.problem]


@pytest.fixture
def role(server: Server, versions: Pair) -> Iterator[str]:
    """A role without rights, on both servers."""
    name = f"stranger_{os.getpid()}"
    places = {database.server.port: database for database in (versions.source, versions.target)}
    for database in places.values():
        database.execute(f"CREATE ROLE {name}")
    yield name
    for database in (versions.source, versions.target):
        database.execute(f"DROP OWNED BY {name}")
    for database in places.values():
        database.execute(f"DROP ROLE {name}")


class Follower:
    """A sync that runs in a thread."""

    def __init__(self, pair: Pair, *, follow_ddl: bool) -> None:
        self.pair = pair
        self.follow_ddl = apply_ddl.Follower(pair.request, Silent()) if follow_ddl else None
        self.errors: list[BaseException] = []

    def follow(self) -> None:
        try:
            until = Until(follow=True, interval=0.2, sequences=1.0)
            sync.run(self.pair.request, until, Silent(), self.pair.messages.append, self.follow_ddl)
        except BaseException as error:
            self.errors.append(error)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + 60
        pause = Pause()
        while not condition():
            assert not self.errors, self.errors
            assert time.monotonic() < give_up, f"{what}; set aside: {self.aside()}"
            pause()

    def aside(self) -> dict[str, str]:
        return {problem.where: problem.what for problem in self.pair.known().aside}

    def wait_for_aside(self, *names: str) -> None:
        self.wait(lambda: set(self.aside()) == {*names}, f"{names} are not set aside")

    def wait_for_others(self, number: int) -> None:
        """Wait until a later change of another table has arrived."""
        self.pair.source.execute(f"INSERT INTO other VALUES ({number}, {number})")
        query = f"SELECT count(*) FROM other WHERE id = {number}"
        self.wait(lambda: self.pair.target.execute(query) == [(1,)], f"other rows after change {number}")

    def wait_for_equal(self, table: str, aside: Collection[str] = ()) -> None:
        def is_equal() -> bool:
            if set(self.aside()) != {*aside}:
                return False
            source, target = self.pair.rows(f"SELECT to_jsonb(t) FROM {table} t ORDER BY 1")
            return source == target

        self.wait(is_equal, f"{table} is not equal")


@contextmanager
def following(pair: Pair, *, follow_ddl: bool = False) -> Iterator[Follower]:
    follower = Follower(pair, follow_ddl=follow_ddl)
    thread = threading.Thread(target=follower.follow, daemon=True)
    thread.start()
    try:
        yield follower
    finally:
        ending.stop(pair.request, timeout=30)
        thread.join(30)
    assert not follower.errors, follower.errors


def sync_of(pair: Pair) -> trueup.Sync:
    nodes = {"n1": pair.request.source.conninfo, "n2": pair.request.target.conninfo}
    return trueup.Sync("n1", "n2", nodes=nodes, engine="local")


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_each_kind_of_change_concerns_one_table(versions: Pair, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = versions
    pair.both(TABLES + PARTS)
    pair.source.execute(ROWS)
    pair.start()
    with following(pair) as follower:
        for number, (table, change) in enumerate(KINDS.items(), 1):
            name = change.split()[-1] if table == "renamed" else table
            pair.source.execute(f"ALTER TABLE {table} {change}; DELETE FROM {name} WHERE id < 5")
            pair.source.execute(f"INSERT INTO {name} (id, u) VALUES (100, 100)")
            follower.wait_for_others(number)
            follower.wait_for_aside(f"public.{table}")
            apply(pair)
            follower.wait_for_equal(name)
        # Values that change without a trigger and with the same type.
        pair.source.execute("ALTER TABLE used ALTER n TYPE int USING n * 2 + 1")
        follower.wait_for_equal("used")
        # Another table takes the name on the target.
        pair.target.execute("ALTER TABLE swapped RENAME TO former; CREATE TABLE swapped (LIKE former INCLUDING ALL)")
        pair.source.execute("INSERT INTO swapped VALUES (2, 2, 2)")
        follower.wait(lambda: "another table has its name" in follower.aside().get("public.swapped", ""), "not noticed")
        follower.wait_for_others(50)
        assert pair.target.execute("SELECT count(*) FROM swapped") == [(0,)]
        pair.target.execute("DROP TABLE swapped; ALTER TABLE former RENAME TO swapped")
        follower.wait_for_equal("swapped")
        # A partition that the target does not have, and one that is gone.
        new = "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)"
        pair.source.execute(f"{new}; INSERT INTO parts VALUES (1, 25)")
        follower.wait_for_aside("public.parts")
        follower.wait_for_others(51)
        apply(pair)
        follower.wait_for_equal("parts")
        # A partition with another name keeps its rows.
        pair.source.execute("ALTER TABLE parts_3 RENAME TO parts_last")
        assert "DETACH" not in ddl_text(apply_ddl.differences(pair.request))
        apply(pair)
        assert pair.target.execute("SELECT count(*) FROM parts_last") == [(1,)]
        follower.wait_for_equal("parts")
        pair.source.execute("ALTER TABLE parts DETACH PARTITION parts_1; DROP TABLE parts_1")
        follower.wait_for_equal("parts")
        # A constraint that only the target has.
        pair.source.execute("ALTER TABLE other DROP CONSTRAINT other_u_key")
        pair.source.execute("INSERT INTO other VALUES (60, 1, 1), (61, 1, 1)")
        follower.wait(lambda: "refused its rows" in follower.aside().get("public.other", ""), "not set aside")
        pair.source.execute("UPDATE t9 SET n = 1; INSERT INTO t9 VALUES (1)")
        follower.wait(lambda: pair.target.execute("SELECT id FROM t9") == [(1,)], "t9 did not go on")
        pair.target.execute("ALTER TABLE other DROP CONSTRAINT other_u_key")
        follower.wait_for_equal("other")
        # New and dropped tables.
        pair.source.execute(CREATED + "INSERT INTO created (n) SELECT generate_series(1, 9); DROP TABLE t9")
        follower.wait_for_aside("public.created", "sequence public.created_id_seq", "public.t9")
        follower.wait_for_others(70)
        apply(pair)
        follower.wait_for_equal("created")
        query = "SELECT to_regclass('t9'), count(*) FROM pg_constraint WHERE conname = 'positive'"
        assert pair.target.execute(query) == [(None, 1)]
        # A default with code of another role would run with our rights.
        pair.both("CREATE FUNCTION theirs() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        pair.both(f"ALTER FUNCTION theirs() OWNER TO {role}")
        pair.source.execute("ALTER TABLE bare ADD COLUMN d int DEFAULT theirs()")
        follower.wait_for_aside("public.bare")
        (refused,) = apply_ddl.apply(pair.request, drops=True, timeout=30)[0]
        assert f"calls the function public.theirs() of the role {role}" in refused.problem
        pair.source.execute("ALTER TABLE bare DROP COLUMN d")
        follower.wait_for_equal("bare")
        # A table is added while the sync runs; the first attempt is killed behind the triggers.
        pair.both("CREATE TABLE added (id int PRIMARY KEY)")
        pair.source.execute("INSERT INTO added SELECT generate_series(1, 9)")
        with monkeypatch.context() as patch:
            patch.setattr(changelog, "wait_for_older_transactions", interrupt)
            with pytest.raises(KeyboardInterrupt):
                change_tables.add(pair.request, ["added"])
        pair.source.execute("DELETE FROM added WHERE id = 1; INSERT INTO added VALUES (10)")
        follower.wait_for_aside("public.added")
        added = change_tables.add(pair.request, ["added"])
        assert [*map(str, added)] == ["public.added"]
        assert change_tables.wait_until_copied(pair.request, added, timeout=60)
        pair.source.execute("INSERT INTO added VALUES (11)")
        follower.wait_for_equal("added")
        # Triggers that were disabled for a while: the table is copied again.
        pair.source.execute(
            "ALTER TABLE used DISABLE TRIGGER ALL; DELETE FROM used; ALTER TABLE used ENABLE TRIGGER ALL"
        )
        follower.wait_for_aside("public.used")
        change_tables.add(pair.request, ["used"])
        follower.wait_for_equal("used")
        change_tables.remove(pair.request, ["used"], timeout=30)
        pair.target.execute("INSERT INTO used VALUES (2)")
        with pytest.raises(CheckFailed, match="it is not empty on the target"):
            change_tables.add(pair.request, ["used"])
    assert not pair.run().aside
    left_out = "SELECT name, why, left_out FROM trueup.sync_left_out JOIN trueup.syncs USING (sync)"
    assert pair.target.execute(left_out) == [("public.used", "trueup sync remove", [])]
    assert pair.source.execute("SELECT count(*) FROM trueup_log.pods_main") == [(0,)]


# Changes of tables while `start` copies, whether the table is set aside after it, and at which moments.
WHILE_COPYING = {
    "added": ("ALTER TABLE {0} ADD COLUMN c int DEFAULT 7", True, "early before attaching waiting while after"),
    "dropped": ("ALTER TABLE {0} DROP COLUMN n", True, "while"),
    "called": ("ALTER TABLE {0} RENAME n TO m", True, "waiting while"),
    "keyed": ("ALTER TABLE {0} RENAME id TO number; DELETE FROM {0} WHERE number = 3", True, "early recording while"),
    "replaced": (
        "ALTER TABLE {0} RENAME TO {0}_since; CREATE TABLE {0} (id int PRIMARY KEY); INSERT INTO {0} VALUES (1)",
        True,
        "early",
    ),
    "typed": ("ALTER TABLE {0} ALTER n TYPE bigint USING n * 10", True, "before while after"),
    "renamed": ("ALTER TABLE {0} RENAME TO {0}_since", True, "before waiting while after"),
    "gone": ("DROP TABLE {0}", True, "before while after"),
    "truncated": ("TRUNCATE {0}; INSERT INTO {0} VALUES (1, 1, 'x')", False, "while after"),
    "indexed": ("CREATE INDEX ON {0} (n); DELETE FROM {0} WHERE id = 1", False, "while"),
}
MOMENTS = {
    # The copy locks all tables.
    "ordered": ("early", "before", "attaching", "recording", "waiting", "after"),
    "replica": ("early", "before", "attaching", "recording", "waiting", "while", "after"),
    "create_schema": ("early", "before", "recording", "waiting", "while", "after"),
}


class Killed(BaseException):
    """Ends `start` where a kill would."""


@pytest.mark.parametrize("mode", [*MOMENTS])
def test_a_change_of_a_table_during_start_concerns_that_table_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    kinds = {
        f"{kind}_{moment}": kind
        for kind, (_, _, moments) in WHILE_COPYING.items()
        for moment in moments.split()
        if moment in MOMENTS[mode]
    }
    tables = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, f text);" for name in [*kinds, "other"])
    parent = "renamed_waiting" if mode == "ordered" else "added_waiting"
    tables += f"CREATE TABLE child (id int PRIMARY KEY REFERENCES {parent});"
    tables += "CREATE TABLE keyless (n int, f text);" + PARTS + PARTS.replace("parts", "late")
    pair.source.execute(tables) if mode == "create_schema" else pair.both(tables)
    text = "INSERT INTO {} SELECT g, g, repeat('x', 500) FROM generate_series(1, 40) g;"
    pair.source.execute("".join(text.format(name) for name in [*kinds, "other"]))
    pair.source.execute("INSERT INTO keyless SELECT n, f FROM other; INSERT INTO child VALUES (1)")
    pair.source.execute("INSERT INTO parts SELECT g, g % 20 FROM generate_series(1, 40) g")
    done: set[str] = set()
    epochs: set[int] = set()
    lock = threading.Lock()

    def change(moment: str, table: str = "") -> None:
        for name, kind in kinds.items():
            if name.endswith(moment) and table in ("", f"public.{name}"):
                pair.source.execute(WHILE_COPYING[kind][0].format(name))
        if not table and moment in ("before", "after"):
            new = f"CREATE TABLE new_{moment} (id int PRIMARY KEY); INSERT INTO new_{moment} VALUES (1)"
            pair.source.execute(new)

    def is_first(what: str) -> bool:
        with lock:
            known = what in done
            done.add(what)
        return not known

    real_install, real_once, real_phase = changelog.install, copy.copy_once, state.set_phase
    real_attach, real_wait, real_later = changelog.attach, changelog.wait_for_older_transactions, reshaped.copy_later

    real_changes = reshaped.record_changes

    def record_changes(*arguments: Any) -> Any:
        # After --create-schema has created the tables, or they were found on the target.
        if is_first("early"):
            change("early")
        return real_changes(*arguments)

    real_record = members.record

    def record(*arguments: Any, **options: Any) -> Any:
        # After the tables were checked.
        if "install" in done and is_first("record"):
            change("recording")
        return real_record(*arguments, **options)

    def install(*arguments: Any, **options: Any) -> Any:
        if is_first("install"):
            change("before")
        return real_install(*arguments, **options)

    def attach(log: Any, name: str, tables: Any, *, timeout: float) -> Any:
        if [str(table) for table in tables] == ["public.added_attaching"] and is_first("attach"):
            change("attaching", "public.added_attaching")
        return real_attach(log, name, tables, timeout=timeout)

    def wait(*arguments: Any, **options: Any) -> None:
        if is_first("wait"):
            change("waiting")
        real_wait(*arguments, **options)

    def once(part: copy.Part) -> copy.Copied:
        copied, name = real_once(part), str(part.table)
        epochs.add(part.job.epoch)
        if is_first(name):
            change("while", name)
            if name == "public.parts" and mode != "ordered":
                new = "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)"
                pair.source.execute(f"{new}; INSERT INTO parts VALUES (1, 25)")
        return copied

    def later(*arguments: Any) -> None:
        if mode == "replica" and is_first("later"):
            raise Killed
        real_later(*arguments)

    def set_phase(target: Any, name: str, epoch: int, phase: str) -> None:
        real_phase(target, name, epoch, phase)
        if phase == "copied":
            change("after")
            # No row needs it before the indexes are built.
            pair.source.execute("CREATE TABLE late_3 PARTITION OF late FOR VALUES FROM (20) TO (30)")

    monkeypatch.setattr(reshaped, "record_changes", record_changes)
    monkeypatch.setattr(members, "record", record)
    monkeypatch.setattr(changelog, "install", install)
    monkeypatch.setattr(changelog, "attach", attach)
    monkeypatch.setattr(changelog, "wait_for_older_transactions", wait)
    monkeypatch.setattr(copy, "copy_once", once)
    monkeypatch.setattr(reshaped, "copy_later", later)
    monkeypatch.setattr(state, "set_phase", set_phase)
    monkeypatch.setattr(copy, "LEAST_BYTES", 8192)
    monkeypatch.setattr(copy, "PART_BYTES", 8192)
    if mode == "ordered":
        monkeypatch.setattr(plan_keys, "silence_triggers", lambda target: False)
    if mode == "create_schema":
        # A table whose rows are refused is set aside, however often that happens.
        monkeypatch.setattr(snapshot_copy, "ATTEMPTS", 1)
    scoped = pair.with_scope(Scope("main", create_schema=mode == "create_schema"))
    if mode == "replica":
        with pytest.raises(Killed):
            scoped.start()
        # Tasks of the first attempt cannot write after another one began.
        assert len(epochs) > 1
        assert pair.known().phase == "copying"
    plan = scoped.start()
    assert pair.known().phase == "running"
    aside = {problem.where: str(problem) for problem in plan.problems}
    for name, kind in kinds.items():
        assert (f"public.{name}" in aside) == WHILE_COPYING[kind][1], name
    assert {"public.new_before", "public.new_after"} <= aside.keys()
    assert ("public.child" in aside) == (mode == "ordered"), aside["public.child"]
    assert "public.other" not in aside
    pair.check_equal(["other", "keyless"])
    pair.run()
    pair.check_equal(["other", "keyless", *(name for name in kinds if not WHILE_COPYING[kinds[name]][1])])
    if mode != "create_schema":
        # Without a default: the rows of the target get no value.
        pair.target.execute("ALTER TABLE added_attaching ADD COLUMN c int")
        totals = pair.run()
        assert not [problem for problem in totals.aside if problem.where == "public.added_attaching"]
        pair.check_equal(["added_attaching"])
    # `sync ddl` makes the target like the source, and rounds copy what is missing.
    first = True
    for _ in range(3):
        found = apply_ddl.apply(pair.request, drops=True, timeout=30)[0]
        # Keys are created before the foreign keys that refer to them; a rename is no reason to delete rows.
        assert not [each.problem for each in found if "no unique constraint" in each.problem]
        keyed = [each.change for each in found if ".keyed_" in each.change.table and each.change.statements]
        assert len(keyed) == (sum(kind == "keyed" for kind in kinds.values()) if first else 0)
        assert all("RENAME COLUMN" in change.statements[0].text and not change.empties for change in keyed)
        first = False
        totals = pair.run()
        if not found:
            break
    assert not totals.aside
    assert not apply_ddl.differences(pair.request).changes
    now = [f"{name}_since" if kind == "renamed" else name for name, kind in kinds.items() if kind != "gone"]
    now += [f"{name}_since" for name, kind in kinds.items() if kind == "replaced"]
    pair.source.execute("INSERT INTO late VALUES (1, 25)")
    pair.run()
    pair.check_equal([*now, "late", "other", "keyless", "parts", "child", "new_before", "new_after"])


def test_a_running_sync_follows_all_kinds_at_once_and_drops_nothing(versions: Pair) -> None:
    pair = versions
    pair.both(TABLES + PARTS + CREATED)
    pair.source.execute(ROWS + "; UPDATE bare SET n = NULL WHERE id < 9; INSERT INTO created (n) VALUES (1), (2)")
    pair.start()
    written = pair.target.execute("SELECT id, xmin FROM used ORDER BY id")
    with following(pair, follow_ddl=True) as follower:
        pair.source.execute(AT_ONCE)
        for table in FOLLOWED:
            follower.wait_for_equal(table, aside={"public.dropped_column"})
        # Tables whose names others have now are still in the sync, and were not copied.
        assert pair.target.execute("SELECT id, xmin FROM used_old ORDER BY id") == written
        pair.source.execute("INSERT INTO used_old VALUES (99); INSERT INTO used VALUES (2); DELETE FROM renamed")
        for table in ("used_old", "used", "renamed"):
            follower.wait_for_equal(table, aside={"public.dropped_column"})
        # Dropped on the source, and kept here.
        assert pair.target.execute("SELECT count(u) FROM dropped_column") == [(40,)]
    apply(pair)
    assert not pair.run().aside
    pair.check_equal([*FOLLOWED, "dropped_column"])
    assert ddl_text(apply_ddl.differences(pair.request)) == "the tables of both databases are the same"


def test_definitions_that_differ_under_the_same_name(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.both(
        "CREATE TABLE d (id int PRIMARY KEY, n int CONSTRAINT positive CHECK (n > 0), t text DEFAULT 'a', s int);"
        "CREATE INDEX d_n ON d (n); CREATE TABLE g (id int PRIMARY KEY, n int);" + PARTS
    )
    pair.source.execute("ALTER TABLE g ADD COLUMN x int GENERATED ALWAYS AS (n * 2) STORED")
    pair.target.execute("ALTER TABLE g ADD COLUMN x int GENERATED ALWAYS AS (n * 3) STORED")
    pair.target.execute("ALTER TABLE d DROP CONSTRAINT positive, ADD CONSTRAINT positive CHECK (n > -5)")
    pair.target.execute("DROP INDEX d_n; CREATE INDEX d_n ON d (n DESC)")
    pair.source.execute("INSERT INTO d SELECT g, g, g::text, g FROM generate_series(1, 40) g")
    pair.start()
    pair.source.execute("ALTER TABLE d ALTER id ADD GENERATED BY DEFAULT AS IDENTITY, ALTER t SET DEFAULT 'z'")
    pair.source.execute("ALTER TABLE d ALTER s SET NOT NULL; ALTER TABLE d ENABLE ROW LEVEL SECURITY")
    # The partitions lack it: it is not valid.
    pair.target.execute("ALTER TABLE parts DROP CONSTRAINT parts_pkey")
    pair.target.execute("ALTER TABLE ONLY parts ADD CONSTRAINT parts_pkey PRIMARY KEY (id, day)")
    pair.source.execute("INSERT INTO parts VALUES (1, 1)")
    shown = ddl_text(apply_ddl.differences(pair.request)).replace('"', "").splitlines()
    for line in (
        "ALTER TABLE public.d DROP CONSTRAINT positive;  -- only with --apply",
        "ALTER TABLE public.d ADD CONSTRAINT positive CHECK ((n > 0)) NOT VALID;  -- only with --apply",
        "ALTER TABLE public.d VALIDATE CONSTRAINT positive;  -- only with --apply; reads the whole table",
        "DROP INDEX public.d_n;  -- only with --apply",
        "CREATE INDEX d_n ON public.d USING btree (n);  -- only with --apply; reads the table to build an index",
        "ALTER TABLE public.d ALTER COLUMN t SET DEFAULT 'z'::text;",
        "ALTER TABLE public.d ALTER COLUMN s SET NOT NULL;  -- reads the whole table",
    ):
        assert line in shown
    assert any("ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY" in line for line in shown)
    assert any(line.startswith("ALTER TABLE public.g ALTER COLUMN x SET EXPRESSION AS ((n * 2));") for line in shown)
    assert "public.g" in {problem.where for problem in pair.run().aside}
    # A running sync does not replace them.
    done, _ = apply_ddl.apply(pair.request, drops=False, timeout=30)
    assert {each.problem for each in done} == {""}
    query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'positive'"
    assert pair.target.execute(query) == [("CHECK ((n > '-5'::integer))",)]
    apply(pair)
    pair.run()
    pair.check_equal(["d", "parts"])
    shown = ddl_text(apply_ddl.differences(pair.request)).replace('"', "").splitlines()
    assert "-- by hand: table public.d differs (row security); a switchover compares it" in shown
    assert all(line.startswith("-- by hand: ") for line in shown)
    # What only a user can decide has the same cure in `status` and `ddl`.
    pair.target.execute("ALTER TABLE d ADD COLUMN only_here text")
    pair.source.execute("ALTER TABLE d ADD COLUMN more text NOT NULL DEFAULT 'x'; ALTER TABLE g DROP CONSTRAINT g_pkey")
    cures = {problem.where: problem.cure for problem in pair.run().aside}
    assert cures["public.g"] == "create the key on the source again, or drop it on the target"
    ends = [f"--node=n1={pair.source.uri}", f"--node=n2={pair.target.uri}", "--from=n1", "--to=n2"]
    capsys.readouterr()
    assert run(["sync", "ddl", "--apply", *ends]) == 2
    shown = capsys.readouterr().out.splitlines()
    only = "exists only on the target: drop it there, or create it on the source"
    assert f"by hand: public.g: the constraint g_pkey {only}" in shown
    ambiguous = "by hand: public.d: column more does not exist on the target: if it is only_here"
    assert any(line.startswith(ambiguous) for line in shown)
    # It may be the same column: no row is deleted.
    assert pair.target.execute("SELECT count(*) FROM d") == [(40,)]


def test_a_name_is_given_to_a_new_table_and_ddl_makes_both(pair: Pair) -> None:
    pair.both("CREATE TABLE scratch (id int PRIMARY KEY, n int); CREATE TABLE hand (id int PRIMARY KEY)")
    pair.source.execute("INSERT INTO scratch VALUES (1, 1); INSERT INTO hand VALUES (1)")
    pair.start()
    again = "ALTER TABLE {0} RENAME TO {0}_old; CREATE TABLE {0} (id int PRIMARY KEY, uid text)"
    pair.source.execute(f"{again.format('scratch')}; INSERT INTO scratch VALUES (7, 'a'), (8, 'b')")
    pair.source.execute(f"{again.format('hand')}; INSERT INTO hand VALUES (7, 'a')")
    # By hand: only the new one has to be added.
    pair.target.execute(again.format("hand"))
    pair.source.execute("INSERT INTO hand_old VALUES (2)")
    aside = [problem for problem in pair.run().aside if "scratch" not in problem.where]
    assert [(problem.where, problem.cure.partition(";")[0]) for problem in aside] == [
        ("public.hand", "add it: trueup sync add public.hand")
    ]
    pair.check_equal(["hand_old"])
    change_tables.add(pair.request, ["hand"])
    # Without a run between the statements.
    shown = pair.plan().problems
    assert {problem.where for problem in shown} == {"public.scratch"}
    assert any("was renamed to public.scratch_old" in problem.what for problem in shown)
    apply(pair)
    assert ddl_text(apply_ddl.differences(pair.request)) == "the tables of both databases are the same"
    assert not pair.run().aside
    pair.source.execute("INSERT INTO scratch_old VALUES (2, 2); DELETE FROM scratch WHERE id = 7; TRUNCATE hand_old")
    assert not pair.run().aside
    pair.check_equal(["scratch", "scratch_old", "hand", "hand_old"])
    names = "SELECT array_agg(name ORDER BY name) FROM trueup.sync_tables"
    assert pair.target.execute(names) == [(["public.hand", "public.hand_old", "public.scratch", "public.scratch_old"],)]


def test_labels_of_enums_and_a_copy_beside_a_table_that_is_set_aside(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Changed labels are noticed by the next round, not only when all tables are checked again.
    monkeypatch.setattr(following_module, "LEAST_SECONDS", 1000.0)
    pair.both("CREATE TYPE mood AS ENUM ('x', 'y'); CREATE TYPE other AS ENUM ('a')")
    pair.both("CREATE TABLE en (id int PRIMARY KEY, m mood, ms mood[]); CREATE TABLE acc (id int PRIMARY KEY, n int)")
    pair.source.execute("INSERT INTO en VALUES (1, 'x', '{x,y}'); INSERT INTO acc VALUES (1, 1)")
    pair.start()
    with following(pair, follow_ddl=True) as follower:
        pair.source.execute("ALTER TYPE mood RENAME VALUE 'x' TO 'it''s'; ALTER TYPE other RENAME VALUE 'a' TO 'b'")
        follower.wait_for_aside("public.en")
        pair.source.execute(
            "ALTER TABLE acc DISABLE TRIGGER ALL; UPDATE acc SET n = 2; ALTER TABLE acc ENABLE TRIGGER ALL"
        )
        follower.wait_for_aside("public.en", "public.acc")
        added = change_tables.add(pair.request, ["acc"])
        assert change_tables.wait_until_copied(pair.request, added, timeout=60)
        follower.wait_for_equal("acc", aside=["public.en"])
        (problem,) = pair.known().aside
        assert problem.cure == "make both tables the same: trueup sync ddl"
        assert ddl_text(apply_ddl.differences(pair.request)).splitlines() == [
            "-- type public.mood",
            """ALTER TYPE "public"."mood" RENAME VALUE 'x' TO 'it''s';  -- only with --apply""",
        ]
        apply(pair)
        follower.wait_for_equal("en")
        # New labels are followed without a command.
        pair.source.execute("ALTER TYPE mood ADD VALUE 'first' BEFORE 'it''s'; ALTER TYPE mood ADD VALUE 'last'")
        pair.source.execute("INSERT INTO en VALUES (2, 'first', '{last}')")
        follower.wait_for_equal("en")
    order = "SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = 'mood'::regtype"
    assert pair.target.execute(order) == pair.source.execute(order)
    # No statement makes these equal. Without a running sync, a copy does not wait for the other table either.
    pair.target.execute("ALTER TYPE mood ADD VALUE 'mine'")
    pair.source.execute("ALTER TYPE mood RENAME VALUE 'y' TO 'z'")
    assert {problem.where for problem in pair.run().aside} == {"public.en"}
    (line,) = ddl_text(apply_ddl.differences(pair.request)).splitlines()
    assert line.startswith("-- by hand: type public.mood: its labels differ, and it is not clear how: (first, it's, z,")
    synced = sync_of(pair)
    assert synced.add(["acc"]) == ("public.acc",)
    pair.target.execute("ALTER TABLE acc ADD CHECK (n > 100) NOT VALID")
    with pytest.raises(CheckFailed, match=r"set aside, and not copied: public\.acc: the target refused its rows"):
        synced.add(["acc"])


def test_a_change_between_the_copy_and_the_indexes_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are checked again after the copy only if a fingerprint of either database has changed."""
    made: list[Plan] = []
    real_phase, real_plan = state.set_phase, sync_plan.make_plan
    pending: list[tuple[Database, str]] = []

    def set_phase(target: Any, name: str, epoch: int, phase: str) -> None:
        real_phase(target, name, epoch, phase)
        if phase == "copied" and pending:
            database, statement = pending.pop()
            database.execute(statement)

    def make_plan(*arguments: Any) -> Plan:
        made.append(real_plan(*arguments))
        return made[-1]

    monkeypatch.setattr(state, "set_phase", set_phase)
    monkeypatch.setattr(check, "make_plan", make_plan)
    for changes, aside in (
        ([], []),
        ([(pair.source, "ALTER TABLE one ADD more int")], ["public.one"]),
        ([(pair.target, "ALTER TABLE two ALTER n TYPE bigint")], ["public.two"]),
    ):
        pending += changes
        pair.both("DROP TABLE IF EXISTS one, two")
        pair.both("CREATE TABLE one (id int PRIMARY KEY, n int); CREATE TABLE two (id int PRIMARY KEY, n int)")
        made.clear()
        assert [problem.where for problem in pair.start().problems] == aside
        assert len(made) == (3 if aside else 2)
        pair.drop()


def test_a_trigger_that_is_disabled_between_its_check_and_the_first_round(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fingerprint is that of the check: a later one would hide the change for as long as the link is open."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY, n int)")
    pair.source.execute("INSERT INTO acc VALUES (1, 1)")
    pair.start()
    unseen = ["ALTER TABLE acc DISABLE TRIGGER ALL; UPDATE acc SET n = 2; ALTER TABLE acc ENABLE TRIGGER ALL"]
    set_aside = state.set_aside

    def late(*arguments: Any) -> None:
        set_aside(*arguments)
        if unseen:
            pair.source.execute(unseen.pop())

    monkeypatch.setattr(state, "set_aside", late)
    (problem,) = pair.run().aside
    assert not unseen
    assert problem.where == "public.acc"
    assert "changes may not have been recorded: triggers are missing, disabled or replaced" in problem.what


@pytest.mark.parametrize("more", ["", "; CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)"])
@pytest.mark.parametrize("place", ["parts", "parts_1"])
def test_a_trigger_of_a_partition_that_is_disabled_while_a_sync_runs(pair: Pair, place: str, more: str) -> None:
    """Also with a new partition, whose triggers are created."""
    pair.both(PARTS)
    pair.source.execute("INSERT INTO parts SELECT g, g % 20 FROM generate_series(1, 40) g")
    pair.start()
    with following(pair) as follower:
        pair.source.execute("INSERT INTO parts VALUES (100, 1)")
        follower.wait_for_equal("parts")
        pair.source.execute(f"ALTER TABLE {place} DISABLE TRIGGER ALL; DELETE FROM parts_1 WHERE id < 5")
        pair.source.execute(f"ALTER TABLE {place} ENABLE TRIGGER ALL{more}")
        follower.wait_for_aside("public.parts")
    assert "triggers are missing, disabled or replaced" in pair.run().aside[0].what


def test_a_partitioned_table_without_partitions(pair: Pair) -> None:
    pair.both(PARTS)
    pair.source.execute("INSERT INTO parts SELECT g, g % 20 FROM generate_series(1, 40) g")
    pair.start()
    pair.both("DROP TABLE parts_1, parts_2")
    pair.run()
    assert not pair.run().aside
    pair.check_equal(["parts"])


@pytest.mark.parametrize(
    "definition",
    [
        "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows WHEN (false) {function}",
        "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows EXECUTE FUNCTION mine()",
        "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS new_rows NEW TABLE AS old_rows {function}",
        "AFTER INSERT ON {table} REFERENCING NEW TABLE AS new_rows {function}",
        "AFTER UPDATE OF id ON {table} {function}",
    ],
)
def test_a_trigger_that_its_owner_replaced(pair: Pair, definition: str) -> None:
    """It has the name and the state of the trigger, and captures less: it is noticed, and `add` creates it again."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY, day int)")
    pair.both(PARTS)
    pair.source.execute("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    pair.source.execute("INSERT INTO acc VALUES (1, 1); INSERT INTO parts VALUES (1, 1)")
    pair.start()
    roots, tables = ("acc", "parts"), ("acc", "parts_1")
    aside: list[str] = []
    with following(pair) as follower:
        for root, table in zip(roots, tables, strict=True):
            pair.source.execute(f"INSERT INTO {root} VALUES (2, 2)")
            follower.wait_for_equal(root, aside)
            [(function,)] = pair.source.execute(
                "SELECT 'EXECUTE FUNCTION ' || tgfoid::regproc || '()' FROM pg_trigger"
                f" WHERE tgrelid = '{table}'::regclass AND tgname = 'trueup_log_main_update'"
            )
            statement = definition.format(table=table, function=function)
            pair.source.execute(
                f"CREATE OR REPLACE TRIGGER trueup_log_main_update {statement};"
                f" ALTER TABLE {table} ENABLE ALWAYS TRIGGER trueup_log_main_update"
            )
            aside.append(f"public.{root}")
            follower.wait_for_aside(*aside)
    # Nothing of it is recorded: a write by the replaced trigger would fail or name wrong rows.
    for root in roots:
        pair.source.execute(f"DELETE FROM {root} WHERE id = 1")
    problems = {problem.where: problem.what for problem in pair.run().aside}
    assert set(problems) == {"public.acc", "public.parts"}
    assert all("triggers are missing, disabled or replaced" in what for what in problems.values())
    sync_of(pair).add(roots)
    assert not pair.run().aside
    pair.check_equal(roots)
    for table in tables:
        pair.source.execute(f"UPDATE {table} SET id = id + 100")
    assert not pair.run().aside
    pair.check_equal(roots)


@pytest.mark.parametrize(
    ("table", "kind", "event"),
    [
        ("acc", "update", "AFTER UPDATE"),
        ("parts_1", "update", "AFTER UPDATE"),
        ("parts", "moved", "AFTER INSERT OR DELETE"),
        # The trigger of the table is dropped, with its clone.
        ("parts_1", "row", "AFTER INSERT OR UPDATE OR DELETE"),
    ],
)
def test_a_constraint_trigger_in_the_place_of_a_trigger(pair: Pair, table: str, kind: str, event: str) -> None:
    """The server does not replace it by another trigger: it is dropped first."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY, day int)")
    pair.both(PARTS)
    root, name = ("acc" if table == "acc" else "parts"), f"trueup_log_main_{kind}"
    pair.source.execute(f"INSERT INTO {root} VALUES (1, 1)")
    pair.start()
    pair.source.execute(
        "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f" DROP TRIGGER {name} ON {root if kind == 'row' else table};"
        f" CREATE CONSTRAINT TRIGGER {name} {event} ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        f" EXECUTE FUNCTION mine(); ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {name}"
    )
    assert "triggers are missing, disabled or replaced" in pair.run().aside[0].what
    sync_of(pair).add([root])
    assert not pair.run().aside
    pair.source.execute(f"INSERT INTO {root} VALUES (2, 2); UPDATE {table} SET id = id + 100")
    assert not pair.run().aside
    pair.check_equal([root])


@pytest.mark.parametrize("trigger", ["moved", "again", "row"])
def test_a_trigger_for_each_row_that_its_owner_replaced(pair: Pair, trigger: str) -> None:
    """Its clones on the partitions are replaced with it, and created again with it."""
    pair.both(PARTS)
    pair.source.execute("INSERT INTO parts VALUES (1, 1), (2, 2), (3, 11)")
    pair.start()
    events = {"moved": "AFTER INSERT OR DELETE", "again": "BEFORE UPDATE", "row": "AFTER INSERT OR UPDATE OR DELETE"}
    name = f"trueup_log_main_{trigger}"
    [(function,)] = pair.source.execute(
        "SELECT substring(pg_get_triggerdef(oid) FROM 'EXECUTE.*') FROM pg_trigger"
        f" WHERE tgrelid = 'parts'::regclass AND tgname = '{name}'"
    )
    pair.source.execute(
        f"CREATE OR REPLACE TRIGGER {name} {events[trigger]} ON parts FOR EACH ROW WHEN (false) {function}"
    )
    for place in ("parts", "parts_1", "parts_2"):
        pair.source.execute(f"ALTER TABLE ONLY {place} ENABLE ALWAYS TRIGGER {name}")
    assert "triggers are missing, disabled or replaced" in pair.run().aside[0].what
    sync_of(pair).add(["parts"])
    assert not pair.run().aside
    states = (
        "SELECT tgrelid::regclass::text, tgname, tgenabled, tgqual IS NULL FROM pg_trigger"
        " WHERE tgname LIKE 'trueup%' ORDER BY 1, 2"
    )
    after = pair.source.execute(states)
    pair.source.execute(
        "MERGE INTO parts p USING (VALUES (1, 1), (3, 11)) v(id, day) ON p.id = v.id AND p.day = v.day"
        " WHEN MATCHED THEN UPDATE SET day = 12 - p.day"
    )
    assert not pair.run().aside
    pair.check_equal(["parts"])
    # As they were created first.
    pair.drop()
    pair.target.execute("TRUNCATE parts")
    pair.start()
    assert pair.source.execute(states) == after


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE parts_1 ALTER n TYPE int USING n * 10",
        # The file stays the same.
        "ALTER TABLE parts_1 DROP n; ALTER TABLE parts_1 ADD n int DEFAULT 7",
    ],
)
def test_a_partition_that_is_changed_while_it_is_detached(pair: Pair, change: str) -> None:
    """No trigger sees it, and the table has the same partitions afterwards."""
    pair.both(PARTS + "ALTER TABLE parts ADD n int")
    pair.source.execute("INSERT INTO parts SELECT g, g % 20, g FROM generate_series(1, 40) g")
    pair.start()
    detach, attach = (
        "ALTER TABLE parts DETACH PARTITION parts_1;",
        "ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (0) TO (10);",
    )
    with following(pair) as follower:
        pair.source.execute("INSERT INTO parts VALUES (100, 1, 1)")
        follower.wait_for_equal("parts")
        pair.source.execute(f"{detach}{change};{attach}")
        follower.wait_for_equal("parts")
    # While no sync runs; and a check of rewritten tables that runs after, or during it, is not repeated.
    follow = "SELECT trueup_log.tube_reload_follow('main');"
    for meanwhile, after in (("", ""), ("", follow), (follow, "")):
        pair.source.execute(f"{detach}{meanwhile}{change};{attach}{after}")
        assert not pair.run().aside
        pair.check_equal(["parts"])


@pytest.mark.parametrize("table", ["acc", "parts"])
def test_a_table_that_was_a_partition_for_a_time(pair: Pair, table: str) -> None:
    """Statements on the other table fire no statement trigger: the rows are copied again."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY, day int)" if table == "acc" else PARTS)
    pair.source.execute(f"INSERT INTO {table} SELECT g, g % 10 FROM generate_series(1, 40) g")
    pair.start()
    unseen = (
        "BEGIN; CREATE TABLE above (id int, day int) PARTITION BY RANGE (id);"
        f"ALTER TABLE above ATTACH PARTITION {table} FOR VALUES FROM (0) TO (1000);"
        "DELETE FROM above WHERE id = {}; INSERT INTO above VALUES ({} + 100, 1);"
        f"ALTER TABLE above DETACH PARTITION {table}; DROP TABLE above; COMMIT"
    )
    with following(pair) as follower:
        pair.source.execute(f"INSERT INTO {table} VALUES (100, 1)")
        follower.wait_for_equal(table)
        pair.source.execute(unseen.format(1, 1))
        follower.wait_for_equal(table)
    pair.source.execute(unseen.format(2, 2))
    assert not pair.run().aside
    pair.check_equal([table])


def test_a_round_sees_a_parent_without_columns(pair: Pair) -> None:
    """Nothing of it remains in the catalog."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY)")
    pair.source.execute("CREATE SCHEMA other; CREATE TABLE other.above (); INSERT INTO acc VALUES (1), (2)")
    pair.request = replace(pair.request, scope=replace(pair.request.scope, tables=("public.acc",)))
    pair.start()
    with following(pair) as follower:
        pair.source.execute("INSERT INTO acc VALUES (3)")
        follower.wait_for_equal("acc")
        pair.source.execute("ALTER TABLE acc INHERIT other.above")
        is_child = "SELECT (parents -> 'has_parent')::boolean FROM trueup_log.sources"
        assert wait_until(lambda: pair.source.execute(is_child) == [(True,)], 60)
        pair.source.execute("DELETE FROM other.above")
        pair.source.execute("ALTER TABLE acc NO INHERIT other.above")
        follower.wait_for_equal("acc")
    assert not pair.run().aside
    pair.check_equal(["acc"])


@pytest.mark.parametrize(("root", "place"), [("acc", "acc"), ("parts", "parts"), ("parts", "parts_1")])
def test_triggers_that_their_owner_disables_and_enables_again(pair: Pair, root: str, place: str) -> None:
    """All of them have their former state afterwards: the table is copied again."""
    pair.both("CREATE TABLE acc (id int PRIMARY KEY, day int)" if root == "acc" else PARTS)
    pair.source.execute(f"INSERT INTO {root} SELECT g, g % 10 FROM generate_series(1, 40) g")
    pair.start()
    states = f"SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = '{place}'::regclass AND NOT tgisinternal"
    triggers = pair.source.execute(states)
    how = {"A": "ENABLE ALWAYS", "D": "DISABLE"}
    enable = ";".join(f"ALTER TABLE ONLY {place} {how[state]} TRIGGER {name}" for name, state in triggers)

    def unseen(key: int) -> str:
        return f"ALTER TABLE ONLY {place} DISABLE TRIGGER ALL; DELETE FROM {place} WHERE id = {key}; {enable}"

    with following(pair) as follower:
        pair.source.execute(f"INSERT INTO {root} VALUES (100, 1)")
        follower.wait_for_equal(root)
        pair.source.execute(unseen(1))
        follower.wait_for_equal(root)
    partition = "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)"
    changes = [unseen(2), f"BEGIN; {unseen(3)}; COMMIT"]
    # Triggers of a new partition are created at the same time.
    for statements in [*changes, f"{unseen(4)}; {partition}"] if root == "parts" else changes:
        pair.source.execute(statements)
        if partition in statements:
            pair.target.execute(partition)
        assert not pair.run().aside
        pair.check_equal([root])
    assert {*triggers} == {*pair.source.execute(states)}
    # The table is not copied again without a reason.
    pair.source.execute(f"DELETE FROM {root} WHERE id = 5")
    pair.target.execute(f"DELETE FROM {root} WHERE id = 6")
    assert not pair.run().aside
    assert pair.target.execute(f"SELECT id FROM {root} WHERE id IN (5, 6, 7)") == [(7,)]
