"""Tables with foreign keys of all kinds, whose rows differ on two nodes, for repairs of whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.testing.postgres import Database

# Chains across schemas, a self reference, a cycle that can be deferred, partitions, a table that matches.
TABLES = """
    CREATE SCHEMA far;
    CREATE TABLE outside (id int PRIMARY KEY);
    CREATE TABLE far.parents (id int PRIMARY KEY, code text UNIQUE, v text);
    CREATE TABLE kids (id int PRIMARY KEY, parent int NOT NULL REFERENCES far.parents, other int REFERENCES outside,
                       v text);
    CREATE TABLE a_grandkids (id int PRIMARY KEY, kid int NOT NULL REFERENCES kids ON DELETE CASCADE, v text);
    CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree, v text);
    CREATE TABLE hens (id int PRIMARY KEY, egg int NOT NULL);
    CREATE TABLE eggs (id int PRIMARY KEY, hen int NOT NULL REFERENCES hens DEFERRABLE);
    ALTER TABLE hens ADD FOREIGN KEY (egg) REFERENCES eggs DEFERRABLE INITIALLY DEFERRED;
    CREATE TABLE parts (id int PRIMARY KEY, parent int REFERENCES far.parents) PARTITION BY RANGE (id);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (500);
    CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (500) TO (1000);
    CREATE TABLE same (id int PRIMARY KEY, v text);
    INSERT INTO outside VALUES (1), (2);
    INSERT INTO far.parents SELECT i, 'code ' || i, 'v' FROM generate_series(1, 20) i;
    INSERT INTO kids SELECT i, i % 20 + 1, i % 2 + 1, 'v' FROM generate_series(1, 40) i;
    INSERT INTO a_grandkids SELECT i, i % 40 + 1, 'v' FROM generate_series(1, 60) i;
    INSERT INTO tree SELECT i, nullif(i - 1, 0), 'v' FROM generate_series(1, 10) i;
    INSERT INTO parts SELECT i * 50, i + 1 FROM generate_series(0, 19) i;
    INSERT INTO same SELECT i, 'v' FROM generate_series(1, 10) i;
    BEGIN; INSERT INTO hens VALUES (1, 1); INSERT INTO eggs VALUES (1, 1); COMMIT;
"""
# Parents, children and grandchildren that only one of the nodes has; rows that refer to other parents.
ONLY = """
    INSERT INTO far.parents VALUES ({p}, 'code {u}', '{n}'), ({p} + 1, 'only {p}', '{n}');
    INSERT INTO kids VALUES ({p}, {p}, 1, '{n}'), ({p} + 1, 3, NULL, '{n}');
    INSERT INTO a_grandkids VALUES ({p}, {p}, '{n}'), ({p} + 1, {p} + 1, '{n}');
    INSERT INTO tree VALUES ({p}, {p} + 2, '{n}'), ({p} + 1, {p}, '{n}'), ({p} + 2, 5, '{n}');
    INSERT INTO parts VALUES ({p} + 1, {p}), ({p} + 502, {p} + 1);
    BEGIN; INSERT INTO hens VALUES ({p}, {p}); INSERT INTO eggs VALUES ({p}, {p}); COMMIT;
    UPDATE kids SET parent = {p}, v = '{n}' WHERE id = 5;
    UPDATE a_grandkids SET kid = {p} WHERE id = 7;
    UPDATE tree SET up = {p} WHERE id = 9;
"""
NAMES = ("far.parents", "kids", "a_grandkids", "tree", "hens", "eggs", "parts")
RUN: dict[str, Any] = {"tables": ["public.*", "far.*"], "exclude_tables": ["public.outside"]}


def create(nodes: Sequence[Database], *, one_code: bool = False) -> None:
    """Create the tables on two nodes, with rows that differ; with `one_code`, rows of both have a unique value."""
    for place, node in enumerate(nodes, 1):
        node.execute(TABLES)
        node.execute(ONLY.format(p=100 * place, n=f"n{place}", u="x" if one_code else f"of n{place}"))


def rows(node: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables."""
    return {name: node.execute(f"SELECT * FROM {name} ORDER BY 1") for name in (*NAMES, "outside", "same")}
