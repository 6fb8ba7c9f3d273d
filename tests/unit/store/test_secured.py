"""How sides are secured, as the file keeps it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.security.seal import Mode
from broker.security.session import Secured
from broker.store.sqlite.side import load_secured, note_certificate, note_own_certificate, put_secured
from tests.support.dialog import open_database, rows

ID = b"c" * 16


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


@pytest.mark.parametrize(
    "secured",
    [Secured(Mode.FULL, "CN=billing"), Secured(Mode.ANONYMOUS, "billing", b"s" * 32), Secured(None)],
    ids=["full", "anonymous", "none"],
)
@pytest.mark.parametrize("is_initiator", [True, False])
def test_what_was_put_is_loaded_for_that_side_only(
    db: sqlite3.Connection, secured: Secured, *, is_initiator: bool
) -> None:
    put_secured(db, ID, secured, 1.5, is_initiator=is_initiator)

    assert secured == load_secured(db, ID, is_initiator=is_initiator)
    assert load_secured(db, ID, is_initiator=not is_initiator) is None
    assert [(1.5, None)] == rows(db, "SELECT security_timestamp, far_certificate FROM broker_session_key")


def test_the_certificate_of_the_far_side_may_be_another_later(db: sqlite3.Connection) -> None:
    put_secured(db, ID, Secured(Mode.FULL, "CN=billing"), 1.5, is_initiator=True, certificate="ab")

    note_certificate(db, ID, "cd", is_initiator=True)
    note_certificate(db, ID, "ef", is_initiator=False)

    assert ["sha256:cd"] == rows(db, "SELECT far_certificate FROM broker_session_key")


def test_how_a_side_is_secured_is_told_with_who_signed_what_came(db: sqlite3.Connection) -> None:
    put_secured(db, ID, Secured(Mode.FULL, "CN=billing"), 1.5, is_initiator=True, certificate="ab")
    put_secured(db, ID, Secured(Mode.ANONYMOUS, "billing"), 1.5, is_initiator=False)

    assert [("FULL", "sha256:ab"), ("ANONYMOUS", None)] == rows(
        db, "SELECT security, far_certificate FROM broker_session_key ORDER BY is_initiator DESC"
    )


def test_whose_certificate_the_database_has_is_written_when_it_changes(db: sqlite3.Connection) -> None:
    for subject in ("CN=shop", "CN=shop", None):
        before = db.total_changes
        note_own_certificate(db, subject)
        assert [subject] == rows(db, "SELECT certificate FROM broker_database")
        assert db.total_changes - before <= 1

    before = db.total_changes
    note_own_certificate(db, None)
    assert before == db.total_changes
