"""Where a diagnostic stands, how many of a kind are kept, and what keeps an instance from starting."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.diagnostics import (
    Diagnostic,
    Kind,
    first_of_each,
    listen_error,
    of_route,
    of_setting,
    of_statement,
    store_error,
)
from broker.catalog.dry_run import DryDatabase, DryRun, dry_run
from broker.config.settings import Settings
from broker.errors import ListenFailedError, Span, StoreUnavailableError
from broker.routing.lint import Lint
from broker.store.sqlite.database import HELD

LINT = Lint.DEAD_END


@pytest.fixture
def at(load: Callable[[str], Settings], tmp_path: Path) -> tuple[DryRun, DryDatabase]:
    """An instance whose msdb has a route of its script."""
    (tmp_path / "a.sql").write_text("-- one\nCREATE ROUTE [r] WITH\n  ADDRESS = 'tcp://x';\n")
    text = "[instance]\nname = 'one'\n[routes]\nfiles = ['a.sql']\n[databases.d]\npath = 'd.db'\n"
    run = dry_run(load(text), now=datetime(2025, 3, 1, tzinfo=UTC))
    return run, run.msdb


def test_a_route_of_a_script_has_its_place_and_a_caret(at: tuple[DryRun, DryDatabase], tmp_path: Path) -> None:
    concern = of_route(LINT, "problem", "hint", at=at, route="r")

    assert f"{tmp_path}/a.sql:2:14: dead-end: problem; hint\nCREATE ROUTE [r] WITH\n             ^^^" == str(concern)


def test_a_part_of_a_statement_has_its_place(at: tuple[DryRun, DryDatabase]) -> None:
    concern = of_statement(LINT, "problem", "hint", at=at, statement=at[1].statements["r"], part="ADDRESS")

    assert concern.span is not None
    assert (3, 13) == (concern.span.line, concern.span.column)


def test_a_part_that_was_not_written_is_the_whole_statement(at: tuple[DryRun, DryDatabase]) -> None:
    concern = of_statement(LINT, "problem", "hint", at=at, statement=at[1].statements["r"], part="LIFETIME")

    assert concern.span is not None
    assert (2, 1) == (concern.span.line, concern.span.column)


def test_a_setting_has_its_place_without_a_caret(at: tuple[DryRun, DryDatabase], tmp_path: Path) -> None:
    concern = of_setting(LINT, "problem", "hint", at=at, path=("databases", "d", "path"))

    assert f"{tmp_path}/broker.toml:6:8: dead-end: problem; hint" == str(concern)


def test_a_key_has_its_place(at: tuple[DryRun, DryDatabase]) -> None:
    concern = of_setting(LINT, "problem", "hint", at=at, path=("databases", "d"), of_key=True)

    assert concern.span is not None
    assert 5 == concern.span.line


def test_a_route_of_the_file_stands_where_the_file_is_named(at: tuple[DryRun, DryDatabase]) -> None:
    run, _ = at

    concern = of_route(LINT, "problem", "hint", at=(run, run.databases["d"]), route="AutoCreatedLocal")

    assert concern.span is not None
    assert 6 == concern.span.line


def test_what_has_no_place_names_instance_and_database(at: tuple[DryRun, DryDatabase]) -> None:
    concern = of_route(LINT, "problem", "hint", at=at, route="AutoCreatedLocal")

    assert Diagnostic(LINT, "one, msdb", "problem", "hint", concern.span) == concern
    assert "one, msdb: dead-end: problem; hint" == str(Diagnostic(LINT, "one, msdb", "problem", "hint"))


def test_the_sentence_is_without_place_and_code_and_says_whom_it_is_about_when_no_place_does(
    at: tuple[DryRun, DryDatabase],
) -> None:
    placed = of_route(LINT, "problem", "hint", at=at, route="r")

    assert "problem; hint" == placed.sentence
    assert "one, msdb: problem; hint" == Diagnostic(LINT, "one, msdb", "problem", "hint").sentence


def test_the_file_is_known_whatever_the_place(at: tuple[DryRun, DryDatabase], tmp_path: Path) -> None:
    assert str(tmp_path / "a.sql") == of_route(LINT, "p", "h", at=at, route="r").file
    assert "a" == Diagnostic(LINT, "one", "p", "h", Span("a", 1, 2)).file
    assert None is Diagnostic(LINT, "one", "p", "h").file


def test_a_place_without_its_line_has_no_caret() -> None:
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


def kind_of(one: tuple[str, str | None, int]) -> Kind:
    return one[0], one[1]


def test_the_first_of_each_kind_are_kept_in_their_order_and_the_others_counted() -> None:
    found = [("a", "x", 1), ("b", "x", 2), ("a", "y", 3), ("a", "x", 4), ("a", "x", 5), ("a", None, 6), ("a", "x", 7)]

    kept, more = first_of_each(found, kind_of, most=2)

    assert [1, 2, 3, 4, 6] == [number for _, _, number in kept]
    assert {("a", "x"): 2} == more
