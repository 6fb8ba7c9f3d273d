"""A script that is named has to be there; a pattern may match nothing."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.scripts import is_pattern, named_scripts, no_script
from broker.errors import SettingError
from tests.support.nobody import as_nobody

KEY = ("routes", "files")


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/etc/broker/a.sql", False),
        ("/etc/broker/*.sql", True),
        ("/etc/broker/?.sql", True),
        ("/etc/broker/[ab].sql", True),
        (f"{glob.escape('/etc/we*ird [1]?')}/a.sql", False),
        (f"{glob.escape('/etc/we*ird [1]?')}/*.sql", True),
    ],
)
def test_pattern_is_told_from_a_path(path: str, *, is_one: bool) -> None:
    assert is_one == is_pattern(path)


def test_files_come_in_the_order_of_the_configuration(load: Any, tmp_path: Path) -> None:
    for name in ("b.sql", "a.sql", "c.txt"):
        (tmp_path / name).touch()
    settings = load("[routes]\nfiles = ['c.txt', '*.sql', 'none/*.sql']\n")

    found = named_scripts(settings, KEY, settings.routes.files)

    assert ["c.txt", "a.sql", "b.sql"] == [path.name for path in found]


@pytest.mark.parametrize("make", ["nothing", "directory"])
def test_path_without_a_file_is_refused_at_its_place(load: Any, tmp_path: Path, make: str) -> None:
    if make == "directory":
        (tmp_path / "b.sql").mkdir()
    settings = load("[routes]\nfiles = ['none/*.sql', 'b.sql']\n")

    with pytest.raises(SettingError) as caught:
        named_scripts(settings, KEY, settings.routes.files)

    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        'broker.toml:2:24: routes.files[1]: "b.sql" does not exist, or is no plain file; correct the path; it is'
        " relative to the configuration file's directory"
    )


def test_pattern_is_said_to_match_nothing(load: Any) -> None:
    settings = load("[routes]\nfiles = ['*.sql']\n")

    assert no_script(settings, (*KEY, 0), "/x/*.sql").problem == '"/x/*.sql" matches no file'


def test_pattern_into_a_directory_that_may_not_be_read_is_no_empty_one(load: Any, tmp_path: Path) -> None:
    (tmp_path / "routes.d").mkdir(mode=0)
    settings = load("[routes]\nfiles = ['routes.d/*.sql']\n")

    with as_nobody(tmp_path), pytest.raises(SettingError) as caught:
        named_scripts(settings, KEY, settings.routes.files)

    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        'broker.toml:2:10: routes.files[0]: "routes.d/*.sql": the directory "routes.d" may not be looked into; let the'
        " user that runs the instance read and enter it, and read the files in it"
    )
