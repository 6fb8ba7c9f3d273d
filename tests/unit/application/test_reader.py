"""Readers as values: how they are made, refused and found."""

from __future__ import annotations

import types
from functools import partial, wraps
from typing import Any
from unittest import mock

import pytest

import broker
from broker.client.reader_pool import Reader, Readers, find_readers, reader


def handle(db: Any, messages: Any) -> Any:
    return db, messages


async def handle_later(db: Any, messages: Any) -> Any:
    return db, messages


class Seen:
    """An object whose method reads."""

    def take(self, db: Any, messages: Any) -> None:
        pass


def session(function: Any) -> Any:
    """A decorator that gives a function one argument more than it is called with."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function("session", *arguments)

    return call


@session
def with_a_session(_session: Any, _db: Any, _messages: Any) -> None:
    pass


def test_a_reader_is_its_function_and_how_it_is_run() -> None:
    one = reader("Q", concurrency=4, top=10, attempts=3, retry_delay=0.5, database="d", end_dialogs=False)(handle)

    assert Reader(handle, "Q", 4, 10, 3, 0.5, "d", single=False, end_dialogs=False) == one
    assert (1, 2) == one(1, 2)


def test_single_is_a_batch_of_one() -> None:
    one = reader("Q", single=True)(handle)

    assert (True, 1) == (one.single, one.top)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"concurrency": 0}, "concurrency has to be a whole number, 1 .. 1024, not 0"),
        ({"concurrency": 1025}, "concurrency has to be a whole number, 1 .. 1024, not 1025"),
        ({"concurrency": True}, "concurrency has to be a whole number, 1 .. 1024, not True"),
        ({"top": 0}, "top has to be a whole number, 1 .. 2147483647, not 0"),
        ({"top": 1.5}, "top has to be a whole number, 1 .. 2147483647, not 1.5"),
        ({"attempts": 0}, "attempts has to be a whole number, 1 .. 2147483647, not 0"),
        ({"retry_delay": -1}, "retry_delay has to be a number of seconds, 0 or more, not -1"),
        ({"retry_delay": float("nan")}, "retry_delay has to be a number of seconds, 0 or more, not nan"),
        ({"retry_delay": "1"}, "retry_delay has to be a number of seconds, 0 or more, not '1'"),
        ({"single": True, "top": 5}, "leave out top=5"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        reader("Q", **wrong)


def test_the_decorator_without_its_queue_is_refused() -> None:
    with pytest.raises(TypeError, match="needs the name of its queue"):
        reader(handle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            lambda: None,
            r"is called with the connection and the messages: def handle\(db, messages\), not '<lambda>\(\)'",
        ),
        (lambda db: None, r"not '<lambda>\(db\)'"),
        (lambda db, messages, *, queue: None, r"not '<lambda>\(db, messages, \*, queue\)'"),
        (None, "a reader is a function, not NoneType"),
        ("handle", "a reader is a function, not str"),
    ],
)
def test_a_function_that_cannot_be_called_with_messages_is_refused(function: Any, sentence: str) -> None:
    app = Readers()

    with pytest.raises(TypeError, match=sentence):
        app.reader("Q")(function)

    assert [] == list(app)


def test_a_function_of_one_message_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"the connection and the message: def handle\(db, message\), not"):
        reader("Q", single=True)(lambda: None)


@pytest.mark.parametrize(
    "function",
    [
        lambda *arguments: None,
        lambda db, messages, more=1: None,
        partial(lambda more, db, messages: None, 1),
        Seen().take,
        max,
        reader("Q")(handle),
        mock.Mock(),
        with_a_session,
    ],
    ids=["any", "default", "partial", "method", "builtin", "reader", "mock", "decorated"],
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


def test_the_package_is_the_door() -> None:
    assert (reader, Readers, Reader) == (broker.reader, broker.Readers, broker.Reader)
    assert callable(broker.run_readers)
