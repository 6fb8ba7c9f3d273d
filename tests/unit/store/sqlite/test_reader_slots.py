"""Slots of readers: who lives, and which groups nobody else may take."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.sqlite import reader_slots as module
from broker.store.sqlite.group_locks import LOCKED_GROUPS_SQL, RECORD_BYTES, live_slots, lock_file, locked_groups
from broker.store.sqlite.reader_slots import (
    GroupLock,
    Monitor,
    MonitorState,
    QueueRecord,
    ReaderSlot,
    disown,
    queue_monitors,
    records,
    rows_of_dead_slots,
)
from broker.store.sqlite.transaction import path_of
from tests.support.shop import Shop

HOLDER = """
import sys, time
from broker.store.sqlite.reader_slots import ReaderSlot
slot = ReaderSlot(sys.argv[1])
print(slot.number, flush=True)
sys.stdin.read()
"""


def lock(db: sqlite3.Connection, group: bytes, reader: int | None, retry: float | None = None) -> None:
    db.execute("INSERT INTO broker_group_lock VALUES (?, ?, 5, ?)", (group, reader, retry))


def locked(db: sqlite3.Connection, now: float = 100.0) -> set[bytes]:
    parameters = locked_groups(db, now)
    assert parameters is not None
    return {row[0] for row in db.execute(LOCKED_GROUPS_SQL, parameters)}


def test_slots_are_numbered_from_the_first_free_one(db: sqlite3.Connection) -> None:
    first, second, third = (ReaderSlot(path_of(db)) for _ in range(3))
    second.close()
    fourth = ReaderSlot(path_of(db))

    numbers = [first.number, second.number, third.number, fourth.number]
    for slot in (first, third, fourth):
        slot.close()

    assert [0, 1, 2, 1] == numbers


def test_a_slot_is_seen_to_live_by_every_process_and_by_its_own(db: sqlite3.Connection) -> None:
    command = [sys.executable, "-c", HOLDER, path_of(db)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        slot = ReaderSlot(path_of(db))
        both = live_slots(path_of(db), [0, 1, 2])
        process.kill()
        process.wait()
        one = live_slots(path_of(db), [0, 1, 2])
    slot.close()

    assert (0, 1) == (number, slot.number)
    assert {0, 1} == both
    assert {1} == one
    assert set() == live_slots(path_of(db), [0, 1, 2])


def test_a_forked_child_does_not_keep_its_parents_slot_alive(db: sqlite3.Connection) -> None:
    slot = ReaderSlot(path_of(db))
    ready, tell = os.pipe()
    go, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        os.read(go, 1)
        os._exit(0)
    os.read(ready, 1)

    slot.close()
    live = live_slots(path_of(db), [slot.number])
    os.write(let_go, b"x")
    os.waitpid(child, 0)
    for descriptor in (ready, tell, go, let_go):
        os.close(descriptor)

    assert set() == live


def test_groups_of_living_readers_and_groups_that_rest_are_locked(db: sqlite3.Connection, tmp_path: Path) -> None:
    """By whatever name the file is opened; a clock that was set back makes no group rest longer."""
    link = tmp_path / "link.db"
    link.symlink_to(path_of(db))
    with closing(ReaderSlot(str(link))) as slot:
        for group, reader, retry in [
            (b"live", slot.number, None),
            (b"dead", 7, None),
            (b"own", 3, None),
            (b"rests", None, 100.5),
            (b"rested", None, 99.5),
        ]:
            lock(db, group, reader, retry)

        assert {b"live", b"rests"} == locked(db)
        assert {b"live", b"rests", b"rested"} == locked(db, 5.0)
        assert {b"live"} == locked(db, 4.0)
        assert [GroupLock(b"dead", 7, 5.0)] == rows_of_dead_slots(db, own=3)


def test_what_the_last_owner_of_a_slot_left_is_abandoned(db: sqlite3.Connection) -> None:
    slot = ReaderSlot(path_of(db))
    lock(db, b"left", slot.number)
    lock(db, b"other", slot.number + 1)

    disown(db, slot.number)
    lock(db, b"mine", slot.number)
    found = {group.conversation_group_id for group in rows_of_dead_slots(db, own=slot.number)}
    slot.close()

    assert {b"left", b"other"} == found


def test_who_may_not_look_takes_all_for_alive(db: sqlite3.Connection) -> None:
    Path(f"{path_of(db)}.readers").symlink_to(f"{path_of(db)}.readers")  # cannot be opened, not even by root

    assert {0, 7} == live_slots(path_of(db), [0, 7])


def test_a_lock_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"none.a\.db\.readers: No such file"):
        ReaderSlot(str(tmp_path / "none" / "a.db"))


def test_more_readers_than_slots_are_refused(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_MAX", 1)
    slot = ReaderSlot(path_of(db))

    with pytest.raises(StoreUnavailableError, match="1 reader processes work on it"):
        ReaderSlot(path_of(db))
    slot.close()


def test_records_are_those_of_living_readers(db: sqlite3.Connection) -> None:
    first, second = ReaderSlot(path_of(db)), ReaderSlot(path_of(db))
    mine = QueueRecord("Zażółć", 2, 10.5, None)
    first.record([QueueRecord("gone", 1, 1.0, 2.0)])
    second.record([mine])
    first.close()
    left = records(path_of(db))
    again = ReaderSlot(path_of(db))
    taken_over = records(path_of(db))
    again.close()
    second.close()

    assert [mine] == left == taken_over


def test_a_record_that_is_too_long_tells_what_fits(db: sqlite3.Connection) -> None:
    slot = ReaderSlot(path_of(db))
    slot.record([QueueRecord("q" * (RECORD_BYTES // 3), number, 0.0, None) for number in range(5)])

    told = [queue.tasks_waiting for queue in records(path_of(db))]
    slot.close()

    assert [0, 1] == told


NO_RECORDS = ("[[[", '["q"]', '[["q"]]', '[["q", "one", 0.0, null]]', "5", "[" * RECORD_BYTES, "\xfd")
IMPOSSIBLE = ('[["q", 1, 1e99, null]]', '[["q", 1, 0.0, -1e99]]', '[["q", 99999999999999999999, 0.0, null]]')


@pytest.mark.parametrize("text", [*NO_RECORDS, *IMPOSSIBLE])
def test_a_record_that_is_being_written_or_is_none_is_passed_over(db: sqlite3.Connection, text: str) -> None:
    slot = ReaderSlot(path_of(db))
    slot.record([QueueRecord("q", 1, 0.0, None)])
    with Path(lock_file(path_of(db))).open("r+b") as file:
        file.write(text.encode("latin-1").ljust(RECORD_BYTES))

    told = records(path_of(db))
    slot.close()

    assert [] == told


def orders(shop: Shop) -> Monitor:
    (monitor,) = [one for one in queue_monitors(shop.path) if one.queue_name == "OrdersQueue"]
    return monitor


def test_a_queue_that_nobody_reads_is_inactive_until_messages_wait(shop: Shop) -> None:
    idle = orders(shop)
    db = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(db), b"one")
    notified = orders(shop)
    db.execute("UPDATE broker_message SET status = 4")

    assert (MonitorState.INACTIVE, None, None, 0, 0) == (
        idle.state,
        idle.last_empty_rowset_time,
        idle.last_activated_time,
        idle.tasks_waiting,
        idle.readers,
    )
    assert (MonitorState.NOTIFIED, MonitorState.INACTIVE) == (notified.state, orders(shop).state)


def test_readers_of_all_processes_are_added_up_while_they_live(shop: Shop) -> None:
    slots = [ReaderSlot(str(shop.path)) for _ in range(2)]
    slots[0].record([QueueRecord("OrdersQueue", 2, 10.0, 50.0)])
    slots[1].record([QueueRecord("OrdersQueue", 1, 20.0, None), QueueRecord("BillingQueue", 7, 30.0, None)])

    both = orders(shop)
    for slot in slots:
        slot.close()

    assert (MonitorState.RECEIVES_OCCURRING, 50.0, 20.0, 3, 2) == (
        both.state,
        both.last_empty_rowset_time,
        both.last_activated_time,
        both.tasks_waiting,
        both.readers,
    )
    assert MonitorState.INACTIVE is orders(shop).state
