"""The application's transaction: all or nothing, and never "database is locked"."""

from __future__ import annotations

import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from broker.client.dialog import get_dialog, send
from broker.client.receiving import receive
from broker.errors import StoreUnavailableError
from broker.store.sqlite.schema import PART_BYTES
from tests.support.dialog import put_message
from tests.support.shop import Shop


@pytest.mark.parametrize("level", ["", "IMMEDIATE", "EXCLUSIVE", None])
def test_readers_contending_for_a_queue_get_every_message_once_and_in_order(shop: Shop, level: Any) -> None:
    """Every third transaction is rolled back, so that its messages go to whoever comes next."""
    owner = shop.connect(isolation_level=None)
    dialogs = [shop.begin(owner) for _ in range(3)]
    for dialog in dialogs:
        shop.arrive(dialog, *[b"%d" % n for n in range(40)])
    failures: list[Exception] = []

    def work() -> None:
        db = sqlite3.connect(shop.path, timeout=0, isolation_level=level)
        try:
            for turn in count():
                if level is None:
                    db.execute("BEGIN")
                messages = receive(db, queue="OrdersQueue", top=4)
                if not messages:
                    db.rollback()
                    return
                for message in messages:
                    number = f"{message.dialog.endpoint_id}:{message.body.decode()}"
                    db.execute("INSERT INTO orders (state) VALUES (?)", (number,))
                    message.dialog.send(message.body)
                if turn % 3 == 2:
                    db.rollback()
                else:
                    db.commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            failures.append(error)
        finally:
            db.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == failures
    taken = shop.look("SELECT state FROM orders ORDER BY id")
    for dialog in dialogs:
        expected = [f"{dialog.endpoint_id}:{n}" for n in range(40)]
        assert expected == [state for state in taken if state.startswith(f"{dialog.endpoint_id}:")]
    assert 120 == len(shop.seen()["sent"])


@pytest.mark.parametrize("mode", ["OFF", "NORMAL"])
@pytest.mark.promise(1)
def test_connection_whose_commits_may_be_lost_with_the_power_sends_nothing(shop: Shop, mode: str) -> None:
    """A number that was sent and is given again would be a duplicate there: the message behind it would be lost."""
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    db.execute(f"PRAGMA synchronous = {mode}")
    calls: list[Callable[[], object]] = [
        lambda: dialog.send(b"x"),
        lambda: dialog.send_many([b"x"]),
        lambda: send([dialog], b"x"),
        dialog.end,
        lambda: get_dialog(db, dialog.conversation_handle).end(error=1),
    ]

    for call in calls:
        with pytest.raises(StoreUnavailableError, match=f"synchronous = {mode}, .* set PRAGMA synchronous = FULL"):
            call()

    assert {"conversations": ["SO"], "sent": []} == shop.seen()
    shop.arrive(dialog, b"y")
    assert [b"y"] == [message.body for message in receive(db, queue="OrdersQueue")]
    dialog.end(cleanup=True)


def test_body_of_any_length_takes_little_memory(shop: Shop) -> None:
    """Sent from an iterable, received as a file; what SQLite itself keeps is bounded by its page cache."""
    size = 64 * 1024 * 1024
    piece = bytes(1024 * 1024)
    db = shop.connect()
    tracemalloc.start()
    try:
        with db:
            dialog = shop.begin(db)
            dialog.send(piece for _ in range(size // len(piece)))
            db.execute(
                "INSERT INTO broker_fragment SELECT ?, 0, part_number, 0, CASE part_number WHEN 0"
                " THEN CAST(x'00000001' || x'80' || body AS BLOB) ELSE body END FROM broker_transmission_part",
                (dialog.endpoint_id,),
            )
            fragments = {"message_body": None, "body_fragments": size // PART_BYTES}
            put_message(db, endpoint_id=dialog.endpoint_id, **fragments)
        with db:
            (message,) = receive(db, queue="OrdersQueue")
            read = 0
            with message.open() as body:
                while part := body.read(100_000):
                    read += len(part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert size == read == message.body_length
    assert peak < size // 8
