"""The store that there is fits the port."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

from broker.conversation.frames import Contact
from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.store.port import AckState, Receipt, Store, WriteBatch
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import open_database


def test_the_sqlite_store_is_one(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    opened = SqliteStore(path, open_database(path), fragment_size=1000)
    store: Store = opened  # mypy compares all of it

    with closing(store):
        result = store.turn_in_writer(WriteBatch(now=0.0, frames=[], find_after=0, wants=[], load_max_bytes=0))

        assert 0 == result.found_up_to
        assert broker_instance(store.lend()) == store.broker_instance
        assert isinstance(store.version(), int)


# --- test_receipt ---
# What a batch led to begins empty, and each receipt is its own.


def test_receipts_share_nothing() -> None:
    one, other = Receipt(), Receipt()
    one.finished.add(1)
    one.dropped.update(["x"])  # type: ignore[list-item]

    assert (set(), Counter()) == (other.finished, other.dropped)


def test_place_alone_is_neither_new_nor_urgent() -> None:
    standing = AckState(Contact(bytes(16), True, "Orders", bytes(16), "Billing"), (1, 0))

    assert ((), 0, False) == (standing.held, standing.frames, standing.is_urgent)


def test_drops_are_counted_with_the_header_of_the_last() -> None:
    receipt = Receipt()
    first, last = (Header(0x10, 0, bytes([number]) * 16, b"c" * 16, "//b", "//a", b"f" * 16) for number in (1, 2))

    receipt.drop(Disposition.DUPLICATE, last, first)
    receipt.drop(Disposition.DUPLICATE, last)
    receipt.count(Disposition.MALFORMED, None)

    assert Counter({Disposition.DUPLICATE: 3, Disposition.MALFORMED: 1}) == receipt.dropped
    assert {Disposition.DUPLICATE: last, Disposition.MALFORMED: None} == receipt.last_dropped


def test_each_frame_has_its_own_verdict_though_it_is_a_copy() -> None:
    receipt = Receipt()
    copies = [Header(0x10, 0, b"1" * 16, b"c" * 16, "//b", "//a", b"f" * 16) for _ in range(3)]
    receipt.headers += [*copies, None]

    receipt.drop(Disposition.DUPLICATE, copies[1])
    receipt.count(Disposition.OUT_OF_SEQUENCE, copies[2])

    delivered = Disposition.DELIVERED
    assert [delivered, Disposition.DUPLICATE, delivered, Disposition.MALFORMED] == receipt.verdicts()
