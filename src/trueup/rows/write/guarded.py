"""Delete or lock rows only if they are as they were read.

Rows were read some time ago and another session may have changed one since. Each row that is about to be written is
compared with what was read, by its hash, under the lock that the statement takes. Rows that changed are left as they
are; their ids are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass

from psycopg import Rollback, sql

from trueup.db.connection import Connection, one_row
from trueup.rows.encode import row_hash
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, canonical, key_texts, order_by
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy_text import key_id
from trueup.rows.write.stage import stage_keys
from trueup.rows.write.target import Target, same_key_value, table_name

KEYS_PER_STATEMENT = 5000
Hashes = dict[bytes, bytes]  # id of a row (see `copy_text.key_id`) and its hash as text


@dataclass(frozen=True)
class Expected:
    """Rows as they were read: id, key and hash of each; a hash of None means that there was no row."""

    ids: Sequence[bytes]
    keys: Sequence[KeyValues]
    hashes: Sequence[bytes | None]

    @property
    def digest(self) -> tuple[int, int]:
        """The number of rows and the sum of their hashes."""
        numbers = [int(value) for value in self.hashes if value is not None]
        return len(numbers), sum(numbers)

    def without(self, ids: Set[bytes]) -> Expected:
        """Return the rows that have none of these ids."""
        if ids.isdisjoint(self.ids):
            return self
        places = [place for place, name in enumerate(self.ids) if name not in ids]
        return Expected(
            [self.ids[place] for place in places],
            [self.keys[place] for place in places],
            [self.hashes[place] for place in places],
        )

    @property
    def by_id(self) -> dict[bytes, tuple[KeyValues, bytes | None]]:
        """Key and hash of each row by its id."""
        return dict(zip(self.ids, zip(self.keys, self.hashes, strict=True), strict=True))


def has_rows(connection: Connection, spec: TableSpec, expected: Expected) -> bool:
    """Return whether the table has exactly these rows for these keys, by count and sum of their hashes."""
    query = sql.SQL("SELECT count(*), coalesce(sum({}), 0) FROM {} WHERE {}").format(
        row_hash(spec), table_name(spec), among(spec, expected.keys)
    )
    return tuple(one_row(connection.execute(query))) == expected.digest


def read_hashes(connection: Connection, spec: TableSpec, keys: Sequence[KeyValues]) -> Hashes:
    """Return the hashes of the rows of these keys."""
    hashes: Hashes = {}
    for batch in key_batches(keys):
        query = sql.SQL("SELECT {}, {}::text FROM {} WHERE {}").format(
            key_texts(spec), row_hash(spec), table_name(spec), among(spec, batch)
        )
        hashes.update(_by_id(spec, connection.execute(query).fetchall()))
    return hashes


def lock_unchanged(
    connection: Connection, spec: TableSpec, expected: Expected, *, with_keys: bool = False
) -> set[bytes]:
    """Lock the rows in the order of their keys, and return the ids of those that changed.

    The lock is that of an UPDATE: other sessions can insert rows that refer to these. `with_keys`: it is that of a
    DELETE, which an UPDATE of a unique value takes too. A weaker lock now and this one later would be a deadlock with
    a session that inserted a row which refers to this one, and now updates this one.

    Call it outside of a savepoint: a row that is locked in one subtransaction and written in another gets two holders,
    which takes more time.
    """
    if not expected.keys:
        return set()
    locked = sql.SQL("SELECT {}, {} AS hash FROM {} WHERE {} ORDER BY {} FOR {}").format(
        key_texts(spec),
        row_hash(spec),
        table_name(spec),
        among(spec, expected.keys),
        order_by(spec),
        sql.SQL("UPDATE" if with_keys else "NO KEY UPDATE"),
    )
    query = sql.SQL("SELECT count(*), coalesce(sum(hash), 0) FROM ({}) locked").format(locked)
    if tuple(one_row(connection.execute(query))) == expected.digest:
        return set()
    # Under the lock again: a row that was deleted may have been inserted again since.
    rows = connection.execute(locked).fetchall()
    return _changed(expected.by_id, _by_id(spec, [(*row[:-1], str(row[-1])) for row in rows]))


def existing(connection: Connection, spec: TableSpec, expected: Expected) -> set[bytes]:
    """Return the ids of the rows that exist, of keys for which there was no row."""
    if not expected.keys or has_rows(connection, spec, expected):
        return set()
    return read_hashes(connection, spec, expected.keys).keys() & set(expected.ids)


def delete_locked(connection: Connection, spec: TableSpec, keys: Sequence[KeyValues]) -> int:
    """Delete rows that `lock_unchanged` locked, and return their number."""
    deleted = 0
    for batch in key_batches(keys):
        query = sql.SQL("DELETE FROM {} WHERE {}").format(table_name(spec), among(spec, batch))
        deleted += connection.execute(query).rowcount
    return deleted


def delete_unchanged(connection: Connection, spec: TableSpec, expected: Expected) -> set[bytes]:
    """Delete the rows that are unchanged and return the ids of the others.

    Usually none changed: then this is one statement, and the node returns only the count and the sum of the hashes.
    """
    if _delete_if_all_unchanged(connection, spec, expected):
        return set()

    def delete(rows: Mapping[bytes, tuple[KeyValues, bytes | None]]) -> Hashes:
        deleted: Hashes = {}
        for batch in key_batches([key for key, _ in rows.values()]):
            deleted |= _delete(connection, spec, among(spec, batch))
        return deleted

    return _delete_without_changed(connection, expected, delete)


def delete_unchanged_together(
    connection: Connection, spec: TableSpec, expected: Expected, path: Callable[[], AbstractContextManager[None]]
) -> set[bytes]:
    """Like `delete_unchanged`, in one statement for all keys: the rows may refer to each other.

    Triggers fire, and ON DELETE actions of other tables do as the schema says; `path` is the search_path for them.
    """
    target = Target(spec, spec.key_names)

    def delete(rows: Mapping[bytes, tuple[KeyValues, bytes | None]]) -> Hashes:
        staged = stage_keys(connection, target, rows)
        with path():
            return _delete_staged(connection, target, staged)

    return _delete_without_changed(connection, expected, delete)


def key_batches(keys: Sequence[KeyValues]) -> Iterator[Sequence[KeyValues]]:
    """Yield the keys in batches that one statement can list."""
    for start in range(0, len(keys), KEYS_PER_STATEMENT):
        yield keys[start : start + KEYS_PER_STATEMENT]


def _delete_if_all_unchanged(connection: Connection, spec: TableSpec, expected: Expected) -> bool:
    query = sql.SQL(
        "WITH gone AS (DELETE FROM {} WHERE {} RETURNING {} AS hash) SELECT count(*), coalesce(sum(hash), 0) FROM gone"
    ).format(table_name(spec), among(spec, expected.keys), row_hash(spec))
    with connection.transaction() as savepoint:
        if tuple(one_row(connection.execute(query))) == expected.digest:
            return True
        raise Rollback(savepoint)
    return False


def _delete_without_changed(
    connection: Connection,
    expected: Expected,
    delete: Callable[[Mapping[bytes, tuple[KeyValues, bytes | None]]], Hashes],
) -> set[bytes]:
    """Delete, and if a changed row was among the deleted ones, roll back and delete again without it."""
    rows, changed = expected.by_id, set[bytes]()
    while rows:
        with connection.transaction() as savepoint:
            deleted = delete(rows)
            wrong = _changed(rows, deleted)
            if wrong & deleted.keys():
                raise Rollback(savepoint)
        changed |= wrong
        if not wrong & deleted.keys():
            break
        rows = {name: row for name, row in rows.items() if name not in wrong}
    return changed


def _changed(rows: Mapping[bytes, tuple[KeyValues, bytes | None]], hashes: Hashes) -> set[bytes]:
    return {name for name, (_, before) in rows.items() if hashes.get(name) != before}


def _delete(connection: Connection, spec: TableSpec, condition: sql.Composable) -> Hashes:
    query = sql.SQL("DELETE FROM {} WHERE {} RETURNING {}, {}::text").format(
        table_name(spec), condition, key_texts(spec), row_hash(spec)
    )
    return _by_id(spec, connection.execute(query).fetchall())


def _delete_staged(connection: Connection, target: Target, staged: sql.Composable) -> Hashes:
    """Delete the rows of staged keys; triggers may fire, so each name has its schema."""
    spec = target.spec
    query = sql.SQL(
        "DELETE FROM {} t WHERE EXISTS (SELECT FROM {} k WHERE {}) RETURNING {}, {}::pg_catalog.text"
    ).format(target.name, staged, same_key_value(spec, "t", "k"), key_texts(spec), row_hash(spec))
    return _by_id(spec, connection.execute(query).fetchall())


def _by_id(spec: TableSpec, rows: Sequence[Sequence[str]]) -> Hashes:
    return {key_id(canonical(spec, row[:-1])): row[-1].encode() for row in rows}
