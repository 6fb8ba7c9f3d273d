import errno
import os
import re
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.admin.audit import LINES_MAX, REFUSALS_BURST, Audit, AuditEntry, AuditUnavailableError, problem_in_short
from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole
from broker.daemon.instance import serve
from broker.ddl.parser import parse_script
from broker.ddl.statements import Statement
from broker.errors import DdlSyntaxError, StoreUnavailableError, UnknownNameError
from tests.support.admin import audit_lines

ALICE = Caller("user:alice", "socket, process 7 of user 1000", AdminRole.OPERATOR)


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path / "audit.jsonl")


def statement(text: str) -> Statement:
    [one] = parse_script(text)
    return one


def test_a_line_has_who_from_where_and_the_statement(audit: Audit) -> None:
    entry = AuditEntry(audit, ALICE, "POST /v1/sql", "msdb")
    entry.note("orders", statement("alter queue q with status = off"))

    entry.seal(1)

    [line] = audit_lines(audit.path)
    assert line.pop("at").endswith("+00:00")
    assert 16 == len(line.pop("request"))
    who = {"who": "user:alice", "role": "operator", "from": "socket, process 7 of user 1000"}
    change = {"operation": "ALTER QUEUE", "database": "orders", "statement": "ALTER QUEUE [q] WITH STATUS = OFF;"}
    assert who | change | {"outcome": "done"} == line


def test_of_a_long_script_the_first_changes_are_written_and_how_many_more(audit: Audit) -> None:
    entry, other = (AuditEntry(audit, ALICE, "POST /v1/sql") for _ in range(2))
    for _ in range(LINES_MAX + 7):
        entry.note("orders", statement("DROP ROUTE a"))

    entry.seal(LINES_MAX + 7)
    other.seal_done("instance")

    *_, more, last = lines = audit_lines(audit.path)
    assert ("POST /v1/sql", "7 more statements") == (more["operation"], more["target"])
    assert {more["request"]: LINES_MAX + 1, last["request"]: 1} == Counter(line["request"] for line in lines)


def test_what_fails_after_it_was_sealed_is_told_by_a_second_line(audit: Audit) -> None:
    entry = AuditEntry(audit, ALICE, "POST /v1/sql")
    entry.note("orders", statement("DROP ROUTE a"))
    entry.seal(1)

    entry.end_badly(UnknownNameError(1, "the disk is full"))

    done, failed = audit_lines(audit.path)
    assert ("done", "failed", done["request"]) == (done["outcome"], failed["outcome"], failed["request"])


def test_many_refusals_do_not_push_the_changes_out(audit: Audit) -> None:
    for _ in range(REFUSALS_BURST + 500):
        AuditEntry(audit, ALICE, "POST /v1/sql").end_badly(UnknownNameError(1, "no"))

    assert REFUSALS_BURST <= len(audit_lines(audit.path)) <= REFUSALS_BURST + 10


def test_text_that_is_no_statement_is_not_repeated() -> None:
    """Somebody may have pasted anything there."""
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script("CREATE ROUTE r;\n broker_secret")

    assert re.fullmatch(r"Msg 102: not understood, line \d+, column \d+", problem_in_short(caught.value))


def test_what_only_writing_shows_is_told_until_a_change_is_written(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = AuditEntry(audit, ALICE, "POST /v1/sql")

    def fail(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(AuditUnavailableError):
            entry.seal_done("instance")
    told = audit.problem()
    entry.seal_done("instance")

    assert "the last change could not be written down, and was not made: Disk quota exceeded" in told
    assert "" == audit.problem()


def test_lines_are_added_at_the_end_of_a_file_for_its_owner_which_may_be_renamed(audit: Audit) -> None:
    """As logrotate does."""
    audit.append([{"a": 1}])
    audit.append([{"a": 2}, {"name": 'a\nb\u2028\x00"ü'}])

    assert [{"a": 1}, {"a": 2}, {"name": 'a\nb\u2028\x00"ü'}] == audit_lines(audit.path)
    assert 3 == audit.path.read_bytes().count(b"\n")
    assert 0o600 == stat.S_IMODE(audit.path.stat().st_mode)
    old = audit.path.rename(audit.path.with_suffix(".1"))
    audit.append([{"a": 3}])
    assert (3, [{"a": 3}]) == (len(audit_lines(old)), audit_lines(audit.path))


def test_of_a_full_disk_nothing_is_half_written(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    audit.append([{"a": 1}])
    write = os.write
    left = iter((3, 0))

    def full(descriptor: int, data: bytes) -> int:
        if not (room := next(left)):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:room])

    monkeypatch.setattr("os.write", full)
    with pytest.raises(AuditUnavailableError, match="No space left on device; nothing is changed as long as"):
        audit.append([{"a": 2}])

    assert [{"a": 1}] == audit_lines(audit.path)


def test_writers_at_once_lose_nothing(audit: Audit) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: Audit(audit.path).append([{"number": number}]), range(200)))

    assert list(range(200)) == sorted(line["number"] for line in audit_lines(audit.path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that others cannot write")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(audit: Audit) -> None:
    """A command as root beside an instance that runs as another user."""
    os.chown(audit.path.parent, 4711, 4712)

    audit.append([{"number": 1}])

    assert (4711, 4712) == (audit.path.stat().st_uid, audit.path.stat().st_gid)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda _: None, ""),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.symlink_to("elsewhere"), "Too many levels of symbolic links"),
        (os.mkfifo, "No such device or address"),
        (lambda path: path.parent.rmdir(), "there is no directory"),
    ],
    ids=["none", "directory", "link", "pipe", "nowhere"],
)
def test_what_keeps_lines_from_being_added_is_known_without_making_the_file(
    tmp_path: Path, make: Any, problem: str, logs: list[Any]
) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    path.parent.mkdir()
    make(path)
    audit = Audit(path)

    found = audit.problem()

    assert (bool(problem), False) == (bool(found), path.is_file())
    assert problem in found
    if problem:
        entry = AuditEntry(audit, ALICE, "POST /v1/sql")
        with pytest.raises(AuditUnavailableError, match="nothing is changed as long as no change can be written down"):
            entry.seal_done("instance")
        entry.end_badly(UnknownNameError(1, "no"))
        assert ["audit unavailable"] == [line["event"] for line in logs]


@pytest.fixture
def scripted(configuration: Path) -> Path:
    """An instance with a script."""
    text = configuration.read_text()
    configuration.write_text(text.replace('path = "orders.db"', 'path = "orders.db"\nscripts = ["a.sql"]'))
    (configuration.parent / "a.sql").write_text("CREATE QUEUE q; CREATE SERVICE s ON QUEUE q;")
    return configuration


async def test_each_run_of_a_script_of_the_configuration_is_one_line(scripted: Path) -> None:
    async with serve(scripted):
        pass

    [line] = audit_lines(scripted.parent / "audit.jsonl")
    assert ("configuration", f"script {scripted.parent / 'a.sql'}") == (line["who"], line["from"])
    expected = {"operation": "script", "database": "orders", "target": "2 statements", "outcome": "done"}
    assert expected.items() <= line.items()


async def test_an_instance_that_cannot_record_its_scripts_does_not_start(scripted: Path) -> None:
    (scripted.parent / "audit.jsonl").mkdir()

    with pytest.raises(StoreUnavailableError, match=r"audit.jsonl: what script .*a.sql changes cannot be written down"):
        async with serve(scripted):
            pass
