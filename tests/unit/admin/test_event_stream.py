"""Events out of the lines of a stream, and snapshots out of events."""

from __future__ import annotations

from typing import Any

import pytest

from broker.admin.client import AdminClient, ProblemError
from broker.admin.event_stream import PULSES, Event, events, pulses
from broker.errors import DaemonUnreachableError


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('event: pulse\nid: 1\ndata: {"n": 1}\n\n', [Event("pulse", {"n": 1})]),
        ("data:1\n\n", [Event("message", 1)]),
        (": a comment\n\nretry: 10\n\ndata: [1,\r\ndata: 2]\r\n\r\n", [Event("message", [1, 2])]),
        ("event: a\ndata: 1\n\nevent: b\ndata: 2\n", [Event("a", 1)]),
        ("", []),
    ],
    ids=["one", "without a name", "comments and two lines", "not whole", "nothing"],
)
def test_the_lines_of_a_stream_are_events(text: str, expected: list[Event]) -> None:
    assert expected == list(events(lines(text)))


def test_an_event_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        list(events(lines("data: {\n\n")))


def test_snapshots_are_read_from_a_daemon(fake_admin: Any) -> None:
    stream = b'retry: 1\n\nevent: pulse\ndata: {"n": 1}\n\nevent: other\ndata: 0\n\nevent: pulse\ndata: {"n": 2}\n\n'
    fake_admin.answers[PULSES] = (200, stream)

    assert [{"n": 1}, {"n": 2}] == list(pulses(AdminClient(fake_admin.path)))


@pytest.mark.parametrize(
    ("stream", "problem"), [(b"data: {\n\n", "are no events"), (b"data: 1", "broke off")], ids=["no JSON", "not whole"]
)
def test_a_stream_that_is_none_is_no_daemon(fake_admin: Any, stream: bytes, problem: str) -> None:
    fake_admin.answers[PULSES] = (200, stream)

    with pytest.raises(DaemonUnreachableError, match=problem):
        list(pulses(AdminClient(fake_admin.path)))


def test_a_refusal_is_the_daemons_own(fake_admin: Any) -> None:
    fake_admin.answers[PULSES] = (503, {"detail": "32 streams are open"})

    with pytest.raises(ProblemError, match="32 streams are open"):
        list(pulses(AdminClient(fake_admin.path)))


def test_a_line_without_end_is_not_read_for_ever(fake_admin: Any) -> None:
    fake_admin.answers["/long"] = (200, b"x" * 10_000)

    with pytest.raises(DaemonUnreachableError, match="broke off"):
        list(AdminClient(fake_admin.path).lines("/long", line_max=100))


def test_nobody_there_is_told(tmp_path: Any) -> None:
    with pytest.raises(DaemonUnreachableError, match="No such file"):
        list(pulses(AdminClient(tmp_path / "none.sock")))
