"""The report as a whole: results in, one page out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from pyspark.sql import SparkSession

from broker.pipeline.report.digest import Digest, InputFacts
from broker.pipeline.report.page import NEEDED, gather, page, report
from tests.spark.resulting import FACTS, empty, small

SECTIONS = {"overview", "ledger", "map", "latency", "drops", "loops", "losses", "capacity", "talkers", "failovers"}


class Reader(HTMLParser):
    """What a browser would load or run, and whether all that was opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name in {"href", "src", "xlink:href", "action", "data"}:
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert [] == reader.open
    return reader


def test_a_page_of_all_results_has_every_section_and_asks_for_nothing(spark: SparkSession) -> None:
    html = report(small(spark), FACTS)

    seen = read(html)
    assert set(seen.ids) >= SECTIONS
    assert len(seen.ids) == len(set(seen.ids))
    assert {"data:,"} == {link for link in seen.links if not link.startswith("#")}
    assert not seen.tags & {"script", "img", "iframe", "object", "image", "foreignobject", "use"}
    assert "url(" not in html
    assert "@import" not in html


def test_the_same_results_give_the_same_page(spark: SparkSession) -> None:
    assert report(small(spark), FACTS) == report(small(spark), FACTS)


def test_a_service_named_like_a_script_stays_text(spark: SparkSession) -> None:
    html = report(small(spark), FACTS)

    assert "&lt;script&gt;" in html
    assert "<script" not in html


def test_figures_of_the_results_are_in_the_digest(spark: SparkSession) -> None:
    digest = gather(small(spark), FACTS)

    assert digest.balance is not None
    assert (4, 3, 1, False) == (
        digest.balance.sent,
        digest.balance.delivered,
        digest.balance.missing,
        digest.balance.adds_up,
    )
    assert {"shop", "gate", "bill", "far"} == {one.instance for one in digest.stations.rows}
    assert [("gate", "tcp://bill:4022", "bill", 1)] == [
        (one.from_instance, one.next_hop, one.to_instance, one.lost) for one in digest.losses.rows
    ]
    assert [("shop", "gate", "far", "gate")] == [one.path for one in digest.loops.rows]
    assert [("no route", 1)] == [(one.label, one.total) for one in digest.drops]
    assert [("gate", 1)] == [(one.label, one.total) for one in digest.failovers]


def test_what_is_empty_is_told_in_words(spark: SparkSession) -> None:
    html = report(empty(spark), InputFacts(flows="nowhere"))

    read(html)
    assert set(empty(spark)) == set(NEEDED)
    for words in (
        "No records were found in nowhere",
        "nothing to add up",
        "No frame was seen",
        "No time is known",
        "No drops",
        "No frame came to the same gateway twice",
        "No transmission is known to be lost",
        "No instance held a frame",
        "No service sent a message",
        "No failovers",
    ):
        assert words in html, words


@pytest.mark.parametrize("name", ["\x00", "\ud800", "﷐", "\x1b[2J"])
def test_characters_that_html_does_not_have_are_replaced(name: str) -> None:
    html = page(Digest(InputFacts(flows=name, records=1)))

    html.encode()
    assert "\N{REPLACEMENT CHARACTER}" in html


def test_the_policy_of_the_page_forbids_scripts_and_loading() -> None:
    html = page(Digest(InputFacts()))

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "script" not in policy[1]
