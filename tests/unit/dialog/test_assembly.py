"""Fragments are kept by place, joined in order, and gone when they are joined or discarded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.dialog.assembly import Assembly
from tests.support.dialog import open_database, rows


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "bank.db")
    yield db
    db.close()


def test_fragments_are_joined_by_number_and_kept_no_longer(db: sqlite3.Connection) -> None:
    assembly = Assembly(db, 1)
    for number, body in ((2, b"c"), (0, b"a"), (10, b"d"), (1, b"b")):
        assembly.keep((5, number), 0, body)

    assert assembly.collect(5, 10) == (b"abcd", 0)
    assert assembly.collect(5, 10) == (b"", 0)


def test_strays_behind_the_last_fragment_are_no_part_of_the_message(db: sqlite3.Connection) -> None:
    assembly = Assembly(db, 1)
    for number, body in ((0, b"a"), (1, b"b"), (7, b"?"), (2**32 - 1, b"?")):
        assembly.keep((5, number), 0, body)

    assert assembly.collect(5, 1) == (b"ab", 2)
    assert [] == rows(db, "SELECT * FROM broker_fragment")


def test_second_copy_is_not_kept(db: sqlite3.Connection) -> None:
    assembly = Assembly(db, 1)

    assert [True, False] == [assembly.keep((5, 0), 0, body) for body in (b"first", b"second")]
    assert assembly.collect(5, 0) == (b"first", 0)


def test_flags_are_known_of_what_is_here(db: sqlite3.Connection) -> None:
    assembly = Assembly(db, 1)
    assembly.keep((5, 0), 0, b"")
    assembly.keep((5, 1), 2, b"")

    assert [0, 2, None, None] == [assembly.flags(place) for place in ((5, 0), (5, 1), (5, 2), (6, 0))]


def test_other_messages_and_endpoints_are_not_touched(db: sqlite3.Connection) -> None:
    mine, other = Assembly(db, 1), Assembly(db, 2)
    for assembly in (mine, other):
        for sequence in (5, 6):
            assembly.keep((sequence, 0), 0, b"x")

    mine.collect(5, 0)

    assert [(1, 6), (2, 5), (2, 6)] == rows(
        db, "SELECT endpoint_id, message_sequence_number FROM broker_fragment ORDER BY 1, 2"
    )


def test_discard_keeps_nothing_of_this_endpoint(db: sqlite3.Connection) -> None:
    mine, other = Assembly(db, 1), Assembly(db, 2)
    for assembly in (mine, other):
        assembly.keep((5, 0), 0, b"x")

    mine.discard()

    assert rows(db, "SELECT endpoint_id FROM broker_fragment") == [2]
