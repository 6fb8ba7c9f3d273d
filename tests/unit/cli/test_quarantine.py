"""The commands about poison messages: what they show, what they would do, and what they do."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import begin_dialog
from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import Blame, note_failure
from tests.support.command import run


@pytest.fixture
def db(shop: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(shop, isolation_level=None)) as db:
        yield db


def failed(db: sqlite3.Connection, *bodies: bytes, attempts: int = 1, sequence: int = 0) -> str:
    """A dialog whose message failed; its handle."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    dialog.send(b"hello")
    (endpoint_id,) = db.execute("SELECT max(endpoint_id) FROM broker_conversation").fetchone()
    for number, body in enumerate(bodies):
        db.execute(
            "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
            " message_body, message_enqueue_time) SELECT queue_id, ?, ?, 'T', ?, 0 FROM broker_queue",
            (endpoint_id, number, body),
        )
    what = Blame(endpoint_id, sequence, "KeyError: 'amount'\nmore", "Traceback (most recent call last):\n  File x")
    note_failure(db, what, now=time.time(), attempts=attempts)
    return show_guid(dialog.conversation_handle)


def bodies(db: sqlite3.Connection) -> list[tuple[bytes, int]]:
    return db.execute("SELECT message_body, status FROM broker_message ORDER BY queuing_order").fetchall()


def snapshot(db: sqlite3.Connection) -> list[Any]:
    """Everything that a command could change."""
    tables = ("broker_message", "broker_failure", "broker_group_lock", "broker_conversation", "broker_transmission")
    return [db.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


def test_list_tells_what_is_in_quarantine_and_what_is_tried_again(shop: Path, db: sqlite3.Connection) -> None:
    first = failed(db, b"12345", b"two")
    second = failed(db, b"x", attempts=5)

    rows = json.loads(run("quarantine", "list", "-d", shop, "-o", "json").stdout)
    table = run("quarantine", "list", "-d", shop).stdout
    csv = run("quarantine", "list", "-d", shop, "-o", "csv").stdout.splitlines()

    assert [first, second] == [row["conversation_handle"] for row in rows]
    assert ["quarantined", "retrying"] == [row["state"] for row in rows]
    assert (5, 1, "T", "OrdersQueue", 1) == tuple(
        rows[0][name] for name in ("body_bytes", "messages_behind", "message_type_name", "queue_name", "failures")
    )
    assert "KeyError: 'amount'\nmore" == rows[0]["error"]
    assert "KeyError" in table
    assert "conversation_handle,service_name,state,failures" == ",".join(csv[0].split(",")[:4])
    assert [first, second] == [line.split(",")[0] for line in csv[1:]]


def test_databases_of_the_configuration_need_no_name(shop: Path, db: sqlite3.Connection, tmp_path: Path) -> None:
    handle = failed(db, b"x")
    config, other = tmp_path / "broker.toml", tmp_path / "other.db"
    one = f'[databases.shop]\npath = "{shop}"\n'
    config.write_text(one)

    listed = json.loads(run("quarantine", "list", "-c", config, "-o", "json").stdout)
    plan = run("quarantine", "resume", "-c", config, "--dry-run", "--all")
    with closing(sqlite3.connect(other)) as copy:
        db.backup(copy)
    config.write_text(f'{one}[databases.other]\npath = "{other}"\n')
    both = json.loads(run("quarantine", "list", "-c", config, "-o", "json").stdout)
    unclear = run("quarantine", "resume", "-c", config, "--dry-run", "--all")

    assert [("shop", handle)] == [(row["database"], row["conversation_handle"]) for row in listed]
    assert handle in plan.stdout
    assert [("shop", handle), ("other", handle)] == [(row["database"], row["conversation_handle"]) for row in both]
    assert (2, True) == (unclear.exit_code, "name the database with -d: shop, other" in unclear.stderr)


def test_show_tells_the_traceback_or_why_there_is_none(shop: Path, db: sqlite3.Connection) -> None:
    handle = failed(db, b"x")

    text = run("quarantine", "show", "-d", shop, handle).stdout
    row = json.loads(run("quarantine", "show", "-d", shop, "-o", "json", handle.upper()).stdout)
    db.execute("UPDATE broker_failure SET traceback = ''")
    without = run("quarantine", "show", "-d", shop, handle).stdout

    assert ("Traceback (most recent call last):" in text, "File x" in row["traceback"]) == (True, True)
    assert "no traceback is known: only readers (broker run) keep one" in without


def test_show_writes_the_body(shop: Path, db: sqlite3.Connection, tmp_path: Path) -> None:
    handle = failed(db, b"\xff\x00body")

    run("quarantine", "show", "-d", shop, "--body", tmp_path / "body", handle)
    printed = run("quarantine", "show", "-d", shop, "--body", "-", handle)

    assert b"\xff\x00body" == (tmp_path / "body").read_bytes() == printed.stdout_bytes


@pytest.mark.promise("A dialog is in quarantine")
def test_resume_tries_again_from_the_failed_message(shop: Path, db: sqlite3.Connection) -> None:
    handle = failed(db, b"one", b"two")

    result = run("quarantine", "resume", "-d", shop, handle)

    assert f"try message 0 ('T', 3 bytes) again, then 1 after it  ({handle})\n" == result.stdout
    assert [(b"one", 1), (b"two", 1)] == bodies(db)
    assert [] == db.execute("SELECT * FROM broker_failure").fetchall()


def test_answer_ends_the_dialog_with_an_error_for_the_far_side(shop: Path, db: sqlite3.Connection) -> None:
    handle = failed(db, b"one")

    result = run("quarantine", "end", "-d", shop, "--yes", "--error", 7, "--description", "no such order", handle)

    assert (
        "end the dialog with error 7: drop message 0 ('T', 3 bytes) and 0 after it, notify //far/Bill" in result.stdout
    )
    sent = [row[0] for row in db.execute("SELECT message_body FROM broker_transmission ORDER BY transmission_id")]
    assert b"hello" == sent[0]
    assert b"<Code>7</Code><Description>no such order</Description>" in sent[1]
    assert [("DO",)] == db.execute("SELECT state FROM broker_conversation").fetchall()


CHANGES = [["resume"], ["skip"], ["end", "--cleanup"], ["end", "--error", "1", "--description", "x"]]
OLD = [["discard"], ["answer", "--code", "1", "--text", "x"]]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_what_is_settled_in_a_database_of_a_configuration_is_in_its_audit(
    configuration: Path, db: sqlite3.Connection, change: list[str]
) -> None:
    handle, audit = failed(db, b"one", b"two"), configuration.with_name("audit.jsonl")
    before, asks = snapshot(db), change != ["resume"]
    command = ["quarantine", *change, "-c", configuration, "-d", "orders", *(["--yes"] if asks else [])]
    audit.mkdir()
    unwritten = run(*command, handle)
    audit.rmdir()

    assert (1, before) == (unwritten.exit_code, snapshot(db))
    assert "nothing is changed as long as no change can be written down" in unwritten.stderr
    run(*command, "--dry-run", handle)
    assert 0 == run(*command, handle).exit_code
    run("quarantine", "resume", "-c", configuration, "-d", "orders", "--all")  # there is none left
    (line,) = map(json.loads, audit.read_text(encoding="utf-8").splitlines())
    assert ("done", f"broker quarantine {change[0]}") == (line["outcome"], line["operation"])
    assert ("orders", handle) == (line["database"], line["target"])


@pytest.mark.parametrize("change", [*CHANGES, *OLD], ids=lambda change: change[0])
@pytest.mark.promise("A dialog is in quarantine")
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    shop: Path, db: sqlite3.Connection, change: list[str]
) -> None:
    handle = failed(db, b"one", b"two")
    before = snapshot(db)

    result = run("quarantine", *change, "-d", shop, "--dry-run", handle)
    plans = json.loads(run("quarantine", *change, "-d", shop, "--dry-run", "-o", "json", handle).stdout)
    unasked = run("quarantine", *change, "-d", shop, handle) if change != ["resume"] else None

    assert (0, "would ", before) == (result.exit_code, result.stdout[:6], snapshot(db))
    assert ("deprecated" in result.stderr) == (change in OLD)
    assert [("end" if change in OLD else change[0], False, handle)] == [
        (plan["action"], plan["is_done"], plan["conversation_handle"]) for plan in plans
    ]
    assert unasked is None or (2, True) == (unasked.exit_code, "confirm it with --yes" in unasked.stderr)


def test_all_means_all_in_quarantine_and_not_what_is_tried_again(shop: Path, db: sqlite3.Connection) -> None:
    failed(db, b"one")
    failed(db, b"two")
    failed(db, b"three", attempts=5)

    plans = json.loads(run("quarantine", "resume", "-d", shop, "--all", "-o", "json").stdout)
    nothing = run("quarantine", "resume", "-d", shop, "--all").stdout

    assert [True, True] == [plan["is_done"] for plan in plans]
    assert "no dialog is in quarantine\n" == nothing


@pytest.mark.promise("A dialog is in quarantine")
def test_several_are_settled_or_none(shop: Path, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = failed(db, b"one")
    before = snapshot(db)

    unknown = run("quarantine", "skip", "-d", shop, "--yes", handle, uuid.uuid4())

    assert (3, before) == (unknown.exit_code, snapshot(db))
    change = "UPDATE broker_failure SET failures = failures + 1"
    monkeypatch.setattr("broker.cli.quarantine.confirm", lambda _: db.execute(change))
    changed = run("quarantine", "skip", "-d", shop, handle)
    assert (3, [(b"one", 4)]) == (changed.exit_code, bodies(db))
    assert "has changed since it was read; nothing was done" in changed.stderr


@pytest.mark.parametrize(
    ("handle", "code", "sentence"),
    [
        ("x", 1, "Msg 8413: 'x' is not a GUID"),
        (str(uuid.UUID(int=7)), 3, "no reader fails on the conversation 00000000-0000-0000-0000-000000000007"),
    ],
)
def test_what_is_refused(shop: Path, handle: str, code: int, sentence: str) -> None:
    result = run("quarantine", "show", "-d", shop, handle)

    assert (code, True) == (result.exit_code, sentence in result.stderr)
