"""Nodes of databases with an SQL dialect of their own.

Reading order: `sql` (what the dialects share: statements, digests, rows), `mysql`, `clickhouse`, `spooled` (rows of the
driver for Spark).
"""

from __future__ import annotations
