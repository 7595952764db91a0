"""The programs that copy a schema."""

from __future__ import annotations

import pytest

from trueup.config.model import Node
from trueup.errors import CheckFailed
from trueup.verbs.sync.programs import run_program


@pytest.mark.parametrize("keyword", ["sslpassword", "scram_client_key", "scram_server_key"])
def test_no_secret_is_on_the_command_line_of_a_program(keyword: str) -> None:
    with pytest.raises(CheckFailed, match=f"the {keyword} of n1 would be visible in the process list"):
        run_program(["false"], Node("n1", f"host=h password=a {keyword}=hidden"))
