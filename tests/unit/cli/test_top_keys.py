"""Keys, one by one."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from broker.cli.top_keys import END, keys_in, pressed_one_by_one, wait_for_keys


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("q", ["q"]),
        ("12", ["1", "2"]),
        ("\x1b[A\x1bOB\x1b[6~x", ["up", "down", "page down", "x"]),
        ("\x1b[1;5Cp", ["p"]),
        ("\x1b[15~\x1b", []),
        ("", []),
    ],
)
def test_what_a_terminal_sends_becomes_keys(data: str, expected: list[str]) -> None:
    assert expected == list(keys_in(data))


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other side of the terminal that is standard input."""
    number, slave = os.openpty()
    with os.fdopen(slave, "r") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield number
    os.close(number)


def test_keys_come_at_once_without_enter_and_the_terminal_is_left_as_it_was(control: int) -> None:
    stdin: TextIO = sys.stdin
    before = termios.tcgetattr(stdin.fileno())

    with pressed_one_by_one():
        os.write(control, b"p")
        pressed = wait_for_keys(5.0)
        nothing = wait_for_keys(0.0)

    assert (["p"], []) == (pressed, nothing)
    assert before == termios.tcgetattr(stdin.fileno())


def test_the_end_of_input_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)

        assert [END] == wait_for_keys(5.0)
