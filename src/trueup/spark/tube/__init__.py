"""`spark.readStream.format("trueup_tube")`: a stream of the touched keys of a tube with their current rows.

Reading order: `datasource` (the interface of Spark), `options` (its options), `offsets` (the pods of a batch),
`claims` (on the driver: lock, claim, delete), `tasks` (on the executors: read, enrich, Arrow).
"""

from __future__ import annotations
