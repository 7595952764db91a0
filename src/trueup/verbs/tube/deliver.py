"""Documents go to the sink; what it refuses is narrowed down to single documents, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.capture.triggers.batch import written
from trueup.capture.triggers.enrich import Refused
from trueup.capture.triggers.shape import Shape
from trueup.config.secrets import mask
from trueup.sinks.base import Document, Mark, Sink, SinkDown, SinkRejected

# Documents all over a batch that are tried alone: if all of them are refused, it is the sink and no poison.
_PROBES = 20
# After so many tries of the same batch it may be poison all over, and is taken apart.
MOST_REFUSALS = 5


class RefusesAll(SinkDown):
    """The sink refuses each document that it was tried with."""


class Delivery:
    """One chunk on its way to a sink."""

    def __init__(self, sink: Sink, mark: Mark, shapes: Mapping[int, Shape], *, refusals: int = 0) -> None:
        self._sink = sink
        self._mark = mark
        self._sources = {shape.table: source for source, shape in shapes.items()}
        self._may_be_down = refusals < MOST_REFUSALS
        self.written = 0
        self.removed = 0
        self.refused: list[Refused] = []

    def write(self, documents: Sequence[Document]) -> None:
        """Write all that the sink takes; raises SinkDown if it takes nothing now."""
        waiting = [documents]
        while waiting:
            part = waiting.pop()
            error = self._try(part) if part else None
            if error is None:
                continue
            if isinstance(error, SinkRejected) and (rest := self._without_named(part, error)) is not None:
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
        removed = sum(each.row is None for each in part)
        self.removed += removed
        self.written += len(part) - removed
        return None

    def _without_named(self, part: Sequence[Document], error: SinkRejected) -> list[Document] | None:
        """What is left when those that the sink names are refused; None if it names none of them."""
        named = [each for each in part if each.identity in error.reasons]
        for each in named:
            self._refuse(each, error.reasons[each.identity])
        return [each for each in part if each.identity not in error.reasons] if named else None

    def _probe(self, part: Sequence[Document]) -> None:
        """Once a chunk: does the sink take anything? Written alone, and again with the rest, which does no harm."""
        if not self._may_be_down or len(part) < _PROBES:
            return
        self._may_be_down = False
        for at in range(_PROBES):
            try:
                self._sink.write([part[at * len(part) // _PROBES]], mark=self._mark)
            except SinkDown:
                raise
            except Exception as error:
                last = error
            else:
                return
        raise RefusesAll(
            f"the sink refuses everything, last: {_text(last)}", cure="mend the sink: the same batch is tried again"
        )

    def _refuse(self, document: Document, reason: str) -> None:
        source = self._sources[document.table]
        self.refused.append(Refused(source, document.shard, written(document.key), document.op, _text(reason)))


def _text(reason: object) -> str:
    return mask(" ".join(str(reason).split()))[:2000]
