"""Dialogs that cannot be sent as they have to be fail at this side, and only those that still can."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.message_types import ERROR, error_body
from broker.protocol.frame import Fault
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.reassembly import fail_in_writer
from tests.support.dialog import open_database, queued, rows, states

FAULT = Fault(-9727, "there is no remote service binding")
NOW = 1_800_000_000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *bodies: bytes) -> Dialog:
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    for body in bodies:
        dialog.send(body)
    return dialog


def test_its_application_reads_an_error_and_nothing_of_it_is_sent(db: sqlite3.Connection) -> None:
    dialog, other = begin(db, b"1", b"2"), begin(db, b"3")

    fail_in_writer(db, {dialog.endpoint_id: FAULT}, NOW)

    assert ["ER", "CO"] == states(db)
    assert [(ERROR, error_body(FAULT.code, FAULT.text))] == queued(db)
    assert [other.endpoint_id] == rows(db, "SELECT endpoint_id FROM broker_transmission")
    assert {"error at this side": 2} == dict(rows(db, "SELECT entry, messages FROM broker_ledger"))
    assert 0 == read_balance(db).unaccounted


def test_one_that_was_ended_here_is_over(db: sqlite3.Connection) -> None:
    dialog = begin(db, b"1")
    dialog.end()

    fail_in_writer(db, {dialog.endpoint_id: FAULT}, NOW)

    assert ([], []) == (states(db), queued(db))
    assert 0 == read_balance(db).unaccounted


def test_one_that_has_failed_or_is_no_more_stays_as_it_is(db: sqlite3.Connection) -> None:
    dialog = begin(db, b"1")
    fail_in_writer(db, {dialog.endpoint_id: FAULT}, NOW)
    before = queued(db)

    fail_in_writer(db, {dialog.endpoint_id: FAULT, 99: FAULT}, NOW)

    assert before == queued(db)
