"""No setting of a session that writes changes what is captured: every setting that a session can change is tried."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from support.tube import TubeDatabase
from trueup.errors import CheckFailed

# The text of every part of the key depends on a setting; so does each part of the predicate, and the shard.
TABLES = """
CREATE TABLE keyed (t timestamptz, d date, i interval, f float8, b bytea, m money, r regclass, g tstzrange, note text,
                    PRIMARY KEY (t, d, i, f, b, m, r, g));
CREATE TABLE chosen (id int PRIMARY KEY, t timestamptz, i interval, b bytea, v text, a text[], m money, note text);
CREATE TABLE routed (id int PRIMARY KEY, t timestamptz);
CREATE TABLE events (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (20);
CREATE SCHEMA other;
CREATE TABLE other.keyed (id int);
CREATE FUNCTION other.hide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
"""
PREDICATE = r"""t::date = '2026-01-01' AND t = '2026-01-01 16:00 EST'
    AND to_char(t, 'FMDay TMMonth') = 'Thursday January'
    AND i::text = '1 day 02:00:00' AND b::text = '\x61' AND v NOT LIKE 'x\_1' AND (v = NULL) IS NULL AND a = '{NULL}'
    AND quote_ident(v) = 'xy1' AND m::text = '$1.50'"""
WRITES = """
INSERT INTO public.keyed VALUES (to_timestamp(1767301200), make_date(2026, 2, 1), make_interval(days => 1, hours => 2),
    0.1::float8 + 0.2, decode('61ff', 'hex'), 1.5::numeric::money, to_regclass('public.keyed'),
    tstzrange(to_timestamp(1767301200), NULL), 'a');
UPDATE public.keyed SET note = 'b';
UPDATE public.keyed SET d = make_date(2026, 1, 2);
DELETE FROM public.keyed;
INSERT INTO public.chosen VALUES (1, to_timestamp(1767301200), make_interval(days => 1, hours => 2),
    decode('61', 'hex'), 'xy1', ARRAY[NULL::text], 1.5::numeric::money);
UPDATE public.chosen SET note = 'b';
DELETE FROM public.chosen;
INSERT INTO public.routed VALUES (1, to_timestamp(1767301200));
DELETE FROM public.routed;
INSERT INTO public.events VALUES (1, 1), (2, 2);
MERGE INTO public.events e USING (VALUES (1), (2)) v(id) ON e.id = v.id WHEN MATCHED THEN UPDATE SET day = 10 + v.id;
DELETE FROM public.events;
"""
# Values of settings that are no boolean and no enum. A setting that the server does not know is left out.
VALUES = {
    "TimeZone": "Asia/Kolkata",
    "DateStyle": "SQL, DMY",
    "extra_float_digits": "-10",
    "timezone_abbreviations": "Australia",
    "lc_monetary": "C.UTF-8",
    "lc_time": "C.UTF-8",
    "default_text_search_config": "pg_catalog.english",
    "search_path": "other",
    "application_name": "a backfill",
    "client_encoding": "LATIN1",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    "work_mem": "64kB",
    "lock_timeout": "20s",
}
OTHER = {
    "tube.moving": ("", "x", "no number"),
    "trueup.sync": ("t", "main"),
    "plpgsql.variable_conflict": ("use_variable", "use_column"),
    "plpgsql.extra_errors": ("all",),
}
# These make every write fail, or write to the log of the server.
SKIPPED = r"^(log_|debug_|trace_|default_transaction_read_only|transaction_|exit_on_error|track_|.*_logging)"


def settings(tubes: TubeDatabase) -> Iterator[tuple[str, str]]:
    """Yield every setting that a superuser can change in a session, with values other than the present one."""
    rows = tubes.run(
        "SELECT name, vartype, setting, enumvals FROM pg_settings"
        f" WHERE context IN ('user', 'superuser') AND name !~ '{SKIPPED}'"
    )
    for name, kind, present, choices in rows:
        if kind == "bool":
            yield name, "off" if present == "on" else "on"
        for choice in choices or ():
            if choice != present:
                yield name, choice
        for known, value in VALUES.items():
            if known.lower() == name.lower():
                yield name, value
    for name, values in OTHER.items():
        for value in values:
            yield name, value


def captured(tubes: TubeDatabase, *setting: str) -> set[tuple[object, ...]]:
    """Write in a new session with a setting; return the tables, shards and keys that were captured."""
    with psycopg.connect(tubes.database.uri, autocommit=True) as writer:
        if setting:
            writer.execute("SELECT set_config(%s, %s, false)", setting)
        writer.execute(sql.SQL(WRITES))
    rows = tubes.run(
        "SELECT s.name, p.shard, k FROM tube.pods_t p JOIN tube.sources s USING (source)"
        " CROSS JOIN unnest(p.ids::text[] || p.keys) k; TRUNCATE tube.pods_t"
    )
    return set(rows)


def test_no_setting_changes_what_is_captured(tube_db: TubeDatabase) -> None:
    tube_db.run(TABLES)
    for table in ("keyed", "events"):
        tube_db.tube.attach(table, shard=1)
    tube_db.tube.attach("chosen", shard=1, predicate=PREDICATE)
    tube_db.tube.attach("routed", routing="extract(hour FROM t)::int")
    expected = captured(tube_db)
    assert {name for name, *_ in expected} == {"public.keyed", "public.chosen", "public.routed", "public.events"}
    assert len(expected) == 2 + 1 + 1 + 4
    tried = list(settings(tube_db))
    assert {name.lower() for name, _ in tried} >= {name.lower() for name in VALUES if "restrict" not in name}
    wrong = {setting: found for setting in tried if (found := captured(tube_db, *setting)) != expected}
    assert wrong == {}


@pytest.mark.parametrize("predicate", ["to_tsvector(v) @@ 'x'::tsquery", "current_setting('app.tenant', true) = v"])
def test_functions_that_read_settings_are_refused(tube_db: TubeDatabase, predicate: str) -> None:
    tube_db.run("CREATE TABLE t1 (id int PRIMARY KEY, v text)")
    with pytest.raises(CheckFailed, match="depends on a setting of the session that writes"):
        tube_db.tube.attach("t1", predicate=predicate)
    tube_db.tube.attach("t1", predicate="to_tsvector('simple', v) @@ 'x'::tsquery")
    tube_db.tube.attach("t1", predicate=predicate, allow_functions=[predicate.split("(")[0]])
    tube_db.tube.backfill("t1")
