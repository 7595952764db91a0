"""Compares definitions across nodes: tables, columns, keys, indexes, views, functions and other objects.

Reading order: `run` (the path of the verb), `model` (the result), `text` (the result as text). What an object is, and
when two are equal, is in the module schema of the package db.
"""

from __future__ import annotations
