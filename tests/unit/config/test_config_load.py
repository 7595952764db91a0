"""Loading trueup.toml: where it is found, its contents, and errors with file and key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trueup.config.address import parse
from trueup.config.load import load
from trueup.config.model import Config
from trueup.config.settings import DiffSettings, SparkSettings, TaskSettings
from trueup.errors import ConfigError

WriteToml = Callable[[str], str]

FULL = """
[nodes]
n1 = "postgresql://app@db1/shop"
n2 = "service=shop2"
[nodes.n3]
host = "db3"
port = 5433
dbname = "shop"
password = "${N3_PASSWORD}"
[clusters]
acctg = ["n1", "n2", "n3"]
[diff]
block_size = 50000
recheck_wait = 1
snapshot = false
numeric = "representation"
[spark]
engine = "local"
[spark.conf]
"spark.executor.memory" = "2g"
[tasks]
task_db = "${HERE:-/var/lib}/tasks.db"
"""


def refused(text: str, toml: WriteToml, **env: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(toml(text), env=env)
    return caught.value


def test_a_full_file(toml: WriteToml) -> None:
    password = "it's \\ a ${X} secret"
    config = load(toml(FULL), env={"N3_PASSWORD": password})
    assert config.path == Path("trueup.toml")
    assert config.nodes["n1"].conninfo == "postgresql://app@db1/shop"
    assert config.nodes["n2"].conninfo == "service=shop2"
    # The value of a variable is not expanded again.
    params = {"host": "db3", "port": "5433", "dbname": "shop", "password": password}
    assert parse(config.nodes["n3"].conninfo) == (params, "")
    assert config.clusters == {"acctg": ("n1", "n2", "n3")}
    assert config.diff == DiffSettings(block_size=50_000, recheck_wait=1.0, snapshot=False, numeric="representation")
    assert isinstance(config.diff.recheck_wait, float)
    assert config.spark == SparkSettings(engine="local", conf={"spark.executor.memory": "2g"})
    assert config.tasks == TaskSettings("/var/lib/tasks.db")
    assert config.warnings == ()


def test_no_file_is_required() -> None:
    assert load(env={}) == Config()


def test_files_are_found_in_order(tmp_path: Path) -> None:
    def place(folder: str, retries: int) -> Path:
        file = tmp_path / folder / "trueup.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"[diff]\nretries = {retries}\n")
        return file

    place("site", 1)
    assert load(env={}).diff.retries == 1
    place("user", 2)
    assert load(env={}).diff.retries == 2
    place(".", 3)
    assert load(env={}).diff.retries == 3
    named = place("named", 4)
    assert load(env={"TRUEUP_CONFIG": str(named)}).diff.retries == 4
    assert load(env={"TRUEUP_CONFIG": ""}).diff.retries == 3
    explicit = place("given", 5)
    assert load(str(explicit), env={"TRUEUP_CONFIG": str(named)}).diff.retries == 5


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: there is no such file"):
        load("gone.toml", env={})
    with pytest.raises(ConfigError, match=r"gone\.toml: there is no such file \(from TRUEUP_CONFIG\)"):
        load(env={"TRUEUP_CONFIG": "gone.toml"})
    with pytest.raises(ConfigError, match="there is no such file"):
        load(str(tmp_path), env={})


def test_inline_nodes_are_added_and_take_precedence(toml: WriteToml) -> None:
    file = toml('[nodes]\nn1 = "${UNSET}"\nn2 = "host=b"\n[clusters]\nc = ["n1", "n9"]')
    config = load(file, nodes={"n1": "host=x", "n9": "host=${y}"}, env={})
    assert {name: node.conninfo for name, node in config.nodes.items()} == {
        "n1": "host=x",
        "n2": "host=b",
        "n9": "host=${y}",
    }
    assert config.clusters["c"] == ("n1", "n9")


def test_inline_nodes_alone() -> None:
    config = load(nodes={"a": "host=a", "b": "host=b"}, env={})
    assert [node.name for node in config.select(None, None)] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message", "cure"),
    [
        (
            "[diff]\nblok_size = 5",
            "trueup.toml: diff.blok_size: there is no such key",
            'Did you mean "block_size"?',
        ),
        ("[dif]\nblock_size = 5", "trueup.toml: dif: there is no such section", 'Did you mean "diff"?'),
        ("retries = 5", "trueup.toml: retries: there is no such section", "Write it below [diff]."),
        ("nodes = 5", "trueup.toml: nodes: expected a table, found a whole number", "[nodes]"),
        (
            "[diff]\nretries = true",
            "trueup.toml: diff.retries: expected a whole number, found true or false",
            "",
        ),
        ("[diff]\nretries = 1.0", "trueup.toml: diff.retries: expected a whole number, found a number", ""),
        ('[diff]\nretries = "5"', "trueup.toml: diff.retries: expected a whole number, found a text", ""),
        (
            "[diff]\nsnapshot = 1",
            "trueup.toml: diff.snapshot: expected true or false, found a whole number",
            "",
        ),
        ("[diff]\nrecheck_wait = true", "diff.recheck_wait: expected a number, found true or false", ""),
        ("[diff]\ndigest = 5", "trueup.toml: diff.digest: expected a text, found a whole number", "quotes"),
        ("[diff]\ndigest = []", "trueup.toml: diff.digest: expected a text, found a list", ""),
        ("[diff]\ndigest = 1979-05-27", "trueup.toml: diff.digest: expected a text, found a date", ""),
        ("[diff]\nretries = -5", "trueup.toml: diff.retries: must be at least 0, not -5", ""),
        ("[diff]\nblock_size = 5", "trueup.toml: diff.block_size: must be between 1000 and 1000000", ""),
        ('[spark]\nengine = "x"', "trueup.toml: spark.engine: must be one of", ""),
        (
            '[spark]\nmaster = "a"\nremote = "b"',
            "trueup.toml: spark.master and trueup.toml: spark.remote",
            "",
        ),
        (
            "[spark]\nconf = 5",
            "trueup.toml: spark.conf: expected a table, found a whole number",
            "[spark.conf]",
        ),
        ('[spark.conf]\n"spark.a" = 5', "trueup.toml: spark.conf.spark.a: expected a text", "quotes"),
        ("[nodes]\nn1 = 5", "trueup.toml: nodes.n1: expected a text, found a whole number", "[nodes.NAME]"),
        ('[nodes]\n"n/1" = "host=a"', "trueup.toml: nodes.n/1: invalid name of a node", "letters"),
        ('[nodes]\n"n,1" = "host=a"', "trueup.toml: nodes.n,1: invalid name of a node", "letters"),
        ('[nodes]\n"" = "host=a"', "trueup.toml: nodes.: invalid name of a node", "letters"),
        ('[nodes]\nall = "host=a"', 'trueup.toml: nodes.all: a node cannot be called "all"', ""),
        (
            '[nodes.n1]\nuri = "postgresql://a"',
            "trueup.toml: nodes.n1.uri: unknown libpq keyword",
            'n1 = "postgresql:',
        ),
        ('[nodes.n1]\nhots = "a"', "trueup.toml: nodes.n1.hots: unknown libpq keyword", '"host"'),
        ("[nodes.n1]\nhost = true", "trueup.toml: nodes.n1.host: expected a text, found true or false", ""),
        ("[nodes.n1]\nport = 70000", "trueup.toml: nodes.n1: ", ""),
        ("[nodes.n1]", "trueup.toml: nodes.n1: invalid address: it is empty", ""),
        ('[clusters]\nc = ["n1"]', 'trueup.toml: clusters.c: there is no node "n1"', "None is defined."),
        ("[clusters]\nc = []", "trueup.toml: clusters.c: the cluster has no nodes", ""),
        ('[clusters]\nc = "n1"', "trueup.toml: clusters.c: expected a list, found a text", '["n1", "n2"]'),
        ("[clusters]\nc = [1]", "trueup.toml: clusters.c[0]: expected a text, found a whole number", ""),
        ('[nodes]\na = "host=a"\n[clusters]\nc = ["a", "a"]', 'clusters.c: the node "a" is listed twice', ""),
    ],
)
def test_errors_name_file_key_and_cure(text: str, message: str, cure: str, toml: WriteToml) -> None:
    error = refused(text, toml)
    assert message in str(error)
    assert cure in error.cure
    assert error.cure


def test_a_missing_variable(toml: WriteToml) -> None:
    error = refused('[nodes.n3]\npassword = "${N3_PASSWORD}"', toml)
    assert str(error) == "trueup.toml: nodes.n3.password: the environment variable N3_PASSWORD is not set"
    assert "${N3_PASSWORD:-default}" in error.cure


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("${A}", "a"),
        ("x${A}y${B}", "xay${A}"),
        ("${C:-d}", "d"),
        ("${C:-}", ""),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${A:-d}", "a"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$A $ {A} 5$", "$A $ {A} 5$"),
    ],
)
def test_variables(written: str, read: str, toml: WriteToml) -> None:
    file = toml(f"[tasks]\ntask_db = '{written}'")
    assert load(file, env={"A": "a", "B": "${A}", "EMPTY": ""}).tasks.task_db == read


def test_variables_work_everywhere(toml: WriteToml) -> None:
    text = """
        nodes = {n1 = "host=${H}", n2 = {host = "${H}"}}
        clusters = {c = ["${N}"]}
        diff = {retries = "${R}"}
        spark = {conf = {x = "${H}"}}
    """
    config = load(toml(text), env={"H": "h", "N": "n2", "R": "7"})
    assert [node.conninfo for node in config.nodes.values()] == ["host=h", "host=h"]
    assert config.clusters == {"c": ("n2",)}
    assert config.diff.retries == 7
    assert config.spark.conf == {"x": "h"}


@pytest.mark.parametrize("written", ["${A", "${}", "${1A}", "${A B}", "x${hun-ter}"])
def test_broken_references(written: str, toml: WriteToml) -> None:
    error = refused(f"[tasks]\ntask_db = '{written}'", toml, A="a")
    assert str(error).startswith("trueup.toml: tasks.task_db: ${ is not followed")
    assert "hun" not in str(error)
    assert "$${" in error.cure


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[nodes]\nn1 = 'host=h password=hunter2\nn2 = 5", "line 3, the end of the file"),
        ('[nodes]\nn1 = "postgresql://u:hun\\qter2@h/db"\n', "line 2, column "),
        ("[nodes]\n\nn1 = hunter2\n", "line 3, column "),
        ("[nodes]\nhunter2 = 1\nhunter2 = 1\n", "line 3, column "),
        ('[nodes]\nn1 = "hunter2\nn2 = 5', "line 2, column "),
    ],
)
def test_toml_errors_have_a_position_and_no_secret(text: str, place: str, toml: WriteToml) -> None:
    error = refused(text, toml)
    assert f"trueup.toml: {place}" in str(error)
    assert "hun" not in str(error)
    assert error.__context__ is None


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "trueup.toml").write_bytes(b"[nodes]\nn1 = '\xff'")
    with pytest.raises(ConfigError, match=r"trueup\.toml: not UTF-8"):
        load(env={})


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ('[nodes]\nn1 = "postgresql://u:hunter2@h/db"', True),
        ('[nodes]\nn1 = "postgresql://u@h/db?sslpassword=hunter2"', True),
        ("[nodes]\nn1 = \"host=h password='hunter 2'\"", True),
        ('[nodes.n1]\npassword = "hunter2"', True),
        ('[nodes.n1]\npassword = "${A:-hunter2}"', True),
        ('[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "hunter2"', True),
        ('[nodes]\nn1 = "postgresql://u:${A}@h/db"', False),
        ('[nodes]\nn1 = "password=${A} host=h"', False),
        ('[nodes.n1]\npassword = "${A}"', False),
        ('[nodes.n1]\nhost = "h"\npassfile = "/x"', False),
        ('[nodes]\nn1 = "postgresql://u@h:5432/db"', False),
    ],
)
def test_a_password_in_a_file_that_others_can_read(text: str, warns: bool, toml: WriteToml) -> None:
    file = toml(text)
    assert load(file, env={"A": "a"}).warnings == ()
    Path(file).chmod(0o640)
    warnings = load(file, env={"A": "a"}).warnings
    assert len(warnings) == warns
    for warning in warnings:
        assert "trueup.toml" in warning
        assert "chmod 600" in warning
        assert "hunter" not in warning


def test_the_import_loads_no_slow_package() -> None:
    heavy = {"psycopg", "platformdirs", "tomllib", "tomli", "difflib", "urllib.parse"}
    code = f"import sys, trueup.config; sys.exit(str({heavy!r} & set(sys.modules) or ''))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""
