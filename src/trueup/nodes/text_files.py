"""Text files that Spark would accept with a loss: characters that are none, and what follows a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StructType

from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What Spark reads bytes as that are not UTF-8.
_REPLACED = "\ufffd"


def checked_csv(frame: DataFrame) -> DataFrame:
    """Return the frame of CSV files; a value that may not be what the file has is an error of the job that reads it.

    Raises CheckFailed for files with one column: an empty line may be a row there, and Spark reads none.
    """
    if len(frame.columns) < 2:
        reason = "of CSV files with one column, empty lines are not read, which may be rows"
        raise CheckFailed([reason], cure="write the files with a second column, or as Parquet")
    wrong = f"a value has the character U+{ord(_REPLACED):04X}, as which Spark reads bytes that are not UTF-8"
    error = f.raise_error(f.lit(f"{wrong}: write the file as Parquet"))
    columns = {}
    for name, kind in frame.dtypes:
        column = frame[f"`{name.replace('`', '``')}`"]
        if kind == "string":
            columns[name] = f.when(column.contains(_REPLACED), error.cast("string")).otherwise(column)
    return frame.withColumns(columns)


def check_quotes(session: SparkSession, place: str) -> None:
    """Raise CheckFailed if a quoted value of a CSV file has no end: Spark reads the rest of the file as its text."""
    lines = session.read.format("text").load(place).select("value", f.input_file_name().alias("file"))
    quotes = f.length("value") - f.length(f.replace("value", f.lit('"'), f.lit("")))
    odd = lines.groupBy("file").agg(f.sum(quotes).alias("quotes")).where("quotes % 2 = 1").limit(1).collect()
    if odd:
        reason = f"{odd[0][0]} has an odd number of quotes: a quoted value does not end, or a quote is not doubled"
        raise CheckFailed([reason], cure="write the file again, with all values that have quotes in quotes")


def json_lines(session: SparkSession, place: str, schema: StructType, options: Mapping[str, str]) -> DataFrame:
    """Return the documents of JSON files, one per line, with a schema that Spark has found.

    Spark's reader ignores what follows the first document of a line.
    """
    lines = session.read.format("text").load(place)
    folders = [name for name in lines.columns if name != "value"]
    inner = StructType([field for field in schema.fields if field.name not in folders])
    value = f.col("value")
    # In an array, a second document or anything else after the first is an error, or an element.
    parsed = f.from_json(f.concat(f.lit("["), value, f.lit("]")), ArrayType(inner), dict(options))
    broken = reduce(
        lambda one, other: one | other,
        (~f.is_valid_utf8(value), ~f.rtrim(value).endswith("}"), f.size(parsed) != 1, parsed.isNull()),
    )
    error = f.raise_error(f.lit("a line is not one JSON object in UTF-8: write the file as JSON lines"))
    documents = lines.where(f.trim(value) != "").select(
        f.when(broken, error.cast(inner)).otherwise(parsed[0]).alias("document"), *folders
    )
    named = [f.col("document").getField(field.name).alias(field.name) for field in inner.fields]
    return documents.select(*named, *folders)
