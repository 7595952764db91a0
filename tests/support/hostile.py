"""A plain role that tries to become superuser through casts of its own types, which trueup must never call."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trueup.testing.postgres import Database

_numbers = itertools.count(1)
PASSWORD = "plain"

# The body of every function of the role. In a session that cannot write, the statement fails, and so does the verb.
_SEIZE = "BEGIN IF current_user <> '{role}' THEN ALTER ROLE {role} SUPERUSER; END IF; RETURN NULL; END"
_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
CREATE TYPE comp AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = int4);
CREATE DOMAIN calm AS mood;
CREATE DOMAIN small AS int;
"""
_CASTS = """
DO $do$ DECLARE s text; t text; n int := 0; BEGIN
    FOR s, t IN SELECT s.x, t.x FROM unnest('{mood,comp,span,mood[],comp[]}'::text[]) s(x), (
            SELECT format_type(oid, NULL) FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b'
               AND typcategory NOT IN ('A', 'P', 'X') UNION VALUES ('integer[]'), ('text[]'), ('int2vector'),
            ('oidvector'), ('pg_catalog.pg_am')) t(x) LOOP
        n := n + 1;
        BEGIN
            EXECUTE format('CREATE FUNCTION seize_%s(x %s) RETURNS %s LANGUAGE plpgsql AS %L', n, s, t, %(body)s);
            EXECUTE format('CREATE CAST (%s AS %s) WITH FUNCTION seize_%s(%s) AS IMPLICIT', s, t, n, s);
        EXCEPTION WHEN feature_not_supported OR wrong_object_type OR invalid_object_definition THEN NULL;
        END;
    END LOOP;
    FOREACH s IN ARRAY '{mood,comp,span}'::text[] LOOP
        n := n + 1;
        EXECUTE format('CREATE FUNCTION seize_%s(x text) RETURNS %s LANGUAGE plpgsql AS %L', n, s, %(body)s);
        EXECUTE format('CREATE CAST (text AS %s) WITH FUNCTION seize_%s(text) AS ASSIGNMENT', s, n);
    END LOOP;
END $do$
"""


@dataclass(frozen=True)
class Hostile:
    """The role; it may create objects in the schema public of its databases."""

    role: str
    databases: tuple[Database, ...]

    def run(self, statements: str, *only: Database) -> None:
        """Run statements as the role, in all databases or only these."""
        for database in only or self.databases:
            database.execute(f"SET ROLE {self.role}; SET search_path = public; {statements}")

    def make_types(self, then: str = "") -> None:
        """Create types of all kinds, run statements that use them, and create casts to and from all built-in types."""
        body = _SEIZE.format(role=self.role)
        self.run(_TYPES + then)
        self.run(_CASTS.replace("%(body)s", f"$body${body}$body$"))

    def is_superuser(self) -> bool:
        """Return whether an attack succeeded."""
        return bool(self.databases[0].execute(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{self.role}'")[0][0])


@contextmanager
def hostile_role(databases: Sequence[Database]) -> Iterator[Hostile]:
    """Yield a role with CREATE on the databases and on their schema public; drop it with all it owns."""
    role = f"hostile_{os.getpid()}_{next(_numbers)}"
    databases[0].execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    for database in databases:
        database.execute(f"GRANT ALL ON SCHEMA public TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}")
    try:
        yield Hostile(role, tuple(databases))
    finally:
        databases[0].execute(f"ALTER ROLE {role} NOSUPERUSER")
        for database in databases:
            database.execute(f"DROP OWNED BY {role} CASCADE")
        databases[0].execute(f"DROP ROLE {role}")
