"""A schema with owners, privileges and most kinds of objects, and what two databases have of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from trueup.testing.postgres import Database

ROLES = ("zoo_owner", "zoo_rw", "zoo_ro", "zoo_app", "zoo_audit", "zoo_idle")
CREATE_ROLES = """
CREATE ROLE zoo_owner CREATEDB; CREATE ROLE zoo_rw; CREATE ROLE zoo_ro CONNECTION LIMIT 7;
CREATE ROLE zoo_app LOGIN PASSWORD 'apple pie' VALID UNTIL '2040-01-01'; GRANT zoo_rw TO zoo_app WITH ADMIN OPTION;
CREATE ROLE zoo_audit NOINHERIT BYPASSRLS; GRANT pg_monitor TO zoo_audit; CREATE ROLE zoo_idle LOGIN;
ALTER ROLE zoo_app SET search_path = "$user", zoo, "Odd ""Schema"; ALTER ROLE zoo_ro SET work_mem = '9MB';
"""
# 30 tables, with partitions and excluded ones.
SCHEMA = """
CREATE EXTENSION citext; CREATE EXTENSION btree_gist;
CREATE SCHEMA zoo AUTHORIZATION zoo_owner; CREATE SCHEMA "Odd ""Schema";
GRANT USAGE ON SCHEMA zoo TO zoo_rw, zoo_ro, zoo_audit; REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT CREATE ON SCHEMA public TO zoo_audit;
SET ROLE zoo_owner; SET search_path = zoo, public;
ALTER DEFAULT PRIVILEGES IN SCHEMA zoo GRANT SELECT ON TABLES TO zoo_ro;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN short AS varchar(9) CHECK (value <> 'no');
CREATE TYPE pair AS (a int, b text); REVOKE USAGE ON TYPE mood FROM PUBLIC; GRANT USAGE ON TYPE mood TO zoo_rw;
CREATE TABLE people (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, mail citext UNIQUE, name text NOT NULL,
    upper_name text GENERATED ALWAYS AS (upper(name)) STORED, feeling mood DEFAULT 'ok', boss int REFERENCES people);
CREATE TABLE rooms (id serial PRIMARY KEY, label short, spot pair);
CREATE TABLE bookings (id bigserial PRIMARY KEY, room int REFERENCES rooms, during tsrange,
    EXCLUDE USING gist (room WITH =, during WITH &&));
CREATE TABLE secrets (id int PRIMARY KEY, owner text, body text); ALTER TABLE secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE secrets FORCE ROW LEVEL SECURITY; CREATE POLICY own ON secrets TO zoo_app USING (owner = current_user);
CREATE TABLE logs (id int, at date, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE logs_1 PARTITION OF logs FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE logs_2 PARTITION OF logs DEFAULT;
CREATE TABLE parts (id int PRIMARY KEY, parent int REFERENCES parts);
CREATE INDEX people_name ON people (lower(name)) WHERE feeling = 'ok';
CREATE STATISTICS people_both ON name, feeling FROM people;
CREATE RECURSIVE VIEW tree (id, root) AS SELECT p.id, p.id FROM parts p WHERE p.parent IS NULL
    UNION ALL SELECT p.id, t.root FROM parts p JOIN tree t ON p.parent = t.id;
CREATE MATERIALIZED VIEW b_rooms AS SELECT r.id, count(b.id) AS n FROM rooms r LEFT JOIN bookings b ON b.room = r.id
    GROUP BY r.id;
CREATE UNIQUE INDEX ON b_rooms (id);
CREATE MATERIALIZED VIEW a_rooms AS SELECT m.id, r.label FROM b_rooms m JOIN rooms r ON r.id = m.id;
CREATE MATERIALIZED VIEW empty_view AS SELECT 1 AS n WITH NO DATA;
CREATE VIEW seen WITH (security_invoker = true) AS SELECT p.id, r.label FROM people p JOIN rooms r ON r.id = p.id;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA zoo TO zoo_rw;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA zoo TO zoo_rw;
GRANT SELECT (id, name) ON people TO zoo_audit; REVOKE SELECT ON secrets FROM zoo_ro; GRANT SELECT ON seen TO PUBLIC;
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := upper(NEW.note); RETURN NEW; END';
CREATE TRIGGER tube_stamp BEFORE INSERT ON logs FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE FUNCTION open_to_all() RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION open_to_all() TO PUBLIC;
RESET ROLE; CREATE TABLE public.audits (id int PRIMARY KEY, what text); ALTER TABLE public.audits OWNER TO zoo_audit;
CREATE FUNCTION public.audit(text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'INSERT INTO public.audits VALUES (1, $1)';
ALTER FUNCTION public.audit(text) OWNER TO zoo_audit; REVOKE ALL ON FUNCTION public.audit(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION public.audit(text) TO zoo_rw WITH GRANT OPTION;
DO $$ BEGIN FOR n IN 1..19 LOOP
    EXECUTE format('CREATE TABLE "Odd ""Schema".t%s (id int PRIMARY KEY, n int)', n);
    EXECUTE format('ALTER TABLE "Odd ""Schema".t%s OWNER TO %s', n, (ARRAY['zoo_owner', 'zoo_audit'])[1 + n % 2]);
END LOOP; END $$;
CREATE TABLE zoo.scratch (id serial PRIMARY KEY, n int); CREATE VIEW zoo.scratched AS SELECT s.id FROM zoo.scratch s;
CREATE FUNCTION public.watched() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION public.watched();
"""
ROWS = """
INSERT INTO zoo.people (mail, name) SELECT 'm' || g, 'n' || g FROM generate_series(1, 50) g;
INSERT INTO zoo.rooms (label) VALUES ('one'), ('two');
INSERT INTO zoo.bookings (room, during) VALUES (1, '[2024-01-01, 2024-01-02)');
INSERT INTO zoo.logs VALUES (1, '2024-05-05', 'a'), (2, '2026-05-05', 'b');
INSERT INTO zoo.parts VALUES (1, NULL), (2, 1);
INSERT INTO zoo.secrets VALUES (1, 'zoo_app', 'x'); INSERT INTO "Odd ""Schema".t1 VALUES (1, 1);
REFRESH MATERIALIZED VIEW zoo.b_rooms; REFRESH MATERIALIZED VIEW zoo.a_rooms
"""
_BODY = re.compile(r"CREATE (?:OR REPLACE )?(?:MATERIALIZED )?VIEW .*?;", re.DOTALL)


def dump(database: Database, programs: Path, *excluded: str) -> str:
    """Return the schema as pg_dump prints it, without what depends on the version that prints a view."""
    text = subprocess.run(
        [
            str(programs / "pg_dump"), "--schema-only", "--no-publications",
            *(f"--exclude-table={name}" for name in excluded), database.uri,
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    text = _BODY.sub(lambda match: " ".join(re.sub(r"\b\w+\.|[()]", " ", match[0]).split()), text)
    return "\n".join(line for line in text.splitlines() if line and not line.startswith(("--", "\\")))


def role_facts(database: Database, *, hashes: bool = True) -> list[tuple[object, ...]]:
    """Return what a server knows about the roles."""
    password = "rolpassword" if hashes else "NULL"
    return database.execute(
        f"SELECT rolname, rolinherit, rolcreatedb, rolbypassrls, rolcanlogin, rolconnlimit, rolvaliduntil, {password},"
        " ARRAY(SELECT concat_ws(' ', m.roleid::regrole, m.admin_option) FROM pg_auth_members m WHERE m.member = a.oid"
        " ORDER BY 1), (SELECT setconfig FROM pg_db_role_setting s WHERE s.setrole = a.oid AND s.setdatabase = 0)"
        " FROM pg_authid a WHERE rolname LIKE 'zoo%' AND rolname <> 'zoo_idle' ORDER BY 1"
    )


def database_facts(database: Database) -> list[tuple[object, ...]]:
    """Return the settings and privileges of a database."""
    return database.execute(
        "SELECT setrole::regrole::text, setconfig::text FROM pg_db_role_setting WHERE setdatabase ="
        " (SELECT oid FROM pg_database WHERE datname = current_database()) UNION ALL SELECT grantee::regrole::text,"
        " string_agg(privilege_type, ' ' ORDER BY privilege_type) FROM pg_database, aclexplode(datacl)"
        " WHERE datname = current_database() GROUP BY 1 ORDER BY 1, 2"
    )
