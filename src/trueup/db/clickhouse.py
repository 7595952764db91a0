"""The two ClickHouse backends: a server over HTTP (`clickhouse-connect`), and the embedded `chdb`.

Names and texts are quoted for both by the functions of this module. Only one process can open the folder of an embedded
ClickHouse at a time, and a process can open one folder at a time.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from trueup.config.secrets import find_secrets, mask
from trueup.config.transport import check_transport
from trueup.errors import ConfigError, NodeError, QueryError

_HUGE = 1_000_000_000
# One INSERT writes one block and so one part: completely or not at all. With the other settings, a value that does not
# fit is an error.
INSERT_SETTINGS: Mapping[str, int | str] = {
    # The answer comes after the rows are in the table, also if the server does not allow to change `async_insert`.
    "async_insert": 0,
    "wait_for_async_insert": 1,
    "max_threads": 1,
    "max_insert_threads": 1,
    "max_insert_block_size": _HUGE,
    "min_insert_block_size_rows": _HUGE,
    "min_insert_block_size_bytes": _HUGE * 1000,
    "insert_null_as_default": 0,
    "input_format_null_as_default": 0,
    "date_time_overflow_behavior": "throw",
}
# Text that is not UTF-8 is returned as bytes. In JSON, numbers are numbers, and infinite ones are not NULL. No setting
# of a profile cuts a result in silence.
_ANSWER_SETTINGS: Mapping[str, int | str] = {
    "limit": 0,
    "offset": 0,
    **dict.fromkeys(
        (f"{what}_overflow_mode" for what in ("read", "result", "timeout", "group_by", "set", "distinct")), "throw"
    ),
    "output_format_arrow_string_as_string": 0,
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_decimals": 0,
    "output_format_json_quote_denormals": 1,
}
_SCHEMES = {"clickhouse": "http", "http": "http", "clickhouses": "https", "https": "https"}
_URL_OPTIONS = ("secure", "verify", "ca_cert", "client_cert", "client_cert_key")


_ESCAPED = str.maketrans(
    {"\\": "\\\\", "`": "\\`", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f", "\0": "\\0"}
)


def identifier(name: str) -> str:
    """Return a quoted name, as ClickHouse writes it."""
    return "`" + name.translate(_ESCAPED) + "`"


def literal(value: str | bytes) -> str:
    """Return a quoted text; bytes need not be UTF-8."""
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def names(columns: Sequence[str]) -> str:
    """Return a list of quoted column names."""
    return ", ".join(identifier(name) for name in columns)


class Backend(Protocol):
    """The operations that a server and the embedded ClickHouse implement."""

    def arrow(self, sql: str) -> Any: ...
    def execute(self, sql: str) -> None: ...
    def insert(self, table: str, columns: Sequence[str], path: Path, query_id: str) -> None: ...
    def export(self, sql: str, path: Path) -> None: ...
    def close(self) -> None: ...


class Embedded:
    """chdb: ClickHouse in this process, with one folder at a time."""

    def __init__(self, folder: Path) -> None:
        _need("chdb", "chdb")
        from chdb.session import Session

        if "?" in str(folder):
            raise ConfigError(
                f"the folder {folder} of the embedded ClickHouse contains a ?", cure="name a folder without it"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened: Any = Session
            self._session = opened(str(folder))
        except (RuntimeError, OSError) as error:
            raise NodeError(
                f"the embedded ClickHouse in {folder} cannot be opened: {_first_line(error)}",
                cure="end the process that has the folder open; a process can open only one folder",
            ) from None
        self.execute(f"SET {_assigned(_ANSWER_SETTINGS)}")

    def arrow(self, sql: str) -> Any:
        return self._query(sql, "ArrowTable")

    def execute(self, sql: str) -> None:
        self._query(sql, "TSV")

    def insert(self, table: str, columns: Sequence[str], path: Path, query_id: str) -> None:
        listed = names(columns)
        # By its descriptor, because ClickHouse treats * ? {a,b} in a path as patterns.
        with path.open("rb") as file:
            source = f"file('/dev/fd/{file.fileno()}', Parquet)"
            self.execute(
                f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {source} SETTINGS {_assigned(INSERT_SETTINGS)}"
            )

    def export(self, sql: str, path: Path) -> None:
        self.execute(f"{sql} INTO OUTFILE {literal(str(path))} FORMAT Parquet")

    def close(self) -> None:
        self._session.close()

    def _query(self, sql: str, form: str) -> Any:
        try:
            return self._session.query(sql, form)
        except (RuntimeError, UnicodeDecodeError) as error:
            # The text of an error may contain bytes of values.
            raise QueryError(
                f"ClickHouse returned an error: {_first_line(error)}", cure="fix the cause that ClickHouse reports"
            ) from None


class Server:
    """A ClickHouse server over HTTP."""

    def __init__(self, url: str, parts: SplitResult, *, insecure: bool = False) -> None:
        _need("clickhouse_connect", "'trueup[clickhouse]'")
        import clickhouse_connect

        options: dict[str, Any] = {name: _flag(value) for name, value in parse_qsl(parts.query)}
        user, password = unquote(parts.username or "default"), unquote(parts.password or "")
        if password and _SCHEMES[parts.scheme] == "http" and options.get("secure") is not True:
            hosts = [parts.hostname or "localhost"]
            check_transport("ClickHouse", hosts, encrypted="clickhouses:// or https://", insecure=insecure)
        # As written in the URL, decoded, and as sent in a header that a proxy may quote.
        self._secrets = (*find_secrets(url), password, b64encode(f"{user}:{password}".encode()).decode())
        self._place = f"{parts.hostname}:{parts.port or ''}"
        try:
            # No session: after a killed process, its session would block the next one.
            self._client = clickhouse_connect.get_client(
                host=parts.hostname or "localhost",
                port=parts.port,
                username=user,
                password=password,
                interface=_SCHEMES[parts.scheme],
                autogenerate_session_id=False,
                send_receive_timeout=3600,
                show_clickhouse_errors=True,
                **options,
            )
        except Exception as error:
            raise NodeError(
                f"the ClickHouse server {self._place} cannot be reached: {self._masked(error)}",
                cure="check host, port (of the HTTP interface), user and password in the URL of the target",
            ) from None

    def arrow(self, sql: str) -> Any:
        return self._call(lambda: self._client.query_arrow(sql, settings=dict(_ANSWER_SETTINGS), use_strings=False))

    def execute(self, sql: str) -> None:
        self._call(lambda: self._client.command(sql))

    def insert(self, table: str, columns: Sequence[str], path: Path, query_id: str) -> None:
        # An open file, not bytes: the client would send bytes again when the connection is lost.
        with path.open("rb") as body:
            # An error after the first bytes of an answer has the status 200: let the server wait for the end.
            settings = {**INSERT_SETTINGS, "query_id": query_id, "wait_end_of_query": 1}
            self._call(
                lambda: self._client.raw_insert(
                    table, [identifier(name) for name in columns], body, settings=settings, fmt="Parquet"
                )
            )

    def export(self, sql: str, path: Path) -> None:
        import pyarrow.parquet as pq

        def fetch() -> None:
            with path.open("wb") as file, self._client.raw_stream(sql, fmt="Parquet") as stream:
                while chunk := stream.read(1 << 20):
                    file.write(chunk)
            # An error within a response is part of its body: then the file has no valid footer.
            pq.read_metadata(path)

        self._call(fetch)

    def close(self) -> None:
        self._client.close()

    def _call(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except Exception as error:
            raise QueryError(
                f"the ClickHouse server {self._place} returned an error or was lost: {self._masked(error)}",
                cure="fix the cause that ClickHouse reports, and start the run again",
            ) from None

    def _masked(self, error: Exception) -> str:
        return mask(_first_line(error), *self._secrets)


def _need(module: str, package: str) -> None:
    """Raise ConfigError if an optional library is not installed."""
    if find_spec(module) is None:
        raise ConfigError(f"ClickHouse needs the library {module}", cure=f"run pip install {package}")


def parse_url(url: str) -> SplitResult:
    """Parse the URL; errors do not contain it, because it may hold a password."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in _SCHEMES and parts.hostname and (parts.port or True)
    except ValueError:
        known = None
    if not known:
        raise ConfigError(
            "the URL of the ClickHouse target is not valid",
            cure="write clickhouse://user:password@host:8123/db, or https://…; percent-encode special characters",
        )
    wrong = [name for name, _ in parse_qsl(parts.query) if name not in _URL_OPTIONS]
    if wrong:
        raise ConfigError(
            f"the URL of the ClickHouse target has unknown options: {', '.join(wrong)}",
            cure=f"use only {', '.join(_URL_OPTIONS)}",
        )
    return parts


def _flag(value: str) -> str | bool:
    return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)


def _assigned(settings: Mapping[str, int | str]) -> str:
    return ", ".join(
        f"{name} = {literal(value) if isinstance(value, str) else value}" for name, value in settings.items()
    )


def _first_line(error: Exception) -> str:
    """Return the message of an error without the stack trace; of a failed connection, what the system reports."""
    cause: BaseException | None = error if "ConnectionPool(" in str(error) else None
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).partition(", Stack trace")[0].partition("\n")[0][:1000]
