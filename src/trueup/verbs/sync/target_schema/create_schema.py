"""The target's schema, made with pg_dump and pg_restore: tables before the copy, indexes and constraints after it.

Roles, tables, types, views, functions, owners and privileges are created in one transaction, which also records that
they exist: after a kill there is all of it, or nothing. Indexes and constraints are built in parallel by pg_restore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg
from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.foreign_keys import TableName
from trueup.db.node import ALLOW_VIEWS, error_from_server
from trueup.db.statements import load
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.sync import members, state
from trueup.verbs.sync.link import open_session
from trueup.verbs.sync.members import Numbered
from trueup.verbs.sync.model import FUNCTIONS_SCHEMA, LOG_SCHEMA, STATE_SCHEMA, Problem
from trueup.verbs.sync.plan import created_tables, not_created
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.state import State
from trueup.verbs.sync.target_schema.create_roles import create_roles
from trueup.verbs.sync.target_schema.created import record_created
from trueup.verbs.sync.target_schema.database_settings import copy_database
from trueup.verbs.sync.target_schema.dump import POST, PRE, Dump, DumpAhead, dumped
from trueup.verbs.sync.target_schema.not_copied import objects
from trueup.verbs.sync.target_schema.plan_schema import is_superuser
from trueup.verbs.sync.target_schema.programs import run_program
from trueup.verbs.sync.target_schema.roles import Roles, check_roles, read_roles, statement_rows

# How often the schema is dumped because a table was changed meanwhile.
_ATTEMPTS = 3
# Lines of `pg_restore --list`: number; catalog, oid, kind.
_SCHEMA = re.compile(r"^\d+; 2615 \d+ SCHEMA ")
_PRIVILEGES = re.compile(r"^\d+; \d+ \d+ ACL ")
_TRIGGER = re.compile(r"^\d+; 2620 (\d+) TRIGGER ")
_REFERENCE = re.compile(r"^\d+; 2606 (\d+) FK CONSTRAINT ")
_EVENT_TRIGGER = re.compile(r"^\d+; (?:3466 \d+ EVENT TRIGGER|0 0 (?:COMMENT|ACL) - EVENT TRIGGER) ")
_INDEX = re.compile(r"^\d+; 1259 (\d+) INDEX ")
_ATTACH = re.compile(r"^\d+; \d+ \d+ INDEX ATTACH ")
_LAST = re.compile(
    r"^\d+; \d+ \d+ (?:FK CONSTRAINT|TRIGGER|POLICY|ROW SECURITY|EVENT TRIGGER|DEFAULT ACL|COMMENT|ACL|SECURITY LABEL) "
)
_OBJECT = re.compile(r"^\d+; (\d+) (\d+) ")
# The comment of an extension is part of the extension; only its owner may set it.
_EXTENSION_COMMENT = re.compile(r"^\d+; 0 0 COMMENT - EXTENSION ")
# A piece of a script without bodies of functions: white space, a comment, a statement.
_TOKEN = re.compile(r"""\s+|--[^\n]*|(?:[^;"'\-]|-(?!-)|"[^"]*"|'[^']*')+;""")
_HEADING = re.compile(r"^--\n-- Name: (.*); Type: (.*?); Schema: (.*?); Owner: .*\n--\n", re.MULTILINE)


def make_tables(request: SyncRequest, source: Connection, stored: State, epoch: int, progress: Progress) -> None:
    """Create roles, tables, types, sequences, views and functions of the target, with owners and privileges.

    The tables are recorded as those of the sync: what is changed on the source from now on is recognized.
    """
    progress.say("creating the tables of the target")
    with (
        open_session(request.target, request.name) as target,
        _dumped_with_tables(request, source, target, stored) as (dump, tables),
    ):
        with suppress(psycopg.Error):
            target.execute(ALLOW_VIEWS)

        def create_all(*, singly: bool) -> None:
            with state.writing(target, request.name, epoch):
                roles = _checked_roles(request, source, target, stored)
                if roles.is_superuser:
                    _log_nothing(target)
                create_roles(source, target, roles, progress)
                options = _options(source, target, no_owner=stored.no_owner)
                _create(dump, source, target, roles, options, singly=singly)
                record_created(source, target, request.name, roles.missing, _objects(dump.entries(POST)))
                names = members.record_created(target, request.name, tables)
                state.set_tables(target, request.name, names, stored.left_out)
                state.set_phase(target, request.name, epoch, "copying")

        try:
            try:
                create_all(singly=False)
            except CreationFailed:
                # Object by object, to find out which one fails.
                create_all(singly=True)
        except CreationFailed as error:
            raise TrueupError(
                str(error),
                cure="nothing was created: fix the cause on either node, and run trueup sync start again",
                node=request.target.name,
            ) from None
        except psycopg.Error as error:
            raise error_from_server(error, request.target) from None


@contextmanager
def _dumped_with_tables(
    request: SyncRequest, source: Connection, target: Connection, stored: State
) -> Iterator[tuple[Dump, list[Numbered]]]:
    """Dump the schema of the source; return the dump, and the tables in it with the numbers of their columns.

    A table that was changed meanwhile may be in the dump as it was before or after that: the dump is repeated, and if
    that does not help, the table is left to `trueup sync add`.
    """
    scope = Scope(request.name, stored.named, stored.left_out)
    for attempt in range(1, _ATTEMPTS + 1):
        before, left_out = created_tables(source, scope), not_created(source, scope)
        tables = members.numbered(source, before)
        with dumped(request, source, target, left_out) as dump:
            after = members.numbered(source, created_tables(source, scope))
            if tables == after or attempt == _ATTEMPTS:
                yield dump, [table for table in tables if table in after]
                return


def _checked_roles(request: SyncRequest, source: Connection, target: Connection, stored: State) -> Roles:
    """Return the roles of both servers; raise if they changed since the plan, so that owners cannot be set."""
    problems: list[Problem] = []
    scope = replace(request.scope, tables=stored.named, no_owner=stored.no_owner)
    check_roles(source, target, scope, problems, [])
    if problems:
        cures = dict.fromkeys(problem.cure for problem in problems)
        raise CheckFailed([str(problem) for problem in problems], cure="; ".join(cures))
    return read_roles(source, target, scope)


def _log_nothing(target: Connection) -> None:
    """Keep passwords of roles and user mappings out of the log of the server until the end of the transaction."""
    target.execute(
        "SET LOCAL log_statement = 'none'; SET LOCAL log_min_duration_statement = -1;"
        " SET LOCAL log_min_duration_sample = -1; SET LOCAL log_transaction_sample_rate = 0;"
        " SET LOCAL log_min_error_statement = 'panic'; SET LOCAL pg_stat_statements.track = 'none'"
    )


def _create(
    dump: Dump, source: Connection, target: Connection, roles: Roles, options: list[str], *, singly: bool
) -> None:
    """Create the objects of the first section: schemas, then all else, then privileges."""
    entries = [line for line in dump.entries(PRE) if not _EXTENSION_COMMENT.match(line)]
    schemas = [line for line in entries if _SCHEMA.match(line)]
    privileges = [line for line in entries if _PRIVILEGES.match(line)]
    others = [line for line in entries if not _SCHEMA.match(line) and not _PRIVILEGES.match(line)]
    _run(dump, target, schemas, options, singly=singly)
    lent = [] if roles.is_superuser or "--no-owner" in options else _lend(source, target)
    _run(dump, target, others, options, singly=singly)
    for schema, owner in lent:
        target.execute(sql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, owner))
    for (statement,) in target.execute(
        load("trueup.verbs.sync.target_schema", "create_schema.sql")["default_privileges"]
    ).fetchall():
        target.execute(statement)
    _run(dump, target, privileges, options, singly=singly)


def _lend(source: Connection, target: Connection) -> list[tuple[sql.Identifier, sql.Identifier]]:
    """Let owners create objects in their schemas until these exist: privileges are restored after the objects."""
    lent = []
    for row in statement_rows(source, "schemas_of"):
        schema, owner = row["schema"], row["owner"]
        cursor = target.execute(
            "SELECT n.oid IS NOT NULL AND NOT has_schema_privilege(%(owner)s, n.oid, 'CREATE') AND r.oid IS NOT NULL"
            " FROM pg_namespace n, pg_roles r WHERE n.nspname = %(schema)s AND r.rolname = %(owner)s",
            {"schema": schema, "owner": owner},
        )
        if (row_there := cursor.fetchone()) and row_there[0]:
            names = sql.Identifier(schema), sql.Identifier(owner)
            target.execute(sql.SQL("GRANT CREATE ON SCHEMA {} TO {}").format(*names))
            lent.append(names)
    return lent


def _run(dump: Dump, target: Connection, entries: list[str], options: list[str], *, singly: bool) -> None:
    """Create objects in one round trip, or `singly`: then an error names the object.

    It does not name the statement, which may contain a password. There is no savepoint: what was created is found by
    its transaction.
    """
    script = dump.script(entries, options)
    for piece in _pieces(script, len(entries) if singly else -1):
        try:
            target.execute(piece.encode())
        except psycopg.Error as error:
            raise CreationFailed(f"{_object_of(piece)}{error.diag.message_primary or error}") from None


class CreationFailed(Exception):
    """An object could not be created."""


def _pieces(script: str, count: int) -> list[str]:
    """Split a script into the statements per object; one piece, if the text of an object looks like a heading."""
    starts = [match.start() for match in _HEADING.finditer(script)]
    if not script.strip():
        return []
    if len(starts) != count:
        return [script]
    return [script[start:end] for start, end in zip([0, *starts], [*starts, len(script)], strict=True)]


def _object_of(piece: str) -> str:
    match = _HEADING.match(piece)
    return f"{match[2].lower()} {match[3] + '.' if match[3] != '-' else ''}{match[1]}: " if match else ""


def build_rest(
    request: SyncRequest, source: Connection, target: Connection, stored: State, left_out: tuple[TableName, ...],
    progress: Progress, *, slots: int, ahead: DumpAhead | None = None,
) -> None:  # fmt: skip
    """Create the indexes, constraints, triggers and policies of the target; set what belongs to the database itself."""
    progress.say("building indexes, constraints, triggers and policies of the target")
    title = _title(stored)
    end_sessions(target, stored)
    with dumped(request, source, target, left_out, ahead) as dump:
        ours = _our_triggers(source)
        references = _references(source, left_out)
        superuser = is_superuser(target)
        entries = [
            line
            for line in dump.entries(POST)
            if not ((match := _TRIGGER.match(line)) and int(match[1]) in ours)
            and (superuser or not _EVENT_TRIGGER.match(line))
            and not ((match := _REFERENCE.match(line)) and int(match[1]) in references)
        ]
        options = _options(source, target, no_owner=stored.no_owner)
        if stored.phase == "building":
            # What a killed attempt has created is dropped and created again.
            drops = _drops(dump.script(entries, [*options, "--clean", "--if-exists"]))
            _drop_rest(request, drops + _drop_indexes(source, entries), title)
        restore = [str(dump.programs / "pg_restore"), "--exit-on-error", f"--section={POST}", *options]
        for listed, jobs in _steps(entries, slots):
            run_program(
                [*restore, dump.use(listed, POST), f"--jobs={jobs}", str(dump.file)],
                request.target,
                version=target.info.server_version,
                application=title,
            )
    with target.transaction():
        copy_database(source, target, progress.say, no_owner=stored.no_owner)


def _steps(entries: Sequence[str], slots: int) -> list[tuple[list[str], int]]:
    """Return what pg_restore creates together, and the number of its sessions.

    A session that attaches the index of a partition locks two tables, and so does one that adds a foreign key:
    pg_restore does not know that, and they could wait for each other.
    """
    attached = [line for line in entries if _ATTACH.match(line)]
    last = [line for line in entries if _LAST.match(line)]
    first = [line for line in entries if not _ATTACH.match(line) and not _LAST.match(line)]
    return [(listed, jobs) for listed, jobs in ((first, slots), (attached, 1), (last, slots)) if listed]


def _drop_indexes(source: Connection, entries: Iterable[str]) -> list[str]:
    """Return statements that drop indexes: pg_restore --clean does not, if they belong to that of a parent."""
    oids = [int(match[1]) for line in entries if (match := _INDEX.match(line))]
    query = (
        "SELECT format('DROP INDEX IF EXISTS %%I.%%I', n.nspname, c.relname) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[]) ORDER BY c.oid"
    )
    return [str(statement) for (statement,) in source.execute(query, [oids]).fetchall()]


def _drop_rest(request: SyncRequest, drops: Sequence[str], title: str) -> None:
    """Run statements that drop objects, in whichever order they can be dropped.

    pg_restore drops the constraint of a partition before that of the parent. If it is attached, it can only be dropped
    with the parent's.
    """
    left = list(drops)
    with open_session(request.target, request.name) as target:
        # The next attempt ends this session, if it outlives its process.
        target.execute("SELECT set_config('application_name', %s, false)", [title])
        target.execute("SET lock_timeout = 0")
        while left:
            failed: list[str] = []
            for statement in left:
                try:
                    target.execute(statement.encode())
                except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.InvalidTableDefinition) as error:
                    failed.append(statement)
                    reason = error
                except psycopg.Error as error:
                    raise error_from_server(error, request.target) from None
            if len(failed) == len(left):
                raise error_from_server(reason, request.target) from None
            left = failed


def _drops(script: str) -> list[str]:
    """Return the statements of a script that drop objects: all before the heading of the first object."""
    statements = []
    position = 0
    while position < len(script):
        match = _TOKEN.match(script, position)
        if match is None:
            raise TrueupError("a script of pg_restore cannot be read", cure="trueup sync drop, then trueup sync start")
        if match[0].startswith("-- Name: "):
            break
        if match[0].startswith(("ALTER ", "DROP ", "CREATE ")):
            statements.append(match[0])
        position = match.end()
    return statements


def _objects(entries: Iterable[str]) -> list[tuple[int, int]]:
    """Return the catalog and the oid of each object of a list."""
    return [(int(match[1]), int(match[2])) for line in entries if (match := _OBJECT.match(line)) and match[1] != "0"]


def _references(source: Connection, left_out: Sequence[TableName]) -> set[int]:
    """Return the foreign keys that refer to tables which are not created, or are set aside."""
    names = [sql.Identifier(*name).as_string(source) for name in left_out]
    query = (
        "SELECT k.oid::bigint FROM unnest(%s::text[]) n(name) JOIN pg_constraint k ON k.confrelid = to_regclass(n.name)"
        " WHERE k.contype = 'f'"
    )
    return {oid for (oid,) in source.execute(query, [names]).fetchall()}


def end_sessions(target: Connection, stored: State) -> None:
    """End the sessions of a pg_restore whose process was killed, and wait until they have ended."""
    query = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s"
        " AND usename = session_user AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    target.execute(query, [_title(stored)])


def _title(stored: State) -> str:
    """Return the `application_name` of pg_restore, which is different for each sync."""
    return f"trueup restore {stored.id}"


def _options(source: Connection, target: Connection, *, no_owner: bool) -> list[str]:
    """Return the options of pg_restore for owners and tablespaces."""
    spaces = {row["name"] for row in objects(source) if row["kind"] == "tablespace"}
    known = {str(row[0]) for row in target.execute("SELECT spcname FROM pg_tablespace").fetchall()}
    return [*(["--no-owner"] if no_owner else []), *([] if spaces <= known else ["--no-tablespaces"])]


def _our_triggers(source: Connection) -> set[int]:
    """Return the triggers of trueup on the source's tables: they are not restored."""
    rows = source.execute(
        "SELECT t.oid::bigint FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = ANY (%s)"
        " OR obj_description(n.oid, 'pg_namespace') = 'Tubes of trueup.'",
        [[STATE_SCHEMA, LOG_SCHEMA, FUNCTIONS_SCHEMA]],
    )
    return {int(row[0]) for row in rows.fetchall()}
