"""Requests in the file: an ordinary dialog, found again by its group, closed and soon forgotten when answered."""

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.client.dialog import begin_dialog, get_dialog
from broker.conversation.message_types import LIFETIME_MAX
from broker.conversation.state import ConversationState
from broker.dialog import route_requests as module
from broker.dialog.route_requests import (
    ANSWER_SECONDS,
    BODY_MAX_BYTES,
    CONTRACT,
    FAILURE_PAUSE,
    MISSING_ROUTE,
    POLL_SECONDS,
    RETRY_SECONDS,
    FlatXml,
    Inquiry,
    RequestEnd,
    RouteRequest,
    RouteRequester,
    answer,
    ask_in_writer,
    can_hold,
    group_of,
    open_requests_in_writer,
    parse_flat_xml,
    render_inquiry,
)
from broker.errors import DemotedError
from broker.protocol.layout import NO_GUID
from broker.routing.decide import RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store.sqlite.metadata import services
from broker.store.sqlite.transaction import writing
from tests.support.dialog import FarSide, far_initiator, far_target, open_database, receive_frames, rows, states
from tests.support.virtual_time import WALL_CLOCK, virtual_time

NAME = "//shop/Billing"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *names: str) -> list[RouteRequest]:
    return ask_in_writer(db, [Inquiry(name) for name in names], [])[0]


def handler_of(db: sqlite3.Connection, request: RouteRequest) -> FarSide:
    """Who was asked."""
    query = "SELECT conversation_id FROM broker_conversation WHERE conversation_handle = ?"
    (conversation,) = rows(db, query, request.handle.bytes)
    known = {"service_name": BROKER_CONFIGURATION, "far_service": SERVICE_BROKER}
    return far_target(db, uuid.UUID(bytes=conversation), **known)


def arrive(db: sqlite3.Connection, *frames: bytes) -> None:
    receive_frames(db, list(frames), time.time())


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


def test_service_and_queue_are_made_once_and_not_before_something_is_asked_for(db: sqlite3.Connection) -> None:
    assert [] == open_requests_in_writer(db)
    assert ([], []) == ask_in_writer(db, [], [])
    assert {"Orders"} == set(services(db))
    begin(db, NAME)
    begin(db, "//another")
    begin_dialog(db, from_service="Orders", to_service=BROKER_CONFIGURATION, contract=CONTRACT)

    assert 2 == len(open_requests_in_writer(db)), "those of applications are not taken for our own"
    assert {"Orders", SERVICE_BROKER} == set(services(db))
    assert frozenset({CONTRACT}) == services(db)[SERVICE_BROKER].contracts


def test_open_requests_are_found_again(db: sqlite3.Connection) -> None:
    one, other = begin(db, NAME, "//another")
    arrive(db, handler_of(db, other).end(0, stored=(1, 0)))
    ask_in_writer(db, [], [one.handle, other.handle])

    (found,) = open_requests_in_writer(db)

    assert (one.handle, one.group) == (found.handle, found.group)
    assert found.asked_at == pytest.approx(one.asked_at, abs=5)


@pytest.mark.parametrize("is_error", [True, False])
def test_an_end_or_an_error_closes_the_request_and_another_message_does_not(
    db: sqlite3.Connection, *, is_error: bool
) -> None:
    (request,) = begin(db, NAME)
    handler = handler_of(db, request)
    arrive(db, handler.message(0, b"hello", stored=(1, 0)))
    assert (([], []), ["CO"]) == (ask_in_writer(db, [], [request.handle]), states(db))

    arrive(db, handler.fault(-8408, "refused & gone") if is_error else handler.end(1, stored=(1, 0)))
    _, ended = ask_in_writer(db, [], [request.handle])

    told = (-8408, "refused & gone") if is_error else ()
    assert [RequestEnd(request.handle, *told)] == ended
    assert [] == states(db)


@pytest.mark.parametrize(
    "state",
    [ConversationState.DISCONNECTED_INBOUND, ConversationState.DISCONNECTED_OUTBOUND, ConversationState.CLOSED],
)
def test_a_request_that_somebody_else_ended_is_over(db: sqlite3.Connection, state: ConversationState) -> None:
    (request,) = begin(db, NAME)
    db.execute("UPDATE broker_conversation SET state = ?", (str(state),))

    assert ([], [RequestEnd(request.handle)]) == ask_in_writer(db, [], [request.handle])
    assert [] == open_requests_in_writer(db)
    assert [] == rows(db, "SELECT 1 FROM broker_conversation WHERE lifetime > ?", time.time() + 2 * ANSWER_SECONDS)


def test_who_begins_a_dialog_with_the_service_that_asks_is_refused(db: sqlite3.Connection) -> None:
    (request,) = begin(db, NAME)
    stranger = far_initiator(SERVICE_BROKER)
    stranger.envelope = msgspec.structs.replace(stranger.envelope, contract=CONTRACT)
    arrive(db, stranger.message(0, b"one"), stranger.message(1, b"two"))

    assert ([], []) == ask_in_writer(db, [], [request.handle])
    assert ["CO", "DO"] == states(db)


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


HELD = st.text(st.characters(exclude_categories=["Cs"])).filter(can_hold)


@given(HELD)
def test_any_name_comes_back_as_it_was(name: str) -> None:
    assert FlatXml("MissingRoute", MISSING_ROUTE, {"SERVICE_NAME": name}) == parse_flat_xml(
        render_inquiry(Inquiry(name))
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_encoding_that_says_what_it_is_is_read(encoding: str) -> None:
    """And https is http in a namespace."""
    body = "<Root xmlns='https://a'><ONE>ä</ONE></Root>".encode(encoding)

    assert FlatXml("Root", "http://a", {"ONE": "ä"}) == parse_flat_xml(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<Root", "not XML"),
        (b"<?xml version='1.0' encoding='klingon'?><Root/>", "not XML"),
        (b"<!DOCTYPE a [<!ENTITY b 'bbbb'>]><a>&b;</a>", "document type"),
        (b"<Root><ONE><TWO/></ONE></Root>", "is inside"),
        (b"<Root><ONE/><ONE/></Root>", "twice"),
        (b"<Root>" + b" " * BODY_MAX_BYTES + b"</Root>", "above"),
    ],
)
def test_what_is_not_flat_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_flat_xml(body)


T = TypeVar("T")


class Store:
    """
    What the writer thread would do.

    Shape: `begun` what was asked for so far; `kept` requests from before; `endings` told at the next look; `fails` as
    many times, with this `error`; `looks` so far.
    """

    def __init__(self) -> None:
        self.begun: list[Inquiry] = []
        self.kept: list[RouteRequest] = []
        self.ended: list[RequestEnd] = []
        self.fails = 0
        self.error: Exception = sqlite3.OperationalError("disk full")
        self.looks = 0
        self.handles: dict[str, uuid.UUID] = {}

    async def in_writer(self, work: Callable[[Any], T]) -> T:
        await asyncio.sleep(0.01)
        if self.fails:
            self.fails -= 1
            raise self.error
        return work(self)

    def ask(self, inquiries: Any, _known: Any) -> tuple[list[RouteRequest], list[RequestEnd]]:
        self.looks += 1
        ended, self.ended = self.ended, []
        begun = []
        for inquiry in inquiries:
            self.begun.append(inquiry)
            handle = self.handles[inquiry.service_name] = uuid.uuid4()
            begun.append(RouteRequest(handle, group_of(inquiry.service_name), WALL_CLOCK, inquiry.service_name))
        return begun, ended

    def end(self, name: str, code: int = 0, description: str = "") -> None:
        self.ended.append(RequestEnd(self.handles[name], code, description))


@asynccontextmanager
async def running(store: Store, inquirer: RouteRequester | None = None) -> AsyncIterator[RouteRequester]:
    inquirer = inquirer or RouteRequester("shop", store.in_writer)
    with (
        mock.patch.object(module, "ask_in_writer", lambda store, inquiries, known: store.ask(inquiries, known)),
        mock.patch.object(module, "open_requests_in_writer", lambda store: store.kept),
    ):
        task = asyncio.create_task(inquirer.run())
        try:
            await asyncio.sleep(0.1)
            yield inquirer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def facts(name: str, instance: bytes = NO_GUID, conversation: bytes = bytes(16)) -> RoutingFacts:
    return RoutingFacts(name, instance, conversation)


async def ask(inquirer: RouteRequester, *names: str) -> None:
    for name in names:
        inquirer.ask(facts(name))
    await asyncio.sleep(0.1)


async def answer_of_inquirer(inquirer: RouteRequester, store: Store, *, code: int = 0, description: str = "") -> None:
    store.end(NAME, code, description)
    inquirer.on_arrived()
    await asyncio.sleep(0.1)


@virtual_time
async def test_however_many_wait_one_request_is_made_for_a_name_until_it_is_answered() -> None:
    """When the store can take it, with the broker instance where the dialog names one; what XML cannot hold never."""
    store, instance = Store(), uuid.uuid4()
    async with running(store) as inquirer:
        await ask(inquirer, *("\x00", "a\x1b", "\ufffe", "\x0b"))
        assert "cannot be written in XML" in inquirer.status("\x00")
        store.fails = 3
        await ask(inquirer, NAME, NAME, "//other", NAME)
        inquirer.ask(facts("//third", instance.bytes))
        await asyncio.sleep(4 * FAILURE_PAUSE)
        assert "not answered yet" in inquirer.status(NAME)
        for _ in range(100):
            await ask(inquirer, NAME)
            await asyncio.sleep(3600)

        assert [Inquiry(NAME), Inquiry("//other"), Inquiry("//third", instance)] == store.begun
        assert 3 == inquirer.requests


@pytest.mark.parametrize("code", [0, 7])
@virtual_time
async def test_after_an_answer_the_same_is_asked_again_only_after_a_rest(code: int) -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        await answer_of_inquirer(inquirer, store, code=code, description="why")
        await asyncio.sleep(RETRY_SECONDS - 1)
        await ask(inquirer, NAME)
        early = len(store.begun)
        await asyncio.sleep(1)
        await ask(inquirer, NAME)

        assert (1, 2) == (early, len(store.begun))
        assert (1, bool(code)) == (inquirer.answers, inquirer.failures)


@virtual_time
async def test_a_failure_is_told_with_its_reason_and_the_next_attempt() -> None:
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        await answer_of_inquirer(inquirer, store, code=7, description="unheard of")

        assert "the request failed: unheard of (7); asked again in 10 s" == inquirer.status(NAME)


@virtual_time
@pytest.mark.promise("routing 12")
async def test_conversation_that_caused_a_request_waits_for_it_and_others_do_not() -> None:
    """Until the answer: after that the next one is a cause again."""
    store, other = Store(), bytes(15) + b"x"
    async with running(store) as inquirer:
        first = [inquirer.ask(facts(NAME)), inquirer.ask(facts(NAME, conversation=other))]
        await asyncio.sleep(0.1)
        pending = [inquirer.ask(facts(NAME)), inquirer.ask(facts(NAME, conversation=other))]
        await answer_of_inquirer(inquirer, store)
        answered = inquirer.ask(facts(NAME, conversation=other))
        await asyncio.sleep(2 * RETRY_SECONDS)

        assert ([False, True], [False, True], False) == (first, pending, answered)
        assert not inquirer.ask(facts(NAME, conversation=other))
        assert inquirer.ask(facts(NAME))


@virtual_time
@pytest.mark.parametrize("is_early", [True, False])
async def test_requests_of_an_earlier_life_are_not_made_again(*, is_early: bool) -> None:
    """Nor what is asked for before the file was read."""
    store = Store()
    store.handles[NAME] = uuid.uuid4()
    store.kept = [RouteRequest(store.handles[NAME], group_of(NAME), WALL_CLOCK)]
    inquirer = RouteRequester("shop", store.in_writer)
    if is_early:
        inquirer.ask(facts(NAME))
    async with running(store, inquirer):
        await ask(inquirer, NAME)
        assert [] == store.begun
        assert "not answered yet" in inquirer.status(NAME)

        await answer_of_inquirer(inquirer, store)
        await asyncio.sleep(RETRY_SECONDS)
        await ask(inquirer, NAME)
        assert [Inquiry(NAME)] == store.begun


@virtual_time
async def test_open_requests_are_looked_at_even_when_nothing_arrives() -> None:
    """An administrator may have ended one."""
    store = Store()
    async with running(store) as inquirer:
        await ask(inquirer, NAME)
        store.end(NAME)
        await asyncio.sleep(POLL_SECONDS + 1)

        assert 1 == inquirer.answers


@virtual_time
@pytest.mark.parametrize(
    ("error", "told"),
    [(sqlite3.OperationalError("disk full"), ["disk full"]), (DemotedError("shop.db", "told by the turns"), [])],
)
async def test_arrivals_are_read_although_the_store_failed_first(error: Exception, told: list[str]) -> None:
    store = Store()
    async with running(store) as inquirer:
        store.fails, store.error = 1, error
        with capture_logs() as logs:
            inquirer.on_arrived()
            await asyncio.sleep(2 * FAILURE_PAUSE)

        assert 1 == store.looks
        assert told == [line["reason"] for line in logs if line["event"] == "store failed"]


@virtual_time
async def test_a_flood_of_invented_names_is_bounded_and_told_once() -> None:
    store = Store()
    with mock.patch.object(module, "REQUESTS_MAX", 10), capture_logs() as logs:
        async with running(store) as inquirer:
            await ask(inquirer, NAME, *(f"//invented/{number}" for number in range(1000)))
            assert 10 == len(store.begun)
            assert inquirer.is_full
            assert "not asked yet, because 10 other requests are open" == inquirer.status("//invented/999")

            await answer_of_inquirer(inquirer, store)
            await ask(inquirer, "//late")
            assert 10 == len(store.begun)  # what was answered a moment ago counts as well
            await asyncio.sleep(RETRY_SECONDS)
            await ask(inquirer, "//late")
            assert Inquiry("//late") == store.begun[-1]

    assert 1 == sum("too many" in line["event"] for line in logs)


def test_the_body_is_the_documented_one() -> None:
    assert render_inquiry(Inquiry("//a?b&c")) == (
        b'<MissingRoute xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRoute">'
        b"<SERVICE_NAME>//a?b&amp;c</SERVICE_NAME></MissingRoute>"
    )
