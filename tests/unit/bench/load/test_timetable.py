"""Applications that send by a timetable: their answers, their ends, and quantiles of what they tell."""

from __future__ import annotations

import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from broker.bench.application import ApplicationError
from broker.bench.load.timetable import Application, quantile


def echo(_: sqlite3.Connection, pipe: Connection, greeting: str) -> None:
    """Answers with what it was asked; ends where it is told to."""
    while True:
        question = pipe.recv()
        if question == ("end",):
            return
        pipe.send((greeting, *question))


@pytest.mark.parametrize(("part", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.74, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_a_quantile_is_the_value_below_which_so_much_is(part: float, expected: float) -> None:
    assert expected == quantile([1.0, 2.0, 3.0, 4.0], part)


def test_of_nothing_it_is_zero() -> None:
    assert 0.0 == quantile([], 0.5)


def test_an_application_answers_and_one_that_has_ended_is_told(tmp_path: Path) -> None:
    with Application(echo, str(tmp_path / "a.db"), "hello") as application:
        assert ("hello", 1, "two") == application.ask(1, "two")
        application.say("end")

        with pytest.raises(ApplicationError, match="has ended"):
            application.answer()
        with pytest.raises(ApplicationError, match="has ended"):
            application.ask("anybody?")
