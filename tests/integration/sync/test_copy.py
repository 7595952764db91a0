"""A killed copy continues without lost or duplicate rows, after any changes of the source."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import psycopg
import pytest

import trueup
from support.fixtures import Spark
from support.sync import Pair
from support.waiting import Pause
from trueup.config.settings import SparkSettings
from trueup.engine.work import Room
from trueup.errors import CheckFailed
from trueup.verbs.sync import copy, ending, round
from trueup.verbs.sync.request import Scope

TABLES = """
CREATE SEQUENCE free_numbers START 7;
CREATE TABLE big (id bigint PRIMARY KEY, code int UNIQUE, filler text);
CREATE TABLE loose (id int NOT NULL, more int NOT NULL, n int, UNIQUE (id, more));
CREATE TABLE bag (n int, note text);
CREATE TABLE held (id serial PRIMARY KEY, big bigint REFERENCES big, n int DEFAULT 0);
"""
NAMES = ["big", "loose", "held", "bag"]
ROWS = """
INSERT INTO big SELECT g, g, repeat('x', 200) FROM generate_series(1, 20000) g;
INSERT INTO loose SELECT g, -g, 0 FROM generate_series(1, 20000) g;
INSERT INTO held (big) SELECT g FROM generate_series(1, 500) g;
INSERT INTO bag SELECT nullif(g / 3, 100), 'n' || g / 3 FROM generate_series(1, 20000) g;
"""


def command(pair: Pair, verb: str, *options: str) -> list[str]:
    nodes = [f"--node={node.name}={node.conninfo}" for node in (pair.request.source, pair.request.target)]
    return [sys.executable, "-m", "trueup", "sync", verb, "--from=n1", "--to=n2", *nodes, *options]


def wait_for(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + 60
    pause = Pause()
    while not condition():
        assert time.monotonic() < give_up, f"{what}: waited too long"
        pause()


# A start that is killed when some parts of every table are copied.
KILLED = """
import os, signal, sys
from trueup.cli.main import run
from trueup.verbs.sync import copy
from trueup.verbs.sync import snapshot_copy

real_parts, real_once, done = copy.parts_of, copy.copy_once, []
copy.LEAST_BYTES = 1 << 17

def parts_of(*arguments):
    return sorted(real_parts(*arguments), key=lambda part: part.first)

def once(part):
    if len(done) >= 4 and len({copied.table for copied in done}) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(real_once(part))
    return done[-1]

snapshot_copy.parts_of, copy.copy_once = parts_of, once
sys.exit(run(sys.argv[1:]))
"""


def kill_in_the_middle(pair: Pair, *options: str) -> None:
    arguments = command(pair, "start", "-q", *options)[3:]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], stderr=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    files = "SELECT count(*), count(DISTINCT relation), count(*) FILTER (WHERE end_page IS NULL) FROM trueup.copied"
    parts, tables, whole = pair.target.execute(files)[0]
    assert parts >= 4
    assert tables == 4
    assert whole == 1


def change_source(pair: Pair) -> None:
    """Change what a careless continuation would miss: unique values are swapped, rows move, files are rewritten."""
    pair.source.execute("UPDATE big SET code = -id WHERE id IN (1, 19999); UPDATE big SET code = 1 WHERE id = 20000")
    pair.source.execute("UPDATE big SET code = 20000 WHERE id = 1; UPDATE big SET filler = 'moved' WHERE id % 7 = 0")
    pair.source.execute("DELETE FROM big WHERE id BETWEEN 600 AND 700; INSERT INTO big VALUES (0, 0, 'first')")
    pair.source.execute("DELETE FROM loose WHERE id < 6000; UPDATE loose SET more = -more WHERE id < 7000")
    pair.source.execute("VACUUM FULL loose")
    # A row moves to pages that are not copied, and to content that other rows have.
    pair.source.execute("UPDATE bag SET n = n + 1 WHERE n % 5 = 0; INSERT INTO bag SELECT * FROM bag WHERE n % 11 = 0")
    pair.source.execute("UPDATE bag SET note = note WHERE n < 50; DELETE FROM bag WHERE n BETWEEN 60 AND 90")
    pair.source.execute("SELECT nextval('free_numbers')")


def check(pair: Pair) -> None:
    pair.check_equal(NAMES)
    for name in ("free_numbers", "held_id_seq"):
        source, target = pair.rows(f"SELECT last_value, is_called FROM {name}")
        assert source == target
    nodes = {"n1": pair.source.uri, "n2": pair.target.uri}
    assert trueup.check("public.big", nodes=nodes, engine="local").verdict == "MATCH"


def test_a_killed_copy_continues(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "LEAST_BYTES", 1 << 18)
    pair.both(TABLES)
    pair.source.execute(ROWS)
    kill_in_the_middle(pair)
    change_source(pair)
    with pytest.raises(CheckFailed, match="is not finished"):
        pair.run()
    pair.start()
    assert pair.known().snapshots == 2
    pair.run()
    check(pair)
    # `drop` removes everything except the rows.
    assert pair.drop() == (True, True)
    left = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'trueup%'"
    assert pair.rows(left) == ([], [])
    assert pair.rows("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'trueup%'") == ([], [])
    pair.check_equal(NAMES)


def test_a_killed_copy_with_create_schema_continues(pair: Pair) -> None:
    pair.source.execute(TABLES + ROWS)
    pair.source.execute(
        "CREATE VIEW v AS SELECT id FROM big; CREATE INDEX big_filler ON big (filler); CREATE TYPE mood AS ENUM ('a');"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := NEW.n + 1; RETURN NEW; END';"
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON held FOR EACH ROW EXECUTE FUNCTION f()"
    )
    kill_in_the_middle(pair, "--create-schema")
    change_source(pair)
    pair.with_scope(Scope("main", create_schema=True)).start()
    pair.source.execute("UPDATE held SET big = 20000 WHERE id = 1")
    pair.run()
    check(pair)
    made = (
        "SELECT (SELECT count(*) FROM pg_constraint WHERE contype IN ('p', 'f', 'u') AND connamespace = n.oid),"
        " (SELECT count(*) FROM pg_class WHERE relkind IN ('i', 'v') AND relnamespace = n.oid),"
        " (SELECT count(*) FROM pg_trigger WHERE tgname = 't') FROM pg_namespace n WHERE nspname = 'public'"
    )
    source, target = pair.rows(made)
    assert source == target
    assert pair.target.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'trueup%'") == [(0,)]
    assert not pair.plan().remarks


def write(uri: str, seed: int, stop: threading.Event, errors: list[BaseException]) -> None:
    """Make random changes, committed or not, until `stop` is set."""
    rng = random.Random(seed)
    try:
        with psycopg.connect(uri) as connection:
            while not stop.is_set():
                for _ in range(rng.randrange(1, 4)):
                    key, other = rng.randrange(1, 400), rng.randrange(1, 400)
                    statement = rng.choice(WRITES).format(key=key, other=other, new=rng.randrange(10**6, 10**9))
                    try:
                        connection.execute(statement)
                    except psycopg.Error:
                        connection.rollback()
                connection.commit() if rng.random() < 0.9 else connection.rollback()
                # Without a pause, eight writers would only wait for each other and for the processor.
                stop.wait(rng.random() * 0.08)
    except BaseException as error:
        errors.append(error)


WRITES = (
    "UPDATE big SET filler = '{new}' WHERE id = {key}",
    "INSERT INTO big VALUES ({new}, {new}, '')",
    "DELETE FROM loose WHERE id = {key}",
    "INSERT INTO loose VALUES ({key}, {other}, 1) ON CONFLICT DO NOTHING",
    "UPDATE loose SET more = {new}, n = n + 1 WHERE id = {key}",
    "UPDATE big SET id = {new} WHERE id = {key} + 1000",
    "UPDATE big SET code = CASE id WHEN {key} THEN -{key} ELSE -{other} END WHERE id IN ({key}, {other})",
    "UPDATE big SET code = (SELECT max(code) + 1 FROM big) WHERE id = {key}",
    "INSERT INTO bag VALUES ({key}, 'x')",
    "UPDATE bag SET n = nullif({other}, 7) WHERE n = {key}",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = {key})",
    "INSERT INTO held (big) VALUES ({key}); DELETE FROM held WHERE id = (SELECT min(id) FROM held WHERE id > {key})",
)


def test_eight_writers_and_kills_lose_nothing(pair: Pair) -> None:
    pair.both(TABLES)
    pair.source.execute(ROWS)
    stop, errors = threading.Event(), []  # type: ignore[var-annotated]
    writers = [threading.Thread(target=write, args=(pair.source.uri, seed, stop, errors)) for seed in range(8)]
    for writer in writers:
        writer.start()
    try:
        pair.start()
        for _ in range(2):
            with subprocess.Popen(command(pair, "run", "-q", "--follow")) as process:
                was = pair.known().rounds
                wait_for(lambda was=was: pair.known().rounds > was + 3, "rounds")  # type: ignore[misc]
                process.send_signal(signal.SIGKILL)
        wait_for(lambda: not pair.status().running, "the end of the killed session")
        process = subprocess.Popen(command(pair, "run", "-q", "--follow"))
        wait_for(lambda: pair.status().running, "a runner")
        assert ending.stop(pair.request, timeout=60)
        assert process.wait(60) == 0
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert errors == []
    pair.source.execute("TRUNCATE held; INSERT INTO held (big) SELECT id FROM big LIMIT 3")
    pair.run()
    check(pair)


def test_parts_whose_answers_were_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a wave of Spark that failed after it had copied them: threads find them copied."""

    def copy_again(part: copy.Part, room: Room) -> Iterable[copy.Copied]:
        list(once(part, room))
        return once(part, room)

    once = copy.copy_part
    monkeypatch.setattr(copy, "copy_part", copy_again)
    pair.both(TABLES)
    pair.source.execute(ROWS)
    rows = sum(pair.source.execute(f"SELECT count(*) FROM {name}")[0][0] for name in NAMES)
    with caplog.at_level("INFO", "trueup"):
        assert pair.start().ran_on.keys() == {"spark"}
    assert f"copied {rows:,} rows" in caplog.text
    pair.run(once=True)
    check(pair)


def test_copy_and_large_rounds_on_spark(pair: Pair, spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "LEAST_BYTES", 1 << 20)
    pair.request = replace(pair.request, spark=SparkSettings(engine="spark"))
    pair.both(TABLES)
    pair.source.execute(ROWS)
    assert pair.start().ran_on.keys() == {"spark"}
    pair.source.execute("UPDATE big SET filler = 'y', code = -code; TRUNCATE loose; INSERT INTO loose VALUES (1, 1, 1)")
    pair.source.execute("UPDATE bag SET n = n + 1; DELETE FROM bag WHERE n % 2 = 0")
    monkeypatch.setattr(round, "SMALL", 100)
    assert pair.run(once=True).last.large
    check(pair)
