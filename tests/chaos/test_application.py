"""What applications of a fault run do, and tell: as their plans have it, wholly or not at all, and again as before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import broker
from broker.conversation.message_types import DEFAULT, DIALOG_TIMER, ERROR, error_body
from tests.chaos import plan
from tests.chaos import work as working
from tests.chaos.application import Target
from tests.chaos.history import Entry, What, read_history
from tests.chaos.initiator import Initiator
from tests.chaos.job import Job, Orders, history_of
from tests.chaos.plan import CONTRACTS, LIFETIME, Close, Plan, make_plan
from tests.chaos.reader import Answers
from tests.chaos.talk import ERROR_CODE, LAST
from tests.chaos.work import UndoneError, Work
from tests.support.shop import Shop

WAITING = 120  # messages, more than one RECEIVE takes


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def work(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Work:
    """An initiator's, in its first phase; no dialog is brief, and targets end all."""
    monkeypatch.setattr(working, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(working, "UNDONE_SHARE", 0.0)
    monkeypatch.setattr(plan, "BRIEF_SHARE", 0.0)
    monkeypatch.setattr(plan, "TIMERS_SHARE", 0.0)
    monkeypatch.setattr(plan, "CLOSES", {Close.TARGET: 1})
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


def make(**changes: Any) -> Plan:
    """A plan of three messages that the target ends."""
    plain = Plan(Close.TARGET, 3, LIFETIME, DEFAULT, (), is_related=False, is_hasty=False)
    return replace(plain, **changes)


def until_sent(initiator: Initiator, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """One dialog with such a plan, as far as it comes by sending."""
    monkeypatch.setattr("tests.chaos.initiator.BEAT_SECONDS", 0.0)
    monkeypatch.setattr("tests.chaos.initiator.make_plan", lambda seed, may_fail: make(**changes))
    initiator.step(is_sending=True)
    for _ in range(20):
        initiator.step(is_sending=False)


def kinds(work: Work) -> list[tuple[What, int]]:
    return [(entry.event.what, entry.event.number) for entry in told(work)]


SENT = [(What.SENT, 0), (What.SENT, 1), (What.SENT, 2)]
ENDS = {
    "left to the target": (Close.TARGET, [], "CO"),
    "when all answers are there": (Close.ANSWERED, [], "CO"),
    "behind the last message": (Close.BEHIND, [(What.ENDED, -1)], "DO"),
    "with an error": (Close.ERROR, [(What.ENDED, ERROR_CODE + 1)], "DO"),
    "forgotten": (Close.CLEANUP, [(What.CLEANED, -1)], None),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_dialog_ends_as_it_was_planned(name: str, work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    close, expected, state = ENDS[name]

    until_sent(Initiator(work), monkeypatch, close=close, is_hasty=True)

    assert [(What.BEGAN, -1), *SENT, *expected] == [one for one in kinds(work) if one[0] is not What.SET]
    assert ([state] if state else []) == shop.seen()["conversations"]


def test_a_dialog_ends_when_all_answers_are_there_also_where_its_application_was_killed_before(
    work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_sent(Initiator(work), monkeypatch, close=Close.ANSWERED)
    handle = told(work)[0].event.note.rpartition(" ")[2]
    shop.arrive(broker.get_dialog(shop.connect(), handle), b"one", b"two", b"three")
    successor = Initiator(work)

    successor.remember(work.enter(work.phase))
    for _ in range(4):
        successor.step(is_sending=False)

    assert [(What.RECEIVED, 0), (What.RECEIVED, 1), (What.RECEIVED, 2), (What.ENDED, -1)] == kinds(work)[4:]
    assert LAST == json.loads(told(work)[3].event.beside)[0]


def test_the_last_message_waits_for_the_timers_which_are_set_one_after_the_other(
    work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    initiator, before = Initiator(work), time.time()
    until_sent(initiator, monkeypatch, timers=(0.5, 0.7))
    handle = told(work)[0].event.note.rpartition(" ")[2]
    first = kinds(work)
    dialog = broker.get_dialog(shop.connect(), handle)

    shop.arrive(dialog, b"", type_name=DIALOG_TIMER)
    initiator.step(is_sending=False)
    initiator.step(is_sending=False)

    assert sorted([(What.BEGAN, -1), (What.SET, -1), *SENT[:2]]) == sorted(first)
    settings = [entry.event for entry in told(work) if entry.event.what is What.SET]
    assert [0.5, 0.7] == [pytest.approx(one.until - before, abs=5.0) for one in settings]
    assert all(one.until <= one.until_most for one in settings)
    assert What.TIMER in [what for what, _ in kinds(work)]


def test_a_timer_that_does_not_come_is_given_up_when_nothing_is_begun_any_more(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.initiator.PATIENCE_SECONDS", 0.0)

    until_sent(Initiator(work), monkeypatch, timers=(0.5,))

    assert SENT == [one for one in kinds(work) if one[0] is What.SENT]


def test_related_dialogs_are_begun_in_one_group(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.initiator.BEAT_SECONDS", 0.0)
    monkeypatch.setattr("tests.chaos.initiator.make_plan", lambda seed, may_fail: make(is_related=True, total=30))
    initiator = Initiator(work)

    for _ in range(3):
        initiator.step(is_sending=True)

    begun = [entry.event for entry in told(work) if entry.event.what is What.BEGAN]
    assert 3 == len(begun)
    assert {begun[0].group} == {one.group for one in begun} == {one.asked_group for one in begun[1:]}


def test_what_is_rolled_back_is_not_done_and_done_again_with_another_text(
    work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.initiator.make_plan", lambda seed, may_fail: make())
    initiator, undone = Initiator(work), "draft of a test "
    drafts = iter(["", "", undone])
    monkeypatch.setattr(work, "choose_draft", lambda: next(drafts, ""))
    monkeypatch.setattr("tests.chaos.initiator.BEAT_SECONDS", 0.0)
    monkeypatch.setattr(initiator, "_dice", SimpleNamespace(randint=lambda *_: 2))

    initiator.step(is_sending=True)
    initiator.step(is_sending=False)
    seen = shop.seen()
    initiator.step(is_sending=False)

    history = history_of(Path(work.job.histories), work.phase, work.job.name)
    entries = list(read_history(history, with_undone=True))
    digests = {
        what: {one.event.digest for one in entries if one.event.what is what} for what in (What.UNDONE, What.SENT)
    }
    assert {"conversations": ["SO"], "sent": []} == seen
    assert [2, 2] == [len(one) for one in digests.values()]
    assert not digests[What.UNDONE] & digests[What.SENT]
    assert [What.BEGAN, What.SENT, What.SENT] == [entry.event.what for entry in told(work)]


def test_never_are_two_transactions_in_a_row_rolled_back(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "UNDONE_SHARE", 1.0)

    drafts = [bool(work.choose_draft()) for _ in range(6)]

    assert [False, True] * 3 == drafts


def test_a_target_receives_what_waits_behind_an_error_before_it_ends(work: Work, shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send("opening")
    shop.arrive(dialog, error_body(ERROR_CODE + 1, "called off"), type_name=ERROR)
    shop.arrive(dialog, *[b"request"] * WAITING, type_name=DEFAULT)

    Target(work).step(is_sending=True)

    events = [entry.event for entry in told(work)]
    assert [What.ERROR, *[What.RECEIVED] * WAITING, What.ENDED] == [event.what for event in events]
    numbers = [event.number for event in events if event.what is What.RECEIVED]
    assert sorted(numbers) == numbers


def test_some_looks_are_for_one_group_and_tell_which(work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "GROUP_SHARE", 1.0)
    db = shop.connect(isolation_level=None)
    one, other = shop.begin(db), shop.begin(db)
    for dialog in (one, other):
        shop.arrive(dialog, b"a", b"b")

    messages, look = work.receive()

    assert 2 == len(messages)
    assert {look.asked_group} == {str(message.conversation_group_id) for message in messages}


@pytest.mark.parametrize("draft", ["", "draft of a test "])
def test_a_reader_says_what_it_is_about_to_do_and_raises_what_is_to_be_rolled_back(
    draft: str, work: Work, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Orders(work.phase, is_sending=True).write(Path(work.job.orders))
    monkeypatch.setattr(work, "choose_draft", lambda: draft)
    dialog, db = shop.begin(shop.connect(isolation_level=None)), work.db
    shop.arrive(dialog, b"request")
    answers = Answers(work)

    with pytest.raises(UndoneError) if draft else nullcontext():
        answers.take(db, broker.receive(db, queue="OrdersQueue"))
    (db.rollback if draft else db.commit)()
    answers.look()

    history = history_of(Path(work.job.histories), work.phase, work.job.name)
    whats = [entry.event.what for entry in read_history(history, with_undone=True)]
    assert ([What.UNDONE] if draft else [What.RECEIVED, What.SENT]) == whats


def test_plans_are_drawn_by_the_seed_and_have_all_shapes() -> None:
    plans = [make_plan(f"seed {number}", may_fail=True) for number in range(400)]

    assert plans[7] == make_plan("seed 7", may_fail=True)
    assert set(Close) == {plan.close for plan in plans}
    assert set(CONTRACTS) == {plan.contract for plan in plans}
    assert {0, 1, 2} == {len(plan.timers) for plan in plans}
    assert all(
        plan.close in (Close.TARGET, Close.CLEANUP) and not plan.timers for plan in plans if plan.lifetime < LIFETIME
    )
    assert all(plan.lifetime < LIFETIME for plan in plans if plan.close is Close.CLEANUP)
    assert Close.ERROR not in {make_plan(f"seed {number}", may_fail=False).close for number in range(400)}
