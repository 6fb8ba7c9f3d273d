from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from broker import begin_dialog
from broker.control import agreement as _agreement  # noqa: F401 - its statements join `carry_out`
from broker.control import permission as _permission  # noqa: F401 - likewise
from broker.control.definition import definition_of, target_of, words_of
from broker.control.effect import Session, carry_out
from broker.control.progress import Messages
from broker.control.route_batch import create_routes
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute, Statement
from broker.store.database import open_store
from broker.store.transaction import writing

NOW = datetime(2026, 11, 22, tzinfo=UTC)
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
NAMED = f"SERVICE_NAME = '//s', BROKER_INSTANCE = '{GUID}'"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(tmp_path / "orders.db")) as opened, writing(opened):
        yield opened


def _one(text: str) -> Statement:
    [statement] = parse_script(text)
    return statement


def _run(db: sqlite3.Connection, text: str) -> None:
    session = Session(db, NOW, is_declared=False, messages=Messages())
    for statement in parse_script(text):
        if isinstance(statement, CreateRoute):
            create_routes([statement], session)
        else:
            carry_out(statement, session)


@pytest.mark.parametrize(
    ("made", "about", "definition"),
    [
        (
            f"CREATE ROUTE r WITH {NAMED}, ADDRESS = 'tcp://a:1', LIFETIME = 60",
            "DROP ROUTE r",
            {
                "SERVICE_NAME": "//s",
                "BROKER_INSTANCE": GUID,
                "LIFETIME": "2026-11-22T00:01:00+00:00",
                "ADDRESS": "tcp://a:1",
                "MIRROR_ADDRESS": None,
                "WEIGHT": 1,
            },
        ),
        ("CREATE QUEUE q", "ALTER QUEUE q WITH STATUS = OFF", {"STATUS": "ON", "POISON_MESSAGE_HANDLING": "OFF"}),
        (
            "CREATE QUEUE q; CREATE SERVICE s ON QUEUE q ([b], [a])",
            "DROP SERVICE s",
            {"QUEUE": "q", "CONTRACTS": ["a", "b"]},
        ),
        ("CREATE MESSAGE TYPE m VALIDATION = EMPTY", "DROP MESSAGE TYPE m", {"VALIDATION": "EMPTY"}),
        (
            "CREATE MESSAGE TYPE m; CREATE CONTRACT c (m SENT BY ANY)",
            "DROP CONTRACT c",
            {"m": "ANY"},
        ),
        (
            "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 7)",
            "DROP BROKER PRIORITY p",
            {"CONTRACT_NAME": None, "LOCAL_SERVICE_NAME": None, "REMOTE_SERVICE_NAME": None, "PRIORITY_LEVEL": 7},
        ),
        (
            "CREATE REMOTE SERVICE BINDING b TO SERVICE '//s' WITH USER = [CN=billing], ANONYMOUS = ON",
            "DROP REMOTE SERVICE BINDING b",
            {"SERVICE": "//s", "USER": "CN=billing", "ANONYMOUS": "ON"},
        ),
        (
            "CREATE QUEUE q; CREATE SERVICE s ON QUEUE q; GRANT SEND ON SERVICE::s TO [CN=a], [CN=b]",
            "REVOKE SEND ON SERVICE::s FROM [CN=a]",
            {"CN=a": "GRANT", "CN=b": "GRANT"},
        ),
    ],
)
def test_what_a_statement_is_about_is_told_as_it_is(
    db: sqlite3.Connection, made: str, about: str, definition: object
) -> None:
    statement = _one(about)
    before = definition_of(statement, db)

    _run(db, made)

    assert before is None
    assert definition == definition_of(statement, db)


def test_a_conversation_is_told_by_its_state(db: sqlite3.Connection) -> None:
    _run(db, "CREATE QUEUE q; CREATE SERVICE s ON QUEUE q")
    dialog = begin_dialog(db, from_service="s", to_service="//far")
    statement = _one(f"END CONVERSATION '{dialog.conversation_handle}'")

    told = definition_of(statement, db)

    assert told is not None
    assert ("SO", "s", "//far", None) == tuple(told[key] for key in ("STATE", "SERVICE", "FAR_SERVICE", "TIMER"))
    assert {"CONVERSATIONS": {"SO": 1}} == definition_of(_one("ALTER DATABASE d SET ENABLE_BROKER"), db)


def test_a_conversation_that_is_not_there_has_no_definition(db: sqlite3.Connection) -> None:
    assert definition_of(_one(f"END CONVERSATION '{uuid4()}'"), db) is None


def test_what_defines_nothing_has_no_definition(db: sqlite3.Connection) -> None:
    assert definition_of(_one("USE orders"), db) is None


@pytest.mark.parametrize(
    ("text", "words", "target"),
    [
        ("CREATE ROUTE r WITH ADDRESS = 'LOCAL'", "CREATE ROUTE", "r"),
        ("ALTER QUEUE dbo.q WITH STATUS = OFF", "ALTER QUEUE", "q"),
        ("DROP MESSAGE TYPE m", "DROP MESSAGE TYPE", "m"),
        (f"END CONVERSATION '{GUID}'", "END CONVERSATION", GUID),
        (f"END CONVERSATION '{GUID}' WITH CLEANUP", "END CONVERSATION WITH CLEANUP", GUID),
        ("ALTER DATABASE d SET PARTNER FAILOVER", "ALTER DATABASE SET PARTNER FAILOVER", "d"),
        ("ALTER DATABASE CURRENT SET NEW_BROKER", "ALTER DATABASE SET NEW_BROKER", ""),
        ("GRANT SEND ON SERVICE::s TO public", "GRANT SEND", "SEND ON s"),
        ("DENY CONNECT ON ENDPOINT::e TO public", "DENY CONNECT", "CONNECT ON e"),
    ],
)
def test_a_statement_is_called_by_its_first_words_and_its_target(text: str, words: str, target: str) -> None:
    statement = _one(text)

    assert (words, target) == (words_of(statement), target_of(statement))
