"""The trial message without anybody to answer it; with a far side it is tried between daemons (tests/loopback)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.admin.trial import Seen, answer_trial, begin_trial
from broker.control.pairing import trial_of
from broker.store.database import open_store
from broker.store.metadata import put_queue, put_service, queues
from broker.store.transaction import writing
from tests.support.dialog import rows

TRIAL = trial_of("ab12", is_inviting=True)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with the services and the queue of a trial, its daemon not running."""
    path = tmp_path / "a.db"
    with closing(open_store(path)) as store, writing(store):
        put_queue(store, TRIAL.queue, is_receive_enabled=True)
        put_service(store, TRIAL.own, queues(store)[TRIAL.queue].queue_id, frozenset())
    with closing(sqlite3.connect(path)) as found:
        yield found


@pytest.mark.parametrize(("run", "problem"), [(begin_trial, "no answer came"), (answer_trial, "no message came")])
def test_when_nobody_is_there_the_time_is_over(db: sqlite3.Connection, run: type, problem: str) -> None:
    assert Seen(f"{problem} within 0.2 s") == run(db, TRIAL, number="ab12", seconds=0.2)


def test_question_is_sent_and_its_dialog_has_to_be_sealed_and_is_ended(db: sqlite3.Connection) -> None:
    begin_trial(db, TRIAL, number="ab12", seconds=0.1)

    assert [TRIAL.far] == rows(db, "SELECT far_service FROM broker_conversation")
    assert ["NONE"] == rows(db, "SELECT security FROM broker_session_key")  # asked for, and nobody is bound to it here
    assert [2] == rows(db, "SELECT count(*) FROM broker_transmission")
