"""
HTML and SVG that cannot be broken by their contents.

Service, instance and route names are from peers. Whatever is not `Html` is escaped when it becomes a child or an
attribute, and characters that HTML does not allow are replaced. Only `element`, `join` and literals of the report's own
modules make `Html`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.config.units import Quantity, count

_REFUSED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


_VOID = frozenset({"br", "link", "meta"})


Attribute = str | float | bool | None


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table; one that `is_aside` is left out where the page is narrow."""

    title: str | Html
    is_number: bool = False
    is_aside: bool = False
    style: str = ""


Child = str | Quantity | None


def number(title: str, *, is_aside: bool = False) -> Column:
    """Return a column of numbers."""
    return Column(title, is_number=True, is_aside=is_aside)


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


def table(columns: Sequence[Column], rows: Iterable[Sequence[Child]], *, caption: str, is_plain: bool = False) -> Html:
    """
    Return a table; the first cell of a row is its heading.

    Args:
        columns: One for each cell.
        rows: Their cells.
        caption: Its contents, for readers who cannot see it.
        is_plain: Whether it keeps all its columns on a narrow page, and scrolls there.
    """
    head = element("tr", *(_cell("th", column, column.title, scope="col") for column in columns))
    body = [
        element(
            "tr",
            _cell("th", columns[0], row[0], scope="row"),
            *(_cell("td", column, cell) for column, cell in zip(columns[1:], row[1:], strict=True)),
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
