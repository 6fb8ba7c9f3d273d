"""What a batch led to begins empty, and each receipt is its own."""

from __future__ import annotations

from collections import Counter

from broker.conversation.contact import Contact
from broker.store.receipt import Receipt, Standing


def test_receipts_share_nothing() -> None:
    one, other = Receipt(), Receipt()
    one.finished.add(1)
    one.dropped.update(["x"])  # type: ignore[list-item]

    assert (set(), Counter()) == (other.finished, other.dropped)


def test_place_alone_is_neither_new_nor_urgent() -> None:
    standing = Standing(Contact(bytes(16), True, "Orders", bytes(16), "Billing"), (1, 0))

    assert ((), 0, False) == (standing.held, standing.frames, standing.is_urgent)
