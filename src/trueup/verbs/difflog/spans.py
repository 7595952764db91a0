"""The states after each step, each row written once.

Most keys are changed by few steps. A state is valid from the step that made it to the step before the next change: its
span. The rows of a span are in files of their own, and all states after a step are links to the files of the spans that
contain it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trueup.verbs.difflog.steps.columns import StepColumns
from trueup.verbs.difflog.steps.write import Span


def spans_of(steps: Mapping[str, StepColumns]) -> tuple[Span, ...]:
    """Return the spans of a run."""
    return tuple(span for number in range(1, len(steps) + 1) for span in _spans(list(steps.values()), number))


def _spans(steps: Sequence[StepColumns], number: int) -> Iterator[Span]:
    """Yield the spans that begin at a step."""
    limit = next((later for later in range(number + 1, len(steps) + 1) if _begins(steps, later)), len(steps) + 1)
    later = tuple((steps[other - 1].applied, other) for other in range(number + 1, limit))
    yield Span(number, steps[number - 1], True, later, limit)
    if _begins(steps, number):
        yield Span(number, steps[number - 1], False, later, limit)


def _begins(steps: Sequence[StepColumns], number: int) -> bool:
    """Return whether all states begin at a step: it is the first, or its states have other columns."""
    return number == 1 or list(steps[number - 1].after.columns) != list(steps[number - 2].after.columns)


def changed_by(spans: Sequence[Span], number: int) -> list[tuple[Span, int]]:
    """Return the spans, and their ends, with the states that a step changed."""
    return [(span, end) for span in spans if span.is_change and span.number == number for end in span.ends]


def valid_after(spans: Sequence[Span], number: int) -> list[tuple[Span, int]]:
    """Return the spans, and their ends, with all states after a step."""
    return [(span, end) for span in spans if span.number <= number for end in span.ends if end > number]
