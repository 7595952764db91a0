"""The demo and the commands of the README work, and leave no process or file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from support.fixtures import Spark
from trueup.cli.main import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _postgres_below(folder: Path) -> list[int]:
    """Return server processes whose data is below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if any("postgres" in part for part in command[:1]) and any(str(folder) in part for part in command):
            found.append(process.pid)
    return found


def _wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited too long: {what}"
        # The conditions look at all processes.
        time.sleep(0.1)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell with trueup on the PATH, and a temp folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o755)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TMPDIR": str(folder)}


def test_the_readme_commands(environment: dict[str, str], tmp_path: Path) -> None:
    script = next(block for block in re.findall(r"```sh\n(.*?)```", README, re.S) if "--keep" in block)
    done = subprocess.run(
        ["bash", "-c", script.replace("\n", "\necho $? >> $CODES\n")],
        env={**environment, "CODES": str(tmp_path / "codes")},
        capture_output=True,
        text=True,
    )
    codes = (tmp_path / "codes").read_text().split()
    # demo, cd, check and diff (they differ: 1), tasks, stop.
    assert codes == ["0", "0", "1", "1", "0", "0"], done.stderr
    assert re.search(r"n1/n2 +3 +1 +4 ", done.stdout)
    assert "DIFFER" in done.stdout
    assert not _postgres_below(tmp_path)


def test_the_other_readme_commands(environment: dict[str, str], databases: object, tmp_path: Path) -> None:
    assert callable(databases)
    nodes = databases(2)
    for node in nodes:
        node.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 10)")
    script = next(block for block in re.findall(r"```sh\n(.*?)```", README, re.S) if "pip install" in block)
    lines = script.replace("pip install trueup\n", "").splitlines()
    assert subprocess.run(["bash", "-c", lines[0]], env=environment).returncode == 0
    with open("trueup.toml", "w", encoding="utf-8") as file:
        file.write(f'[nodes]\na = "{nodes[0].uri}"\nb = "{nodes[1].uri}"\n[clusters]\nshop = ["a", "b"]\n')
    assert subprocess.run(["bash", "-c", lines[1]], env=environment).returncode == 0
    assert "`trueup doctor`" in README
    doctor = subprocess.run(
        ["trueup", "doctor"], env={**environment, "TRUEUP_DOCTOR_NO_SPARK": "1"}, capture_output=True
    )
    assert doctor.returncode == 0, doctor.stdout
    inline = next(part for part in re.findall(r"`(.*?)`", README, re.S) if "--node a=" in part)
    inline = inline.replace("postgresql://db1/shop", nodes[0].uri).replace("postgresql://db2/shop", nodes[1].uri)
    assert subprocess.run(["bash", "-c", inline], env=environment).returncode == 0
    code = next(iter(re.findall(r"```python\n(.*?)```", README, re.S)))
    code = code.replace("postgresql://db1/shop", nodes[0].uri).replace("postgresql://db2/shop", nodes[1].uri)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("MATCH 0 /"), done.stderr


def test_make_demo(environment: dict[str, str]) -> None:
    assert "```sh\nmake demo\n```" in README
    report = "public_customers_diffs-"
    before = set(ROOT.glob(f"{report}*"))
    # Fewer rows than the default, which takes long to load.
    environment["TRUEUP_DEMO_ROWS"] = "20000"
    done = subprocess.run(["make", "-C", str(ROOT), "demo"], env=environment, capture_output=True, text=True)
    for path in set(ROOT.glob(f"{report}*")) - before:
        path.unlink()
    assert done.returncode == 0, done.stderr
    assert "engine spark" in done.stdout
    assert re.search(r"n1/n2 +3 +1 +4 ", done.stdout)
    assert "n1 with 1 key, n2 with 7 keys, n3 with 3 keys" in done.stdout


def _is_loading(folder: Path) -> bool:
    backends = [
        process for process in psutil.process_iter(["cmdline"]) if "INSERT" in " ".join(process.info["cmdline"] or [])
    ]
    return len(_postgres_below(folder)) >= 3 and any(
        "postgres:" in " ".join(backend.info["cmdline"]) for backend in backends
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_demo_leaves_no_server(environment: dict[str, str], tmp_path: Path, stop: signal.Signals) -> None:
    folder = Path(environment["TMPDIR"])
    process = subprocess.Popen(
        [sys.executable, "-c", "from trueup.cli.main import main; main()", "demo", "--rows=5000000", "--engine=local"],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    # Three servers, and rows being loaded into one of them.
    _wait_for(lambda: _is_loading(folder) or process.poll() is not None, "three servers that load rows")
    assert process.poll() is None, process.communicate()[1]
    # Like a terminal, to the whole process group.
    os.killpg(process.pid, stop)
    process.communicate(timeout=60)
    assert process.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    _wait_for(lambda: not _postgres_below(folder), "the servers to end")
    _wait_for(lambda: not list(folder.glob("trueup-*")), "the data to be removed")


def test_the_demo_of_tubes(capsys: pytest.CaptureFixture[str]) -> None:
    """A backfill with concurrent writes; the copy is equal at the end."""
    assert run(["demo", "tube", "--rows", "3000", "--seconds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "backfill shop public.orders (shard 0): 3,001 keys" in shown
    assert re.search(r"the job delivered ([3-9]|\d\d+),\d+ keys: .* removed, while the application ran [1-9]", shown)
    assert re.search(r"a change was in the copy after \d", shown)
    assert re.search(r"^MATCH: the hashes of all ([2-9]|\d\d+),\d+ rows", shown, re.M)


def test_the_demo_of_the_switchover(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # As many writers as in the demo, which write less often: they would use most of the processor.
    monkeypatch.setattr("trueup.demo.switchover.TRANSACTIONS", 20)
    monkeypatch.setattr("trueup.demo.switchover.DELAY", 0.02)
    assert run(["demo", "switchover", "--rows", "2000"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"moved from old to new: the pause was \d+ ms", shown)
    assert re.search(r"moved from new to old: the pause was \d+ ms", shown)
    assert "lost: 0; errors of the application: 0" in shown
    assert "left in both databases: none" in shown


def test_the_demo_of_the_lake(spark: Spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "lake", "--rows", "5000"]) == 0
    shown = capsys.readouterr().out
    assert "details: as json (pg jsonb, lake string)" in shown
    assert re.search(r"pg/lake +\d", shown)
    assert not _postgres_below(tmp_path)


def test_the_demo_of_serve_shows_a_live_page(environment: dict[str, str], tmp_path: Path) -> None:
    command = ["trueup", "demo", "serve", "--rows", "1000"]
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        found = None
        while not found:
            line = process.stdout.readline()
            assert line
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        with urlopen(f"{found[0]}api/v1/overview", timeout=60) as answer:
            assert json.load(answer)["sources"]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert _postgres_below(tmp_path) == []
