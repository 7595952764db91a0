"""Find and read trueup.toml; collect the raw settings from it and from TRUEUP__… variables."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from trueup.config.secrets import SECRET_KEYWORDS, find_secrets
from trueup.config.settings import DiffSettings, ExpressionSettings, SparkSettings, TaskSettings, expected_found
from trueup.config.trust import why_not_trusted
from trueup.config.values import Setting, literal_part
from trueup.config.wording import problem, suggest

FILE_NAME = "trueup.toml"
PREFIX = "TRUEUP__"

# Sections with a fixed list of keys; in the others the user chooses the keys.
FIXED: dict[str, type[DiffSettings] | type[SparkSettings] | type[TaskSettings] | type[ExpressionSettings]] = {
    "diff": DiffSettings,
    "spark": SparkSettings,
    "tasks": TaskSettings,
    "expressions": ExpressionSettings,
}
SECTIONS = ("nodes", "clusters", *FIXED)
# Sections that a verb reads and checks itself.
OF_VERBS = ("alerts", "compare", "difflog", "schedule", "tube")

# Section -> key -> setting. The keys of [spark.conf] are in the section "spark.conf".
Settings = dict[str, dict[str, Setting]]


def find_file(path: str | None, env: Mapping[str, str]) -> Path | None:
    """Return the path, else $TRUEUP_CONFIG, ./trueup.toml, the file of the user, of the system, else None.

    Raises ConfigError if another user can have written a file that was not named.
    """
    named = named_file(path, env, "TRUEUP_CONFIG", "trueup init")
    if named:
        return named
    if found := file_here(FILE_NAME, "TRUEUP_CONFIG"):
        return found

    # appauthor=False: otherwise the path on Windows is trueup\\trueup.
    from platformdirs import site_config_dir, user_config_dir

    folders = [user_config_dir("trueup", appauthor=False), site_config_dir("trueup", appauthor=False)]
    for folder in folders:
        if found := file_here(str(Path(folder, FILE_NAME)), "TRUEUP_CONFIG"):
            return found
    return None


def file_here(name: str, variable: str) -> Path | None:
    """Return a file that is read because it is there; None if it is not.

    Raises ConfigError if another user can have written it: it names commands and code that run as this user.
    """
    file = Path(name)
    if not file.is_file():
        return None
    if reason := why_not_trusted(file):
        cure = f"If you trust it, name it with --config or {variable}; else change its owner and mode, or remove it."
        raise problem(str(file), f"it is not read, because {reason}", cure)
    return file


def named_file(path: str | None, env: Mapping[str, str], variable: str, maker: str) -> Path | None:
    """Return the file of the option, else of the variable, else None; raises ConfigError if it does not exist."""
    name = path or env.get(variable)
    if not name:
        return None
    file = Path(name).expanduser()
    if not file.is_file():
        source = "" if path else f" (from {variable})"
        cure = f"Check the path, or create the file with `{maker}`."
        raise problem(str(file), f"there is no such file{source}", cure)
    return file


def read_file(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = file.read_text(encoding="utf-8")
        tables: dict[str, Any] = tomllib.loads(text)
        return tables
    except tomllib.TOMLDecodeError as error:
        # The message of the parser may quote the line, which may contain a password: only the position is used.
        place = re.search(r"at line (\d+), column (\d+)", str(error))
        if place:
            wrong = f"line {place[1]}, column {place[2]}: not valid TOML"
            cure = "Correct that line: check quotes, brackets, = and \\, and duplicate names."
        else:
            wrong = f"line {len(text.splitlines())}, the end of the file: not valid TOML"
            cure = "Close the open quote or bracket on this line or above."
    except UnicodeError:
        wrong, cure = "not UTF-8", "Save the file as UTF-8."
    except OSError as error:
        wrong, cure = f"cannot be read ({error.strerror})", "Check the owner and the mode of the file."
    # Raised outside the except block, so that the error of the parser is not attached to it.
    raise problem(str(file), wrong, cure)


def from_file(tables: Mapping[str, Any], file: Path | None) -> Settings:
    """Return the settings of a file by section; raises ConfigError for an unknown section or key."""
    settings: Settings = {section: {} for section in (*SECTIONS, "spark.conf")}
    for section, table in tables.items():
        if section in OF_VERBS:
            continue
        if section not in SECTIONS:
            raise problem(f"{file}: {section}", "there is no such section", _cure_for_section(section))
        if not isinstance(table, dict):
            raise problem(f"{file}: {section}", expected_found(dict, table), f"Write [{section}] on a separate line.")
        for key, value in table.items():
            where = f"{file}: {section}.{key}"
            _check_key(section, key, where)
            if (section, key) != ("spark", "conf"):
                settings[section][key] = Setting(where, value)
            elif isinstance(value, dict):
                conf = {name: Setting(f"{where}.{name}", text) for name, text in value.items()}
                settings["spark.conf"] = conf
            else:
                raise problem(where, expected_found(dict, value), "Write [spark.conf] on a separate line.")
    return settings


def add_environment(settings: Settings, env: Mapping[str, str]) -> None:
    """Override the settings of the file with variables such as TRUEUP__DIFF__BLOCK_SIZE."""
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        section, _, rest = variable[len(PREFIX) :].partition("__")
        section = section.lower()
        if section in OF_VERBS:
            cure = "Write the setting into the file; ${VAR} is replaced there."
            raise problem(variable, f"settings of [{section}] cannot be set by variables", cure)
        if section not in SECTIONS:
            raise problem(variable, f'there is no section "{section}"', suggest(section, SECTIONS))
        if not rest:
            raise problem(variable, "the name of the setting is missing", f"Name it {variable}__SETTING.")
        section, key = _meant_by(variable, section, rest, settings)
        settings[section][key] = Setting(variable, env[variable], is_text=True)


def warnings_about(tables: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Return a warning if other users can read a file that contains a password."""
    mode = stat.S_IMODE(file.stat().st_mode)
    # On Windows the mode does not show who can read the file.
    if os.name == "nt" or not mode & 0o044 or not any(_holds_secret(key, text) for key, text in _texts(tables)):
        return ()
    return (
        f"{file} contains a password and other users can read it (mode {mode:03o}): "
        f"run `chmod 600 {file}`, or replace the password by ${{VAR}}, or move it to ~/.pgpass",
    )


def _texts(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _texts(value)
        elif isinstance(value, str):
            yield key, literal_part(value)


def _holds_secret(key: str, text: str) -> bool:
    # A key such as spark.hadoop.fs.s3a.secret.key identifies a secret by itself.
    secrets = [text] if key in SECRET_KEYWORDS or find_secrets(f"{key}=x") else find_secrets(text)
    return any(secret.strip("\0'\"") for secret in secrets)


def _keys(section: str) -> tuple[str, ...]:
    return tuple(setting.name for setting in fields(FIXED[section]))


def _check_key(section: str, key: str, where: str) -> None:
    if section in FIXED and key not in _keys(section):
        raise problem(where, "there is no such key", suggest(key, _keys(section)))


def _cure_for_section(name: str) -> str:
    """Return the cure for an unknown section: the section of the key, or similar names."""
    owners = [section for section in FIXED if name in _keys(section)]
    return f"Write it below [{owners[0]}]." if owners else suggest(name, (*SECTIONS, *OF_VERBS))


def _meant_by(variable: str, section: str, rest: str, settings: Settings) -> tuple[str, str]:
    """Return the section and the key of a variable TRUEUP__SECTION__REST."""
    if section not in FIXED:
        key = _own_key(rest, settings[section])
        if "__" in key and key not in settings[section]:
            raise problem(variable, f'there is no "{key}" in [{section}]', "Set the whole value with one variable.")
        return section, key
    if section == "spark" and rest.lower().startswith("conf__"):
        return "spark.conf", _spark_key(rest[len("conf__") :], settings["spark.conf"])
    key = rest.lower()
    _check_key(section, key, variable)
    if (section, key) == ("spark", "conf"):
        cure = f"Set single values, such as {variable}__spark_executor_memory."
        raise problem(variable, "a variable cannot set a whole table", cure)
    return section, key


def _own_key(name: str, existing: Mapping[str, Setting]) -> str:
    """Return the node or cluster of a variable: an existing one, ignoring case, else in lower case."""
    return next((key for key in existing if key.lower() == name.lower()), name.lower())


def _spark_key(name: str, existing: Mapping[str, Setting]) -> str:
    """Return `SPARK_EXECUTOR_MEMORY` or `spark_executor_memoryOverhead` as a Spark setting, with dots."""
    dotted = name.replace("_", ".")
    return next(
        (key for key in existing if key.lower() == dotted.lower()),
        dotted.lower() if name.isupper() else dotted,
    )
