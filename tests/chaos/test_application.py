"""What an application of a fault run tells: the lifetime it asked for, when it found nothing, and all that waited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.conversation.well_known import DEFAULT, ERROR, error_body
from tests.chaos import application
from tests.chaos.application import LIFETIME, Initiator, Work
from tests.chaos.history import Entry, What, read_history
from tests.chaos.job import Job, history_of
from tests.chaos.talk import ERROR_CODE
from tests.support.shop import Shop

WAITING = 120  # messages, more than one RECEIVE takes


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def work(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Work:
    """An initiator's, in its first phase; no dialog is brief."""
    monkeypatch.setattr(application, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(application, "BRIEF_SHARE", 0.0)
    histories, orders = str(tmp_path / "histories"), str(tmp_path / "orders.json")
    job = Job("orders", "initiator", str(shop.path), histories, orders, "OrdersQueue", "Orders", ["//far/Billing"])
    work = Work(job)
    work.enter("001-kill")
    return work


def told(work: Work) -> list[Entry]:
    return list(read_history(history_of(Path(work.job.histories), work.phase, work.job.name)))


def test_a_lifetime_is_told_by_the_application_s_own_clock_beside_what_it_is_said_to_be(work: Work) -> None:
    before = time.time()

    Initiator(work).step(is_sending=True)

    began = next(entry.event for entry in told(work) if entry.event.what is What.BEGAN)
    assert before + LIFETIME <= began.until <= began.said_until <= began.until_most <= time.time() + LIFETIME
    assert began.note.startswith("//far/Billing ")


def test_what_comes_is_told_with_when_there_was_nothing_and_all_that_waits_behind_an_error_is_received(
    work: Work, shop: Shop
) -> None:
    initiator = Initiator(work)
    before = time.monotonic()
    initiator.step(is_sending=True)
    began = next(entry for entry in told(work) if entry.event.what is What.BEGAN)
    handle = began.event.note.rpartition(" ")[2]
    dialog = broker.get_dialog(shop.connect(), handle)
    shop.arrive(dialog, error_body(ERROR_CODE, "not wanted"), type_name=ERROR)
    shop.arrive(dialog, *[b"answer"] * WAITING, type_name=DEFAULT)

    initiator.step(is_sending=False)

    came = [entry for entry in told(work) if entry.event.what is not What.SENT][1:]
    assert [What.ERROR] + [What.RECEIVED] * WAITING + [What.ENDED] == [entry.event.what for entry in came]
    assert (ERROR_CODE, "not wanted") == (came[0].event.number, came[0].event.note)
    assert all(before <= entry.event.idle_at <= entry.at for entry in came[:-1])
    assert {came[0].at} == {entry.at for entry in came}


def test_what_was_asked_for_is_told_whatever_the_dialog_is_given(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = broker.begin_dialog
    monkeypatch.setattr(
        broker, "begin_dialog", lambda *args, lifetime, **more: begin(*args, lifetime=lifetime * 2, **more)
    )

    Initiator(work).step(is_sending=True)

    began = next(entry.event for entry in told(work) if entry.event.what is What.BEGAN)
    assert began.said_until >= began.until + LIFETIME
    assert began.until_most <= time.time() + LIFETIME
