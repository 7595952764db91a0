"""Templates and static files. Every text is escaped; control and direction characters are shown as escapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from trueup import __version__
from trueup.config.visible import one_line, visible
from trueup.report.history import age_text
from trueup.serve.model import Part
from trueup.serve.views import View
from trueup.store import times

PLACES = (
    ("overview", "/"),
    ("tables", "/tables"),
    ("tasks", "/tasks"),
    ("validations", "/validations"),
    ("tubes", "/tubes"),
    ("syncs", "/syncs"),
    ("schedule", "/schedule"),
    ("doctor", "/doctor"),
)


class Renderer:
    """Writes pages."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("trueup.serve"),
            autoescape=True,
            finalize=visible,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self._environment.globals.update(age=age_since, iso=iso, line=one_line, version=__version__, places=PLACES)

    def page(self, view: View, parts: Sequence[Part[Any]], who: str, csrf: str = "") -> str:
        """Return a page; `who` is the user who can sign out, or ''; `csrf` is the secret that its forms send back."""
        template = self._environment.get_template("page.html.j2")
        return template.render(view=view, parts=parts, csrf=csrf, who=who)

    def login(self, *, wrong: bool) -> str:
        """Return the page that asks for a token."""
        return self._environment.get_template("login.html.j2").render(wrong=wrong)


def static_files() -> dict[str, tuple[str, str]]:
    """Return the static files: name -> content and type. The style begins with that of reports."""
    own = files("trueup.serve") / "static"
    style = (files("trueup.report") / "templates" / "report.css").read_text(encoding="utf-8")
    return {
        "app.css": (style + (own / "app.css").read_text(encoding="utf-8"), "text/css"),
        "app.js": ((own / "app.js").read_text(encoding="utf-8"), "text/javascript"),
        "icon.svg": ((own / "icon.svg").read_text(encoding="utf-8"), "image/svg+xml"),
    }


def iso(at: float) -> str:
    """Return seconds since the epoch as the task store writes times."""
    return times.iso(datetime.fromtimestamp(at, timezone.utc))


def age_since(at: str) -> str:
    """Return a time as its age, or as how long it will take."""
    seconds = time.time() - seconds_of(at)
    return f"{age_text(seconds)} ago" if seconds >= 0 else f"in {age_text(-seconds)}"


def seconds_of(at: str) -> float:
    """Return a time as seconds since the epoch."""
    return times.parse(at).timestamp()
