"""The commands about poison messages: what they show, what they would do, and what they do."""

import json
import sqlite3
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import Blame, note_failure
from tests.support.admin import audit_lines
from tests.support.command import run
from tests.support.shop import Shop


def failed(shop: Shop, *bodies: bytes, attempts: int = 1) -> str:
    """A dialog whose message failed; its handle."""
    dialog = shop.arrived(*bodies, type_name="T")
    what = Blame(dialog.endpoint_id, 0, "KeyError: 'amount'\nmore", "Traceback (most recent call last):\n  File x")
    note_failure(shop.connect(isolation_level=None), what, now=time.time(), attempts=attempts)
    return show_guid(dialog.conversation_handle)


def bodies(shop: Shop) -> list[tuple[bytes, int]]:
    return shop.look("SELECT message_body, status FROM broker_message ORDER BY queuing_order")


def snapshot(shop: Shop) -> list[Any]:
    """Everything that a command could change."""
    tables = ("broker_message", "broker_failure", "broker_group_lock", "broker_conversation", "broker_transmission")
    return [shop.look(f"SELECT * FROM {table}") for table in tables]


def test_list_tells_what_is_in_quarantine_and_what_is_tried_again(shop: Shop) -> None:
    first = failed(shop, b"12345", b"two")
    second = failed(shop, b"x", attempts=5)

    rows = json.loads(run("quarantine", "list", "-d", shop.path, "-o", "json").stdout)
    table = run("quarantine", "list", "-d", shop.path).stdout
    csv = run("quarantine", "list", "-d", shop.path, "-o", "csv").stdout.splitlines()

    assert [first, second] == [row["conversation_handle"] for row in rows]
    assert ["quarantined", "retrying"] == [row["state"] for row in rows]
    assert (5, 1, "T", "OrdersQueue", 1) == tuple(
        rows[0][name] for name in ("body_bytes", "messages_behind", "message_type_name", "queue_name", "failures")
    )
    assert "KeyError: 'amount'\nmore" == rows[0]["error"]
    assert "KeyError" in table
    assert "conversation_handle,service_name,state,failures" == ",".join(csv[0].split(",")[:4])
    assert [first, second] == [line.split(",")[0] for line in csv[1:]]


def test_databases_of_the_configuration_need_no_name(shop: Shop, tmp_path: Path) -> None:
    handle = failed(shop, b"x")
    config, other = tmp_path / "broker.toml", tmp_path / "other.db"
    one = f'[databases.shop]\npath = "{shop.path}"\n'
    config.write_text(one)

    listed = json.loads(run("quarantine", "list", "-c", config, "-o", "json").stdout)
    plan = run("quarantine", "resume", "-c", config, "--dry-run", "--all")
    with closing(sqlite3.connect(other)) as copy:
        shop.connect().backup(copy)
    config.write_text(f'{one}[databases.other]\npath = "{other}"\n')
    both = json.loads(run("quarantine", "list", "-c", config, "-o", "json").stdout)
    unclear = run("quarantine", "resume", "-c", config, "--dry-run", "--all")

    assert [("shop", handle)] == [(row["database"], row["conversation_handle"]) for row in listed]
    assert handle in plan.stdout
    assert [("shop", handle), ("other", handle)] == [(row["database"], row["conversation_handle"]) for row in both]
    assert (2, True) == (unclear.exit_code, "name the database with -d: shop, other" in unclear.stderr)


def test_show_tells_the_traceback_or_why_there_is_none(shop: Shop) -> None:
    handle = failed(shop, b"x")

    text = run("quarantine", "show", "-d", shop.path, handle).stdout
    row = json.loads(run("quarantine", "show", "-d", shop.path, "-o", "json", handle.upper()).stdout)
    shop.connect(isolation_level=None).execute("UPDATE broker_failure SET traceback = ''")
    without = run("quarantine", "show", "-d", shop.path, handle).stdout

    assert ("Traceback (most recent call last):" in text, "File x" in row["traceback"]) == (True, True)
    assert "no traceback is known: only readers (broker run) keep one" in without


def test_show_writes_the_body(shop: Shop, tmp_path: Path) -> None:
    handle = failed(shop, b"\xff\x00body")

    run("quarantine", "show", "-d", shop.path, "--body", tmp_path / "body", handle)
    printed = run("quarantine", "show", "-d", shop.path, "--body", "-", handle)

    assert b"\xff\x00body" == (tmp_path / "body").read_bytes() == printed.stdout_bytes


@pytest.mark.promise("A dialog is in quarantine")
def test_resume_tries_again_from_the_failed_message(shop: Shop) -> None:
    handle = failed(shop, b"one", b"two")

    result = run("quarantine", "resume", "-d", shop.path, handle)

    assert f"try message 0 ('T', 3 bytes) again, then 1 after it  ({handle})\n" == result.stdout
    assert [(b"one", 1), (b"two", 1)] == bodies(shop)
    assert [] == shop.look("SELECT * FROM broker_failure")


def test_answer_ends_the_dialog_with_an_error_for_the_far_side(shop: Shop) -> None:
    handle = failed(shop, b"one")

    result = run("quarantine", "end", "-d", shop.path, "--yes", "--error", 7, "--description", "no such order", handle)

    assert (
        "end the dialog with error 7: drop message 0 ('T', 3 bytes) and 0 after it, notify //far/Bill" in result.stdout
    )
    seen = shop.seen()
    assert b"hello" == seen["sent"][0]
    assert b"<Code>7</Code><Description>no such order</Description>" in seen["sent"][1]
    assert ["DO"] == seen["conversations"]


CHANGES = [["resume"], ["skip"], ["end", "--cleanup"], ["end", "--error", "1", "--description", "x"]]
OLD = [["discard"], ["answer", "--code", "1", "--text", "x"]]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_what_is_settled_in_a_database_of_a_configuration_is_in_its_audit(
    configuration: Path, shop: Shop, change: list[str]
) -> None:
    handle, audit = failed(shop, b"one", b"two"), configuration.with_name("audit.jsonl")
    before, asks = snapshot(shop), change != ["resume"]
    command = ["quarantine", *change, "-c", configuration, "-d", "orders", *(["--yes"] if asks else [])]
    audit.mkdir()
    unwritten = run(*command, handle)
    audit.rmdir()

    assert (1, before) == (unwritten.exit_code, snapshot(shop))
    assert "nothing is changed as long as no change can be written down" in unwritten.stderr
    run(*command, "--dry-run", handle)
    assert 0 == run(*command, handle).exit_code
    run("quarantine", "resume", "-c", configuration, "-d", "orders", "--all")  # there is none left
    (line,) = audit_lines(audit)
    assert ("done", f"broker quarantine {change[0]}") == (line["outcome"], line["operation"])
    assert ("orders", handle) == (line["database"], line["target"])


@pytest.mark.parametrize("change", [*CHANGES, *OLD], ids=lambda change: change[0])
@pytest.mark.promise("A dialog is in quarantine")
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(shop: Shop, change: list[str]) -> None:
    handle = failed(shop, b"one", b"two")
    before = snapshot(shop)

    result = run("quarantine", *change, "-d", shop.path, "--dry-run", handle)
    plans = json.loads(run("quarantine", *change, "-d", shop.path, "--dry-run", "-o", "json", handle).stdout)
    unasked = run("quarantine", *change, "-d", shop.path, handle) if change != ["resume"] else None

    assert (0, "would ", before) == (result.exit_code, result.stdout[:6], snapshot(shop))
    assert ("deprecated" in result.stderr) == (change in OLD)
    assert [("end" if change in OLD else change[0], False, handle)] == [
        (plan["action"], plan["is_done"], plan["conversation_handle"]) for plan in plans
    ]
    assert unasked is None or (2, True) == (unasked.exit_code, "confirm it with --yes" in unasked.stderr)


def test_all_means_all_in_quarantine_and_not_what_is_tried_again(shop: Shop) -> None:
    failed(shop, b"one")
    failed(shop, b"two")
    failed(shop, b"three", attempts=5)

    plans = json.loads(run("quarantine", "resume", "-d", shop.path, "--all", "-o", "json").stdout)
    nothing = run("quarantine", "resume", "-d", shop.path, "--all").stdout

    assert [True, True] == [plan["is_done"] for plan in plans]
    assert "no dialog is in quarantine\n" == nothing


@pytest.mark.promise("A dialog is in quarantine")
def test_several_are_settled_or_none(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = failed(shop, b"one")
    before = snapshot(shop)

    unknown = run("quarantine", "skip", "-d", shop.path, "--yes", handle, uuid.uuid4())

    assert (3, before) == (unknown.exit_code, snapshot(shop))
    change = "UPDATE broker_failure SET failures = failures + 1"
    monkeypatch.setattr("broker.cli.quarantine.confirm", lambda _: shop.connect(isolation_level=None).execute(change))
    changed = run("quarantine", "skip", "-d", shop.path, handle)
    assert (3, [(b"one", 4)]) == (changed.exit_code, bodies(shop))
    assert "has changed since it was read; nothing was done" in changed.stderr


@pytest.mark.parametrize(
    ("handle", "code", "sentence"),
    [
        ("x", 1, "Msg 8413: 'x' is not a GUID"),
        (str(uuid.UUID(int=7)), 3, "no reader fails on the conversation 00000000-0000-0000-0000-000000000007"),
    ],
)
def test_what_is_refused(shop: Shop, handle: str, code: int, sentence: str) -> None:
    result = run("quarantine", "show", "-d", shop.path, handle)

    assert (code, True) == (result.exit_code, sentence in result.stderr)
