"""The first sections say what was read, what is not known, and what the ledger comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.pipeline.report.digest import Digest, Extent, InputFacts, LedgerTotal
from broker.pipeline.report.markup import more
from broker.pipeline.report.page import ended, ledger, overview, verdict
from tests.support.reported import FIRST, digest

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
    assert "1 file broken off or unreadable, left out." in overview(digest())
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
