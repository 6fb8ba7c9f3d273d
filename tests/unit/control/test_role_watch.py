"""A look at a database from outside sees its lock and what is told beside it, whatever becomes of those files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.daemon import roles as role_watch
from broker.daemon.roles import RoleWatch, Sight
from broker.store.sqlite.database import lock_path, lock_store
from broker.store.sqlite.role_file import PrincipalRecord, read_reign, role_path, write_reign

REIGN = PrincipalRecord(b"i" * 16, 7, "first", 1_800_000_000.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up anew but what has changed."""
    monkeypatch.setattr(role_watch, "REFRESH_SECONDS", 1e6)


def test_where_there_is_nothing_nothing_is_seen(path: Path) -> None:
    watch = RoleWatch(path)

    assert Sight(is_held=False, reign=None) == watch.look(asks_lock=True)
    assert [] == list(path.parent.iterdir())


@pytest.mark.usefixtures("rarely")
def test_a_lock_is_seen_for_as_long_as_somebody_has_it_and_never_kept(path: Path) -> None:
    watch = RoleWatch(path)
    seen = []
    for _ in range(2):
        descriptor = lock_store(path)
        seen.append(watch.look(asks_lock=True).is_held)
        os.close(descriptor)
        seen.append(watch.look(asks_lock=True).is_held)

    assert [True, False, True, False] == seen
    os.close(lock_store(path))
    watch.close()


@pytest.mark.usefixtures("rarely")
def test_a_lock_file_that_was_removed_or_replaced_is_noticed(path: Path) -> None:
    watch, first = RoleWatch(path), lock_store(path)
    seen = [watch.look(asks_lock=True).is_held]

    Path(lock_path(path)).unlink()
    seen.append(watch.look(asks_lock=True).is_held)
    second = lock_store(path)
    seen.append(watch.look(asks_lock=True).is_held)
    os.close(second)
    seen.append(watch.look(asks_lock=True).is_held)

    assert [True, False, True, False] == seen
    os.close(first)
    watch.close()


def test_nobody_is_in_the_way_of_a_partner_while_the_lock_is_not_asked_for(path: Path) -> None:
    descriptor, watch = lock_store(path), RoleWatch(path)

    assert not watch.look(asks_lock=False).is_held
    os.close(descriptor)


@pytest.mark.usefixtures("rarely")
def test_what_is_told_is_read_whenever_its_file_is_another_one_and_only_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RoleWatch(path)
    reads: list[Path] = []

    def read(one: Path) -> PrincipalRecord | None:
        reads.append(one)
        return read_reign(one)

    monkeypatch.setattr(role_watch, "read_reign", read)
    told = [watch.look(asks_lock=False).reign]

    write_reign(path, REIGN)
    told += [watch.look(asks_lock=False).reign for _ in range(3)]
    role_path(path).unlink()
    told += [watch.look(asks_lock=False).reign for _ in range(2)]

    assert [None, REIGN, REIGN, REIGN, None, None] == told
    assert 3 == len(reads)


@pytest.mark.usefixtures("rarely")
def test_what_is_told_and_damaged_is_a_problem_until_it_is_written_anew(path: Path) -> None:
    watch = RoleWatch(path)
    role_path(path).write_text("{", encoding="utf-8")

    damaged = watch.look(asks_lock=False)
    write_reign(path, REIGN)

    assert damaged.reign is None
    assert "it does not hold what the principal wrote" in damaged.problem
    assert Sight(is_held=False, reign=REIGN) == watch.look(asks_lock=False)


def test_what_shows_no_change_is_read_again_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role_watch, "_mark", lambda _: ())
    monkeypatch.setattr(role_watch, "REFRESH_SECONDS", 0.0)
    watch = RoleWatch(path)
    before = watch.look(asks_lock=False).reign

    write_reign(path, REIGN)

    assert (None, REIGN) == (before, watch.look(asks_lock=False).reign)
