"""What one instance knows: sides in its files, frames that wait, tombstones; and where it looked."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec.structs import replace

from broker.observe.explain import InstanceView, SendingDatabase
from broker.observe.views import Row, make_row
from broker.observe.why import FORWARDED, Severity, WhyAnswer, answer_why, look
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.lookup import Poison
from broker.store.sqlite.schema import SCHEMA_VERSION
from tests.support.shop import Shop
from tests.support.why import place

DIALOG = UUID(int=0xD1)
MESSAGE = UUID(int=0x3E55)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


def frame(**more: Any) -> Row:
    values: dict[str, Any] = {
        "conversation_id": DIALOG,
        "is_initiator": True,
        "to_service_name": "S",
        "from_service_name": "//Orders",
        "adjacent_broker_address": "tcp://two:4022",
        "message_sequence_number": 4,
        "message_id": MESSAGE,
        "why_held": "waiting for a connection",
        "held_ms": 1500,
    }
    return make_row(FORWARDED, **values | more)


def where(shop: Shop | None = None) -> InstanceView:
    """An instance whose route leads to another one, with the database of the shop."""
    one = place("one", 1, "two")
    if shop is None:
        return one
    home = SendingDatabase(broker_instance(shop.connect()), one.surroundings.msdb, shop.path)
    return replace(one, homes={"shop": home})


def asked(guid: UUID, shop: Shop | None = None, frames: tuple[Row, ...] | None = (), **more: Any) -> WhyAnswer:
    paths = {} if shop is None else {"shop": shop.path}
    now = time.time()
    told = look(guid, more.pop("paths", paths), frames, now)
    return answer_why(where(shop), guid, told, dropped=more.pop("dropped", {}), is_running=frames is not None, now=now)


def test_an_unknown_id_is_told_with_where_it_was_looked_for(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"x" * 4096)
    paths = {"shop": shop.path, "new": tmp_path / "absent.db", "bad": tmp_path / "bad.db"}

    answer = asked(uuid4(), shop, (frame(),), paths=paths)

    assert not answer.is_known
    assert answer.conversation_id is None
    assert ["database shop", "not in database new: it has no file yet"] == answer.looked_in[:2]
    assert answer.looked_in[2].startswith("not in database bad: its file cannot be read: ")
    assert "1 frames that wait here for a next hop" == answer.looked_in[3]


@pytest.mark.parametrize(("version", "what"), [(99, "use that release"), (5, "start the daemon of this release on it")])
def test_a_file_of_another_schema_is_not_answered_from(shop: Shop, version: int, what: str) -> None:
    """What its tables mean is not known here."""
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send("x")
        db.execute("UPDATE broker_database SET schema_version = ?", (version,))

    answer = asked(dialog.conversation_handle, shop, None)

    problem = f"its schema has version {version}, this release knows {SCHEMA_VERSION}: {what}"
    assert not answer.is_known
    assert f"not in database shop: its file cannot be read: {problem}" == answer.looked_in[0]


def test_a_side_is_told_with_its_way_and_what_follows(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send("x")

    answer = asked(dialog.conversation_handle, shop, dropped={"no route": 3})

    [one] = answer.sides
    assert ("shop", "Orders", 1, "waiting: not tried yet") == (
        one.database,
        one.service_name,
        one.held,
        one.transmission_status,
    )
    assert str(dialog.conversation_id).upper() == answer.conversation_id
    assert ["tcp://two:4022"] == [way.explanation.next_hop for way in answer.ways]
    assert ["not acknowledged"] == [found.cause for found in answer.findings]
    assert ({"no route": 3}, True) == (answer.dropped, answer.is_running)


def test_a_side_whose_database_is_not_at_work_has_no_way(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    told = look(dialog.conversation_id, {"shop": shop.path}, (), time.time())

    answer = answer_why(where(), dialog.conversation_id, told, dropped={}, is_running=True, now=0.0)

    assert (1, []) == (len(answer.sides), answer.ways)


def test_what_the_daemon_said_last_stays_true(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send("x")
    shop.change(dialog, "transmission_status", "waiting for its turn")

    assert "waiting for its turn" == asked(dialog.conversation_id, shop).sides[0].transmission_status


def test_a_side_that_ended_with_an_error_says_which(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send("x")
    dialog.end(error=9, description="out of stock")

    answer = asked(dialog.conversation_handle, shop)

    assert (9, "out of stock") == (answer.sides[0].sent_error_code, answer.sides[0].sent_error_text)
    assert answer.findings[0].symptom.endswith("ends the dialog with error 9: out of stock")


def test_texts_of_applications_are_left_out_where_they_are_not_to_be_shown(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send("x")
    dialog.end(error=9, description="card 4111")
    told = look(dialog.conversation_handle, {"shop": shop.path}, (), time.time())
    poison = Poison(0, 1, 1.0, None, "ValueError: card 4111")
    instance, found = told.found["shop"]
    inbound = dataclasses.replace(found.sides[0].inbound, error_code=8, error_text="card 4111", poison=poison)
    side = dataclasses.replace(found.sides[0], inbound=inbound)
    told.found["shop"] = instance, dataclasses.replace(found, sides=(side,))

    answer = answer_why(
        where(shop), dialog.conversation_handle, told, dropped={}, is_running=True, now=0.0, shows_texts=False
    )

    assert (8, 9) == (answer.sides[0].error_code, answer.sides[0].sent_error_code)
    assert b"4111" not in msgspec.json.encode(answer)


def test_the_status_of_a_side_that_waits_for_nothing_is_not_blank(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))

    status = asked(dialog.conversation_id, shop).sides[0].transmission_status

    assert "nothing waits: 0 messages acknowledged" == status


@pytest.mark.parametrize("guid", [DIALOG, MESSAGE])
def test_frames_that_wait_are_found_by_their_dialog_and_by_their_own_id(guid: UUID) -> None:
    others = (frame(conversation_id=uuid4(), message_id=uuid4()), frame(message_sequence_number=3, held_ms=90))

    answer = asked(guid, frames=(frame(), *others))

    [held] = answer.held
    assert (2, 1500, 3) == (held.frames, held.longest_ms, held.message_sequence_number)
    assert str(DIALOG).upper() == answer.conversation_id
    [found] = answer.findings
    assert ("held", Severity.TROUBLE, "waiting for a connection") == (found.cause, found.severity, found.why)
    assert "2 frames to S wait at one, up to 1.5 s so far" == found.symptom
    assert "make tcp://two:4022 reachable" in found.remedy


def test_of_frames_alone_both_ways_are_told() -> None:
    answer = asked(DIALOG, frames=(frame(from_broker_instance=UUID(int=7)),))

    assert [("S", False, None), ("//Orders", True, str(UUID(int=7)))] == [
        (way.explanation.to_service, way.explanation.is_from_target, way.explanation.to_broker_instance)
        for way in answer.ways
    ]


def test_a_closed_side_is_told_until_it_is_forgotten(shop: Shop) -> None:
    statement = "INSERT INTO broker_tombstone VALUES (?, ?, 4, 0, 1.0, 60.0, NULL, NULL, NULL, NULL)"
    shop.connect(isolation_level=None).executemany(statement, [(DIALOG.bytes, 1), (DIALOG.bytes, 0)])

    answer = asked(DIALOG, shop)

    symptoms = sorted(found.symptom for found in answer.findings)
    end = "side is closed since 1970-01-01 00:00:01 UTC, after 4 messages came"
    assert [f"the initiator's {end}", f"the target's {end}"] == symptoms
    assert "forgotten at 1970-01-01 00:01:00 UTC" in answer.findings[0].next
    assert ({True, False}, "over") == ({one.is_initiator for one in answer.closed}, answer.findings[0].cause)
    assert answer.findings[0].why.startswith("its application has ended the dialog, with an error or without, or its")
    assert answer.closed == msgspec.json.decode(msgspec.json.encode(answer), type=WhyAnswer).closed


def test_a_lifetime_beyond_the_calendar_is_told(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.change(dialog, "lifetime", 1e15)

    assert asked(dialog.conversation_id, shop).sides[0].lifetime is None


def test_files_alone_know_of_no_frames(shop: Shop) -> None:
    answer = asked(uuid4(), shop, None)

    assert not answer.is_running
    assert "no frames under way: no daemon runs that could hold some" == answer.looked_in[-1]


def test_a_failure_is_told_with_its_times(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_failure VALUES (?, 7, 3, 1, 2, 3, 'ValueError: x', 't')", (dialog.endpoint_id,)
    )

    poison = asked(dialog.conversation_id, shop).sides[0].poison

    assert poison is not None
    assert (2.0, 3.0) == (
        poison.last_failure_time.timestamp(),
        poison.quarantine_time and poison.quarantine_time.timestamp(),
    )
