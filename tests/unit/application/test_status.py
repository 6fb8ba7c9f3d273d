"""GET TRANSMISSION STATUS: a sentence for every situation, never a blank one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from broker.client import dialog as module
from broker.client.dialog import has_daemon
from broker.store.sqlite.database import lock_store

Shop = Any  # its class is in conftest.py, which nothing imports


@pytest.fixture(autouse=True)
def _outside_of_containers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where these tests run must not matter: all processes are seen, as far as this code knows."""
    monkeypatch.setattr(module, "_NAMESPACE", tmp_path / "namespace")
    (tmp_path / "namespace").symlink_to(module._ALL_PROCESSES)


def test_nothing_waits_before_the_first_send_and_after_the_last_acknowledgement(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)

    told = [dialog.transmission_status]
    dialog.send(b"")
    db.execute("DELETE FROM broker_transmission")
    told.append(dialog.transmission_status)
    shop.change(dialog, "state", "ER")
    told.append(dialog.transmission_status)
    dialog.end()
    told.append(dialog.transmission_status)

    assert [
        "nothing has been sent yet",
        "everything sent is acknowledged (1 messages)",
        "the conversation has failed: nothing of it will be sent any more; receive its Error message",
        "the conversation is over: nothing of it waits any more",
    ] == told


def test_daemon_that_is_not_there_is_what_it_waits_for(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send_many([b"", b""])

    told = [dialog.transmission_status]
    shop.change(dialog, "transmission_status", "connection refused")
    told.append(dialog.transmission_status)

    missing = "2 messages wait: no daemon has this database open, start broker serve"
    assert [missing, f"{missing}; before that: connection refused"] == told


def test_daemon_tells_why_it_waits(shop: Shop) -> None:
    db = shop.connect()
    lock = lock_store(shop.path)
    try:
        with db:
            dialog = shop.begin(db)
            dialog.send(b"")
            told = [dialog.transmission_status]
        told.append(dialog.transmission_status)
        shop.change(dialog, "transmission_status", "connection refused by 10.0.0.7:4022")
        told.append(dialog.transmission_status)
        dialog.send(b"")
        told.append(dialog.transmission_status)
    finally:
        os.close(lock)

    assert [
        "1 message waits: nothing leaves before the transaction commits",
        "1 message waits: no daemon has taken them up yet",
        "connection refused by 10.0.0.7:4022",
        (
            "2 messages wait: nothing leaves before the transaction commits; until then:"
            " connection refused by 10.0.0.7:4022"
        ),
    ] == told


def test_settings_of_the_connection_do_not_matter(shop: Shop) -> None:
    db = shop.connect(isolation_level=None)
    db.text_factory = bytes
    dialog = shop.begin(db)
    dialog.send(b"")
    db.execute("DELETE FROM broker_transmission")
    shop.change(dialog, "state", "ER")

    assert dialog.transmission_status.startswith("the conversation has failed")


def test_lock_of_a_daemon_is_seen_and_left_alone(shop: Shop) -> None:
    path = str(shop.path)

    seen = [has_daemon(path)]
    lock = lock_store(path)
    seen.append(has_daemon(path))
    os.close(lock)
    seen.append(has_daemon(path))

    assert [False, True, False] == seen
    os.close(lock_store(path))


def test_where_locks_cannot_be_seen_nothing_is_claimed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.close(lock_store(shop.path))
    monkeypatch.setattr(module, "_LOCKS", tmp_path / "missing")
    db = shop.connect(isolation_level=None)
    dialog = shop.begin(db)
    dialog.send(b"")

    assert has_daemon(str(shop.path)) is None
    assert has_daemon(f"{shop.path}/below") is None
    assert "1 message waits: no daemon has taken them up yet" == dialog.transmission_status


@pytest.mark.parametrize("namespace", ["pid:[4026532000]", None])
def test_lock_that_is_not_seen_inside_a_container_proves_nothing(
    shop: Shop, tmp_path: Path, namespace: str | None
) -> None:
    os.close(lock_store(shop.path))
    (tmp_path / "namespace").unlink()
    if namespace is not None:
        (tmp_path / "namespace").symlink_to(namespace)

    seen = [has_daemon(str(shop.path))]
    lock = lock_store(shop.path)
    seen.append(has_daemon(str(shop.path)))
    os.close(lock)

    assert [None, True] == seen
