"""
The report: what the jobs found as one HTML file, readable without a network.

Spark makes small tables of the results (`gather`), the driver makes the page of them (`page`). The page has no scripts
and asks for nothing; its policy forbids both. The same results give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from broker.flow import NUMBER
from broker.pipeline.report.digest import Digest, InputFacts
from broker.pipeline.report.latency import capacity_section, drops_section, failovers_section, latency_section
from broker.pipeline.report.ledger import balance, imbalances, talkers
from broker.pipeline.report.markup import Html, element, join
from broker.pipeline.report.paths import ways
from broker.pipeline.report.style import STYLE
from broker.pipeline.report.summary import ended, ledger, overview, verdict
from broker.pipeline.report.time import course, holds, timeline
from broker.pipeline.report.traffic import loops_section, losses_section, map_section, talkers_section

NEEDED = ("paths", "dialogs", "routes", "capacity", "reconcile")
"""The jobs whose results the report is made of."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report(results: Mapping[str, DataFrame], facts: InputFacts) -> str:
    """
    The page.

    Args:
        results: The result of each job of `NEEDED` by name, with the columns that `broker.pipeline.schema` tells. Each
            is read several times: give what was written, or persist it.
        facts: What was read to make them.
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


def page(digest: Digest) -> str:
    """The digest as HTML."""
    sections = [
        overview(digest),
        ledger(digest),
        map_section(digest),
        latency_section(digest),
        drops_section(digest),
        loops_section(digest),
        losses_section(digest),
        capacity_section(digest),
        talkers_section(digest),
        failovers_section(digest),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", "Flow report"),
        Html(f"<style>{STYLE}</style>"),
    )
    body = element(
        "body",
        _header(digest),
        element("main", *filter(None, sections)),
        element(
            "footer",
            join([f"broker {digest.facts.version}", " · ", ended(digest)]) if digest.facts.version else ended(digest),
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(digest: Digest) -> Html:
    kind, words = verdict(digest.balance)
    links = [
        ("ledger", "Ledger"),
        ("map", "Map"),
        ("latency", "Latency"),
        ("drops", "Drops"),
        ("loops", "Loops"),
        ("losses", "Losses"),
        ("capacity", "Capacity"),
        ("talkers", "Talkers"),
        ("failovers", "Failovers"),
    ]
    return element(
        "header",
        element("h1", "Flow report"),
        element("p", words, class_=f"verdict {kind}"),
        element("nav", *(element("a", title, href=f"#{id_}") for id_, title in links), aria_label="Sections"),
    )
