"""
What one instance does about its own role for a database: take it over, step down, or leave things as they are.

The source of roles says now and then which role this instance should have; the database says, by its lock and its
epoch, which one it can have. Here is only what follows from both. `ON_WORD` is the rule; time is an argument, of a
clock that goes on while the process or the machine stands still.

- Only a word of "principal" leads to a takeover, and only while this instance does not rest.
- Whoever stepped down, or was fenced off, rests: the partner has that long to take over, and once it has, the rest is
  over. What failed to be taken is tried again after a pause.
- A word of "mirror" makes a principal step down at once. No word, or one that nobody understands, changes nothing.
- A word counts from the moment at which it was asked for, for `hold` seconds: nobody knows when it was true in between.
  One that comes later says nothing. A principal that no word confirms any more has lapsed: it may not act from then on,
  and steps down, whatever the next word is, for somebody else may have been the principal meanwhile.
- A word of "principal" with a higher epoch than the one we have means that somebody else was it in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.mirror.role import MirrorRole

LATE = "the answer of role_command came later than role_timeout after it was asked for"
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class RoleAnswer:
    """
    What the source of roles says.

    Shape: `role` principal, mirror, or unknown when it says nothing that counts, then `problem` tells why; `epoch` at
    least, 0 = none told.
    """

    role: MirrorRole
    epoch: int = 0
    problem: str = ""


class Act(Enum):
    """What to do now."""

    STAY = "stay"
    TAKE = "take the database over"
    STEP_DOWN = "step down"


# By what this instance is, and what the source says it should be.
ON_WORD = {
    (MirrorRole.PRINCIPAL, MirrorRole.PRINCIPAL): Act.STAY,
    (MirrorRole.PRINCIPAL, MirrorRole.MIRROR): Act.STEP_DOWN,
    (MirrorRole.PRINCIPAL, MirrorRole.UNKNOWN): Act.STAY,
    (MirrorRole.MIRROR, MirrorRole.PRINCIPAL): Act.TAKE,
    (MirrorRole.MIRROR, MirrorRole.MIRROR): Act.STAY,
    (MirrorRole.MIRROR, MirrorRole.UNKNOWN): Act.STAY,
}


class OwnRole:
    """
    The role of this instance for one database. Changed by its keeper alone.

    Shape: `role` principal or mirror; `epoch` of the last takeover known; `problem` why it is not what it should be, or
    what was wrong last, empty when all is well; `rests_until` an instant before which nothing is taken;
    `hold` seconds for which a word confirms a principal, from the moment at which it was asked for; may be changed.
    """

    def __init__(self, *, hold: float, now: float) -> None:
        self.role = MirrorRole.MIRROR
        self.epoch = 0
        self.problem = ""
        self.rests_until = now
        self.hold = hold
        self._confirmed_at = _NEVER

    def is_confirmed(self, now: float) -> bool:
        """
        Whether a principal may act. Once it may not, it may not before it has taken the database over anew.

        For any thread: writer threads ask as well.
        """
        if now - self._confirmed_at > self.hold:
            self._confirmed_at = _NEVER
        return self.hold >= now - self._confirmed_at

    def is_late(self, asked_at: float, now: float) -> bool:
        """Whether a word that was asked for then says nothing any more."""
        return now - asked_at > self.hold

    def on_word(self, word: RoleAnswer, asked_at: float, now: float) -> Act:
        """What the source says leads to."""
        if self.is_late(asked_at, now):
            word = RoleAnswer(MirrorRole.UNKNOWN, problem=word.problem or LATE)
        has_lapsed = self.role is MirrorRole.PRINCIPAL and not self.is_confirmed(now)
        if word.role is MirrorRole.UNKNOWN:
            self.problem = word.problem or self.problem
        act = ON_WORD[self.role, word.role]
        if self.role is MirrorRole.PRINCIPAL:
            was_another = word.role is MirrorRole.PRINCIPAL and word.epoch > self.epoch
            if word.role is MirrorRole.PRINCIPAL and not has_lapsed:
                self._confirmed_at, self.problem = asked_at, ""
            return Act.STEP_DOWN if has_lapsed or was_another else act
        if word.role is MirrorRole.MIRROR:
            self.problem = ""
        return act if now >= self.rests_until else Act.STAY

    def on_taking(self, asked_at: float) -> None:
        """The database is about to be taken over, because of a word that was asked for then."""
        self._confirmed_at = asked_at

    def on_taken(self, epoch: int, asked_at: float) -> None:
        """The database is ours, in this epoch; the last word about it was asked for then."""
        self.role, self.epoch, self.problem = MirrorRole.PRINCIPAL, epoch, ""
        self._confirmed_at = asked_at

    def on_kept_out(self, problem: str, now: float, *, pause: float = 0.0) -> None:
        """It could not be taken; `problem` is empty when somebody else has it, which is how it should be."""
        self.problem = problem
        self.rests_until = now + pause

    def on_stepped_down(self, problem: str, now: float, *, rest: float) -> None:
        """It is not ours any more, and the partner may have it for so long before we try again."""
        self.role, self.problem = MirrorRole.MIRROR, problem
        self._confirmed_at = _NEVER  # whoever is told `mirror` may copy the file, which is open for a while still
        self.rests_until = now + rest

    def on_told(self, epoch: int) -> None:
        """What is told beside the file: the epoch of whoever is the principal. A new one ends the rest."""
        if self.role is MirrorRole.MIRROR and epoch > self.epoch:
            self.epoch = epoch
            self.rests_until = float("-inf")
