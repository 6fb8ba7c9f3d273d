"""`broker why`: the daemon's answer, that of files, and where an unknown id was looked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from broker.observe.why import Severity
from broker.store.sqlite.database import lock_store
from tests.support.command import run
from tests.support.journalled import visit, write
from tests.support.shop import Shop
from tests.support.why import CONVERSATION, finding, holding, place, told, way

A = place("a", 1, "b")
ANSWER = told(A, finding("a", "not acknowledged", Severity.WAITING), ways=(way(A),), sides=[holding()])


@pytest.fixture
def daemon(fake_admin: Any) -> Any:
    fake_admin.answers[f"/v1/why/{CONVERSATION}"] = (200, msgspec.to_builtins(ANSWER))
    return fake_admin


def asked(daemon: Any, *more: object) -> Any:
    """The next hop is asked at a socket that nobody has."""
    nobody = f"tcp://b:4022={daemon.path}.none"
    return run("why", CONVERSATION, "--socket", daemon.path, "--admin", nobody, *more)


def test_symptom_cause_next_and_remedy_come_first_and_in_this_order(daemon: Any) -> None:
    done = asked(daemon)

    lines = done.stdout.splitlines()
    assert 0 == done.exit_code
    assert f"conversation {CONVERSATION}" == lines[0]
    assert [
        "  symptom: symptom of not acknowledged",
        "  cause:   a: why of not acknowledged",
        "  next:    next of not acknowledged",
        "  remedy:  remedy of not acknowledged",
    ] == lines[1:5]
    text = " ".join(done.stdout.split())
    assert "not asked: a -> tcp://b:4022: not known from there on" in text
    assert 1 == text.count("not known from there on")


def test_as_json_facts_and_findings_are_there(daemon: Any) -> None:
    trace = json.loads(asked(daemon, "-o", "json").stdout)

    assert ("not acknowledged", "a", 1) == (trace["cause"], trace["where"], len(trace["not_asked"]))
    assert 1 == trace["answers"][0]["sides"][0]["held"]
    assert 1 == trace["findings"][0]["severity"]


def test_an_unknown_id_is_told_with_where_it_was_looked_for(fake_admin: Any) -> None:
    unknown = msgspec.structs.replace(told(A), conversation_id=None, looked_in=["database orders", "0 frames"])
    fake_admin.answers[f"/v1/why/{CONVERSATION}"] = (200, msgspec.to_builtins(unknown))

    done = asked(fake_admin)

    assert 3 == done.exit_code
    assert [
        f"{CONVERSATION} is not known at a; looked in:",
        "  database orders",
        "  0 frames",
        "  no journal: no configuration (-c) names one",
    ] == done.stderr.splitlines()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def config(shop: Shop, tmp_path: Path) -> Path:
    assert shop.path.parent == tmp_path
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nname = "i"\nstate_dir = "."\n[databases.shop]\npath = "shop.db"\n')
    return path


def test_without_a_daemon_the_files_tell(config: Path, shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send("x")

    done = run("why", dialog.conversation_id, "-c", config)

    text = " ".join(done.stdout.split())
    assert 0 == done.exit_code
    assert "no daemon answers, so read from" in text
    assert "1 message from Orders to //far/Billing waits in shop" in text


def test_message_that_has_passed_is_known_by_the_journal(config: Path, shop: Shop, tmp_path: Path) -> None:
    db = shop.connect(isolation_level=None)
    dialog, message = shop.begin(db), uuid4()
    dialog.send_many(["x", "y"])
    config.write_text(config.read_text() + '[journal]\ndirectory = "flows"\n')
    (tmp_path / "flows").mkdir()
    others = [visit(number, sequence_number=number) for number in range(3)]
    ours = visit(9, message_id=message.bytes, conversation_id=dialog.conversation_id.bytes, sequence_number=1)
    write(tmp_path / "flows" / "1.parquet", *others, ours)

    done = run("why", message, "-c", config)
    other = run("why", uuid4(), "-c", config)

    text = " ".join(done.stdout.split())
    assert 0 == done.exit_code
    assert f"message_id {message} is of message 1 of conversation {dialog.conversation_id}, by the journal" in text
    assert "2 messages from Orders to //far/Billing wait in shop" in text
    assert 3 == other.exit_code
    assert f"the journal in {tmp_path / 'flows'}, whose newest visits are in no file yet" in other.stderr


def test_journal_that_cannot_be_read_hides_nothing(config: Path) -> None:
    config.write_text(config.read_text() + '[journal]\ndirectory = "missing"\n')

    done = run("why", uuid4(), "-c", config)

    assert 3 == done.exit_code
    assert "not in the journal: " in done.stderr
    assert "database shop" in done.stderr


def test_closed_side_is_told_by_its_handle(config: Path, shop: Shop) -> None:
    dialog = shop.begin(shop.connect(isolation_level=None))
    dialog.send("x")
    shop.change(dialog, "state", "DI")
    dialog.end()

    done = run("why", dialog.conversation_handle, "-c", config)

    assert 0 == done.exit_code
    assert f"conversation {str(dialog.conversation_id).upper()}" in done.stdout
    assert "the initiator's side is closed since" in done.stdout


def test_without_a_configuration_there_are_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BROKER_CONFIG", raising=False)
    monkeypatch.setenv("BROKER_ADMIN__SOCKET", str(tmp_path / "none.sock"))

    assert 4 == run("why", uuid4()).exit_code


def test_a_file_that_another_daemon_has_is_not_read(config: Path, shop: Shop) -> None:
    config.write_text(config.read_text() + 'mirroring = "lock"\n')
    lock = lock_store(shop.path)

    done = run("why", uuid4(), "-c", config)
    os.close(lock)

    assert 3 == done.exit_code
    assert "not in database shop: this database is a mirror here; ask its partner" in done.stderr
