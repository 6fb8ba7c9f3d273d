"""The routes of a synthetic history as scripts."""

from datetime import UTC, datetime
from pathlib import Path

from broker.pipeline.plan.question import Question, read_question
from tests.support.synthetic import History, history


def question(made: History) -> Question:
    truth = made.directory / "_truth"
    return read_question(before=truth / "scripts", change=truth / "change", now=datetime(2026, 3, 1, tzinfo=UTC))


def test_the_routes_of_the_scripts_are_those_of_the_history(tmp_path: Path) -> None:
    """What left by a route left for its address, but for failovers and loops."""
    made = history(tmp_path / "h", instances=4)
    before = question(made).before

    for row in made.truth("routes").to_pylist():
        if row["route"] is not None:
            routes = before[row["instance"]].databases[row["route_table"]].routes
            assert row["to_service"] == routes[row["route"]].remote_service_name


def test_the_change_is_what_the_truth_says(tmp_path: Path) -> None:
    """One route less, one with another address."""
    made = history(tmp_path / "h")
    asked, change = question(made), made.told["change"]

    changed = {
        (name, route)
        for name in asked.before
        for route, was in asked.before[name].databases["msdb"].routes.items()
        if asked.after[name].databases["msdb"].routes.get(route) != was
    }

    assert {change[what]["instance"] for what in ("loses", "other_path")} == {name for name, _ in changed}
    assert 2 == len(changed)
