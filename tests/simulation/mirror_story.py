"""
What happens to mirrored pairs in one simulation, drawn from a number: databases, probers, dialogs, and blows.

A story is a value. The same number draws the same story, and one that went wrong can be made smaller (`smaller`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulation.story import left_out

INSTANCES = ("a", "b")
BLOWS = {  # what happens, and how often
    "kill": 3,  # an instance is down for so long; its locks are free at once
    "freeze": 2,  # an instance stands still; its locks are taken away, and it goes on as if nothing had been
    "failover": 3,  # planned: the principal of a database hands over
    "cut": 3,  # a prober and an instance, both ways, without a word
    "mute": 2,  # what the prober says is lost
    "deafen": 2,  # what the instance says is lost
    "reset": 2,  # their link is gone, and both know
    "isolate": 2,  # an instance from all probers, while the pair still sees its locks
    "restart": 2,  # a prober forgets everything
    "rogue": 1,  # the role source says to both that they are principal
    "lie": 1,  # the mirror claims the epoch of the principal
    "stale": 2,  # the mirror claims with an old copy, which would take messages
}
SECONDS = (0.05, 0.3, 1.5, 4.0)
ACTED_SECONDS = 8.0  # blows and new messages come within it


@dataclass(frozen=True)
class MirrorBlow:
    """Shape: `at`, `seconds` virtual; `instance`, `prober`, `database` numbers, used where `what` asks for one."""

    at: float
    what: str
    instance: int
    prober: int
    database: int
    seconds: float


@dataclass(frozen=True)
class MirrorStory:
    """
    Shape: `dialogs` (database, messages, seconds between two) each; `delay`, `commit`, `poll` seconds at most.

    `is_late`: an answer that was under way when its link was lost is believed to be one of the next link. `is_fenced`:
    receivers are held to the epoch, which only a test turns off.
    """

    seed: int
    databases: int
    probers: int
    dialogs: tuple[tuple[int, int, float], ...]
    blows: tuple[MirrorBlow, ...]
    delay: float
    commit: float
    poll: float
    is_late: bool
    is_fenced: bool = True


def draw(seed: int) -> MirrorStory:
    """The story of this number."""
    chance = random.Random(seed)
    pick = chance.choice
    databases, probers = pick([1, 1, 2, 3]), pick([1, 2, 3, 5])
    dialogs = [
        (chance.randrange(databases), pick([1, 10, 40, 100]), pick([0.0, 0.02, 0.1])) for _ in range(pick([1, 2, 4]))
    ]
    blows = [_blow(chance, databases, probers) for _ in range(pick([0, 1, 2, 4, 8, 15]))]
    if chance.random() < 0.25:
        blows += _flapping(chance, databases, probers)
    return MirrorStory(
        seed=seed,
        databases=databases,
        probers=probers,
        dialogs=tuple(dialogs),
        blows=tuple(sorted(blows, key=lambda blow: blow.at)),
        delay=pick([0.0005, 0.005, 0.08]),
        commit=pick([0.002, 0.03, 0.5]),
        poll=pick([0.05, 0.2, 0.5]),
        is_late=chance.random() < 0.2,
    )


def _blow(chance: random.Random, databases: int, probers: int) -> MirrorBlow:
    (what,) = chance.choices(list(BLOWS), weights=list(BLOWS.values()))
    return MirrorBlow(
        at=chance.uniform(0.0, ACTED_SECONDS),
        what=what,
        instance=chance.randrange(len(INSTANCES)),
        prober=chance.randrange(probers),
        database=chance.randrange(databases),
        seconds=chance.choice(SECONDS),
    )


def _flapping(chance: random.Random, databases: int, probers: int) -> list[MirrorBlow]:
    """The same thing again and again, every second or faster, on alternate instances."""
    what, pause = chance.choice(["kill", "failover", "reset", "cut", "isolate"]), chance.choice([0.1, 0.5, 1.0])
    prober, database, seconds = chance.randrange(probers), chance.randrange(databases), pause * chance.uniform(0.1, 0.9)
    times = int(ACTED_SECONDS / pause)
    return [MirrorBlow(turn * pause, what, turn % 2, prober, database, seconds) for turn in range(times)]


def smaller(story: MirrorStory) -> Iterator[MirrorStory]:
    """Stories with something left out, more of it first."""
    yield from left_out(story, "blows")
    if len(story.dialogs) > 1:
        for number in range(len(story.dialogs)):
            yield replace(story, dialogs=story.dialogs[:number] + story.dialogs[number + 1 :])
    for number, (database, messages, pause) in enumerate(story.dialogs):
        if messages > 1:
            fewer = (database, messages // 2, pause)
            yield replace(story, dialogs=(*story.dialogs[:number], fewer, *story.dialogs[number + 1 :]))
    if story.is_late:
        yield replace(story, is_late=False)
