"""Which conversations count as under way, and what is known of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from broker.client.dialog import begin_dialog
from broker.conversation.state import ConversationState
from broker.observe.plan import flows_of_database, flows_of_passage
from broker.protocol.layout import NO_GUID
from broker.routing.decide import RoutingFacts, hosted
from broker.routing.plan import PlannedFlow
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.metadata import put_queue, put_service

HOME, FAR = UUID(int=1), UUID(int=7)
NOBODY = hosted({})


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = open_store(":memory:", broker_instance=HOME)
    put_queue(db, "Q", is_receive_enabled=True)
    put_service(db, "//near", 1, frozenset())
    yield db
    db.close()


def begin(db: sqlite3.Connection, *, messages: int = 0, far: UUID | None = None) -> UUID:
    dialog = begin_dialog(db, from_service="//near", to_service="//far", broker_instance=far)
    for _ in range(messages):
        dialog.send(b"x")
    return dialog.conversation_handle


def read(db: sqlite3.Connection) -> list[PlannedFlow]:
    return list(flows_of_database(db, broker_instance(db)))


def test_a_dialog_is_known_by_its_handle_and_sends_from_its_database(db: sqlite3.Connection) -> None:
    handle = begin(db, messages=1, far=FAR)

    [flow] = read(db)

    (conversation,) = db.execute("SELECT conversation_id FROM broker_conversation").fetchone()
    facts = RoutingFacts("//far", FAR.bytes, conversation, is_from_target=False, database=HOME.bytes)
    assert PlannedFlow(str(handle), facts, has_sent=True, from_service="//near") == flow


def test_a_dialog_that_names_nobody_is_open(db: sqlite3.Connection) -> None:
    begin(db)

    assert read(db)[0].facts.is_open


@pytest.mark.parametrize(("messages", "has_sent"), [(0, False), (1, True), (3, True)])
def test_an_initiator_is_known_to_the_far_side_once_it_has_sent(
    db: sqlite3.Connection, messages: int, *, has_sent: bool
) -> None:
    begin(db, messages=messages)

    assert has_sent == read(db)[0].has_sent


def test_a_target_sends_acknowledgements_from_the_beginning(db: sqlite3.Connection) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET is_initiator = 0, far_broker_instance = ?", (FAR.bytes,))

    [flow] = read(db)

    assert (True, True, FAR.bytes) == (flow.has_sent, flow.facts.is_from_target, flow.facts.to_broker_instance)


@pytest.mark.parametrize("state", list(ConversationState))
def test_what_is_closed_or_failed_is_not_under_way(db: sqlite3.Connection, state: ConversationState) -> None:
    begin(db, messages=1)
    db.execute("UPDATE broker_conversation SET state = ?", (state.value,))

    assert (state not in {ConversationState.CLOSED, ConversationState.ERROR}) == bool(read(db))


def test_conversations_come_in_the_order_in_which_they_began(db: sqlite3.Connection) -> None:
    handles = [str(begin(db)) for _ in range(5)]

    assert handles == [flow.name for flow in read(db)]


# --- what passes through ---


def test_what_passes_by_its_service_alone_has_no_name_and_one_of_several_its_id() -> None:
    conversation = uuid4()
    passed = [RoutingFacts("//far", NO_GUID, NO_GUID), RoutingFacts("//far", FAR.bytes, conversation.bytes)]

    flows = list(flows_of_passage(passed, NOBODY))

    assert [
        PlannedFlow("", passed[0], has_sent=True),
        PlannedFlow(str(conversation), passed[1], has_sent=True),
    ] == flows


@pytest.mark.parametrize(
    ("facts", "is_there"),
    [
        (RoutingFacts("//near", HOME.bytes, NO_GUID, is_from_target=True), False),
        (RoutingFacts("//near", HOME.bytes, NO_GUID), True),
        (RoutingFacts("//near", FAR.bytes, NO_GUID, is_from_target=True), True),
    ],
)
def test_replies_to_databases_here_need_no_route(facts: RoutingFacts, *, is_there: bool) -> None:
    assert is_there == bool(list(flows_of_passage([facts], hosted({HOME.bytes: ["//near"]}))))
