"""Compare rows of a table on several nodes by their keys or hashes, and report what differs.

Used by a diff, by a rerun of past keys, and by a repair to verify what it wrote.

Reading order: `model` (keys, blocks and answers), `keys` (compare rows by key), `copies` (rows of a table without a
key), `certify` (the digests of a run that records a certificate), `spool` (differences on disk), `state` (what was
compared and found), `recheck` (tell differences from changes in flight), `accepted` (differences that are known and
wanted), `lines` (a difference as a line of the report), `result` (verdict and report), `rerun` (compare the keys of a
past report).
"""

from __future__ import annotations
