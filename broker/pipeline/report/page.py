"""
The report: the results of the jobs as one HTML file, readable without a network.

Spark makes small tables of the results (`gather`), the driver makes the page of them (`page`). The page has no scripts
and asks for nothing; its policy forbids both. The same results give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.resources import files

from pyspark.sql import DataFrame

from broker.config.units import Quantity, count, duration, instant, plural, share
from broker.flow import NUMBER
from broker.pipeline.report.digest import Digest, Imbalance, InputFacts, LedgerTotal
from broker.pipeline.report.latency import capacity_section, drops_section, failovers_section, latency_section
from broker.pipeline.report.markup import (
    Child,
    Column,
    Html,
    details,
    element,
    join,
    lost,
    more,
    name,
    number,
    section,
    table,
    way,
)
from broker.pipeline.report.plot import bars, legend, parts, step_words, time_axis
from broker.pipeline.report.tables import balance, course, holds, imbalances, talkers, timeline, ways
from broker.pipeline.report.traffic import loops_section, losses_section, map_section, talkers_section
from broker.pipeline.results import RESULTS

# --- the first sections: what was read, what cannot be known, and whether the ledger adds up ---


_SHOWN = 12  # dialogs that do not add up, before a click


def tiles(*entries: tuple[str, Child]) -> Html:
    """Return figures with their names, side by side."""
    return element(
        "dl",
        *(element("div", element("dt", words), element("dd", figure)) for words, figure in entries),
        class_="tiles",
    )


def verdict(balance: LedgerTotal | None) -> tuple[str, str]:
    """Return whether the ledger adds up: the class of its colour, and words."""
    if balance is None:
        return "quiet", "No messages, so no ledger"
    if balance.adds_up is None:
        return "quiet", "No sender keeps a journal, so no ledger"
    if not balance.adds_up:
        return "bad", "The ledger does not add up"
    if balance.under_way:
        return "good", f"The ledger adds up, {count(balance.under_way).text} under way"
    return "good", "The ledger adds up"


def overview(digest: Digest) -> Html:
    """Return the section on the input that was read."""
    facts = digest.facts
    if not facts.records:
        return section("overview", "Input", f"No records were found in {facts.flows or 'the journal'}.")
    first, last = digest.extent.first_at, digest.extent.last_at
    span = last - first if first and last else None
    figures = tiles(
        ("records", count(facts.records)),
        ("files", count(facts.files)),
        ("instances", count(facts.instances)),
        ("transmissions", count(digest.extent.transmissions)),
        ("time span", duration(span / timedelta(microseconds=1)) if span is not None else None),
        ("sample of dialogs", _sample(facts)),
    )
    period = f" Only the time {facts.period} was asked for." if facts.period else ""
    lead = join(["From ", instant(first), " to ", instant(last), " UTC, read from ", name(facts.flows), ".", period])
    return section("overview", "Input", lead, figures, _traffic(digest), _unknown(digest))


def ledger(digest: Digest) -> Html:
    """Return the section on what was sent, and what became of it."""
    balance = digest.balance
    if balance is None:
        return section("ledger", "Ledger", "No messages were sent, so there is nothing to add up.")
    terms = (
        (balance.delivered, "delivered", "good"),
        (balance.acknowledged, "acknowledged", "calm"),
        (balance.under_way, "under way", "warn"),
        (balance.missing, "missing", "bad"),
    )
    also = ((balance.untold, "from senders without a journal", "warn"), (balance.invented, "never sent", "bad"))
    sum_ = element(
        "p",
        _term(balance.sent, "sent", ""),
        *(join([" + ", _term(*term)]) for term in also if term[0]),
        *(join([" = " if place == 0 else " + ", _term(*term)]) for place, term in enumerate(terms)),
        class_="equation",
    )
    wrong = tiles(
        ("delivered twice", lost(balance.doubled)),
        ("never sent", lost(balance.invented)),
        ("transmissions", count(balance.transmissions)),
        ("resent", count(balance.resent)),
        ("dropped", count(balance.dropped)),
        ("messages lost on links", count(balance.lost)),
        ("duplicates refused", count(balance.duplicates)),
    )
    bar = parts([(words, number, kind) for number, words, kind in terms], "Of what was sent")
    key = legend(*((kind, words) for number, words, kind in terms if number))
    return section("ledger", "Ledger", _lead(digest, balance), sum_, bar, key, wrong, _imbalances(digest))


def _lead(digest: Digest, balance: LedgerTotal) -> str:
    if balance.adds_up is None:
        return "No instance that sends keeps a journal: whether anything is missing is not known."
    if balance.adds_up:
        rest = " or still on its way" if balance.under_way else ""
        return f"Every message that was sent is delivered{rest}, and none was delivered twice."
    wrong = digest.imbalances.total
    return f"{plural(wrong, 'dialog does', 'dialogs do')} not add up; each direction counts for itself."


def _imbalances(digest: Digest) -> Html | None:
    if not digest.imbalances.rows:
        return None
    columns = [Column("dialog and first problems"), *map(number, ("missing", "doubled", "never sent"))]
    rows = list(map(_imbalance, digest.imbalances.rows))
    shown = table(columns, rows[:_SHOWN], caption="Dialogs that do not add up")
    others = table(columns, rows[_SHOWN:], caption="The other dialogs that do not add up")
    rest = details(f"{len(rows) - _SHOWN} more", others) if len(rows) > _SHOWN else None
    return element(
        "div",
        element("h3", "What does not add up"),
        shown,
        rest,
        more(len(digest.imbalances.rows), digest.imbalances.total),
    )


def _imbalance(one: Imbalance) -> tuple[Child, ...]:
    """Everything that is long in one cell, which wraps: nothing is off the screen, however narrow that is."""
    lines = (
        way(one.from_service, one.to_service),
        element("code", one.conversation),
        element("span", "; ".join(one.problems), class_="faint"),
    )
    dialog = element("div", *(element("div", line) for line in lines))
    return dialog, lost(one.missing), lost(one.doubled), lost(one.invented)


def _term(number: int, words: str, kind: str) -> Html:
    colour = kind if number else "nothing"
    return element("span", element("b", f"{number:,}", class_=colour or None), f" {words}", class_="term")


def _sample(facts: InputFacts) -> Child:
    if not facts.samples:
        return Quantity("unknown")
    least, most = (share(one, 1).text for one in (facts.samples[0], facts.samples[-1]))
    return least if least == most else f"{least} to {most}"


def _traffic(digest: Digest) -> Html | None:
    axis = digest.timeline
    if axis is None:
        return None
    plot = bars(digest.traffic, axis, kind="flow")
    most = max(digest.traffic.points, default=0)
    caption = join(["Frames at all instances, in steps of ", step_words(axis), "; the highest is ", count(most), "."])
    return element("figure", plot, time_axis(axis), element("figcaption", caption), class_="wide-bars")


def _unknown(digest: Digest) -> Html | None:
    """Return the note on what the journals leave open; it precedes any figure that it affects."""
    found = list(_gaps(digest))
    if not found:
        return None
    return element(
        "div", element("h3", "What is not known"), element("ul", *(element("li", one) for one in found)), class_="note"
    )


def _gaps(digest: Digest) -> Iterator[Child]:
    yield from (_sentence(words) for words in digest.facts.troubles if not words.startswith(" "))
    files = [element("li", words.strip()) for words in digest.facts.troubles if words.startswith(" ")]
    if files:
        yield details("The files that were left out", element("ul", *files))
    extent = digest.extent
    if extent.missing_hops:
        of_all = share(extent.missing_hops, extent.transmissions).text
        words = (
            "passed an instance that keeps no journal, or that died before it wrote: when they were there, and what"
            " became of them there, is unknown."
        )
        yield f"{plural(extent.missing_hops, 'transmission')} ({of_all}) {words}"
    if extent.unknown_links:
        words = (
            "crossed a link between instances whose clocks contradict each other: times between such two are left out,"
            " in both directions."
        )
        yield f"{plural(extent.unknown_links, 'transmission')} {words}"
    if digest.balance is not None and digest.balance.untold:
        words = "arrived whose sender keeps no journal, or none that goes so far back."
        yield f"{plural(digest.balance.untold, 'message')} {words}"


def _sentence(words: str) -> str:
    """Return the inventory's words with a full stop; the first may be an instance's name, so it stays as it is."""
    plain = words.strip().replace(" truncated", " files truncated")
    plain = plain.replace("1 files", "1 file") if plain.startswith("1 files") else plain
    return plain if plain.endswith(".") else f"{plain}."


def ended(digest: Digest) -> str:
    """The last instant of the history, for the foot of the page."""
    last = digest.extent.last_at
    return "" if last is None else f"history up to {instant(last).text} UTC"


NEEDED = tuple(RESULTS)
"""The jobs whose results the report is made of."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report(results: Mapping[str, DataFrame], facts: InputFacts) -> str:
    """
    The page.

    Args:
        results: The result of each job of `NEEDED` by name, with the columns that `broker.pipeline.results` describes.
            Each is read several times: give what was written, or persist it.
        facts: The input from which they were made.
    """
    return page(gather(results, facts))


def gather(results: Mapping[str, DataFrame], facts: InputFacts) -> Digest:
    """The small tables; `results` and `facts` as for `report`."""
    found = ways(results["paths"])
    axis = timeline(results["routes"], results["capacity"])
    over_time = course(results["routes"], axis)
    services, conversations = talkers(results["dialogs"])
    return Digest(
        facts=facts,
        balance=balance(results["reconcile"]),
        imbalances=imbalances(results["reconcile"]),
        **found._asdict(),
        **over_time._asdict(),
        timeline=axis,
        codes={str(reason): number for reason, number in NUMBER.items()},
        holds=holds(results["capacity"], axis),
        services=services,
        conversations=conversations,
    )


_SECTIONS = (
    *(overview, ledger, map_section, latency_section, drops_section, loops_section, losses_section),
    *(capacity_section, talkers_section, failovers_section),
)


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
        element("main", *(make(digest) for make in _SECTIONS)),
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
