"""RECEIVE: what comes, in which order, how long it is waited for, and what is left behind."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.client.dialog import get_dialog
from broker.client.receiving import get_conversation_group, receive
from broker.conversation.message_types import DEFAULT, END_DIALOG, ERROR
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.quarantine import Blame, failures, note_failure
from broker.store.sqlite.queues import ReaderSlot

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
def test_message_tells_whether_the_dialog_has_ended(shop: Shop, type_name: str, is_end: bool, is_error: bool) -> None:  # noqa: FBT001
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


def test_receive_takes_from_one_conversation_or_group_alone(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
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


def test_what_a_reader_has_is_given_to_nobody_and_what_rests_to_who_asks_for_it(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    read, rests = shop.begin(db), shop.begin(db)
    shop.arrive(read, b"read")
    shop.arrive(rests, b"rests")
    slot = ReaderSlot(str(shop.path))
    lock = "INSERT INTO broker_group_lock VALUES (?, ?, ?, ?)"
    now = time.time()
    db.execute(lock, (read.conversation_group_id.bytes, slot.number, now, None))
    db.execute(lock, (rests.conversation_group_id.bytes, None, now, now + 3600))
    scopes: list[dict[str, Any]] = [
        {}, {"conversation": read}, {"conversation_group": read.conversation_group_id}, {"conversation": rests}
    ]  # fmt: skip

    taken = [[one.body for one in receive(db, queue="OrdersQueue", wait=0.02, **scope)] for scope in scopes]
    slot.close()
    taken.append([one.body for one in receive(db, queue="OrdersQueue", conversation=read)])

    assert [[], [], [], [b"rests"], [b"read"]] == taken


def test_a_failure_is_forgotten_with_the_message_that_is_received(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive(dialog, b"one", b"two")
    note_failure(db, Blame(1, 1, "E"), now=time.time(), rest_first=0)

    left = []
    for _ in range(2):
        receive(db, queue="OrdersQueue", top=1)
        left.append(len(list(failures(db))))

    assert [1, 0] == left


def test_conversation_is_received_from_its_queue_only(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive(dialog, b"", queue="BillingQueue")

    assert [] == receive(db, queue="OrdersQueue", conversation=dialog)
    assert 1 == len(receive(db, queue="BillingQueue", conversation=dialog))


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


def test_priority_goes_before_age_and_the_broker_s_own_before_everything(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
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


def test_what_is_in_quarantine_is_passed_over(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
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


def test_queue_without_messages_has_no_next_group_and_no_lock(shop: Shop) -> None:
    db = shop.connect()

    assert get_conversation_group(db, queue="OrdersQueue") is None
    assert not db.in_transaction
    assert 208 == shop.refusal(lambda: get_conversation_group(db, queue="Nobody"))


def test_settings_of_the_connection_do_not_matter(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    db.row_factory, db.text_factory = sqlite3.Row, bytes
    dialog = shop.begin(db)
    shop.arrive(dialog, b"one", type_name="T")

    (message,) = receive(db, queue="OrdersQueue")

    assert ("T", "Orders") == (message.type, message.service_name)
    assert dialog.conversation_id == get_dialog(db, message.dialog.conversation_handle).conversation_id


def test_file_that_cannot_be_read_says_so(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    db.execute("ALTER TABLE broker_queue RENAME TO gone")

    with pytest.raises(StoreUnavailableError, match="no database of the broker"):
        receive(db, queue="OrdersQueue", wait=60)


@pytest.mark.parametrize("bad", ["\udcff", None])
@pytest.mark.parametrize("call", [receive, get_conversation_group])
def test_queue_whose_name_is_no_text_is_refused(shop: Shop, bad: Any, call: Callable[..., Any]) -> None:
    with pytest.raises(ConversationError, match="the queue's name") as caught:
        call(shop.connect(), queue=bad)

    assert 8412 == caught.value.number


def test_what_stands_between_messages_that_are_taken_stays(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    for number in range(3):
        shop.arrive(dialog, b"order %d" % number, b"order too")
        shop.arrive(dialog, b"bill %d" % number, queue="BillingQueue")

    taken = [receive(db, queue="OrdersQueue", top=top) for top in (2, 3, 1)]

    assert [2, 3, 1] == [len(messages) for messages in taken]
    assert [b"bill 0", b"bill 1", b"bill 2"] == shop.look("SELECT message_body FROM broker_message")
