"""Hints that a file was written: one for many writes, none where the system gives none."""

import errno
import select
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.store.sqlite import hints
from broker.store.sqlite.hints import HINTS_VARIABLE, WriteHint, libc


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db-wal"
    path.write_bytes(b"x")
    return path


@pytest.fixture
def hint(log: Path) -> Iterator[WriteHint]:
    hint = WriteHint(str(log))
    yield hint
    hint.close()
    hint.close()


def is_hinted(hint: WriteHint) -> bool:
    assert hint.descriptor is not None
    return bool(select.select([hint.descriptor], [], [], 0)[0])


def test_first_write_after_arming_is_hinted_and_the_others_are_not(hint: WriteHint, log: Path) -> None:
    log.write_bytes(b"before")
    assert not is_hinted(hint)

    hint.arm()
    log.write_bytes(b"first")
    assert is_hinted(hint)
    assert (True, False) == (hint.clear(), hint.clear())

    log.write_bytes(b"second")
    assert not is_hinted(hint)


def test_file_that_was_replaced_is_watched_by_its_name(hint: WriteHint, log: Path) -> None:
    hint.arm()
    log.unlink()
    hint.arm()  # there is none
    log.write_bytes(b"new")
    hint.arm()
    hint.clear()

    log.write_bytes(b"written")

    assert is_hinted(hint)


@pytest.mark.parametrize("reason", ["off", "another system", "no more to give"])
def test_where_there_are_none_nothing_is_hinted(log: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    libc.cache_clear()
    if reason == "off":
        monkeypatch.setenv(HINTS_VARIABLE, "off")
    elif reason == "another system":
        monkeypatch.setattr("sys.platform", "darwin")
    else:
        monkeypatch.setattr(hints, "libc", lambda: SimpleNamespace(inotify_init1=lambda _: -errno.EMFILE))
    hint = WriteHint(str(log))
    libc.cache_clear() if reason != "no more to give" else None

    hint.arm()
    log.write_bytes(b"written")

    assert (None, False) == (hint.descriptor, hint.clear())
    hint.close()
