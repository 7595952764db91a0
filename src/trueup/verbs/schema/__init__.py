"""Are the definitions the same on all nodes? Tables, columns, keys, indexes, views, functions and the rest.

Reading order: `call` (the Python API), `run` (the whole path), `model` (the answer), `text` (for people). What an
object is, and when two are the same, is in `trueup.db.schema`.
"""

from __future__ import annotations
