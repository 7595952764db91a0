"""Demos of the verbs on throw-away servers with example data.

Reading order: `run` (a diff of three nodes), `difflog` (a version log), `switchover` (moves an application to another
server and back), `lake` (compares with a Delta table), `tube` (keeps a copy up to date), `validate` (checks replicated
changes), `proof` (proves tables at any time), `serve` (all of it on one page), `background` (threads of the demos).
"""

from __future__ import annotations
