"""Documents go to the sink; what it refuses is narrowed down to single documents, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.config.secrets import mask
from trueup.tube.batch import written
from trueup.tube.enrich import Refused
from trueup.tube.shape import Shape
from trueup.tube.sinks.base import Document, Mark, Sink, SinkDown, SinkRejected

# A sink that refuses so many documents one by one, and takes none, refuses everything: that is no poison.
_MOST_ALONE = 20


class Delivery:
    """One chunk on its way to a sink."""

    def __init__(self, sink: Sink, mark: Mark, shapes: Mapping[int, Shape]) -> None:
        self._sink = sink
        self._mark = mark
        self._sources = {shape.table: source for source, shape in shapes.items()}
        self.written = 0
        self.removed = 0
        self._alone = 0
        self.refused: list[Refused] = []

    def write(self, documents: Sequence[Document]) -> None:
        """Write all that the sink takes; raises SinkDown if it takes nothing now."""
        if not documents:
            return
        try:
            self._sink.write(documents, mark=self._mark)
            removed = sum(each.row is None for each in documents)
            self.removed += removed
            self.written += len(documents) - removed
        except SinkDown:
            raise
        except SinkRejected as error:
            named = [each for each in documents if each.identity in error.reasons]
            for each in named:
                self._refuse(each, error.reasons[each.identity])
            self._narrow([each for each in documents if each.identity not in error.reasons], error, bool(named))
        except Exception as error:
            self._narrow(documents, error, False)

    def _narrow(self, documents: Sequence[Document], error: Exception, again: bool) -> None:
        """The rest once more; where it is not known which documents are refused, in halves."""
        if again:
            self.write(documents)
        elif len(documents) == 1:
            self._refuse(documents[0], f"{type(error).__name__}: {error}")
            self._alone += 1
            if self._alone >= _MOST_ALONE and not self.written + self.removed:
                raise SinkDown(
                    f"the sink refuses everything, last: {self.refused[-1].error}",
                    cure="mend the sink: the same batch is tried again",
                )
        else:
            half = len(documents) // 2
            self.write(documents[:half])
            self.write(documents[half:])

    def _refuse(self, document: Document, reason: str) -> None:
        text = mask(" ".join(reason.split()))[:2000]
        source = self._sources[document.table]
        self.refused.append(Refused(source, document.shard, written(document.key), document.op, text))
