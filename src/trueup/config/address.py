"""Addresses of nodes: their kinds, and libpq connection strings; error messages never quote from them."""

from __future__ import annotations

import re

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from trueup.config.secrets import mask

_ANY_URI = r"[a-zA-Z][a-zA-Z0-9+.\-]*://"
_LIBPQ_URI = r"postgres(?:ql)?://"

_ENCODE = (
    "the user or the password of the address contains a character that must be percent-encoded "
    "(@ as %40, / as %2F, : as %3A, ? as %3F, # as %23, % as %25, a space as %20)"
)

# Messages of libpq quote from the string, so they are replaced, by how they start.
_REASONS = {
    "invalid percent-encoded token": "% is not followed by two hex digits (write a literal % as %25)",
    "forbidden value": "it contains %00",
    "unexpected spaces": "it contains a space (write %20)",
    "missing key/value separator": 'the part after "?" is not key=value',
    "extra key/value separator": 'the part after "?" is not key=value&key=value',
    "invalid URI query parameter": 'the part after "?" contains a keyword that libpq does not know',
    "invalid connection option": "it contains a keyword that libpq does not know",
    "unterminated quoted string": "a quote is not closed",
    'missing "="': "a part of it is not keyword=value (quote a value with spaces with single quotes)",
    "end of string reached": 'the "]" of an IPv6 address is missing',
    "IPv6 host address": "the IPv6 address is empty",
    "unexpected character": 'after the "]" of an IPv6 address, a port or a database is expected',
}


# Kinds of nodes other than PostgreSQL, by the start of their address.
_PATHS = ("parquet", "delta", "orc", "csv", "json")
OTHER_KINDS = {
    **{f"{kind}:": kind for kind in _PATHS},
    "spark:": "spark",
    "iceberg:": "iceberg",
    "frame:": "frame",
    "mysql://": "mysql",
    "mariadb://": "mysql",
    "clickhouse://": "clickhouse",
    "clickhouses://": "clickhouse",
    "chdb:": "chdb",
}
POSTGRESQL = "postgresql"


def kind_of(conninfo: str) -> str:
    """Return the kind of the node that an address names; `postgresql` if it names no other."""
    return next((kind for start, kind in OTHER_KINDS.items() if conninfo.startswith(start)), POSTGRESQL)


def problem_of(conninfo: str) -> str:
    """Return what is wrong with the address of a node of any kind, or an empty text."""
    if kind_of(conninfo) == POSTGRESQL:
        return parse(conninfo)[1]
    start = next(start for start in OTHER_KINDS if conninfo.startswith(start))
    if "\0" in conninfo:
        return "it contains a NUL character"
    return "" if conninfo[len(start) :].strip() or start == "frame:" else f'nothing follows "{start}"'


def parse(conninfo: str) -> tuple[dict[str, str], str]:
    """Return the libpq keywords of a conninfo and an empty text, or no keywords and the problem.

    Also rejects addresses that libpq accepts but misreads: in `postgresql://u:a@b@host/db` libpq uses the password "a"
    and the host "b@host", and sends half of the password to the name server.
    """
    if not conninfo.strip():
        return {}, "it is empty"
    if "\0" in conninfo:
        return {}, "it contains a NUL character"
    try:
        params = {keyword: str(value) for keyword, value in conninfo_to_dict(conninfo).items()}
    except UnicodeError:
        return {}, "it is not UTF-8"
    except Error as error:
        return {}, _reason(conninfo, str(error))
    wrong = _misread(conninfo) or _bad_port(params)
    return ({}, wrong) if wrong else (params, "")


def join(keywords: dict[str, str]) -> str:
    """Return a conninfo string with these libpq keywords."""
    return " ".join(f"{keyword}={_quoted(value)}" for keyword, value in keywords.items())


def known_keywords() -> tuple[str, ...]:
    """Return all keywords of the libpq in use."""
    return tuple(option.keyword.decode() for option in pq.Conninfo.parse(b""))


def describe(conninfo: str) -> str:
    """Return `user@host:port/dbname` of a conninfo, never a password; libpq's defaults are not filled in."""
    if kind_of(conninfo) != POSTGRESQL:
        return mask(conninfo)
    params, wrong = parse(conninfo)
    if wrong:
        return "unreadable address"
    hosts = (params.get("host") or params.get("hostaddr") or "").split(",")
    ports = params.get("port", "").split(",")
    # As in libpq: one port for all hosts, or one port per host.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    text = ",".join(places)
    if not text and "service" in params:
        text = f"service={params['service']}"
    if "user" in params:
        text = f"{params['user']}@{text}"
    if "dbname" in params:
        text = f"{text}/{params['dbname']}"
    return mask(text) or "libpq defaults"


def _quoted(value: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_.:/\-]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _reason(conninfo: str, libpq_message: str) -> str:
    if re.match(_ANY_URI, conninfo) and not re.match(_LIBPQ_URI, conninfo):
        return "it must start with postgresql:// or consist of libpq keywords (host=... dbname=...)"
    for beginning, reason in _REASONS.items():
        if libpq_message.startswith(beginning):
            return reason
    return "libpq cannot parse it"


def _misread(conninfo: str) -> str:
    """Return the problem of a URI whose password contains an unquoted "@" or "/"."""
    scheme = re.match(_LIBPQ_URI, conninfo)
    if not scheme:
        return ""
    authority, _, rest = conninfo[scheme.end() :].partition("/")
    path = rest.partition("?")[0]
    behind = path if "@" in authority else rest
    return _ENCODE if authority.count("@") > 1 or "@" in behind else ""


def _bad_port(params: dict[str, str]) -> str:
    ports = params.get("port", "").split(",")
    if all(not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65536) for port in ports):
        return ""
    return f"the port is not a number from 1 to 65535, or {_ENCODE}"
