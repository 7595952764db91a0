"""`spark.read.format("trueup")`: a table of a node as a Spark DataFrame, exact for every type.

Reading order: `datasource` (what Spark calls), `options` (what the user may say), `plan` (the table, its columns and
its parts), `columns` (how each type is selected, and as which Spark type), `decode` (Arrow as it arrives -> Arrow as
Spark wants it), `call` (the public functions). `changes` is the stream `trueup_changes`, over a logical slot.
"""

from __future__ import annotations
