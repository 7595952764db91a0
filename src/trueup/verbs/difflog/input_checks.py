"""Checks of chunk sets before a run is recorded, without Spark: files, columns and types; all problems at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql.types import StructType

from trueup.config.wording import counted, suggest
from trueup.engine.parquet_files import Footers, parquet_files, read_footers
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.checks import JOIN_PREFIX, RESERVED
from trueup.verbs.difflog.chunks import (
    INTEGERS,
    JOIN_FILE,
    OF_JOIN,
    chunk_folder,
    chunk_sets,
    fits,
    sources,
    stray_files,
)
from trueup.verbs.difflog.model import DELETED, FAST, DiffLogConfig, Rule, SideLog

_NUMBERS = (*INTEGERS, "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_SHOWN = 20
_STATE = "the state"
_CURE = "nothing was written; correct the files or difflog.toml, then run again"

# The files of chunk sets: name of the set -> path in the set -> bytes.
SetFiles = dict[str, dict[str, int]]


def check_chunk_sets(difflog: DiffLogConfig, work: Path, names: Sequence[str], state: StructType | None) -> SetFiles:
    """Return the files of these chunk sets. Raises CheckFailed that lists everything that a run cannot process."""
    problems = _strays(work)
    files: dict[str, list[Path]] = {source: [] for source in sources(difflog)}
    for name in names:
        problems += _list_set(difflog, chunk_folder(work) / name, files)
    footers = {source: read_footers(paths) for source, paths in files.items() if paths}
    problems += [problem for one in footers.values() for problem in one.problems]
    if not problems:
        problems = list(_wrong_columns(difflog, footers)) or list(_wrong_types(difflog, footers, state))
    raise_if_any(problems)
    return {name: files_of_set(difflog, chunk_folder(work) / name) for name in names}


def raise_if_any(problems: Sequence[str], cure: str = _CURE) -> None:
    """Raise CheckFailed with these problems, if there are any; only the first ones are shown."""
    more = len(problems) - _SHOWN
    if problems:
        last = [f"and {counted(more, 'more problem')}"] if more > 0 else []
        raise CheckFailed([*problems[:_SHOWN], *last], cure=cure)


def files_of_set(difflog: DiffLogConfig, folder: Path) -> dict[str, int]:
    """Return the files of the sources of a chunk set, and their sizes."""
    paths = [path for source in sources(difflog) for path in parquet_files(folder / source).files]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def check_unchanged(difflog: DiffLogConfig, work: Path, before: SetFiles, run: int) -> None:
    """Raise CheckFailed if the chunk sets are not the same as when the run started."""
    problems = []
    for name, files in before.items():
        folder = chunk_folder(work) / name
        now = files_of_set(difflog, folder) if folder.is_dir() else {}
        wrong = sorted(path for path in {*files, *now} if files.get(path) != now.get(path))
        if not folder.is_dir():
            problems.append(f"chunk set {folder} does not exist, but run {run} has started to process it")
        elif wrong:
            others = f" and {counted(len(wrong) - 1, 'other file')}" if len(wrong) > 1 else ""
            problems.append(f"{folder}/{wrong[0]}{others} was changed after run {run} has started to process it")
    cure = "restore the files and run again, or give up the run: trueup difflog run --abandon"
    raise_if_any(problems, cure)


def check_all_read(difflog: DiffLogConfig, work: Path, before: Mapping[int, SetFiles]) -> None:
    """Raise CheckFailed if a chunk set that a run has processed has other files now: no run would read them."""
    problems = []
    for run, sets in before.items():
        for name, files in sets.items():
            folder = chunk_folder(work) / name
            if not folder.is_dir():
                continue
            more = sorted(path for path, size in files_of_set(difflog, folder).items() if files.get(path) != size)
            if more:
                problems.append(f"{folder}/{more[0]} was written after run {run} has processed this chunk set")
    raise_if_any(problems, "move the file to a new chunk set with another name, or remove it")


def _list_set(difflog: DiffLogConfig, folder: Path, files: Mapping[str, list[Path]]) -> Iterator[str]:
    """Add the files of a chunk set to `files`, and yield what is wrong with its folders."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        yield f"chunk set {folder} cannot be read: {error.strerror}"
        return
    found = False
    known = (*files, *(OF_JOIN if JOIN_FILE in entries else ()))
    for name in entries:
        if name in files:
            listed = parquet_files(folder / name)
            files[name].extend(listed.files)
            yield from listed.problems
            found = found or bool(listed.files)
            if not (listed.files or listed.problems or listed.complete):
                yield f"{folder / name} has no Parquet file. Write one, or remove the folder"
        elif name not in known and name[0] not in "._":
            kind = "folder" if (folder / name).is_dir() else "file"
            yield f"{folder / name}: a {kind} of this name is not read. {suggest(name, files)}"
    if not found:
        yield f"chunk set {folder} has no Parquet file of a source. Write {' or '.join(files)}, or remove the chunk set"


def _wrong_columns(difflog: DiffLogConfig, footers: Mapping[str, Footers]) -> Iterator[str]:
    """Yield columns that are missing, reserved, or spelled in another way than in the configuration."""
    entity = difflog.entity
    for source, one in footers.items():
        log = next((log for log in difflog.logs if log.name == source), None)
        required = [*entity.key, entity.fast_version]
        optional = _columns_of(difflog, log)
        for path, kinds in one.columns.items():
            yield from (f"{path} has no column {_named(name, kinds)}" for name in required if name not in kinds)
        place = f"no file of {source} (such as {next(iter(one.columns))})" if one.columns else source
        yield from (
            f"{place} has a column {_named(name, one.kinds)}"
            for name in optional
            if name not in one.kinds and name not in required
        )
        for name in one.kinds:
            if name == entity.deleted or name in required:
                continue
            if name.lower() in [word.lower() for word in RESERVED] or name.lower().startswith(JOIN_PREFIX):
                what = f"{one.first_with(name)}: column {name} has a reserved name of the version log"
                mark = name.lower() == DELETED.lower() and not entity.deleted
                yield f'{what}. Write deleted = "{DELETED}" in [entity], or remove it' if mark else f"{what}. Rename it"


def _named(name: str, kinds: Mapping[str, str]) -> str:
    alike = next((other for other in kinds if other.lower() == name.lower()), "")
    return f"{name}, only {alike}" if alike else name


def _columns_of(difflog: DiffLogConfig, log: SideLog | None) -> list[str]:
    """Return the columns that the configuration names for a source, besides the key and the fast version."""
    rules = log.columns if log else difflog.entity.kept
    names = [*rules, *(rule.by for rule in rules.values() if rule.by)]
    if log:
        names += [*log.id, *([log.order_by] if log.order_by else [])]
    else:
        names += [*difflog.entity.dropped, *([difflog.entity.deleted] if difflog.entity.deleted else [])]
    return list(dict.fromkeys(names))


def _wrong_types(difflog: DiffLogConfig, footers: Mapping[str, Footers], state: StructType | None) -> Iterator[str]:
    """Yield columns whose type cannot be used, or differs from the type in the state or in another source."""
    first, of_fast = _state_types(difflog, state)
    entity = difflog.entity
    for source, one in footers.items():
        log = next((log for log in difflog.logs if log.name == source), None)
        aside = {*(log.id if log else ()), log.order_by if log else ""} - {*difflog.rules}
        for name, kind in one.kinds.items():
            where = f"{one.first_with(name)}: column {name} has the type {kind}"
            wrong = _wrong_type(difflog, name, kind, is_value=name not in aside)
            if wrong:
                yield f"{where}, {wrong}"
            elif name in of_fast and not log and of_fast[name] != kind:
                yield f"{where}, but {of_fast[name]} in the state"
            elif name != entity.fast_version and name not in aside and name not in entity.dropped:
                other, place = first.setdefault(name, (kind, str(one.first_with(name))))
                # Narrower integers of a key are cast to the type of the state.
                if other != kind and not (name in entity.key and _fits(kind, other, place)):
                    yield f"{where}, but {other} in {place}"


def _fits(kind: str, other: str, place: str) -> bool:
    return fits(kind, other) or (place != _STATE and fits(other, kind))


def _state_types(difflog: DiffLogConfig, state: StructType | None) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Return the types of the columns in the state, and those of the values of the fast supplier in it."""
    fields = {field.name: field.dataType for field in state.fields} if state else {}
    fast = fields.pop(FAST, None)
    values = fast.fields if isinstance(fast, StructType) else []
    of_fast = {field.name: field.dataType.simpleString() for field in values}
    skip = {difflog.entity.deleted, DELETED}
    return {name: (kind.simpleString(), _STATE) for name, kind in fields.items() if name not in skip}, of_fast


def _wrong_type(difflog: DiffLogConfig, name: str, kind: str, *, is_value: bool) -> str:
    """Return why a column of this type cannot be used, or ''."""
    entity, plain = difflog.entity, kind.partition("(")[0]
    if name in entity.key:
        unfit = plain in ("float", "double", "variant") or "<" in kind
        return "which cannot be a key. Cast it to an integer or to text" if unfit else ""
    if name == entity.fast_version:
        return "but a version must be an integer. Cast it" if kind not in INTEGERS else ""
    if name == entity.deleted:
        return "but a mark of deleted rows must be a boolean. Cast it" if kind not in (*INTEGERS, "boolean") else ""
    if difflog.state.ttl_days and name == difflog.state.ttl_column and kind not in _TIMES:
        return "but ttl_column must be a date or a time. Cast it"
    if name in entity.dropped or not is_value:
        return ""
    if "map<" in kind or "variant" in kind:
        return "which cannot be merged. Cast it to an array of structs or to text, or name it in entity.dropped"
    return _wrong_for_rule(difflog.rules.get(name, Rule()), kind, plain)


def _wrong_for_rule(rule: Rule, kind: str, plain: str) -> str:
    if rule.name == "sum" and plain not in _NUMBERS:
        return 'but the rule "sum" needs a number'
    if rule.name == "append" and not kind.startswith(("array<", "string", "binary")):
        return 'but the rule "append" needs a list'
    return 'but the rule "union" needs a list' if rule.name == "union" and not kind.startswith("array<") else ""


def check_names(work: Path, names: Sequence[str], taken: set[str]) -> None:
    """Raise ConfigError for a chunk set that does not exist, or that a run has already processed.

    A name is compared as it is written: another spelling, like `./NAME`, would be processed again.
    """
    present = chunk_sets(work)
    for name in names:
        if name in taken:
            raise ConfigError(
                f"chunk set {name} was already processed by an earlier run", cure="name another chunk set"
            )
        if name not in present:
            raise ConfigError(
                f"{chunk_folder(work)} has no complete chunk set with the name {name}",
                cure="use the exact name of a folder there that does not start with a dot or end with .part",
            )


def check_no_strays(work: Path) -> None:
    """Raise CheckFailed for files beside the chunk sets, which no run reads."""
    if strays := _strays(work):
        raise CheckFailed(strays, cure=_CURE)


def _strays(work: Path) -> list[str]:
    return [f"{path} is in no chunk set. Move it to NAME/SOURCE/, or remove it" for path in stray_files(work)]
