from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.diagnostics import Diagnostic, of_route, of_setting, of_statement
from broker.catalog.dry_run import Played, Rehearsal, rehearse
from broker.config.settings import Settings
from broker.errors import Span
from broker.routing.lint import Lint

LINT = Lint.DEAD_END


@pytest.fixture
def at(load: Callable[[str], Settings], tmp_path: Path) -> tuple[Rehearsal, Played]:
    """An instance whose msdb has a route of its script."""
    (tmp_path / "a.sql").write_text("-- one\nCREATE ROUTE [r] WITH\n  ADDRESS = 'tcp://x';\n")
    text = "[instance]\nname = 'one'\n[routes]\nfiles = ['a.sql']\n[databases.d]\npath = 'd.db'\n"
    rehearsal = rehearse(load(text), now=datetime(2025, 3, 1, tzinfo=UTC))
    return rehearsal, rehearsal.msdb


def test_a_route_of_a_script_has_its_place_and_a_caret(at: tuple[Rehearsal, Played], tmp_path: Path) -> None:
    concern = of_route(LINT, "problem", "hint", at=at, route="r")

    assert f"{tmp_path}/a.sql:2:14: dead-end: problem; hint\nCREATE ROUTE [r] WITH\n             ^^^" == str(concern)


def test_a_part_of_a_statement_has_its_place(at: tuple[Rehearsal, Played]) -> None:
    concern = of_statement(LINT, "problem", "hint", at=at, statement=at[1].statements["r"], part="ADDRESS")

    assert concern.span is not None
    assert (3, 13) == (concern.span.line, concern.span.column)


def test_a_part_that_was_not_written_is_the_whole_statement(at: tuple[Rehearsal, Played]) -> None:
    concern = of_statement(LINT, "problem", "hint", at=at, statement=at[1].statements["r"], part="LIFETIME")

    assert concern.span is not None
    assert (2, 1) == (concern.span.line, concern.span.column)


def test_a_setting_has_its_place_without_a_caret(at: tuple[Rehearsal, Played], tmp_path: Path) -> None:
    concern = of_setting(LINT, "problem", "hint", at=at, path=("databases", "d", "path"))

    assert f"{tmp_path}/broker.toml:6:8: dead-end: problem; hint" == str(concern)


def test_a_key_has_its_place(at: tuple[Rehearsal, Played]) -> None:
    concern = of_setting(LINT, "problem", "hint", at=at, path=("databases", "d"), of_key=True)

    assert concern.span is not None
    assert 5 == concern.span.line


def test_a_route_of_the_file_stands_where_the_file_is_named(at: tuple[Rehearsal, Played]) -> None:
    rehearsal, _ = at

    concern = of_route(LINT, "problem", "hint", at=(rehearsal, rehearsal.databases["d"]), route="AutoCreatedLocal")

    assert concern.span is not None
    assert 6 == concern.span.line


def test_what_has_no_place_names_instance_and_database(at: tuple[Rehearsal, Played]) -> None:
    concern = of_route(LINT, "problem", "hint", at=at, route="AutoCreatedLocal")

    assert Diagnostic(LINT, "one, msdb", "problem", "hint", concern.span) == concern
    assert "one, msdb: dead-end: problem; hint" == str(Diagnostic(LINT, "one, msdb", "problem", "hint"))


def test_the_sentence_is_without_place_and_code_and_says_whom_it_is_about_when_no_place_does(
    at: tuple[Rehearsal, Played],
) -> None:
    placed = of_route(LINT, "problem", "hint", at=at, route="r")

    assert "problem; hint" == placed.sentence
    assert "one, msdb: problem; hint" == Diagnostic(LINT, "one, msdb", "problem", "hint").sentence


def test_the_file_is_known_whatever_the_place(at: tuple[Rehearsal, Played], tmp_path: Path) -> None:
    assert str(tmp_path / "a.sql") == of_route(LINT, "p", "h", at=at, route="r").file
    assert "a" == Diagnostic(LINT, "one", "p", "h", Span("a", 1, 2)).file
    assert None is Diagnostic(LINT, "one", "p", "h").file


def test_a_place_without_its_line_has_no_caret() -> None:
    assert "a:1:2: dead-end: p; h" == str(Diagnostic(LINT, "one", "p", "h", Span("a", 1, 2)))
