"""A small HTTP client with a persistent connection: JSON requests, log-in, TLS."""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import SplitResult, unquote

from trueup.config.transport import check_transport
from trueup.errors import ConfigError
from trueup.sinks.base import SinkDown

# Long: after a timeout the request may still be running on the server and take effect late.
SECONDS = 300.0
API_KEY, USER, PASSWORD = "TRUEUP_SINK_API_KEY", "TRUEUP_SINK_USER", "TRUEUP_SINK_PASSWORD"


class Answer:
    """The response of a server."""

    def __init__(self, server: str, status: int, data: bytes) -> None:
        self._server = server
        self.status = status
        self._data = data

    @property
    def reason(self) -> str:
        """Return the error message of the server."""
        text = self._data.decode(errors="replace")
        try:
            error = json.loads(text).get("error", text)
        except (ValueError, AttributeError):
            return text[:500]
        return (
            str(error.get("type", "")) + ": " + str(error.get("reason", "")) if isinstance(error, dict) else str(error)
        )

    def expect(self, status: int, *, exact: bool = False) -> Any:
        """Return the JSON body, with exact numbers if requested; raise SinkDown if the status differs."""
        if self.status != status:
            login = self.status in (401, 403)
            raise SinkDown(
                f"{self._server} answered {self.status}: {self.reason}",
                cure=f"check the log-in ({API_KEY}, or {USER} and {PASSWORD})" if login else "check the server",
            )
        try:
            return exact_json(self._data) if exact else json.loads(self._data)
        except ValueError:
            raise SinkDown(f"{self._server} did not answer with JSON", cure="check the address") from None


class HttpServer:
    """A server and its log-in. It is pickled without the connection."""

    def __init__(self, place: str, host: str, port: int | None, prefix: str, *, tls: bool, login: str) -> None:
        self._place, self._host, self._port, self._prefix, self._tls = place, host, port, prefix, tls
        self._login = login
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def from_address(
        cls, parts: SplitResult, prefix: str, environment: Mapping[str, str], *, insecure: bool
    ) -> HttpServer:
        """Return the server of an address. The log-in is in the address or, preferably, in the environment."""
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if not host:
            raise ConfigError("invalid address of the search sink", cure="write http://host:9200/index")
        user = unquote(parts.username or "") or environment.get(USER, "")
        password = unquote(parts.password or "") or environment.get(PASSWORD, "")
        key = environment.get(API_KEY, "")
        basic = b64encode(f"{user}:{password}".encode()).decode()
        login = f"ApiKey {key}" if key else f"Basic {basic}" if user else ""
        if login and parts.scheme != "https":
            check_transport("the search sink", [host], encrypted="https://", insecure=insecure)
        place = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
        return cls(place, host, port, prefix, tls=parts.scheme == "https", login=login)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def __repr__(self) -> str:
        return f"<{self._place}>"

    def __str__(self) -> str:
        return self._place

    def ask(self, method: str, path: str, body: bytes | None = None, *, kind: str = "application/json") -> Answer:
        """Send a request; if the server has closed the persistent connection, repeat it once with a new one."""
        headers = {"Content-Type": kind, **({"Authorization": self._login} if self._login else {})}
        kept = self._connection is not None
        try:
            return self._ask(method, path, body, headers)
        except (ConnectionError, http.client.HTTPException) as error:
            self.close()
            if not kept:
                raise ConnectionError(str(error) or type(error).__name__) from None
        try:
            return self._ask(method, path, body, headers)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(
                    self._host, self._port, timeout=SECONDS, context=ssl.create_default_context()
                )
                if self._tls
                else http.client.HTTPConnection(self._host, self._port, timeout=SECONDS)
            )
        self._connection.request(method, self._prefix + path, body, dict(headers))
        answer = self._connection.getresponse()
        return Answer(self._place, answer.status, answer.read())


def exact_json(text: str | bytes) -> Any:
    """Return a JSON document whose numbers are compared by value, without rounding; a number is not a boolean."""
    return json.loads(text, parse_int=_number, parse_float=_number)


def _number(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)
