"""Finds and reads trueup.toml, and collects the raw settings of it and of TRUEUP__... variables."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.config.secrets import SECRET_KEYWORDS, find_secrets
from trueup.config.settings import DiffSettings, SparkSettings, TaskSettings, expected_found
from trueup.config.values import Setting, literal_part
from trueup.config.wording import problem, suggest

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "trueup.toml"
PREFIX = "TRUEUP__"

# The sections with a fixed list of keys; in the other ones the user chooses the keys.
FIXED: dict[str, type[DiffSettings] | type[SparkSettings] | type[TaskSettings]] = {
    "diff": DiffSettings,
    "spark": SparkSettings,
    "tasks": TaskSettings,
}
SECTIONS = ("nodes", "clusters", *FIXED)
# The sections that a verb reads and checks itself, when it is called.
OF_VERBS = ("difflog", "schedule")

# Section, key, setting. The keys of [spark.conf] are in a section "spark.conf" of their own.
Settings = dict[str, dict[str, Setting]]


def find_file(path: str | None, env: Mapping[str, str]) -> Path | None:
    """The given file, else $TRUEUP_CONFIG, ./trueup.toml, the user's, the machine's, else None."""
    named = named_file(path, env, "TRUEUP_CONFIG", "trueup init")
    if named:
        return named
    if Path(FILE_NAME).is_file():
        return Path(FILE_NAME)

    # appauthor=False: without it Windows repeats the name, trueup\\trueup.
    from platformdirs import site_config_dir, user_config_dir

    folders = [user_config_dir("trueup", appauthor=False), site_config_dir("trueup", appauthor=False)]
    return next((Path(folder, FILE_NAME) for folder in folders if Path(folder, FILE_NAME).is_file()), None)


def named_file(path: str | None, env: Mapping[str, str], variable: str, maker: str) -> Path | None:
    """The given file, else the one that a variable names, which must be there; else None."""
    given = path or env.get(variable)
    if not given:
        return None
    file = Path(given).expanduser()
    if not file.is_file():
        source = "" if path else f" (named by {variable})"
        cure = f"Check the path, or make the file with `{maker}`."
        raise problem(str(file), f"there is no such file{source}", cure)
    return file


def read_file(file: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = file.read_text(encoding="utf-8")
        tables: dict[str, Any] = tomllib.loads(text)
        return tables
    except tomllib.TOMLDecodeError as error:
        # The parser's message can quote from the line, which may hold a password: only the place is taken.
        place = re.search(r"at line (\d+), column (\d+)", str(error))
        if place:
            wrong = f"line {place[1]}, column {place[2]}: not valid TOML"
            cure = "Correct that line: a quote, a bracket, a = or a \\, or a name that is there twice."
        else:
            wrong = f"line {len(text.splitlines())}, the end of the file: not valid TOML"
            cure = "Find the quote or the bracket that is not closed, on this line or above."
    except UnicodeError:
        wrong, cure = "it is not UTF-8", "Save the file as UTF-8."
    except OSError as error:
        wrong, cure = f"it cannot be read ({error.strerror})", "Check the owner and the mode of the file."
    # Raised out here so that the parser's own error does not travel along with this one.
    raise problem(str(file), wrong, cure)


def from_file(tables: Mapping[str, Any], file: Path | None) -> Settings:
    """The settings of a file, by section; unknown sections and keys are errors."""
    settings: Settings = {section: {} for section in (*SECTIONS, "spark.conf")}
    for section, table in tables.items():
        if section in OF_VERBS:
            continue
        if section not in SECTIONS:
            raise problem(f"{file}: {section}", "there is no such section", _cure_for_section(section))
        if not isinstance(table, dict):
            raise problem(f"{file}: {section}", expected_found(dict, table), f"Write [{section}] on its own line.")
        for key, value in table.items():
            where = f"{file}: {section}.{key}"
            _check_key(section, key, where)
            if (section, key) != ("spark", "conf"):
                settings[section][key] = Setting(where, value)
            elif isinstance(value, dict):
                conf = {name: Setting(f"{where}.{name}", text) for name, text in value.items()}
                settings["spark.conf"] = conf
            else:
                raise problem(where, expected_found(dict, value), "Write [spark.conf] on its own line.")
    return settings


def add_environment(settings: Settings, env: Mapping[str, str]) -> None:
    """Let variables like TRUEUP__DIFF__BLOCK_SIZE override what the file says."""
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        section, _, rest = variable[len(PREFIX) :].partition("__")
        section = section.lower()
        if section in OF_VERBS:
            cure = "Write the setting into the file; ${VAR} works in it."
            raise problem(variable, f"variables do not set what is in [{section}]", cure)
        if section not in SECTIONS:
            raise problem(variable, f'there is no section "{section}"', suggest(section, SECTIONS))
        if not rest:
            raise problem(variable, "the name of the setting is missing", f"Name it {variable}__SETTING.")
        section, key = _meant_by(variable, section, rest, settings)
        settings[section][key] = Setting(variable, env[variable], is_text=True)


def warnings_about(tables: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """The warning that others can read a file with passwords in it, if so."""
    mode = stat.S_IMODE(file.stat().st_mode)
    # Windows does not say in the mode who may read.
    if os.name == "nt" or not mode & 0o044 or not any(_holds_secret(key, text) for key, text in _texts(tables)):
        return ()
    return (
        f"{file} holds a password and other users can read it (mode {mode:03o}): "
        f"run `chmod 600 {file}`, or write ${{VAR}} instead of the password, or keep it in ~/.pgpass",
    )


def _texts(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _texts(value)
        elif isinstance(value, str):
            yield key, literal_part(value)


def _holds_secret(key: str, text: str) -> bool:
    # For a Spark setting like spark.hadoop.fs.s3a.secret.key the key alone tells.
    found = [text] if key in SECRET_KEYWORDS or find_secrets(f"{key}=x") else find_secrets(text)
    return any(secret.strip("\0'\"") for secret in found)


def _keys(section: str) -> tuple[str, ...]:
    return tuple(setting.name for setting in fields(FIXED[section]))


def _check_key(section: str, key: str, where: str) -> None:
    if section in FIXED and key not in _keys(section):
        raise problem(where, "there is no such key", suggest(key, _keys(section)))


def _cure_for_section(name: str) -> str:
    """A key that was written above the first section header is told its section."""
    owners = [section for section in FIXED if name in _keys(section)]
    return f"Write it below [{owners[0]}]." if owners else suggest(name, (*SECTIONS, *OF_VERBS))


def _meant_by(variable: str, section: str, rest: str, settings: Settings) -> tuple[str, str]:
    """The section and the key that a variable TRUEUP__SECTION__REST sets."""
    if section not in FIXED:
        key = _own_key(rest, settings[section])
        if "__" in key and key not in settings[section]:
            raise problem(variable, f'there is no "{key}" in [{section}]', "A variable sets the whole value.")
        return section, key
    if section == "spark" and rest.lower().startswith("conf__"):
        return "spark.conf", _spark_key(rest[len("conf__") :], settings["spark.conf"])
    key = rest.lower()
    _check_key(section, key, variable)
    if (section, key) == ("spark", "conf"):
        cure = f"Set one value of it, like {variable}__spark_executor_memory."
        raise problem(variable, "a variable cannot set the whole table", cure)
    return section, key


def _own_key(name: str, existing: Mapping[str, Setting]) -> str:
    """The node or cluster that a variable means: an existing one in whatever case, else in lower case."""
    return next((key for key in existing if key.lower() == name.lower()), name.lower())


def _spark_key(name: str, existing: Mapping[str, Setting]) -> str:
    """`SPARK_EXECUTOR_MEMORY` or `spark_executor_memoryOverhead` as a Spark setting; shells allow no dots."""
    dotted = name.replace("_", ".")
    return next(
        (key for key in existing if key.lower() == dotted.lower()),
        dotted.lower() if name.isupper() else dotted,
    )
