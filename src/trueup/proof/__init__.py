"""Certificates: what was proven equal, block by block, and what voids that; stored in a meta database.

Reading order: `model` (a certificate, its blocks, the reason that voids it), `store` (the tables of the meta database),
`touched` (which block a changed key belongs to), `since` (which blocks still hold), `document` (the canonical bytes and
the file of a signed statement), `stated` (its verdict, from its facts).
"""

from __future__ import annotations
