"""What keeps an instance from starting, told under the setting that names it."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.diagnostics import listen_error, store_error
from broker.errors import ListenFailedError, StoreUnavailableError
from broker.store.sqlite.database import HELD

TEXT = """\
[instance]
state_dir = "state"
[endpoint]
listen = ["127.0.0.1:1", "[::1]:2"]
[admin]
listen = "127.0.0.1:3"
[observe]
listen = "127.0.0.1:4"
[databases.a]
path = "/none/a.db"
"""


@pytest.mark.parametrize(
    ("address", "key", "line"),
    [
        ("127.0.0.1:1", "endpoint.listen[0]", 4),
        ("[::1]:2", "endpoint.listen[1]", 4),
        ("127.0.0.1:3", "admin.listen", 6),
        ("127.0.0.1:4", "observe.listen", 8),
    ],
)
def test_an_address_is_told_where_it_stands(load: Any, address: str, key: str, line: int) -> None:
    error = listen_error(load(TEXT), ListenFailedError(address, "in use; stop it"))

    assert (key, f'cannot listen on "{address}": in use; stop it', "") == (error.key, error.problem, error.hint)
    assert error.span is not None
    assert line == error.span.line


def test_an_instance_that_runs_already_is_told(load: Any, tmp_path: Path) -> None:
    """Who starts the very same one again is not told to choose another address only."""
    (tmp_path / "state").mkdir()

    with socket.socket(socket.AF_UNIX) as running:
        running.bind(f"{tmp_path}/state/admin.sock")
        running.listen()
        error = listen_error(load(TEXT), ListenFailedError("127.0.0.1:1", "in use"))
        reloaded = listen_error(load(TEXT), ListenFailedError("127.0.0.1:1", "in use"), is_running=True)

    assert "an instance of this very state directory runs already: broker status tells of it" == error.hint
    assert "" == reloaded.hint  # it is the one that asks


def test_a_socket_is_told_with_what_to_do(load: Any, tmp_path: Path) -> None:
    path = f"{tmp_path}/state/admin.sock"

    hints = [
        listen_error(load(TEXT), ListenFailedError(path, problem)).hint
        for problem in ("another instance answers there", "Permission denied")
    ]

    assert ["stop the other instance", "name a directory that exists"] == [
        hint.partition(",")[0].partition(" and")[0] for hint in hints
    ]


def test_an_address_that_no_setting_names_is_told_as_it_is(load: Any) -> None:
    assert "endpoint.listen: cannot listen on a:9: in use" == str(
        listen_error(load(TEXT), ListenFailedError("a:9", "in use"))
    )


def failed(path: str, cause: Exception) -> StoreUnavailableError:
    error = StoreUnavailableError(path, "x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("code", "stays"), [(errno.EACCES, True), (errno.EEXIST, True), (errno.ENOENT, False), (errno.ENOSPC, False)]
)
def test_what_does_not_pass_by_itself_is_known(load: Any, code: int, *, stays: bool) -> None:
    error, found = store_error(load(TEXT), failed("/none/a.db", OSError(code, os.strerror(code))))

    assert stays == found
    assert error is not None
    assert ['the directory "/none" does not exist'] == [one.problem for one in error.errors]


def test_another_daemon_that_has_the_file_may_end(load: Any, tmp_path: Path) -> None:
    error, stays = store_error(load(TEXT), StoreUnavailableError(f"{tmp_path}/state/msdb.db", HELD))

    assert not stays
    assert error is not None
    assert [("instance.state_dir", True)] == [(one.key, "stop the other" in one.hint) for one in error.errors]


def test_a_damaged_file_is_told_by_itself(load: Any) -> None:
    """Where it is, is all right; what is in it, whoever opened it has told."""
    error, stays = store_error(load(TEXT), failed("/none/a.db", sqlite3.DatabaseError("file is not a database")))

    assert (False, "databases.a.path") == (stays, error and error.errors[0].key)


def test_a_file_of_no_setting_is_not_explained(load: Any) -> None:
    assert (None, False) == store_error(load(TEXT), StoreUnavailableError("/tmp/spool", "x"))
