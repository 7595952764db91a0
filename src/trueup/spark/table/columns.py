"""How a column is selected, and its Spark type: native where ADBC and Spark are exact, else text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from trueup.db.catalog import Column
from trueup.rows.encode import base_value, column_spec, transferred
from trueup.rows.spec import ColumnSpec
from trueup.rows.types import LARGEST_DECIMAL, Transfer, decimal_size, type_named

# How a value is fetched, see `trueup.rows.types`; a decimal is fetched as text.
Kind = Transfer | Literal["decimal"]


@dataclass(frozen=True)
class Fetched:
    """One column of a read: how it is fetched, its Spark type as Spark writes it, and its Arrow type."""

    column: ColumnSpec
    kind: Kind
    spark: str
    arrow: str

    @property
    def name(self) -> str:
        """The name of the column in PostgreSQL and in Spark."""
        return self.column.name

    def selected(self) -> sql.Composable:
        """Return the expression that the query selects."""
        return transferred(self.column, "text" if self.kind == "decimal" else self.kind)

    def misfit(self) -> sql.Composable:
        """Return whether an array has more than one dimension or does not start at 1, which Spark cannot represent."""
        return sql.SQL("coalesce(array_ndims({name}) > 1 OR array_lower({name}, 1) <> 1, false)").format(
            name=base_value(self.column)
        )


def fetched(column: Column, *, spark: str | None = None, as_text: bool = False) -> Fetched | None:
    """Return how to read a column, as the Spark type `spark` if it is set; None if that type would lose something."""
    default = _default(column)
    if spark == default.spark or (spark is None and not as_text):
        return default
    if as_text or spark == "string":
        return Fetched(default.column, "text", "string", "string")
    if default.column.encoding == "numeric" and spark is not None and spark.startswith("decimal("):
        return Fetched(default.column, "decimal", spark, spark)
    return None


def _default(column: Column) -> Fetched:
    spec = column_spec(column)
    if spec.encoding == "numeric" and (decimal := _decimal(column.base_type)):
        return Fetched(spec, "decimal", decimal, decimal)
    row = type_named(column.base_schema, column.base_name)
    return Fetched(spec, row.transfer, row.spark, row.arrow)


def _decimal(base_type: str) -> str | None:
    """Return the Spark type that holds every value of `numeric(p,s)`; None without a size, or with too many digits."""
    size = decimal_size(base_type)
    if size is None:
        return None
    precision, scale = size
    # Since PostgreSQL 15 the scale may be negative (multiples of 100), or greater than the precision (0.00123).
    precision, scale = max(precision, scale) - min(scale, 0), max(scale, 0)
    return f"decimal({precision},{scale})" if precision <= LARGEST_DECIMAL else None
