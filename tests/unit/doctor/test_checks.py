"""The doctor's checks of this machine, and that no check stops another."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import trueup
from trueup.config.model import Config, Node
from trueup.config.settings import SparkSettings
from trueup.db.catalog import Server
from trueup.engine.java import JavaHome
from trueup.errors import EngineError
from trueup.store import TaskStore
from trueup.verbs.doctor import configuration, disk, machine, nodes, run, spark, tasks
from trueup.verbs.doctor.guarded import Background, Overdue, guarded, in_parallel
from trueup.verbs.doctor.model import Diagnosis, DoctorRequest, Finding, fail, ok, warn
from trueup.verbs.doctor.text import last_line, line

Usage = namedtuple("Usage", "total used free")


def request(**changes: Any) -> DoctorRequest:
    return DoctorRequest(**changes)


# No check stops another.


def test_a_check_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("password=hunter2hunter2")

    whole = [finding.check for finding in trueup.doctor(engine="local").findings]
    monkeypatch.setattr(machine, "check_python", broken)
    monkeypatch.setattr(disk, "check", broken)
    found = trueup.doctor(engine="local")
    assert found.exit_code == 2
    failures = [finding for finding in found.findings if finding.level == "FAIL"]
    assert [failure.check for failure in failures] == ["python", "disk"]
    assert "ZeroDivisionError" in failures[0].message
    assert "hunter2" not in json.dumps(found.as_json())
    assert [finding.check for finding in found.findings][-3:] == whole[-3:]


def test_findings_before_an_error_are_kept() -> None:
    def half() -> Any:
        yield ok("a", "here", "fine")
        raise OSError("gone")

    assert [each.level for each in guarded("a", "here", half)] == ["OK", "FAIL"]


def test_a_call_without_an_answer_does_not_delay_the_others() -> None:
    silent = threading.Event()
    begun = time.monotonic()
    limits = {1: 60.0, 2: 0.05}
    answers = in_parallel([1, 2], lambda one: one if one == 1 else silent.wait(60), within=limits.__getitem__)
    assert time.monotonic() - begun < 50
    assert answers[0] == 1
    assert isinstance(answers[1], Overdue)
    silent.set()


def test_an_error_in_the_background_is_raised_by_result() -> None:
    doctor_request = Background(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            doctor_request.result(10)


# Diagnosis and findings.


def test_only_failures_fail() -> None:
    good, doubtful, bad = ok("a", "x", "m"), warn("b", "x", "m", "c"), fail("c", "x", "m", "c")
    assert [Diagnosis(found, 1).exit_code for found in ((), (good,), (good, doubtful), (good, bad, doubtful))] == [
        0,
        0,
        0,
        2,
    ]
    assert Diagnosis((good, bad, doubtful), 1.23).as_json()["verdict"] == "FAIL"
    assert last_line(Diagnosis((good, bad, doubtful), 1.23)) == "not healthy: 1 failure, 1 warning, 1 ok; 1.2 s"
    assert last_line(Diagnosis((good, doubtful, doubtful), 1)) == "healthy: 0 failures, 2 warnings, 1 ok; 1.0 s"


def test_a_finding_is_one_line_without_a_password() -> None:
    found = fail("connection", "n1", "cannot reach\npostgresql://u:secret-word@h/db", "try\nagain")
    assert line(found).count("\n") == 0
    assert line(found).endswith("cannot reach postgresql://u:***@h/db -> try again")


# The configuration.


def test_without_nodes() -> None:
    found = trueup.doctor(engine="local")
    assert found.exit_code == 0
    warning = next(finding for finding in found.findings if finding.level == "WARN")
    assert (warning.check, "no server was checked" in warning.message, "trueup init" in warning.cure) == (
        *("configuration", True),
        True,
    )


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_text('[diff]\nblocksize = 5\n[nodes]\nn1 = "service=x"')
    found = trueup.doctor(spark=False)
    failures = [finding for finding in found.findings if finding.level == "FAIL"]
    assert failures[0].check == "configuration"
    assert 'Did you mean "block_size"?' in failures[0].cure
    assert {"python", "java", "disk", "tasks", "spark"} <= {finding.check for finding in found.findings}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cluster": "nope"}, 'there is no cluster "nope"'),
        ({"nodes": ["n9"]}, 'there is no node "n9"'),
        ({"engine": "warp"}, "--engine: must be one of"),
    ],
)
def test_wrong_options_are_findings(options: dict[str, Any], expected: str) -> None:
    found = trueup.doctor(**{"spark": False, **options})
    assert expected in next(finding.message for finding in found.findings if finding.level == "FAIL")


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="enginee"):
        trueup.doctor(enginee="local")  # type: ignore[call-arg]


def test_a_file_that_others_can_read_and_strays(tmp_path: Path) -> None:
    file = tmp_path / "trueup.toml"
    file.write_text('[nodes]\nn1 = "postgresql://u:secret-word@h/db"')
    file.chmod(0o644)
    found = [*configuration.check(request(config=trueup.load(), strays={"TRUEUP_X": "TRUEUP_Y", "TRUEUP_Z": ""}))]
    assert "other users can read it" in found[1].message
    assert found[1].cure.startswith("run `chmod 600")
    assert [each.level for each in found] == ["OK", "WARN", "WARN", "WARN", "WARN"]
    assert found[2].cure == "did you mean TRUEUP_Y?"
    assert "secret-word" not in str(found)


# Java and Spark.


def _no_java() -> JavaHome:
    raise EngineError("Spark needs Java 17", cure="install it")


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        (SparkSettings(), "WARN"),
        (SparkSettings(engine="spark"), "FAIL"),
        (SparkSettings(master="spark://h:1"), "FAIL"),
        (SparkSettings(engine="local"), "OK"),
    ],
)
def test_no_java(settings: SparkSettings, level: str) -> None:
    java = Background(_no_java)
    doctor_request = request(spark=settings)
    assert [each.level for each in machine.check_java(doctor_request, java)] == [level]
    started = Background(lambda: spark.try_out(doctor_request, java)) if spark.is_enabled(doctor_request) else None
    found = [*spark.check(doctor_request, started)]
    assert (found[0].level, found[0].message.startswith("not checked, because")) == (level, True)


def test_spark_is_not_checked_with_no_spark() -> None:
    doctor_request = request(start_spark=False)
    assert not spark.is_enabled(doctor_request)
    assert [(each.level, each.message) for each in spark.check(doctor_request, None)] == [
        ("OK", "not checked, because --no-spark is set")
    ]


def test_workers_that_differ_from_the_driver() -> None:
    here = spark.installed_versions()
    other = {**here, "python": "3.9"}
    assert [each.level for each in spark.check_worker(other)] == ["WARN"]
    assert [each.level for each in spark.check_worker({**here, "psycopg": ""})] == ["FAIL"]
    assert [each.level for each in spark.check_worker(here)] == ["OK"]


@pytest.mark.parametrize(
    ("settings", "conf", "worker", "texts"),
    [
        ({}, {"spark.authenticate": "true"}, {}, []),
        ({}, {}, {}, ["spark.authenticate is not set: everyone who can connect"]),
        ({"master": "spark://h:7077"}, {}, {"socket": "open"}, ["spark.authenticate is not set", "other users of"]),
        ({"master": "yarn"}, {"spark.authenticate": "true"}, {}, ["spark.network.crypto.enabled is not set"]),
        ({"master": "yarn"}, {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}, {}, []),
        (
            {"remote": "sc://h:15002"},
            {"spark.authenticate": "true"},
            {},
            ["spark.network.crypto", "passwords of nodes"],
        ),
        ({"remote": "sc://h/;use_ssl=true"}, {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}, {}, []),
        ({"remote": "sc://127.0.0.1:1"}, {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}, {}, []),
    ],
)
def test_a_spark_that_others_can_read_passwords_from(
    settings: dict[str, Any], conf: dict[str, str], worker: dict[str, str], texts: list[str]
) -> None:
    known = {**dict.fromkeys(spark.PROTECTING, "false"), **conf}
    found = [each for each in spark.check_protection(SparkSettings(**settings), known, worker) if each.level != "OK"]
    assert len(found) == len(texts)
    for each, text in zip(found, texts, strict=True):
        assert each.level == "WARN"
        assert each.message.startswith(text)


@pytest.mark.parametrize("address", ["spark://127.0.0.1:{port}", "sc://127.0.0.1:{port}/;token=secret-word"])
def test_a_cluster_that_cannot_be_reached(address: str) -> None:
    """Reported at once, not after the 90 seconds that Spark would retry."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = address.format(port=taken.getsockname()[1])
        settings = SparkSettings(master=url) if url.startswith("spark") else SparkSettings(remote=url)
        doctor_request = request(spark=settings)
        java = Background(lambda: JavaHome(Path("/"), 17, "here", Path("/")))
        found = [*spark.check(doctor_request, Background(lambda: spark.try_out(doctor_request, java)))]
    assert [each.level for each in found] == ["FAIL"]
    assert "cannot connect to 127.0.0.1:" in found[0].message
    assert "secret-word" not in str(found)


def test_packages() -> None:
    found = [*machine.check_python()]
    assert [(each.check, each.level) for each in found] == [("python", "OK"), ("packages", "OK")]
    assert "pyspark" in found[1].message


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("psycopg", "pandas", "no-such-package"))
    assert [each.level for each in machine.check_python()] == ["OK", "FAIL"]


# Disk.


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_place = tmp_path / "a"
    spark_place.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{spark_place},{tmp_path / 'lacking'}")
    found = {each.where: each for each in disk.check(request(spark=SparkSettings(engine="spark")))}
    assert {name: each.level for name, each in found.items()} == {
        "reports and spool and task store": "OK",
        "Spark": "FAIL",
    }
    assert "No such file" in found["Spark"].message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(("free", "level"), [(10 * 1024**2, "FAIL"), (500 * 1024**2, "WARN"), (5 * 1024**3, "OK")])
def test_free_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(free, 0, free))
    assert disk.check_folder(tmp_path, "reports").level == level


def test_a_folder_that_all_users_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "all users can replace files" in disk.check_folder(tmp_path, "reports").message
    tmp_path.chmod(0o1777)
    assert disk.check_folder(tmp_path, "reports").level == "OK"


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = disk.check_folder(tmp_path / "file", "reports")
    assert (found.level, "use the path of a folder" in found.cure) == ("FAIL", True)


# The task store.


def _tasks() -> list[Finding]:
    return [*tasks.check(request())]


def test_no_store_yet(tmp_path: Path) -> None:
    assert [each.level for each in _tasks()] == ["OK"]
    assert not (tmp_path / "tasks.db").exists()


def test_tasks_without_a_process(tmp_path: Path) -> None:
    with TaskStore() as store:
        store.start("TABLE_DIFF", context={})
        lost = store.start("TABLE_DIFF", context={})
        store._connection.execute("UPDATE tasks SET pid_started = '1' WHERE task_id = ?", (lost.task_id,))
    before = (tmp_path / "tasks.db").read_bytes()
    found = _tasks()
    assert [each.level for each in found] == ["OK", "WARN"]
    assert "2 tasks, 1 of them running" in found[0].message
    assert lost.task_id[:8] in found[1].message
    assert "ended without finishing" in found[1].message
    assert (tmp_path / "tasks.db").read_bytes() == before


def test_a_store_that_others_can_read(tmp_path: Path) -> None:
    TaskStore().close()
    os.chmod(tmp_path / "tasks.db", 0o644)
    found = _tasks()
    assert [(each.level, each.cure) for each in found[1:]] == [("WARN", f"chmod 600 {tmp_path / 'tasks.db'}")]


@pytest.mark.parametrize("damage", ["other", "torn", "folder"])
def test_a_file_that_is_not_a_store(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tasks.db"
    if damage == "other":
        path.write_text("not SQLite " * 500)
    elif damage == "folder":
        path.mkdir()
    else:
        with TaskStore() as store:
            for _ in range(200):
                store.start("TABLE_DIFF", context={"filler": "x" * 500})
        whole = path.read_bytes()
        path.write_bytes(whole[:8192] + b"\0" * 8192 + whole[16384:])
    found = _tasks()
    assert [each.level for each in found] == ["FAIL"]
    assert found[0].cure


# Nodes, as far as no server is needed; the rest is in the integration tests.


@pytest.mark.parametrize(
    ("address", "seconds"),
    [
        ("host=h", 11),
        ("host=h connect_timeout=2", 3),
        ("host=h connect_timeout=1", 3),
        ("host=h connect_timeout=0", 11),
    ],
)
def test_timeouts_of_connections(address: str, seconds: float) -> None:
    assert nodes.connect_seconds(Node("n", address)) == seconds


def test_settings_that_are_lost_behind_a_pooler() -> None:
    server = Server(170000, "UTF8", "r", "i", "c", None, None)
    facts = nodes.Facts({"pinned": "public|UTC|off", "role": "r"}, {"transaction_timeout": (5000, 5000)}, server, 0, 0)
    found = nodes.check_session("n1", facts)
    assert (found.level, "session mode" in found.cure) == ("FAIL", True)
    assert nodes.check_timeouts("n1", facts).level == "WARN"


def test_a_server_that_is_too_old() -> None:
    server = Server(120000, "UTF8", "r", "i", "c", None, None)
    facts = nodes.Facts({"version": 120012, "version_text": "12.12"}, {}, server, 0, 0)
    assert nodes.check_version("n1", facts).level == "FAIL"


def test_the_order_of_the_checks() -> None:
    doctor_request = request(config=Config(), start_spark=False)
    found = [each.check for each in run.examine(doctor_request)]
    assert list(dict.fromkeys(found)) == [
        *("configuration", "python", "packages", "java", "disk", "tasks", "spark"),
    ]
