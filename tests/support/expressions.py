"""A database with functions, types and operators of another role: code that must not run."""

from __future__ import annotations

from trueup.testing.postgres import Database

# A role that owns functions, types and operators, and whose code must not run.
_SETUP = """
    CREATE ROLE {owner};
    GRANT {owner} TO postgres;
    CREATE TABLE items (id int PRIMARY KEY, name text, day date, doc jsonb, numbers int[], at timestamptz);
    INSERT INTO items SELECT n, 'item ' || n, '2026-01-01', '{{"a": 1}}', '{{1}}' FROM generate_series(1, 20) n;
    CREATE TYPE mood AS ENUM ('good', 'bad');
    GRANT CREATE ON SCHEMA public TO {owner};
    SET ROLE {owner};
    CREATE FUNCTION spy(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RAISE EXCEPTION 'the code ran'; END $$;
    CREATE FUNCTION spy_equal(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT public.spy($1) = $2';
    CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = spy_equal);
    CREATE DOMAIN positive AS int CHECK (public.spy(VALUE) > 0);
    CREATE TYPE pair AS (a positive, b int);
    CREATE FUNCTION pair_text(pair) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT public.spy(1)::text';
    CREATE FUNCTION pair_json(pair) RETURNS json LANGUAGE sql IMMUTABLE AS 'SELECT public.spy(1)::text::json';
    CREATE FUNCTION mood_number(mood) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT public.spy(1)';
    CREATE CAST (pair AS text) WITH FUNCTION pair_text(pair);
    CREATE CAST (pair AS json) WITH FUNCTION pair_json(pair);
    CREATE FUNCTION spy_difference(int, int) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT public.spy(1)';
    CREATE TYPE spies AS RANGE (SUBTYPE = int, SUBTYPE_DIFF = spy_difference);
    CREATE VIEW watched AS SELECT public.spy(1) AS id;
    RESET ROLE;
    CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far;
    CREATE TABLE near (id int); CREATE FOREIGN TABLE far () INHERITS (near) SERVER far;
    CREATE TABLE own (id int PRIMARY KEY, m mood, p positive, list positive[], pr pair, r spies);
"""


class Spied:
    """A database with functions of the role `owner` that raise the error "the code ran"."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.uri = database.uri
        self.owner = f"spy_{database.name}"
        database.execute(_SETUP.format(owner=self.owner))

    def remove(self) -> None:
        """Drop the role."""
        self.database.execute(f"DROP OWNED BY {self.owner} CASCADE; DROP ROLE {self.owner}")
