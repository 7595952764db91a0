"""The Spark schemas of the outputs of a step: `rows` computes the columns in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from trueup.verbs.difflog.model import DELETED, FAST, SIGN, SINCE, SLOW, VERSION
from trueup.verbs.difflog.steps.columns import Glue, LogColumns, StateColumns, StepColumns
from trueup.verbs.difflog.steps.merge import NOTHING
from trueup.verbs.difflog.steps.rows import BLOCK


@dataclass(frozen=True)
class OutputSchemas:
    """The schemas of the outputs of a frame."""

    frame: StructType
    log: LogColumns

    def signed(self, step: StepColumns) -> StructType:
        """Return the schema of the signed log of a step."""
        return _schema([*self._first(), (BLOCK, IntegerType()), *self._values(step.after)])

    def wide(self, steps: Iterable[StepColumns], glue: Glue) -> StructType:
        """Return the schema of the signed logs of all steps with the columns of the fast supplier."""
        fields = dict(self._first())
        for step in steps:
            for name, kind in (*self._values(step.after), *self._supplied(glue)):
                fields.setdefault(name, kind)
        return _schema(fields.items())

    def states(self, names: StateColumns, glue: Glue | None = None) -> StructType:
        """Return the schema of states; with `glue`, they have the values of the fast supplier."""
        versions: list[tuple[str, DataType]] = [(self.log.fast_version, LongType()), (SLOW, LongType())]
        since = (SINCE, MapType(StringType(), LongType()))
        fast = [(FAST, _schema(self._supplied(glue)))] if glue is not None and glue.names else []
        return _schema([*self._key(), *versions, (DELETED, BooleanType()), since, *self._values(names), *fast])

    def late(self, step: StepColumns) -> StructType:
        """Return the schema of the updates that a step did not apply."""
        updates = self.frame[step.late].dataType
        assert isinstance(updates, ArrayType)
        assert isinstance(updates.elementType, StructType)
        data = updates.elementType["d"].dataType
        assert isinstance(data, StructType)
        versions: list[tuple[str, DataType]] = [(self.log.fast_version, LongType()), ("newest_version", LongType())]
        values = [(field.name, field.dataType) for field in data.fields if field.name != NOTHING]
        return _schema([*self._key(), *versions, ("reason", StringType()), *values])

    def _key(self) -> list[tuple[str, DataType]]:
        return [(name, self.frame[name].dataType) for name in self.log.key]

    def _first(self) -> list[tuple[str, DataType]]:
        versions = [SLOW, self.log.fast_version, VERSION]
        return [*self._key(), (SIGN, ByteType()), *[(name, LongType()) for name in versions]]

    def _values(self, names: StateColumns) -> list[tuple[str, DataType]]:
        return [(name, self.frame[column].dataType) for name, column in names.columns.items()]

    def _supplied(self, glue: Glue) -> list[tuple[str, DataType]]:
        return [(name, self.frame[glue.place(name)].dataType) for name in glue.names]


def _schema(fields: Iterable[tuple[str, DataType]]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])
