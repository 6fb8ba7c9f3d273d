"""
What happens to a pair whose roles come by a command, and whose partners have a file each: a joined story, and more.

A story is a value. The same number draws the same story, and one that went wrong can be made smaller
(`joined_story.smaller`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

from tests.simulation import joined_story
from tests.simulation.joined_story import OVER_SECONDS, JoinedStory
from tests.simulation.story import DAY, Blow, Deed, draw_deed

BLOWS = {  # what happens, and how often
    "fail_over": 4,  # planned: the principal hears `mirror`, its file is copied, and its partner is named
    "freeze": 2,  # the principal stands still between two steps of its loop
    "stall": 3,  # ... between two steps of a turn of its writer
    "overtake": 4,  # ... its partner is named meanwhile, and it goes on
    "overtake_turn": 6,  # ... within a turn
    "mute": 2,  # the command fails, or does not end
    "slow": 2,  # its answers take long, or come too late
    "kill": 2,  # as in joined stories
    "restart": 2,
    "cut": 2,
    "reset": 1,
}
ON_NEIGHBOURS = ("kill", "restart", "cut", "reset")
STEPS = 20  # of a turn, behind which a process stands still, at most; most turns have as many
FACTORS = (0.0, 0.3, 0.9, 1.3, 2.5)  # of role_timeout: how long a process stands still, and other things last


@dataclass(frozen=True)
class CommandStory(JoinedStory):
    """
    Shape: `hold` and `interval` seconds, role_timeout and role_interval; `answer` seconds that the command takes at
    most; `is_told` whether it prints an epoch; `may_stand_in_commit` what the product does not promise anything of.
    """

    hold: float = 2.0
    interval: float = 0.3
    answer: float = 0.1
    is_told: bool = True
    may_stand_in_commit: bool = False


def draw(seed: int) -> CommandStory:
    """The story of this number."""
    chance = random.Random(seed)
    pick = chance.choice
    drawn = joined_story.draw(chance.randrange(1 << 40))
    tiers = pick([(), (1,), (1,), (2,)])
    hold = pick([1.0, 2.0, 4.0])
    blows = [_blow(chance, replace(drawn, tiers=tiers, is_pair=True), hold) for _ in range(pick([1, 2, 3, 5]))]
    deeds = [_deed(chance, len(drawn.lifetimes)) for _ in range(pick([5, 15, 30]))]
    plain = replace(
        drawn,
        seed=seed,
        tiers=tiers,
        is_pair=True,
        lifetimes=(DAY,) * len(drawn.lifetimes),
        deeds=tuple(deeds),
        blows=tuple(sorted(blows, key=lambda blow: blow.at)),
    )
    return CommandStory(
        **{field.name: getattr(plain, field.name) for field in fields(plain)},
        hold=hold,
        interval=hold * pick([0.1, 0.2]),
        answer=hold * pick([0.01, 0.1, 0.3]),
        is_told=chance.random() < 0.5,
    )


def _deed(chance: random.Random, dialogs: int) -> Deed:
    """So that there is something to store for as long as something happens; dialogs end when all is over."""
    drawn = draw_deed(chance, dialogs)
    what = drawn.what if drawn.what in ("many", "rollback") else "send"
    return replace(drawn, after=chance.uniform(0.0, 0.6), what=what)


def _blow(chance: random.Random, story: JoinedStory, hold: float) -> Blow:
    (what,) = chance.choices(list(BLOWS), weights=list(BLOWS.values()))
    at, seconds = chance.uniform(0.0, OVER_SECONDS), hold * chance.choice(FACTORS)
    if what not in ON_NEIGHBOURS:
        return Blow(at, what, "", str(chance.randrange(STEPS)), seconds)
    rows = [["shop"], *story.rows, list(story.banks)]
    number = chance.randrange(len(rows) - 1)
    name, other = chance.sample([chance.choice(rows[number]), chance.choice(rows[number + 1])], 2)
    return Blow(at, what, name, other, seconds)
