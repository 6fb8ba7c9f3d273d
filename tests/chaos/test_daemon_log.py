"""What a log may not say is found, and what a fault explains is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import daemon_log
from tests.chaos.daemon_log import ALLOWED, ALLOWED_AT_THE_END, ALLOWED_WORDS, KILLS, DaemonLogs, wrong
from tests.chaos.faults.catalog import FAULTS


def line(event: str, level: str = "error", **more: object) -> str:
    return json.dumps({"ts": "2026-11-23T07:00:00Z", "level": level, "event": event, **more})


BAD = {
    "an error": line("link failed"),
    "something critical": line("the end", level="critical"),
    "what asyncio says": line("Task exception was never retrieved", level="error", logger="asyncio"),
    "a traceback below an error": line("odd", level="warning", exception="Traceback (most recent call last):\n ..."),
    "text": "Fatal Python error: Segmentation fault",
    "any text": "cannot open shared object file",
    "half a line of one that nobody killed": '{"ts": "2026-1{"ts":',
    "another process for want of descriptors": line("accept failed", error="[Errno 24] Too many open files"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_nothing_explains_is_found(name: str) -> None:
    assert [BAD[name]] == list(wrong([line("link online", level="info"), BAD[name]], ["kill"]))


@pytest.mark.parametrize(
    "told",
    [
        line("link closed", level="info"),
        line("setting is unwise", level="warning"),
    ],
)
def test_what_has_to_be_expected_is_not(told: str) -> None:
    assert [] == list(wrong([told], []))


def test_an_error_is_told_once() -> None:
    assert [line("link failed", peer="a")] == list(wrong([line("link failed", peer=one) for one in "abc"], []))


def test_a_fault_explains_its_errors_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_log, "ALLOWED", {"full-disk": {"store failed": "there is no room"}})
    lines = [line("store failed"), line("link failed")]

    assert [line("link failed")] == list(wrong(lines, ["kill", "full-disk"]))
    assert lines == list(wrong(lines, ["kill"]))


def test_an_error_that_is_explained_explains_no_traceback() -> None:
    bad = line("store failed", exception="Traceback (most recent call last):\n ... AssertionError")

    assert [bad] == list(wrong([line("store failed"), bad], ["full-disk"]))


def test_want_of_descriptors_is_explained_by_that_fault_and_so_is_its_traceback() -> None:
    told = line("accept failed", exception="Traceback (most recent call last):\n ... Too many open files")

    assert [] == list(wrong([told], ["descriptors"]))
    assert [told] == list(wrong([told], [], ever=["descriptors"]))


def test_as_many_half_lines_are_explained_as_processes_were_killed(tmp_path: Path) -> None:
    half = '{"ts": "2026-1{"ts":'
    paths = logs_of(tmp_path, "billing", "stock-1")
    logs = DaemonLogs(paths, [])
    for path in paths:
        path.write_text(f"{half}\n")

    assert [f"log of stock-1: {half}"] == logs.unexpected({"kill": ["billing"]})
    with paths[0].open("a") as file:
        file.write(f"{half}\n")
    assert [f"log of billing: {half}"] == logs.unexpected({})


def test_a_fault_explains_what_its_victims_say_and_nobody_else(tmp_path: Path) -> None:
    paths = logs_of(tmp_path, "billing", "initiator-1")
    logs = DaemonLogs(paths, [])
    told = line("store failed", reason="database disk image is malformed")
    for path in paths:
        path.write_text(f"{told}\n")

    assert [f"log of initiator-1: {told}"] == logs.unexpected({"full-disk": ["billing"]})


def logs_of(directory: Path, *hosts: str) -> list[Path]:
    """Empty ones."""
    paths = [directory / host / "log" for host in hosts]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    return paths


def test_all_that_is_allowed_is_allowed_to_a_fault_that_there_is() -> None:
    assert {*ALLOWED, *ALLOWED_AT_THE_END, *ALLOWED_WORDS, *KILLS} <= set(FAULTS)


def test_what_a_fault_has_a_daemon_say_at_its_end_is_explained_however_much_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stock-1" / "log"
    path.parent.mkdir()
    path.touch()
    others, logs = DaemonLogs([path], []), DaemonLogs([path], [])
    monkeypatch.setattr(daemon_log, "LATER_SECONDS", -1.0)
    others.unexpected({"kill": ["stock-1"], "descriptors": ["stock-2"]})
    logs.unexpected({"descriptors": ["stock-1"]})

    path.write_text("RuntimeError: UVProcessTransport is open in __dealloc__ with loop set to NULL\n")

    assert [] == logs.unexpected({})
    assert 1 == len(others.unexpected({}))


def test_only_what_has_come_since_is_looked_at_and_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "billing" / "log"
    path.parent.mkdir()
    logs = DaemonLogs([path], [])
    path.write_text(line("link failed") + "\n" + line("store failed"))

    first = logs.unexpected({})
    with path.open("a") as file:
        file.write("\n")

    assert [f"log of billing: {line('link failed')}"] == first
    assert [f"log of billing: {line('store failed')}"] == logs.unexpected({})
    assert [] == logs.unexpected({})


def test_a_fault_explains_for_some_minutes_what_is_told_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_log, "ALLOWED", {"full-disk": {"store failed": "there is no room"}})
    [path] = logs_of(tmp_path, "billing")
    logs = DaemonLogs([path], [])
    logs.unexpected({"full-disk": ["billing"]})
    path.write_text(line("store failed", suppressed=12) + "\n")

    assert [] == logs.unexpected({"kill": ["billing"]})
    monkeypatch.setattr(daemon_log, "LATER_SECONDS", -1.0)
    with path.open("a") as file:
        file.write(line("store failed") + "\n")
    assert 1 == len(logs.unexpected({"kill": ["billing"]}))


def test_a_traceback_of_an_application_is_found(tmp_path: Path) -> None:
    path = tmp_path / "initiator-1.log"
    path.write_text("1.0 OperationalError: disk full\nTraceback (most recent call last):\n")

    assert ["log of initiator-1: Traceback (most recent call last):"] == DaemonLogs([], [path]).unexpected({})
