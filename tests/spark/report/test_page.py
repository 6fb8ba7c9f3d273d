"""The report as a whole: results in, one page out."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from pyspark.sql import SparkSession

from broker.config.units import Quantity
from broker.pipeline.report.digest import Digest, Extent, InputFacts, LedgerTotal
from broker.pipeline.report.markup import Column, Html, details, element, escape, join, more, name, table
from broker.pipeline.report.page import NEEDED, ended, gather, ledger, overview, page, report, verdict
from tests.spark.resulting import FACTS, empty, small
from tests.support.reported import FIRST, digest

# --- test_markup ---
# Markup that nothing in it can break.


def test_text_is_escaped_in_children_and_attributes() -> None:
    hostile = "\"><script>'&"

    made = element("p", hostile, title=hostile)

    assert '<p title="&quot;&gt;&lt;script&gt;&#x27;&amp;">&quot;&gt;&lt;script&gt;&#x27;&amp;</p>' == made


def test_markup_is_left_as_it_is() -> None:
    assert "<p><b>x</b></p>" == element("p", element("b", "x"))


def test_attributes_are_spelt_as_html_has_them() -> None:
    made = element("g", class_="a", aria_label="b", viewBox="0 0 1 1", x=1.25, y=2.0, hidden=None, open=True, off=False)

    assert '<g class="a" aria-label="b" viewBox="0 0 1 1" x="1.2" y="2" open></g>' == made


def test_void_elements_are_not_closed() -> None:
    assert '<meta charset="utf-8">' == element("meta", charset="utf-8")


def test_a_rounded_quantity_shows_its_exact_figure() -> None:
    assert '<p><span title="1,500">1.5 k</span>2</p>' == element("p", Quantity("1.5 k", "1,500"), Quantity("2"))


def test_characters_that_no_page_may_have_are_replaced() -> None:
    assert "a\N{REPLACEMENT CHARACTER}b\tc\n" == escape("a\x00b\tc\n")


def test_names_of_others_are_apart_from_the_text_around_them() -> None:
    assert '<bdi class="name">a</bdi>' == name("a")
    assert '<span class="faint">unknown</span>' == name(None)


def test_a_table_has_headings_for_columns_and_rows() -> None:
    made = table([Column("who"), Column("many", is_number=True, is_aside=True)], [("<a>", "1")], caption="c")

    assert '<th scope="col">who</th><th class="number aside" scope="col">many</th>' in made
    assert '<th scope="row">&lt;a&gt;</th><td class="number aside">1</td>' in made
    assert '<caption class="unseen">c</caption>' in made


def test_details_are_closed_until_asked_for() -> None:
    assert "<details><summary>more</summary>x</details>" == details("more", "x")


def test_what_is_not_there_leaves_nothing() -> None:
    assert Html() == join([None, ""])


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
        for key, value in attrs:
            assert not key.startswith("on"), key
            if key in {"href", "src", "xlink:href", "action", "data"}:
                self.links.append(value or "")
            if key == "id":
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


# --- test_summary ---
# The first sections say what was read, what is not known, and what the ledger comes to.


GOOD = LedgerTotal(sent=5, delivered=5)


@pytest.mark.parametrize(
    ("balance", "kind"),
    [
        (None, "quiet"),
        (GOOD, "good"),
        (replace(GOOD, under_way=1), "good"),
        (replace(GOOD, adds_up=False), "bad"),
        (replace(GOOD, adds_up=None), "quiet"),
    ],
)
def test_the_verdict_is_the_ledgers(balance: LedgerTotal | None, kind: str) -> None:
    assert kind == verdict(balance)[0]


def test_the_ledger_is_told_in_whole_numbers() -> None:
    html = ledger(digest())

    assert all(f"{number:,}</b>" in html for number in (1_204_311, 1_203_876, 402, 31, 2))


def test_what_does_not_add_up_is_named() -> None:
    html = ledger(digest())

    assert "2 dialogs do not add up" in html
    assert "missing: message 12" in html


def test_figures_have_a_noun() -> None:
    assert "1 file truncated or damaged, left out." in overview(digest())
    assert "messages lost on links" in ledger(digest())


def test_the_period_that_was_asked_for_is_told() -> None:
    facts = replace(digest().facts, period="from 2026-11-21")

    assert "Only the time from 2026-11-21 was asked for." in overview(replace(digest(), facts=facts))


def test_messages_of_senders_without_a_journal_are_on_the_left_side() -> None:
    html = ledger(Digest(InputFacts(), balance=replace(GOOD, sent=3, untold=2)))

    assert "3</b> sent" in html
    assert "2</b> from senders without a journal" in html


def test_a_ledger_that_cannot_be_told_is_not_called_good() -> None:
    html = ledger(Digest(InputFacts(), balance=LedgerTotal(delivered=2, untold=2, adds_up=None)))

    assert "cannot be told" in html


def test_what_is_not_known_is_said_first() -> None:
    html = overview(digest())

    assert "What is not known" in html
    assert "core-1 shed 1,204 records" in html
    assert "1,811 transmissions (0.15 %) passed an instance that keeps no journal" in html
    assert "240 transmissions crossed a link" in html


def test_nothing_unknown_is_not_mentioned() -> None:
    html = overview(Digest(InputFacts(records=1, samples=(1.0,)), extent=Extent(FIRST, FIRST, 1)))

    assert "What is not known" not in html


@pytest.mark.parametrize(("samples", "words"), [((), "not told"), ((0.01,), "1 %"), ((0.01, 1.0), "1 % to 100 %")])
def test_samples_are_told(samples: tuple[float, ...], words: str) -> None:
    assert f"<dd>{words}</dd>" in overview(Digest(InputFacts(records=1, samples=samples)))


def test_rows_that_are_left_out_are_mentioned() -> None:
    assert more(3, 3) is None
    assert "3 are shown" in str(more(3, 4))


def test_the_foot_tells_the_last_instant() -> None:
    assert "history up to 2026-11-22 06:00:00 UTC" == ended(digest())
    assert not ended(Digest(InputFacts()))
