"""Compare rows of a table without a key: a row is identified by its hash, and nodes differ in its number of copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from trueup.db.reader import Reader
from trueup.engine.work import More, Room
from trueup.rows.align import Difference, align_copies
from trueup.rows.encode import Value, decode, row_hash, value_of
from trueup.rows.keys import Block, source, where
from trueup.rows.spec import TableSpec, new_seed
from trueup.task.compare.model import Found
from trueup.task.job import Job

_ALL_ROWS = Block(None, None)
# Rows that one query reads.
_BATCH = 2000


@dataclass(frozen=True)
class CompareHashes:
    """Task: read the rows with these hashes, of which the nodes have different numbers of copies."""

    hashes: tuple[int, ...]
    copies: Mapping[str, Mapping[int, int]]
    block: Block = _ALL_ROWS


def compare_hashes(job: Job, task: CompareHashes, room: Room) -> Iterator[Found | More]:
    """Read the rows of hashes that differ, in batches, each from a node that has it."""
    for start in range(0, len(task.hashes), _BATCH):
        if room.is_used_up:
            rest = task.hashes[start:]
            copies = {node: {mark: side[mark] for mark in rest if mark in side} for node, side in task.copies.items()}
            yield More((CompareHashes(rest, copies),))
            return
        batch = task.hashes[start : start + _BATCH]
        differences = tuple(align_copies(task.copies, batch, _rows_of(job, batch, task.copies)))
        room.take(sum(difference.size() for difference in differences))
        yield Found(differences)


def differing_hashes(marks: Sequence[int], copies: Mapping[str, Mapping[int, int]]) -> CompareHashes:
    """Return the task for those of these hashes whose number of copies is not the same on all nodes."""
    differing = (mark for mark in marks if len({side.get(mark, 0) for side in copies.values()}) > 1)
    return CompareHashes(tuple(differing), copies)


def copies_where(reader: Reader, spec: TableSpec, condition: sql.Composable) -> dict[int, int]:
    """Return the number of copies of each row on a node, by hash."""
    query = sql.SQL("SELECT trueup_hash, count(*) FROM {} WHERE {} GROUP BY 1").format(hashed_rows(spec), condition)
    return dict(reader.rows(query))


def proven_copies(
    job: Job, hashes: Sequence[int], nodes: Sequence[str], *, fresh: bool = False
) -> tuple[dict[str, dict[int, int]], set[int]]:
    """Return the number of copies of these rows per node, by hash, and the hashes of rows that were made to have them.

    The seed of the hashes may have been known when rows were written: rows of one hash are equal if they also agree by
    a second hash, whose seed is new.
    """
    other = replace(job.spec, seed=new_seed())
    proof = sql.SQL("{} AS trueup_proof").format(row_hash(other))
    query = sql.SQL("SELECT trueup_hash, count(*), sum(trueup_proof)::text FROM {} WHERE {} GROUP BY 1").format(
        hashed_rows(job.spec, names=proof), with_hash(hashes)
    )
    found = job.read(
        nodes, lambda reader: {mark: (count, total) for mark, count, total in reader.rows(query)}, fresh=fresh
    )
    copies = {node: {mark: count for mark, (count, _) in side.items()} for node, side in found.items()}
    made = {
        mark
        for mark in hashes
        if len({side.get(mark, 0) for side in copies.values()}) == 1
        and len({side.get(mark) for side in found.values()}) > 1
    }
    return copies, made


def with_hash(hashes: Sequence[int]) -> sql.Composable:
    """Return the condition that a row has one of these hashes."""
    return sql.SQL("trueup_hash = ANY({})").format(sql.Literal(list(hashes)))


def _rows_of(job: Job, hashes: Sequence[int], copies: Mapping[str, Mapping[int, int]]) -> dict[int, tuple[Value, ...]]:
    """Return one row per hash, from the first node that has it: equal hashes mean equal rows."""
    by_node: dict[str, list[int]] = defaultdict(list)
    for mark in hashes:
        by_node[next(node for node, side in copies.items() if mark in side)].append(mark)
    values = sql.SQL(", ").join(value_of(column, job.spec) for column in job.spec.columns)
    names = sql.SQL(", ").join(sql.Identifier(name) for name in job.spec.column_names)
    rows: dict[int, tuple[Value, ...]] = {}
    for node, marks in by_node.items():
        query = sql.SQL(
            "SELECT DISTINCT ON (trueup_hash) trueup_hash, {values} FROM {hashed} WHERE {condition}"
        ).format(values=values, hashed=hashed_rows(job.spec, names=names), condition=with_hash(marks))
        for mark, *row in job.read((node,), lambda reader, query=query: reader.rows(query))[node]:  # type: ignore[misc]
            rows[mark] = tuple(decode(column, value) for column, value in zip(job.spec.columns, row, strict=True))
    return rows


def hashed_rows(spec: TableSpec, *conditions: sql.Composable, names: sql.Composable | None = None) -> sql.Composed:
    """Return the subquery of rows with their hash; OFFSET 0 makes the planner compute the hash only once per row."""
    more = sql.SQL(", {}").format(names) if names is not None else sql.SQL("")
    return sql.SQL("(SELECT {hash} AS trueup_hash{more} FROM {source}{where} OFFSET 0) trueup_rows").format(
        hash=row_hash(spec), more=more, source=source(spec), where=where(spec, *conditions)
    )


def with_values_of(earlier: Difference, now: Difference) -> Difference:
    """Return the difference `now` with the row's values of an earlier one with the same hash."""
    values = next((group.values for group in earlier.groups if group.values is not None), None)
    groups = tuple(group._replace(values=values if group.hash is not None else None) for group in now.groups)
    return now._replace(groups=groups)
