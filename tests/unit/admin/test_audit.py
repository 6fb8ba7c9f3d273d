from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.admin.audit import LINES_MAX, REFUSALS_BURST, Audit, AuditUnavailableError, problem_in_short
from broker.admin.auth import Caller
from broker.config.admin_access import AdminRole
from broker.daemon.instance import serve
from broker.ddl.parser import parse_script
from broker.ddl.statements import Statement
from broker.errors import DdlSyntaxError, StoreUnavailableError, UnknownNameError

ALICE = Caller("user:alice", "socket, process 7 of user 1000", AdminRole.OPERATOR)


class Written:
    """An audit, and what is in its file once its threads are done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads = ThreadPoolExecutor(1)
        self.audit = Audit(path, self.threads)

    def lines(self) -> list[dict[str, Any]]:
        self.threads.shutdown()
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.is_file() else []


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "audit.jsonl")
    yield made
    made.threads.shutdown()


def _statement(text: str) -> Statement:
    [statement] = parse_script(text)
    return statement


def test_a_line_has_who_from_where_and_the_statement(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql", "msdb")
    entry.note("orders", _statement("alter queue q with status = off"))

    entry.seal(1)

    [line] = written.lines()
    assert line.pop("at").endswith("+00:00")
    assert 16 == len(line.pop("request"))
    assert {
        "who": "user:alice",
        "role": "operator",
        "from": "socket, process 7 of user 1000",
        "operation": "ALTER QUEUE",
        "database": "orders",
        "statement": "ALTER QUEUE [q] WITH STATUS = OFF;",
        "outcome": "done",
    } == line


def test_of_a_long_script_the_first_changes_are_written_and_how_many_more(written: Written) -> None:
    entry, other = (written.audit.begin(ALICE, "POST /v1/sql") for _ in range(2))
    for _ in range(LINES_MAX + 7):
        entry.note("orders", _statement("DROP ROUTE a"))

    entry.seal(LINES_MAX + 7)
    other.seal_done("instance")

    lines = written.lines()
    assert LINES_MAX + 2 == len(lines)
    assert ("POST /v1/sql", "7 more statements") == (lines[-2]["operation"], lines[-2]["target"])
    assert [LINES_MAX + 1, 1] == [len([one for one in lines if one["request"] == of["request"]]) for of in lines[-2:]]


def test_what_fails_after_it_was_sealed_is_told_by_a_second_line(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql")
    entry.note("orders", _statement("DROP ROUTE a"))
    entry.seal(1)

    entry.end_badly(UnknownNameError(1, "the disk is full"))

    done, failed = written.lines()
    assert ("done", "failed") == (done["outcome"], failed["outcome"])
    assert done["request"] == failed["request"]


def test_many_refusals_do_not_push_the_changes_out(written: Written) -> None:
    for _ in range(REFUSALS_BURST + 500):
        written.audit.begin(ALICE, "POST /v1/sql").end_badly(UnknownNameError(1, "no"))

    assert REFUSALS_BURST <= len(written.lines()) <= REFUSALS_BURST + 10


def test_text_that_is_no_statement_is_not_repeated() -> None:
    """Somebody may have pasted anything there."""
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script("CREATE ROUTE r;\n broker_secret")

    assert "secret" not in problem_in_short(caught.value)
    assert problem_in_short(caught.value).startswith("Msg 102: not understood, line ")


def test_what_only_writing_shows_is_told_until_a_change_is_written(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql")

    def fail(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(AuditUnavailableError):
            entry.seal_done("instance")
    told = written.audit.problem()
    entry.seal_done("instance")

    assert "the last change could not be written down, and was not made: Disk quota exceeded" in told
    assert "" == written.audit.problem()


# --- the file ---


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_added_at_the_end_of_a_file_for_its_owner_which_may_be_renamed(tmp_path: Path) -> None:
    """As logrotate does."""
    audit = Audit(tmp_path / "audit.jsonl")

    audit.append([{"a": 1}])
    audit.append([{"a": 2}, {"name": 'a\nb\u2028\x00"ü'}])

    assert [{"a": 1}, {"a": 2}, {"name": 'a\nb\u2028\x00"ü'}] == _lines(audit.path)
    assert 3 == audit.path.read_bytes().count(b"\n")
    assert 0o600 == stat.S_IMODE(audit.path.stat().st_mode)
    audit.path.rename(tmp_path / "audit.jsonl.1")
    audit.append([{"a": 3}])
    assert (3, [{"a": 3}]) == (len(_lines(tmp_path / "audit.jsonl.1")), _lines(audit.path))


def test_of_a_full_disk_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
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

    assert [{"a": 1}] == _lines(audit.path)


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: Audit(audit.path).append([{"number": number}]), range(200)))

    assert list(range(200)) == sorted(line["number"] for line in _lines(audit.path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that others cannot write")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """A command as root beside an instance that runs as another user."""
    os.chown(tmp_path, 4711, 4712)
    audit = Audit(tmp_path / "audit.jsonl")

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
    tmp_path: Path, make: Any, problem: str
) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    path.parent.mkdir()
    make(path)
    audit = Audit(path)

    found = audit.problem()

    assert (bool(problem), False) == (bool(found), path.is_file())
    assert problem in found
    if problem:
        entry = audit.begin(ALICE, "POST /v1/sql")
        with pytest.raises(AuditUnavailableError, match="nothing is changed as long as no change can be written down"):
            entry.seal_done("instance")
        with capture_logs() as logs:
            entry.end_badly(UnknownNameError(1, "no"))
        assert ["audit unavailable"] == [line["event"] for line in logs]


# --- scripts of the configuration ---


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

    [line] = _lines(scripted.parent / "audit.jsonl")
    assert (
        "configuration",
        f"script {scripted.parent / 'a.sql'}",
        "script",
        "orders",
        "2 statements",
        "done",
    ) == tuple(line[key] for key in ("who", "from", "operation", "database", "target", "outcome"))


async def test_an_instance_that_cannot_record_its_scripts_does_not_start(scripted: Path) -> None:
    (scripted.parent / "audit.jsonl").mkdir()

    with pytest.raises(StoreUnavailableError, match=r"audit.jsonl: what script .*a.sql changes cannot be written down"):
        async with serve(scripted):
            pass
