"""
HTML and SVG that cannot be broken by their contents.

Service, instance and route names are from peers. Whatever is not `Html` is escaped when it becomes a child or an
attribute, and characters that HTML does not allow are replaced. Only `element`, `join` and literals of the report's own
modules make `Html`.

Plots are small inline SVG: ranges of time on a logarithmic axis, counts over time, what was held. A plot contains no
text, so it can be stretched to any width; its marks are next to it in HTML and stay readable. Its title says what it
shows; the title is its accessible name and its tooltip. Colours are classes of the style sheet.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from broker.config.units import Quantity, clock, count, duration, instant, size
from broker.pipeline.report.digest import Hold, Series, Spread, Timeline

_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


_VOID = frozenset({"br", "link", "meta"})


Attribute = str | float | bool | None
Child = str | Quantity | None


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table: `cell` makes its cell of a row; one that `is_aside` is left out where the page is narrow."""

    title: str | Html
    cell: Callable[[Any], Child]
    is_number: bool = False
    is_aside: bool = False
    style: str = ""


def number(title: str, cell: Callable[[Any], Child], *, is_aside: bool = False) -> Column:
    """Return a column of numbers."""
    return Column(title, cell, is_number=True, is_aside=is_aside)


def way(start: str | None, end: str | None) -> Html:
    """Return two names with an arrow between them."""
    return join([name(start), " → ", name(end)])


def lost(frames: int) -> Html:
    """Return a count that is bad unless it is 0."""
    return element("span", count(frames), class_="bad") if frames else Html("0")


def escape(text: str) -> Html:
    """Escape text for markup, in quotes as well."""
    return Html(html.escape(_REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)))


def element(tag: str, /, *children: Child, **attributes: Attribute) -> Html:
    """
    Return an element.

    Args:
        tag: Its name, a literal.
        children: Text, which is escaped, markup, or a quantity, which shows its exact figure as a tooltip.
        attributes: Underscores become hyphens, one at the end is dropped; None and False leave it out.
    """
    head = tag + "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{head}>")
    return Html(f"<{head}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Return children one after the other."""
    return Html("".join(_child(child) for child in children))


def name(text: str | None, otherwise: str = "unknown") -> Html:
    """Set a name that a peer has chosen apart from the text around it, in whatever direction it is written."""
    return element("bdi", text, class_="name") if text else element("span", otherwise, class_="faint")


def table(columns: Sequence[Column], rows: Iterable[Any], *, caption: str, is_plain: bool = False) -> Html:
    """
    Return a table; the first cell of a row is its heading.

    Args:
        columns: One for each cell.
        rows: From which the columns make their cells.
        caption: Its contents, for readers who cannot see it.
        is_plain: Whether it keeps all its columns on a narrow page, and scrolls there.
    """
    head = element("tr", *(_cell("th", column, column.title, scope="col") for column in columns))
    body = [
        element(
            "tr",
            _cell("th", columns[0], columns[0].cell(row), scope="row"),
            *(_cell("td", column, column.cell(row)) for column in columns[1:]),
        )
        for row in rows
    ]
    inner = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", head),
        element("tbody", *body),
        class_="plain" if is_plain else None,
    )
    return element("div", inner, class_="scroll", tabindex=0, role="group", aria_label=caption)


def details(summary: str, *children: Child) -> Html:
    """Return the details of a plot, opened by a click and always in print."""
    return element("details", element("summary", summary), *children)


def _cell(tag: str, column: Column, content: Child, **attributes: Attribute) -> Html:
    words = [*(["number"] if column.is_number else []), *(["aside"] if column.is_aside else []), column.style]
    return element(tag, content, class_=" ".join(filter(None, words)) or None, **attributes)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    key = key.removesuffix("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{escape(_written(value))}"'


def _written(value: str | float) -> str:
    """Coordinates need no more than a tenth."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _child(child: Child) -> Html:
    if child is None:
        return Html()
    if isinstance(child, Html):
        return child
    if isinstance(child, Quantity):
        return element("span", child.text, title=child.exact) if child.exact else escape(child.text)
    return escape(child)


def section(id_: str, title: str, lead: Child, *content: Child) -> Html:
    """Return a section of the page: a heading, its content in words, and then the rest."""
    heading = element("h2", title, id=f"{id_}-title")
    return element(
        "section", heading, element("p", lead, class_="lead"), *content, id=id_, aria_labelledby=f"{id_}-title"
    )


def more(shown: int, total: int) -> Html | None:
    """Return the note that there are more rows than are shown; None if there are not."""
    return element("p", f"{shown:,} are shown; there are more.", class_="faint") if total > shown else None


# --- plots ---

WIDTH = 100.0  # of every plot, in its own units
_TICKS_MAX = 4
_MARGIN = 0.12  # of a decade, at both ends of an axis
_LEAST = 1.0  # width of a part that is nearly nothing: it is still seen
_HEIGHT = 30.0


class LogScale:
    """A logarithmic axis of microseconds, marked at powers of ten; `x` gives 0 .. 100."""

    def __init__(self, spreads: Iterable[Spread]) -> None:
        known = [rank for one in spreads for rank in (one.p50, one.p95, one.p99) if rank]
        self._low = math.log10(min(known, default=1)) - _MARGIN
        self._high = max(self._low + 1, math.log10(max(known, default=1)) + _MARGIN)

    def x(self, microseconds: float) -> float:
        """Return the position of a time; none has that of the beginning."""
        return max(0.0, WIDTH * (math.log10(max(1, microseconds)) - self._low) / (self._high - self._low))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Powers of ten with their words, a handful."""
        powers = range(math.ceil(self._low), math.floor(self._high) + 1)
        every = math.ceil(len(powers) / _TICKS_MAX)
        return [(self.x(10.0**power), duration(10**power).text) for power in powers[::every]]

    @property
    def header(self) -> Html:
        """The axis as the title of a column."""
        marks = (element("span", words, style=f"left:{place:.1f}%") for place, words in self.ticks)
        return element("span", *marks, class_="axis", aria_hidden="true")

    def strip(self, spread: Spread, what: str) -> Html:
        """One row: p50 to p95 wide, on to p99 thin, a mark at the p50."""
        if spread.p50 is None or spread.p95 is None or spread.p99 is None:
            return element("span", "unknown", class_="faint")
        p50, p95, p99 = (self.x(rank) for rank in (spread.p50, spread.p95, spread.p99))
        words = "p50 {}, p95 {}, p99 {}".format(*(duration(rank).text for rank in (spread.p50, spread.p95, spread.p99)))
        grid = "".join(f"M{place:.1f} 0V16" for place, _ in self.ticks)
        return _svg(
            f"{what}: {words}",
            element("path", d=grid, class_="grid"),
            _box(p50, p99, 6.5, 3.0, "tail"),
            _box(p50, p95, 4.0, 8.0, "body"),
            _box(max(0.0, p50 - 0.4), p50 + 0.4, 2.0, 12.0, "middle"),
            height=16.0,
            class_="strip",
        )


def bars(series: Series, axis: Timeline, *, kind: str, dark: Iterable[Html] = ()) -> Html:
    """Plot counts over time as a filled step line; `kind` is the colour's class, `dark` as from `shade`."""
    most = max(series.points, default=0)
    at = instant(axis.first_at + timedelta(seconds=axis.step_seconds * series.points.index(most))).text
    words = (
        f"{series.label}: {count(series.total).text} in all, at most {count(most).text} in {step_words(axis)}, at {at}"
    )
    return _svg(words, *dark, _steps(series.points, max(1, most), kind), _floor(), height=_HEIGHT, class_="bars")


def shade(axis: Timeline, start_us: int, end_us: int) -> Html:
    """Return the background of a plot over time between two instants, microseconds since 1970."""
    begin, whole = axis.first_at.timestamp(), axis.step_seconds * axis.buckets
    left, right = (WIDTH * min(1.0, max(0.0, (one / 1e6 - begin) / whole)) for one in (start_us, end_us))
    return _box(left, right, 0.0, _HEIGHT, "dark")


def held(hold: Hold, dark: Iterable[Html]) -> Html:
    """Plot bytes held at once over time, and the recommendation as a line; `dark` as from `shade`."""
    words = f"{hold.instance}: at most {size(hold.peak_bytes).text} held at once"
    top = round(1.08 * max(hold.peak_bytes, hold.recommended_bytes or 0, 1))
    line: list[Html] = []
    if hold.recommended_bytes is not None:
        y = _HEIGHT * (1 - hold.recommended_bytes / top)
        line = [_line(0.0, WIDTH, y, y, "mark")]
        words += f", {size(hold.recommended_bytes).text} recommended"
    steps = _steps([one or 0 for one in hold.peaks], top, "held")
    return _svg(words, *dark, steps, *line, _floor(), height=_HEIGHT, class_="bars tall")


def parts(values: Sequence[tuple[str, int, str]], what: str) -> Html:
    """Plot a whole and its parts as one bar; each part has words, a number and its colour's class."""
    shown = [(words, number, kind) for words, number, kind in values if number]
    whole = sum(number for _, number, _ in shown) or 1
    widths = [max(_LEAST, WIDTH * number / whole) for _, number, _ in shown]
    boxes, left, scale = [], 0.0, WIDTH / (sum(widths) or 1)
    for (words, number, kind), width in zip(shown, widths, strict=True):
        box = _box(left, left + width * scale, 0.0, 10.0, kind)
        boxes.append(element("g", element("title", f"{number:,} {words}"), box))
        left += width * scale
    told = ", ".join(f"{number:,} {words}" for words, number, _ in values)
    return _svg(f"{what}: {told}", *boxes, height=10.0, class_="parts")


def time_axis(axis: Timeline) -> Html:
    """The marks under plots over time: beginning, middle and end."""
    whole = timedelta(seconds=axis.step_seconds * axis.buckets)
    marks = (clock(axis.first_at + whole * part / 2, span=whole) for part in range(3))
    return element("span", *(element("span", mark) for mark in marks), class_="span", aria_hidden="true")


def step_words(axis: Timeline) -> str:
    """How long a bucket is."""
    return duration(axis.step_seconds * 1_000_000).text


def _svg(words: str, *shapes: Html, height: float, class_: str) -> Html:
    return element(
        "svg",
        element("title", words),
        *shapes,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        preserveAspectRatio="none",
        role="img",
        class_=class_,
    )


def _steps(points: Sequence[int], top: int, kind: str) -> Html:
    """One path however many points there are."""
    width = WIDTH / max(1, len(points))
    path = [f"M0 {_HEIGHT:g}"]
    for place, point in enumerate(points):
        seen = max(0.8, _HEIGHT * min(1.0, point / top)) if point else 0.0  # what is little is still seen
        path.append(f"V{_HEIGHT - seen:.1f}H{width * (place + 1):.2f}")
    return element("path", d="".join([*path, f"V{_HEIGHT:g}Z"]), class_=kind)


def _floor() -> Html:
    return _line(0.0, WIDTH, _HEIGHT, _HEIGHT, "grid")


def _line(x1: float, x2: float, y1: float, y2: float, kind: str) -> Html:
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind)


def _box(left: float, right: float, y: float, height: float, kind: str) -> Html:
    return element("rect", x=left, y=y, width=max(0.0, right - left), height=height, class_=kind)


def legend(*entries: tuple[str, str]) -> Html:
    """Return the meaning of the colours; an entry is a colour's class and words."""
    return element(
        "p",
        join(
            element("span", element("span", class_=f"key {kind}", aria_hidden="true"), words, class_="entry")
            for kind, words in entries
        ),
        class_="legend",
    )
