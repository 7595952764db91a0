"""`trueup prove`: whether tables are equal now, by their certificates and the captured changes of a validation."""

from __future__ import annotations

from typing import Any

import click

from trueup.cli.options import SHARED, option, timeout_option
from trueup.cli.output import show
from trueup.cli.validate_options import with_options


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@with_options(
    option("--validation", "NAME", "The running validation of the tables."), timeout_option(60.0), SHARED["task_db"]
)
def prove(tables: tuple[str, ...], validation: str | None, timeout: float, as_json: bool, **options: Any) -> int:
    """Prove that each TABLE (all of the validation, if none is named) is equal on both nodes now.

    Takes seconds whatever the size of the tables: a certificate says that all rows were equal, and every change since
    then was captured and judged. A marker is written into the logs of both nodes, and everything before it is judged.
    The verdicts are in `trueup history`.

    Exit codes: 0 equal, 1 rows differ, 2 something is not proven (the reasons are shown).

    \b
    Examples:
      trueup prove --validation shop
      trueup prove public.orders public.items --validation shop --timeout 30 --json
    """
    from trueup.api.validate import Validation
    from trueup.cli.options import inline_nodes
    from trueup.errors import ConfigError
    from trueup.verbs.validate.proving.prove import proof_text

    if not validation:
        raise ConfigError("the name of a validation is missing", cure="name it with --validation")
    nodes = inline_nodes(options["inline"])
    named = Validation(validation, meta=options["meta"], nodes=nodes, config=options["config"])
    proof = named.prove(tables, timeout=timeout, task_db=options["task_db"])
    show(proof.as_json(), proof_text(proof), as_json=as_json)
    return proof.exit_code
