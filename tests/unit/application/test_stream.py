"""The body of a large message: read as a file from its fragments, copied when those will go."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any

import pytest

from broker.client.body import LargeBody
from broker.store.sqlite.schema import LARGE_BYTES

Shop = Any  # its class is in conftest.py, which nothing imports

LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"


@pytest.fixture
def body(shop: Shop) -> LargeBody:
    """A body in fragments, on a connection with settings of its own."""
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.arrive_large(dialog, LARGE, number=3)
    (count,) = db.execute("SELECT body_fragments FROM broker_message").fetchone()
    db.row_factory = sqlite3.Row
    return LargeBody(db, dialog.endpoint_id, 3, count)


def test_body_is_read_without_its_envelope(body: LargeBody) -> None:
    assert LARGE == body.open().read()
    assert len(LARGE) == body.length()


@pytest.mark.parametrize("size", [1000, 59_999, 60_001, 700_000])
def test_body_is_read_in_any_portions(body: LargeBody, size: int) -> None:
    portions = list(iter(partial(body.open().read, size), b""))

    assert LARGE == b"".join(portions)
    assert {size} == {len(portion) for portion in portions[:-1]}


def test_readers_do_not_disturb_each_other(body: LargeBody) -> None:
    for source in (body, body.copied()):
        one, two = source.open(), source.open()

        assert LARGE[:10] == one.read(10)
        assert LARGE[:20] == two.read(20)
        assert LARGE[10:] == one.read()
        assert one.readable()


def test_copy_outlives_the_fragments(body: LargeBody) -> None:
    copy = body.copied()
    body.db.execute("DELETE FROM broker_fragment")

    assert LARGE == copy.open().read()
    assert len(LARGE) == copy.length()


def test_body_whose_fragments_are_gone_says_when_to_read_it(body: LargeBody) -> None:
    file = body.open()
    file.read(1)
    body.db.execute("DELETE FROM broker_fragment")

    for read in (file.read, body.open().read, body.length):
        with pytest.raises(ValueError, match="before the transaction that received it ends"):
            read()
