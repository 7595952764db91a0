"""Do all nodes hash alike? A literal row of every type class, hashed on each, decides which digest is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.db.connection import Connection, one_row
from trueup.errors import CheckFailed
from trueup.rows.spec import DigestKind, TableSpec

# One value of each class that goes into the hash as it is, and the text forms of the classes that go in as text.
_NATIVE = ", ".join(
    [
        "1::int2, -2::int4, int8send(3000000000), 7::oid, true, NULL::text, '\\xdeadbeef'::bytea",
        "'täxt'::text COLLATE \"C\", 'v'::varchar COLLATE \"C\", '6f9619ff-8b86-d011-b42d-00cf4fc964ff'::uuid",
        "'2024-02-29'::date, time_send('12:34:56.789'), timestamp_send('2024-02-29 12:34:56.789012')",
        "timestamptz_send('2024-02-29 12:34:56.789012+00')",
    ]
)
_TEXTS = ", ".join(
    [
        "trim_scale(3000.10)::text, 3000.10::text, 'NaN'::numeric::text, 12.5::numeric::money::text",
        "(0.1::float8 + 0.2::float8)::text, 1.1::float4::text, '-infinity'::float8::text",
        """'{"b": 1.0, "a": [null, "x"]}'::jsonb::text, '{1,NULL,"a b"}'::text[]::text, ROW(1, 'a,b', NULL)::text""",
        "'1 year 2 mons 3 days 04:05:06.7'::interval::text, '12:00+02'::timetz::text, '[1,5)'::int4range::text",
        "'10.0.0.1/8'::inet::text, B'101'::text, textin(bpcharout('a  '::char(3))), '(1.5,2)'::point::text",
    ]
)


def choose_digest(connections: Sequence[Any], spec: TableSpec, wish: str) -> DigestKind:
    """The native digest where every node hashes alike, else the portable one; refuses where not even text agrees."""
    texts = {_answer(connection, f"SELECT md5(ROW({_TEXTS})::text)") for connection in connections}
    if len(texts) > 1:
        raise CheckFailed(
            ["the nodes print the same values differently (versions or settings): their rows cannot be compared"],
            cure="compare nodes of supported versions (13 or newer), without a pooler that changes settings",
        )
    if wish == "portable" or any(connection.info.server_version < 140000 for connection in connections):
        return "portable"
    native = {
        _answer(
            connection,
            f"SELECT hashtextextended(hash_record_extended(ROW({_NATIVE}), {spec.seed})::text, {spec.seed})::text",
        )
        for connection in connections
    }
    if len(native) == 1:
        return "native"
    if wish == "native":
        raise CheckFailed(["digest = native: the nodes hash the same row differently"], cure="use digest = auto")
    return "portable"


def _answer(connection: Connection, query: str) -> str:
    row = one_row(connection.execute(query))
    return str(row[0])
