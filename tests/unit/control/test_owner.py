"""What is a running instance's own, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.catalog.database_files import NOBODY, UNASKED, owner_from
from broker.config.load import in_force
from broker.config.values import parse_listen

TEXT = """\
[instance]
state_dir = "state"
[endpoint]
listen = ["127.0.0.1:4022", "0.0.0.0:4023"]
[admin]
listen = "127.0.0.1:9422"
[databases."a b"]
path = "a.db"
"""


@pytest.fixture
def values(load: Any) -> dict[str, object]:
    return {one.key: one.value for one in in_force(load(TEXT))}


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("127.0.0.1:4022", True),
        ("127.0.0.1:4023", True),  # it has all interfaces
        ("127.0.0.1:9422", True),
        ("127.0.0.1:9423", True),  # the default of observe.listen
        ("127.0.0.1:4024", False),
        ("127.0.0.2:4022", False),
        ("127.0.0.1:0", False),
    ],
)
def test_ports_of_the_instance_are_its_own(
    values: dict[str, object], tmp_path: Path, address: str, *, is_own: bool
) -> None:
    assert is_own == owner_from(values, state_dir=tmp_path / "state").has_port(parse_listen(address))


@pytest.mark.parametrize(("name", "is_own"), [("msdb.db", True), ("a.db", True), ("b.db", False)])
def test_files_of_the_instance_are_its_own(
    values: dict[str, object], tmp_path: Path, name: str, *, is_own: bool
) -> None:
    owner = owner_from(values, state_dir=tmp_path / "state")

    assert is_own == owner.has_file(tmp_path / "state" / name)


def test_instance_of_another_state_directory_owns_nothing_here(values: dict[str, object], tmp_path: Path) -> None:
    assert NOBODY == owner_from(values, state_dir=tmp_path / "other")


def test_nobody_owns_nothing(tmp_path: Path) -> None:
    assert (False, False) == (NOBODY.has_port(parse_listen("a:1")), NOBODY.has_file(tmp_path / "msdb.db"))


def test_instance_is_known_by_whichever_way_its_directory_is_reached(values: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")

    owners = [owner_from(values, state_dir=tmp_path / way) for way in ("link", "state/../state", "none/../state")]

    assert [True] * 3 == [owner.has_file(tmp_path / "link" / "a.db") for owner in owners]
    assert [True] * 3 == [owner.has_file(tmp_path / "state" / "msdb.db") for owner in owners]


def test_when_nobody_was_asked_nothing_is_said_to_be_taken_by_others(tmp_path: Path) -> None:
    assert (True, True) == (UNASKED.has_port(parse_listen("a:1")), UNASKED.has_file(tmp_path / "msdb.db"))
