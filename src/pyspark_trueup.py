"""Makes the format "trueup" available: Spark imports modules whose names start with `pyspark_`."""

from __future__ import annotations

from trueup.spark.table.datasource import TrueupSource as DefaultSource

__all__ = ["DefaultSource"]
