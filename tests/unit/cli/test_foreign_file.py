"""What is no database of the broker: each command says so in one sentence, with its exit code, and leaves it alone."""

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command import run

HANDLE = str(uuid.UUID(int=7))
OURS = "no database of the broker. If a daemon runs on it, the file was deleted under it"
TEXT = "the file is not an SQLite database, or its beginning was overwritten"
ABSENT = "there is no database file"
COMMANDS = [
    "dialogs census -d FILE",
    "quarantine list -d FILE",
    f"quarantine show -d FILE {HANDLE}",
    f"quarantine resume -d FILE --yes {HANDLE}",
    "database keep -c CONFIG FILE",
    "database reset-identity --yes -c CONFIG FILE",
    "database error-conversations -c CONFIG FILE",
    "receive -d FILE --queue Q",
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Files that somebody may name by mistake."""
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as db:
        db.execute("CREATE TABLE orders (id)")
        db.commit()
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("this is a text, and no database at all\n" * 300)
    (tmp_path / "directory.db").mkdir()
    (tmp_path / "broker.toml").write_text(
        '[instance]\nstate_dir = "state"\n[endpoint]\nlisten = []\n'
        '[databases]\nforeign = { path = "../foreign.db" }\ntext = { path = "../text.db" }\n'
    )
    (tmp_path / "state").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [("foreign", 1, OURS), ("empty", 1, OURS), ("text", 1, TEXT), ("directory", 3, ABSENT), ("absent", 3, ABSENT)],
)
def test_what_is_no_database_is_told_in_one_sentence(
    directory: Path, command: str, name: str, code: int, sentence: str
) -> None:
    path = directory / f"{name}.db"
    before = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}

    done = run(*command.replace("FILE", str(path)).replace("CONFIG", str(directory / "broker.toml")).split())

    assert (code, 1, "") == (done.exit_code, len(done.stderr.splitlines()), done.stdout)
    assert (sentence in done.stderr, str(path) in done.stderr) == (True, True)
    assert before == {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def test_why_and_readers_tell_which_files_they_cannot_use(directory: Path) -> None:
    (directory / "foreign_app.py").write_text(
        "import broker\n@broker.reader('Q')\ndef handle(db, messages):\n    pass\n"
    )

    why = run("why", HANDLE, "-c", directory / "broker.toml")
    readers = run("run", "--directory", directory, "-d", directory / "text.db", "foreign_app")

    assert (3, True, True) == (why.exit_code, OURS in why.stderr, TEXT in why.stderr)
    assert (75, True) == (readers.exit_code, TEXT in readers.stderr)
