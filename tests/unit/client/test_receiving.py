"""RECEIVE: what comes, in which order, how long it is waited for, and what is left behind."""

import json
import sqlite3
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.trace import get_current_span

from broker.client import receiving as module
from broker.client.dialog import Dialog, get_dialog
from broker.client.receiving import get_conversation_group, receive
from broker.client.waiting import POLL_SECONDS
from broker.conversation.body_check import error_body
from broker.conversation.message_types import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR
from broker.store.sqlite.quarantine import failures
from broker.store.sqlite.schema import LARGE_BYTES
from tests.support.shop import Shop

LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"
GROUP = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


def test_message_tells_all_of_itself(shop: Shop, db: sqlite3.Connection) -> None:
    """Whatever the settings of the connection."""
    db.row_factory, db.text_factory = sqlite3.Row, bytes
    dialog = shop.begin(db, contract="C", related_conversation_group=GROUP)
    shop.change(dialog, "priority", 7)
    shop.arrive(dialog, b"zero", b"one", type_name="T")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"traceparent": parent}
    db.execute("UPDATE broker_message SET headers = ? WHERE message_sequence_number = 1", (json.dumps(headers),))

    first, message = receive(db, queue="OrdersQueue")

    told = (message.type, message.body, message.contract, message.service_name, message.message_sequence_number)
    assert ("T", b"one", "C", "Orders", 1) == told
    assert (GROUP, 7) == (message.conversation_group_id, message.priority)
    assert datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC) == message.message_enqueue_time
    assert (False, 3, b"one") == (message.is_large, message.body_length, message.open().read())
    assert first.dialog is message.dialog
    assert dialog.conversation_handle == message.dialog.conversation_handle
    assert dialog.conversation_id == get_dialog(db, message.dialog.conversation_handle).conversation_id
    assert ({}, None, headers) == (first.headers, first.trace_context, message.headers)
    assert 0x00F067AA0BA902B7 == get_current_span(message.trace_context).get_span_context().span_id


@pytest.mark.parametrize(
    ("type_name", "body", "kinds", "error"),
    [
        (DEFAULT, b"", (False, False, False), (None, "")),
        (END_DIALOG, b"", (True, False, False), (None, "")),
        (ERROR, b"", (False, True, False), (None, "")),
        (ERROR, error_body(-42, "out of\n<stock> & more"), (False, True, False), (-42, "out of\n<stock> & more")),
        (DIALOG_TIMER, b"", (False, False, True), (None, "")),
    ],
)
def test_message_tells_what_it_is(
    shop: Shop, type_name: str, body: bytes, kinds: tuple[bool, bool, bool], error: tuple[int | None, str]
) -> None:
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), body, type_name=type_name)

    (message,) = receive(db, queue="OrdersQueue")

    assert kinds == (message.is_end, message.is_error, message.is_timer)
    assert error == (message.error_code, message.error_description)


def test_large_body_is_a_stream_inside_the_transaction(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
    shop.arrive_large(dialog, LARGE)

    (message,) = receive(db, queue="OrdersQueue")

    assert (True, len(LARGE), "large") == (message.is_large, message.body_length, message.type)
    assert LARGE == message.body == message.open().read()
    assert [] == shop.look("SELECT * FROM broker_received")
    db.commit()
    assert [(dialog.endpoint_id, 0)] == shop.look("SELECT * FROM broker_received")
    assert [] == shop.look("SELECT * FROM broker_message")


@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_large_body_in_autocommit_mode_outlives_its_fragments(shop: Shop, begin: str, db: sqlite3.Connection) -> None:
    """Each call is a transaction of its own, so what it gave is copied; not where the application has begun one."""
    shop.arrive_large(shop.begin(db), LARGE)
    db.execute(begin)

    (message,) = receive(db, queue="OrdersQueue")
    db.execute("DELETE FROM broker_fragment")

    if begin:
        with pytest.raises(ValueError, match="before the transaction"):
            _ = message.body
    else:
        assert (LARGE, len(LARGE)) == (message.body, message.body_length)


# --- receive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "top", "number"),
    [("ordersqueue", 1, 208), ("OrdersQueue", 0, 127)],
)
def test_receive_that_cannot_be_is_refused(shop: Shop, queue: str, top: int, number: int) -> None:
    db = shop.connect()

    assert number == shop.refusal(lambda: receive(db, queue=queue, top=top, wait=60))


def test_disabled_queue_is_refused_and_keeps_its_messages(shop: Shop, db: sqlite3.Connection) -> None:
    shop.arrive(shop.begin(db), b"kept")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")

    number = shop.refusal(lambda: receive(db, queue="OrdersQueue"))
    db.execute("UPDATE broker_queue SET is_receive_enabled = 1")

    assert (number, [message.body for message in receive(db, queue="OrdersQueue")]) == (9617, [b"kept"])


@pytest.mark.parametrize(
    ("place", "waiting", "rollbacks"), [(0, 1, 5), (0, 2, 13), (0, 100, 13), (1, 100, 16), (98, 100, 29)]
)
def test_so_many_rollbacks_put_a_message_aside(shop: Shop, place: int, waiting: int, rollbacks: int) -> None:
    """As docs/readers.md says. Shape: `place` of the bad message among those that wait."""
    bodies = [b"good"] * waiting
    bodies[place] = b"bad"
    shop.arrive(shop.begin(shop.connect(isolation_level=None)), *bodies)

    db = shop.connect()
    seen = 0
    while messages := receive(db, queue="OrdersQueue"):
        is_bad = any(message.body == b"bad" for message in messages)
        seen += is_bad
        (db.rollback if is_bad else db.commit)()

    assert rollbacks == seen
    assert waiting - place - 1 == next(iter(failures(db))).messages_behind


# --- one conversation, one group ----------------------------------------------------------------------------


def test_receive_takes_from_one_conversation_or_group_alone(shop: Shop, db: sqlite3.Connection) -> None:
    one, two = shop.begin(db), shop.begin(db)
    three = shop.begin(db, related_conversation=one)
    for dialog, name in ((one, b"one"), (two, b"two"), (three, b"three")):
        shop.arrive(dialog, name, name + b" again")

    taken = [
        [message.body for message in receive(db, queue="OrdersQueue", **which)]
        for which in (
            {"conversation": three, "top": 1},
            {"conversation_group": str(one.conversation_group_id), "top": 2},
            {"conversation": str(two.conversation_handle)},
            {"conversation_group": one.conversation_group_id},
            {"conversation_group": uuid.uuid4()},
            {"conversation": one},
        )
    ]

    assert [[b"three"], [b"one", b"one again"], [b"two", b"two again"], [b"three again"], [], []] == taken


@pytest.mark.parametrize(
    ("which", "number"),
    [
        ({"conversation": uuid.uuid4()}, 8426),
        ({"conversation": "x"}, 8413),
        ({"conversation_group": "x"}, 8413),
        ({"conversation": uuid.uuid4(), "conversation_group": uuid.uuid4()}, 102),
    ],
)
def test_receive_from_what_is_not_there_is_refused(shop: Shop, which: dict[str, Any], number: int) -> None:
    db = shop.connect()

    assert number == shop.refusal(lambda: receive(db, queue="OrdersQueue", wait=60, **which))


def test_priority_goes_before_age_and_the_broker_s_own_before_everything(shop: Shop, db: sqlite3.Connection) -> None:
    low, high = shop.begin(db), shop.begin(db)
    for dialog in (low, high, low, high):
        shop.arrive(dialog, b"low" if dialog is low else b"high")
    shop.arrive(low, b"", type_name=ERROR)
    db.execute("UPDATE broker_message SET priority = 7 WHERE message_body = x'68696768'")
    db.execute("UPDATE broker_message SET priority = 11 WHERE message_type_name = ?", (ERROR,))

    db.execute("BEGIN")
    bodies = [message.body for message in receive(db, queue="OrdersQueue")]
    db.execute("ROLLBACK")
    of_one = [message.body for message in receive(db, queue="OrdersQueue", conversation=low, top=2)]

    assert [b"", b"high", b"high", b"low", b"low"] == bodies
    assert [b"", b"low"] == of_one


def test_what_is_in_quarantine_is_passed_over(shop: Shop, db: sqlite3.Connection) -> None:
    ill, well = shop.begin(db), shop.begin(db)
    shop.arrive(ill, b"ill")
    shop.arrive(well, b"well")
    db.execute("UPDATE broker_message SET status = 4 WHERE endpoint_id = ?", (ill.endpoint_id,))

    assert [b"well"] == [message.body for message in receive(db, queue="OrdersQueue")]
    assert [] == receive(db, queue="OrdersQueue", conversation=ill)
    assert get_conversation_group(db, queue="OrdersQueue") is None


def test_next_group_is_that_of_the_next_message(shop: Shop) -> None:
    db, other = shop.connect(), shop.connect(timeout=0)
    with db:
        one, two = shop.begin(db), shop.begin(db)
    shop.arrive(one, b"one")
    shop.arrive(two, b"two")
    shop.connect(isolation_level=None).execute("UPDATE broker_message SET priority = 9 WHERE message_body = x'74776f'")

    group = get_conversation_group(db, queue="OrdersQueue")

    assert two.conversation_group_id == group
    with pytest.raises(sqlite3.OperationalError, match="locked"):  # the group's lock is that of the whole database
        other.execute("BEGIN IMMEDIATE")
    assert [b"two"] == [message.body for message in receive(db, queue="OrdersQueue", conversation_group=group)]


def test_what_stands_between_messages_that_are_taken_stays(shop: Shop, db: sqlite3.Connection, dialog: Dialog) -> None:
    for number in range(3):
        shop.arrive(dialog, b"order %d" % number, b"order too")
        shop.arrive(dialog, b"bill %d" % number, queue="BillingQueue")

    taken = [receive(db, queue="OrdersQueue", top=top) for top in (2, 3, 1)]

    assert [2, 3, 1] == [len(messages) for messages in taken]
    assert [b"bill 0", b"bill 1", b"bill 2"] == shop.look("SELECT message_body FROM broker_message")


class Clock:
    """Stands for the time module: sleeping takes no time, and may make something happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.happenings: dict[int, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.happenings.get(len(self.pauses), lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("broker.client.waiting.time", clock)
    return clock


@pytest.mark.parametrize("wait", [10, 0.0305, 0])
def test_waiting_receive_gives_up_exactly_in_time(shop: Shop, clock: Clock, wait: float) -> None:
    db = shop.connect()

    messages = receive(db, queue="OrdersQueue", wait=wait)

    assert [] == messages
    assert clock.now == pytest.approx(1000 + wait)
    assert all(pause == POLL_SECONDS for pause in clock.pauses[:-1])
    assert not db.in_transaction


@pytest.mark.promise("A reader does not wake up")
def test_queue_is_looked_into_only_when_something_was_committed_or_now_and_then(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    other = shop.connect(isolation_level=None)
    clock.happenings[300] = lambda: other.execute("INSERT INTO orders (state) VALUES ('x')")
    statements: list[str] = []
    db.set_trace_callback(statements.append)

    receive(db, queue="OrdersQueue", wait=10)

    looks = sum("FROM broker_queue" in statement for statement in statements)
    versions = sum("data_version" in statement for statement in statements)
    assert versions == len(clock.pauses) + 2
    assert 10 / (module.RELOOK_SECONDS + POLL_SECONDS) <= looks <= 10 / module.RELOOK_SECONDS + 3


def test_receive_inside_an_open_transaction_does_not_wait(shop: Shop, clock: Clock) -> None:
    """It would keep the lock that the daemon needs to store what is waited for."""
    db = shop.connect()
    db.execute("INSERT INTO orders VALUES (1, '')")

    assert [] == receive(db, queue="OrdersQueue", wait=30)
    assert [] == clock.pauses
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

    assert (1, [False], [b"next"]) == (len(taken), is_locked, [message.body for message in messages])


class AlwaysOpen(sqlite3.Connection):
    """As a connection that Python 3.12 and later open with `autocommit=False`: its transaction is always open."""

    autocommit = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "isolation_level": None})
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute("BEGIN")


def test_connection_that_is_always_in_a_transaction_waits_beside_it(shop: Shop, clock: Clock) -> None:
    other = shop.connect(isolation_level=None)
    dialog = shop.begin(other)
    db = shop.connect(factory=AlwaysOpen)
    free = []

    def arrive() -> None:
        free.append(other.execute("BEGIN IMMEDIATE"))
        other.execute("COMMIT")
        shop.arrive(dialog, b"at last")

    clock.happenings[3] = arrive

    (message,) = receive(db, queue="OrdersQueue", wait=30)
    db.commit()

    assert (b"at last", 1) == (message.body, len(free))
    assert [] == receive(db, queue="OrdersQueue", wait=1)
    assert clock.now > 1001
    other.execute("BEGIN IMMEDIATE")
