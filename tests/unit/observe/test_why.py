"""Why a conversation does not go on, as one instance answers it."""

import dataclasses
import re
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec.structs import replace

from broker.dialog.status import NOT_SEALED
from broker.errors import NOTHING_STORED
from broker.flow import Disposition
from broker.observe.causes import PoisonShown, Severity, SideShown, Spot, WhyFinding, cause_texts, side_findings
from broker.observe.drops import DropSnapshot
from broker.observe.explain import ExplainAnswer, InstanceView, SendingDatabase
from broker.observe.query import FILE_GONE
from broker.observe.views import FORWARDED_MESSAGES, Row
from broker.observe.why import WhyAnswer, WhyFacts, answer_why, look, part_of
from broker.security.grants import RemoteServiceBinding
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.failure import Blame, note_failure
from broker.store.sqlite.metadata import put_binding
from broker.store.sqlite.schema import SCHEMA_VERSION
from broker.store.sqlite.session_keys import UNSEALABLE
from broker.store.sqlite.write_lock import LockHolder, LockWait
from tests.support.records import frame as dialog_frame
from tests.support.shop import Shop
from tests.support.why import AT, holding, place, side, told, way

DIALOG = UUID(int=0xD1)
MESSAGE = UUID(int=0x3E55)


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
    return tuple((values | more).get(column) for column in FORWARDED_MESSAGES.columns)


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
    dropped = more.pop("dropped", {})
    return answer_why(where(shop), guid, told, dropped=dropped, is_running=frames is not None, now=now, **more)


def test_an_unknown_id_is_told_with_where_it_was_looked_for(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"x" * 4096)
    paths = {"shop": shop.path, "new": tmp_path / "absent.db", "bad": tmp_path / "bad.db"}

    answer = asked(uuid4(), shop, (frame(),), paths=paths)

    assert not answer.is_known
    assert answer.conversation_id is None
    assert ["database shop", f"not in database new: {paths['new']}: {FILE_GONE}"] == answer.looked_in[:2]
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
    no_file = f"not in database shop: its file cannot be read: {problem}"
    assert (False, False) == (answer.is_known, answer.is_running)
    assert [no_file, "no frames under way: no daemon runs that could hold some"] == answer.looked_in


def test_a_side_is_told_with_its_way_and_what_follows(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send("x")

    answer = asked(dialog.conversation_handle, shop, dropped={"no route": 3})

    [one] = answer.sides
    assert ("shop", "Orders", 1) == (one.database, one.service_name, one.held)
    assert "on its way: not tried yet" == one.transmission_status
    assert str(dialog.conversation_id).upper() == answer.conversation_id
    assert ["tcp://two:4022"] == [way.explanation.next_hop for way in answer.ways]
    assert ["not acknowledged"] == [found.cause for found in answer.findings]
    assert ({"no route": 3}, True) == (answer.dropped, answer.is_running)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_keeps_a_store_from_storing_is_a_cause_in_the_database_of_the_side_or_of_a_new_one(
    shop: Shop, *, is_known: bool
) -> None:
    with shop.connect() as db:
        dialog = shop.begin(db)
    waits = {"shop": LockWait(0.0, 45.0, LockHolder(7, "python3")), "other": LockWait(0.0, 3.0, None)}

    answer = asked(
        dialog.conversation_handle if is_known else uuid4(),
        shop,
        lock_waits=waits,
        store_problems={"shop": f"it is gone, so {NOTHING_STORED}: save it", "other": "the disk is full"},
    )

    failed = {found.database: found for found in answer.findings if found.cause == "store failed"}
    assert waits.keys() & ({"shop"} if is_known else {"shop", "other"}) == failed.keys()
    assert f"its store has failed: it is gone, so {NOTHING_STORED}" == failed["shop"].why
    assert failed["shop"].remedy.endswith(", save it")
    locked = {found.database: found for found in answer.findings if found.cause == "write lock held"}
    assert (["shop"] if is_known else ["shop", "other"]) == list(locked)
    assert "process 7 (python3) has kept a write transaction open for 45 s" == locked["shop"].why


def test_a_side_whose_database_is_not_at_work_has_no_way(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    told = look(dialog.conversation_id, {"shop": shop.path}, (), time.time())

    answer = answer_why(where(), dialog.conversation_id, told, dropped={}, is_running=True, now=0.0)

    assert (1, []) == (len(answer.sides), answer.ways)


def failed(shop: Shop, handle: UUID, **inbound: Any) -> WhyFacts:
    """What is found of a side, but for what has come to it."""
    facts = look(handle, {"shop": shop.path}, (), time.time())
    instance, found = facts.found["shop"]
    side = dataclasses.replace(found.sides[0], inbound=dataclasses.replace(found.sides[0].inbound, **inbound))
    facts.found["shop"] = instance, dataclasses.replace(found, sides=(side,))
    return facts


def asked_after(
    disposition: Disposition, reason: str = "", *, of: UUID = DIALOG, age: float = 9.0, **more: Any
) -> list[WhyFinding]:
    """What is told of a frame that was dropped."""
    sample = dialog_frame(conversation_id=of.bytes, to_service="//far")
    drop = DropSnapshot(disposition, more.pop("database", None), 1, 0.0, sample, reason, **more)
    return asked(DIALOG, drops=[(drop, age)]).drops


SCRIPTED = ", and in its script if it has one:"
AT_ONE = f"at one, with broker sql{SCRIPTED}"
TWO = "tcp://two:4022"
GRANT = "no GRANT SEND ON SERVICE::[S] TO [CN=a] or public"


@pytest.mark.parametrize(
    ("of", "disposition", "database", "age", "remedy"),
    [
        (DIALOG, Disposition.NOT_PERMITTED, "d]b", 9.0, f"{AT_ONE} USE [d]]b]; GRANT SEND ON SERVICE::[S] TO [CN=a];"),
        (DIALOG, Disposition.NOT_PERMITTED, None, 9.0, f"{AT_ONE} USE [msdb]; GRANT SEND ON SERVICE::[S] TO [CN=a];"),
        (DIALOG, Disposition.NOT_PERMITTED, None, 900.0, None),
        (DIALOG, Disposition.DUPLICATE, "db", 9.0, None),
        (uuid4(), Disposition.NOT_PERMITTED, None, 9.0, None),
        (uuid4(), Disposition.POOL_LIMIT, None, 9.0, "see which next hop of one is slow or gone"),
        (uuid4(), Disposition.POOL_LIMIT, None, 900.0, None),
        (uuid4(), Disposition.SECURITY_UNRESOLVED, "db", 9.0, "the log of one says which certificate is meant: "),
    ],
)
def test_a_recent_drop_that_may_be_of_the_dialog_is_told_with_its_remedy(
    of: UUID, disposition: Disposition, database: str | None, age: float, remedy: str | None
) -> None:
    reason = GRANT if disposition == Disposition.NOT_PERMITTED else ""

    found = asked_after(disposition, reason, of=of, database=database, age=age)

    assert [remedy] * (remedy is not None) == [one.remedy[: len(remedy or "")] for one in found]


def test_the_remedy_of_a_drop_does_not_repeat_its_reason() -> None:
    [found] = asked_after(Disposition.SECURITY_UNRESOLVED, "no sha256:ab", database="db", peers=("/p/*",))

    put = "put the certificate of the database of //from into databases.db.peers (/p/*) of one, as broker"
    assert (True, True) == ("no sha256:ab" in found.why, found.remedy.startswith(put))


def test_a_drop_whose_cause_is_over_is_told_as_past() -> None:
    [found] = asked_after(Disposition.NO_ROUTE, is_past=True)

    assert ("did not get" in found.symptom, True) == (True, found.why.startswith("what prevented it here has changed"))


@pytest.mark.parametrize("is_initiator", [True, False])
def test_a_drop_that_is_over_is_not_told_once_its_database_has_the_dialog(shop: Shop, *, is_initiator: bool) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    shop.change(dialog, "is_initiator", int(is_initiator))
    sample = dialog_frame(conversation_id=dialog.conversation_id.bytes, to_service="//far")
    drop = DropSnapshot(Disposition.NOT_PERMITTED, "shop", 1, 0.0, sample, GRANT, is_past=True)

    told = asked(dialog.conversation_id, shop, drops=[(drop, 9.0)])

    assert ([is_initiator], int(is_initiator)) == ([side.is_initiator for side in told.sides], len(told.drops))


def test_a_side_has_its_status_its_lifetime_and_its_failure(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    idle, ended = shop.begin(db), shop.begin(db)
    shop.change(idle, "lifetime", 1e15)  # beyond the calendar
    shop.change(ended, "transmission_status", "waiting for room")
    db.execute("INSERT INTO broker_failure VALUES (?, 7, 3, 1, 2, 3, 'ValueError: x', 't')", (idle.endpoint_id,))
    ended.send("x")
    ended.end(error=9, description="out of stock")

    one, other = asked(idle.conversation_id, shop), asked(ended.conversation_handle, shop)

    assert ("nothing waits: 0 messages acknowledged", None) == (one.sides[0].transmission_status, one.sides[0].lifetime)
    side = other.sides[0]
    assert (9, "out of stock") == (side.sent_error_code, side.sent_error_text)
    assert ("waiting for room", True) == (side.transmission_status, side.held_since is not None)
    assert other.findings[0].symptom.endswith("ends the dialog with error 9: out of stock")
    poison = one.sides[0].poison
    assert poison is not None
    assert poison.quarantine_time is not None
    assert (2.0, 3.0) == (poison.last_failure_time.timestamp(), poison.quarantine_time.timestamp())


def test_texts_of_applications_are_left_out_where_they_are_not_to_be_shown(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send("x")
    dialog.end(error=9, description="card 4111")
    note_failure(db, Blame(dialog.endpoint_id, 0, "ValueError: card 4111"), now=1.0)
    told = failed(shop, dialog.conversation_handle, error_code=8, error_text="card 4111")

    answer = answer_why(
        where(shop), dialog.conversation_handle, told, dropped={}, is_running=True, now=0.0, shows_texts=False
    )

    assert (8, 9) == (answer.sides[0].error_code, answer.sides[0].sent_error_code)
    assert answer.sides[0].poison is not None
    assert b"card" not in msgspec.json.encode(answer)


@pytest.mark.parametrize(("service", "is_over"), [("//far/Billing", True), ("//other", False), ("//far/Biling", False)])
def test_a_dialog_that_failed_for_want_of_a_binding_is_only_begun_again_once_there_is_one(
    shop: Shop, service: str, *, is_over: bool
) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    shop.change(dialog, "state", "ER")
    put_binding(db, RemoteServiceBinding("b", service, "CN=billing", is_anonymous_on=False))
    told = failed(shop, dialog.conversation_handle, error_code=-9727, error_text="no binding")

    answer = answer_why(where(shop), dialog.conversation_handle, told, dropped={}, is_running=True, now=0.0)

    remedy, handle = answer.findings[0].remedy, str(dialog.conversation_handle).upper()
    assert is_over == remedy.startswith("receive the Error message and end the dialog")
    is_near = f"is the name right? shop has a binding for {service}: if that is meant, receive the Error" in remedy
    assert is_near == (service == "//far/Biling")
    assert (
        f"at one, broker receive -d shop --queue {answer.sides[0].queue_name} --conversation {handle} --end" in remedy
    )
    assert is_over != ("CREATE REMOTE SERVICE BINDING" in remedy)


@pytest.mark.parametrize("guid", [DIALOG, MESSAGE])
def test_frames_that_wait_are_found_by_their_dialog_and_by_their_own_id_with_both_ways(guid: UUID) -> None:
    others = (frame(conversation_id=uuid4(), message_id=uuid4()), frame(message_sequence_number=3, held_ms=90))

    answer = asked(guid, frames=(frame(from_broker_instance=UUID(int=7)), *others))

    [held] = answer.held
    assert [("S", False, None), ("//Orders", True, str(UUID(int=7)))] == [
        (way.explanation.to_service, way.explanation.is_from_target, way.explanation.to_broker_instance)
        for way in answer.ways
    ]
    assert (2, 1500, 3) == (held.frames, held.longest_ms, held.message_sequence_number)
    assert str(DIALOG).upper() == answer.conversation_id
    [found] = answer.findings
    assert ("held", Severity.TROUBLE, "waiting for a connection") == (found.cause, found.severity, found.why)
    assert "2 frames to S wait at one, up to 1.5 s so far" == found.symptom
    start = f"start the instance at {TWO} (if it runs by now, it is dialled within 10 s), open the way to it, or if"
    assert f"{start} it is somewhere else, {LED_ELSEWHERE}" == found.remedy


def test_frames_for_a_next_hop_that_routes_no_longer_choose_are_no_trouble() -> None:
    [found] = asked(DIALOG, frames=(frame(adjacent_broker_address="tcp://former:4022"),)).findings

    assert Severity.WAITING == found.severity
    assert found.remedy.startswith("nothing, routes lead elsewhere now")


LED_ELSEWHERE = f"{AT_ONE} USE [msdb]; ALTER ROUTE [r] WITH ADDRESS = 'tcp://HOST:PORT';"
UNTRUSTED = "TLS refused: the peer's certificate is not trusted (CN=two), why: put it into endpoint.peers (/p/*) here"


def test_a_frame_that_waits_for_a_certificate_is_told_where_to_name_it() -> None:
    why = f"waiting for a connection to tcp://two:4022: {UNTRUSTED}; 9 of at most 99 bytes wait for it"

    [found] = asked(DIALOG, frames=(frame(why_held=why),)).findings

    astray = f" Or, if another instance is meant, {LED_ELSEWHERE}"
    put = "put it into endpoint.peers (/p/*) at one"
    assert f"{put}; broker check with a -c for each instance of the path prints which file to copy where.{astray}" == (
        found.remedy
    )


def test_of_a_sealed_dialog_services_with_a_similar_name_are_told() -> None:
    near = msgspec.structs.replace(NO_ROUTE.explanation, near_names=("//shop/Billing",))
    [only] = found(holding(security=UNSEALABLE), msgspec.structs.replace(NO_ROUTE, explanation=near))

    assert "is the name right? Known there: //shop/Billing." in only.remedy


@pytest.mark.parametrize("is_locked", [True, False])
def test_what_has_arrived_in_a_database_and_what_is_sent_there_are_judged_apart(*, is_locked: bool) -> None:
    one = holding(ready=2, ready_since=AT)
    lock = [Spot("one", "orders").found("write lock held", who="x", seconds=1.0)] * is_locked
    answer = told(place("one", 1, "two"), *side_findings(one, DOWN, Spot("one", "orders")), *lock, sides=[one])

    arrived, sent = (part_of(answer, "orders", has_arrived=has_arrived) for has_arrived in (True, False))

    assert ["next hop not reached", *["write lock held"] * is_locked] == [one.cause for one in sent.findings]
    assert ["waiting for RECEIVE", *["write lock held"] * is_locked] == [one.cause for one in arrived.findings]
    assert [] == arrived.ways


def test_what_has_arrived_for_a_failed_dialog_is_judged_with_all_that_is_known() -> None:
    answer = told(place("one", 1, "two"), *side_findings(ERROR, GOOD, SPOT), sides=[ERROR], ways=(GOOD,))

    assert answer == part_of(answer, "orders", has_arrived=True)


def test_a_closed_side_is_told_until_it_is_forgotten(shop: Shop) -> None:
    statement = "INSERT INTO broker_tombstone VALUES (?, ?, 4, 0, 1.0, 60.0, NULL, NULL, NULL, NULL)"
    shop.connect(isolation_level=None).executemany(statement, [(DIALOG.bytes, 1), (DIALOG.bytes, 0)])

    answer = asked(DIALOG, shop)

    symptoms = sorted(found.symptom for found in answer.findings)
    end = "side is closed since 1970-01-01 00:00:01 UTC; 4 messages had come to it"
    assert [f"the initiator's {end}", f"the target's {end}"] == symptoms
    assert "forgotten at 1970-01-01 00:01:00 UTC" in answer.findings[0].next
    assert ({True, False}, "over") == ({one.is_initiator for one in answer.closed}, answer.findings[0].cause)
    assert answer.findings[0].why.startswith("its application has ended the dialog, with an error or without, or its")
    assert answer.closed == msgspec.json.decode(msgspec.json.encode(answer), type=WhyAnswer).closed


# --- one side: its cause, how much it weighs, and the words that name cause and remedy ---


SPOT = Spot("orders-1", "orders", " -c shop.toml")
GOOD, NO_ROUTE = way(place("one", 1, "two")), way(place("one", 1, ""))
ROUND = way(place("one", 1, "two", own="two"))
DOWN = way(place("one", 1, "two", problem="Connection refused"))
DENIED = way(place("one", 1, "two", problem="FATAL from CN=b: CN=a may not connect: no GRANT CONNECT"))
ASTRAY = f" Or, if route r of one is not to lead to {TWO}, {LED_ELSEWHERE} Or, if the name"
POISON, ONCE = PoisonShown(3, 5, AT, AT, "ValueError: x"), PoisonShown(3, 1, AT, None, "E")
FINE, WAITING, TROUBLE = Severity.FINE, Severity.WAITING, Severity.TROUBLE
ERROR = side(state="ER", error_code=-8490, error_text="none")


def found(one: SideShown, route: ExplainAnswer | None = GOOD) -> list[WhyFinding]:
    return list(side_findings(one, route, SPOT))


EXPIRED = side(state="ER", error_code=-8489, send_sequence=1)
EXPIRED_AND_STORED = replace(EXPIRED, acknowledged_sequence=1)
NOT_AMONG = "no certificate of CN=f is among the peers of this database"
PUT = "put that certificate into databases.orders.peers"
CONNECT = "GRANT CONNECT ON ENDPOINT::[*] TO [PRINCIPAL];"
UNSEALED = holding(status=f"delayed, {NOT_SEALED}{NOT_AMONG}")


@pytest.mark.parametrize(
    ("one", "route", "cause", "severity", "why", "remedy"),
    [
        (holding(), NO_ROUTE, "no route", TROUBLE, "no route", "CREATE ROUTE [S]"),
        (UNSEALED, GOOD, "certificate not known", TROUBLE, NOT_AMONG, PUT),
        (holding(), DOWN, "next hop not reached", TROUBLE, "the next hop tcp://two:4022 is not", "start the instance"),
        (holding(), DENIED, "next hop not reached", TROUBLE, "no GRANT CONNECT", CONNECT),
        (holding(), GOOD, "not acknowledged", WAITING, "sent and not acknowledged yet", "nothing, unless it lasts"),
        (side(send_sequence=3), GOOD, "acknowledged", FINE, "a database of S has stored it", ""),
        (side(), GOOD, "nothing sent", FINE, "the far side learns of a dialog", ""),
        (side(is_initiator=False, receive_sequence=2), GOOD, "received", FINE, "has sent nothing in this dialog", ""),
        (side(is_initiator=False, receive_sequence=1), NO_ROUTE, "no way back", TROUBLE, "no route", "CREATE ROUTE"),
        (holding(), ROUND, "loop", TROUBLE, "route r of one leads back to one", "ALTER ROUTE [r] WITH ADDRESS = "),
        (holding(security=UNSEALABLE), NO_ROUTE, "no route", TROUBLE, "no route", "CREATE REMOTE SERVICE BINDING [S]"),
        (ERROR, GOOD, "error -8490", TROUBLE, "says so: none", "CREATE SERVICE [S]"),
        (EXPIRED, GOOD, "lifetime over", TROUBLE, "says so", "begin a new dialog and send again"),
        (EXPIRED_AND_STORED, GOOD, "lifetime over", TROUBLE, "says so", "nothing has to be sent"),
        (side(state="ER", error_code=-8489), NO_ROUTE, "lifetime over", TROUBLE, "wait as well: ", "CREATE ROUTE [S]"),
        (side(state="ER"), GOOD, "error", TROUBLE, "was received", "USE [orders]; END CONVERSATION 'HANDLE';"),
    ],
)
def test_what_one_side_sends(
    one: SideShown, route: ExplainAnswer, cause: str, severity: Severity, *, why: str, remedy: str
) -> None:
    first = found(one, route)[0]

    assert ("orders-1", "orders", cause, severity) == (first.instance, first.database, first.cause, first.severity)
    assert (why in first.why, remedy in first.remedy) == (True, True)
    assert first.symptom
    assert first.next


@pytest.mark.parametrize("more", [{}, {"acknowledged_sequence": 1}])
def test_a_dialog_whose_lifetime_is_over_is_ended_by_one_command(more: dict[str, Any]) -> None:
    remedy = found(side(state="ER", error_code=-8489, **more), NO_ROUTE)[0].remedy

    assert 1 == remedy.count("broker receive -c shop.toml -d orders --queue Q --conversation HANDLE --end")
    assert (not more) == ("if the name is wrong" in remedy)
    assert ".." not in remedy


def test_what_the_decision_and_the_status_say_is_said_once() -> None:
    waits = "no route to 'S' (9798): matched again at 12:00, or when routes or services change"

    [first] = found(holding(status=waits), NO_ROUTE)

    assert (1, 1) == (first.why.count("(9798)"), first.why.count("matched again"))


@pytest.mark.parametrize(
    ("reason", "why", "remedy"),
    [
        ("pool limit exceeded (11289)", "by route r, tcp://two:4022 took none", "raise endpoint.message_forward_size"),
        ("hops exhausted (11285)", "by route r, tcp://two:4022 took none", "raise endpoint.max_hops"),
        ("service not here (9796), answered by c (CN=c)", "tcp://two:4022 took none", ASTRAY),
        ("already held (11288)", f"{TWO} had copies of them", f"broker why at {TWO} shows what the copies"),
        (f"not permitted: {GRANT} (11215)", GRANT, f"at {TWO}, with broker sql{SCRIPTED} USE [msdb]; GRANT"),
    ],
)
def test_what_the_next_hop_refuses_has_its_reason_and_remedy(reason: str, why: str, remedy: str) -> None:
    refused = holding(status=f"sent; refused by the next hop: {reason}")

    first, without_a_route = found(refused)[0], found(refused, None)[0]

    assert (TROUBLE, reason[: len(first.cause)]) == (first.severity, first.cause)
    assert (why in first.why, remedy in first.remedy) == (True, True)
    assert "the next hop" in without_a_route.why


def test_a_refusal_by_another_next_hop_than_that_of_the_next_copy_names_the_one_that_refused() -> None:
    status = "sent to tcp://three:4022 and not acknowledged yet: sent again at 12:00; attempt 2, at 11:59, "

    first = found(holding(status=f"{status}refused by the next hop: already held (11288), answered by three"))[0]

    assert first.why.startswith("tcp://three:4022 had copies of them that waited there: ")
    assert "tcp://two:4022" not in first.why + first.remedy


@pytest.mark.parametrize("route", [GOOD, NO_ROUTE, DOWN], ids=["good", "no route", "down"])
def test_the_symptom_names_both_ends_since_when_and_the_error_that_ends_the_dialog(route: ExplainAnswer) -> None:
    (whole,) = found(holding(1200, state="DO", lifetime=None, sent_error_code=9, sent_error_text="out of stock"), route)
    (bare,) = found(holding(1, state="DO", sent_error_code=9), route)

    assert whole.symptom == (
        "1,200 messages from //Orders to S wait in orders, since 2026-03-01 12:00:00 UTC:"
        " not acknowledged from number 0 on; the last of them ends the dialog with error 9: out of stock"
    )
    assert whole.next.endswith("the lifetime of the dialog ends at an unknown time")
    assert bare.symptom.endswith("from number 0 on; the last of them ends the dialog with error 9")


@pytest.mark.parametrize("more", [{}, {"acknowledged_sequence": 1}, {"receive_sequence": 1}, {"is_initiator": False}])
def test_name_of_the_far_service_may_be_wrong_until_messages_arrive(more: dict[str, Any]) -> None:
    """A sent message cannot be readdressed, so the dialog is ended."""
    explanation = msgspec.structs.replace(NO_ROUTE.explanation, near_names=("//S",))

    remedy = found(holding(**more), msgspec.structs.replace(NO_ROUTE, explanation=explanation))[0].remedy

    end = "at orders-1, with broker sql: USE [orders]; END CONVERSATION 'HANDLE' WITH CLEANUP; and begin another dialog"
    assert (not more) == remedy.startswith("is the name right? Known there: //S.")
    assert (not more) == (end in remedy)
    assert f"{AT_ONE} USE [msdb]; CREATE ROUTE [S]" in remedy


RESUME = "then broker quarantine resume -c shop.toml -d orders HANDLE; with skip"
UNREAD: dict[str, Any] = {"send_sequence": 1, "ready": 2, "ready_since": AT}


@pytest.mark.parametrize(
    ("more", "cause", "severity", "why", "remedy"),
    [
        (UNREAD, "waiting for RECEIVE", TROUBLE, "no reader runs", "start the application that receives from Q"),
        (UNREAD | {"readers": 2}, "waiting for RECEIVE", WAITING, "2 reader processes", "broker run"),
        (UNREAD | {"is_receive_enabled": False}, "queue off", TROUBLE, "is OFF", "ALTER QUEUE [Q] WITH STATUS = ON"),
        ({"unconfirmed": 1}, "not confirmed", WAITING, "is an exclusive target", "whether the initiator can be"),
        (UNREAD | {"is_taken": True}, "being read", WAITING, "has the conversation group", "unless it lasts"),
        ({"poison": POISON}, "in quarantine", TROUBLE, "message 3 made its reader fail 5 times", RESUME),
        ({"poison": ONCE, "ready": 1}, "tried again", WAITING, "reader fail once", "correct the program that receives"),
        ({"early_fragments": 7}, "out of order", WAITING, "message 0 has not arrived whole", "unless it lasts"),
        ({"state": "DI"}, "far side ended", TROUBLE, "nothing more can be sent", "; END CONVERSATION 'HANDLE';"),
        (UNREAD | {"state": "DI"}, "far side ended", WAITING, "nothing more can be sent", "RECEIVE the EndDialog"),
    ],
)
def test_what_has_come_for_one_side(
    more: dict[str, Any], cause: str, severity: Severity, why: str, remedy: str
) -> None:
    last = found(side(**more))[-1]

    assert (cause, severity) == (last.cause, last.severity)
    assert why in last.why
    assert remedy in last.remedy


def test_every_cause_is_on_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "find-a-message.md").read_text()

    assert cause_texts().keys() <= set(re.findall(r"^\| `([^`]+)`", page, re.MULTILINE))


@pytest.mark.parametrize(
    ("one", "route", "causes"),
    [
        (side(is_initiator=False), NO_ROUTE, []),
        (holding(state="DI"), GOOD, ["not acknowledged"]),
        (side(state="DI", quarantined=2, poison=POISON), GOOD, ["nothing sent", "in quarantine"]),
    ],
)
def test_what_follows_from_another_cause_is_no_finding(one: SideShown, route: ExplainAnswer, causes: list[str]) -> None:
    """A target that has received nothing misses no way back, nor the far side's end what is held or in quarantine."""
    assert causes == [one.cause for one in found(one, route)]
