"""Charts as inline SVG, without a script: lines over time, small bars, and a map of the key space."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from markupsafe import Markup

from trueup.report.history import age_text

_WIDTH, _HEIGHT = 640, 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 8, 10, 22
_BAR = 5
# At most this many points are drawn: of each group the largest, so that no peak is lost.
_MOST_POINTS = 240


def lines(values: Sequence[tuple[float, float]], label: str, unit: str = "") -> Markup:
    """Return a line over time; times are seconds since the epoch."""
    if len(values) < 2:
        return Markup("")
    values = _thinned(values)
    first, last = values[0][0], values[-1][0]
    most = max(value for _, value in values) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: float, value: float) -> str:
        return f"{_LEFT + width * (at - first) / ((last - first) or 1):.1f},{_TOP + height * (1 - value / most):.1f}"

    points = " ".join(place(at, value) for at, value in values)
    base = _TOP + height
    text = f"{label}: {short(values[-1][1])} {unit} now, {short(most)} {unit} at most".replace(" ,", ",")
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{text}">'
        '<line class="axis" x1="{left}" y1="{base}" x2="{right}" y2="{base}"/>'
        '<line class="axis faint" x1="{left}" y1="{top}" x2="{right}" y2="{top}"/>'
        '<text class="label" x="{near}" y="{over}" text-anchor="end">{most}</text>'
        '<text class="label" x="{near}" y="{base}" text-anchor="end">0</text>'
        '<text class="label" x="{left}" y="{below}">{begin}</text>'
        '<text class="label" x="{right}" y="{below}" text-anchor="end">{end}</text>'
        '<polygon class="area" points="{left},{base} {points} {right},{base}"/>'
        '<polyline class="line" points="{points}"/></svg>'
    ).format(
        w=_WIDTH, h=_HEIGHT, text=text, left=_LEFT, right=_WIDTH - _RIGHT, top=_TOP, base=base, near=_LEFT - 8,
        over=_TOP + 8, below=_HEIGHT - 6, most=f"{short(most)} {unit}".strip(), points=points,
        begin=f"{age_text(last - first)} earlier" if last - first < 86400 else _day(first), end=_time(last),
    )  # fmt: skip


def bars(values: Sequence[float | None], label: str, kind: str = "bar") -> Markup:
    """Return small bars, the oldest first; a value that is not known is a dot on the line."""
    if not values:
        return Markup("")
    known = [value for value in values if value is not None]
    most = max(known, default=0) or 1
    pieces = []
    for number, value in enumerate(values):
        x = number * (_BAR + 1)
        if value is None:
            pieces.append(Markup('<circle class="unknown" cx="{}" cy="17" r="1.5"/>').format(x + _BAR / 2))
        else:
            height = 1 if value <= 0 else max(3, round(18 * value / most))
            pieces.append(
                Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    "zero" if value <= 0 else kind, x, 20 - height, _BAR, height
                )
            )
    shown = ", ".join("?" if value is None else short(value) for value in values)
    head = Markup('<svg class="bars" width="{w}" height="20" viewBox="0 0 {w} 20" role="img" aria-label="{text}">')
    return (
        head.format(w=len(values) * (_BAR + 1), text=f"{label}, the oldest first: {shown}")
        + Markup("").join(pieces)
        + Markup("</svg>")
    )


def key_map(counts: Sequence[int], ends: tuple[str, str] | None) -> Markup:
    """Return the key space as a strip of cells, darker where more keys differ; `ends`: its first and last key."""
    most = max(counts, default=0)
    if not most:
        return Markup("")
    width = _WIDTH / len(counts)
    cells = Markup("").join(
        Markup('<rect class="heat h{}" x="{:.2f}" y="2" width="{:.2f}" height="30"><title>{}</title></rect>').format(
            0 if not count else 1 + min(8, 9 * (count - 1) // most), number * width, width, f"{count:,} differences"
        )
        for number, count in enumerate(counts)
    )
    touched = sum(1 for count in counts if count)
    text = f"{touched} of {len(counts)} parts of the key space have differences, at most {most:,} in one part"
    labels = Markup("")
    if ends is not None:
        labels = Markup(
            '<text class="label" x="0" y="48">{}</text><text class="label" x="{}" y="48" text-anchor="end">{}</text>'
        ).format(ends[0][:40], _WIDTH, ends[1][:40])
    head = Markup('<svg class="chart map" viewBox="0 0 {} 52" role="img" aria-label="{}">').format(_WIDTH, text)
    return head + cells + labels + Markup("</svg>")


def short(value: float) -> str:
    """Return a number with at most a few digits: 1,234 or 12.3M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):,.1f}{unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def _thinned(values: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(values) <= _MOST_POINTS:
        return values
    step = -(-len(values) // _MOST_POINTS)
    groups = [values[start : start + step] for start in range(0, len(values), step)]
    return [max(group, key=lambda point: point[1]) for group in groups]


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S} UTC"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}"
