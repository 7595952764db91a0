"""`--certify`: hash the blocks of a validation, so that a MATCH can be recorded as its certificate."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.db.snapshot import Control
from trueup.rows.proven import Certifying
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.task.compare.certify import cut_like, units_of
from trueup.task.compare.model import Ranges
from trueup.task.steering import is_gentle
from trueup.verbs.diff.ranges import plan_ranges


def begin_certificate(
    request: TableRequest, controls: Sequence[Control], spec: TableSpec, *, is_resumed: bool
) -> tuple[Ranges | None, Certifying | None]:
    """Begin with the certificate of a table, before the snapshots are taken.

    Return the plan with the blocks of the validation and the certificate in progress; None if it cannot record one.
    """
    if request.certifier is None or is_resumed or spec.is_keyless:
        return None, None
    ranges = plan_ranges(controls, spec, request.settings)
    certifying = request.certifier.begin(spec, units_of(ranges))
    if certifying.blocks:
        ranges = cut_like(ranges, certifying.blocks, is_gentle=is_gentle(request.settings))
    return ranges, certifying
