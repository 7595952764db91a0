"""Probe whether all nodes compute equal hashes: a literal row with one value per type decides which digest is used."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from trueup.db.connection import Connection, one_value
from trueup.errors import CheckFailed
from trueup.rows.encode import row_hash, row_id, row_id_columns, text_of
from trueup.rows.spec import ColumnSpec, DigestKind, TableSpec, new_seed
from trueup.rows.types import TYPES

# Values whose text depends on the version or the settings of the server, beyond the samples of the table of types.
_TEXTS = sql.SQL(
    """'NaN'::numeric::text, 12.5::numeric::money::text, (0.1::float8 + 0.2::float8)::text, '-infinity'::float8::text,
    '{1,NULL,"a b"}'::text[]::text, ROW(1, 'a,b', NULL)::text, '[1,5)'::int4range::text, B'101'::text,
    '(1.5,2)'::point::text"""
)
_SAMPLES = {f'"pg_catalog"."{row.name}"': row.sample for row in TYPES.values() if row.sample}
_COLUMNS = tuple(
    ColumnSpec(row.name, f'"pg_catalog"."{row.name}"', row.encoding) for row in TYPES.values() if row.sample
)
_ROW = sql.SQL(", ").join(
    sql.SQL("{}::{} AS {}").format(
        sql.Literal(_SAMPLES[column.type]), sql.SQL(column.type), sql.Identifier(column.name)
    )
    for column in _COLUMNS
)


def choose_digest(connections: Sequence[Connection], setting: str) -> DigestKind:
    """Return "native" if all nodes compute equal hashes, else "portable", unless the setting `digest` says which.

    Raise CheckFailed if nodes print values differently, or if the setting is "native" and their hashes differ.
    """
    texts = sql.SQL(", ").join([*(text_of(column) for column in _COLUMNS), _TEXTS])
    if _answers_differ(connections, sql.SQL("md5(ROW({})::text)").format(texts)):
        raise CheckFailed(
            ["the nodes print the same values differently (versions or settings): their rows cannot be compared"],
            cure="compare nodes of supported versions (13 or newer), without a pooler that changes settings",
        )
    if setting == "portable" or any(connection.info.server_version < 140000 for connection in connections):
        return "portable"
    # A seed of its own: that of a run is not seen before its snapshots are taken.
    probe = TableSpec("", "", (), _COLUMNS, digest="native", seed=new_seed())
    if not _answers_differ(connections, row_hash(probe)):
        return "native"
    if setting == "native":
        raise CheckFailed(
            ["digest = native: the nodes compute different hashes of the same row"], cure="set digest = auto"
        )
    return "portable"


def same_row_ids(connections: Sequence[Connection]) -> bool:
    """Return whether all nodes compute the same `encode.row_id` of a row."""
    return not _answers_differ(connections, row_id(row_id_columns(_COLUMNS), "probe"))


def _answers_differ(connections: Sequence[Connection], expression: sql.Composable) -> bool:
    query = sql.SQL("SELECT ({})::text FROM (SELECT {}) probe").format(expression, _ROW)
    return len({one_value(connection.execute(query)) for connection in connections}) > 1
