"""
What happens in any simulation, drawn from a number: the applications' deeds, their habits, the blows.

A story is a value. The same number draws the same story, and a story that went wrong can be made smaller piece by
piece (`smaller`) until nothing can be left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

SIDES = ("shop", "bank")
DAY = 86_400.0

S = TypeVar("S", bound=Any)


@dataclass(frozen=True)
class Deed:
    """
    What an application does.

    Shape: `after` seconds since the deed before; `side`; `what` send, rollback, many, timer, cancel, end or error;
    `dialog` its number; `amount` bytes of a body, messages of `many` and `rollback`, seconds/10 of a timer.
    """

    after: float
    side: str
    what: str
    dialog: int
    amount: int = 0


@dataclass(frozen=True)
class Blow:
    """
    What happens to a process or between two. Shape: `at` and `seconds`, when and for how long.
    """

    at: float
    what: str
    name: str
    other: str
    seconds: float


@dataclass(frozen=True)
class Habit:
    """How an application reads. Shape: `pause` seconds at most between two receives; `rollback`, `answer` chances."""

    pause: float = 0.05
    top: int = 5
    rollback: float = 0.0
    answer: float = 0.0


def draw_deed(chance: random.Random, dialogs: int) -> Deed:
    what = chance.choices(
        ["send", "many", "rollback", "timer", "cancel", "end", "error"], weights=[12, 4, 2, 2, 1, 1, 0.5]
    )[0]
    amounts = {"send": [0, 1, 99, 100, 101, 350, 2500], "many": [2, 10, 40], "rollback": [1, 5], "timer": [1, 5, 20]}
    return Deed(
        after=chance.choice([0.0, 0.0, 0.01, 0.3]),
        side=chance.choice(["shop", "shop", "bank"]),
        what=what,
        dialog=chance.randrange(dialogs),
        amount=chance.choice(amounts.get(what, [0])),
    )


def draw_habit(chance: random.Random) -> Habit:
    return Habit(
        pause=chance.choice([0.02, 0.1, 0.5]),
        top=chance.choice([1, 5, 100]),
        rollback=chance.choice([0.0, 0.0, 0.3]),
        answer=chance.choice([0.0, 0.6]),
    )


def left_out(story: S, *fields: str) -> Iterator[S]:
    """The story with some items of these rows left out, more of them first."""
    for field in fields:
        row = getattr(story, field)
        size = len(row)
        while size:
            for start in range(0, len(row), size):
                yield replace(story, **{field: row[:start] + row[start + size :]})
            size //= 2


def plainer(story: S, plain: Any, *fields: str, within: str = "") -> Iterator[S]:
    """The story with one of these fields, of itself or of the value `within` it, as it is in `plain`."""
    inner = getattr(story, within) if within else story
    for field in fields:
        if getattr(inner, field) != getattr(plain, field):
            changed = replace(inner, **{field: getattr(plain, field)})
            yield replace(story, **{within: changed}) if within else changed


def calmer(story: S) -> Iterator[S]:
    habits: dict[str, Habit] = story.habits
    for side in SIDES:
        if habits[side] != Habit():
            yield replace(story, habits=habits | {side: Habit()})
