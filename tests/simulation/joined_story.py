"""
What happens in one joined simulation, drawn from a number: the instances and their routes, deeds, habits, and blows.

A story is a value. The same number draws the same story, and one that went wrong can be made smaller (`smaller`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulation.machine import Road
from tests.simulation.story import DAY, SIDES, Blow, Deed, Habit, calmer, draw_deed, draw_habit, left_out, plainer

PARTNERS = ("bank-a", "bank-b")
TIERS = ((), (1,), (1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (2, 2))
BLOWS = {  # what happens, and how often
    "kill": 4,  # a process is gone, its connections are reset
    "power": 2,  # a machine is without power: nobody is told
    "restart": 2,  # a process drains and ends in order, and another one begins
    "freeze": 3,  # a process stands still; a mirrored database is taken from it meanwhile
    "cut": 3,  # nothing arrives between two machines, both ways
    "deafen": 2,  # ... in one direction
    "reset": 2,  # connections between two machines are gone, and both know
    "failover": 4,  # planned: the principal hands over
    "reroute": 2,  # an instance has no routes to the bank for a while
    "jump": 2,  # the wall clock of a process is wrong for a while
    "stale": 2,  # the mirror claims to be the principal with an epoch that is over, as a restored copy does
    "heir": 4,  # the mirror is started anew, so that it knows nobody who asked, and has to follow the principal then
}
SECONDS = (0.0, 0.1, 0.7, 3.0, 8.0, 8.0)  # the longest outlasts everything that waits for silence
JUMPS = (-300.0, -30.0, -2.0, 2.0, 30.0, 300.0)
FRAGMENT_SIZE = 100
OVER_SECONDS = 6.0  # blows begin within it
SMALL_POOL = 20_000  # bytes, a few frames


@dataclass(frozen=True)
class JoinedStory:
    """
    Shape: `tiers` gateways in each row between shop and bank; `is_pair` whether the bank is mirrored; `pool_bytes` of
    each instance; `poll` seconds at most between two looks for what applications have committed; `lifetimes` of the
    dialogs.
    """

    seed: int
    tiers: tuple[int, ...]
    is_pair: bool
    road: Road
    pool_bytes: int
    poll: float
    store_failure: float
    lifetimes: tuple[float, ...]
    habits: dict[str, Habit]
    deeds: tuple[Deed, ...]
    blows: tuple[Blow, ...]

    @property
    def rows(self) -> list[list[str]]:
        """The names of the gateways, row by row."""
        return [[f"gateway-{row}{number}" for number in range(size)] for row, size in enumerate(self.tiers)]

    @property
    def banks(self) -> tuple[str, ...]:
        """The instances of the bank."""
        return PARTNERS if self.is_pair else ("bank",)


def draw(seed: int) -> JoinedStory:
    """The story of this number."""
    chance = random.Random(seed)
    pick = chance.choice
    tiers, is_pair = pick(TIERS), chance.random() < 0.6
    is_hostile = chance.random() < 0.3
    road = Road(
        delay=pick([0.001, 0.02, 0.2]),
        room=pick([1 << 18, 1 << 18, 8192, 700]),  # the least cuts frames in the middle
        crumb=pick([1 << 18, 1 << 18, 300]),
        loss=pick([0.0, 0.02, 0.2]) if is_hostile else 0.0,
        repeat=pick([0.0, 0.3]) if is_hostile else 0.0,
        late=pick([0.0, 0.4]) if is_hostile else 0.0,
        damage=pick([0.0, 0.05]) if is_hostile else 0.0,
    )
    dialogs = pick([1, 1, 2, 3])
    blows = [blow for blow in (_blow(chance, tiers, is_pair=is_pair) for _ in range(pick([0, 1, 2, 3, 5]))) if blow]
    has_jumps = any(blow.what == "jump" for blow in blows)
    deeds = [draw_deed(chance, dialogs) for _ in range(pick([1, 3, 8, 16]))]
    slowness = pick([1.0, 4.0])  # so that blows find something to hit
    return JoinedStory(
        seed=seed,
        tiers=tiers,
        is_pair=is_pair,
        road=road,
        pool_bytes=pick([1 << 20, 1 << 20, SMALL_POOL]),
        poll=pick([0.02, 0.1, 0.3]),
        store_failure=pick([0.0, 0.0, 0.0, 0.02]),
        lifetimes=tuple(pick([DAY] * 9 + [2.0]) for _ in range(dialogs)),
        habits={side: draw_habit(chance) for side in SIDES},
        # What a timer does while a clock is wrong is told by test_clock_jump.
        deeds=tuple(
            replace(deed, after=deed.after * slowness) for deed in deeds if not (has_jumps and deed.what == "timer")
        ),
        blows=tuple(sorted(blows, key=lambda blow: blow.at)),
    )


def _blow(chance: random.Random, tiers: tuple[int, ...], *, is_pair: bool) -> Blow | None:
    story = replace(_EMPTY, tiers=tiers, is_pair=is_pair)
    rows = [["shop"], *story.rows, list(story.banks)]
    (what,) = chance.choices(list(BLOWS), weights=list(BLOWS.values()))
    at, seconds = chance.uniform(0.0, OVER_SECONDS), chance.choice(SECONDS)
    number = chance.randrange(len(rows) - 1)
    near, far = chance.choice(rows[number]), chance.choice(rows[number + 1])  # neighbours, which talk to each other
    if what in ("failover", "heir", "stale"):
        return Blow(at, what, "", "", seconds) if is_pair else None
    if what == "jump":
        return Blow(at, what, chance.choice([near, far]), str(chance.choice(JUMPS)), seconds)
    if what == "reroute":
        return Blow(at, what, near, far, seconds)
    name, other = chance.sample([near, far], 2)
    return Blow(at, what, name, other, seconds)


_EMPTY = JoinedStory(
    seed=0,
    tiers=(),
    is_pair=False,
    road=Road(),
    pool_bytes=1 << 20,
    poll=0.02,
    store_failure=0.0,
    lifetimes=(DAY,),
    habits={side: Habit() for side in SIDES},
    deeds=(),
    blows=(),
)


def smaller(story: JoinedStory) -> Iterator[JoinedStory]:
    """Stories with something left out, more of it first."""
    yield from left_out(story, "deeds", "blows")
    yield from plainer(story, Road(), "loss", "repeat", "late", "damage", "delay", "room", "crumb", within="road")
    yield from plainer(story, _EMPTY, "store_failure", "pool_bytes", "poll")
    rows = story.tiers
    for tiers in ((), *((*rows[:row], size - 1, *rows[row + 1 :]) for row, size in enumerate(rows))):
        names = {"shop", *story.banks, *(name for row in replace(story, tiers=tiers).rows for name in row)}
        if 0 not in tiers and tiers != rows and all(blow.name in {"", *names} for blow in story.blows):
            yield replace(story, tiers=tiers)
    yield from calmer(story)
