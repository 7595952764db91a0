"""Run `trueup tube prove`: the tables of the tube, the sink, and a proof per table."""

from __future__ import annotations

from dataclasses import replace

from trueup.capture.triggers import tubes
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.shape import Shape, Shapes, tables_of
from trueup.config.settings import DiffSettings, SparkSettings
from trueup.errors import CheckFailed, ConfigError, TrueupError
from trueup.report.extent import Extent
from trueup.sinks.base import DocumentSink, Sink, TableSink
from trueup.verbs.tube_proof.documents import DocumentProof
from trueup.verbs.tube_proof.flight import Flight
from trueup.verbs.tube_proof.model import TableProof, TubeProof
from trueup.verbs.tube_proof.tables import Compare, Comparing, prove_table


def prove(
    session: Session,
    tube: str,
    sink: Sink,
    *,
    settings: DiffSettings,
    spark: SparkSettings,
    compare: Compare,
    dead_letters: int,
    shown_sink: str,
) -> TubeProof:
    """Compare all attached tables of a tube with the sink; nothing is written."""
    info = tubes.find(session, tube)
    if info is None or not info.tables:
        reason = "does not exist" if info is None else "has no tables"
        raise CheckFailed([f"the tube {tube} {reason}"], cure="list the tubes with: trueup tube list")
    shapes = [shape for shape in Shapes(session, tube).all() if not shape.is_detached and not shape.is_superseded]
    if isinstance(sink, DocumentSink):
        sink.know(tables_of(shapes))
    elif not isinstance(sink, TableSink):
        message = f"the documents of the sink {type(sink).__name__} cannot be read back"
        raise ConfigError(message, cure="a sink needs the methods know and differing, see trueup.sinks.base")
    shards = {table.source: table.shard or 0 for table in info.tables}
    comparing = Comparing(session.reading_node(), _settings(settings), spark, compare)
    proofs = []
    for shape in shapes:
        try:
            proofs.append(_prove(session, tube, shape, shards.get(shape.source, 0), sink, comparing))
        except TrueupError as error:
            # The other tables are compared; this one is not proven.
            proofs.append(TableProof(shape.table, "INCOMPLETE", incomplete=(str(error),)))
    return TubeProof(tube, tuple(proofs), dead_letters, shown_sink)


def _prove(session: Session, tube: str, shape: Shape, shard: int, sink: Sink, comparing: Comparing) -> TableProof:
    if shape.relation is None:
        reason = shape.problem or "the table does not exist any more"
        return TableProof(shape.table, "INCOMPLETE", incomplete=(reason,))
    flight = Flight(session, tube, shape)
    if isinstance(sink, DocumentSink):
        proof = DocumentProof(comparing.node, shape, shard, sink, sink, flight, comparing.settings).run()
        return replace(proof, extent=Extent(_predicate(shape)))
    assert isinstance(sink, TableSink)
    stored = sink.stored(shape.for_sink)
    # An embedded database is opened by the comparison.
    sink.close()
    left_out = tuple(name for name, _ in shape.columns if name not in stored.columns)
    return replace(prove_table(shape, stored, flight, comparing), extent=Extent(_predicate(shape), (), left_out))


def _predicate(shape: Shape) -> str:
    """Return the condition of the rows that the tube delivers, in one line; '': all."""
    return "" if shape.condition == "true" else " ".join(shape.condition.split())


def _settings(settings: DiffSettings) -> DiffSettings:
    """Return the settings of the comparison: differences are looked at twice at least."""
    return replace(settings, recheck=max(1, settings.recheck), gentle=False, digest="auto", numeric="value")
