"""A ledger that does not add up and a journal that cannot be read are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.bookkeeping import journal_faults, ledger_faults
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
