"""Rounds: whatever happens to rows on the source is the same on the target afterwards."""

from __future__ import annotations

import pytest

from tests.integration.switchover.conftest import Pair

TABLES = """
CREATE TABLE customers (id bigint PRIMARY KEY, email text UNIQUE, note jsonb, chief bigint REFERENCES customers);
CREATE TABLE orders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint REFERENCES customers ON DELETE CASCADE,
    amount numeric, doubled numeric GENERATED ALWAYS AS (amount * 2) STORED);
CREATE TABLE lines ("order" integer REFERENCES orders ON DELETE CASCADE, line text, what text, PRIMARY KEY ("order", line));
CREATE TABLE tags (tag text PRIMARY KEY);
"""
NAMES = ["customers", "orders", "lines", "tags"]
ROWS = """
INSERT INTO customers SELECT g, 'c' || g || '@x', '{"a": null}', nullif(g - 1, 0) FROM generate_series(1, 50) g;
INSERT INTO orders (customer, amount) SELECT g % 50 + 1, g / 7.0 FROM generate_series(1, 200) g;
INSERT INTO lines SELECT g % 200 + 1, 'l"' || g, E'a\\tb\\\\c,{}' FROM generate_series(1, 400) g;
INSERT INTO tags SELECT 't' || g FROM generate_series(1, 10) g;
"""


@pytest.fixture
def synced(pair: Pair) -> Pair:
    pair.both(TABLES)
    pair.source.execute(ROWS)
    pair.start()
    pair.check_equal(NAMES)
    return pair


def test_smoke(synced: Pair) -> None:
    synced.source.execute(
        """UPDATE customers SET email = 'tmp' WHERE id = 1; UPDATE customers SET email = 'c1@x' WHERE id = 2;
        UPDATE customers SET email = 'c2@x' WHERE id = 1;
        DELETE FROM orders WHERE id < 5; UPDATE tags SET tag = tag || '!' ; INSERT INTO tags VALUES ('');"""
    )
    totals = synced.run()
    synced.check_equal(NAMES)
    assert totals.keys
    print(totals)
