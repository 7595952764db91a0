"""The public API, exported by the package `trueup`: functions for what runs once, classes for what lives.

Reading order: `parameters`, `diff` (diff, check, rerun, resume), `since_proof`, `accept`, `certificate`, `compare` (two
frames), `schema`, `repair`, `repair_validation`, `sync`, `switchover`, `validate`, `tube`, `difflog`, `snapshot`,
`doctor`.
"""

from __future__ import annotations
