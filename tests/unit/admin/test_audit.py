from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.admin.audit import CHANGES_MAX, REFUSALS_BURST, Audit, problem_in_short
from broker.admin.audit_file import AuditFile, AuditUnavailableError
from broker.admin.caller import Caller
from broker.control.admin_role import AdminRole
from broker.control.definition import Change
from broker.ddl.parser import parse_script
from broker.errors import DdlSyntaxError, UnknownNameError

ALICE = Caller("user:alice", "socket, process 7 of user 1000", AdminRole.OPERATOR)


class Written:
    """An audit, and what is in its file once its threads are done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads = ThreadPoolExecutor(1)
        self.audit = Audit(AuditFile(path, 1 << 20, 2), self.threads)

    def lines(self) -> list[dict[str, Any]]:
        self.threads.shutdown()
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.is_file() else []


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "audit.jsonl")
    yield made
    made.threads.shutdown()


def _change(text: str, before: Any = None, after: Any = None) -> Change:
    [statement] = parse_script(text)
    return Change("orders", statement, before, after)


def test_a_line_tells_who_from_where_what_before_and_after(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql", "msdb")
    entry.note(_change("ALTER QUEUE q WITH STATUS = OFF", {"STATUS": "ON"}, {"STATUS": "OFF"}))

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
        "target": "q",
        "before": {"STATUS": "ON"},
        "after": {"STATUS": "OFF"},
        "outcome": "done",
    } == line


def test_the_lines_of_a_request_have_its_number_and_those_of_others_have_not(written: Written) -> None:
    for _ in range(2):
        entry = written.audit.begin(ALICE, "POST /v1/sql")
        entry.note(_change("DROP ROUTE a"))
        entry.note(_change("DROP ROUTE b"))
        entry.seal(2)

    requests = [line["request"] for line in written.lines()]
    assert [2, 2] == [requests.count(one) for one in sorted(set(requests))]


def test_of_a_long_script_the_first_changes_are_written_and_how_many_more(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql")
    while entry.room:
        entry.note(_change("DROP ROUTE a"))

    entry.seal(CHANGES_MAX + 7)

    lines = written.lines()
    assert CHANGES_MAX + 1 == len(lines)
    assert ("POST /v1/sql", "7 more statements") == (lines[-1]["operation"], lines[-1]["target"])


def test_a_script_that_changes_nothing_leaves_no_line(written: Written) -> None:
    written.audit.begin(ALICE, "POST /v1/sql").seal(0)

    assert [] == written.lines()


def test_what_cannot_be_written_is_not_sealed(tmp_path: Path) -> None:
    written = Written(tmp_path)  # a directory
    entry = written.audit.begin(ALICE, "POST /v1/sql")
    entry.note(_change("DROP ROUTE a"))

    with pytest.raises(AuditUnavailableError, match="nothing is changed as long as no change can be written down"):
        entry.seal(1)
    written.threads.shutdown()


def test_a_refusal_is_written_with_its_reason(written: Written) -> None:
    written.audit.begin(ALICE, "POST /v1/sql", "msdb").end_badly(UnknownNameError(15151, "there is no route 'a'"))

    [line] = written.lines()
    assert ("refused", "Msg 15151: there is no route 'a'") == (line["outcome"], line["problem"])


def test_what_fails_after_it_was_sealed_is_told_by_a_second_line(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql")
    entry.note(_change("DROP ROUTE a"))
    entry.seal(1)

    entry.end_badly(UnknownNameError(1, "the disk is full"))

    done, failed = written.lines()
    assert ("done", "failed") == (done["outcome"], failed["outcome"])
    assert done["request"] == failed["request"]


def test_many_refusals_do_not_push_the_changes_out(written: Written) -> None:
    for _ in range(REFUSALS_BURST + 500):
        written.audit.begin(ALICE, "POST /v1/sql").end_badly(UnknownNameError(1, "no"))

    assert REFUSALS_BURST <= len(written.lines()) <= REFUSALS_BURST + 10


def test_a_refusal_that_cannot_be_written_is_logged(tmp_path: Path) -> None:
    written = Written(tmp_path)

    with capture_logs() as logs:
        written.audit.begin(ALICE, "POST /v1/sql").end_badly(UnknownNameError(1, "no"))
        written.threads.shutdown()

    assert ["audit unavailable"] == [line["event"] for line in logs]


def test_text_that_is_no_statement_is_not_repeated() -> None:
    """Somebody may have pasted anything there."""
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script("CREATE ROUTE r;\n broker_secret")

    assert "secret" not in problem_in_short(caught.value)
    assert problem_in_short(caught.value).startswith("Msg 102: not understood, line ")


def test_the_principals_of_a_permission_belong_to_its_target(written: Written) -> None:
    entry = written.audit.begin(ALICE, "POST /v1/sql")
    entry.note(_change("GRANT SEND ON SERVICE::s TO [CN=a], public"))
    entry.seal(1)

    [line] = written.lines()
    assert ("GRANT SEND", "SEND ON s TO CN=a, public") == (line["operation"], line["target"])


def test_a_file_that_cannot_be_written_is_told_before_anybody_changes_anything(written: Written) -> None:
    before = written.audit.problem()
    written.path.mkdir()

    told = written.audit.problem()
    written.path.rmdir()

    sentence = f"audit {written.path}: Is a directory; nothing is changed as long as no change can be written down"
    assert ("", sentence, "") == (before, told, written.audit.problem())


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


def test_what_was_wrong_with_another_file_says_nothing_about_this_one(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(AuditUnavailableError):
            written.audit.begin(ALICE, "POST /v1/sql").seal_done("instance")

    written.audit.file = AuditFile(written.path.with_name("other.jsonl"), 1 << 20, 2)

    assert "" == written.audit.problem()
