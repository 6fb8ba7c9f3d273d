"""Numbers of applications: what does not fit is told with its argument, its range and what was given."""

import asyncio
import math
import sqlite3
import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import broker
from broker import aio
from broker.client.arguments import INT_MAX, check_count, check_name, check_seconds, guid_of
from broker.client.receiving import receive
from broker.errors import ConversationError
from tests.support.shop import Shop

HUGE = 10**5000  # above what Python writes out


class Seven:
    """A whole number of some library."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(("value", "count"), [(1, 1), (INT_MAX, INT_MAX), (Seven(), 7)])
def test_whole_number_of_the_range_is_taken(value: object, count: int) -> None:
    assert count == check_count(value, "top", 127, least=1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (2**31, "2147483648"),
        pytest.param(HUGE, "a number of thousands of digits", id="huge"),
        (1.0, "1.0"),
        (True, "True"),
        ("x" * 100, "'" + "x" * 79 + "..."),
    ],
)
def test_what_is_no_whole_number_of_the_range_is_told(value: object, shown: str) -> None:
    with pytest.raises(ConversationError) as caught:
        check_count(value, "top", 127, least=1)

    assert f"Msg 127: top has to be a whole number, 1 .. 2147483647, not {shown}" == str(caught.value)


@pytest.mark.parametrize(
    ("value", "seconds"), [(1, 1.0), (timedelta(minutes=1), 60.0), (Decimal("2.5"), 2.5), (math.inf, math.inf)]
)
def test_time_is_taken_however_it_is_given(value: object, seconds: float) -> None:
    assert seconds == check_seconds(value, "wait", 148)
    assert 0.0 == check_seconds(0, "wait", 148, may_be_zero=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (11, "11"),
        (math.nan, "nan"),
        (True, "True"),
        ("5", "'5'"),
        (timedelta(-1), "datetime.timedelta(days=-1)"),
        pytest.param(HUGE, "a number of thousands of digits", id="huge"),
    ],
)
def test_what_is_no_time_of_the_range_is_told(value: object, shown: str) -> None:
    with pytest.raises(ConversationError) as caught:
        check_seconds(value, "lifetime", 8489, most=10)

    sentence = f"Msg 8489: lifetime has to be a number of seconds, above 0 and at most 10, not {shown}"
    assert sentence == str(caught.value)


RECEIVED = [
    ({"top": 1.5}, "Msg 127: top has to be a whole number, 1 .. 2147483647, not 1.5"),
    ({"poison": -1}, "Msg 127: poison has to be a whole number, 0 .. 2147483647, not -1"),
    ({"wait": math.nan}, "Msg 148: wait has to be a number of seconds, 0 or more, not nan"),
]
ON_DIALOG: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda dialog: dialog.end(error=-1),
        "Msg 8403: error, the application's code, has to be a whole number, 1 .. 2147483647, not -1",
    ),
    (lambda dialog: dialog.end(error=1, description=7), "Msg 8424: the description has to be text, not 7"),
    (
        lambda dialog: dialog.set_timer("60"),
        "Msg 8410: a conversation timer's seconds has to be a number of seconds, above 0, not '60'",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), RECEIVED)
async def test_receive_says_which_argument_is_wrong(shop: Shop, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConversationError) as caught:
        receive(shop.connect(), queue="OrdersQueue", **wrong)

    assert sentence == str(caught.value)


@pytest.mark.parametrize(("call", "sentence"), ON_DIALOG)
def test_dialog_says_which_argument_is_wrong(shop: Shop, call: Callable[[Any], Any], sentence: str) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))

    with pytest.raises(ConversationError) as caught:
        call(dialog)

    assert sentence == str(caught.value)


async def test_wait_may_be_for_ever(shop: Shop) -> None:
    async with aio.connect(shop.path) as db, db:
        waiting = asyncio.create_task(aio.receive(db, queue="OrdersQueue", wait=math.inf))
        other = shop.connect(isolation_level=None)
        shop.arrive(shop.begin(other), b"at last")

        assert [b"at last"] == [message.body for message in await waiting]


BEGINNING = {"from_service": "Orders", "to_service": "//far/Billing"}
CALLS: list[Callable[[Any, Any], Any]] = [
    lambda calls, db: calls.begin_dialog(db, **BEGINNING),
    lambda calls, db: calls.get_dialog(db, uuid.uuid4()),
    lambda calls, db: calls.receive(db, queue="OrdersQueue"),
    lambda calls, db: calls.get_conversation_group(db, queue="OrdersQueue"),
]
NAMES = ["begin_dialog", "get_dialog", "receive", "get_conversation_group"]


class Wrapped:
    """A connection inside an object that hands everything on, as pools give it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class PoolConnection:
    """A connection of a library that has its own transactions."""

    def in_transaction(self) -> bool:
        return False


def test_a_wrapped_connection_is_one(shop: Shop) -> None:
    broker.begin_dialog(Wrapped(shop.connect(isolation_level=None)), **BEGINNING)  # type: ignore[arg-type]

    assert ["SO"] == shop.seen()["conversations"]


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
async def test_what_is_no_connection_is_refused_with_where_its_calls_are(
    shop: Shop, call: Callable[[Any, Any], Any]
) -> None:
    async with aio.connect(shop.path) as db:
        wrong: list[tuple[Any, str]] = [
            ("shop.db", "str$"),
            (PoolConnection(), r"test_arguments\.PoolConnection$"),
            (db, r"Connection, whose calls are awaited: those of broker\.aio take"),
            (aio.connect(shop.path), r"Connecting, whose calls are awaited: those of broker\.aio take"),
        ]
        for given, what in wrong:
            with pytest.raises(TypeError, match=rf"one of sqlite3, as sqlite3\.connect\(PATH\) gives it, not .*{what}"):
                call(broker, given)
    wrong = [
        ("shop.db", "str$"),
        (shop.connect(), r"sqlite3\.Connection: for that one the same calls are in `broker`, without await"),
        (aio.connect(shop.path), "Connecting: await it first"),
    ]
    for given, what in wrong:
        with pytest.raises(TypeError, match=rf"one of broker\.aio, as `async with .*` gives it, not .*{what}"):
            await call(aio, given)


@pytest.mark.parametrize(
    "call",
    [
        lambda calls, dialog: calls.send(iter([dialog]), b""),
        lambda calls, dialog: calls.move_conversation(dialog, uuid.uuid4()),
    ],
    ids=["send", "move_conversation"],
)
async def test_what_is_no_dialog_is_refused(shop: Shop, call: Callable[[Any, Any], Any]) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    handle = dialog.conversation_handle

    with pytest.raises(TypeError, match=r"has to be a broker\.client\.dialog\.Dialog, .* not uuid\.UUID"):
        call(broker, handle)
    with pytest.raises(TypeError, match=r"has to be a broker\.aio\.Dialog, .* `get_dialog` gives .* not uuid\.UUID"):
        await call(aio, handle)
    with pytest.raises(TypeError, match=r"has to be a broker\.aio\.Dialog, .* not broker\.client\.dialog\.Dialog"):
        await call(aio, dialog)
    async with aio.connect(shop.path) as db:
        awaited = await aio.get_dialog(db, handle)
        with pytest.raises(TypeError, match=r"not broker\.aio\.Dialog"):
            call(broker, awaited)


GUID = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


@pytest.mark.parametrize("text", [GUID, str(GUID).upper(), f"{{{GUID}}}", GUID.hex])
def test_guid_is_read_however_it_is_written(text: uuid.UUID | str) -> None:
    assert GUID == guid_of(text)


@pytest.mark.parametrize("text", ["", "5b0f3c1e", None, b"5b0f3c1e"])
def test_what_is_no_guid_is_refused(text: Any) -> None:
    with pytest.raises(ConversationError, match="is not a GUID") as caught:
        guid_of(text)

    assert 8413 == caught.value.number


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", r"the target's name '' does not have 1 \.\. 512 bytes"),
        ("s" * 513, r"does not have 1 \.\. 512 bytes"),
        ("é" * 257, r"does not have 1 \.\. 512 bytes"),
        ("\ud800", "cannot be written as UTF-8"),
    ],
)
def test_name_that_does_not_fit_is_refused(name: str, sentence: str) -> None:
    for fits in ("s", "s" * 512, "é" * 256):
        check_name(fits, "target")
    with pytest.raises(ConversationError, match=sentence) as caught:
        check_name(name, "target")

    assert 8412 == caught.value.number
