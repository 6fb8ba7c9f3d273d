"""
What one instance does about its own role for a database: take it over, step down, or leave things as they are.

The source of roles says now and then which role this instance should have; the database says, by its lock and its
epoch, which one it can have. Here is only what follows from both. `ON_WORD` is the rule; time is an argument.

- Only a word of "principal" leads to a takeover, and only while this instance does not rest.
- Whoever stepped down, or was fenced off, rests: the partner has that long to take over, and once it has, the rest is
  over. What failed to be taken is tried again after a pause.
- A word of "mirror" makes a principal step down at once. No word, or one that nobody understands, changes nothing; but
  a principal whose role nothing has confirmed for `hold` seconds steps down as well.
- A word of "principal" with a higher epoch than the one we have means that somebody else was it in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.mirror.role import Role


@dataclass(frozen=True, slots=True)
class Word:
    """
    What the source of roles says.

    Shape: `role` principal, mirror, or unknown when it says nothing that counts, then `problem` tells why; `epoch` at
    least, 0 = none told.
    """

    role: Role
    epoch: int = 0
    problem: str = ""


class Act(Enum):
    """What to do now."""

    STAY = "stay"
    TAKE = "take the database over"
    STEP_DOWN = "step down"


# By what this instance is, and what the source says it should be.
ON_WORD = {
    (Role.PRINCIPAL, Role.PRINCIPAL): Act.STAY,
    (Role.PRINCIPAL, Role.MIRROR): Act.STEP_DOWN,
    (Role.PRINCIPAL, Role.UNKNOWN): Act.STAY,
    (Role.MIRROR, Role.PRINCIPAL): Act.TAKE,
    (Role.MIRROR, Role.MIRROR): Act.STAY,
    (Role.MIRROR, Role.UNKNOWN): Act.STAY,
}


class OwnRole:
    """
    The role of this instance for one database. Changed by its keeper alone.

    Shape: `role` principal or mirror; `epoch` of the last takeover known; `problem` why it is not what it should be, or
    what was wrong last, empty when all is well; `rests_until` an instant before which nothing is taken;
    `hold` seconds for which a word confirms a principal, which may be changed.
    """

    def __init__(self, *, hold: float, now: float) -> None:
        self.role = Role.MIRROR
        self.epoch = 0
        self.problem = ""
        self.rests_until = now
        self.hold = hold
        self._confirmed_at = now

    def on_word(self, word: Word, now: float) -> Act:
        """What the source says leads to."""
        if word.role is not Role.UNKNOWN:
            self._confirmed_at = now
        elif word.problem:
            self.problem = word.problem
        act = ON_WORD[self.role, word.role]
        if self.role is Role.PRINCIPAL:
            is_unconfirmed = now - self._confirmed_at > self.hold
            was_another = word.role is Role.PRINCIPAL and word.epoch > self.epoch
            if act is Act.STAY and word.role is Role.PRINCIPAL:
                self.problem = ""
            return Act.STEP_DOWN if is_unconfirmed or was_another else act
        if word.role is Role.MIRROR:
            self.problem = ""
        return act if now >= self.rests_until else Act.STAY

    def on_taken(self, epoch: int, now: float) -> None:
        """The database is ours, in this epoch."""
        self.role, self.epoch, self.problem = Role.PRINCIPAL, epoch, ""
        self._confirmed_at = now

    def on_kept_out(self, problem: str, now: float, *, pause: float = 0.0) -> None:
        """It could not be taken; `problem` is empty when somebody else has it, which is how it should be."""
        self.problem = problem
        self.rests_until = now + pause

    def on_stepped_down(self, problem: str, now: float, *, rest: float) -> None:
        """It is not ours any more, and the partner may have it for so long before we try again."""
        self.role, self.problem = Role.MIRROR, problem
        self.rests_until = now + rest

    def on_told(self, epoch: int) -> None:
        """What is told beside the file: the epoch of whoever is the principal. A new one ends the rest."""
        if self.role is Role.MIRROR and epoch > self.epoch:
            self.epoch = epoch
            self.rests_until = float("-inf")
