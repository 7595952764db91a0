"""What every request passes: allowed hosts, tokens, limits, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from trueup.serve.options import ServeOptions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types trueup"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
# The header in which a proxy sends its secret.
PROXY_SECRET = "x-trueup-proxy-secret"
MAX_BODY = 16 * 1024
_MAX_QUERY = 4 * 1024
_MAX_PATH = 1024
_BODY_SECONDS = 10.0
# Requests of unknown users whose bodies are read at once: they may be sent slowly.
_MAX_BODIES = 50
_SESSION_SECONDS = 12 * 3600.0
_MAX_SESSIONS = 1000
# Wrong tokens are answered late, and only some at a time.
_WRONG_SECONDS = 1.0
_MAX_WRONG = 20
# No token needed: they show nothing about the nodes.
_OPEN = ("/healthz", "/login", "/static/")
# Answered with 401 instead of the page that asks for the token.
_FOR_PROGRAMS = ("/metrics", "/api/", "/events", "/openapi.json")


class Sessions:
    """The browsers that have sent a token: random ids, in memory only."""

    def __init__(self, tokens: tuple[tuple[str, bytes], ...]) -> None:
        self._tokens = tokens
        self._known: dict[str, tuple[str, float]] = {}
        self._key = secrets.token_bytes(32)
        self.wrong = 0

    def user_of(self, token: str) -> str:
        """Return the user of a token, or ''; all tokens are compared, in constant time."""
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = [name for name, known in self._tokens if hmac.compare_digest(known, digest)]
        return found[0] if found else ""

    def begin(self, user: str) -> str:
        """Return the id of a new session."""
        now = time.monotonic()
        self._known = {key: value for key, value in self._known.items() if value[1] > now}
        while len(self._known) >= _MAX_SESSIONS:
            self._known.pop(next(iter(self._known)))
        ident = secrets.token_urlsafe(32)
        self._known[ident] = (user, now + _SESSION_SECONDS)
        return ident

    def user_of_session(self, ident: str) -> str:
        """Return the user of a session, or ''."""
        user, until = self._known.get(ident, ("", 0.0))
        return user if until > time.monotonic() else ""

    def form_secret(self, client: str) -> str:
        """Return the secret that forms of a client send back."""
        return hmac.new(self._key, client.encode("utf-8", "surrogatepass"), sha256).hexdigest()

    def end(self, ident: str) -> None:
        """End a session."""
        self._known.pop(ident, None)


class Guard:
    """Checks requests before the application sees them, and adds headers to all answers."""

    def __init__(self, app: Any, options: ServeOptions, sessions: Sessions) -> None:
        self._app = app
        self._options = options
        self._sessions = sessions
        self._bodies = 0
        self.cookie = "__Host-trueup" if options.has_tls else "trueup"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or let the application answer it."""
        if scope["type"] != "http":
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        try:
            refused = await self._refusal(request)
        except asyncio.TimeoutError:
            refused = PlainTextResponse("the request was not complete in time\n", 408, {"connection": "close"})
        if refused is not None:
            await refused(scope, receive, guarded)
            return
        try:
            await self._app(scope, receive, guarded)
        except Exception:
            _log.exception("cannot answer %s %s", scope["method"], scope["path"][:200])
            raise

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused, or None."""
        # Not of `request.url`, which contains the Host header.
        headers, path = request.headers, str(request.scope["path"])
        if not self._is_allowed_host(headers.getlist("host")):
            text = "this name of the server is not allowed; allow it with --allow-host\n"
            return PlainTextResponse(text, 421, {"connection": "close"})
        if len(request.scope["query_string"]) > _MAX_QUERY or len(path) > _MAX_PATH:
            return PlainTextResponse("the address is too long\n", 414)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("method not allowed\n", 405, {"allow": "GET, HEAD, POST"})
        who = self._who(request)
        request.scope["trueup.who"] = who
        request.scope["trueup.form_secret"] = self._form_secret(request)
        if not who and not path.startswith(_OPEN):
            return await self._ask_for_token(request)
        if request.method == "POST":
            return await self._check_post(request)
        return None

    def _is_allowed_host(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name = hosts[0].lower()
        # The port: behind the last colon, but not one inside of [::1].
        if not name.endswith("]"):
            name, _, port = name.rpartition(":") if ":" in name else (name, "", "")
            if port and not port.isdigit():
                return False
        return name in self._options.hosts

    def _who(self, request: Request) -> str:
        """Return the user of a request, '' if it needs a token."""
        options = self._options
        if not options.has_login:
            return "anyone on this machine"
        if options.proxy_header:
            values = request.headers.getlist(options.proxy_header)
            if self._is_proxy(request) and len(values) == 1 and values[0].strip():
                return values[0].strip()[:200]
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if options.tokens and scheme.lower() == "bearer":
            return self._sessions.user_of(token.strip())
        return self._sessions.user_of_session(request.cookies.get(self.cookie, ""))

    def _is_proxy(self, request: Request) -> bool:
        """Whether a request comes from the proxy, as far as the options let it be known."""
        client = request.client.host if request.client else ""
        if client not in self._options.proxies or not self._options.proxy_secret:
            return client in self._options.proxies
        sent = request.headers.getlist(PROXY_SECRET)
        digest = sha256(sent[0].encode("utf-8", "surrogatepass")).digest() if len(sent) == 1 else b""
        return hmac.compare_digest(digest, self._options.proxy_secret)

    def _form_secret(self, request: Request) -> str:
        """Return the secret that a form of this client sends back; that of another client is another one."""
        session = request.cookies.get(self.cookie, "")
        is_session = bool(self._sessions.user_of_session(session))
        return self._sessions.form_secret(f"session {session}" if is_session else f"user {request.scope['trueup.who']}")

    async def _ask_for_token(self, request: Request) -> Response:
        if "authorization" in request.headers:
            await self.wrong_token()
        if not self._options.tokens:
            return PlainTextResponse("requests must come through the proxy that names the user\n", 403)
        if request.scope["path"].startswith(_FOR_PROGRAMS) or request.method == "POST":
            return PlainTextResponse("a token is needed\n", 401, {"www-authenticate": 'Bearer realm="trueup"'})
        return RedirectResponse("/login", 303)

    async def wrong_token(self) -> bool:
        """Wait after a wrong token; return False if too many are waiting already."""
        if self._sessions.wrong >= _MAX_WRONG:
            return False
        self._sessions.wrong += 1
        try:
            await asyncio.sleep(_WRONG_SECONDS)
        finally:
            self._sessions.wrong -= 1
        return True

    async def _check_post(self, request: Request) -> Response | None:
        headers = request.headers
        site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
        scheme = "https" if self._options.has_tls else "http"
        # A proxy may add TLS: then only the host can be compared.
        own = {f"{scheme}://{headers['host']}", f"https://{headers['host']}"}
        if site not in ("same-origin", "none") or (origin is not None and origin not in own):
            return PlainTextResponse("the request came from another site\n", 403)
        is_known = bool(request.scope["trueup.who"])
        if not is_known and self._bodies >= _MAX_BODIES:
            return PlainTextResponse("too many requests at once\n", 503, {"retry-after": "5", "connection": "close"})
        self._bodies += not is_known
        try:
            body = await asyncio.wait_for(_body(request), _BODY_SECONDS)
        finally:
            self._bodies -= not is_known
        if body is None:
            return PlainTextResponse("the request is too long\n", 413, {"connection": "close"})
        try:
            request.scope["trueup.form"] = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=50))
        except ValueError:
            return PlainTextResponse("the form has too many fields\n", 400)
        return None


async def _body(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too long."""
    try:
        if int(request.headers.get("content-length", "0")) > MAX_BODY:
            return None
    except ValueError:
        return None
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            return None
    return body


def same_text(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def cookie_header(name: str, value: str, *, secure: bool, seconds: float = _SESSION_SECONDS) -> str:
    """Return a Set-Cookie header that scripts and other sites cannot use."""
    flags = "; Secure" if secure else ""
    return f"{name}={value}; Path=/; Max-Age={int(seconds)}; HttpOnly; SameSite=Strict{flags}"
