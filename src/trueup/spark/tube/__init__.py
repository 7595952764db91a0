"""`spark.readStream.format("trueup_tube")`: the touched keys of a tube with their rows as they are now, as a stream.

Reading order: `datasource` (what Spark calls), `options` (what the user may say), `offsets` (which pods a batch is),
`claims` (the driver's half: locks, claim, delete), `tasks` (the executors' half: read, enrich, Arrow).
"""

from __future__ import annotations
