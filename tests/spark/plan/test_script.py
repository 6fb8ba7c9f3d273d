"""What scripts make of an instance: its databases, routes and services, declared or carried out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.errors import DuplicateNameError, StatementError, UnknownNameError
from broker.pipeline.plan.script import MSDB, Scripted, play_script

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def played(text: str, *, state: Scripted | None = None, is_declared: bool = True) -> Scripted:
    return play_script(state or Scripted(), text, source="x.sql", now=NOW, is_declared=is_declared)


def routes(state: Scripted) -> dict[str, list[str]]:
    return {name: sorted(database.routes) for name, database in state.databases.items()}


def test_an_instance_begins_as_a_new_one() -> None:
    assert {MSDB: ["AutoCreatedLocal"]} == routes(played(""))


def test_what_stands_behind_use_is_about_that_database() -> None:
    state = played(
        "CREATE ROUTE a WITH ADDRESS = 'LOCAL'; USE orders; CREATE ROUTE b WITH ADDRESS = 'LOCAL';"
        " CREATE QUEUE Q; CREATE SERVICE [//s] ON QUEUE Q; USE msdb; DROP ROUTE AutoCreatedLocal"
    )

    assert {MSDB: ["a"], "orders": ["AutoCreatedLocal", "b"]} == routes(state)
    assert {"//s"} == state.databases["orders"].services


def test_a_script_may_begin_in_a_database() -> None:
    state = play_script(Scripted(), "CREATE ROUTE b WITH ADDRESS = 'LOCAL'", source="x.sql", now=NOW, database="orders")

    assert {MSDB: ["AutoCreatedLocal"], "orders": ["AutoCreatedLocal", "b"]} == routes(state)


def test_the_state_before_is_not_changed() -> None:
    before = played("CREATE ROUTE a WITH ADDRESS = 'LOCAL'")

    after = played("DROP ROUTE a", state=before, is_declared=False)

    assert (["AutoCreatedLocal", "a"], ["AutoCreatedLocal"]) == (routes(before)[MSDB], routes(after)[MSDB])


def test_a_service_that_is_dropped_is_remembered_until_it_is_made_again() -> None:
    dropped = played("USE o; DROP SERVICE [//s]")
    again = played("USE o; CREATE SERVICE [//s] ON QUEUE Q", state=dropped)

    assert (set(), {"//s"}) == (dropped.databases["o"].services, dropped.databases["o"].dropped)
    assert ({"//s"}, set()) == (again.databases["o"].services, again.databases["o"].dropped)


def test_a_configuration_may_make_a_route_again_and_drop_one_that_is_not_there() -> None:
    assert "a" in routes(played("DROP ROUTE a; CREATE ROUTE a WITH ADDRESS = 'LOCAL'; " * 2))[MSDB]


@pytest.mark.parametrize(
    ("text", "error", "number"),
    [
        ("CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'", DuplicateNameError, 2714),
        ("DROP ROUTE a", UnknownNameError, 15151),
        ("ALTER ROUTE a WITH ADDRESS = 'LOCAL'", UnknownNameError, 15151),
        ("USE orders", UnknownNameError, 911),
        ("CREATE ROUTE a", StatementError, 102),
    ],
)
def test_what_could_not_be_carried_out_is_refused_with_its_place(
    text: str, error: type[StatementError], number: int
) -> None:
    with pytest.raises(error) as caught:
        played(f"\n{text}", is_declared=False)

    assert number == caught.value.number
    assert caught.value.span is not None
    assert ("x.sql", 2) == (caught.value.span.source, caught.value.span.line)
