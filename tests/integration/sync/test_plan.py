"""The plan lists every problem; a role that owns the tables is enough, and then rows are written in key order."""

from __future__ import annotations

import json

import pytest

from support.sync import Pair, make_pair
from trueup.cli.main import run
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync.request import Scope

AWKWARD = """
CREATE TABLE fine (id int PRIMARY KEY, n int); CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE typed (id int PRIMARY KEY, n int, gone text);
CREATE TABLE other_key (id int PRIMARY KEY, n int UNIQUE NOT NULL);
CREATE TABLE filled (id int PRIMARY KEY); CREATE TABLE fires (id int PRIMARY KEY);
CREATE TABLE away (id int PRIMARY KEY);
CREATE TABLE refers (id int PRIMARY KEY REFERENCES keyed); CREATE SEQUENCE alone;
CREATE MATERIALIZED VIEW seen AS SELECT 1; CREATE TABLE far (id int) PARTITION BY RANGE (id);
"""
TARGET = """
CREATE TABLE fine (id int PRIMARY KEY, n int); CREATE TABLE typed (id int PRIMARY KEY, n bigint, extra int);
CREATE TABLE other_key (id int, n int PRIMARY KEY); CREATE TABLE filled (id int PRIMARY KEY);
INSERT INTO filled VALUES (1);
CREATE TABLE fires (id int PRIMARY KEY); CREATE TABLE refers (id int PRIMARY KEY REFERENCES keyed);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER t BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE fires ENABLE ALWAYS TRIGGER t;
CREATE INDEX ON fine (n); CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
CREATE TABLE far (id int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE far_1 PARTITION OF far FOR VALUES FROM (0) TO (9) SERVER s;
"""


def test_problems_are_listed_and_the_plan_fails(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.both("CREATE TABLE keyed (id int PRIMARY KEY)")
    pair.source.execute(AWKWARD + "; SELECT lo_create(0)")
    pair.source.execute(
        "CREATE FUNCTION odd(int) RETURNS bool LANGUAGE sql AS 'SELECT true'; ALTER FUNCTION odd OWNER TO pg_monitor;"
        " CREATE TABLE traps (id int PRIMARY KEY, CHECK (odd(id)), CHECK (odd(id + 1)))"
    )
    pair.target.execute(TARGET)
    nodes = [f"--node={node.name}={node.conninfo}" for node in (pair.request.source, pair.request.target)]
    ends = ["--from=n1", "--to=n2", *nodes]
    assert run(["sync", "plan", *ends, "--exclude-tables=keyed", "--json"]) == 2
    plan = json.loads(capsys.readouterr().out)
    problems = {problem["where"]: problem["what"] for problem in plan["problems"]}
    for where, what in {
        "public.unlogged": "unlogged",
        "public.parent": "inherit",
        "public.child": "inherits",
        "public.typed": "exists only on the target",
        "public.other_key": "is not a key on the target",
        "public.filled": "not empty",
        "public.away": "does not exist on the target",
        "public.refers": "refers to public.keyed, which is not in the sync",
        "sequence public.alone": "does not exist",
        "public.far": "its partition public.far_1 is a foreign table",
        "public.traps": "calls the function public.odd(integer) of the role pg_monitor",
    }.items():
        assert what in problems[where], where
    assert len(problems) == 11
    # Each reason has its own line and the name of the table.
    reasons = [problem["what"] for problem in plan["problems"]]
    assert sum("public.odd" in reason for reason in reasons) == 2
    assert not any("\n" in reason for reason in reasons)
    assert [table["table"] for table in plan["tables"]] == ["public.fine", "public.fires", "public.refers"]
    (fires,) = [remark for remark in plan["remarks"] if "disabled on the target until a switchover" in remark]
    assert fires.startswith("1 trigger disabled")
    assert fires.endswith(" public.fires: t")
    assert "materialized views are refreshed after the copy and before a switchover: public.seen" in plan["remarks"]
    assert any("index public.fine_n_idx missing on n1" in remark for remark in plan["remarks"])
    assert run(["sync", "start", *ends, "-q"]) == 2
    assert "public.unlogged: it is unlogged" in capsys.readouterr().err
    # Nothing was written to either database.
    assert pair.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%'") == ([], [])
    # Other tables of the same database can be synced.
    assert run(["sync", "plan", *ends, "--tables=fine"]) == 0
    assert "public.fine" in capsys.readouterr().out
    assert run(["sync", "start", *ends, "--tables=fine", "-q"]) == 0
    pair.source.execute("INSERT INTO fine VALUES (1, 1)")
    assert run(["sync", "run", *ends, "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == 1
    assert run(["sync", "status", *ends]) == 0
    assert "the sync is not running" in capsys.readouterr().out
    assert run(["sync", "stop", *ends]) == 0
    assert run(["sync", "drop", *ends]) == 0
    assert "dropped the change log and the state" in capsys.readouterr().out
    assert run(["sync", "start", *ends, "--create-schema", "--pg-bin=/nowhere", "--tables=away"]) == 2
    assert "--create-schema needs pg_dump" in capsys.readouterr().err


OWNED = """
CREATE TABLE people (id int PRIMARY KEY, name text UNIQUE, boss int REFERENCES people, badge serial UNIQUE);
CREATE TABLE teams (id int PRIMARY KEY, lead int REFERENCES people, main int, label text UNIQUE);
CREATE TABLE jobs (id int PRIMARY KEY, team int NOT NULL REFERENCES teams ON DELETE CASCADE, code int UNIQUE);
ALTER TABLE teams ADD FOREIGN KEY (main) REFERENCES jobs;
CREATE TABLE x (id int PRIMARY KEY, y int NOT NULL);
CREATE TABLE y (id int PRIMARY KEY, x int NOT NULL REFERENCES x);
ALTER TABLE x ADD FOREIGN KEY (y) REFERENCES y DEFERRABLE;
CREATE TABLE logs (id int GENERATED ALWAYS AS IDENTITY, at date, job int REFERENCES jobs ON DELETE SET NULL, person int,
    PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE logs_1 PARTITION OF logs FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE logs_2 PARTITION OF logs DEFAULT;
-- Foreign keys of partitions, and to a partition.
ALTER TABLE logs_1 ADD CONSTRAINT own FOREIGN KEY (person) REFERENCES people ON DELETE CASCADE;
CREATE TABLE notes (id int PRIMARY KEY, log int, at date, FOREIGN KEY (log, at) REFERENCES logs_1 (id, at));
CREATE TABLE bag (n int, person int REFERENCES people, code int UNIQUE);
"""
OWNED_NAMES = ["people", "teams", "jobs", "x", "y", "logs", "notes", "bag"]
OWNED_ROWS = """
INSERT INTO people SELECT g, 'p' || g, nullif(g - 1, 0) FROM generate_series(1, 40) g;
INSERT INTO teams (id, lead, label) SELECT g, g, 't' || g FROM generate_series(1, 9) g;
INSERT INTO jobs SELECT g, g % 9 + 1, g FROM generate_series(1, 60) g; UPDATE teams SET main = id;
BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO x VALUES (1, 1), (2, 2); INSERT INTO y VALUES (1, 1), (2, 2); COMMIT;
INSERT INTO logs (at, job, person) SELECT date '2024-12-22' + g, g, CASE WHEN g < 10 THEN g ELSE -g END
  FROM generate_series(1, 20) g;
INSERT INTO notes SELECT id, id, at FROM logs_1 WHERE id > 5;
INSERT INTO bag SELECT g / 3, nullif(g / 2, 0), CASE WHEN g > 15 THEN g END FROM generate_series(1, 20) g;
"""
OWNED_CHANGES = (
    "INSERT INTO people SELECT g, 'n' || g, g - 1 FROM generate_series(41, 50) g;"
    " UPDATE people SET boss = 50 WHERE id = 1",
    "UPDATE people SET boss = NULL WHERE id < 3; DELETE FROM people WHERE id > 45 AND id NOT IN (SELECT boss"
    " FROM people WHERE boss IS NOT NULL)",
    "UPDATE jobs SET code = -code; UPDATE jobs SET code = id + 1 WHERE id > 30;"
    " UPDATE jobs SET team = 3 WHERE team = 2",
    "UPDATE teams SET main = NULL; DELETE FROM teams WHERE id = 4",
    "UPDATE teams SET main = (SELECT max(id) FROM jobs WHERE team = teams.id), label = 'x' || id",
    "BEGIN; SET CONSTRAINTS ALL DEFERRED; DELETE FROM x WHERE id = 1 AND false; INSERT INTO x VALUES (3, 3);"
    " INSERT INTO y VALUES (3, 3); UPDATE x SET y = 1 WHERE id = 2; COMMIT",
    # Rows leave the partition that has a foreign key and that others refer to, and rows come into it.
    "DELETE FROM notes WHERE id < 8; UPDATE logs SET at = at + 30, person = -id WHERE id < 8;"
    " DELETE FROM logs WHERE id = 4; UPDATE logs SET at = '2024-03-01', person = 2 WHERE id = 12;"
    " INSERT INTO notes VALUES (12, 12, '2024-03-01'); DELETE FROM notes WHERE id = 9; DELETE FROM logs WHERE id = 9",
    "UPDATE bag SET n = 3 WHERE n = 2; INSERT INTO bag VALUES (3, 4), (NULL, NULL); UPDATE bag SET code = -code;"
    " UPDATE bag SET code = 36 + code WHERE code IS NOT NULL; DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
    "UPDATE bag SET person = NULL; INSERT INTO people VALUES (500, 'p500'); INSERT INTO bag VALUES (1, 500)",
    "UPDATE people SET boss = NULL WHERE boss = 40; UPDATE people SET id = 1000 WHERE id = 40",
    "TRUNCATE people CASCADE; INSERT INTO people VALUES (7, 'p8', NULL), (8, 'p7', 7); INSERT INTO teams VALUES (1, 8);"
    " INSERT INTO jobs VALUES (5, 1, 1); UPDATE teams SET main = 5",
)


def test_a_role_that_owns_the_tables_is_enough(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    role, databases = f"owner_{pair.source.name}", (pair.source, pair.target)
    pair.source.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    uris = []
    try:
        for database in databases:
            database.execute(
                f"GRANT CREATE ON DATABASE {database.name} TO {role}; GRANT ALL ON SCHEMA public TO {role}"
            )
            uris.append(database.server.uri(database.name, role, "secret"))
            database.execute(f"SET SESSION AUTHORIZATION {role}; {OWNED}")
        owned = make_pair(*databases, source_uri=uris[0], target_uri=uris[1])
        pair.source.execute(OWNED_ROWS)
        _run_as_owner(owned, role, caplog)
    finally:
        for database in databases:
            database.execute(f"DROP OWNED BY {role} CASCADE")
        pair.source.execute(f"DROP ROLE {role}")


def test_a_superuser_that_takes_the_role_of_the_owner(pair: Pair) -> None:
    """Its sessions may not see when they began, and may not lock schemas, but code can make them superusers again."""
    role = f"owner_{pair.source.name}"
    pair.source.execute(f"CREATE ROLE {role}")
    try:
        for database in (pair.source, pair.target):
            database.execute(
                f"GRANT CREATE ON DATABASE {database.name} TO {role}; CREATE SCHEMA AUTHORIZATION {role};"
                f" SET ROLE {role}; CREATE TABLE {role}.t (id int PRIMARY KEY)"
            )
        uris = [f"{database.uri}?options=-crole%3D{role}" for database in (pair.source, pair.target)]
        owned = make_pair(pair.source, pair.target, source_uri=uris[0], target_uri=uris[1])
        owned.start()
        owned.source.execute(f"INSERT INTO {role}.t VALUES (1), (2)")
        assert owned.run().keys == 2
        owned.check_equal([f"{role}.t"])
        owned.drop()
    finally:
        for database in (pair.source, pair.target):
            database.execute(f"DROP OWNED BY {role} CASCADE")
        pair.source.execute(f"DROP ROLE {role}")


def _run_as_owner(owned: Pair, owner: str, caplog: pytest.LogCaptureFixture) -> None:
    # A cycle without a deferrable or nullable key is refused by name, and a trigger that would fire and that the role
    # cannot disable.
    owned.target.execute("ALTER TABLE x ALTER CONSTRAINT x_y_fkey NOT DEFERRABLE")
    assert "cannot be deferred or NULL" in owned.plan().problems[0].what
    owned.target.execute("ALTER TABLE x ALTER CONSTRAINT x_y_fkey DEFERRABLE")
    # Rows without a key cannot be updated in place, so no row may refer to them.
    role = f"owner_{owned.source.name}"
    owned.both(f"CREATE TABLE refers (id int PRIMARY KEY REFERENCES bag (code)); ALTER TABLE refers OWNER TO {role}")
    (problem,) = owned.plan().problems
    assert (problem.where, "it has no key, refers_id_fkey" in problem.what) == ("public.bag", True)
    owned.both("DROP TABLE refers")
    owned.target.execute(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER t BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION f()"
    )
    assert any(
        "disabled on the target until" in remark and "public.jobs: t" in remark for remark in owned.plan().remarks
    )
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE"
    owned.target.execute(f"ALTER TABLE jobs OWNER TO postgres; {grant} ON jobs TO PUBLIC")
    assert "trigger t of public.jobs would fire" in owned.plan().problems[0].what
    # The server only warns if a role may not collect statistics: the table is named, and so is its partition.
    owned.target.execute(f"DROP TRIGGER t ON jobs; ALTER TABLE logs_1 OWNER TO postgres; {grant} ON logs_1 TO PUBLIC")
    caplog.set_level("INFO", "trueup")
    plan = owned.start()
    # The tables that refer to themselves or to one another count too.
    assert (plan.mode, plan.ran_on) == ("ordered", {"local": len(OWNED_NAMES) + 1})
    (text,) = [record.message for record in caplog.records if "statistics" in record.message]
    assert "because the role may not analyze: public.jobs, public.logs_1; run ANALYZE there as their owner" in text
    assert owned.target.execute("SELECT reltuples FROM pg_class WHERE relname IN ('jobs', 'x') ORDER BY relname") == [
        (-1,), (2,)
    ]  # fmt: skip
    owned.target.execute(f"ALTER TABLE jobs OWNER TO {owner}; ALTER TABLE logs_1 OWNER TO {owner}")
    assert any("order of foreign keys" in remark for remark in plan.remarks)
    owned.check_equal(OWNED_NAMES)
    for statements in OWNED_CHANGES:
        owned.source.execute(statements)
        owned.run(once=True)
        owned.check_equal(OWNED_NAMES)
    swap = "UPDATE people SET {0} = {1} WHERE id = 7; UPDATE people SET {0} = {2} WHERE id = 8"
    owned.source.execute("INSERT INTO people VALUES (9, 'p9', 8)")
    owned.source.execute(swap.format("name", "'tmp'", "'p8'") + "; UPDATE people SET name = 'p7' WHERE id = 7")
    owned.run(once=True)
    owned.check_equal(OWNED_NAMES)
    # Referenced rows that swap NOT NULL unique values: the table is set aside with those that foreign keys connect with
    # it, directly or not, and nothing is lost.
    (seven,), (eight,) = owned.source.execute("SELECT badge FROM people WHERE id IN (7, 8) ORDER BY id")
    owned.source.execute(swap.format("badge", -1, seven) + f"; UPDATE people SET badge = {eight} WHERE id = 7")
    aside = {problem.where: problem.what for problem in owned.run(once=True).aside}
    assert "the target refused its rows: duplicate key value violates unique" in aside.pop("public.people")
    assert aside == {
        "public.bag": "a foreign key connects it with public.people, which is set aside",
        "public.teams": "a foreign key connects it with public.people, which is set aside",
        "public.jobs": "a foreign key connects it with public.logs, which is set aside",
        "public.logs": "a foreign key connects it with public.people, which is set aside",
        "public.notes": "a foreign key connects it with public.logs, which is set aside",
    }
    owned.source.execute("UPDATE people SET badge = -id")
    owned.run()
    owned.check_equal(OWNED_NAMES)
    owned.drop()


def test_a_second_start_with_other_tables_is_refused(pair: Pair) -> None:
    pair.both("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    # A start that failed is not in the way of the next one.
    with pytest.raises(TrueupError, match="no table matches"):
        pair.with_scope(Scope("main", ("public.wrong",))).start()
    pair.with_scope(Scope("main", ("public.a",))).start()
    for step in (pair.start, pair.plan):
        pair.with_scope(Scope("main", ("public.a", "public.b")))
        with pytest.raises(CheckFailed, match=r"sync main was started with public\.a"):
            step()
        pair.with_scope(Scope("main"))
        step()
