"""A MySQL or MariaDB table as a node, read in one consistent snapshot of one session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache
from math import isfinite
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from trueup.config.model import Node
from trueup.config.secrets import mask, secrets_of
from trueup.config.transport import is_local_host
from trueup.errors import CheckFailed, ConfigError, NodeError, QueryError, TrueupError
from trueup.nodes.base import KeyBlocks, Moment, NodeColumn, NodeTable, Plan
from trueup.nodes.databases.sql import Dialect, SqlNode, text
from trueup.nodes.key_numbers import text_of_number
from trueup.rows.canonical import EPOCH_DAYS, decode_row, text_of
from trueup.rows.spec import ValueClass

_CLASSES: dict[str, ValueClass] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    "decimal": "decimal",
    "char": "char",
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"), "text"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "instant",
    "time": "time",
    "uuid": "uuid",
    "json": "json",
    **dict.fromkeys(("inet4", "inet6"), "text"),
}
# Results depend on none of the settings of the server.
_SETTINGS = (
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # A smaller limit cuts results without an error.
    "SET SESSION sql_select_limit = 18446744073709551615",
    # A session waits while other nodes are read, and while its rows are compared.
    "SET SESSION wait_timeout = 86400",
    "SET SESSION net_write_timeout = 3600",
)
# Character sets whose characters all have a place in Unicode: the others have vendor characters that become "?".
_LOSSLESS = ("utf8", "ucs2", "utf16", "utf32", "ascii", "latin1", "binary")
_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


def class_of(data_type: str, column_type: str) -> tuple[ValueClass | None, str]:
    """Return the class of the values of a type, or None and the reason."""
    if data_type == "bigint" and "unsigned" in column_type:
        # Larger than 64 bits with a sign: exact as a decimal.
        return "decimal", ""
    if data_type == "bit" and column_type == "bit(64)":
        return "decimal", ""
    kind = _CLASSES.get(data_type)
    return kind, "" if kind else f"values of the type {column_type} have no canonical form"


class MySqlDialect(Dialect):
    """Expressions of MySQL and MariaDB."""

    def name(self, text: str) -> str:
        return "`" + text.replace("`", "``") + "`"

    def constant(self, data: bytes) -> str:
        return f"X'{data.hex()}'"

    def concat(self, parts: Sequence[str]) -> str:
        return f"CONCAT({', '.join(parts)})"

    def length(self, data: str) -> str:
        return f"UNHEX(LPAD(HEX(LENGTH({data})), 8, '0'))"

    def value(self, source: str, native: ValueClass, target: ValueClass, type_name: str) -> str:
        if target == "bool":
            return f"IF({source} IS NULL, NULL, IF({source}, X'01', X'00'))"
        if target == "int":
            return self._int64(f"CAST({source} AS SIGNED)")
        if target == "decimal":
            return self._bytes(self._decimal(source, type_name))
        if target == "float":
            return self._float(source)
        if target == "date":
            return self._date(source)
        if target in ("timestamp", "instant"):
            return self._moment(source)
        if target == "time":
            return self._time(source)
        if target == "uuid":
            return f"UNHEX(REPLACE({source}, '-', ''))"
        if target == "char":
            return self._characters(f"TRIM(TRAILING ' ' FROM {source})", type_name)
        if target == "bytes":
            return source
        if native in ("text", "char", "json"):
            return self._characters(source, type_name)
        return self._bytes(self._printed(source, native, type_name))

    def _characters(self, source: str, type_name: str) -> str:
        """Return a text as UTF-8; one that has no exact form there as bytes that no text has."""
        encoding = type_name.rpartition(_ENCODED)[2] if _ENCODED in type_name else ""
        if not encoding:
            return self._bytes(source)
        same = f"CAST(CONVERT(CONVERT({source} USING utf8mb4) USING {encoding}) AS BINARY) = CAST({source} AS BINARY)"
        return f"IF({same}, {self._bytes(source)}, CONCAT(X'FF', CAST({source} AS BINARY)))"

    def _bytes(self, source: str) -> str:
        return f"CAST(CONVERT({source} USING utf8mb4) AS BINARY)"

    def _int64(self, number: str) -> str:
        return f"UNHEX(LPAD(HEX({number}), 16, '0'))"

    def _decimal(self, source: str, type_name: str) -> str:
        printed = f"CAST({source} + 0 AS CHAR)" if type_name.startswith("bit") else f"CAST({source} AS CHAR)"
        scale = re.match(r"decimal\(\d+,\s*(\d+)\)", type_name)
        if scale and int(scale[1]):
            printed = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {printed}))"
        return f"IF({source} = 0, '0', {printed})"

    def _date(self, source: str) -> str:
        # 0000-00-00 and 2024-00-00 are not NULL: their text has another length.
        days = f"UNHEX(RIGHT(LPAD(HEX(TO_DAYS({source}) - {_TO_DAYS}), 16, '0'), 8))"
        return f"COALESCE(IF({self._is_day(source)}, {days}, NULL), {self._bytes(f'CAST({source} AS CHAR)')})"

    def _is_day(self, source: str) -> str:
        # TO_DAYS is NULL for 0000-00-00, and accepts 2024-02-30, which FROM_DAYS never returns.
        return f"FROM_DAYS(TO_DAYS({source})) = DATE({source})"

    def _moment(self, source: str) -> str:
        known = f"IF({self._is_day(source)}, {self._int64(self._micros(source))}, NULL)"
        return f"COALESCE({known}, {self._bytes(f'CAST({source} AS CHAR)')})"

    def _micros(self, source: str) -> str:
        return f"TIMESTAMPDIFF(MICROSECOND, '2000-01-01 00:00:00', {source})"

    def _time(self, source: str) -> str:
        micros = self._int64(f"CAST(FLOOR(TIME_TO_SEC({source})) * 1000000 + MICROSECOND({source}) AS SIGNED)")
        known = f"IF({source} >= '00:00:00' AND {source} <= '24:00:00', {micros}, NULL)"
        return f"COALESCE({known}, {self._bytes(f'CAST({source} AS CHAR)')})"

    def number(self, source: str, kind: ValueClass, type_name: str) -> str:
        if kind == "decimal":
            return f"FLOOR({source} + 0)" if type_name.startswith("bit") else f"FLOOR({source})"
        if kind == "date":
            return f"IF({self._is_day(source)}, TO_DAYS({source}) - {_TO_DAYS}, NULL)"
        if kind in ("timestamp", "instant"):
            return f"IF({self._is_day(source)}, {self._micros(source)}, NULL)"
        if kind == "uuid":
            # By its digits: MariaDB orders values of the type in another way.
            digits = f"SUBSTRING(REPLACE(CAST({source} AS CHAR), '-', ''), 1, 16)"
            return f"(CAST(CONV({digits}, 16, 10) AS UNSIGNED) >> 1)"
        return source

    def within(self, key: str, kind: ValueClass, type_name: str, start: int | None, end: int | None) -> str:
        condition = super().within(key, kind, type_name, start, end)
        if kind not in ("decimal", "date", "timestamp") or type_name.startswith("bit") or start is None:
            return condition
        # The same once more, so that an index is used.
        tests = [condition]
        for sign, number in ((">=", start), ("<", end)):
            if number is not None and (literal := self._key_literal(kind, number)):
                tests.append(f"{key} {sign} {literal}")
        return f"({' AND '.join(tests)})"

    def _key_literal(self, kind: ValueClass, number: int) -> str:
        """Return the smallest value of a class with a number, if MySQL has it."""
        text = text_of_number(kind, number)
        if kind == "decimal":
            return text
        # Of four digits, because all others are years that MySQL does not have.
        return f"'{text}'" if re.match(r"\d{4}-", text) and not text.endswith("BC") else ""

    def _float(self, source: str) -> str:
        """Return the bits of a double, computed as in `frame_columns`; MySQL has no infinite numbers."""
        number = f"CAST({source} AS DOUBLE)"
        size = f"ABS({number})"
        guess = f"FLOOR(LOG2(IF({size} < {2.0**-1022!r}, 1, {size})))"
        scaled = f"({size} * POW(2, FLOOR((52 - {guess}) / 2)) * POW(2, (52 - {guess}) - FLOOR((52 - {guess}) / 2)))"
        exponent = f"({guess} + IF({scaled} >= 9007199254740992e0, 1, IF({scaled} < 4503599627370496e0, -1, 0)))"
        mantissa = (
            f"(CASE WHEN {scaled} >= 9007199254740992e0 THEN {scaled} / 2"
            f" WHEN {scaled} < 4503599627370496e0 THEN {scaled} * 2 ELSE {scaled} END)"
        )
        normal = f"((CAST({exponent} + 1023 AS UNSIGNED) << 52) + (CAST({mantissa} AS UNSIGNED) - 4503599627370496))"
        small = f"CAST({size} * POW(2, 537) * POW(2, 537) AS UNSIGNED)"
        bits = f"IF({size} < {2.0**-1022!r}, {small}, {normal})"
        sign = f"IF(CAST({number} AS CHAR) LIKE '-%', 9223372036854775808, 0)"
        return self._int64(f"({bits} | {sign})")

    def _printed(self, source: str, native: ValueClass, type_name: str) -> str:
        if type_name.startswith("bit"):
            return f"CAST({source} + 0 AS CHAR)"
        if type_name.startswith("float"):
            # Its own text has six digits.
            return f"CAST(CAST({source} AS DOUBLE) AS CHAR)"
        if native in ("timestamp", "instant"):
            printed = f"CAST({source} AS CHAR)"
            short = f"IF(LOCATE('.', {printed}), TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {printed})), {printed})"
            return f"CONCAT({short}, '+00')" if native == "instant" else short
        return f"CAST({source} AS CHAR)"

    def literal(self, kind: ValueClass, sample: Any) -> tuple[str, str]:
        type_name = _LITERALS[kind]
        if sample is None:
            return "NULL", type_name
        if isinstance(sample, bytes):
            return self.constant(sample), type_name
        if isinstance(sample, float):
            if not isfinite(sample) or str(sample) == "-0.0":
                # MySQL has no such numbers.
                raise KeyError(kind)
            return f"CAST({sample!r} AS DOUBLE)" if "e" in repr(sample) else f"CAST({sample!r}e0 AS DOUBLE)", type_name
        if isinstance(sample, datetime):
            if sample.year < 1000:
                raise KeyError(kind)
            return f"CAST('{sample:%Y-%m-%d %H:%M:%S.%f}' AS DATETIME(6))", type_name
        if isinstance(sample, date):
            return f"CAST('{sample.isoformat()}' AS DATE)", type_name
        if isinstance(sample, time):
            return f"CAST('{sample.isoformat()}' AS TIME(6))", type_name
        if isinstance(sample, Decimal):
            return f"CAST('{sample:f}' AS DECIMAL(38,10))", type_name
        if isinstance(sample, bool | int):
            return str(int(sample)), type_name
        return f"CONVERT({self.constant(sample.encode())} USING utf8mb4)", type_name

    def md5(self, data: str) -> str:
        return f"MD5({data})"

    def half(self, digest: str, number: int) -> str:
        return f"CAST(CONV(SUBSTRING({digest}, {1 + 16 * number}, 16), 16, 10) AS UNSIGNED)"

    def divided(self, number: str, by: int) -> str:
        return f"({number} DIV {by})"


# In the name of a type, before a character set that is not lossless.
_ENCODED = " character set "
# TO_DAYS('2000-01-01').
_TO_DAYS = 719_528 + EPOCH_DAYS
_LITERALS: dict[ValueClass, str] = {
    **{"bool": "tinyint(1)", "int": "bigint(20)", "decimal": "decimal(38,10)", "float": "double", "text": "text"},
    **{"char": "char(10)", "bytes": "blob", "date": "date", "timestamp": "datetime(6)", "instant": "timestamp(6)"},
    **{"time": "time(6)", "uuid": "uuid", "json": "longtext"},
}


# Methods in which the server gets the answer to a challenge, or asks for more, but not the password.
_CHALLENGES = (b"mysql_native_password", b"client_ed25519", b"caching_sha2_password")
# Options of an address that name files for TLS.
_TLS_FILES = ("ssl_ca", "ssl_cert", "ssl_key")


@dataclass(frozen=True)
class Address:
    """A server and a database, from `mysql://user:password@host:port/db?ssl_ca=FILE`."""

    host: str
    port: int
    user: str
    password: str
    database: str
    socket: str
    options: dict[str, str]

    @classmethod
    def parse(cls, address: str, node: str) -> Address:
        """Return the parts of an address; raise ConfigError if it is not valid."""
        try:
            url = urlsplit(address)
            port = url.port or 3306
        except ValueError:
            raise _wrong_address(node) from None
        options = dict(parse_qsl(url.query))
        socket = options.pop("unix_socket", "")
        needed = {"ssl_key": "ssl_cert", "ssl_verify_identity": "ssl_ca"}
        is_known = set(options) <= {*_TLS_FILES, *needed, "insecure"}
        is_known &= all(options.get(name, "true") in ("true", "false") for name in ("ssl_verify_identity", "insecure"))
        is_complete = all(other in options for name, other in needed.items() if name in options)
        if not (url.path.strip("/") and is_known and is_complete):
            raise _wrong_address(node)
        user, password = unquote(url.username or ""), unquote(url.password or "")
        return cls(url.hostname or "localhost", port, user, password, unquote(url.path.strip("/")), socket, options)

    @property
    def is_proven(self) -> bool:
        """Whether no other program can pass for the server, or the address accepts that."""
        return bool(self.socket) or "ssl_ca" in self.options or self.options.get("insecure") == "true"

    @property
    def tls(self) -> dict[str, Any]:
        """The arguments of a connection for TLS, which is required if there are any."""
        arguments: dict[str, Any] = {name: self.options[name] for name in _TLS_FILES if name in self.options}
        if "ssl_ca" in arguments:
            # PyMySQL does not verify a certificate, also with a file of authorities, unless this is set.
            is_named = self.options.get("ssl_verify_identity", "true") == "true"
            arguments |= {"ssl_verify_cert": True, "ssl_verify_identity": is_named}
        return arguments


def _wrong_address(node: str) -> ConfigError:
    cure = (
        "write mysql://user:password@host:3306/database; after ? unix_socket=PATH, ssl_ca=FILE (with it"
        " ssl_verify_identity=false), ssl_cert=FILE (with it ssl_key=FILE), insecure=true"
    )
    return ConfigError("the address is not valid", cure=cure, node=node)


class MySqlNode(SqlNode):
    """A table of MySQL or MariaDB."""

    kind = "mysql"
    dialect = MySqlDialect()

    def __init__(self, node: Node, table: str, filter: str) -> None:
        super().__init__(node.name, filter)
        self._node = node
        self._address = Address.parse(node.conninfo, node.name)
        schema, _, name = table.rpartition(".")
        # The schema of a PostgreSQL table is not a database here.
        self._database = schema if schema and schema != "public" else self._address.database
        self._table = name
        self._snapshot: Any = None
        self._fresh: Any = None

    @property
    def source(self) -> str:
        """The table."""
        return f"{self.dialect.name(self._database)}.{self.dialect.name(self._table)}"

    def describe(self) -> NodeTable:
        """Return columns and keys."""
        place = f"TABLE_SCHEMA = {self._text(self._database)} AND TABLE_NAME = {self._text(self._table)}"
        described = []
        for name, data_type, column_type, encoding in self.query(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(CHARACTER_SET_NAME, '')"
            f" FROM information_schema.COLUMNS WHERE {place} ORDER BY ORDINAL_POSITION"
        ):
            kind, why = class_of(text(data_type), text(column_type))
            is_lossless = not encoding or text(encoding).startswith(_LOSSLESS)
            shown = text(column_type) if is_lossless else f"{text(column_type)}{_ENCODED}{text(encoding)}"
            described.append(NodeColumn(text(name), shown, kind, why))
        if not described:
            reason = f"node {self.name}: there is no table {self._table} in the database {self._database}"
            raise CheckFailed([reason], cure="name a table that exists on all nodes")
        keys: dict[str, list[str]] = {}
        # With a column that may be NULL, or only a prefix or an expression of it: not unique, or not by its columns.
        unfit = set()
        for index, column, is_nullable, is_whole in self.query(
            "SELECT INDEX_NAME, COALESCE(COLUMN_NAME, ''), NULLABLE, COLUMN_NAME IS NOT NULL AND SUB_PART IS NULL"
            f" FROM information_schema.STATISTICS WHERE {place} AND NON_UNIQUE = 0"
            " ORDER BY INDEX_NAME = 'PRIMARY' DESC, INDEX_NAME, SEQ_IN_INDEX"
        ):
            keys.setdefault(text(index), []).append(text(column))
            unfit |= {text(index)} if text(is_nullable) == "YES" or not int(is_whole) else set()
        rows = next(self.query(f"SELECT TABLE_ROWS FROM information_schema.TABLES WHERE {place}"))[0]
        unique = tuple(tuple(columns) for index, columns in keys.items() if index not in unfit)
        return NodeTable(
            f"{self._database}.{self._table}", tuple(described), unique, None if rows is None else int(rows)
        )

    def begin(self) -> Moment:
        """Start a consistent read; its position in the binary log is known if the server writes one."""
        self._snapshot = self._connect()
        self._run(self._snapshot, _BEGIN)
        facts: dict[str, object] = {"server_version": text(next(self.query("SELECT version()"))[0])}
        for name, value in self.query("SHOW STATUS LIKE 'binlog_snapshot_%'"):
            facts[text(name).lower()] = text(value)
        engine = text(
            next(
                self.query(
                    "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = "
                    f"{self._text(self._database)} AND TABLE_NAME = {self._text(self._table)}"
                )
            )[0]
        )
        # Other engines have no snapshots.
        return Moment(self.name, self.kind, held=engine.lower() in ("innodb", "rocksdb"), facts=facts)

    def key_blocks(self, plan: Plan, unit: int) -> KeyBlocks | None:
        """Return None: blocks are by hash, or by the key of another node."""
        return None

    def query(self, sql: str, *, fresh: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query: in the consistent read after `begin`, else as they are now."""
        if fresh or self._snapshot is None:
            self._fresh = self._fresh or self._connect()
        connection = self._fresh if fresh or self._snapshot is None else self._snapshot
        cursor = self._cursor(connection)
        try:
            try:
                cursor.execute(sql)
                while rows := cursor.fetchmany(1000):
                    yield from rows
            except Exception as error:
                raise self._error(error) from None
        finally:
            with suppress(Exception):
                cursor.close()

    def narrowed(self, plan: Plan, keys: Sequence[bytes]) -> str:
        """Return the values of an integer that is the first key column: an index has these, and no encoded keys."""
        name, kind, type_name = self._first_key(plan)
        if not plan.key or "int" not in type_name or kind not in ("int", "decimal"):
            return ""
        values = [text_of(kind, decode_row(key)[0] or b"") for key in keys]
        # This column has no other numbers.
        numbers = [value for value in values if re.fullmatch(r"-?\d+", value)]
        return f" AND {name} IN ({', '.join(numbers)})" if numbers else ""

    def changed(self) -> str:
        """Return that the consistent read was lost, if its session was."""
        try:
            if self._snapshot is not None:
                self._snapshot.ping(reconnect=False)
        except Exception:
            return "the connection that holds the snapshot was lost"
        return ""

    def end(self) -> None:
        """End the consistent read."""
        if self._snapshot is not None:
            with suppress(Exception):
                self._snapshot.close()
            self._snapshot = None

    def stop(self) -> None:
        """Close the sessions: their statements end."""
        self.close()

    def close(self) -> None:
        """Close the sessions."""
        for connection in (self._snapshot, self._fresh):
            if connection is not None:
                with suppress(Exception):
                    connection.close()

    def _connect(self) -> Any:
        address = self._address
        place: dict[str, Any] = {"unix_socket": address.socket} if address.socket else {"host": address.host}
        try:
            connection = _connection_class()(
                is_proven=address.is_proven,
                is_near=bool(address.socket) or is_local_host(address.host),
                node=self.name,
                **place,
                **address.tls,
                port=address.port,
                user=address.user or None,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                connect_timeout=10,
                autocommit=True,
                # Numbers and times as they are sent: nothing is lost in a conversion.
                conv={},
            )
            for setting in _SETTINGS:
                self._run(connection, setting)
        except TrueupError:
            raise
        except OSError as error:
            # PyMySQL has errors of its own for the network.
            cure = "check ssl_ca, ssl_cert and ssl_key in the address"
            raise ConfigError(f"the files for TLS cannot be used: {error}", cure=cure, node=self.name) from None
        except Exception as error:
            raise self._error(error, lost=True) from None
        return connection

    def _run(self, connection: Any, statement: str) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        except Exception as error:
            raise self._error(error) from None

    def _cursor(self, connection: Any) -> Any:
        from pymysql.cursors import SSCursor

        # Unbuffered: the rows of a result need not fit into memory.
        return connection.cursor(SSCursor)

    def _error(self, error: Exception, *, lost: bool = False) -> TrueupError:
        if isinstance(error, TrueupError):
            return error
        code, *rest = error.args if error.args else (0,)
        reason = mask(str(rest[0] if rest else code or type(error).__name__), *secrets_of(self._node))
        if lost or code in (2003, 2006, 2013, 1045, 1049):
            cure = f"check that the server is running and reachable, and the user: {self._node.describe()}"
            return NodeError(f"{reason} ({code})", cure=cure, node=self.name)
        return QueryError(f"{reason} ({code})", node=self.name)

    def _text(self, value: str) -> str:
        return "'" + value.replace("'", "''") + "'"


@cache
def _connection_class() -> Any:
    """Return the class of connections of PyMySQL, whose objects share the settings of TLS if the address has none.

    PyMySQL would read the certificates of the system for each connection, and not use them: that takes 20 ms. It would
    also send the password to every server that asks for it: here only to one that is proven, or that does not get it
    (the answer to a challenge). A server of this machine may encrypt it with its public key.
    """
    try:
        from pymysql.connections import Connection
    except ImportError:
        raise ConfigError("a node of MySQL needs the library PyMySQL", cure="run pip install 'trueup[mysql]'") from None
    shared: list[Any] = []

    class Sharing(Connection):  # type: ignore[misc]
        def __init__(self, *, is_proven: bool, is_near: bool, node: str, **settings: Any) -> None:
            self._is_proven, self._is_near, self._node = is_proven, is_near, node
            self._public_key: Any = None
            self._has_tls = False
            super().__init__(**settings)

        # PyMySQL sends the password as it is if this is true.
        @property
        def _secure(self) -> bool:
            return self._has_tls and self._is_proven

        @_secure.setter
        def _secure(self, value: bool) -> None:
            self._has_tls = value

        # Else it encrypts it with what the server sends.
        @property
        def server_public_key(self) -> Any:
            self._check(is_allowed=self._is_near)
            return self._public_key

        @server_public_key.setter
        def server_public_key(self, value: Any) -> None:
            self._public_key = value

        def _request_authentication(self) -> None:
            # With TLS, it would not wait for a question.
            self._check(is_allowed=self._auth_plugin_name != "sha256_password" or self._is_near)
            super()._request_authentication()

        def _process_auth(self, plugin_name: bytes, *more: Any) -> Any:
            self._check(is_allowed=plugin_name in _CHALLENGES or (self._is_near and plugin_name == b"sha256_password"))
            return super()._process_auth(plugin_name, *more)

        def _check(self, *, is_allowed: bool) -> None:
            if self.password and not self._is_proven and not is_allowed:
                raise ConfigError(
                    "the server asks for the password, and nothing proves which server it is",
                    cure="add ssl_ca=FILE or unix_socket=PATH to the address; or accept it with insecure=true",
                    node=self._node,
                )

        def _create_ssl_ctx(self, settings: Any) -> Any:
            if settings:
                return super()._create_ssl_ctx(settings)
            if not shared:
                shared.append(super()._create_ssl_ctx(settings))
            return shared[0]

    return Sharing
