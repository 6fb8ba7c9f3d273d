"""What applications do with a dialog: begin it, send on it, end it; every refusal with its number."""

import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.client import dialog as module
from broker.client.dialog import Dialog, begin_dialog, get_dialog, has_daemon, move_conversation
from broker.client.receiving import receive
from broker.conversation.message_types import DEFAULT, DEFAULT_LIFETIME, END_DIALOG, LIFETIME_MAX
from broker.conversation.state import ConversationState
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.layout import Flag
from broker.security.secured import Mode, Secured
from broker.store.sqlite.database import lock_store
from broker.store.sqlite.metadata import Priority, put_priority
from broker.store.sqlite.session_keys import load_secured, note_own_certificate
from tests.support.shop import Shop

INSTANCE = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
EMPTY: dict[str, list[Any]] = {"conversations": [], "sent": []}


# --- begin --------------------------------------------------------------------------------------------------


@pytest.mark.promise("routes 7", "multiple 3")
def test_begun_dialog_is_local_state_with_all_that_was_said(shop: Shop) -> None:
    db = shop.connect()
    before = time.time()
    dialog = shop.begin(db, contract="//shop/Invoicing", broker_instance=str(INSTANCE), lifetime=3600)

    *row, lifetime, create_date = db.execute(
        "SELECT conversation_handle, conversation_id, is_initiator, state, service_name, far_service,"
        " far_broker_instance, contract, send_sequence, lifetime - create_date, create_date FROM broker_conversation"
    ).fetchone()

    names = [dialog.conversation_handle.bytes, dialog.conversation_id.bytes]
    assert [*names, 1, "SO", "Orders", "//far/Billing", INSTANCE.bytes, "//shop/Invoicing", 0] == row
    assert lifetime == pytest.approx(3600)
    assert before <= create_date <= time.time()


@pytest.mark.promise("statements 1")
def test_current_database_is_the_broker_instance_of_the_database_itself(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(), broker_instance="Current Database")

    (own,) = shop.look("SELECT broker_instance FROM broker_database")
    assert uuid.UUID(bytes=own) == dialog.far_broker_instance


@pytest.mark.parametrize(
    ("lifetime", "seconds"),
    [
        ({}, DEFAULT_LIFETIME.total_seconds()),
        ({"lifetime": 0.5}, 0.5),
        ({"lifetime": timedelta(minutes=1)}, 60),
        ({"lifetime": LIFETIME_MAX}, LIFETIME_MAX),
    ],
)
@pytest.mark.promise("multiple 3")
def test_dialog_is_open_and_lives_for_days_when_nothing_else_is_said(
    shop: Shop, lifetime: dict[str, Any], seconds: float
) -> None:
    db = shop.connect()

    shop.begin(db, **lifetime)

    row = db.execute("SELECT far_broker_instance, contract, lifetime - create_date FROM broker_conversation").fetchone()
    assert row == (None, "DEFAULT", pytest.approx(seconds))


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (15151, {"from_service": "orders"}),
        (8412, {"to_service": ""}),
        (8413, {"broker_instance": "DatabaseB"}),
        (8413, {"broker_instance": uuid.UUID(int=0)}),
        (8489, {"lifetime": 0}),
        (8489, {"lifetime": LIFETIME_MAX + 1}),
    ],
)
def test_dialog_that_cannot_be_is_refused(shop: Shop, number: int, wrong: dict[str, Any]) -> None:
    db = shop.connect()

    assert number == shop.refusal(lambda: shop.begin(db, **wrong))
    assert shop.seen() == EMPTY


# --- send ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["DI", "DO", "ER", "CD", "SI"])
def test_dialog_sends_in_no_other_state(shop: Shop, state: str, dialog: Dialog) -> None:
    shop.change(dialog, "state", state)

    with pytest.raises(ConversationError, match=f"not in a valid state for SEND; it is {state}") as caught:
        dialog.send(b"late")

    assert 8429 == caught.value.number
    assert shop.seen() == {"conversations": [state], "sent": []}


def test_dialog_past_its_lifetime_sends_no_more(shop: Shop, dialog: Dialog) -> None:
    dialog.send(b"in time")
    shop.change(dialog, "lifetime", time.time())

    assert shop.refusal(lambda: dialog.send(b"late")) == 8489
    assert shop.seen() == {"conversations": ["CO"], "sent": [b"in time"]}


def test_dialog_that_was_removed_is_unknown(shop: Shop, db: sqlite3.Connection, dialog: Dialog) -> None:
    db.execute("DELETE FROM broker_conversation")

    assert 8426 == shop.refusal(lambda: dialog.send(b""))
    assert [8426] * 2 == [
        shop.refusal(call) for call in (dialog.end, lambda: get_dialog(db, dialog.conversation_handle))
    ]


# --- end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "becomes", "is_said"),
    [
        ("SO", "CD", False),  # no far side knows of it
        ("SI", "DO", True),
        ("CO", "DO", True),
        ("DI", "CD", False),  # the far side has ended
        ("ER", "CD", False),
    ],
)
def test_end_says_so_where_somebody_listens(shop: Shop, *, state: str, becomes: str, is_said: bool) -> None:
    """Messages of other dialogs stay."""
    db = shop.connect(isolation_level=None)
    dialog, other = shop.begin(db), shop.begin(db)
    for one in (dialog, other):
        one.send(b"before")
        shop.arrive(one, b"unread")
    shop.change(dialog, "state", state)

    dialog.end()

    columns = "state, send_sequence, end_dialog_sequence"
    row = shop.look(f"SELECT {columns} FROM broker_conversation WHERE endpoint_id = ?", dialog.endpoint_id)
    failed = shop.look("SELECT sum(messages) FROM broker_ledger WHERE entry NOT IN ('sent', 'acknowledged')")
    sent = "SELECT message_sequence_number, flags, message_type_name FROM broker_transmission WHERE endpoint_id = ?"
    assert [(becomes, 2, 1)] * is_said == row
    assert [None if is_said else 1] == failed
    assert becomes == dialog.state
    end = [(0, 0, DEFAULT), (1, Flag.END_DIALOG, END_DIALOG)]
    assert end * is_said == shop.look(sent, dialog.endpoint_id)
    assert [(0, 0, DEFAULT)] == shop.look(sent, other.endpoint_id)
    assert [other.endpoint_id] == shop.look("SELECT endpoint_id FROM broker_message")


# --- a file that is not ours --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "no database of the broker"), (b"no database at all, but long enough " * 30, "not a database")],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda db: begin_dialog(db, from_service="Orders", to_service="Billing"),
        lambda db: get_dialog(db, INSTANCE),
        lambda db: receive(db, queue="OrdersQueue", wait=60),
    ],
    ids=["begin_dialog", "get_dialog", "receive"],
)
def test_file_without_schema_is_refused(
    tmp_path: Path, call: Callable[[sqlite3.Connection], object], content: bytes, problem: str
) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as db, pytest.raises(StoreUnavailableError, match=problem) as caught:
        call(db)

    assert str(path) == caught.value.path


# --- groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (8426, {"related_conversation": INSTANCE}),
        (8413, {"related_conversation": "x"}),
        (8413, {"related_conversation_group": "x"}),
        (102, {"related_conversation": INSTANCE, "related_conversation_group": INSTANCE}),
        (8414, {"from_service": "Billing", "related_conversation_group": INSTANCE}),
        (8414, {"related_conversation_group": uuid.UUID(int=0)}),
    ],
)
def test_relation_that_cannot_be_is_refused(shop: Shop, number: int, wrong: dict[str, Any]) -> None:
    db = shop.connect(isolation_level=None)
    shop.begin(db, related_conversation_group=INSTANCE)

    assert number == shop.refusal(lambda: shop.begin(db, **wrong))
    assert ["SO"] == shop.seen()["conversations"]


@pytest.mark.promise("routes 12")
def test_conversation_moves_to_another_group(shop: Shop) -> None:
    db = shop.connect()
    billing, dialog, gone = shop.begin(db, from_service="Billing"), shop.begin(db), shop.begin(db)
    related, named = (shop.begin(db, related_conversation=one) for one in (dialog, str(dialog.conversation_handle)))
    assert 2 == len({one.conversation_group_id for one in (dialog, related, named, gone)})
    gone.end()
    ended = shop.begin(db)
    ended.send(b"")
    ended.end()

    move_conversation(related, INSTANCE)
    move_conversation(named, str(INSTANCE))

    assert [INSTANCE] * 2 == [related.conversation_group_id, named.conversation_group_id]
    assert [8439, 8439, 8413, 8426, 8438] == [
        shop.refusal(lambda: move_conversation(dialog, billing.conversation_group_id)),
        shop.refusal(lambda: move_conversation(dialog, str(uuid.UUID(int=0)))),
        shop.refusal(lambda: move_conversation(dialog, "x")),
        shop.refusal(lambda: move_conversation(gone, INSTANCE)),
        shop.refusal(lambda: move_conversation(ended, INSTANCE)),
    ]


# --- priority, timer, what is told --------------------------------------------------------------------------


def test_priority_is_fixed_when_the_conversation_is_made(shop: Shop, db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row
    before = shop.begin(db)
    put_priority(db, Priority("high", None, "Orders", "//far/Billing", 9))
    after, other = shop.begin(db), shop.begin(db, to_service="//far/Else")

    assert [5, 9, 5] == [dialog.priority for dialog in (before, after, other)]


def test_timer_is_set_replaced_and_cancelled(shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None), lifetime=3600)
    due = "SELECT round(dialog_timer - create_date) FROM broker_conversation"

    dialog.set_timer(60)
    assert [60] == shop.look(due)
    dialog.set_timer(timedelta(minutes=2))
    assert [120] == shop.look(due)
    dialog.cancel_timer()
    assert [None] == shop.look(due)


@pytest.mark.parametrize("seconds", [0, 3601])
def test_timer_that_cannot_be_is_refused(shop: Shop, seconds: float, db: sqlite3.Connection) -> None:
    dialog = shop.begin(db, lifetime=3600)

    assert 8410 == shop.refusal(lambda: dialog.set_timer(seconds))
    assert [None] == shop.look("SELECT dialog_timer FROM broker_conversation")


def test_conversation_that_ended_has_no_timer(shop: Shop, db: sqlite3.Connection) -> None:
    dialog, gone = shop.begin(db), shop.begin(db)
    dialog.send(b"")
    dialog.end()
    gone.end()

    assert 8429 == shop.refusal(lambda: dialog.set_timer(1))
    assert [8429, 8426] == [shop.refusal(one.cancel_timer) for one in (dialog, gone)]


def test_dialog_tells_what_its_row_says(shop: Shop) -> None:
    db = shop.connect()
    db.row_factory, db.text_factory = sqlite3.Row, bytes
    before = datetime.now(UTC)
    dialog = shop.begin(db, lifetime=3600)

    told = (dialog.state, dialog.priority, dialog.far_broker_instance)

    assert (ConversationState.STARTED_OUTBOUND, 5, None) == told
    assert 0 <= (dialog.lifetime - before).total_seconds() - 3600 < 60
    assert isinstance(dialog.conversation_group_id, uuid.UUID)
    dialog.end()
    assert (ConversationState.CLOSED, None) == (dialog.state, dialog.far_broker_instance)
    for name in ("priority", "conversation_group_id", "lifetime"):
        assert 8426 == shop.refusal(partial(getattr, dialog, name))


@pytest.mark.parametrize(
    ("binding", "encryption", "certificate", "secured"),
    [
        *[("full", one, other, Secured(Mode.FULL, "billing")) for one in (True, False, None) for other in ("a", None)],
        *[("anonymous", one, None, Secured(Mode.ANONYMOUS, "billing", b"?")) for one in (True, False, None)],
        (None, True, None, Secured(None)),
        (None, True, "CN=shop", Secured(None)),
        (None, False, None, None),
        (None, False, "CN=shop", None),
        (None, None, None, None),
        (None, None, "CN=shop", Secured(None)),
    ],
)
def test_a_binding_forces_security_and_without_one_encryption_decides_and_a_certificate_turns_it_on(
    shop: Shop, *, binding: str | None, encryption: bool | None, certificate: str | None, secured: Secured | None
) -> None:
    """Without its own certificate a bound dialog fails when it leaves; the daemon may get one before."""
    db = shop.connect(isolation_level=None)
    note_own_certificate(db, certificate)
    if binding:
        db.execute(
            "INSERT INTO broker_remote_service_binding (name, remote_service_name, remote_principal, is_anonymous_on)"
            " VALUES ('B', '//far/Billing', 'billing', ?)",
            (binding == "anonymous",),
        )

    dialogs = [shop.begin(db, encryption=encryption) for _ in range(2)]

    one, other = (load_secured(db, dialog.conversation_id.bytes, is_initiator=True) for dialog in dialogs)
    if binding == "anonymous":
        assert one is not None
        assert other is not None
        assert one.secret != other.secret
        assert 32 == len(one.secret)
        one = other = one._replace(secret=b"?")
    assert secured == one == other


@pytest.fixture(autouse=True)
def _outside_of_containers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where these tests run must not matter: all processes are seen, as far as this code knows."""
    monkeypatch.setattr(module, "_NAMESPACE", tmp_path / "namespace")
    (tmp_path / "namespace").symlink_to(module._ALL_PROCESSES)


def test_nothing_waits_before_the_first_send_and_after_the_last_acknowledgement(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)

    assert "nothing has been sent yet" == dialog.transmission_status
    dialog.send(b"")
    db.execute("DELETE FROM broker_transmission")
    assert "everything sent is acknowledged (1 message)" == dialog.transmission_status
    shop.change(dialog, "state", "ER")
    assert dialog.transmission_status.startswith("the conversation has failed: no message of it will be sent")
    dialog.end()
    assert "the conversation is over: no message of it waits" == dialog.transmission_status


def test_daemon_that_is_not_there_is_what_it_waits_for(shop: Shop) -> None:
    with shop.connect() as db:
        dialog = shop.begin(db)
        dialog.send_many([b"", b""])

    missing = "2 messages wait: no daemon has this database open, start broker serve"
    assert missing == dialog.transmission_status
    shop.change(dialog, "transmission_status", "connection refused")
    assert f"{missing}; before that: connection refused" == dialog.transmission_status


def test_daemon_tells_why_it_waits(shop: Shop) -> None:
    db = shop.connect()
    lock = lock_store(shop.path)
    refused, uncommitted = "connection refused by 10.0.0.7:4022", "nothing leaves before the transaction commits"
    try:
        with db:
            dialog = shop.begin(db)
            dialog.send(b"")
            assert f"1 message waits: {uncommitted}" == dialog.transmission_status
        assert "" == dialog.transmission_status
        shop.change(dialog, "transmission_status", "on its way: queued for sending")
        assert "" == dialog.transmission_status
        shop.change(dialog, "transmission_status", refused)
        assert refused == dialog.transmission_status
        db.execute("UPDATE broker_database SET create_date = create_date")  # a transaction that sends nothing
        assert refused == dialog.transmission_status
        dialog.send(b"")
        assert f"2 messages wait: {uncommitted}; until then: {refused}" == dialog.transmission_status
    finally:
        os.close(lock)


def test_lock_of_a_daemon_is_seen_and_left_alone(shop: Shop) -> None:
    path = str(shop.path)

    for _ in range(2):
        assert has_daemon(path) is False
        lock = lock_store(path)
        assert has_daemon(path) is True
        os.close(lock)


@pytest.mark.parametrize("namespace", ["pid:[4026532000]", None])
def test_lock_that_is_not_seen_inside_a_container_proves_nothing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str | None
) -> None:
    """Nor where locks cannot be seen at all."""
    os.close(lock_store(shop.path))
    (tmp_path / "namespace").unlink()
    if namespace is not None:
        (tmp_path / "namespace").symlink_to(namespace)

    seen = [has_daemon(str(shop.path))]
    lock = lock_store(shop.path)
    seen.append(has_daemon(str(shop.path)))
    os.close(lock)
    monkeypatch.setattr(module, "_LOCKS", tmp_path / "missing")
    seen += [has_daemon(str(shop.path)), has_daemon(f"{shop.path}/below")]

    assert [None, True, None, None] == seen
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send(b"")
    assert "" == dialog.transmission_status
