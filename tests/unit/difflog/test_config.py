"""Loading difflog.toml: where it is found, its contents, and all mistakes in one error, without secrets."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from trueup.config.load import load, load_spark
from trueup.errors import ConfigError
from trueup.verbs.difflog.config import load_difflog
from trueup.verbs.difflog.model import DiffLogConfig, Entity, Rule, SideLog, StatePlace, Target
from trueup.verbs.difflog_ends.template import TEMPLATE, write_example

FULL = """
work = "difflog"
multiplier = 1000
[entity]
name = "visit"
key = ["VisitID"]
fast_version = "y_VisitVersion"
dropped = ["UserAgent", "Referer"]
deleted = "IsDeleted"
[entity.kept]
Duration = "replace"
[[log]]
name = "conversions"
key = { VisitID = "visit_id" }
id = ["EventID"]
order_by = "EventTime"
[log.columns]
Goals = "append"
Revenue = "sum"
LastGoal = { rule = "last", by = "EventTime" }
Score = { rule = "expr", sql = "coalesce(new.Score, 0) + coalesce(old.Score, 0)" }
[state]
path = "difflog/state"
buckets = 16
ttl_days = 30
ttl_column = "StartDate"
[clickhouse]
path = "difflog/clickhouse"
database = "default"
table = "visits"
"""
SMALL = """
[entity]
name = "visit"
key = ["VisitID"]
fast_version = "F"
[[log]]
name = "money"
key = ["VisitID"]
[log.columns]
Revenue = "sum"
[clickhouse]
table = "visits"
path = "here"
"""

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: str(tmp_path / "user"))
    monkeypatch.setattr("platformdirs.site_config_dir", lambda *_, **__: str(tmp_path / "site"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes ./difflog.toml, or another file, and returns its name."""

    def make(text: str, name: str = "difflog.toml") -> str:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        return name

    return make


def as_section(text: str) -> str:
    """Return a difflog.toml as the section [difflog] of trueup.toml."""
    return "[difflog]\n" + re.sub(r"^(\[+)", r"\1difflog.", text, flags=re.MULTILINE)


def changed(old: str, new: str, text: str = SMALL) -> str:
    assert old in text
    return text.replace(old, new)


def refused(text: str, write: Write, **env: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_difflog(write(text), env=env)
    return caught.value


def test_a_full_file(write: Write, tmp_path: Path) -> None:
    assert load_difflog(write(FULL), env={}) == DiffLogConfig(
        entity=Entity(
            name="visit",
            key=("VisitID",),
            fast_version="y_VisitVersion",
            dropped=("UserAgent", "Referer"),
            # The time column of a state is part of it.
            kept={"Duration": Rule("replace"), "StartDate": Rule("replace")},
            deleted="IsDeleted",
        ),
        logs=(
            SideLog(
                name="conversions",
                key={"VisitID": "visit_id"},
                columns={
                    "Goals": Rule("append"),
                    "Revenue": Rule("sum"),
                    "LastGoal": Rule("last", by="EventTime"),
                    "Score": Rule("expr", sql="coalesce(new.Score, 0) + coalesce(old.Score, 0)"),
                },
                id=("EventID",),
                order_by="EventTime",
            ),
        ),
        state=StatePlace(str(tmp_path / "difflog/state"), 16, 30, "StartDate"),
        target=Target("default", "visits", path=str(tmp_path / "difflog/clickhouse")),
        work=str(tmp_path / "difflog"),
        multiplier=1000,
    )


def test_defaults(write: Write, tmp_path: Path) -> None:
    difflog = load_difflog(write(SMALL), env={})
    assert difflog.logs[0].key == {"VisitID": "VisitID"}
    assert (difflog.work, difflog.multiplier) == (str(tmp_path / "difflog"), 1000)
    assert difflog.state == StatePlace(str(tmp_path / "difflog/state"))
    assert difflog.target.database == "default"
    assert difflog.entity.kept == {}


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ('"F"', '"F"', {"Day": Rule()}),
        ('"F"', '"F"\ndropped = ["Day"]', {}),
        ('"F"', '"F"\nkept = { Day = "max" }', {"Day": Rule("max")}),
        ("Revenue =", "Day =", {}),
        ('"sum"', '{ rule = "last", by = "Day" }', {}),
    ],
)
def test_the_time_column_of_states_is_always_read(old: str, new: str, kept: dict[str, Rule], write: Write) -> None:
    text = changed(old, new) + '[state]\nttl_days = 3\nttl_column = "Day"'
    assert load_difflog(write(text), env={}).entity.kept == kept


def test_a_section_of_the_main_file_is_equivalent(write: Write) -> None:
    alone = load_difflog(write(FULL, "own.toml"), env={})
    file = write(f'[nodes]\nn1 = "host=a"\n{as_section(FULL)}', "trueup.toml")
    assert load_difflog(env={}) == alone
    assert load_difflog(file, env={}) == alone
    # The main configuration accepts and ignores it.
    assert list(load(file, env={}).nodes) == ["n1"]


def test_files_are_found_in_order(write: Write) -> None:
    def named(multiplier: int) -> str:
        return f"multiplier = {multiplier}\n{SMALL}"

    write(as_section(named(11)), "trueup.toml")
    assert load_difflog(env={}).multiplier == 11
    write(named(12))
    assert load_difflog(env={}).multiplier == 12
    variable = {"TRUEUP_DIFFLOG": write(named(13), "by_variable.toml")}
    assert load_difflog(env=variable).multiplier == 13
    assert load_difflog(write(named(14), "given.toml"), env=variable).multiplier == 14


def test_no_file(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^difflog\.toml: the file does not exist$") as caught:
        load_difflog(env={})
    assert "trueup difflog init" in caught.value.cure
    write("[diff]\nretries = 1", "trueup.toml")
    with pytest.raises(ConfigError, match=r"does not exist, and trueup\.toml has no section \[difflog\]"):
        load_difflog(env={})
    with pytest.raises(ConfigError, match=r"trueup\.toml: section \[difflog\] does not exist"):
        load_difflog("trueup.toml", env={})
    with pytest.raises(ConfigError, match=r"gone\.toml: there is no such file \(from TRUEUP_DIFFLOG\)") as caught:
        load_difflog(env={"TRUEUP_DIFFLOG": "gone.toml"})
    assert "trueup difflog init" in caught.value.cure


def test_paths_are_relative_to_the_folder_of_the_file(write: Write, tmp_path: Path) -> None:
    text = changed('path = "here"', 'path = "../there"') + '[state]\npath = "/srv/state"'
    difflog = load_difflog(write(text, "etc/difflog.toml"), env={})
    assert difflog.work == str(tmp_path / "etc/difflog")
    assert difflog.state.path == "/srv/state"
    assert difflog.target.path == str(tmp_path / "etc/../there")


MISTAKES = [
    ('name = "money"', 'name = "money"\ncolums = 5', "log[0].colums: unknown key", '"columns"'),
    ("[clickhouse]", "[clickhaus]", "clickhaus: unknown key", '"clickhouse"'),
    ('fast_version = "F"', "", "entity.fast_version: missing or empty", "fast_version ="),
    ('key = ["VisitID"]\nfast', "fast", "entity.key: missing", "VisitID"),
    ('["VisitID"]\nfast', '["VisitID", "VisitID"]\nfast', 'entity.key: "VisitID" is listed twice', "once"),
    ('"visit"', '"vis/it"', "entity.name: not a valid name", "letters"),
    ('"sum"', '"som"', 'log[0].columns.Revenue: unknown rule "som"', '"sum"'),
    ('"sum"', '{ rule = "sam" }', 'log[0].columns.Revenue: unknown rule "sam"', '"sum"'),
    ('"sum"', '{ rul = "sum" }', "log[0].columns.Revenue.rul: unknown key", '"rule"'),
    ('"sum"', "5", "log[0].columns.Revenue: expected a text, found a whole number", "quotes"),
    ('"sum"', '"last"', 'log[0].columns.Revenue: the rule "last" needs a time', "by ="),
    ('"sum"', '{ rule = "expr" }', 'log[0].columns.Revenue: the rule "expr" needs an expression', "sql ="),
    ('"sum"', '{ rule = "sum", by = "t" }', 'Revenue.by: only the rule "last" uses it', "Remove"),
    ('Revenue = "sum"', "", "log[0].columns: the log has no columns", "Revenue"),
    ('Revenue = "sum"', 'VisitID = "sum"', '"VisitID" is already a part of the key', "Remove"),
    ('Revenue = "sum"', 'F = "sum"', '"F" is already the fast version', "Remove"),
    ('Revenue = "sum"', 'sign = "sum"', '"sign" is a reserved name of the version log', "Rename"),
    ('Revenue = "sum"', 'IsDeleted = "sum"', '"IsDeleted" is a reserved name', "Rename"),
    ('Revenue = "sum"', 'x = { rule = "last", by = "Block" }', '"Block" is a reserved name', "Rename"),
    ('fast_version = "F"', 'fast_version = "Version"', '"Version" is a reserved name', "Rename"),
    ('["VisitID"]', '["old"]', '"old" is a reserved name', "Rename"),
    ('"F"', '"F"\ndropped = ["bucket"]', '"bucket" is a reserved name', "Rename"),
    ('"F"', '"F"\ndropped = ["__trueup_key"]', '"__trueup_key" is a reserved name', "Rename"),
    ('"F"', '"F"\ndeleted = "isDeleted"', '"isDeleted" is a reserved name', "Write IsDeleted."),
    ('"F"', '"F"\ndropped = ["VisitID"]', 'entity.dropped: "VisitID" is already a part of the key', "Remove"),
    ('"F"', '"F"\ndropped = ["a"]\nkept = { a = "max" }', 'entity.kept.a: "a" is also in entity.dropped', "one"),
    ('"F"', '"F"\ndropped = ["Revenue"]', 'log[0].columns.Revenue: "Revenue" is also in entity.dropped', "one"),
    ('"F"', '"F"\ndropped = ["revenue"]', '"Revenue" differs only by case from "revenue" (entity.dropped)', "spelling"),
    ('"F"', '"F"\nkept = { Revenue = "max" }', '"Revenue" has another rule in entity.kept.Revenue', "one rule"),
    ('name = "money"', 'name = "Visit"', 'log[0].name: "Visit" is already used', "different"),
    ('name = "money"', 'name = "Pending"', 'log[0].name: "Pending" is the name of a folder', "another name"),
    ('"visit"', '"applied"', 'entity.name: "applied" is the name of a folder', "another name"),
    ('key = ["VisitID"]\n[log', "[log", "log[0].key: missing", "VisitID"),
    (
        'key = ["VisitID"]\n[log',
        'key = ["visitid"]\n[log',
        "log[0].key: VisitID of the",
        "VisitID",
    ),
    (
        'key = ["VisitID"]\n[log',
        'key = {VisitID = "v", x = "y"}\n[log',
        "key.x: not a column of the",
        "VisitID",
    ),
    (
        'key = ["VisitID"]\n[log',
        'key = {VisitID = "Revenue"}\n[log',
        '"Revenue" is already a part of the key',
        "Remove",
    ),
    (
        'key = ["VisitID"]\n[log',
        'key = ["VisitID"]\nid = ["F"]\n[log',
        'log[0].id: "F" is already',
        "Remove",
    ),
    ("[entity]", 'work = "a[b]"\n[entity]', "work: Spark or Delta cannot read a path with the character [", "folder"),
    ("[clickhouse]", '[state]\npath = "a%41"\n[clickhouse]', "state.path: Spark or Delta cannot read", "folder"),
    ("[entity]", "multiplier = 1\n[entity]", "multiplier: must be at least 2, not 1", "larger"),
    ("[entity]", f"multiplier = {10**20}\n[entity]", "multiplier: must be at most 10000000000000000,", "smaller"),
    ("[entity]", 'multiplier = "9"\n[entity]', "multiplier: expected a whole number, found a text", "whole number"),
    ("[entity]", "state = 5\n[entity]", "state: expected a table, found a whole number", "[state]"),
    ("[clickhouse]", "[state]\nbuckets = 0\n[clickhouse]", "state.buckets: must be at least 1, not 0", "larger"),
    ("[clickhouse]", "[state]\nttl_days = 3\n[clickhouse]", "state.ttl_days: ttl_column, which", "ttl_column ="),
    (
        "[clickhouse]",
        '[state]\nttl_column = "SIGN"\n[clickhouse]',
        'state.ttl_column: "SIGN" is a reserved name',
        "Rename",
    ),
    ('path = "here"', "", "clickhouse.url: url and path are both missing", "url ="),
    ('path = "here"', 'path = "p"\nurl = "http://h"', "url and path cannot be used together", "url ="),
    ('path = "here"', 'url = "postgresql://h/db"', "clickhouse.url: not the address", "clickhouse://"),
    ('path = "here"', 'url = "clickhouse://u:p@h:x/db"', "clickhouse.url: not the address", "encoded"),
    ('path = "here"', 'url = "${NO}"', "clickhouse.url: the environment variable NO is not set", "NO"),
    ('table = "visits"', "", "clickhouse.table: missing or empty", "table ="),
]


@pytest.mark.parametrize(("old", "new", "message", "cure"), MISTAKES)
def test_errors_name_file_key_and_cure(old: str, new: str, message: str, cure: str, write: Write) -> None:
    error = refused(SMALL.replace(old, new, 1) if old != '["VisitID"]' else changed(old, new), write)
    lines = str(error).splitlines()
    assert all(line.startswith("difflog.toml: ") for line in lines)
    assert message in str(error)
    assert cure in (error.cure if len(lines) == 1 else str(error))


def test_all_mistakes_are_reported_at_once(write: Write) -> None:
    text = as_section(SMALL).replace('"sum"', '"som"').replace('path = "here"', "").replace('"F"', '"Sign"')
    error = refused(text + "[difflog.state]\nbuckets = -1\nbuckts = 1", write)
    assert [line.split(": ")[1] for line in str(error).splitlines()] == [
        "difflog.log[0].columns.Revenue",
        "difflog.state.buckts",
        "difflog.clickhouse.url",
        "difflog.state.buckets",
        "difflog.entity.fast_version",
    ]
    assert all("." in line.split(": ", 2)[2] for line in str(error).splitlines())
    assert error.cure


SECOND = """
[[log]]
name = "refunds"
key = ["VisitID"]
[log.columns]
{}
[clickhouse]"""


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ('Revenue = "sum"', 'Revenue = "sum"', ""),
        ('Revenue = "sum"', 'Revenue = "max"', 'log[1].columns.Revenue: "Revenue" has another rule in log[0].columns'),
        ('Revenue = "sum"', 'revenue = "sum"', '"revenue" differs only by case from "Revenue"'),
        # The same column ordered by the same time column is valid; two columns of two logs are not.
        ('x = { rule = "last", by = "t" }', 'x = { rule = "last", by = "t" }', ""),
        (
            'x = { rule = "last", by = "t" }',
            'y = { rule = "last", by = "t" }',
            '"t" is already the time of other',
        ),
        ('x = { rule = "last", by = "t" }', 't = "min"', '"t" has another rule in log[0].columns.x.by'),
    ],
)
def test_columns_of_two_logs(first: str, second: str, message: str, write: Write) -> None:
    text = SMALL.replace('Revenue = "sum"', first).replace("[clickhouse]", SECOND.format(second))
    if message:
        assert message in str(refused(text, write))
    else:
        assert len(load_difflog(write(text), env={}).logs) == 2


def test_no_log(write: Write) -> None:
    text = SMALL[: SMALL.index("[[log]]")] + SMALL[SMALL.index("[clickhouse]") :]
    assert "[[log]]" in refused(text, write).cure
    assert "expected a list of tables" in str(refused(f"log = 5\n{text}", write))


@pytest.mark.parametrize("address", ["clickhouse://u:{}@h:8123/db", "clickhouse://u:{}@h:x/db", "clickhouse//u:{}@h"])
def test_the_password_is_never_shown(address: str, write: Write) -> None:
    password = "-".join(["Kxq", "Wvj"])
    for written in (address.format(password), address.format("${CH_PASSWORD}")):
        text = changed('path = "here"', f'url = "{written}"') + "\n[state]\nbuckets = 0"
        error = refused(text, write, CH_PASSWORD=password)
        assert password not in "".join(traceback.format_exception(error)) + repr(error) + error.cure


def test_an_object_does_not_show_the_password(write: Write) -> None:
    text = changed('path = "here"', 'url = "clickhouse://u:${P}@h:8123/db"')
    difflog = load_difflog(write(text), env={"P": "Kxq7"})
    assert difflog.target.url == "clickhouse://u:Kxq7@h:8123/db"
    assert "Kxq7" not in repr(difflog) + repr(asdict(difflog)) + repr(difflog.target)


def test_a_password_in_a_file_that_others_can_read(write: Write) -> None:
    file = write(changed('path = "here"', 'url = "clickhouse://u:hunter2@h:8123/db"'))
    assert load_difflog(env={}).warnings == ()
    Path(file).chmod(0o644)
    (warning,) = load_difflog(file, env={}).warnings
    assert "chmod 600" in warning
    assert "hunter" not in warning


def test_the_main_configuration_knows_the_section(write: Write) -> None:
    with pytest.raises(ConfigError, match="there is no such section") as caught:
        load(write("[diflog]\nx = 1", "trueup.toml"), env={})
    assert 'Did you mean "difflog"?' in caught.value.cure
    write(as_section(SMALL), "trueup.toml")
    with pytest.raises(ConfigError, match=r"TRUEUP__DIFFLOG__WORK: settings of \[difflog\] cannot be set by variables"):
        load(env={"TRUEUP__DIFFLOG__WORK": "x"})


def test_the_template_loads(tmp_path: Path) -> None:
    file, raw = tmp_path / "etc" / "difflog.toml", tmp_path / "etc" / "raw"
    write_example(file)
    assert file.read_text() == TEMPLATE
    assert file.stat().st_mode & 0o777 == 0o600
    difflog = load_difflog(str(file), env={})
    assert [log.name for log in difflog.logs] == ["conversions", "money"]
    with pytest.raises(ConfigError, match="the file exists"):
        write_example(file, sample=raw)
    assert not raw.exists()
    write_example(file, force=True, sample=raw)
    assert {path.parent.name for path in raw.rglob("*.parquet")} == {"visits", "conversions", "money", "fast"}
    file.unlink()
    with pytest.raises(ConfigError, match="the folder exists"):
        write_example(file, sample=raw)
    assert not file.exists()


def test_the_template_has_every_setting() -> None:
    called = {"logs": r"\[\[log\]\]", "target": r"\[clickhouse\]", "entity": r"\[entity\]", "state": r"\[state\]"}
    kinds: list[Any] = [DiffLogConfig, Entity, SideLog, StatePlace, Target]
    names = [called.get(each.name, rf"#?{each.name} = ") for kind in kinds for each in fields(kind)]
    names.remove("#?kept = ")
    names.remove("#?warnings = ")
    names.remove("#?history = ")
    names[names.index("#?columns = ")] = r"\[log\.columns\]"
    for name in [*names, r"\[entity\.kept\]"]:
        assert re.search(rf"^{name}", TEMPLATE, flags=re.MULTILINE), name
    for word in ("rule", "by", "sql"):
        assert re.search(rf"^\w.*\b{word} = ", TEMPLATE, flags=re.MULTILINE), word


def test_the_template_works_with_a_server_too(write: Write) -> None:
    text = TEMPLATE.replace("#url =", "url =").replace('path = "difflog/clickhouse"', "")
    assert "pw" in load_difflog(write(text), env={"CH_PASSWORD": "pw"}).target.url


def test_the_spark_settings_of_trueup_toml_hold_for_the_version_log(tmp_path: Path) -> None:
    """Nodes of the same file are not evaluated: their variables need not be set."""
    nodes = '[nodes]\nn1 = "postgresql://u:${NOT_SET}@h/db"\n'
    shared = tmp_path / "trueup.toml"
    shared.write_text(nodes + '[spark]\nmaster = "local[3]"\n[spark.conf]\n"spark.driver.memory" = "5g"\n')
    found = load_spark(env={"TRUEUP_CONFIG": str(shared), "TRUEUP__SPARK__CONF__SPARK_UI_ENABLED": "true"})
    assert (found.master, found.conf) == ("local[3]", {"spark.driver.memory": "5g", "spark.ui.enabled": "true"})
    own = tmp_path / "own.toml"
    own.write_text('[difflog]\n[spark]\nmaster = "local[7]"\n')
    assert load_spark(str(own), env={"TRUEUP_CONFIG": str(shared)}).master == "local[7]"
    assert load_spark(env={"TRUEUP_CONFIG": str(own)}).conf == {}
