"""Capture from the log: the row changes of a database, read from a logical replication slot.

Reading order: `slot` (create, inspect, peek, advance, drop), `publications` (which tables a slot reports), `pgoutput`
(messages to changes), `reader` (the changes of a slot between two positions), `visible` (transactions that are not
visible yet), `syncer` (how far what applies the changes is).
"""

from __future__ import annotations
