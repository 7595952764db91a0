"""The programs that copy a schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.config.model import Node
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync.target_schema.programs import find_programs, run_program


@pytest.mark.parametrize("keyword", ["sslpassword", "scram_client_key", "scram_server_key"])
def test_no_secret_is_on_the_command_line_of_a_program(keyword: str) -> None:
    with pytest.raises(CheckFailed, match=f"the {keyword} of n1 would be visible in the process list"):
        run_program(["false"], Node("n1", f"host=h password=a {keyword}=hidden"))


def programs(folder: Path, *versions: int) -> None:
    for version in versions:
        place = folder / str(version)
        place.mkdir()
        for name in ("pg_dump", "pg_restore"):
            (place / name).write_text(f"#!/bin/sh\necho 'pg_dump (PostgreSQL) {version}.1'\n")
            (place / name).chmod(0o755)


@pytest.mark.parametrize(
    ("found", "source", "target", "best"),
    [
        ((14, 15, 16, 17, 18, 19), 15, 18, 18),
        ((15, 19, 20), 15, 18, 19),
        ((15, 17), 15, 18, 17),
        ((15, 18), 15, 15, 15),
        ((16, 18), 15, 15, 16),
        # Programs of PostgreSQL 17 and newer send a setting that the target does not know.
        ((14, 18), 15, 16, None),
        ((14,), 15, 18, None),
        ((16, 17, 18), 17, 16, None),
    ],
)
def test_the_programs_fit_both_servers(
    found: tuple[int, ...],
    source: int,
    target: int,
    best: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs(tmp_path, *found)
    monkeypatch.setattr("trueup.verbs.sync.target_schema.programs.folders", lambda: iter(sorted(tmp_path.iterdir())))
    if best is None:
        with pytest.raises(CheckFailed, match=f"needs pg_dump and pg_restore of PostgreSQL {source}"):
            find_programs(source * 10000, target * 10000)
    else:
        assert find_programs(source * 10000, target * 10000) == tmp_path / str(best)


def test_an_error_of_a_program_shows_no_statement(tmp_path: Path) -> None:
    program = tmp_path / "pg_restore"
    program.write_text(
        "#!/bin/sh\ncat >&2 <<'END'\npg_restore: error: could not execute query: ERROR:  no such server\n"
        "Command was: CREATE USER MAPPING FOR a SERVER s OPTIONS (\n    password 'hidden'\n);\n"
        "pg_restore: warning: errors ignored\nEND\nexit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(TrueupError, match="no such server pg_restore: warning") as error:
        run_program([str(program)], None)
    assert "hidden" not in str(error.value)
