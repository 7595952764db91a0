"""`spark.read.format("trueup")`: a table of a node as a Spark DataFrame, exact for every type.

Reading order: `datasource` (the classes that Spark calls), `options` (the options of a read), `plan` (finds the table,
chooses columns and cuts it into partitions), `columns` (how each column is selected), `decode` (converts the Arrow
batches of the driver to the types that Spark expects).
"""

from __future__ import annotations
