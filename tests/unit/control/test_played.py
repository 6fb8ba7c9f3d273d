"""One database of a configuration in memory; what a whole configuration comes to is shown in test_rehearsal."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.dry_run import Played, begin_to_play, play
from broker.conversation.message_types import SentBy, Validation
from broker.ddl.parser import parse_script
from broker.errors import StatementError
from broker.routing.route import AUTO_CREATED_LOCAL
from broker.store.sqlite import database, metadata
from broker.store.sqlite.metadata import Priority

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
MADE = """
CREATE MESSAGE TYPE T; CREATE CONTRACT C (T SENT BY ANY, [DEFAULT] SENT BY ANY); CREATE QUEUE Q;
CREATE SERVICE S ON QUEUE Q (C, D); CREATE BROKER PRIORITY P FOR CONVERSATION SET (LOCAL_SERVICE_NAME = S);
"""


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return begin_to_play("a", tmp_path / "a.db", is_known=True)


def run(played: Played, script: str) -> None:
    for statement in parse_script(script):
        play(played, statement, NOW)


def test_database_without_a_file_begins_with_the_automatic_route_and_a_made_up_identity(played: Played) -> None:
    assert {AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL} == played.routes
    assert (16, False) == (len(played.broker_instance), played.is_identified)


def test_database_begins_with_what_its_file_holds(tmp_path: Path) -> None:
    with closing(database.open_store(tmp_path / "a.db")) as db:
        metadata.put_message_type(db, "T", Validation.JSON)
        metadata.put_contract(db, "C", {"T": SentBy.ANY})
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_service(db, "S", metadata.queues(db)["Q"].queue_id, frozenset({"C"}))
        metadata.put_priority(db, Priority("P", "C"))
        instance = database.broker_instance(db)

    played = begin_to_play("a", tmp_path / "a.db", is_known=False)

    assert (instance, True, True) == (played.broker_instance, played.is_identified, played.is_known)
    assert ({"S": "Q"}, {"S": frozenset({"C"})}) == (played.services, played.service_contracts)
    assert ({"T"}, {"C": frozenset({"T"})}, {"P": Priority("P", "C")}) == (
        played.message_types,
        played.contracts,
        played.priorities,
    )


def test_what_statements_make_is_kept_by_name(played: Played) -> None:
    run(played, MADE)

    assert ({"T"}, {"C": frozenset({"T", "DEFAULT"})}) == (played.message_types, played.contracts)
    assert ({"S": frozenset({"C", "D"})}, Priority("P", None, "S")) == (
        played.service_contracts,
        played.priorities["P"],
    )


def test_statements_may_be_made_again(played: Played) -> None:
    run(played, MADE)
    run(played, MADE)

    assert {"P"} == set(played.priorities)


def test_what_is_dropped_is_gone_and_what_is_not_there_may_be_dropped(played: Played) -> None:
    run(played, MADE)

    for _ in range(2):
        run(played, "DROP BROKER PRIORITY P; DROP SERVICE S; DROP QUEUE Q; DROP CONTRACT C; DROP MESSAGE TYPE T;")

    left = (played.priorities, played.services, played.service_contracts, played.queues, played.contracts)
    assert [] == [one for one in (*left, played.message_types) if one]


def test_contracts_of_a_service_are_altered(played: Played) -> None:
    run(played, f"{MADE} ALTER SERVICE S (ADD CONTRACT E, DROP CONTRACT D);")

    assert {"C", "E"} == played.service_contracts["S"]


def test_mistake_has_its_place(played: Played) -> None:
    with pytest.raises(StatementError) as caught:
        run(played, "CREATE MESSAGE TYPE T;\nCREATE CONTRACT C (U SENT BY ANY)")

    assert caught.value.span is not None
    assert (15151, 2, 20) == (caught.value.number, caught.value.span.line, caught.value.span.column)


def test_msdb_holds_routes_only(tmp_path: Path) -> None:
    with pytest.raises(StatementError, match="msdb holds routes and permissions only"):
        run(begin_to_play("msdb", tmp_path / "msdb.db", is_known=True), "CREATE MESSAGE TYPE T")


def test_a_file_that_another_daemon_has_is_not_read(tmp_path: Path) -> None:
    database.open_store(tmp_path / "a.db").close()

    read, unread = (begin_to_play("a", tmp_path / "a.db", is_known=False, is_elsewhere=one) for one in (False, True))

    assert (True, False) == (read.is_identified, unread.is_identified)
