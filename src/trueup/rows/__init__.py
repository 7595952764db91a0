"""Rows: how a row is identified, hashed, read, compared and written, in the same way on every node.

Reading order: `types` (the table of types), `spec` (what is compared), `request` (what the user asked to compare),
`comparable` (whether a table can be compared on all nodes), `encode` (SQL expressions of a column), `keys` (blocks and
key lists as conditions), `cuts` and `pages` (where to split a table), `probe` (whether all nodes compute equal hashes),
`digest` (count and sum of a block), `fetch` (rows by block or by key), `marks` (rows of a block as arrays of numbers),
`canonical` (values as bytes that do not depend on the kind of node), `lookup3` (a fast hash of them), `classes` (as
which class columns of different types are compared), `rules` (weaker equality), `proven` (blocks that need not be
read), `align` (differences per key), `write` (writing rows to a node).
"""

from __future__ import annotations
