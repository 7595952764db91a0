"""Every type of value and of key is copied unchanged: by the copy, by a small round and by a large one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sync import Pair, make_pair
from trueup.testing.postgres import Server
from trueup.verbs.sync import round
from trueup.verbs.sync.request import Scope

DEBIAN = Path("/usr/lib/postgresql/15/bin")
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'so "so"'); CREATE DOMAIN short AS varchar(5) CHECK (value <> 'no');
CREATE TYPE pair AS (a int, b text); CREATE COLLATION other (provider = libc, locale = 'C');
CREATE TABLE kinds (id int PRIMARY KEY, j json, b jsonb, f float8, r real, n numeric, t timestamptz, d date,
    i interval, a int[],
    aa text[][], x bytea, m money, c char(4), s short, e mood, p pair, ps pair[], g int4range, v varbit, u uuid,
    w text COLLATE other, net inet, k "char", dropped int, late int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE kinds DROP COLUMN dropped; ALTER TABLE kinds ADD COLUMN "odd ""name" text DEFAULT 'x';
CREATE TABLE key_enum (id mood PRIMARY KEY, n int); CREATE TABLE key_numeric (id numeric PRIMARY KEY, n int);
CREATE TABLE key_array (id int[], other text, n int, PRIMARY KEY (id, other));
CREATE TABLE key_alone (id text[] PRIMARY KEY); CREATE TABLE key_domain (id short PRIMARY KEY, n int);
CREATE TABLE key_bytes (id bytea PRIMARY KEY, n int); CREATE TABLE key_char (id char(4) PRIMARY KEY, n int);
CREATE TABLE key_time (at timestamptz, d interval, n int, PRIMARY KEY (at, d));
CREATE TABLE "Odd Table" ("the ""key" int NOT NULL UNIQUE, n int);
CREATE TABLE no_key (LIKE kinds INCLUDING GENERATED); ALTER TABLE no_key ALTER id DROP NOT NULL;
"""
NAMES = [
    "kinds",
    "key_enum",
    "key_numeric",
    "key_array",
    "key_alone",
    "key_domain",
    "key_bytes",
    "key_char",
    "key_time",
    "no_key",
]
ROWS = r"""
INSERT INTO kinds (id, j, b, f, r, n, t, d, i, a, aa, x, m, c, s, e, p, ps, g, v, u, w, net, k, "odd ""name") VALUES
 (1, '{"a": 1, "a": 2}', 'null', 'NaN', '-Infinity', 'NaN', 'infinity', '-infinity', '1 mon -3 days 00:00:00.001',
  '[2:4]={1,NULL,3}', '{{a,"b,\"c"},{NULL,""}}', '\x00ff', '-12.34', 'a', 'ab', 'so "so"', '(1,"x y\\")',
  '{"(1,a)",NULL}',
  '[1,5)', B'101', gen_random_uuid(), 'ä', '10.0.0.0/8', 'z', E'tab\tnew\nline\\'),
 (2, 'null', '{"z": [null, 1.50]}', 1e-310, 1.1, 'Infinity', '0044-01-01 BC', '0001-01-01', '00:00', '{}', '{}', '',
  '0', '', '', 'sad', NULL, '{}', 'empty', B'', NULL, '', '::1', '', ''),
 (3, NULL, NULL, -0.0, 0, 1.5000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '(,)', NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL);
INSERT INTO key_enum VALUES ('sad', 1), ('so "so"', 2); INSERT INTO key_numeric VALUES (1.50, 1), ('NaN', 2), (1e30, 3);
INSERT INTO key_array VALUES ('{1,2}', 'a"b', 1), ('{}', '', 2), ('[5:6]={NULL,1}', '\', 3);
INSERT INTO key_alone VALUES ('{a,"b,c"}'), ('{}'), ('{NULL}'); INSERT INTO key_domain VALUES ('a', 1), ('', 2);
INSERT INTO key_bytes VALUES ('\x5c78', 1), ('', 2); INSERT INTO key_char VALUES ('a', 1), ('', 2);
INSERT INTO key_time VALUES ('infinity', '1 day', 1), ('2024-01-01 00:00:00.123456+02', '-1 mon', 2);
INSERT INTO "Odd Table" VALUES (1, 1), (-2, 2);
INSERT INTO no_key (id, j, b, f, r, n, t, d, i, a, aa, x, m, c, s, e, p, ps, g, v, u, w, net, k, "odd ""name")
 SELECT id, j, b, f, r, n, t, d, i, a, aa, x, m, c, s, e, p, ps, g, v, u, w, net, k, "odd ""name"
   FROM kinds, generate_series(1, 3);
"""
TOUCH = """
UPDATE kinds SET "odd ""name" = '{0}';
UPDATE no_key SET "odd ""name" = '{0}', f = -f, n = n + {1}.00, j = '{{"n": {1}}}', i = i * 2;
UPDATE no_key SET e = 'ok', p = '({1},)', id = NULL WHERE ctid = (SELECT max(ctid) FROM no_key);
DELETE FROM no_key WHERE ctid = (SELECT min(ctid) FROM no_key);
UPDATE key_enum SET n = {1}; UPDATE key_numeric SET n = {1}, id = id + 0.000;
UPDATE key_array SET n = {1}; UPDATE key_alone SET id = id || ARRAY['{0}']; UPDATE key_domain SET n = {1};
UPDATE key_bytes SET n = {1}, id = id || '\\x{1}'; UPDATE key_char SET n = {1};
UPDATE key_time SET n = {1}, at = at + d;
UPDATE "Odd Table" SET n = {1};
"""


def run_all_ways(pair: Pair, names: list[str], patch: pytest.MonkeyPatch, touch: Callable[[int], str]) -> None:
    pair.source.execute(ROWS)
    pair.start()
    pair.check_equal(names)
    pair.source.execute(touch(10))
    assert not pair.run(once=True).last.large
    pair.check_equal(names)
    pair.source.execute(touch(20))
    patch.setattr(round, "SMALL", 0)
    assert pair.run(once=True).last.large
    pair.check_equal(names)
    patch.undo()


def test_values_and_keys_of_all_types(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.both(TYPES)
    # Another order of columns on the target.
    pair.target.execute("ALTER TABLE key_numeric DROP COLUMN n; ALTER TABLE key_numeric ADD COLUMN n int")
    names = [name for name in NAMES if name != "key_numeric"] + ['"Odd Table"']
    pair.source.execute(
        "INSERT INTO kinds (id, x) SELECT 9, string_agg(sha512(g::text::bytea), '') FROM generate_series(1, 50000) g"
    )
    run_all_ways(pair, names, monkeypatch, lambda n: TOUCH.format(f"v{n}\\\\", n))
    on_source, on_target = pair.rows("SELECT id, n FROM key_numeric ORDER BY 1")
    assert [tuple(map(str, row)) for row in on_source] == [tuple(map(str, row)) for row in on_target]


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's PostgreSQL 15 with contrib is not installed")
def test_between_versions_with_types_of_extensions(
    pair: Pair, fresh_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fresh_server(name="old", bin_dir=DEBIAN).create_database(f"old_{os.getpid()}")
    other = make_pair(old, old.server.create_database("copy"))
    other.both("CREATE EXTENSION hstore; CREATE EXTENSION citext;" + TYPES)
    other.both("CREATE TABLE extended (id citext PRIMARY KEY, h hstore)")
    old.execute("""INSERT INTO extended VALUES ('A', '"a b"=>NULL, c=>"d\\"e"'), ('', '')""")
    names = [*NAMES, "extended"]
    run_all_ways(
        other,
        names,
        monkeypatch,
        lambda n: TOUCH.format(n, n) + f"UPDATE extended SET id = upper(id), h = h || 'n=>{n}'",
    )
    # From the old server to a new one.
    onward = make_pair(old, pair.target).with_scope(Scope("onward", tuple(NAMES)))
    pair.target.execute(TYPES)
    other.drop()
    onward.start()
    old.execute(TOUCH.format("o", 30))
    onward.run()
    onward.check_equal(NAMES)
