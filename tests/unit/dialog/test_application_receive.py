"""RECEIVE: what comes, in which order, how long it is waited for, and what is left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.dialog import application
from broker.dialog.application import DEFAULT, END_DIALOG, ERROR, receive

Shop = Any  # its class is in conftest.py, which nothing imports


# --- receive ------------------------------------------------------------------------------------------------


def test_received_message_tells_all_of_itself(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db, contract="//shop/Invoicing")
    shop.arrive(dialog, b"answer", type_name="//shop/Receipt")

    (message,) = receive(db, queue="OrdersQueue")

    assert (
        message.type,
        message.body,
        message.contract,
        message.service_name,
        message.message_sequence_number,
    ) == ("//shop/Receipt", b"answer", "//shop/Invoicing", "Orders", 0)
    assert datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC) == message.message_enqueue_time
    assert dialog.conversation_handle == message.dialog.conversation_handle
    assert dialog.conversation_id == message.dialog.conversation_id


def test_dialog_of_a_received_message_answers(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"question")
    db.execute("UPDATE broker_conversation SET state = 'CO', is_initiator = 0")

    (message,) = receive(db, queue="OrdersQueue")
    message.dialog.send(b"ok")
    message.dialog.end()

    assert shop.seen() == {"conversations": ["DO"], "sent": [b"ok", b""]}


@pytest.mark.parametrize(
    ("type_name", "is_end", "is_error"), [(DEFAULT, False, False), (END_DIALOG, True, False), (ERROR, False, True)]
)
def test_message_tells_whether_the_dialog_has_ended(shop: Shop, type_name: str, is_end: bool, is_error: bool) -> None:  # noqa: FBT001  (a table's column)
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"", type_name=type_name)

    (message,) = receive(db, queue="OrdersQueue")

    assert (is_end, is_error) == (message.is_end, message.is_error)


def test_messages_come_in_the_order_of_arrival_as_many_as_asked_for(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    one, two = shop.begin(db), shop.begin(db)
    for n in range(3):
        shop.arrive(one, b"one %d" % n)
        shop.arrive(two, b"two %d" % n)

    batches = [[message.body for message in receive(db, queue="OrdersQueue", top=4)] for _ in range(3)]

    assert batches == [[b"one 0", b"two 0", b"one 1", b"two 1"], [b"one 2", b"two 2"], []]


def test_messages_of_one_dialog_share_it(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    one, two = shop.begin(db), shop.begin(db)
    for dialog in (one, two, one):
        shop.arrive(dialog, b"")

    first, second, third = receive(db, queue="OrdersQueue")

    assert first.dialog is third.dialog
    assert first.dialog is not second.dialog


def test_only_the_queue_asked_for_is_received_from(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive(dialog, b"orders")
    shop.arrive(dialog, b"billing", queue="BillingQueue")

    assert [message.body for message in receive(db, queue="BillingQueue")] == [b"billing"]


def test_empty_queue_gives_nothing_and_opens_no_transaction(shop: Shop) -> None:
    db = shop.connect()

    assert receive(db, queue="OrdersQueue") == []
    assert not db.in_transaction


@pytest.mark.parametrize(
    ("queue", "top", "number"),
    [("Nobody", 1, 208), ("ordersqueue", 1, 208), ("OrdersQueue", 0, 127), ("OrdersQueue", -1, 127)],
)
def test_receive_that_cannot_be_is_refused(shop: Shop, queue: str, top: int, number: int) -> None:
    db = shop.connect()

    assert number == shop.refusal(lambda: receive(db, queue=queue, top=top, wait=60))


def test_disabled_queue_is_refused_and_keeps_its_messages(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"kept")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")

    number = shop.refusal(lambda: receive(db, queue="OrdersQueue"))
    db.execute("UPDATE broker_queue SET is_receive_enabled = 1")

    assert (number, [message.body for message in receive(db, queue="OrdersQueue")]) == (9617, [b"kept"])


# --- waiting ------------------------------------------------------------------------------------------------


class Clock:
    """Stands for the time module: sleeping takes no time, and may make something happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.happenings: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.happenings.get(len(self.pauses), lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(application, "time", clock)
    return clock


def test_waiting_receive_returns_with_what_comes(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    clock.happenings[3] = lambda: shop.arrive(dialog, b"at last")

    messages = receive(db, queue="OrdersQueue", wait=30)

    assert ([message.body for message in messages], len(clock.pauses)) == ([b"at last"], 3)


def test_waiting_receive_gives_up_in_time_with_ever_longer_pauses(shop: Shop, clock: Clock) -> None:
    db = shop.connect()
    shortest, longest = application.POLL_SECONDS

    messages = receive(db, queue="OrdersQueue", wait=10)

    assert messages == []
    assert clock.now == pytest.approx(1010)
    assert clock.pauses[0] == shortest
    assert sorted(clock.pauses[:-1]) == clock.pauses[:-1]
    assert max(clock.pauses) == longest
    assert not db.in_transaction


def test_queue_disabled_meanwhile_ends_the_waiting(shop: Shop, clock: Clock) -> None:
    db = shop.connect()
    clock.happenings[2] = lambda: shop.connect(isolation_level=None).execute(
        "UPDATE broker_queue SET is_receive_enabled = 0"
    )

    assert shop.refusal(lambda: receive(db, queue="OrdersQueue", wait=30)) == 9617


def test_receive_inside_an_open_transaction_does_not_wait(shop: Shop, clock: Clock) -> None:
    """It would keep the lock that the daemon needs to store what is waited for."""
    db = shop.connect()
    db.execute("INSERT INTO orders VALUES (1, '')")

    assert receive(db, queue="OrdersQueue", wait=30) == []
    assert clock.pauses == []
    assert db.in_transaction


def test_message_that_another_reader_took_first_is_waited_on_without_a_lock(shop: Shop, clock: Clock) -> None:
    """Between the look and the lock somebody else was faster."""
    other = shop.connect(isolation_level=None)

    class Slow(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql.startswith("BEGIN") and not clock.pauses:
                taken.extend(receive(other, queue="OrdersQueue"))
            return super().execute(sql, *parameters)

    taken: list[object] = []
    dialog = shop.begin(other)
    shop.arrive(dialog, b"taken")
    db = shop.connect(factory=Slow)
    is_locked = []
    clock.happenings[1] = lambda: is_locked.append(db.in_transaction)
    clock.happenings[2] = lambda: shop.arrive(dialog, b"next")

    messages = receive(db, queue="OrdersQueue", wait=30)

    assert (len(taken), is_locked, [message.body for message in messages]) == (1, [False], [b"next"])
