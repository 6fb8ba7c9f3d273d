"""Requests in the file: an ordinary dialog, found again by its group, closed and soon forgotten when answered."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from broker.application.dialog import begin_dialog, get_dialog
from broker.conversation.message_types import LIFETIME_MAX
from broker.conversation.state import State
from broker.dialog.route_requests import (
    ANSWER_SECONDS,
    CONTRACT,
    MISSING_ROUTE,
    QUEUE,
    Ending,
    Inquiry,
    Request,
    answer,
    ask_in_writer,
    group_of,
    open_requests_in_writer,
    render_inquiry,
)
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store.database import broker_instance
from broker.store.metadata import put_queue, services
from broker.store.receiving import receive_in_writer
from broker.store.transaction import writing
from tests.support.dialog import FarSide, far_initiator, far_target, open_database, rows, states

NAME = "//shop/Billing"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *names: str) -> list[Request]:
    return ask_in_writer(db, [Inquiry(name) for name in names], []).begun


def handler_of(db: sqlite3.Connection, request: Request) -> FarSide:
    """Who was asked."""
    query = "SELECT conversation_id FROM broker_conversation WHERE conversation_handle = ?"
    (conversation,) = rows(db, query, request.handle.bytes)
    known = {"service_name": BROKER_CONFIGURATION, "far_service": SERVICE_BROKER}
    return far_target(db, uuid.UUID(bytes=conversation), **known)


def arrive(db: sqlite3.Connection, *frames: bytes) -> None:
    receive_in_writer(db, broker_instance(db), list(frames), time.time())


def test_a_request_is_a_dialog_with_the_largest_lifetime(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)

    (conversation,) = rows(
        db,
        "SELECT service_name, far_service, contract, state, conversation_group_id, round(lifetime - create_date)"
        " FROM broker_conversation",
    )
    sent = rows(db, "SELECT message_type_name, message_body FROM broker_transmission")
    assert (SERVICE_BROKER, BROKER_CONFIGURATION, CONTRACT, "CO", group_of(NAME), LIFETIME_MAX) == conversation
    assert [(MISSING_ROUTE, render_inquiry(Inquiry(NAME)))] == sent
    assert group_of(NAME) == request.group


def test_service_and_queue_are_made_once(db: sqlite3.Connection) -> None:
    begin(db, NAME)
    begin(db, "//another")

    assert {"Orders", SERVICE_BROKER} == set(services(db))
    assert frozenset({CONTRACT}) == services(db)[SERVICE_BROKER].contracts


def test_a_database_that_never_asked_has_no_requests_and_stays_as_it_is(db: sqlite3.Connection) -> None:
    assert [] == open_requests_in_writer(db)
    assert [] == ask_in_writer(db, [], []).endings
    assert {"Orders"} == set(services(db))


def test_open_requests_are_found_again(db: sqlite3.Connection) -> None:
    one, other = begin(db, NAME, "//another")
    arrive(db, handler_of(db, other).end(0, stored=(1, 0)))
    ask_in_writer(db, [], [one.handle, other.handle])

    (found,) = open_requests_in_writer(db)

    assert (one.handle, one.group) == (found.handle, found.group)
    assert found.asked_at == pytest.approx(one.asked_at, abs=5)


def test_an_end_closes_the_request(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    arrive(db, handler_of(db, request).end(0, stored=(1, 0)))

    progress = ask_in_writer(db, [], [request.handle])

    assert [Ending(request.handle)] == progress.endings
    assert [] == states(db)


def test_an_error_is_told_with_code_and_description(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    arrive(db, handler_of(db, request).fault(-8408, "refused & gone"))

    progress = ask_in_writer(db, [], [request.handle])

    assert [Ending(request.handle, -8408, "refused & gone")] == progress.endings
    assert [] == states(db)


def test_an_answer_that_is_a_message_changes_nothing(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    arrive(db, handler_of(db, request).message(0, b"hello", stored=(1, 0)))

    assert [] == ask_in_writer(db, [], [request.handle]).endings
    assert ["CO"] == states(db)


@pytest.mark.parametrize("state", [State.DISCONNECTED_INBOUND, State.ERROR, State.DISCONNECTED_OUTBOUND, State.CLOSED])
def test_a_request_that_somebody_else_ended_is_over(db: sqlite3.Connection, state: State) -> None:
    (request,) = begin(db, NAME)
    db.execute("UPDATE broker_conversation SET state = ?", (str(state),))

    assert [Ending(request.handle)] == ask_in_writer(db, [], [request.handle]).endings
    assert [] == open_requests_in_writer(db)
    assert [] == rows(db, "SELECT 1 FROM broker_conversation WHERE lifetime > ?", time.time() + 2 * ANSWER_SECONDS)


def test_a_request_that_is_gone_is_over(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    db.execute("DELETE FROM broker_conversation")

    assert [Ending(request.handle)] == ask_in_writer(db, [], [request.handle]).endings


def test_who_begins_a_dialog_with_the_service_that_asks_is_refused(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    stranger = far_initiator(SERVICE_BROKER)
    stranger.envelope = msgspec.structs.replace(stranger.envelope, contract=CONTRACT)
    arrive(db, stranger.message(0, b"one"), stranger.message(1, b"two"))

    progress = ask_in_writer(db, [], [request.handle])

    assert [] == progress.endings
    assert ["CO", "DO"] == states(db)


def test_a_disabled_queue_is_left_alone(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    arrive(db, handler_of(db, request).message(0, b"hello"))
    put_queue(db, QUEUE, is_receive_enabled=False)

    assert [] == ask_in_writer(db, [], [request.handle]).endings
    assert 1 == len(rows(db, "SELECT 1 FROM broker_message"))


@pytest.mark.parametrize(("code", "description"), [(0, ""), (7, "why")])
def test_who_was_asked_ends_and_remembers_for_a_week(db: sqlite3.Connection, code: int, description: str) -> None:
    asker = far_initiator("Orders")
    asker.envelope = msgspec.structs.replace(asker.envelope, lifetime=LIFETIME_MAX)
    arrive(db, asker.message(0, b"request"))
    (handle,) = rows(db, "SELECT conversation_handle FROM broker_conversation")

    with writing(db):
        answer(db, get_dialog(db, uuid.UUID(bytes=handle)), code=code, description=description)

    (left,) = rows(db, "SELECT lifetime - ? FROM broker_conversation", time.time())
    assert ["DO"] == states(db)
    assert left == pytest.approx(ANSWER_SECONDS, abs=60)


def test_requests_of_applications_are_not_taken_for_our_own(db: sqlite3.Connection) -> None:
    begin(db, NAME)
    begin_dialog(db, from_service="Orders", to_service=BROKER_CONFIGURATION, contract=CONTRACT)

    assert 1 == len(open_requests_in_writer(db))
