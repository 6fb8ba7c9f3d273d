"""The report as a whole: results in, one page out."""

import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.config.units import Quantity, instant
from broker.pipeline.report.digest import NO_RECORD, Digest, Extent, Gap, InputFacts, LedgerTotal, Listing
from broker.pipeline.report.markup import element, escape, join, name
from broker.pipeline.report.page import ledger, overview, page, style, verdict
from broker.pipeline.report.tables import NEEDED, gather
from tests.spark.resulting import FACTS, empty, small
from tests.support.reported import FIRST, digest

# --- markup that its contents cannot break ---


def test_elements_are_escaped_and_spelt_as_html_has_them() -> None:
    hostile = "\"><script>'&"
    words: dict[str, Any] = {"class_": "a", "aria_label": "b", "viewBox": "0 0 1 1", "x": 1.25, "hidden": None}

    assert '<p title="&quot;&gt;&lt;script&gt;&#x27;&amp;">&quot;&gt;&lt;script&gt;&#x27;&amp;</p>' == element(
        "p", hostile, title=hostile
    )
    assert "<p><b>x</b></p>" == element("p", element("b", "x"), None, "")
    assert '<g class="a" aria-label="b" viewBox="0 0 1 1" x="1.2" open y="2"></g>' == element(
        "g", **words, open=True, y=2.0, off=False
    )
    assert '<meta charset="utf-8">' == element("meta", charset="utf-8")
    assert '<p><span title="1,500">1.5 k</span>2</p>' == element("p", Quantity("1.5 k", "1,500"), Quantity("2"))
    assert "a\N{REPLACEMENT CHARACTER}b\tc\n" == escape("a\x00b\tc\n")
    assert '<bdi class="name">a</bdi><span class="faint">unknown</span>' == join([name("a"), name(None)])


def test_the_style_sheet_is_whole_has_every_colour_twice_and_loads_nothing() -> None:
    light, dark = (set(re.findall(r"(--[\w-]+):", block)) for block in re.findall(r":root\{([^}]*)\}", style())[:2])

    assert light == dark
    assert light >= set(re.findall(r"var\((--[\w-]+)\)", style()))
    assert not re.search(r"url\(|@import|@font-face|expression|</style", style())
    assert style().count("{") == style().count("}")


# --- the page ---

SECTIONS = {"overview", "ledger", "map", "latency", "drops", "loops", "losses", "capacity", "talkers", "failovers"}


class Reader(HTMLParser):
    """What a browser would load or run, and whether all that was opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(html)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        for key, value in attrs:
            assert not key.startswith("on"), key
            if key in {"href", "src", "xlink:href", "action", "data"}:
                self.links.append(value or "")
            if key == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_of_all_results_has_every_section_and_asks_for_nothing(spark: SparkSession) -> None:
    html = page(gather(small(spark), FACTS))

    seen = Reader(html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert set(seen.ids) >= SECTIONS
    assert len(seen.ids) == len(set(seen.ids))
    assert {"data:,", *(f"#{one}" for one in SECTIONS - {"overview"})} == set(seen.links)
    assert not seen.tags & {"script", "img", "iframe", "object", "image", "foreignobject", "use"}
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "script" not in policy[1]
    assert html == page(gather(small(spark), FACTS))
    for words in (
        *("1</b> missing or failed", "What does not add up", "tcp://bill:4022", "hops exhausted", "Drops as a table"),
        *("End to end, by service", "At each instance", "On each link", "By route", "worst p99"),
        *("held the most at once", "times a frame left", "Services that send most", "Conversations that send most"),
    ):
        assert words in html


def test_what_is_empty_has_words(spark: SparkSession) -> None:
    html = page(gather(empty(spark), InputFacts(flows="nowhere")))

    Reader(html)
    assert set(empty(spark)) == set(NEEDED)
    for words in (
        "No records were found in nowhere",
        "nothing to add up",
        "No frame was seen",
        "No time is known",
        "No journal has a drop",
        "No journal has a frame that came to the same gateway twice",
        "No transmission is known to be lost",
        "No journal has a frame that an instance held",
        "No service sent a message",
        "No failovers",
    ):
        assert words in html, words


@pytest.mark.parametrize("name", ["\x00", "\ud800", "﷐", "\x1b[2J"])
def test_characters_that_html_does_not_have_are_replaced(name: str) -> None:
    html = page(Digest(InputFacts(flows=name, records=1)))

    html.encode()
    assert "\N{REPLACEMENT CHARACTER}" in html


# --- the first sections ---

GOOD = LedgerTotal(sent=5, delivered=5)


def test_the_verdict_is_the_ledgers() -> None:
    balances = (None, GOOD, replace(GOOD, under_way=1), replace(GOOD, adds_up=None))
    wrong = (replace(GOOD, doubled=1, adds_up=False), replace(GOOD, missing=1, adds_up=False))

    assert ["quiet", "good", "good", "quiet"] == [verdict(one)[0] for one in balances]
    assert ["bad", "bad"] == [verdict(one)[0] for one in wrong]


def test_the_ledger_has_whole_numbers_and_names_what_does_not_add_up() -> None:
    html = ledger(digest())

    assert all(f"{number:,}</b>" in html for number in (1_204_311, 1_203_876, 402, 31, 2))
    for words in (
        "2 dialogs do not add up",
        "missing: message 12",
        "not seen again: lost, or not known",
        "2</b> missing or failed",
        "failed in the view sys.dm_broker_ledger",
    ):
        assert words in html


@pytest.mark.parametrize(
    ("balance", "words"),
    [
        (GOOD, "is delivered, and none was delivered twice."),
        (
            replace(GOOD, under_way=1),
            "is delivered or too late to judge, and none was delivered twice.",
        ),
        (
            replace(GOOD, acknowledged=300),
            "is delivered or acknowledged, and none is known to be delivered twice; of 300 messages no journal has",
        ),
    ],
)
def test_the_ledger_claims_no_more_than_journals_have(balance: LedgerTotal, words: str) -> None:
    html = ledger(Digest(balance=balance))

    assert f"Every message that was sent {words}" in html
    assert bool(balance.under_way) == ("Journals do not show that a dialog ended" in html)


def test_what_is_not_known_is_said_first() -> None:
    facts = replace(digest().facts, period="from 2026-11-21")
    later = FIRST + timedelta(seconds=1)
    gaps = (Gap(f"{NO_RECORD}tcp://far:1", 3_746, FIRST, later), Gap("gate", 1, FIRST, FIRST.replace(microsecond=9)))

    html = overview(replace(digest(), facts=facts, gaps=Listing(gaps, 2)))

    for words in (
        "What is not known",
        "1 file truncated or damaged, left out.",
        "core-1 shed 1,204 records",
        "1,811 transmissions (0.15 % of all) arrived whose sender keeps no journal",
        "Of 402 messages only the acknowledgement is known",
        "3,746 transmissions (0.3 % of all) went to ",
        "tcp://far:1",
        " UTC: no journal of an instance there was read.",
        join([name("gate"), " at ", instant(FIRST), " UTC: it has no record of them, because it died before it wrote"]),
        "240 transmissions crossed a link",
        "Only the time from 2026-11-21 was asked for.",
    ):
        assert words in html
    assert "What is not known" not in overview(Digest(InputFacts(records=1), extent=Extent(FIRST, FIRST, 1)))
