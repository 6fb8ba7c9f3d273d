"""Names of next hops that do not resolve: told once each, within a bound, and never an error."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.dry_run import Rehearsal, rehearse
from broker.catalog.fleet import NAMES_MAX, named_hosts, unresolved

SCRIPT = """\
CREATE ROUTE a WITH SERVICE_NAME = 'A', ADDRESS = 'tcp://good.example';
CREATE ROUTE b WITH SERVICE_NAME = 'B', BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11', ADDRESS = 'tcp://bad.example:4023',
    MIRROR_ADDRESS = 'tcp://worse.example';
CREATE ROUTE c WITH SERVICE_NAME = 'C', ADDRESS = 'tcp://bad.example';
CREATE ROUTE d WITH SERVICE_NAME = 'D', ADDRESS = 'tcp://10.0.0.1';
CREATE ROUTE e WITH SERVICE_NAME = 'E', ADDRESS = 'tcp://[::1]:4022';
CREATE ROUTE f WITH SERVICE_NAME = 'F', ADDRESS = 'LOCAL';
"""


@pytest.fixture
def rehearsed(load: Any, tmp_path: Path) -> Any:
    def rehearsing(script: str) -> Rehearsal:
        (tmp_path / "a.sql").write_text(script)
        settings = load("[instance]\nstate_dir = 'state'\n[routes]\nfiles = ['a.sql']\n")
        return rehearse(settings, now=datetime.now(UTC))

    return rehearsing


def only_good(host: str) -> None:
    if host != "good.example":
        raise OSError(-2, "Name or service not known")


def test_names_are_those_of_live_routes_once_each(rehearsed: Any) -> None:
    expected = {"good.example": ("msdb", "a"), "bad.example": ("msdb", "b"), "worse.example": ("msdb", "b")}

    assert expected == named_hosts(rehearsed(SCRIPT))


def test_name_that_does_not_resolve_is_told_at_its_first_route(rehearsed: Any) -> None:
    found = unresolved(rehearsed(SCRIPT), resolve=only_good)

    assert [(2, "name-unresolved"), (2, "name-unresolved")] == [(one.span.line, one.lint) for one in found if one.span]
    assert "the name 'bad.example' of its address does not resolve here: Name or service not known" == found[0].problem


def test_name_that_no_resolver_takes_is_told(rehearsed: Any) -> None:
    def refuse(host: str) -> None:
        raise UnicodeError("label too long")

    assert "label too long" in unresolved(rehearsed(SCRIPT), resolve=refuse)[0].problem


def test_resolver_that_does_not_answer_holds_nobody_up(rehearsed: Any) -> None:
    release = threading.Event()

    found = unresolved(rehearsed(SCRIPT), resolve=lambda _: release.wait(60), seconds=0.05)

    release.set()
    assert [] == found


def test_number_of_names_is_bounded(rehearsed: Any) -> None:
    asked: list[str] = []
    script = "".join(
        f"CREATE ROUTE r{n} WITH SERVICE_NAME = 'S{n}', ADDRESS = 'tcp://h{n}';\n" for n in range(NAMES_MAX + 1)
    )

    unresolved(rehearsed(script), resolve=asked.append)

    assert NAMES_MAX == len(asked)


def test_nothing_to_ask_asks_nobody(rehearsed: Any) -> None:
    assert [] == unresolved(rehearsed(""), resolve=only_good)
