"""How a call waits: when it looks, when it only asks whether anything changed, and when it gives up."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from broker.client import receiving as module
from broker.client.receiving import get_conversation_group, receive

Shop = Any  # its class is in conftest.py, which nothing imports


class Clock:
    """Stands for the time module: sleeping takes no time, and may make something happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.happenings: dict[int, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        self.happenings.get(len(self.pauses), lambda: None)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def traced(db: sqlite3.Connection) -> list[str]:
    """The statements that a connection executes from now on."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    return statements


def test_waiting_receive_returns_with_what_comes(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    clock.happenings[3] = lambda: shop.arrive(dialog, b"at last")

    messages = receive(db, queue="OrdersQueue", wait=30)

    assert ([b"at last"], 3) == ([message.body for message in messages], len(clock.pauses))


@pytest.mark.parametrize("wait", [10, 0.0305, 0])
def test_waiting_receive_gives_up_exactly_in_time(shop: Shop, clock: Clock, wait: float) -> None:
    db = shop.connect()
    shortest, longest = module.PAUSE_SECONDS

    messages = receive(db, queue="OrdersQueue", wait=wait)

    assert [] == messages
    assert clock.now == pytest.approx(1000 + wait)
    assert sorted(clock.pauses[:-1]) == clock.pauses[:-1]
    assert [shortest] * bool(wait) == clock.pauses[:1]
    assert all(pause <= longest for pause in clock.pauses)
    assert not db.in_transaction


def test_what_comes_in_the_last_pause_is_taken(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    clock.happenings[1] = lambda: shop.arrive(dialog, b"just in time")

    assert 1 == len(receive(db, queue="OrdersQueue", wait=module.PAUSE_SECONDS[0]))


def test_queue_is_looked_into_only_when_something_was_committed_or_now_and_then(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    other = shop.connect(isolation_level=None)
    clock.happenings[300] = lambda: other.execute("INSERT INTO orders (state) VALUES ('x')")
    statements = traced(db)

    receive(db, queue="OrdersQueue", wait=10)

    looks = sum("FROM broker_queue" in statement for statement in statements)
    versions = sum("data_version" in statement for statement in statements)
    assert versions == len(clock.pauses) + 1
    assert 10 / (module.RELOOK_SECONDS + module.PAUSE_SECONDS[1]) <= looks <= 10 / module.RELOOK_SECONDS + 2


def test_group_is_waited_for_too(shop: Shop, clock: Clock) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    clock.happenings[3] = lambda: shop.arrive(dialog, b"")

    assert dialog.conversation_group_id == get_conversation_group(db, queue="OrdersQueue", wait=30)
    assert get_conversation_group(shop.connect(), queue="BillingQueue", wait=1) is None


def test_queue_disabled_meanwhile_ends_the_waiting(shop: Shop, clock: Clock) -> None:
    db = shop.connect()
    clock.happenings[2] = lambda: shop.connect(isolation_level=None).execute(
        "UPDATE broker_queue SET is_receive_enabled = 0"
    )

    assert 9617 == shop.refusal(lambda: receive(db, queue="OrdersQueue", wait=30))


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


def test_always_open_connection_in_memory_looks_once(clock: Clock) -> None:
    db = sqlite3.connect(":memory:", factory=AlwaysOpen)

    with pytest.raises(Exception, match="no database of the broker"):
        receive(db, queue="OrdersQueue", wait=30)

    assert [] == clock.pauses
    db.close()
