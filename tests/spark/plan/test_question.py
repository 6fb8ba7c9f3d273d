"""A question read from files: one script or a directory of them, whole or carried out; and what makes no sense."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from broker.errors import StatementError
from broker.pipeline.plan.question import PlanQuestionError, Question, read_question
from broker.routing.address import NetworkAddress

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROUTE = "CREATE ROUTE {} WITH ADDRESS = 'LOCAL';"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Scripts of a and b, what would hold for a, a change of b; and a directory without any."""
    for name, text in {
        "was/a.sql": ROUTE.format("x"),
        "was/b.sql": ROUTE.format("y"),
        "will/a.sql": ROUTE.format("z"),
        "change/b.sql": "DROP ROUTE y",
        "more/c.sql": "",
        "bad/a.sql": "\nCREATE ROUTE",
        "none/readme": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def ask(files: Path, before: str, **told: Any) -> Question:
    paths = {name: files / told.pop(name) for name in ("after", "change") if name in told}
    return read_question(before=files / before, now=NOW, **paths, **told)


def routes(question: Question) -> dict[str, tuple[list[str], list[str]]]:
    """Those of msdb, before and after."""
    sides = (question.before, question.after)
    was, will = ({name: sorted(one.databases["msdb"].routes) for name, one in side.items()} for side in sides)
    return {name: (was[name], will[name]) for name in was}


def test_a_directory_tells_of_several_and_who_is_not_named_after_stays(files: Path) -> None:
    kept = ["AutoCreatedLocal", "y"]

    assert {"a": (["AutoCreatedLocal", "x"], ["AutoCreatedLocal", "z"]), "b": (kept, kept)} == routes(
        ask(files, "was", after="will")
    )


def test_a_change_is_carried_out_on_what_holds(files: Path) -> None:
    assert (["AutoCreatedLocal", "y"], ["AutoCreatedLocal"]) == routes(ask(files, "was", change="change"))["b"]


def test_a_change_of_one_is_carried_out_on_scripts_of_several(files: Path) -> None:
    found = routes(ask(files, "was", change="change/b.sql", instance="b"))

    kept = ["AutoCreatedLocal", "x"]
    assert {"a": (kept, kept), "b": (["AutoCreatedLocal", "y"], ["AutoCreatedLocal"])} == found


def test_a_file_tells_of_one(files: Path) -> None:
    question = ask(files, "was/a.sql", after="will/a.sql", instance="gw")

    assert {"gw": (["AutoCreatedLocal", "x"], ["AutoCreatedLocal", "z"])} == routes(question)


def test_addresses_and_databases_are_read(files: Path) -> None:
    guid = UUID(int=7)

    question = ask(files, "was", after="will", addresses=["TCP://A=a", "tcp://b:1=b"], databases=[f"orders={guid}"])

    assert {NetworkAddress("a"): "a", NetworkAddress("b", 1): "b"} == question.addresses
    assert ({"orders": guid}, NOW) == (question.databases, question.now)


@pytest.mark.parametrize(
    ("before", "told", "said"),
    [
        ("was", {}, "--after and --change"),
        ("was", {"after": "will", "change": "change"}, "--after and --change"),
        ("nowhere", {"after": "will"}, "there is no"),
        ("none", {"after": "will"}, "holds no script"),
        ("was/a.sql", {"after": "will/a.sql"}, "--instance"),
        ("was", {"after": "will", "instance": "a"}, "leave out --instance"),
        ("was", {"after": "more"}, "the instance 'c'"),
        ("was", {"change": "change/b.sql"}, "--instance"),
        ("was", {"change": "change/b.sql", "instance": "bb"}, "is it 'b'?"),
        ("was", {"after": "will", "addresses": ["http://a=a"]}, "--address http://a=a"),
        ("was", {"after": "will", "addresses": ["LOCAL=a"]}, "names no address"),
        ("was", {"after": "will", "addresses": ["tcp://a"]}, "tcp://host:port=instance"),
        ("was", {"after": "will", "databases": ["orders=1"]}, "NAME=GUID"),
    ],
)
def test_what_makes_no_sense_is_told_with_what_to_do(files: Path, before: str, told: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanQuestionError) as caught:
        ask(files, before, **told)

    assert said in str(caught.value)


def test_a_mistake_in_a_script_is_told_with_its_place(files: Path) -> None:
    with pytest.raises(StatementError) as caught:
        ask(files, "was", after="bad")

    assert caught.value.span is not None
    assert (str(files / "bad/a.sql"), 2) == (caught.value.span.source, caught.value.span.line)
