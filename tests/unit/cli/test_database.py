"""What is done with a file that was copied, and what is told of it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.database_files import file_errors, take
from broker.cli.database import open_database
from broker.client.dialog import begin_dialog
from broker.config.load import load_settings
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.database import lock_store
from tests.support.command import run
from tests.support.dialog import rows


@pytest.fixture
def used(configuration: Path, shop: Path) -> Path:
    """The database, with a dialog that has something to send and one that is new, after a start and a stop."""
    with closing(sqlite3.connect(shop)) as db, db:
        begin_dialog(db, from_service="Orders", to_service="Billing").send("one")
        begin_dialog(db, from_service="Orders", to_service="Billing")
    with ExitStack() as stack:
        settings = load_settings(configuration, environ={})
        take(settings, "msdb", stack)
        take(settings, "orders", stack)
    return shop


@pytest.fixture
def copied(used: Path) -> Path:
    """The same, now a copy of what it was."""
    copy = used.with_name("copy")
    shutil.copy(used, copy)
    copy.replace(used)
    return used


def problems(configuration: Path) -> list[str]:
    return [error.problem for error in file_errors(load_settings(configuration, environ={}))]


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def audit(configuration: Path) -> list[dict[str, Any]]:
    lines = configuration.with_name("audit.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def told(*arguments: object) -> dict[str, Any]:
    result = run("database", *arguments, "-o", "json")
    assert 0 == result.exit_code, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


# --- keep ---


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_copy_that_is_kept_passes_and_holds_what_it_held(configuration: Path, copied: Path, by: str) -> None:
    before = problems(configuration)

    result = run("database", "keep", "-c", configuration, "orders" if by == "name" else copied)

    assert 0 == result.exit_code
    assert 1 == len(before)
    assert [] == problems(configuration)
    assert "the file is a copy" in result.stdout
    assert "is the database from now on" in result.stdout
    assert "2 conversations (1 CO, 1 SO), 1 messages to send, 0 unread" in result.stdout
    assert "unless the file was only moved" in result.stdout


def test_keeping_what_was_never_copied_has_nothing_to_do(configuration: Path, used: Path) -> None:
    before = content(used)

    result = run("database", "keep", "-c", configuration, "orders")

    assert (0, before) == (result.exit_code, content(used))
    assert "nothing to do" in result.stdout


@pytest.fixture
def older(configuration: Path, used: Path) -> Path:
    """The same file with the bytes of before its last start and stop."""
    before = used.read_bytes()
    with ExitStack() as stack:
        take(load_settings(configuration, environ={}), "orders", stack)
    used.write_bytes(before)
    return used


@pytest.mark.parametrize("by", ["name", "path", "path alone", "link alone"])
def test_an_older_copy_is_known_by_the_record_of_its_instance(configuration: Path, older: Path, by: str) -> None:
    """Also where only the file is named and the record is beside it."""
    link = configuration.with_name("elsewhere") / "link"
    link.parent.mkdir()
    link.symlink_to(older)
    named = {"name": "orders", "link alone": link}.get(by, older)
    before = problems(configuration)

    values = told("keep", named, *([] if by.endswith("alone") else ["-c", configuration]), "--dry-run")

    assert before == [f"{values['problem']} ({older})"]
    assert "the file is older than what this instance has seen" in values["problem"]
    assert str(older.with_name("databases.json")) == values["record"]


def test_a_file_of_which_no_record_is_known_is_told_so(used: Path) -> None:
    """By itself it cannot tell whether it is older than what its instance has seen."""
    used.with_name("databases.json").unlink()

    texts = told("keep", used)["texts"]

    assert "nothing to do by the file alone" == texts[0]
    assert "only the file was checked" in texts[1]
    assert "broker database keep NAME -c CONFIG" in texts[1]


def test_a_copy_of_which_no_record_is_known_is_told_so(configuration: Path, copied: Path) -> None:
    copied.with_name("databases.json").unlink()

    values = told("keep", "orders", "-c", configuration)

    assert None is values["record"]
    assert "only the file was checked" in values["texts"][-1]
    assert "-c CONFIG" not in values["texts"][-1]


def test_what_was_done_is_in_the_audit_and_what_was_not_is_not(configuration: Path, copied: Path) -> None:
    told("keep", "-c", configuration, "orders", "--dry-run")
    told("keep", "-c", configuration, "orders")
    told("keep", "-c", configuration, "orders")  # nothing to do
    told("error-conversations", "-c", configuration, "orders")
    told("new", "-c", configuration, "orders")

    keep, error, new = audit(configuration)
    assert ["broker database keep", "broker database error-conversations", "broker database new"] == [
        line["operation"] for line in (keep, error, new)
    ]
    assert {(str(copied), "done")} == {(line["target"], line["outcome"]) for line in (keep, error, new)}


# --- new ---


def test_a_copy_that_is_made_new_is_a_database_of_its_own(configuration: Path, copied: Path) -> None:
    values = told("new", "-c", configuration, "orders")

    assert [] == problems(configuration)
    assert values["broker_instance"] != values["was"]
    assert {"CO": 1, "SO": 1} == values["conversations"]
    with closing(sqlite3.connect(copied)) as db:
        assert [bytes.fromhex(values["broker_instance"].replace("-", ""))] == rows(
            db, "SELECT broker_instance FROM broker_database"
        )
        assert [0] == rows(db, "SELECT count(*) FROM broker_conversation")
        assert ["Orders"] == rows(db, "SELECT name FROM broker_service")


@pytest.mark.parametrize(("given", "code"), [("same", 1), ("other", 0)])
def test_an_identity_of_the_configuration_is_the_new_one(
    configuration: Path, copied: Path, given: str, code: int
) -> None:
    other = "11111111-1111-4111-8111-111111111111"
    instance = told("new", "-c", configuration, "orders", "--dry-run")["was"] if given == "same" else other
    configuration.write_text(f'{configuration.read_text()}broker_instance = "{instance}"\n')

    result = run("database", "new", "-c", configuration, copied)

    assert code == result.exit_code
    if code:
        assert "broker_instance: it is the one of the original; take it out of the configuration" in result.stderr
    else:
        assert f"has broker instance {other}, it was" in result.stdout


# --- error-conversations ---


def test_all_open_conversations_end_with_an_error(configuration: Path, used: Path) -> None:
    assert 2 == told("error-conversations", "-c", configuration, "orders")["ended"]
    assert 0 == told("error-conversations", "-c", configuration, "orders")["ended"]

    with closing(sqlite3.connect(used)) as db:
        assert ["ER", "ER"] == rows(db, "SELECT state FROM broker_conversation")


# --- what holds for all of them ---

COMMANDS = ["keep", "new", "error-conversations"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_tells_and_changes_nothing(configuration: Path, copied: Path, command: str) -> None:
    before = content(copied)

    result = run("database", command, "-c", configuration, "orders", "--dry-run")

    assert (0, before) == (result.exit_code, content(copied))
    assert "would" in result.stdout
    assert [] != problems(configuration)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_written_down_is_not_done(configuration: Path, copied: Path, command: str) -> None:
    before = content(copied)
    configuration.with_name("audit.jsonl").mkdir()

    result = run("database", command, "-c", configuration, "orders")

    assert (1, before) == (result.exit_code, content(copied))
    assert "nothing is changed as long as no change can be written down" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_a_daemon_has_is_left_alone(configuration: Path, copied: Path, command: str) -> None:
    before = content(copied)
    lock = lock_store(copied)

    result = run("database", command, "-c", configuration, "orders")

    os.close(lock)
    assert (6, before) == (result.exit_code, content(copied))
    assert "another daemon has it open: stop it first" in result.stderr


def test_a_lock_that_cannot_be_made_is_an_error(configuration: Path, used: Path) -> None:
    Path(f"{used}.lock").unlink()
    Path(f"{used}.lock").mkdir()

    result = run("database", "keep", "-c", configuration, "orders")

    assert (1, True) == (result.exit_code, "Is a directory" in result.stderr)


def test_a_file_that_fails_is_told_with_what_to_do(
    configuration: Path, used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cli.database.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(used, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        result = run("database", "keep", "-c", configuration, "orders")

    assert 1 == result.exit_code
    assert "another connection keeps a write transaction open: end it" in result.stderr


# --- opening ---


def services(db: sqlite3.Connection) -> list[Any]:
    return db.execute("SELECT name FROM broker_service").fetchall()


def test_a_database_is_found_by_its_name_in_the_configuration(configuration: Path, shop: Path) -> None:
    with open_database(configuration, "orders") as db:
        assert [("Orders",)] == services(db)


@pytest.mark.parametrize("configured", [True, False])
def test_a_database_is_found_by_its_file(configuration: Path, shop: Path, *, configured: bool) -> None:
    with open_database(configuration if configured else None, str(shop)) as db:
        assert [("Orders",)] == services(db)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


def test_a_name_that_the_configuration_does_not_have_is_answered_with_those_it_has(configuration: Path) -> None:
    with pytest.raises(ConversationError, match=r"the configuration has \['orders'\]"):
        open_database(configuration, "bill")


@pytest.mark.parametrize("size", [1, 5000], ids=["in a page", "in pages of its own"])
def test_what_the_file_refuses_is_told_with_its_name(shop: Path, size: int) -> None:
    with pytest.raises(StoreUnavailableError, match=r"orders\.db: the disk is full: free some space") as caught:
        fill(shop, "x" * size)

    assert str(shop) == caught.value.path


def fill(path: Path, text: str) -> None:
    """Write until the file has all the pages that it may have: SQLite says of that what it says of a full disk."""
    with open_database(None, str(path)) as db, db:
        db.execute("CREATE TABLE note (text)")
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
        for _ in range(10_000):
            db.execute("INSERT INTO note VALUES (?)", (text,))
