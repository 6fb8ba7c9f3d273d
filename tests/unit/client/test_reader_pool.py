"""Readers as values: how they are made, refused and found."""

import asyncio
import os
import signal
import sys
import threading
import types
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from broker.client.reader_pool import Reader, Readers, find_readers, reader, run_readers, run_until_signal
from broker.client.receiving import Message
from broker.conversation.message_types import END_DIALOG, ERROR
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.group_locks import live_slots
from broker.store.sqlite.quarantine import failures
from tests.support.loopback import until
from tests.support.reading import count, is_drained, reading
from tests.support.shop import Shop


def handle(db: Any, messages: Any) -> Any:
    return db, messages


async def handle_later(db: Any, messages: Any) -> Any:
    return db, messages


def session(function: Any) -> Any:
    """A decorator that gives a function one argument more than it is called with."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function("session", *arguments)

    return call


@session
def with_a_session(_session: Any, _db: Any, _messages: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"concurrency": 1025}, "concurrency has to be a whole number, 1 .. 1024, not 1025"),
        ({"top": 0}, "top has to be a whole number, 1 .. 2147483647, not 0"),
        ({"attempts": 0}, "attempts has to be a whole number, 1 .. 2147483647, not 0"),
        ({"retry_delay": -1}, "retry_delay has to be a number of seconds, 0 or more, not -1"),
        ({"single": True, "top": 5}, "leave out top=5"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        reader("Q", **wrong)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            lambda: None,
            r"is called with the connection and the messages: def handle\(db, messages\), not '<lambda>\(\)'",
        ),
        (lambda db, messages, *, queue: None, r"not '<lambda>\(db, messages, \*, queue\)'"),
        ("handle", "a reader is a function, not str"),
    ],
)
def test_a_function_that_cannot_be_called_with_messages_is_refused(function: Any, sentence: str) -> None:
    app = Readers()

    with pytest.raises(TypeError, match=sentence):
        app.reader("Q")(function)

    assert [] == list(app)


@pytest.mark.parametrize(
    "function",
    [
        lambda *arguments: None,
        lambda db, messages, more=1: None,
        partial(lambda more, db, messages: None, 1),
        reader("Q")(handle),
        max,
        mock.Mock(),
        with_a_session,
    ],
    ids=["any", "default", "partial", "reader", "builtin", "mock", "decorated"],
)
def test_whatever_can_be_called_with_both_is_a_reader(function: Any) -> None:
    assert function is reader("Q")(function).function


def test_readers_are_found_in_whatever_holds_them() -> None:
    app = Readers()
    one = app.reader("One")(handle)
    two = reader("Two")(handle_later)
    module = types.ModuleType("shop")
    vars(module).update(app=app, two=two, alias=two, other=3)

    assert [one] == find_readers(one) == find_readers(app)
    assert [two, one] == find_readers(module)
    assert [one, two] == find_readers((one, 7, two))


@pytest.mark.parametrize("empty", [types.ModuleType("shop"), Readers(), [], 3])
def test_where_there_is_no_reader_it_is_said_what_to_do(empty: object) -> None:
    with pytest.raises(TypeError, match=r"put @broker\.reader"):
        find_readers(empty)


def held_up() -> tuple[Reader, threading.Event, threading.Event]:
    """A reader that tells when it has begun, and goes on when it is told."""
    started, go = threading.Event(), threading.Event()

    @reader("OrdersQueue")
    def handle(db: Any, messages: list[Message]) -> None:
        started.set()
        assert go.wait(30)
        write(db, messages)

    return handle, started, go


def handled(shop: Shop) -> list[str]:
    """What a reader wrote into the application's own table."""
    return [row[0] for row in shop.connect().execute("SELECT state FROM orders ORDER BY id")]


def write(db: Any, messages: Sequence[Message]) -> None:
    for message in messages:
        db.execute("INSERT INTO orders (state) VALUES (?)", (message.body.decode(),))


# --- what is handled ----------------------------------------------------------------------------------------


async def test_single_gives_one_message_and_top_bounds_a_batch(shop: Shop) -> None:
    shop.arrived(*[b"%d" % n for n in range(5)])
    shop.arrived(*[b"%d" % n for n in range(5)], queue="BillingQueue")
    app = Readers()
    sizes = []

    @app.reader("OrdersQueue", single=True)
    def one(db: Any, message: Message) -> None:
        write(db, [message])

    @app.reader("BillingQueue", top=2)
    def some(_db: Any, messages: list[Message]) -> None:
        sizes.append(len(messages))

    async with reading(app, shop.path):
        await until(lambda: is_drained(shop))

    assert ["0", "1", "2", "3", "4"] == handled(shop)
    assert [2, 2, 1] == sizes


async def test_a_group_has_one_reader_at_a_time_and_groups_run_beside_each_other(shop: Shop) -> None:
    dialogs = [shop.arrived(*[b"%d" % n for n in range(6)]) for _ in range(4)]
    running: Counter[Any] = Counter()
    most: Counter[Any] = Counter()
    together = threading.Event()
    order: dict[Any, list[bytes]] = defaultdict(list)

    @reader("OrdersQueue", concurrency=4, top=2)
    def handle(_db: Any, messages: list[Message]) -> None:
        group = messages[0].conversation_group_id
        running[group] += 1
        most[group] = max(most[group], running[group])
        if len([one for one in running.values() if one]) > 1:
            together.set()
        order[group] += [message.body for message in messages]
        together.wait(30)
        running[group] -= 1

    async with reading(handle, shop.path):
        await until(lambda: is_drained(shop))

    assert together.is_set()
    assert {dialog.conversation_group_id: 1 for dialog in dialogs} == dict(most)
    assert all([b"0", b"1", b"2", b"3", b"4", b"5"] == bodies for bodies in order.values())


@pytest.mark.parametrize(("type_name", "state"), [(END_DIALOG, "DI"), (ERROR, "ER")])
@pytest.mark.parametrize("end_dialogs", [True, False])
async def test_a_dialog_that_is_over_is_ended_once_all_of_it_was_read(
    shop: Shop, type_name: str, state: str, *, end_dialogs: bool
) -> None:
    dialog = shop.arrived(b"one", b"two")
    shop.change(dialog, "state", state)
    db = shop.connect(isolation_level=None)
    db.execute("UPDATE broker_message SET message_type_name = ? WHERE message_sequence_number = 1", (type_name,))
    states = []

    @reader("OrdersQueue", top=1, end_dialogs=end_dialogs)
    def handle(_db: Any, messages: list[Message]) -> None:
        states.append(str(messages[0].dialog.state))

    async with reading(handle, shop.path):
        await until(lambda: is_drained(shop))

    assert [state, state] == states
    assert ("CD" if end_dialogs else state) == str(dialog.state)


# --- what fails ---------------------------------------------------------------------------------------------


async def test_a_poison_message_puts_its_dialog_aside_and_all_others_go_on(shop: Shop) -> None:
    for _ in range(3):
        shop.arrived(b"good")
    bad = shop.arrived(b"poison", b"behind")
    attempts = []

    @reader("OrdersQueue", attempts=3, retry_delay=0.01)
    async def handle(db: Any, messages: list[Message]) -> None:
        write(db, messages)
        attempts.append([message.body for message in messages])
        if messages[0].body == b"poison":
            raise KeyError("amount")

    async with reading(handle, shop.path):
        await until(lambda: is_drained(shop))
        shop.arrived(b"later")
        await until(lambda: is_drained(shop))

    (failure,) = failures(shop.connect())
    assert ["good", "good", "good", "later"] == handled(shop)
    assert [[b"poison", b"behind"], [b"poison"], [b"poison"]] == [one for one in attempts if one[0] == b"poison"]
    assert bad.conversation_handle.bytes == failure.conversation_handle
    assert (3, "KeyError: 'amount'", 1) == (failure.failures, failure.error, failure.messages_behind)
    assert 'raise KeyError("amount")' in failure.traceback
    assert failure.quarantine_time is not None


@pytest.mark.parametrize(
    ("misdeed", "error", "left"),
    [
        (lambda _db: sys.exit(3), "SystemExit: 3", []),
        (lambda db: db.execute("INSERT INTO nowhere VALUES (1)"), "no such table: nowhere", []),
        (lambda db: setattr(db, "isolation_level", None), "wrote outside of the reader's transaction", ["one"]),
    ],
    ids=["exit", "statement", "writes outside of the transaction"],
)
async def test_what_a_function_may_not_do_fails_its_message(
    shop: Shop, misdeed: Any, error: str, left: list[str]
) -> None:
    shop.arrived(b"one")

    @reader("OrdersQueue", attempts=1)
    def handle(db: Any, messages: list[Message]) -> None:
        misdeed(db)
        write(db, messages)

    async with reading(handle, shop.path):
        await until(lambda: is_drained(shop))

    (failure,) = failures(shop.connect())
    assert error in failure.error
    assert left == handled(shop)


async def test_a_call_that_is_refused_is_logged_with_its_number_and_the_line_of_the_function(shop: Shop) -> None:
    shop.arrived(b"one")

    @reader("OrdersQueue", attempts=1, end_dialogs=False)
    def handle(_: Any, messages: list[Message]) -> None:
        messages[0].dialog.end()
        messages[0].dialog.send(b"too late")

    with capture_logs() as logged:
        async with reading(handle, shop.path):
            await until(lambda: is_drained(shop))

    (line,) = [one for one in logged if one["event"] == "dialog quarantined"]
    assert (8429, True) == (line["number"], line["where"].startswith(__file__))


async def test_trouble_with_the_store_is_nobodys_fault(shop: Shop) -> None:
    shop.arrived(b"one")
    left = [2]

    @reader("OrdersQueue", attempts=1)
    def handle(db: Any, messages: list[Message]) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailableError("x.db", "disk I/O error")
        write(db, messages)

    async with reading(handle, shop.path):
        await until(lambda: is_drained(shop))

    assert ["one"] == handled(shop)
    assert [] == list(failures(shop.connect()))


# --- how they stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_under_way_is_finished_and_nothing_new_is_taken(shop: Shop, *, is_async: bool) -> None:
    shop.arrived(b"one", b"two")
    started, go = threading.Event(), threading.Event()

    @reader("OrdersQueue", top=1)
    def in_thread(db: Any, messages: list[Message]) -> None:
        started.set()
        assert go.wait(30)
        write(db, messages)

    @reader("OrdersQueue", top=1)
    async def in_loop(db: Any, messages: list[Message]) -> None:
        started.set()
        await until(go.is_set)
        write(db, messages)

    stop = asyncio.Event()
    task = asyncio.create_task(run_readers(in_loop if is_async else in_thread, shop.path, stop=stop))
    await until(started.is_set)
    stop.set()
    await asyncio.sleep(0.05)
    go.set()

    assert await task
    assert ["one"] == handled(shop)
    assert (1, 0) == (count(shop, "broker_message"), count(shop, "broker_group_lock"))


async def test_a_cancelled_application_ends_like_a_stopped_one(shop: Shop) -> None:
    shop.arrived(b"one")
    handle, started, go = held_up()

    task = asyncio.create_task(run_readers(handle, shop.path))
    await until(started.is_set)
    task.cancel()
    await asyncio.sleep(0.05)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ["one"] == handled(shop)


async def test_a_coroutine_that_takes_too_long_is_cut_off_and_nobody_is_blamed(shop: Shop) -> None:
    shop.arrived(b"one")
    started = asyncio.Event()

    @reader("OrdersQueue")
    async def handle(db: Any, messages: list[Message]) -> None:
        write(db, messages)
        started.set()
        await asyncio.Event().wait()

    stop = asyncio.Event()
    task = asyncio.create_task(run_readers(handle, shop.path, stop=stop, grace=0.5))
    await until(started.is_set)
    stop.set()

    assert await task
    assert [] == handled(shop)
    assert [] == list(failures(shop.connect()))
    assert (1, 0) == (count(shop, "broker_message"), count(shop, "broker_group_lock"))


async def test_a_thread_that_takes_too_long_keeps_its_group_until_it_ends(shop: Shop) -> None:
    shop.arrived(b"one")
    handle, started, go = held_up()

    stop = asyncio.Event()
    task = asyncio.create_task(run_readers(handle, shop.path, stop=stop, grace=0.05))
    await until(started.is_set)
    stop.set()
    is_finished = await task
    during = (count(shop, "broker_group_lock"), live_slots(str(shop.path), [0]))
    go.set()
    await until(lambda: is_drained(shop))

    assert not is_finished
    assert (1, {0}) == during
    assert ["one"] == handled(shop)


# --- where they work ----------------------------------------------------------------------------------------


async def test_a_reader_finds_the_database_that_has_its_queue(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other.db")
    with other.connect(isolation_level=None) as db:
        db.execute("DELETE FROM broker_service WHERE name = 'Orders'")
        db.execute("DELETE FROM broker_queue WHERE name = 'OrdersQueue'")
    shop.arrived(b"one")

    @reader("OrdersQueue")
    def handle(db: Any, messages: list[Message]) -> None:
        write(db, messages)

    async with reading(handle, {"shop": shop.path, "other": other.path}):  # type: ignore[arg-type]
        await until(lambda: is_drained(shop))
    other.close()

    assert ["one"] == handled(shop)


@pytest.mark.parametrize(
    ("queue", "database", "files", "number", "sentence"),
    [
        ("Nope", None, ["a"], 208, "the queue 'Nope' does not exist in database a; it has ['BillingQueue', 'OrdersQ"),
        ("Nope", None, ["a", "b"], 208, "the queue 'Nope' is not clear: none of ['a', 'b'] has it"),
        ("OrdersQueue", None, ["a", "b"], 208, "several databases have it: ['a', 'b']; say database="),
        ("OrdersQueue", "c", ["a", "b"], 911, "database 'c' is not given; there is ['a', 'b']"),
        ("OrdersQueue", None, ["gone"], 911, "database gone: there is no file"),
    ],
)
async def test_a_reader_without_its_queue_is_refused(
    shop: Shop, *, queue: str, database: str | None, files: list[str], number: int, sentence: str
) -> None:
    @reader(queue, database=database)
    def handle(_db: Any, _messages: list[Message]) -> None:
        raise AssertionError

    paths = {name: shop.path.with_name("gone.db") if name == "gone" else shop.path for name in files}
    with pytest.raises(ConversationError) as caught:
        await run_readers(handle, paths)

    assert number == caught.value.number
    assert sentence in str(caught.value)


def test_a_reader_runs_by_itself_until_it_is_told_to_stop(shop: Shop) -> None:
    shop.arrived(b"one")

    @reader("OrdersQueue")
    def handle(db: Any, messages: list[Message]) -> None:
        write(db, messages)
        os.kill(os.getpid(), signal.SIGTERM)

    handle.run(shop.path)
    again = run_until_signal([handle], shop.path) if not is_drained(shop) else True

    assert again
    assert ["one"] == handled(shop)
