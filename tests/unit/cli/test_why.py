"""`broker why`: the daemon's answer, that of files, and where an unknown id was looked for."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from broker.admin.trace import FORECAST
from broker.cli.why import ASKED_MAX, NOTHING_WAITS
from broker.observe.causes import Severity, SideShown, Spot, WhyFinding, inbound_findings
from broker.observe.health import judge
from broker.observe.status import Status
from broker.observe.why import WhyAnswer
from broker.protocol.layout import show_guid
from broker.store.sqlite.database import lock_store
from tests.support.command import run
from tests.support.journalled import visit, write
from tests.support.shop import Shop
from tests.support.why import AT, CONVERSATION, finding, holding, place, side, told, way

A = place("a", 1, "b")
NOTED = finding("a", "not acknowledged", Severity.WAITING)


def from_a(*findings: WhyFinding, one: SideShown | None = None, leads_on: bool = False) -> WhyAnswer:
    """What the sender knows, perhaps with its way, which leads to tcp://b:4022."""
    return told(A, *findings, ways=(way(A),) if leads_on else (), sides=[one or holding()])


def knows(admin: Any, known: WhyAnswer, guid: str = str(CONVERSATION)) -> None:
    """The daemon answers this about a conversation."""
    known = msgspec.structs.replace(known, conversation_id=guid)
    admin.answers[f"/v1/why/{UUID(guid)}"] = (200, msgspec.to_builtins(known))


def serves(admin: Any, rows: Mapping[str, list[Any]], database: object = None, **status: Any) -> None:
    """The daemon has a database orders, and these rows where such words are in a SELECT."""
    usual = {"databases": {"orders": database or {}}, "forwarding": {"enabled": False}}
    told = msgspec.convert(usual | status, Status)
    admin.answers["/v1/status"] = (200, msgspec.to_builtins(msgspec.structs.replace(told, verdict=judge(told))))
    admin.answers["/v1/sql"] = (
        200,
        lambda asked: {"rows": next((found for words, found in rows.items() if words in asked["statement"]), [])},
    )


def guids_of(count: int) -> list[str]:
    return [str(UUID(int=number)).upper() for number in range(1, count + 1)]


def listed(admin: Any) -> Any:
    return json.loads(run("why", "--socket", admin.path, "-o", "json").stdout)


def page(admin: Any) -> str:
    """The list, on one line."""
    done = run("why", "--socket", admin.path)
    assert 0 == done.exit_code
    return " ".join(done.stdout.split())


@pytest.fixture
def daemon(fake_admin: Any) -> Any:
    knows(fake_admin, from_a(NOTED, leads_on=True))
    return fake_admin


def asked(daemon: Any, *more: object) -> Any:
    """The next hop is asked at a socket that nobody has."""
    nobody = f"tcp://b:4022={daemon.path}.none"
    return run("why", CONVERSATION, "--socket", daemon.path, "--admin", nobody, *more)


def test_symptom_cause_next_and_remedy_come_first_and_in_this_order(daemon: Any) -> None:
    done = asked(daemon)
    trace = json.loads(asked(daemon, "-o", "json").stdout)

    assert [
        f"conversation {CONVERSATION}",
        "  symptom: symptom of not acknowledged",
        "  cause:   a: why of not acknowledged",
        "  next:    next of not acknowledged",
    ] == done.stdout.splitlines()[:4]
    text = " ".join(done.stdout.split())
    ask = f"broker why {CONVERSATION} --socket {daemon.path} --admin tcp://b:4022=http://HOST:PORT (or"
    assert f" remedy: ask the rest of the way: {ask}" in text
    assert "not asked: a -> tcp://b:4022: not known from there on" in text
    assert (0, 1) == (done.exit_code, text.count("not known from there on"))
    assert ("not acknowledged", "a", 1) == (trace["cause"], trace["where"], len(trace["not_asked"]))
    assert (1, 1) == (trace["answers"][0]["sides"][0]["held"], trace["findings"][0]["severity"])


def test_commands_of_the_remedy_name_where_each_instance_was_asked_also_off_the_way(fake_admin: Any) -> None:
    remedy = "; ".join(f"at {name}, with broker sql: USE [x]" for name in "abc") + "; broker dialogs retry"
    knows(fake_admin, from_a(finding("a", "held", Severity.TROUBLE, remedy=remedy), leads_on=True))

    alone = json.loads(asked(fake_admin, "-c", "my shop.toml", "-o", "json").stdout)
    fake_admin.answers["/v1/explain"] = (200, msgspec.to_builtins(way(place("b", 2, None))))
    both = json.loads(asked(fake_admin, "--admin", f"tcp://b:4022={fake_admin.path}", "-o", "json").stdout)

    there = f" --socket {fake_admin.path}"
    given = f" -c 'my shop.toml'{there}"
    assert remedy.replace("a, with broker sql", f"a, with broker sql{given}") + given == alone["remedy"]
    parts = both["remedy"].split("; ")
    assert [f"at {name}, with broker sql{at}: USE [x]" for name, at in zip("abc", (there, there, ""), strict=True)] == (
        parts[:3]
    )


def test_what_the_next_message_would_meet_is_shown_with_its_remedy(fake_admin: Any) -> None:
    ahead = finding("a", "no route", Severity.FINE, remedy="at a, with broker sql: USE [x]; CREATE;", next=FORECAST)
    knows(fake_admin, from_a(ahead, finding("a", "unread", Severity.WAITING), leads_on=True))

    text = asked(fake_admin).stdout

    remedy = f"      remedy:  at a, with broker sql --socket {fake_admin.path}: USE [x]; CREATE;"
    assert f"      {FORECAST}\n{remedy}\n" in text


def test_without_an_id_each_cause_is_listed_with_its_oldest_conversation(fake_admin: Any) -> None:
    guids = guids_of(4)
    rows: dict[str, list[Any]] = {
        "sys.transmission_queue": [["2026-03-01 12:00:00.000", guids[0], "S", 3]],
        "[Q]]]": [["2026-02-01 12:00:00.000", guids[1], "S", 1], ["2026-03-02 12:00:00.000", guids[2], "S", 2]],
        "sys.dm_broker_forwarded_messages": [[1500, guids[3], "S", 5]],
        "is_initiator = 1": [],
        "sys.service_queues": [["Q]"]],
    }
    causes = ("not acknowledged", "waiting for RECEIVE", "not acknowledged", "held")
    for guid, cause in zip(guids, causes, strict=True):
        knows(fake_admin, from_a(finding("a", cause, Severity.WAITING)), guid)
    serves(fake_admin, rows)

    shown, told = page(fake_admin), listed(fake_admin)
    for found in rows.values():
        found.clear()
    nothing = page(fake_admin)
    rows["is_initiator = 1"].append([guids[0]])
    acknowledged = page(fake_admin)

    assert (
        f"{NOTHING_WAITS} what orders has sent is acknowledged (the far side has stored it), or its dialog has failed"
        " or was ended; the ledger in broker status counts each. broker why" in acknowledged
    )
    assert shown.startswith(
        f"{guids[1]}: 1 message to S in orders, since 2026-02-01 12:00:00.000 cause: a: why of waiting for RECEIVE"
        " remedy: remedy of waiting for RECEIVE"
        f" {guids[0]} and 1 other dialog for the same cause: 5 messages to S in orders, since 2026-03-01 12:00:00.000"
        " cause: a: why of not acknowledged remedy: remedy of not acknowledged"
        f" {guids[3]}: 5 frames to S held here, since "
    )
    assert [("orders", 1, 1), ("orders", 2, 5), ("msdb", 1, 5)] == [
        (one["database"], one["dialogs"], one["messages"]) for one in told
    ]
    assert NOTHING_WAITS == nothing


def test_services_that_wait_for_one_cause_are_listed_apart_and_so_is_what_arrived_in_the_same_dialog(
    fake_admin: Any,
) -> None:
    guids, one = guids_of(2), holding(ready=1, ready_since=AT)
    sent, arrived = finding("a", "down", Severity.TROUBLE), inbound_findings(one, Spot("a", "orders"))
    known = told(A, *arrived, sent, sides=[one])
    for guid in guids:
        knows(fake_admin, known, guid)
    rows: dict[str, list[Any]] = {
        "sys.service_queues": [["Q"]],
        "sys.transmission_queue": [["2", guids[0], "S", 3], ["3", guids[1], "T", 4]],
        "[Q]": [["1", guids[0], "//Orders", 1]],
    }
    serves(fake_admin, rows)

    told_of = listed(fake_admin)

    assert [("//Orders", 1), ("S", 3), ("T", 4)] == [(row["to_service_name"], row["messages"]) for row in told_of]
    assert "no application has received it" in told_of[0]["cause"]
    assert {"a: why of down"} == {row["cause"] for row in told_of[1:]}


@pytest.mark.parametrize(
    ("remedy", "which"),
    [
        ("END CONVERSATION '{}' WITH CLEANUP;", f"--far-instance {UUID(int=0xFA)} --cleanup "),
        ("broker receive --conversation {} --end;", "--state ER "),
        ("broker quarantine resume {}", ""),
    ],
)
def test_the_dialogs_of_a_row_that_are_only_to_be_ended_are_ended_by_one_command(
    fake_admin: Any, remedy: str, which: str
) -> None:
    guids = guids_of(2)
    for guid in guids:
        one = side(state="ER", conversation_handle=guid, far_broker_instance=str(UUID(int=0xFA)))
        knows(fake_admin, from_a(finding("a", "error", Severity.TROUBLE, remedy=remedy.format(guid)), one=one), guid)
    serves(fake_admin, {"state = 'ER'": [["2", guid, "//Orders", 0] for guid in guids]})

    [row] = listed(fake_admin)

    assert "Then, broker why again has that for the next" in row["remedy"]
    assert bool(which) == (f"; broker dialogs end -d orders {which}--older-than 0s --dry-run" in row["remedy"])
    assert bool(which) == ("dialogs end" in row["remedy"])


def test_a_failed_dialog_without_its_error_and_one_in_quarantine_are_listed(fake_admin: Any) -> None:
    """The Error message has been received."""
    guids = guids_of(2)
    poisoned = finding("a", "in quarantine", Severity.TROUBLE, remedy="broker quarantine resume")
    knows(fake_admin, from_a(poisoned, one=side(state="ER")), guids[0])
    knows(fake_admin, from_a(finding("a", "error", Severity.TROUBLE), one=side(state="ER")), guids[1])
    rows: dict[str, list[Any]] = {
        "sys.service_queues": [["Q"]],
        "[Q] ": [["1", guids[0], "//Orders", 4]],
        "state = 'ER'": [["2", guids[1], "//Orders", 0], ["1", guids[0], "//Orders", 0]],
    }
    serves(fake_admin, rows, {"queues": [], "quarantined": 1})

    shown = page(fake_admin)

    assert shown.startswith(f"{guids[0]}: 4 messages to //Orders in orders, since 1 cause: a: why of in quarantine")
    assert f"{guids[1]}: dialog of //Orders in orders, begun 2 cause: a: why of error remedy: remedy of error" in shown
    assert "in quarantine: a reader fails" not in shown, "it is the first one listed"


def test_many_dialogs_for_one_service_do_not_hide_the_cause_of_another(fake_admin: Any) -> None:
    guids = guids_of(3 * ASKED_MAX - 1)
    for guid in guids:
        knows(fake_admin, from_a(NOTED), guid)
    knows(fake_admin, from_a(finding("a", "down", Severity.WAITING)), guids[-1])
    rows = [[f"2026-03-01 12:{number:02}", guid, "S", 1] for number, guid in enumerate(guids)]
    rows[-1][2] = "T"  # the youngest
    serves(fake_admin, {"sys.transmission_queue": rows})

    shown = page(fake_admin)

    assert f"{guids[-1]}: 1 message to T in orders" in shown
    assert f"and {ASKED_MAX - 2} other dialogs for the same cause" in shown
    assert f"{ASKED_MAX} of {len(guids)} dialogs were asked about" in shown


def test_nothing_waits_is_no_all_clear_where_frames_are_dropped_or_a_database_is_locked(fake_admin: Any) -> None:
    """A gateway knows of no message that its sender keeps."""
    drops = [
        {"reason": "no route", "frames": 3, "last_s": 5.2, "do": "CREATE ROUTE"},
        {"reason": "malformed", "frames": 1, "last_s": 91.0},
        {"reason": "duplicate", "frames": 9, "last_s": 1.0},
    ]
    off = {"name": "Q", "is_receive_enabled": False, "oldest_s": 0.0}
    locked = {"queues": [off], "write_lock": {"waiting_s": 7.0, "pid": 12, "process": "sqlite3"}}
    serves(fake_admin, {}, locked, drops=drops, forwarding={"enabled": True})

    text = page(fake_admin)

    assert text.startswith(f"{NOTHING_WAITS} but process 12 (sqlite3) has kept a write")
    assert "but frames were dropped: no route, 5 s ago; each is sent again until" in text
    assert "this is over -> CREATE" in text
    assert "malformed" not in text
    assert "but the queue Q of orders is off: no application can receive from it -> " in text
    assert text.endswith("run broker why at the sender")
    assert [] == listed(fake_admin)


def test_an_unknown_id_is_told_with_where_it_was_looked_for(fake_admin: Any) -> None:
    unknown = msgspec.structs.replace(told(A), conversation_id=None, looked_in=["database orders", "0 frames"])
    fake_admin.answers[f"/v1/why/{CONVERSATION}"] = (200, msgspec.to_builtins(unknown))

    done = asked(fake_admin)

    assert 3 == done.exit_code
    assert [
        f"{CONVERSATION} is not known at a, or was ended WITH CLEANUP; looked in:",
        "  database orders",
        "  0 frames",
        "  no journal: no configuration (-c) names one",
        "a handle belongs to one side: broker why at its instance shows the conversation id, which both sides know",
    ] == done.stderr.splitlines()


@pytest.fixture
def config(shop: Shop, tmp_path: Path) -> Path:
    assert shop.path.parent == tmp_path
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nname = "i"\nstate_dir = "."\n[databases.shop]\npath = "orders.db"\n')
    return path


def test_without_a_daemon_the_files_tell(config: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    db = shop.connect(isolation_level=None)
    dialog, over = shop.begin(db), shop.begin(db)
    dialog.send("x")
    over.send("x")
    shop.change(over, "state", "DI")
    over.end()

    waiting = run("why", dialog.conversation_id, "-c", config)
    closed = run("why", over.conversation_handle, "-c", config)

    text = " ".join(waiting.stdout.split())
    assert (0, 0) == (waiting.exit_code, closed.exit_code)
    assert "no daemon answers, so read from" in text
    assert "1 message from Orders to //far/Billing waits in shop" in text
    assert f"conversation {str(over.conversation_id).upper()}" in closed.stdout
    assert "the initiator's side is closed since" in closed.stdout
    monkeypatch.setenv("BROKER_ADMIN__SOCKET", str(config.with_name("none.sock")))
    assert 4 == run("why", uuid4()).exit_code


def test_message_that_has_passed_is_known_by_the_journal(config: Path, shop: Shop, tmp_path: Path) -> None:
    db = shop.connect(isolation_level=None)
    dialog, message = shop.begin(db), uuid4()
    dialog.send_many(["x", "y"])
    config.write_text(config.read_text() + '[journal]\ndirectory = "flows"\n')
    (tmp_path / "flows").mkdir()
    gone = uuid4()
    others = [visit(number, sequence_number=number, conversation_id=gone.bytes) for number in range(3)]
    ours = visit(9, message_id=message.bytes, conversation_id=dialog.conversation_id.bytes, sequence_number=1)
    write(tmp_path / "flows" / "1.parquet", *others, ours)

    done = run("why", message, "-c", config, "--admin", f"tcp://b:4022={tmp_path / 'none.sock'}")
    other = run("why", uuid4(), "-c", config)
    passed = run("why", gone, "-c", config)

    text = " ".join(done.stdout.split())
    assert 0 == done.exit_code
    of = f"message 1 of conversation {show_guid(dialog.conversation_id)}"
    assert f"message_id {show_guid(message)} is of {of}, by the journal" in text
    assert "2 messages from Orders to //far/Billing wait in shop" in text
    assert 3 == other.exit_code
    assert f"the journal in {tmp_path / 'flows'}, whose newest visits are in no file yet" in other.stderr
    ask = f"broker journal tail {tmp_path / 'flows'} --conversation {show_guid(gone)}"
    assert f"; {ask} shows its visits" in passed.stderr


def test_an_id_that_is_not_known_there_is_asked_for_where_admin_says(config: Path, daemon: Any) -> None:
    config.write_text(config.read_text().replace('state_dir = "."', 'state_dir = "state"'))

    done = run("why", CONVERSATION, "-c", config, "--admin", f"tcp://a:4022={daemon.path}")

    text = " ".join(done.stdout.split())
    assert (0, True) == (done.exit_code, text.startswith(f"conversation {CONVERSATION} no daemon answers, so read"))
    assert "not known at i symptom: symptom of not acknowledged cause: a: why of not acknowledged" in text
    assert f"broker why {CONVERSATION} --socket {daemon.path} --admin" in text


def test_a_journal_or_a_file_that_cannot_be_read_hides_nothing(config: Path, shop: Shop) -> None:
    config.write_text(config.read_text() + 'mirroring = "lock"\n[journal]\ndirectory = "missing"\n')
    lock = lock_store(shop.path)

    done = run("why", uuid4(), "-c", config)
    os.close(lock)

    assert (3, True) == (done.exit_code, "not in the journal: " in done.stderr)
    assert "not in database shop: this database is a mirror here; ask its partner" in done.stderr
