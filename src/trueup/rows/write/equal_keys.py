"""Keys that are equal for the unique index of the target but have different texts, such as 'a' and 'A' of type citext.

For a diff these are two rows: one is missing, the other one is extra. For the target, its applications and the rows
that refer to it, it is one row, which gets another key in place.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.rows.encode import text_of
from trueup.rows.keys import canonical
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import key_id
from trueup.rows.write.stage import stage_keys
from trueup.rows.write.target import Target, table_name


def equal_keys(
    connection: Connection, spec: TableSpec, missing: Collection[bytes], extra: Collection[bytes]
) -> dict[bytes, bytes]:
    """Return the missing keys that equal an extra key, with that key; as ids, see `copy_text.key_id`."""
    if not missing or not extra:
        return {}
    operators = connection.execute(
        load("trueup.rows.write", "equal_keys.sql")["equality"],
        {"schema": spec.schema, "table": spec.table, "key": list(spec.key_names)},
    ).fetchall()
    if not operators:
        return {}
    staged = stage_keys(connection, Target(spec, spec.key_names), missing)
    same = [
        sql.SQL("{} {} {}").format(sql.Identifier("t", name), sql.SQL(operator), sql.Identifier("s", name))
        for name, (operator,) in zip(spec.key_names, operators, strict=True)
    ]
    texts = [text_of(part.column, row) for row in ("s", "t") for part in spec.key]
    rows = connection.execute(
        sql.SQL("SELECT {} FROM {} s JOIN {} t ON {}").format(
            sql.SQL(", ").join(texts), staged, table_name(spec), sql.SQL(" AND ").join(same)
        )
    ).fetchall()
    width, extras = len(spec.key), set(extra)
    pairs = [(key_id(canonical(spec, row[:width])), key_id(canonical(spec, row[width:]))) for row in rows]
    return {new: old for new, old in pairs if new != old and old in extras}
