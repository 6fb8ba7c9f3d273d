"""
The page of the report: one HTML file, readable without a network.

It has no scripts and asks for nothing; its policy forbids both. The same digest gives the same bytes.
"""

from __future__ import annotations

from importlib.resources import files

from broker.config.units import instant
from broker.pipeline.report.digest import Digest
from broker.pipeline.report.markup import Html, element
from broker.pipeline.report.sections import SECTIONS, verdict

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(digest: Digest) -> str:
    """The digest as HTML."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", "Flow report"),
        Html(f"<style>{style()}</style>"),
    )
    body = element(
        "body",
        _header(digest),
        element("main", *(make(digest) for make in SECTIONS)),
        element("footer", f"broker {digest.facts.version} · " if digest.facts.version else None, ended(digest)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def style() -> str:
    """Return the style sheet: for light and dark, narrow and wide, screen and paper."""
    return files("broker.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")


def _header(digest: Digest) -> Html:
    kind, words = verdict(digest.balance)
    sections = ("ledger", "map", "latency", "drops", "loops", "losses", "capacity", "talkers", "failovers")
    return element(
        "header",
        element("h1", "Flow report"),
        element("p", words, class_=f"verdict {kind}"),
        element("nav", *(element("a", one.title(), href=f"#{one}") for one in sections), aria_label="Sections"),
    )


def ended(digest: Digest) -> str:
    """The last instant of the history, for the foot of the page."""
    last = digest.extent.last_at
    return "" if last is None else f"history up to {instant(last).text} UTC"
