"""Shell completion: the scripts, the protocol, a real bash; nothing else is printed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.fixtures import Cli
from trueup.store import TaskStore

CONFIG = """
[nodes]
n1 = "postgresql://someone@192.0.2.1/never"
n2 = "postgresql://u:${NOT_SET}@192.0.2.1/never"
other = "service=x"
[clusters]
shop = ["n1", "n2"]
shop_test = ["other"]
"""

Complete = Callable[[str], list[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell with trueup on the PATH, and a configuration whose servers cannot be reached."""
    (tmp_path / "trueup.toml").write_text(CONFIG)
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def complete(cli: Cli, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """`complete("trueup diff --cl")`: the completions of the last word."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        with monkeypatch.context() as patch:
            patch.setenv("COMP_WORDS", line)
            patch.setenv("COMP_CWORD", str(len(words) - 1))
            patch.setenv("_TRUEUP_COMPLETE", "bash_complete")
            ran = cli()
        assert ran.err == "", line
        return [part.partition(",")[2] for part in ran.out.split()]

    return ask


@pytest.fixture
def tasks(tmp_path: Path) -> list[str]:
    """The ids of two tasks in the store."""
    with TaskStore() as store:
        first = store.start("TABLE_DIFF", schema="public", table="orders", context={})
        second = store.start("TABLE_CHECK", schema="Odd", table="my table", context={})
    return [first.task_id, second.task_id]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trueup do", ["doctor"]),
        ("trueup difflog p", ["prove", "prune"]),
        ("trueup diff --clu", ["--cluster"]),
        ("trueup diff --cluster ", ["shop", "shop_test"]),
        ("trueup check t --cluster shop_", ["shop_test"]),
        ("trueup diff --nodes ", ["n1", "n2", "other"]),
        ("trueup diff --nodes n1,", ["n1,n2", "n1,other"]),
        ("trueup diff --cluster shop --nodes n", ["n1", "n2"]),
        ("trueup diff --engine ", ["auto", "spark", "local"]),
        ("trueup completion z", ["zsh"]),
        ("trueup nonsense x", []),
    ],
)
def test_words(complete: Complete, line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_tasks_and_tables(complete: Complete, tasks: list[str]) -> None:
    assert complete("trueup tasks show ") == [tasks[1][:8], tasks[0][:8]]
    assert complete(f"trueup report {tasks[0][:3]}") == [tasks[0][:8]]
    assert complete(f"trueup report {tasks[0][:12]}") == [tasks[0]]
    assert complete("trueup diff pub") == ["public.orders"]
    assert complete("trueup doctor public.orders pub") == ["public.orders"]


def test_files_are_left_to_the_shell(cli: Cli, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for line, kind in (("trueup diff --config ", "file,"), ("trueup diff --report-dir ", "dir,")):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", "3")
        monkeypatch.setenv("_TRUEUP_COMPLETE", "bash_complete")
        assert cli().out.strip() == kind


def test_completion_prints_no_error(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_text("[nodes\nbroken")
    assert complete("trueup diff --cluster ") == []
    (tmp_path / "tasks.db").write_text("this is not a database, whatever its name says" * 100)
    assert complete("trueup tasks show ") == []
    assert complete("trueup diff ") == []


def test_completion_does_not_create_a_store(complete: Complete, tmp_path: Path) -> None:
    assert complete("trueup tasks show ") == []
    assert not (tmp_path / "tasks.db").exists()


def test_zsh_and_fish_get_help_texts(process: Cli, environment: dict[str, str]) -> None:
    variables = {"COMP_WORDS": "trueup diff --cluster ", "COMP_CWORD": "3", "_TRUEUP_COMPLETE": "zsh_complete"}
    ran = process(env={**environment, **variables})
    assert (ran.code, ran.out.split("\n")[:3], ran.err) == (0, ["plain", "shop", "n1, n2"], "")
    variables = {"COMP_WORDS": "trueup diff --cluster ", "COMP_CWORD": "sh", "_TRUEUP_COMPLETE": "fish_complete"}
    ran = process(env={**environment, **variables})
    assert ran.code == 0
    assert "shop" in ran.out


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef trueup"), ("fish", "--command trueup")]
)
def test_the_scripts(cli: Cli, shell: str, mark: str) -> None:
    ran = cli("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert mark in ran.out
    assert "_TRUEUP_COMPLETE" in ran.out
    assert cli("completion", "powershell").code == 2


def test_a_real_bash_completes(environment: dict[str, str]) -> None:
    """Call the registered function as bash does."""
    code = """
        eval "$(trueup completion bash)"
        function=$(complete -p trueup | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        COMP_WORDS=(trueup diff --nodes n1,n); COMP_CWORD=3
        $function trueup n1,n --nodes
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "--norc", "-c", code], env=environment, capture_output=True, text=True, timeout=90)
    assert (done.stdout.split(), done.stderr) == (["n1,n2"], "")


def test_the_tab_key(environment: dict[str, str]) -> None:
    """In a terminal, Tab completes the word."""
    parent, child = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**environment, "PS1": "ready>", "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(child)
    try:
        _until(parent, "ready>")
        os.write(parent, b'eval "$(trueup completion bash)"; echo $((40+2))\n')
        _until(parent, "42")
        os.write(parent, b"trueup diff public.t --cluster shop_\t")
        _until(parent, "--cluster shop_test")
    finally:
        shell.kill()
        shell.wait()
        os.close(parent)


def _until(terminal: int, text: str) -> None:
    seen, end = "", time.monotonic() + 90
    while text not in seen:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], f"{text!r} did not come: {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")
