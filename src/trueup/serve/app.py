"""The routes: pages, events, the API, metrics. Handlers that read files run in threads; none opens a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from trueup.errors import StoreError, TrueupError
from trueup.report.html import html_pieces
from trueup.report.json_reader import open_report
from trueup.report.page import page_of_diff
from trueup.report.tasks import task_page
from trueup.serve import documents
from trueup.serve.actions import Actions
from trueup.serve.answers import Api
from trueup.serve.collector import Collector
from trueup.serve.guard import Guard, Sessions, cookie_header, same_text
from trueup.serve.metrics import CONTENT_TYPE, metrics_text
from trueup.serve.options import ServeOptions
from trueup.serve.pages import others, syncs, tables, tasks, tubes, validations
from trueup.serve.pages.overview import overview
from trueup.serve.pages.parts import not_current
from trueup.serve.reading import PAGE, Reading, next_page, scope_of
from trueup.serve.render import Renderer, static_files
from trueup.serve.views import Cell, Notes, View
from trueup.store import RUNNING, browse

_MAX_STREAMS = 200
# Pages that are kept for other clients, and for how long: ages in them, and pages that read a task store.
_MAX_PAGES = 200
_KEPT_SECONDS = 5.0
_SHORT_SECONDS = 0.5
_STREAM_SECONDS = 900.0
_POLL_SECONDS = 0.5
_BEAT_SECONDS = 15.0
_WITH_ROWS = ("TABLE_DIFF", "TABLE_RERUN")
Handler = Callable[[Request], View | None]


class Application:
    """The web application over a collector."""

    def __init__(self, collector: Collector, options: ServeOptions) -> None:
        self._collector = collector
        self._options = options
        self._renderer = Renderer()
        self._static = static_files()
        self._sessions = Sessions(options.tokens)
        self._reading = Reading(collector)
        self._api = Api(collector, self._reading, options)
        self._streams = 0
        self._stopping = False
        self._actions = Actions(collector.scope.config, collector.scope.stores)
        # By address: the version, the time, and the page.
        self._pages: dict[str, tuple[int, float, asyncio.Future[Any]]] = {}
        routes = [Route("/healthz", self._health), Route("/metrics", self._metrics), *self._own_routes()]
        self._guard = Guard(
            Starlette(routes=routes, exception_handlers={404: self._missing, 405: self._missing, 500: self._failed}),
            options,
            self._sessions,
        )
        self.asgi = self._guard

    def stop(self) -> None:
        """End the streams of events."""
        self._stopping = True

    def _own_routes(self) -> list[Route]:
        if self._options.only_metrics:
            return []
        shown: dict[str, Handler] = {
            "/": lambda request: overview(self._collector.seen),
            "/tables": self._tables,
            "/table": self._table,
            "/tasks": self._tasks,
            "/tasks/{task_id}": self._task,
            "/validations": lambda request: validations.validations(self._collector.seen),
            "/validation": self._validation,
            "/tubes": lambda request: tubes.tubes(self._collector.seen),
            "/tube": self._tube,
            "/syncs": lambda request: syncs.syncs(self._collector.seen, self._collector.trends()),
            "/schedule": lambda request: others.schedule(self._collector.seen),
            "/doctor": lambda request: others.doctor(self._collector.seen),
            "/actions": self._past_actions,
        }
        routes = [Route(path, self._page(handler)) for path, handler in shown.items()]
        routes += [
            Route("/tasks/{task_id}/report", self._report),
            Route("/events", self._events),
            Route("/static/{name}", self._file),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/openapi.json", lambda request: JSONResponse(documents.openapi())),
            *(Route(f"/api/v1/{name}", self._document(name)) for name in documents.READERS),
            Route("/api/v1/tasks", self._api.tasks),
            Route("/api/v1/tasks/{task_id}", self._api.task),
            Route("/api/v1/history", self._api.history),
        ]
        if self._options.allow_actions:
            routes.append(Route("/actions", self._act, methods=["POST"]))
        return routes

    # Pages.

    def _page(self, handler: Handler) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            options = self._options
            who = request.scope["trueup.who"] if options.tokens else ""
            # Pages with forms are those of one client.
            secret = request.scope["trueup.form_secret"] if options.tokens or options.allow_actions else ""
            html = await self._shared(
                f"{secret} {request.url}", request, lambda: self._rendered(handler, request, who, secret)
            )
            return self._missing(request, None) if html is None else HTMLResponse(html)

        return answer

    async def _shared(self, key: str, request: Request, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, for all requests of the same address: until something new is seen, or shortly.

        Many clients look at the same page at the same moment, right after it has changed.
        """
        version, now = self._collector.seen.version, time.monotonic()
        known = self._pages.get(key)
        if (
            known is None
            or known[0] != version
            or now - known[1] > (_KEPT_SECONDS if is_seen(request) else _SHORT_SECONDS)
        ):
            if len(self._pages) >= _MAX_PAGES:
                self._pages.clear()
            known = version, now, asyncio.ensure_future(run_in_threadpool(make))
            self._pages[key] = known
        try:
            # A client that disconnects does not cancel it for the others.
            return await asyncio.shield(known[2])
        except Exception:
            self._pages.pop(key, None)
            raise

    def _rendered(self, handler: Handler, request: Request, who: str, secret: str) -> str | None:
        try:
            view = handler(request)
        except StoreError as error:
            note = Notes("The task store cannot be read", [Cell(str(error), note=error.cure)], "trouble")
            view = View("Not available", "", [note], "not available", "trouble")
        return None if view is None else self._renderer.page(view, self._collector.seen.parts, who, secret)

    def _tables(self, request: Request) -> View:
        query = request.query_params
        text, verdict = query.get("name", ""), query.get("verdict", "")
        first = min(int(query["first"]), 10**9) if query.get("first", "").isdecimal() else 0
        states = tables.chosen_states(self._collector.seen, text, verdict)
        trends = self._reading.trends(states[first : first + tables.PAGE], tables.TREND)
        view = tables.tables(states, lambda state: trends.get(scope_of(state.run), ()), text, verdict, first)
        return self._with_stores(view)

    def _with_stores(self, view: View) -> View:
        """Return a page about task stores that names those that do not answer."""
        return replace(view, blocks=[*not_current(self._collector.seen.stores.values()), *view.blocks])

    def _table(self, request: Request) -> View | None:
        query = request.query_params
        wanted = (query.get("name", ""), query.get("cluster", ""), query.get("nodes", ""))
        for state in self._collector.seen.states:
            if scope_of(state.run) == wanted:
                runs = self._reading.runs(state, 200)
                report = self._reading.report_of(runs)
                return self._with_stores(tables.table(state, runs, report, show_rows=self._options.show_rows))
        return None

    def _tasks(self, request: Request) -> View:
        chosen, listed = self._reading.tasks(request.query_params)
        types = sorted({kind for summary in self._collector.seen.summaries() for kind, _, _ in summary.counts})
        return self._with_stores(tasks.tasks(listed[:PAGE], chosen, types, next_page(chosen, listed)))

    def _task(self, request: Request) -> View | None:
        found = self._reading.find(request.path_params["task_id"])
        if found is None:
            return None
        path, task = found
        return tasks.task(self._api.without_rows(task), allow_actions=self._options.allow_actions, store=str(path))

    async def _report(self, request: Request) -> Response:
        try:
            made = await run_in_threadpool(self._report_pieces, request.path_params["task_id"])
        except StoreError as error:
            note = Notes("The report cannot be read", [Cell(str(error), note=error.cure)], "trouble")
            view = View("Not available", "tasks", [note], "not available", "trouble", above=("tasks", "/tasks"))
            return HTMLResponse(self._renderer.page(view, self._collector.seen.parts, ""), 404)
        if made is None:
            return self._missing(request, None)
        pieces, policy = made
        headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'"}
        return StreamingResponse(pieces, media_type="text/html", headers=headers)

    def _report_pieces(self, task_id: str) -> tuple[Any, str] | None:
        found = self._reading.find(task_id)
        if found is None or found[1].task_status == RUNNING:
            return None
        task = self._api.without_rows(found[1])
        if task.task_type not in _WITH_ROWS or not task.diff_file_path:
            return html_pieces(task_page(asdict(task)))
        report = open_report(Path(task.diff_file_path))
        page = page_of_diff(report.head, report.counts, str(report.path))
        if self._options.show_rows:
            return html_pieces(page, report)
        remark = "the differing rows are hidden: start trueup serve with --show-rows to see them"
        return html_pieces(replace(page, data=None, remarks=[*page.remarks, remark]))

    def _validation(self, request: Request) -> View | None:
        node, name = request.query_params.get("node", ""), request.query_params.get("name", "")
        seen = self._collector.seen
        for found in seen.validations():
            if (found.meta, found.status.name) == (node, name):
                shown = {"show_rows": self._options.show_rows, "allow_actions": self._options.allow_actions}
                return validations.validation(found, seen.nodes[found.meta], self._collector.trends(), **shown)
        return None

    def _tube(self, request: Request) -> View | None:
        node, name = request.query_params.get("node", ""), request.query_params.get("name", "")
        seen = self._collector.seen
        for found in seen.tubes():
            if (found.node, found.name) == (node, name):
                part, trends = seen.nodes[found.node], self._collector.trends()
                return tubes.tube(found, part, trends, show_rows=self._options.show_rows)
        return None

    def _past_actions(self, request: Request) -> View:
        rows = [row for path in self._collector.scope.stores for row in browse.actions(path, 200)]
        return others.actions(sorted(rows, key=lambda row: str(row["at"]), reverse=True))

    # Files, events, sign-in.

    async def _file(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            return self._missing(request, None)
        return Response(found[0], media_type=found[1], headers={"cache-control": "max-age=60"})

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MAX_STREAMS:
            return PlainTextResponse("too many open pages\n", 503, {"retry-after": "30"})
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._stream(request), media_type="text/event-stream", headers=headers)

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        """Yield the version of what was seen, whenever it changes, and a comment now and then."""
        if self._streams >= _MAX_STREAMS:
            # Several began at the same moment.
            yield "retry: 30000\n\n"
            return
        self._streams += 1
        try:
            loop = asyncio.get_running_loop()
            until, sent, last = loop.time() + _STREAM_SECONDS, -1, loop.time()
            yield "retry: 3000\n\n"
            while not self._stopping and loop.time() < until:
                version = self._collector.seen.version
                if version != sent:
                    sent, last = version, loop.time()
                    yield f"event: seen\ndata: {version}\n\n"
                elif loop.time() - last > _BEAT_SECONDS:
                    last = loop.time()
                    yield ": still here\n\n"
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._streams -= 1

    async def _login(self, request: Request) -> Response:
        if not self._options.tokens:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return HTMLResponse(self._renderer.login(wrong=False))
        user = self._sessions.user_of(request.scope["trueup.form"].get("token", "").strip())
        if not user:
            if not await self._guard.wrong_token():
                return PlainTextResponse("too many wrong tokens\n", 429, {"retry-after": "5"})
            return HTMLResponse(self._renderer.login(wrong=True), 403)
        value = self._sessions.begin(user)
        header = cookie_header(self._guard.cookie, value, secure=self._options.has_tls)
        return RedirectResponse("/", 303, {"set-cookie": header})

    async def _logout(self, request: Request) -> Response:
        if not self._is_own_form(request):
            return PlainTextResponse("the form is not of this page\n", 403)
        self._sessions.end(request.cookies.get(self._guard.cookie, ""))
        header = cookie_header(self._guard.cookie, "", secure=self._options.has_tls, seconds=0)
        return RedirectResponse("/login", 303, {"set-cookie": header})

    # Actions.

    def _is_own_form(self, request: Request) -> bool:
        return same_text(request.scope["trueup.form"].get("csrf", ""), request.scope["trueup.form_secret"])

    async def _act(self, request: Request) -> Response:
        if not self._is_own_form(request):
            return PlainTextResponse("the form is not of this page: reload it, and try again\n", 403)
        try:
            address = await run_in_threadpool(
                self._actions.run, request.scope["trueup.who"], request.scope["trueup.form"]
            )
        except TrueupError as error:
            note = Notes("The action failed", [Cell(str(error), note=error.cure)], "trouble")
            view = View("Not done", "", [note], "not done", "trouble")
            return HTMLResponse(self._renderer.page(view, self._collector.seen.parts, ""), 409)
        return RedirectResponse(address, 303)

    # For programs.

    def _health(self, request: Request) -> Response:
        """Answer 200 while the server runs: a source that fails is a matter of the page."""
        seen = self._collector.seen
        tried = [part.tried_at for part in seen.parts if part.tried_at]
        return JSONResponse({"status": "ok", "sources": len(seen.parts), "read": len(tried)})

    async def _metrics(self, request: Request) -> Response:
        config = self._collector.scope.config
        text = await self._shared("metrics", request, lambda: metrics_text(self._collector.seen, config))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def _document(self, name: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            body = await self._shared(f"/api/v1/{name}", request, lambda: self._api.document(name))
            return Response(body, media_type="application/json")

        return answer

    def _missing(self, request: Request, error: Any) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": "there is no such resource"}, 404)
        status = getattr(error, "status_code", 404)
        text = "method not allowed" if status == 405 else "there is no such page"
        note = Notes(text, [Cell("to the overview", "/")])
        return HTMLResponse(self._renderer.page(View("Not found", "", [note]), (), ""), status)

    def _failed(self, request: Request, error: Any) -> Response:
        return PlainTextResponse("the server could not answer; its log has the reason\n", 500)


def is_seen(request: Request) -> bool:
    """Return whether a page shows only what the collector has seen; others read a task store."""
    path = request.url.path
    return not path.startswith(("/tasks", "/actions")) and path != "/table"
