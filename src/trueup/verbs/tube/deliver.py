"""Writes documents to the sink. If it refuses some, they are narrowed down to single documents; the rest is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.capture.triggers.batch import Refused, written
from trueup.capture.triggers.document import Document, Mark
from trueup.capture.triggers.shape import Shape
from trueup.config.secrets import mask
from trueup.sinks.base import SinkDown, SinkRejected, Target

# Documents of a batch that are written alone: if the sink refuses all of them, it is down.
_PROBES = 20
# After this many attempts of a batch, all its documents may be invalid: they are refused one by one.
_MAX_REFUSALS = 5


class RefusesAll(SinkDown):
    """The sink refused every document that was written alone."""


class Delivery:
    """One chunk of documents and its result."""

    def __init__(self, sink: Target, mark: Mark, shapes: Mapping[int, Shape], *, refusals: int = 0) -> None:
        self._sink = sink
        self._mark = mark
        self._sources = {shape.table: source for source, shape in shapes.items() if shape.relation is not None}
        self._may_be_down = refusals < _MAX_REFUSALS
        self.written = 0
        self.removed = 0
        self.refused: list[Refused] = []

    def write(self, documents: Sequence[Document]) -> None:
        """Write all documents that the sink accepts; raise SinkDown if it accepts none."""
        waiting = [documents]
        while waiting:
            part = waiting.pop()
            error = self._try(part) if part else None
            if error is None:
                continue
            if isinstance(error, SinkRejected) and (rest := self._without_rejected(part, error)) is not None:
                waiting.append(rest)
            elif len(part) == 1:
                self._refuse(part[0], f"{type(error).__name__}: {error}")
            else:
                self._probe(part)
                half = len(part) // 2
                waiting += [part[half:], part[:half]]

    def _try(self, part: Sequence[Document]) -> Exception | None:
        try:
            self._sink.write(part, mark=self._mark)
        except SinkDown:
            raise
        except Exception as error:
            return error
        removed = sum(document.row is None for document in part)
        self.removed += removed
        self.written += len(part) - removed
        return None

    def _without_rejected(self, part: Sequence[Document], error: SinkRejected) -> list[Document] | None:
        """Refuse the documents that the error names and return the others; None if it names none of them."""
        rejected = [document for document in part if document.identity in error.reasons]
        for document in rejected:
            self._refuse(document, error.reasons[document.identity])
        return [document for document in part if document.identity not in error.reasons] if rejected else None

    def _probe(self, part: Sequence[Document]) -> None:
        """Check once per chunk whether the sink accepts any document. Writing a document twice is harmless."""
        if not self._may_be_down or len(part) < _PROBES:
            return
        self._may_be_down = False
        for number in range(_PROBES):
            try:
                self._sink.write([part[number * len(part) // _PROBES]], mark=self._mark)
            except SinkDown:
                raise
            except Exception as error:
                last = error
            else:
                return
        raise RefusesAll(
            f"the sink refuses all documents, last error: {_text(last)}",
            cure="fix the sink: the same batch is tried again",
        )

    def _refuse(self, document: Document, reason: str) -> None:
        source = self._sources[document.table]
        self.refused.append(Refused(source, document.shard, written(document.key), document.op, _text(reason)))


def _text(reason: object) -> str:
    return mask(" ".join(str(reason).split()))[:2000]
