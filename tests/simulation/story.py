"""
What happens in one simulation, drawn from a number: the applications' deeds, their habits, the weather, the blows.

A story is a value. The same number draws the same story, and a story that went wrong can be made smaller piece by
piece (`smaller`) until nothing can be left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.support.network import Weather

SIDES = ("shop", "bank")
SMALL, LARGE = 100, 30_000  # bytes of a fragment; the second only where a body is above LARGE_BYTES
LARGE_BODY = 1_200_000
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
    What happens to a process or between two. Shape: `at` seconds; `what` crash, cut (the links are gone), sever (every
    frame is lost) or deafen (in one direction); `seconds` until it is over.
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


@dataclass(frozen=True)
class Story:
    """Shape: `store_failure` chance that a turn of a writer fails; `lifetimes` of the dialogs, by their number."""

    seed: int
    gateways: int
    weather: Weather
    store_failure: float
    fragment_size: int
    lifetimes: tuple[float, ...]
    habits: dict[str, Habit]
    deeds: tuple[Deed, ...]
    blows: tuple[Blow, ...]


def draw(seed: int) -> Story:
    chance = random.Random(seed)
    pick = chance.choice
    gateways = pick([0, 1, 1, 2, 3])
    names = [*SIDES, *(f"gateway{number}" for number in range(gateways))]
    is_large = chance.random() < 0.03
    weather = Weather(
        loss=pick([0.0, 0.0, 0.02, 0.2, 0.5]),
        repeat=pick([0.0, 0.3]),
        damage=pick([0.0, 0.0, 0.05]),
        reject=pick([0.0, 0.5]),
        delay=pick([0.001, 0.02, 0.4]),
        room=pick([1 << 20, 200_000]) if is_large else pick([1 << 20, 3000, 500]),
    )
    dialogs = pick([1, 1, 2, 3, 5])
    deeds = [draw_deed(chance, dialogs) for _ in range(pick([1, 3, 10, 25]))]
    if is_large:
        deeds.insert(0, Deed(0.0, "shop", "send", 0, LARGE_BODY))
    blows = [_blow(chance, names) for _ in range(pick([0, 0, 1, 3, 6]))]
    return Story(
        seed=seed,
        gateways=gateways,
        weather=weather,
        store_failure=pick([0.0, 0.0, 0.0, 0.02]),
        fragment_size=LARGE if is_large else SMALL,
        lifetimes=tuple(pick([DAY] * 9 + [2.0]) for _ in range(dialogs)),
        habits={side: draw_habit(chance) for side in SIDES},
        deeds=tuple(deeds),
        blows=tuple(sorted(blows, key=lambda blow: blow.at)),
    )


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


def _blow(chance: random.Random, names: list[str]) -> Blow:
    at, what = chance.uniform(0.0, 3.0), chance.choice(["crash", "crash", "cut", "sever", "deafen"])
    name, other = chance.sample(names, 2)
    return Blow(at, what, name, other, seconds=chance.choice([0.0, 0.1, 0.7, 3.0]))


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


def smaller(story: Story) -> Iterator[Story]:
    yield from left_out(story, "deeds", "blows")
    yield from plainer(story, Weather(), "loss", "repeat", "damage", "reject", "delay", "room", within="weather")
    if story.store_failure:
        yield replace(story, store_failure=0.0)
    if story.gateways and not any("gateway" in blow.name + blow.other for blow in story.blows):
        yield replace(story, gateways=story.gateways - 1)
    yield from calmer(story)
