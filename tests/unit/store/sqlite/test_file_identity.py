"""A copied file does not pass for the original, a moved one does."""

import json
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.sqlite import file_identity as module
from broker.store.sqlite.database import open_store
from broker.store.sqlite.file_identity import (
    RECORD,
    accept_file,
    accept_replacement,
    compare_file,
    instances_at,
    note_start,
    note_stop,
    replaced_at,
)
from broker.store.sqlite.role_file import PrincipalRecord, role_path, write_principal
from broker.store.sqlite.transaction import writing

OFTEN = 10


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(path)) as db:
        yield db


def run(path: Path, state_dir: Path) -> str:
    """What keeps a daemon from running on the file; when nothing does, it starts and stops."""
    with opened(path) as db:
        problem = compare_file(db, path, state_dir).problem
        if not problem:
            note_start(db, path, state_dir)
    if not problem:
        note_stop(path, state_dir, 0)
    return problem


def starts(path: Path) -> int:
    with opened(path) as db:
        return int(db.execute("SELECT starts FROM broker_database").fetchone()[0])


# --- what passes --------------------------------------------------------------------------------------------


def test_a_kill_behind_the_commit_passes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is behind the file then, never before it."""
    run(path, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_write", killed)
    with opened(path) as db, pytest.raises(KeyboardInterrupt):
        note_start(db, path, tmp_path)
    monkeypatch.undo()

    assert "" == run(path, tmp_path)


# --- what does not ------------------------------------------------------------------------------------------


def test_a_copy_does_not_pass_wherever_it_is(path: Path, tmp_path: Path) -> None:
    run(path, tmp_path)
    copy, there = tmp_path / "copy.db", tmp_path / "another machine"
    shutil.copy(path, copy)
    there.mkdir()

    problem = run(copy, tmp_path)

    assert f"error 9772: the file is a copy: it has number {copy.stat().st_ino} (inode)" in problem
    assert f"had {path.stat().st_ino} at the last start of a daemon" in problem
    assert f"last used the original at {path}" in problem
    assert "the file is a copy" in run(copy, there)
    assert "last used" not in run(copy, there)
    assert "" == run(path, tmp_path), "and the original goes on"
    shutil.copy(path, tmp_path / "backup")
    (tmp_path / "backup").replace(path)
    problem = run(path, tmp_path)
    assert problem.endswith("; it was put in the place of the original, as a restored backup is")
    assert ("error 9772: the file is a copy" in problem, "last used" in problem) == (True, False)


@pytest.mark.parametrize("has_stopped", [True, False])
def test_an_older_copy_in_the_place_of_the_original_does_not_pass(
    path: Path, tmp_path: Path, *, has_stopped: bool
) -> None:
    """A copy made while the daemon ran is older than its stop."""
    run(path, tmp_path)
    backup = tmp_path / "backup"
    with opened(path) as db:
        if not has_stopped:
            note_start(db, path, tmp_path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(path, backup)
    if has_stopped:
        run(path, tmp_path)
    else:
        note_stop(path, tmp_path, 0)
    number = path.stat().st_ino

    shutil.copyfile(backup, path)

    assert number == path.stat().st_ino
    assert f"knows of {2 if has_stopped else 3} starts and stops of daemons, the instance of 4" in run(path, tmp_path)


# --- keeping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_copy", [True, False])
def test_what_is_kept_passes(path: Path, tmp_path: Path, *, is_copy: bool) -> None:
    run(path, tmp_path)
    backup = tmp_path / "backup"
    shutil.copy(path, backup)
    run(path, tmp_path)
    if is_copy:
        path.unlink()
    shutil.copyfile(backup, path)
    refused = run(path, tmp_path)

    for _ in range(2):  # to keep what passes changes nothing
        with opened(path) as db, writing(db):
            accept_file(db, path, tmp_path)

    assert refused
    assert "" == run(path, tmp_path)
    assert 6 == starts(path), "it goes on after the count that was seen"


# --- stopping, and the record -------------------------------------------------------------------------------


def test_a_stop_leaves_a_file_alone_that_has_taken_the_place(path: Path, tmp_path: Path) -> None:
    """Or that another daemon has taken over; and it makes none anew."""
    run(path, tmp_path)
    shutil.copy(path, tmp_path / "other")
    (tmp_path / "other").rename(path)
    note_stop(path, tmp_path, 0)
    assert 2 == starts(path)

    with opened(path) as db:
        old = note_start(db, path, tmp_path, least_epoch=0)
        note_start(db, path, tmp_path, least_epoch=0)
    note_stop(path, tmp_path, old)
    assert 4 == starts(path)

    path.unlink()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        note_stop(path, tmp_path, 0)
    assert not path.exists()


DAMAGED = ["", "[]", "{", "\xff", '{"a": 1}', '{"a": {"starts": "x", "path": ""}}', '{"a": {"starts": 1e999}}']


@pytest.mark.parametrize("text", [*DAMAGED, pytest.param("[" * 99_999, id="nested")])
def test_a_record_that_was_damaged_says_what_to_do(path: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_bytes(text.encode("latin-1"))

    with pytest.raises(StoreUnavailableError, match=r"databases\.json: it does not hold .* remove it") as caught:
        run(path, tmp_path)

    assert str(tmp_path / RECORD) == caught.value.path


@pytest.mark.parametrize("what", [RECORD, f"{RECORD}.lock"])
def test_a_record_that_cannot_be_used_is_told(path: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / what).mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory"):
        run(path, tmp_path)


_NOTE_OFTEN = """
import sys
from pathlib import Path
from broker.store.sqlite.database import open_store
from broker.store.sqlite.file_identity import note_start
path, state_dir = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    note_start(open_store(path), path, state_dir)
"""


def note_often(state_dir: Path, name: str) -> None:
    """One more start after the other of a database of its own, as each keeper of a role notes them."""
    with opened(state_dir / name) as db:
        for _ in range(OFTEN):
            note_start(db, state_dir / name, state_dir)


def test_what_several_threads_and_processes_note_at_once_is_all_there(tmp_path: Path) -> None:
    names = [f"{number}.db" for number in range(8)]
    processes = [
        subprocess.Popen([sys.executable, "-c", _NOTE_OFTEN, tmp_path / name, tmp_path, str(OFTEN)])
        for name in names[:2]
    ]
    with ThreadPoolExecutor(len(names)) as pool:
        for done in [pool.submit(note_often, tmp_path, name) for name in names[2:]]:
            done.result()
    ended = [process.wait() for process in processes]
    record = json.loads((tmp_path / RECORD).read_text())

    assert [0, 0] == ended
    assert {str(tmp_path / name): OFTEN for name in names} == {one["path"]: one["starts"] for one in record.values()}
    assert not list(tmp_path.glob("*.new"))


def test_what_a_path_held_before_is_known_until_a_daemon_has_started_on_the_new_file(
    path: Path, tmp_path: Path
) -> None:
    run(path, tmp_path)
    run(tmp_path / "billing.db", tmp_path)
    lost = instances_at(path, tmp_path)
    path.unlink()
    with opened(path) as db:
        sighting = compare_file(db, path, tmp_path)

    assert (1, lost) == (len(lost), sighting.others)
    assert ("", False) == (sighting.problem, sighting.is_known)
    assert f"of broker instance {lost[0].upper()}, which is no longer in it" in sighting.lost
    assert "" == run(path, tmp_path)
    with opened(path) as db:
        sighting = compare_file(db, path, tmp_path)
    assert ("", lost, True) == (sighting.lost, sighting.others, sighting.is_known)


def test_file_in_place_of_a_lost_one_is_told_until_it_is_accepted(path: Path, tmp_path: Path) -> None:
    """That of another file stays as it is; accepting twice changes nothing."""
    paths = [path, tmp_path / "billing.db"]
    for one in paths:
        run(one, tmp_path)
        one.unlink()
        run(one, tmp_path)
    before = [bool(replaced_at(one, tmp_path)) for one in paths]
    accepted = [accept_replacement(path, tmp_path) for _ in range(2)]

    assert ([True, True], [True, False]) == (before, accepted)
    assert [False, True] == [bool(replaced_at(one, tmp_path)) for one in paths]
    assert not accept_replacement(path, tmp_path / "elsewhere")


def test_second_loss_names_the_database_that_was_accepted_and_none_before_it(path: Path, tmp_path: Path) -> None:
    for _ in range(2):
        run(path, tmp_path)
        accept_replacement(path, tmp_path)
        (last,) = instances_at(path, tmp_path)
        path.unlink()
    run(path, tmp_path)

    assert f"of broker instance {last.upper()}, which" in replaced_at(path, tmp_path)


# --- the epoch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, 6, 7])
def test_a_takeover_raises_the_epoch_and_a_start_leaves_it(path: Path, tmp_path: Path, told: int | None) -> None:
    """Beyond the epoch that is told beside the file; one that was damaged keeps nobody away."""
    first = 1 if told is None else told + 1
    if told is None:
        role_path(path).write_text("{", encoding="utf-8")
    else:
        tell(path, told)
    with opened(path) as db:
        assert "" == compare_file(db, path, tmp_path).problem or told is not None
        epochs = [note_start(db, path, tmp_path, least_epoch=least) for least in (0, 0, None, 20, 3)]

    assert [first, first + 1, first + 1, 20, 21] == epochs
    assert 5 == starts(path)


def tell(path: Path, epoch: int) -> None:
    write_principal(path, PrincipalRecord(uuid.UUID(bytes=b"i" * 16), epoch, "second", 1.0))


def test_a_file_with_a_lower_epoch_than_is_told_does_not_pass(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with opened(path) as db:
        note_start(db, path, tmp_path, least_epoch=2)
        note_start(db, path, other, least_epoch=3)
        passes = compare_file(db, path, tmp_path, reported_epoch=3).problem
        by_memory = compare_file(db, path, tmp_path, reported_epoch=4).problem
        tell(path, 9)
        beside = compare_file(db, path, tmp_path).problem

    assert "" == passes, "another instance has taken it over"
    assert "its epoch is 3, and it was taken over in epoch 4, so an older copy was put back" in by_memory
    assert "its epoch is 3, and it was taken over in epoch 9, so an older copy was put back" in beside


def test_a_backup_that_is_kept_goes_on_behind_every_epoch_that_was_known(path: Path, tmp_path: Path) -> None:
    """Those who send believe the highest epoch that they have heard of."""
    run(path, tmp_path)
    shutil.copy(path, tmp_path / "backup")
    with opened(path) as db:
        note_start(db, path, tmp_path, least_epoch=9)
    shutil.copyfile(tmp_path / "backup", path)

    for told in (None, 12):  # the epoch of its own record alone; and that of another instance
        if told is not None:
            tell(path, told)
        refused = run(path, tmp_path)
        with opened(path) as db:
            with writing(db):
                accept_file(db, path, tmp_path)
            passes = compare_file(db, path, tmp_path).problem
            epoch = note_start(db, path, tmp_path, least_epoch=0)

        assert ("", (told or 9) + 1) == (passes, epoch)
        assert "an older copy was put back" in refused
