"""
What an initiator of a fault run means to do with a dialog: drawn by the seed of the run before the dialog begins.

How a dialog ends is told to nobody but by what is done: the target learns it from the type of the last message, or from
the end. A dialog that its initiator ends, or in which timers are set, has a lifetime that no fault outlasts, so nothing
excuses an end or a timer that does not come; one that is cleaned up has a brief one, for its target may never be told.
No target cleans up: what comes again would begin the dialog anew there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from broker.conversation.message_types import DEFAULT
from tests.chaos.talk import CLOSE, LAST, MESSAGE, PATIENT, URGENT

MESSAGES = (6, 30)  # on a dialog, least and most
LIFETIME = 3600.0
BRIEF_SECONDS = (3.0, 6.0)  # lifetime of a brief dialog
BRIEF_SHARE = 0.15  # of those that may be brief
TIMERS_SHARE, TIMER_SECONDS = 0.25, (0.3, 2.0)  # of those that may have timers; until one is due
RELATED_SHARE = 0.3
HASTY_SHARE = 0.5  # of those that are cleaned up


class Close(StrEnum):
    """Who ends a dialog first, and how."""

    TARGET = "the target, behind the last message"
    ANSWERED = "the initiator, when it has all answers"
    BEHIND = "the initiator, right behind its last message"
    ERROR = "the initiator, with an error"
    CLEANUP = "the initiator forgets it, and tells nobody"


CLOSES = {Close.TARGET: 54, Close.ANSWERED: 16, Close.BEHIND: 10, Close.ERROR: 10, Close.CLEANUP: 10}
CONTRACTS = {DEFAULT: 60, URGENT: 20, PATIENT: 20}


@dataclass(frozen=True)
class Plan:
    """
    What is to be done with a dialog.

    Shape: `total` messages that are sent; `timers` seconds until each of the timers that are set one after the other,
    before the last message; `is_hasty` whether a dialog is cleaned up before any answer has come.
    """

    close: Close
    total: int
    lifetime: float
    contract: str
    timers: tuple[float, ...]
    is_related: bool
    is_hasty: bool

    def type_of(self, number: int) -> str:
        """The type of a message of the initiator."""
        if number + 1 < self.total or self.close in (Close.ERROR, Close.CLEANUP):
            return MESSAGE
        return LAST if self.close is Close.ANSWERED else CLOSE


def make_plan(seed: str, *, may_fail: bool) -> Plan:
    """
    Draw one.

    Args:
        seed: Another one for each dialog.
        may_fail: Whether the initiator may end it with an error: a reader that is given one message at a time would
            read the error before what waits.
    """
    dice = random.Random(seed)
    [close] = dice.choices(list(CLOSES), list(CLOSES.values()))
    [contract] = dice.choices(list(CONTRACTS), list(CONTRACTS.values()))
    if close is Close.ERROR and not may_fail:
        close = Close.BEHIND
    is_brief = close is Close.CLEANUP or (close is Close.TARGET and dice.random() < BRIEF_SHARE * 2)
    timers = dice.randint(1, 2) if not is_brief and dice.random() < TIMERS_SHARE else 0
    return Plan(
        close,
        total=dice.randint(*MESSAGES),
        lifetime=round(dice.uniform(*BRIEF_SECONDS)) if is_brief else LIFETIME,
        contract=contract,
        timers=tuple(round(dice.uniform(*TIMER_SECONDS), 1) for _ in range(timers)),
        is_related=dice.random() < RELATED_SHARE,
        is_hasty=dice.random() < HASTY_SHARE,
    )
