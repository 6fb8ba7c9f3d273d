"""What is done with a file that was copied, and what is told of it."""

import json
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from broker.catalog.database_files import NOT_RUNNING, file_errors, take
from broker.cli.database import open_database
from broker.config.load import load_settings
from broker.errors import StoreUnavailableError
from broker.store.sqlite.database import lock_store
from broker.store.sqlite.file_identity import replaced_at
from tests.support.admin import audit_lines
from tests.support.command import run
from tests.support.dialog import rows
from tests.support.shop import Shop


@pytest.fixture
def used(configuration: Path, shop: Shop) -> Path:
    """The database, with a dialog that has something to send and one that is new, after a start and a stop."""
    with shop.connect() as db:
        shop.begin(db).send("one")
        shop.begin(db)
    with ExitStack() as stack:
        settings = load_settings(configuration, environ={})
        take(settings, "msdb", stack)
        take(settings, "orders", stack)
    shop.close()
    return shop.path


@pytest.fixture
def copied(used: Path) -> Path:
    """The same, now a copy of what it was."""
    copy = used.with_name("copy")
    shutil.copy(used, copy)
    copy.replace(used)
    return used


def problems(configuration: Path) -> list[str]:
    return [error.problem for error in file_errors(load_settings(configuration, environ={}), NOT_RUNNING)]


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def told(*arguments: object) -> dict[str, Any]:
    result = run("database", *arguments, "-o", "json")
    assert 0 == result.exit_code, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_a_copy_that_is_kept_passes_and_holds_what_it_held(configuration: Path, copied: Path) -> None:
    before = problems(configuration)

    result = run("database", "keep", "-c", configuration, copied)

    assert (0, 1, []) == (result.exit_code, len(before), problems(configuration))
    done, warning, advice = result.stdout.splitlines()
    assert "is the database from now on" in done
    assert "2 conversations (1 CO, 1 SO), 1 message to send, 0 unread" in done
    assert warning.startswith(f"{copied}: warning: the file is a copy")
    assert advice.endswith(f"broker database error-conversations {copied} -c {configuration}")
    kept = content(copied)
    again = told("keep", "-c", configuration, "orders")["texts"]
    assert (["nothing to do: the file is the one that was last used"], kept) == (again, content(copied))


@pytest.fixture
def older(configuration: Path, used: Path) -> Path:
    """The same file with the bytes of before its last start and stop."""
    before = used.read_bytes()
    with ExitStack() as stack:
        take(load_settings(configuration, environ={}), "orders", stack)
    used.write_bytes(before)
    return used


@pytest.mark.parametrize("by", ["name", "path alone", "link alone"])
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


def test_a_file_of_which_no_record_is_known_is_told_so(configuration: Path, used: Path) -> None:
    """By itself it cannot show whether it is older than the last state of its instance."""
    used.with_name("databases.json").unlink()

    alone, configured = told("keep", used), told("keep", "orders", "-c", configuration)

    assert (None, None) == (alone["record"], configured["record"])
    assert "nothing to do by the file alone" == alone["texts"][0]
    assert all("only the file was checked" in values["texts"][-1] for values in (alone, configured))
    assert [True, False] == ["keep NAME -c CONFIG" in values["texts"][-1] for values in (alone, configured)]


def test_what_was_done_is_in_the_audit_and_what_was_not_is_not(configuration: Path, copied: Path) -> None:
    told("keep", "-c", configuration, "orders", "--dry-run")
    told("keep", "-c", configuration, "orders")
    told("keep", "-c", configuration, "orders")  # nothing to do
    assert [2, 0] == [told("error-conversations", "--yes", "-c", configuration, "orders")["ended"] for _ in range(2)]
    with closing(sqlite3.connect(copied)) as db:
        assert ["ER", "ER"] == rows(db, "SELECT state FROM broker_conversation")
    told("reset-identity", "--yes", "-c", configuration, "orders")

    lines = audit_lines(configuration.with_name("audit.jsonl"))
    assert ["keep", "error-conversations", "error-conversations", "reset-identity"] == [
        line["operation"].removeprefix("broker database ") for line in lines
    ]
    assert {(str(copied), "done")} == {(line["target"], line["outcome"]) for line in lines}


def test_a_copy_that_is_made_new_is_a_database_of_its_own(configuration: Path, copied: Path) -> None:
    values = told("reset-identity", "--yes", "-c", configuration, "orders")

    assert [] == problems(configuration)
    assert values["broker_instance"] != values["was"]
    assert {"CO": 1, "SO": 1} == values["conversations"]
    with closing(sqlite3.connect(copied)) as db:
        assert [UUID(values["broker_instance"]).bytes] == rows(db, "SELECT broker_instance FROM broker_database")
        assert [0] == rows(db, "SELECT count(*) FROM broker_conversation")
        assert ["Billing", "Orders"] == rows(db, "SELECT name FROM broker_service ORDER BY name")


@pytest.mark.parametrize(("given", "code"), [("same", 1), ("other", 0)])
def test_an_identity_of_the_configuration_is_the_new_one(
    configuration: Path, copied: Path, given: str, code: int
) -> None:
    other = "11111111-1111-4111-8111-111111111111"
    instance = told("reset-identity", "-c", configuration, "orders", "--dry-run")["was"] if given == "same" else other
    configuration.write_text(f'{configuration.read_text()}broker_instance = "{instance}"\n')

    result = run("database", "reset-identity", "--yes", "-c", configuration, copied)

    assert code == result.exit_code
    if code:
        assert "broker_instance: it is the one of the original; take it out of the configuration" in result.stderr
    else:
        assert f"has broker instance {other}, it was" in result.stdout


@pytest.mark.parametrize("command", ["reset-identity", "new", "error-conversations"])
def test_what_would_be_lost_is_asked_for(configuration: Path, copied: Path, command: str) -> None:
    before = content(copied)

    result = run("database", command, "-c", configuration, "orders")

    assert (2, before) == (result.exit_code, content(copied))
    assert "confirm it with --yes" in result.stderr
    assert ("broker database reset-identity instead" in result.stderr) == (command == "new")


def test_a_file_without_a_configuration_has_no_audit(copied: Path) -> None:
    result = run("database", "reset-identity", "--yes", copied)

    assert 0 == result.exit_code
    assert "has broker instance" in result.stdout
    assert "not recorded in an audit: there is no configuration; -c FILE names that of the instance" in result.stdout
    assert "there is no database file 'nix': give the path of one" in run("database", "keep", "nix").stderr
    with closing(sqlite3.connect(copied)) as db:
        assert [0] == rows(db, "SELECT count(*) FROM broker_conversation")


def test_an_empty_database_is_made_in_place_of_a_lost_one_only(configuration: Path, used: Path) -> None:
    there = run("database", "create", "-c", configuration, "orders")
    for end in ("", "-wal", "-shm"):
        Path(f"{used}{end}").unlink(missing_ok=True)
    lost = problems(configuration)
    kept = run("database", "keep", "-c", configuration, "orders")
    lock = lock_store(used)
    held = [run("database", command, "-c", configuration, "orders") for command in ("create", "keep")]
    checked = run("check", "-c", configuration)
    os.close(lock)

    made = run("database", "create", "-c", configuration, "orders")

    assert (6, 3, 0) == (there.exit_code, kept.exit_code, made.exit_code)
    assert f"new, empty database: broker database create orders -c {configuration}\n" in kept.stderr
    assert "there is a database in it; move the file away first" in there.stderr
    assert [6, 3] == [one.exit_code for one in held]
    assert all("has the only copy open: do not stop it" in one.stderr for one in (*held, checked))
    assert "the file is missing: this instance had a database in this file" in lost[0]
    assert "has a new, empty database of broker instance" in made.stdout
    assert [] == problems(configuration)
    assert 3 == run("database", "create", "-c", configuration, "nix").exit_code


def test_a_database_made_in_place_of_a_lost_one_is_accepted_while_a_daemon_has_it(
    configuration: Path, used: Path
) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{used}{end}").unlink(missing_ok=True)
    configuration.write_text(f"{configuration.read_text()}create = true\n")
    with ExitStack() as stack:
        take(load_settings(configuration, environ={}), "orders", stack)
        tried, kept = (run("database", "keep", "-c", configuration, "orders", *more) for more in (["--dry-run"], []))
        assert ([0, 0], "") == ([tried.exit_code, kept.exit_code], replaced_at(used, used.parent))
    assert "the new one would be accepted" in tried.stdout
    assert "the new one is accepted" in kept.stdout


COMMANDS = [("keep",), ("reset-identity", "--yes"), ("error-conversations", "--yes")]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_tried_refused_or_cannot_be_written_down_changes_nothing(
    configuration: Path, copied: Path, command: tuple[str, ...]
) -> None:
    before = content(copied)

    dry = run("database", *command, "-c", configuration, "orders", "--dry-run")
    configuration.with_name("audit.jsonl").mkdir()
    unwritten = run("database", *command, "-c", configuration, "orders")
    lock = lock_store(copied)
    held = run("database", *command, "-c", configuration, "orders")
    os.close(lock)

    assert ([0, 1, 6], before) == ([done.exit_code for done in (dry, unwritten, held)], content(copied))
    assert "would" in dry.stdout
    assert "nothing is changed as long as no change can be written down" in unwritten.stderr
    assert f"another daemon has it open: stop it first: broker drain -c {configuration}" in held.stderr
    told = f'broker sql -c {configuration} "ALTER DATABASE [orders] SET ERROR_BROKER_CONVERSATIONS"'
    assert (command[0] == "error-conversations") == (told in held.stderr)
    assert [] != problems(configuration)


def test_a_file_that_fails_is_told_with_what_to_do(
    configuration: Path, used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cli.database.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(used, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        busy = run("database", "keep", "-c", configuration, "orders")
    Path(f"{used}.lock").unlink()
    Path(f"{used}.lock").mkdir()
    unlocked = run("database", "keep", "-c", configuration, "orders")

    assert (1, True) == (busy.exit_code, "another connection keeps a write transaction open: end it" in busy.stderr)
    assert (1, True) == (unlocked.exit_code, "Is a directory" in unlocked.stderr)


def test_what_the_file_refuses_is_told_with_its_name(shop: Shop) -> None:
    """SQLite says of a file that has all the pages it may have what it says of a full disk."""

    def fill() -> None:
        with open_database(None, str(shop.path)) as db, db:
            db.execute(f"PRAGMA max_page_count = {rows(db, 'PRAGMA page_count')[0] + 2}")
            db.execute("CREATE TABLE note AS SELECT randomblob(100000)")

    with pytest.raises(StoreUnavailableError, match=r"orders\.db: the disk is full: free some space"):
        fill()
