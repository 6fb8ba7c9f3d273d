"""Connections and dialogs as applications give them: what is none is refused with what is expected and what to do."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import broker
from broker import aio
from broker.client.arguments import check_connection

Shop = Any  # its class is in conftest.py, which nothing imports

EXPECTED = r"the connection has to be one of sqlite3, as sqlite3\.connect\(PATH\) gives it, not "
EXPECTED_AWAITED = (
    r"the connection has to be one of broker\.aio, as `async with broker\.aio\.connect\(PATH\)` gives it, not "
)
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


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("shop.db", "str"),
        (None, "NoneType"),
        (PoolConnection(), r"tests\.unit\.application\.test_connection\.PoolConnection"),
    ],
)
def test_what_is_no_connection_is_refused(call: Callable[[Any, Any], Any], given: object, what: str) -> None:
    with pytest.raises(TypeError, match=f"^{EXPECTED}{what}$"):
        call(broker, given)


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
async def test_a_connection_that_is_awaited_is_told_where_its_calls_are(
    shop: Shop, call: Callable[[Any, Any], Any]
) -> None:
    there = r"broker\.application\.worker\.{}, whose calls are awaited: those of broker\.aio take one of broker\.aio"

    async with aio.connect(shop.path) as db:
        with pytest.raises(TypeError, match=EXPECTED + there.format("Connection")):
            call(broker, db)
    with pytest.raises(TypeError, match=EXPECTED + there.format("Connecting")):
        call(broker, aio.connect(shop.path))


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
async def test_a_connection_that_is_not_awaited_is_told_where_its_calls_are(
    shop: Shop, call: Callable[[Any, Any], Any]
) -> None:
    there = r"sqlite3\.Connection: for that one the same calls are in `broker`, without await"

    with pytest.raises(TypeError, match=EXPECTED_AWAITED + there):
        await call(aio, shop.connect())
    with pytest.raises(TypeError, match=f"{EXPECTED_AWAITED}str$"):
        await call(aio, "shop.db")
    with pytest.raises(TypeError, match=rf"{EXPECTED_AWAITED}broker\.application\.worker\.Connecting: await it first"):
        await call(aio, aio.connect(shop.path))


def test_a_wrapped_connection_is_one(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)

    check_connection(db)
    check_connection(Wrapped(db))
    broker.begin_dialog(Wrapped(db), **BEGINNING)  # type: ignore[arg-type]

    assert ["SO"] == shop.seen()["conversations"]


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

    with pytest.raises(TypeError, match=r"has to be a broker\.application\.dialog\.Dialog, .* not uuid\.UUID"):
        call(broker, handle)
    with pytest.raises(TypeError, match=r"has to be a broker\.aio\.Dialog, .* `get_dialog` gives .* not uuid\.UUID"):
        await call(aio, handle)
    with pytest.raises(TypeError, match=r"has to be a broker\.aio\.Dialog, .* not broker\.application\.dialog\.Dialog"):
        await call(aio, dialog)
    async with aio.connect(shop.path) as db:
        awaited = await aio.get_dialog(db, handle)
        with pytest.raises(TypeError, match=r"not broker\.aio\.Dialog"):
            call(broker, awaited)
