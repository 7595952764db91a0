"""Lists Parquet files and reads their columns from the footers, without Spark: no file is passed over in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from trueup.config.files import odd_character
from trueup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

# Files that writers of Parquet leave beside the data.
_SUCCESS = "_SUCCESS"
_BESIDE = (_SUCCESS, "_metadata", "_common_metadata")
_BESIDE_PREFIXES = ("_committed_", "_started_")
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_READERS = 16
# The Spark types of the Arrow types that a footer describes.
_SIMPLE = {
    **{"bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"},
    **{"uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "decimal(20,0)"},
    **{"float": "float", "double": "double", "string": "string", "large_string": "string", "string_view": "string"},
    **{"binary": "binary", "large_binary": "binary", "binary_view": "binary", "date32[day]": "date"},
}

_ARROW = {
    **{"boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()},
    **{"float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()},
    **{"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")},
    "void": pa.null(),
}


@dataclass(frozen=True)
class Listed:
    """The Parquet files of a folder, what is wrong with it, and whether it may be empty."""

    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # A Spark job without rows may write its marker only.
    complete: bool = False


def parquet_files(folder: Path, *, partitioned: bool = False) -> Listed:
    """List the Parquet files of a folder; `partitioned`: also those in folders named COLUMN=VALUE."""
    listed = Listed(complete=(folder / _SUCCESS).is_file())
    _list(folder, partitioned, listed)
    return listed


def _list(folder: Path, partitioned: bool, listed: Listed) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        listed.problems.append(f"{folder} cannot be read: {error.strerror}")
        return
    for entry in entries:
        path = folder / entry.name
        if entry.is_dir():
            if partitioned and "=" in entry.name and entry.name[0] not in "._":
                _list(path, partitioned, listed)
            else:
                listed.problems.extend(_wrong_folder(path, partitioned))
        elif wrong := _wrong_file(path, entry):
            listed.problems.append(f"{path} {wrong}")
        elif entry.name[0] not in "._":
            listed.files.append(path)


def _wrong_folder(path: Path, partitioned: bool) -> Iterator[str]:
    if path.name == "_delta_log":
        yield f"{path.parent} is a Delta table: files that it has replaced would be read too. Write its rows as Parquet"
    elif path.name.startswith(("_temporary", ".spark-staging")):
        yield f"{path.parent} is not complete: a Spark job is writing it, or failed (it has the folder {path.name})"
    elif path.name[0] not in "._":
        what = "files in such sub-folders are not read"
        if "=" in path.name and not partitioned:
            what = "columns in the names of folders are not read. Write the files without partitionBy"
        yield f"{path}: {what}"


def _wrong_file(path: Path, entry: os.DirEntry[str]) -> str:
    name = entry.name
    if name in _BESIDE or name.startswith(_BESIDE_PREFIXES):
        return ""
    if name[0] in "._":
        hidden = name.endswith(".parquet")
        return "is not read by Spark, because its name starts with . or _. Rename or remove it" if hidden else ""
    if not entry.is_file():
        return "is not a file (a broken link?)" if entry.is_symlink() else "is not a regular file"
    return "" if name.endswith(".parquet") else "has no name ending in .parquet. Rename or remove it"


def reader_of(session: SparkSession, files: Sequence[Path]) -> DataFrameReader:
    """Return a reader of these files, whose schemas are merged; without a job if they have a common schema."""
    schema = common_schema(files)
    return session.read.schema(schema) if schema else session.read.option("mergeSchema", "true")


def common_schema(files: Sequence[Path]) -> StructType | None:
    """Return the schema of these files if Spark has written all of them with the same one, else None.

    With it, Spark need not run a job to find the schema. A file that cannot be read is left to Spark, which names it.
    """
    from pyspark.sql.types import StructType

    with ThreadPoolExecutor(_READERS) as pool:
        found = set(pool.map(_spark_schema, files))
    if len(found) > 1 and None not in found:
        # Java and Python write the fields of a type in another order.
        found = {StructType.fromJson(json.loads(text)).json().encode() for text in found if text}
    text = found.pop() if len(found) == 1 else None
    return StructType.fromJson(json.loads(text)) if text else None


def _spark_schema(path: Path) -> bytes | None:
    try:
        return (pq.read_metadata(path).metadata or {}).get(_SPARK_SCHEMA)
    except (pa.ArrowException, OSError, ValueError):
        return None


def spark_footer(schema: StructType) -> dict[str, str]:
    """Return what Spark writes into the footer of a file: from it, Spark reads the types that Parquet does not have."""
    import pyspark

    return {_SPARK_SCHEMA.decode(): schema.json(), "org.apache.spark.version": pyspark.__version__}


def write_empty(folder: Path, schema: StructType) -> bool:
    """Write a Parquet file without rows as Spark would, without a job; return False if a type is not one of Arrow."""
    kinds = {field.name: arrow_type(field.dataType) for field in schema.fields}
    if None in kinds.values():
        return False
    arrow = pa.schema([pa.field(field.name, kinds[field.name], field.nullable) for field in schema.fields])
    folder.mkdir(parents=True)
    with pq.ParquetWriter(folder / "part-00000.snappy.parquet", arrow, store_schema=False) as file:
        file.add_key_value_metadata(spark_footer(schema))
        file.write_table(arrow.empty_table())
    (folder / _SUCCESS).touch()
    return True


def row_count(folder: Path) -> int:
    """Return the rows of the Parquet files in a folder; 0 if it does not exist."""
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


@dataclass(frozen=True)
class Footers:
    """The columns of files and their Spark types, in the order of the files; and what is wrong with the files."""

    columns: dict[Path, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def first_with(self, column: str) -> Path:
        """Return the first file that has a column."""
        return next(path for path, kinds in self.columns.items() if column in kinds)

    @property
    def kinds(self) -> dict[str, str]:
        """All columns, each with the type of the first file that has it."""
        merged: dict[str, str] = {}
        for kinds in self.columns.values():
            merged = {**kinds, **merged}
        return merged


def read_footers(files: Sequence[Path]) -> Footers:
    """Read the columns of all files; problems are files that cannot be read, and columns whose types differ."""
    footers = Footers()
    with ThreadPoolExecutor(_READERS) as pool:
        for path, (kinds, problems) in zip(files, pool.map(_read, files), strict=True):
            odd = odd_character(path)
            wrong = [f"Spark cannot read a path with the character {odd}. Rename it"] if odd else problems
            footers.problems.extend(f"{path}: {what}" for what in wrong)
            if not problems:
                footers.columns[path] = kinds
    footers.problems.extend(_differing(footers.columns))
    return footers


def _differing(columns: Mapping[Path, Mapping[str, str]]) -> Iterator[str]:
    """Yield columns that have two types or two spellings."""
    first: dict[str, tuple[str, str, Path]] = {}
    shown: set[str] = set()
    for path, kinds in columns.items():
        for name, kind in kinds.items():
            other, other_kind, other_path = first.setdefault(name.lower(), (name, kind, path))
            if name.lower() in shown or (name, kind) == (other, other_kind):
                continue
            shown.add(name.lower())
            if name != other:
                yield f"{path}: column {name} differs only by case from {other} in {other_path}"
            else:
                yield f"{path}: column {name} has the type {kind}, but {other_kind} in {other_path}"


def _read(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the columns of a file and their Spark types; and what is wrong with it."""
    try:
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema, file.metadata
            arrow = schema.to_arrow_schema()
            written_by_spark = (metadata.metadata or {}).get(_SPARK_SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
        return {}, [f"not a complete Parquet file ({reason.rstrip('.')})"]
    nanos = {column.path.partition(".")[0] for column in _leaves(schema) if _is_nanos(column)}
    if written_by_spark:
        from pyspark.sql.types import StructType

        fields = StructType.fromJson(json.loads(written_by_spark)).fields
        return {field.name: field.dataType.simpleString() for field in fields}, []
    kinds, problems = {}, []
    for one in arrow:
        kind = spark_type(one.type)
        if one.name in nanos:
            problems.append(
                f"column {one.name} has times in nanoseconds, which Spark does not read. Write microseconds"
            )
        elif kind is None:
            problems.append(f"column {one.name} has the type {one.type}, which Spark does not read. Cast it")
        elif one.name in kinds:
            problems.append(f"column {one.name} exists twice")
        else:
            kinds[one.name] = kind
    return kinds, problems


def _leaves(schema: pq.ParquetSchema) -> Iterable[pq.ColumnSchema]:
    return (schema.column(number) for number in range(len(schema)))


def _is_nanos(column: pq.ColumnSchema) -> bool:
    """Return whether Spark refuses a time column; it reads the older INT96, which are nanoseconds too."""
    return column.physical_type == "INT64" and "timeUnit=nanoseconds" in str(column.logical_type)


def cut_times(files: Sequence[Path]) -> dict[Path, str]:
    """Return a column of each file whose times may have nanoseconds; files that cannot be read are left to Spark."""
    with ThreadPoolExecutor(_READERS) as pool:
        found = dict(zip(files, pool.map(_cut_time, files), strict=True))
    return {path: column for path, column in found.items() if column}


def _cut_time(path: Path) -> str:
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError, ValueError):
        return ""
    # Spark writes microseconds as INT96.
    is_exact = _SPARK_SCHEMA in (metadata.metadata or {})
    for column in _leaves(metadata.schema):
        if _is_nanos(column) or (column.physical_type == "INT96" and not is_exact):
            return str(column.path)
    return ""


def spark_type(kind: pa.DataType) -> str | None:
    """Return the Spark type as which a column is read, or None if Spark does not read it."""
    if str(kind) in _SIMPLE:
        return _SIMPLE[str(kind)]
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        # INT96 has no time zone in the footer, but is a point in time.
        return "timestamp" if kind.tz or kind.unit == "ns" else "timestamp_ntz"
    if pa.types.is_duration(kind):
        return "bigint"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if kind.precision <= 38 else None
    if pa.types.is_map(kind):
        return _nested("map<{},{}>", [kind.key_type, kind.item_type])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _nested("array<{}>", [kind.value_type])
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [kind.field(number) for number in range(kind.num_fields)]
        names = [one.name.replace("{", "{{").replace("}", "}}") for one in fields]
        return _nested(f"struct<{','.join(f'{name}:{{}}' for name in names)}>", [one.type for one in fields])
    return None


def arrow_type(kind: DataType) -> pa.DataType | None:
    """Return the Arrow type whose Parquet column Spark reads as this type, or None if there is none."""
    spec: Any = kind
    name = kind.typeName()
    if name == "decimal":
        return pa.decimal128(spec.precision, spec.scale)
    if name == "array":
        inner = arrow_type(spec.elementType)
        return inner and pa.list_(pa.field("element", inner, spec.containsNull))
    if name == "map":
        key, value = arrow_type(spec.keyType), arrow_type(spec.valueType)
        return key and value and pa.map_(key, pa.field("value", value, spec.valueContainsNull))
    if name == "struct":
        kinds = [(field, arrow_type(field.dataType)) for field in spec.fields]
        known = bool(kinds) and all(inner is not None for _, inner in kinds)
        return pa.struct([pa.field(field.name, inner, field.nullable) for field, inner in kinds]) if known else None
    return _ARROW.get(name)


def _nested(form: str, inner: Sequence[pa.DataType]) -> str | None:
    kinds = [spark_type(kind) for kind in inner]
    return None if None in kinds else form.format(*kinds)


def local_path(text: str) -> Path:
    """Return a path or a file: address as an absolute path without links. Raises ConfigError for another address."""
    scheme = urlsplit(text).scheme if "://" in text or text.startswith("file:") else ""
    if scheme not in ("", "file"):
        raise ConfigError(f"{text} is not a path of this machine", cure="mount or copy the files, and name their path")
    return Path(os.path.realpath(Path(unquote(urlsplit(text).path) if scheme else text).expanduser()))


def given_files(given: Mapping[str, Sequence[Path]]) -> tuple[list[Path], list[str]]:
    """Return all files of these files and folders by source, each once; and what is wrong with them."""
    problems: list[str] = []
    seen: dict[tuple[int, int] | None, Path] = {}
    for paths in given.values():
        files = [file for path in paths for file in _listed(path, problems)]
        for file in files:
            first = seen.setdefault(inode(file), file)
            if first is not file:
                problems.append(f"{file} is named twice" + ("" if first == file else f": it is the same as {first}"))
        problems += read_footers(files).problems
    return list(seen.values()), problems


def _listed(path: Path, problems: list[str]) -> list[Path]:
    if path.is_dir():
        listed = parquet_files(path, partitioned=True)
        problems += listed.problems
        if not listed.files and not listed.problems:
            problems.append(f"{path} has no Parquet file")
        return [Path(os.path.realpath(file)) for file in listed.files]
    if path.is_file() and path.name[0] not in "._":
        return [path]
    what = "is not read by Spark, because its name starts with . or _" if path.is_file() else "does not exist"
    problems.append(f"{path} {what}")
    return []


def inode(path: str | Path) -> tuple[int, int] | None:
    """Return what identifies a file under all its names; None if it does not exist."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
