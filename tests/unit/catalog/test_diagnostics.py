"""Where a diagnostic stands, how many of a kind are kept, and what keeps an instance from starting."""

import errno
import os
import socket
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.diagnostics import Diagnostic, concern, first_of_each, listen_error, store_error
from broker.catalog.dry_run import DryRun, dry_run
from broker.config.settings import Settings
from broker.errors import ListenFailedError, Span, StoreUnavailableError
from broker.routing.lint import Lint
from broker.store.sqlite.database import HELD

LINT = Lint.DEAD_END


@pytest.fixture
def run(load: Callable[[str], Settings], tmp_path: Path) -> DryRun:
    """An instance whose msdb has a route of its script."""
    (tmp_path / "a.sql").write_text("-- one\nCREATE ROUTE [r] WITH\n  ADDRESS = 'tcp://x';\n")
    text = "[instance]\nname = 'one'\n[routes]\nfiles = ['a.sql']\n[databases.d]\npath = 'd.db'\n"
    return dry_run(load(text), now=datetime(2025, 3, 1, tzinfo=UTC))


def test_a_concern_has_its_place_and_of_a_statement_a_caret(run: DryRun, tmp_path: Path) -> None:
    about = partial(concern, run.msdb, LINT, "problem", "hint")
    statement = run.msdb.statements["r"]
    concerns = {
        "a.sql:2:14": about(statement),
        "a.sql:3:13": about(statement, part="ADDRESS"),
        "a.sql:2:1": about(statement, part="LIFETIME"),  # a part that was not written is the whole statement
        "broker.toml:6:8": about(("databases", "d", "path")),
        "broker.toml:5:1": about(("databases", "d"), of_key=True),
        # what was in the file stands where the file is named
        "broker.toml:6:8 ": concern(run.databases["d"], LINT, "problem", "hint", None),
    }

    for place, one in concerns.items():
        first, *caret = str(one).split("\n")
        assert f"{tmp_path}/{place.strip()}: dead-end: problem; hint" == first
        assert place.startswith("a.sql") == bool(caret)
        assert (str(tmp_path / place.partition(":")[0]), "problem; hint") == (one.file, one.sentence)
    assert str(concerns["a.sql:2:14"]).endswith("\nCREATE ROUTE [r] WITH\n             ^^^")
    assert {"one, msdb", "one, d"} == {one.subject for one in concerns.values()}


def test_what_has_no_place_names_instance_and_database() -> None:
    nowhere = Diagnostic(LINT, "one, msdb", "problem", "hint")

    assert ("one, msdb: dead-end: problem; hint", "one, msdb: problem; hint") == (str(nowhere), nowhere.sentence)
    assert nowhere.file is None
    assert "a:1:2: dead-end: p; h" == str(Diagnostic(LINT, "one", "p", "h", Span("a", 1, 2)))


# --- what keeps an instance from starting ---


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

    assert "an instance with this state directory is running already: see broker status" == error.hint
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


@pytest.mark.parametrize(
    ("error", "key", "hint"),
    [
        (StoreUnavailableError("state/msdb.db", HELD), "instance.state_dir", "stop the other"),
        # where it is, is all right; what is in it, is told by its reader
        (failed("/none/a.db", sqlite3.DatabaseError("file is not a database")), "databases.a.path", ""),
        (StoreUnavailableError("/tmp/spool", "x"), None, ""),
    ],
)
def test_what_may_pass_is_told_under_its_setting(
    load: Any, tmp_path: Path, error: StoreUnavailableError, key: str | None, hint: str
) -> None:
    error.path = str(tmp_path / error.path)

    found, stays = store_error(load(TEXT), error)

    assert not stays
    assert [(key, True)] * (key is not None) == [(one.key, hint in one.hint) for one in (found.errors if found else [])]


def test_the_first_of_each_kind_are_kept_in_their_order_and_the_others_counted() -> None:
    found = [("a", "x", 1), ("b", "x", 2), ("a", "y", 3), ("a", "x", 4), ("a", "x", 5), ("a", None, 6), ("a", "x", 7)]

    kept, more = first_of_each(found, lambda one: one[:2], most=2)

    assert ([1, 2, 3, 4, 6], {("a", "x"): 2}) == ([number for _, _, number in kept], more)
