"""An application that is killed between any two of its steps: all of a transaction is there, or nothing of it."""

import signal
import sqlite3
import subprocess
import sys

import pytest

from broker.client.receiving import receive
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.schema import PART_BYTES
from tests.support.shop import Shop

# Kills itself behind step N. Two transactions: one sends and updates, the other receives, updates, answers and ends.
PROGRAM = """
import os, signal, sqlite3, sys
import broker

path, last = sys.argv[1], int(sys.argv[2])
done = 0

def step():
    global done
    done += 1
    if done == last:
        os.kill(os.getpid(), signal.SIGKILL)

def parts():
    for _ in range(6):
        yield bytes(262144)
        if _ >= 4:
            step()

db = sqlite3.connect(path)
step()
dialog = broker.begin_dialog(db, from_service="Orders", to_service="//far/Billing")
step()
dialog.send(b"invoice")
step()
dialog.send_many([b"a", b"b"])
step()
dialog.send(parts())
step()
db.execute("UPDATE orders SET state = 'billing' WHERE id = 1")
step()
db.commit()
step()
messages = broker.receive(db, queue="BillingQueue")
step()
db.execute("UPDATE orders SET state = 'paid' WHERE id = 2")
step()
for message in messages:
    message.dialog.send(b"receipt")
    step()
    message.dialog.end()
    step()
db.commit()
step()
print(done)
"""
STEPS = 14
COMMITS = (9, 14)  # a kill behind this step or a later one finds the transaction committed
SENT = [b"invoice", b"a", b"b", None]
ANSWERED = [b"receipt", b""]


def prepare(shop: Shop) -> None:
    """Two orders, and a dialog that an initiator far away has begun with Billing: one message waits."""
    db = shop.connect(isolation_level=None)
    db.execute("INSERT INTO orders VALUES (1, 'new'), (2, 'new')")
    dialog = shop.begin(db, from_service="Billing")
    db.execute("UPDATE broker_conversation SET is_initiator = 0, state = 'CO', receive_sequence = 1")
    shop.arrive(dialog, b"pay", queue="BillingQueue")


def run(shop: Shop, last: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(shop.path), str(last)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def found(shop: Shop) -> tuple[list[str], list[bytes | None], int, int]:
    """Orders, bodies to send, bytes of large ones, messages that wait."""
    return (
        shop.look("SELECT state FROM orders ORDER BY id"),
        shop.look("SELECT message_body FROM broker_transmission ORDER BY transmission_id"),
        shop.look("SELECT coalesce(sum(length(body)), 0) FROM broker_transmission_part")[0],
        shop.look("SELECT count(*) FROM broker_message")[0],
    )


@pytest.mark.parametrize("last", range(1, STEPS + 1))
@pytest.mark.promise(1)
def test_killed_application_has_done_whole_transactions(shop: Shop, last: int) -> None:
    prepare(shop)

    killed = run(shop, last)

    assert -signal.SIGKILL == killed.returncode
    has_sent, has_answered = (last >= step for step in COMMITS)
    expected = (
        ["billing" if has_sent else "new", "paid" if has_answered else "new"],
        SENT * has_sent + ANSWERED * has_answered,
        6 * PART_BYTES * has_sent,
        0 if has_answered else 1,
    )
    assert expected == found(shop)
    balance = read_balance(shop.connect())
    assert (len(expected[1]), 0) == (balance.sent, balance.unaccounted)


@pytest.mark.parametrize("last", [3, 8, 10, 12, 14])
@pytest.mark.promise("An application dies")
def test_application_that_is_started_again_goes_on_where_it_was(shop: Shop, last: int) -> None:
    prepare(shop)

    run(shop, last)
    again = run(shop, 0)

    assert "" == again.stderr
    orders, sent, _, waiting = found(shop)
    assert (["billing", "paid"], 0) == (orders, waiting)
    assert ANSWERED == [body for body in sent if body not in SENT]
    balance = read_balance(shop.connect())
    assert (len(sent), 0) == (balance.sent, balance.unaccounted)


@pytest.mark.promise(10)
def test_message_of_a_killed_reader_is_there_for_the_next_one(shop: Shop) -> None:
    prepare(shop)
    run(shop, 11)

    with sqlite3.connect(shop.path) as db:
        (message,) = receive(db, queue="BillingQueue", wait=10)
    db.close()

    assert b"pay" == message.body
