"""Names that differ in case, within one instance and between several."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.catalog.dry_run import Rehearsal, rehearse
from broker.catalog.lint import differing_names
from broker.config.load import load_settings

NEVER = "differ only in case, so they are two services and never match each other"


def instance(directory: Path, name: str, msdb: str = "", script: str = "") -> Rehearsal:
    home = directory / name
    home.mkdir()
    (home / "msdb.sql").write_text(msdb)
    (home / "db.sql").write_text(script)
    (home / "broker.toml").write_text(
        f"[instance]\nname = '{name}'\nstate_dir = '.'\n[routes]\nfiles = ['msdb.sql']\n"
        "[databases.db]\npath = 'a.db'\nscripts = ['db.sql']\n"
    )
    return rehearse(load_settings(home / "broker.toml", environ={}), now=datetime(2025, 3, 1, 12, tzinfo=UTC))


def told(directory: Path, *instances: Rehearsal) -> list[str]:
    lines = [str(one).splitlines()[0].replace(f"{directory}/", "") for one in differing_names(instances)]
    return [line.removesuffix("; write both alike, unless two services are meant") for line in lines]


def service(*names: str) -> str:
    return "CREATE QUEUE Q;\n" + "".join(f"CREATE SERVICE [{name}] ON QUEUE Q;\n" for name in names)


def route(name: str, to: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = 'tcp://x';\n"


@pytest.mark.parametrize(
    ("msdb", "script", "expected"),
    [
        (route("r", "orders"), service("Orders"), "msdb.sql:1:14: {code}'orders' here and 'Orders' at a/db.sql:2:16"),
        ("", service("S", "s"), "db.sql:3:16: {code}'s' here and 'S' at a/db.sql:2:16"),
        (
            "",
            route("r", "T") + route("q", "t") + route("p", "t"),
            "db.sql:2:14: {code}'t' here and 'T' at a/db.sql:1:14",
        ),
    ],
)
def test_within_one_instance_a_name_is_told_once(tmp_path: Path, msdb: str, script: str, expected: str) -> None:
    found = told(tmp_path, instance(tmp_path, "a", msdb, script))

    assert [f"a/{expected.format(code='names-differ-in-case: ')} {NEVER}"] == found


def test_between_instances_a_name_is_told_on_each_that_has_it_with_both_places(tmp_path: Path) -> None:
    """The hosted spelling is right, wherever it is given."""
    a = instance(tmp_path, "a", script=service("I"))
    g = instance(tmp_path, "g", msdb=route("i", "i"))
    h = instance(tmp_path, "h", msdb="-- one\n" + route("i", "i"))

    rest = f"names-differ-in-case: 'i' here and 'I' at a/db.sql:2:16 {NEVER}"

    assert [f"g/msdb.sql:1:14: {rest}", f"h/msdb.sql:2:14: {rest}"] == told(tmp_path, g, a, h)


def test_names_written_alike_are_not_told(tmp_path: Path) -> None:
    a = instance(tmp_path, "a", script=service("I"))
    g = instance(tmp_path, "g", msdb=route("i", "I") + route("j", "J"))

    assert [] == told(tmp_path, a, g)


def test_a_route_that_has_expired_is_not_told(tmp_path: Path) -> None:
    a = instance(tmp_path, "a", msdb=route("i", "i"), script=service("I"))
    old = a.msdb.routes["i"]
    a.msdb.routes["i"] = replace(old, lifetime=a.now)

    assert [] == told(tmp_path, a)


def test_a_name_that_was_in_the_file_stands_where_the_file_is_named(tmp_path: Path) -> None:
    first = instance(tmp_path, "a", script=service("I", "i"))
    db = first.databases["db"]
    db.service_statements.clear()

    (concern,) = differing_names([first])

    assert concern.span is not None
    assert (tmp_path / "a" / "broker.toml", 7) == (Path(concern.span.source), concern.span.line)
