"""Makes the format "trueup_changes" available: Spark imports modules whose names start with `pyspark_`."""

from __future__ import annotations

from trueup.spark.changes import ChangesSource as DefaultSource

__all__ = ["DefaultSource"]
