"""A connection is lent while its writer thread stands still, and given back whatever happens."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from broker.dialog.endpoint import borrowed, checked
from broker.errors import StoreUnavailableError


@pytest.fixture
def writer() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def store() -> Iterator[Any]:
    with closing(sqlite3.connect(":memory:")) as db:
        yield SimpleNamespace(lend=lambda: db)


def test_writer_stands_still_meanwhile(store: Any, writer: ThreadPoolExecutor) -> None:
    with borrowed(store, writer) as db:
        turn = writer.submit(lambda: "turn")
        assert (db is store.lend(), turn.done()) == (True, False)

    assert turn.result() == "turn"


def test_writer_goes_on_after_a_failure(store: Any, writer: ThreadPoolExecutor) -> None:
    with pytest.raises(ZeroDivisionError), borrowed(store, writer):
        raise ZeroDivisionError

    assert writer.submit(lambda: "turn").result() == "turn"


def test_what_would_not_be_found_again_is_not_lent(store: Any, writer: ThreadPoolExecutor) -> None:
    def lend() -> None:
        raise StoreUnavailableError("orders.db", "the file has been replaced")

    store.lend = lend

    with pytest.raises(StoreUnavailableError), borrowed(store, writer):
        pytest.fail("lent")

    assert writer.submit(lambda: "turn").result() == "turn"


def test_work_is_given_the_connection(store: Any) -> None:
    assert checked(store, lambda db: db)() is store.lend()


def test_work_is_not_done_on_what_would_not_be_found_again(store: Any) -> None:
    def lend() -> None:
        raise StoreUnavailableError("orders.db", "the file has been replaced")

    store.lend = lend

    with pytest.raises(StoreUnavailableError):
        checked(store, lambda _: pytest.fail("done"))()
