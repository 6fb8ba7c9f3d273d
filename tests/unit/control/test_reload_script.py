"""Which scripts of a configuration have changed since they were carried out."""

from __future__ import annotations

from pathlib import Path

from broker.catalog.catalog import MSDB
from broker.catalog.scripts import Scripts, look
from broker.config.load import load_settings
from broker.config.settings import Settings


def settings(directory: Path) -> Settings:
    path = directory / "broker.toml"
    path.write_text('[routes]\nfiles = ["*.sql"]\n[databases.a]\npath = "a.db"\nscripts = ["a/*.sql"]\n')
    return load_settings(path, environ={})


def test_only_databases_whose_files_are_others_have_theirs_carried_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.sql").write_text("one")
    (tmp_path / "1.sql").write_text("one")
    before = Scripts(look(settings(tmp_path)))
    assert ([], False) == (before.changed(before.done), before.are_others(before.done))

    (tmp_path / "a" / "1.sql").write_text("two")
    found = look(settings(tmp_path))

    assert (["a"], True) == (before.changed(found), before.are_others(found))


def test_the_order_of_files_counts_and_a_new_name_does(tmp_path: Path) -> None:
    (tmp_path / "2.sql").write_text("one")
    before = Scripts(look(settings(tmp_path)))

    (tmp_path / "2.sql").rename(tmp_path / "1.sql")

    assert [MSDB] == before.changed(look(settings(tmp_path)))


def test_scripts_that_are_no_more_are_noticed_and_nothing_is_carried_out(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("one")
    before = Scripts(look(settings(tmp_path)))

    (tmp_path / "1.sql").unlink()
    found = look(settings(tmp_path))

    assert ([], True) == (before.changed(found), before.are_others(found))


def test_what_a_file_is_touched_for_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("one")
    before = Scripts(look(settings(tmp_path)))

    (tmp_path / "1.sql").write_text("one")

    assert [] == before.changed(look(settings(tmp_path)))
