"""The scripts of a configuration: which files they are, running them, and which have changed."""

import glob
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.catalog import scripts as declared
from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.scripts import closed_directory, differing, look, named_scripts, run_declared, script_files
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import SettingError, StatementError
from broker.store.sqlite import database
from tests.support.nobody import as_nobody


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = database.open_store(tmp_path / "msdb.db")
    yield db
    db.close()


@pytest.fixture
def catalog(db: sqlite3.Connection) -> Catalog:
    return Catalog({MSDB: Database(MSDB, bytes(16), None, lambda: nullcontext(db))}, lambda: None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"CREATE ROUTE r WITH\nADDRESS = 'x';", "Msg 9744, Level 16, {}:2:11\n"),
        (b"DROP ROUTE x;\nDROP ROUTE \xe4;", "Msg 102, Level 16, {}:2:12\nthe byte 0xe4 is not UTF-8"),
        (None, "{}: cannot be read: Is a directory; make it readable for the instance"),
    ],
)
async def test_what_is_wrong_with_a_file_names_it(
    catalog: Catalog, tmp_path: Path, content: bytes | None, told: str
) -> None:
    path = tmp_path / "a.sql"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)

    with pytest.raises((StatementError, SettingError)) as caught:
        await run_declared(catalog, path, MSDB)

    assert str(caught.value).startswith(told.format(path))


async def test_long_script_is_told_of(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "TELL_SECONDS", 0.0)
    path = tmp_path / "a.sql"
    path.write_text("".join(f"CREATE ROUTE r{number} WITH ADDRESS = 'LOCAL';" for number in range(2000)))

    with capture_logs() as logs:
        await run_declared(catalog, path, MSDB)

    told = [entry for entry in logs if entry["event"] == "script running"]
    assert told
    assert all(entry["script"] == str(path) and 0 <= entry["percent"] <= 100 for entry in told)


# --- files ---


@pytest.mark.parametrize("make", ["nothing", "directory"])
def test_path_without_a_file_is_refused_at_its_place(load: Any, tmp_path: Path, make: str) -> None:
    if make == "directory":
        (tmp_path / "b.sql").mkdir()
    settings = load("[routes]\nfiles = ['none/*.sql', 'b.sql']\n")

    with pytest.raises(SettingError, match=r"correct the path; it is relative to the configuration file's") as caught:
        named_scripts(settings, MSDB)

    assert ("routes.files[1]", 24) == (caught.value.key, caught.value.span and caught.value.span.column)


def test_pattern_into_a_directory_that_may_not_be_read_is_no_empty_one(load: Any, tmp_path: Path) -> None:
    (tmp_path / "routes.d").mkdir(mode=0)
    settings = load("[routes]\nfiles = ['routes.d/*.sql']\n")

    with (
        as_nobody(tmp_path),
        pytest.raises(SettingError, match=r'routes\.d" may not be looked into; let the') as caught,
    ):
        named_scripts(settings, MSDB)

    assert "routes.files[0]" == caught.value.key


# --- when they have changed ---


def settings(directory: Path) -> Settings:
    path = directory / "broker.toml"
    path.write_text('[routes]\nfiles = ["*.sql"]\n[databases.a]\npath = "a.db"\nscripts = ["a/*.sql"]\n')
    return load_settings(path, environ={})


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda at: (at / "a" / "1.sql").write_text("two"), ["a"]),
        (lambda at: (at / "1.sql").rename(at / "0.sql"), [MSDB]),  # their order is that of their names
        (lambda at: (at / "1.sql").unlink(), [MSDB]),
        (lambda at: None, []),
    ],
)
def test_only_databases_whose_files_are_others_have_theirs_carried_out(
    tmp_path: Path, change: Callable[[Path], object], changed: list[str]
) -> None:
    (tmp_path / "a").mkdir()
    for name in ("1.sql", "a/1.sql"):
        (tmp_path / name).write_text("one")
    before = look(settings(tmp_path))

    change(tmp_path)

    assert changed == differing(look(settings(tmp_path)), before)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.sql", "a.sql", "c.txt", "d.sql/x.sql", "deep/er/y.sql"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["*.sql"], ["a.sql", "b.sql"]),  # d.sql is a directory
        (["b.sql", "*.sql"], ["b.sql", "a.sql"]),
        (["**/*.sql"], ["a.sql", "b.sql", "d.sql/x.sql", "deep/er/y.sql"]),
        (["[ab].sql", "?.txt"], ["a.sql", "b.sql", "c.txt"]),
        (["none.sql", "no/*.sql"], []),
        ([], []),
    ],
)
def test_files_come_in_the_order_of_patterns_and_names(tree: Path, patterns: list[str], names: list[str]) -> None:
    found = script_files(f"{tree}/{pattern}" for pattern in patterns)

    assert [tree / name for name in names] == found


@pytest.mark.parametrize(
    ("closed", "mode", "pattern"),
    [
        ("deep", 0o000, "deep/*.sql"),
        ("deep", 0o444, "deep/*.sql"),
        ("deep", 0o111, "deep/*.sql"),
        ("deep", 0o000, "deep/er/*.sql"),
        ("deep/er", 0o000, "*/er/*.sql"),
        ("deep/er", 0o000, "**/*.sql"),
        ("we*ird", 0o000, f"{glob.escape('we*ird')}/in/*.sql"),
    ],
)
def test_directory_that_may_not_be_looked_into_is_found(tree: Path, closed: str, mode: int, pattern: str) -> None:
    (tree / closed).mkdir(exist_ok=True)
    (tree / closed).chmod(mode)

    with as_nobody(tree):
        found = closed_directory(f"{tree}/{pattern}")

    assert found is not None
    assert found.startswith(str(tree / closed))


@pytest.mark.parametrize("pattern", ["*.sql", "none/*.sql", "a.sql/*.sql", "**/*.sql", "a.sql"])
def test_directory_that_is_not_there_or_empty_is_not_closed(tree: Path, pattern: str) -> None:
    assert closed_directory(f"{tree}/{pattern}") is None
