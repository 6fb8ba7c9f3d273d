"""
A reader process that is killed between any two steps: every message has its effect once, in order, and none is lost.

The reader's process kills itself with SIGKILL at a step that a counter in the file chooses, and is started again, step
after step, until it has got through all of them; then at moments drawn from a seed, from outside.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.sqlite.quarantine import failures
from tests.support.reading import count, is_drained
from tests.support.shop import Shop

ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("CHAOS_RUNS", "4"))
SECONDS = 60.0

# Every public step of a worker and of its connection, and the function itself, is a place to die at.
APPLICATION = """
import os, signal, sys, broker
from broker.client import reader_worker
from broker.client.reader_worker import ReaderConnection, Work

left = int(os.environ["DIE_AT"])

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def around(owner, name):
    call = getattr(owner, name)
    def wrapped(*arguments, **keywords):
        step()
        result = call(*arguments, **keywords)
        step()
        return result
    setattr(owner, name, wrapped)

for owner, name in [
    (ReaderConnection, "begin"), (ReaderConnection, "commit_all"), (Work, "load"), (Work, "argument"), (Work, "finish"),
    (reader_worker, "finish_claim"), (reader_worker, "claim_group"), (reader_worker, "record_crashes"),
]:
    around(owner, name)

@broker.reader("OrdersQueue", concurrency=int(os.environ["CONCURRENCY"]), top=2, attempts=1000, retry_delay=0)
def handle(db, messages):
    for message in messages:
        step()
        db.execute("INSERT INTO orders (state) VALUES (?)", (message.body.decode(),))
        step()
        message.dialog.send(b"answer to " + message.body)
    step()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    (tmp_path / "app.py").write_text(APPLICATION)
    yield shop
    shop.close()


def start(shop: Shop, die_at: int = 0, concurrency: int = 1) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "broker", "run", "-d", str(shop.path), "--directory", str(shop.path.parent), "app"]
    environ = {**os.environ, "DIE_AT": str(die_at), "CONCURRENCY": str(concurrency), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)


def arrive(shop: Shop, dialogs: int, messages: int) -> None:
    db = shop.connect()
    with db:
        begun = [shop.begin(db) for _ in range(dialogs)]
        for dialog in begun:
            dialog.send(b"hello")
    for number, dialog in enumerate(begun):
        shop.arrive(dialog, *[f"{number}:{place}".encode() for place in range(messages)])


def wait(shop: Shop, process: subprocess.Popen[bytes]) -> bool:
    """Until all is handled, or the process has died; whether it has died."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return True
        if is_drained(shop):
            return False
        time.sleep(0.01)
    raise AssertionError("neither an end nor a death")


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    # -SIGTERM while it is still starting, -SIGKILL where its own step came first.
    assert process.wait(SECONDS) in {0, -signal.SIGTERM, -signal.SIGKILL}


def faults(shop: Shop, dialogs: int, messages: int) -> list[str]:
    """What is not as if nobody had ever died."""
    found = []
    db = shop.connect()
    states = [row[0] for row in db.execute("SELECT state FROM orders ORDER BY id")]
    for number in range(dialogs):
        expected = [f"{number}:{place}" for place in range(messages)]
        if expected != [state for state in states if state.startswith(f"{number}:")]:
            found.append(f"dialog {number}: {states}")
    sent = sorted(row[0] for row in db.execute("SELECT message_body FROM broker_transmission"))
    answers = sorted([b"hello"] * dialogs + [b"answer to " + state.encode() for state in states])
    if answers != sent:
        found.append(f"sent {sent}")
    if list(failures(db)):
        found.append("a failure is left")
    return found


@pytest.mark.timeout(300)
@pytest.mark.promise(10, "A reader was killed with a message in hand")
def test_a_reader_killed_between_every_two_steps_does_everything_once(shop: Shop) -> None:
    arrive(shop, dialogs=2, messages=60)

    deaths = 0
    for die_at in range(1, 200):
        process = start(shop, die_at)
        has_died = wait(shop, process)
        if not has_died:
            end(process)
            break
        deaths += process.returncode == -signal.SIGKILL

    assert [] == faults(shop, dialogs=2, messages=60)
    assert deaths >= 10
    assert 0 == count(shop, "broker_message")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(RUNS))
@pytest.mark.promise("An application dies", "A reader was killed with a message in hand")
def test_readers_killed_at_any_moment_do_everything_once(shop: Shop, seed: int) -> None:
    dice = random.Random(seed)
    arrive(shop, dialogs=8, messages=40)
    processes = [start(shop, concurrency=3) for _ in range(2)]

    for _ in range(4):
        time.sleep(dice.uniform(0.3, 0.8))
        victim = dice.randrange(2)
        processes[victim].kill()
        processes[victim].wait()
        processes[victim] = start(shop, concurrency=3)
    wait(shop, processes[0])
    for process in processes:
        end(process)

    assert [] == faults(shop, dialogs=8, messages=40), f"seed {seed}"
