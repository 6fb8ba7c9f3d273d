"""A ledger that does not add up and a journal that cannot be read are told."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.account import Accounts
from tests.chaos.bookkeeping import journal_faults, ledger_faults
from tests.chaos.history import Entry, Event, What
from tests.support.journalled import visit, write
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """With a dialog that has sent two messages, of which the first is acknowledged."""
    shop = Shop(tmp_path / "shop.db")
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    for body in ("one", "two"):
        dialog.send(body)
    db.execute("DELETE FROM broker_transmission WHERE message_sequence_number = 0")
    db.execute("UPDATE broker_conversation SET acknowledged_sequence = 1")
    yield shop
    shop.close()


def test_a_ledger_that_adds_up_is_in_order_while_something_may_be_held(shop: Shop) -> None:
    assert [] == list(ledger_faults("shop", shop.path, is_over=False))


def test_what_is_held_when_everything_is_over_is_told(shop: Shop) -> None:
    [told] = ledger_faults("shop", shop.path, is_over=True)

    assert told.startswith("ledger of shop: 1 held: 2 sent, 1 acknowledged")


def test_what_nothing_tells_about_is_told(shop: Shop) -> None:
    shop.connect(isolation_level=None).execute("DELETE FROM broker_transmission")

    [told] = ledger_faults("shop", shop.path, is_over=False)

    assert told.startswith("ledger of shop: 1 unaccounted: 2 sent, 1 acknowledged, 0 held")


def test_a_journal_that_can_be_read_is_in_order(tmp_path: Path) -> None:
    write(tmp_path / "gateway" / "date=2026-11-23" / "gateway-1.parquet", visit(), visit(), group_rows=1)
    (tmp_path / "gateway" / ".gateway-2.parquet").write_bytes(b"begun")

    assert [] == list(journal_faults(tmp_path / "gateway", is_used=True))


@pytest.mark.parametrize("size", [0, 40, 0.5])
def test_a_file_that_broke_off_is_told(tmp_path: Path, size: float) -> None:
    write(tmp_path / "gateway" / "gateway-1.parquet", visit())
    path = write(tmp_path / "gateway" / "gateway-2.parquet", visit())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole)) if size < 1 else int(size)])

    [told] = journal_faults(tmp_path / "gateway", is_used=True)

    assert told.startswith("journal: gateway/gateway-2.parquet: damaged: ")


def test_rows_that_cannot_be_read_behind_a_footer_that_can_are_told(tmp_path: Path) -> None:
    write(tmp_path / "gateway" / "gateway-1.parquet", visit())
    path = write(tmp_path / "gateway" / "gateway-2.parquet", *[visit(bytes=one) for one in range(1000)])
    whole = bytearray(path.read_bytes())
    whole[4:400] = bytes(396)
    path.write_bytes(whole)

    [told] = journal_faults(tmp_path / "gateway", is_used=True)

    assert told.startswith("journal: gateway/gateway-2.parquet: ")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_journal_without_a_record_is_told(tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        (tmp_path / "gateway").mkdir()

    assert ["journal: gateway: no record"] == list(journal_faults(tmp_path / "gateway", is_used=True))
    assert [] == list(journal_faults(tmp_path / "gateway", is_used=False))


DIALOG = uuid.uuid4()


def entry(what: What, number: int = 0, *, application: str = "application-shop", database: str = "shop.db") -> Entry:
    event = Event(what, str(DIALOG), is_initiator=False, number=number)
    return Entry(application, database, 1, time.monotonic(), event)


def accounts(
    path: Path, entries: list[Entry], faults: Mapping[str, list[str]] | None = None, *, has_lock: bool = False
) -> Accounts:
    home = SimpleNamespace(name="shop", hosts=("shop", "mirror"))
    fleet: Any = SimpleNamespace(
        homes=[home],
        copies={"shop.db": "shop"},
        serving=lambda _: "",
        file=lambda *_: path,
        directory=path.parent,
        has_lock=has_lock,
    )
    made = Accounts(fleet)
    made.add(entries, faults or {})
    return made


@pytest.mark.parametrize(
    ("done", "told"),
    [
        ([What.SENT, What.SENT], []),
        ([What.SENT, What.ENDED], []),
        ([What.SENT] * 3, ["ledger of shop: 2 sent, and 3 by its applications, who ended 0 dialogs"]),
        ([What.SENT], ["ledger of shop: 2 sent, and 1 by its applications, who ended 0 dialogs"]),
    ],
)
def test_a_ledger_says_what_its_applications_sent(shop: Shop, done: list[What], told: list[str]) -> None:
    assert told == list(accounts(shop.path, [entry(what) for what in done]).ledger_faults())


@pytest.mark.parametrize(
    ("faults", "count"), [({}, 1), ({"kill": ["gateway-1"]}, 1), ({"delay": ["shop"]}, 1), ({"kill": ["mirror"]}, 0)]
)
def test_a_message_that_the_journal_does_not_know_is_told_where_it_lost_nothing(
    tmp_path: Path, faults: Mapping[str, list[str]], count: int
) -> None:
    row = visit(conversation_id=DIALOG.bytes, from_target=False, sequence_number=0, outcome="delivered")
    write(tmp_path / "journals" / "shop" / "shop-1.parquet", row, row | {"sequence_number": 2, "outcome": "duplicate"})
    write(tmp_path / "journals" / "shop" / "shop-2.parquet", row | {"sequence_number": 2, "kind": "ack"})
    write(tmp_path / "journals" / "mirror" / "mirror-1.parquet", row | {"sequence_number": 1})
    made = accounts(tmp_path / "shop.db", [entry(What.RECEIVED, number) for number in range(3)], faults)

    told = list(made.journal_faults())

    expected = (
        f"journal: shop: 1 of 3 messages that were received are not delivered there, such as 2 of dialog {DIALOG}"
    )
    assert [expected] * count == told


def test_a_journal_that_has_lost_records_is_not_asked(tmp_path: Path) -> None:
    write(tmp_path / "journals" / "shop" / "shop-1.parquet", visit(), shed=1)

    assert [] == list(accounts(tmp_path / "shop.db", [entry(What.RECEIVED)]).journal_faults())


@pytest.mark.parametrize(
    ("changes", "has_lock", "count"),
    [
        ({}, True, 1),
        ({}, False, 0),
        ({"sequence_number": 1}, True, 0),
        ({"fragment_number": 1}, True, 0),
        ({"from_target": True}, True, 0),
        ({"outcome": "duplicate"}, True, 0),
        ({"kind": "ack"}, True, 0),
    ],
)
def test_what_both_partners_of_a_pair_with_one_file_have_delivered_is_told(
    tmp_path: Path, changes: Mapping[str, Any], count: int, *, has_lock: bool
) -> None:
    row = visit(conversation_id=DIALOG.bytes, from_target=False, outcome="delivered")
    write(tmp_path / "journals" / "shop" / "shop-1.parquet", row)
    write(tmp_path / "journals" / "mirror" / "mirror-1.parquet", row | dict(changes))

    told = list(accounts(tmp_path / "shop.db", [], has_lock=has_lock).twice())

    expected = f"journal: shop: both partners have delivered 1 frames, such as 0 of dialog {DIALOG}"
    assert [expected] * count == told
