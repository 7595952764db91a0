"""The heart: how a row is named, hashed, fetched and compared, the same on every node.

Reading order: `spec` (what is compared, of which table), `encode` (a column as SQL, its value as Python), `keys`
(blocks and key lists as predicates), `cuts` and `pages` (where to cut a table), `filter` (is it one expression),
`probe` (do all nodes hash alike), `digest` (count and sum of a block), `fetch` (rows by block or by key), `align` (n
sides, one verdict for each key).
"""

from __future__ import annotations
