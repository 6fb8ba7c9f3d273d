"""
What the judge of a fault run says, and what it has to be told beside the histories.

Pure, as is all of the judge (`tests.chaos.judge`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.history import Entry, What

CLOCK_SECONDS = 0.2  # two looks at one clock of a host may disagree by that much, where nobody has stepped it

Message = tuple[str, bool, int]
"""Conversation id, whether the initiator's side sent it, sequence number."""
Span = tuple[float, float]
"""From, until."""


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    GONE = "acknowledged but gone"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    MISNUMBERED = "another sequence number"
    INVENTED = "invented"
    TO_MIRROR = "delivered to a mirror"
    LATE = "delivered after the lifetime"
    FAILED = "failed without a reason"
    SPLIT = "divided between databases"
    MISDELIVERED = "delivered to somebody else"
    LIFETIME = "another lifetime than was asked for"
    UNDONE = "sent by a transaction that was rolled back"
    BESIDE = "another type or other headers"
    PRIORITY = "another priority"
    URGENCY = "received before what is more urgent"
    GROUP = "another conversation group"
    EARLY = "a timer before its time"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Shape: `number` of the message in its direction, -1 = none; `lines` (application, line) of what proves it."""

    kind: Kind
    application: str
    conversation: str
    number: int
    lines: tuple[tuple[str, int], ...]
    why: str = ""

    def __str__(self) -> str:
        where = ", ".join(f"{application}:{line}" for application, line in self.lines)
        message = f"message {self.number} of " if self.number >= 0 else ""
        return f"{self.kind}: {self.application}: {message}dialog {self.conversation}: {self.why} ({where})"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """
    What else is known.

    Shape: `held` messages that their senders' databases still keep, None = nobody has looked; `waiting` messages in the
    queues of their receivers, who have not asked for them yet; `lateness` seconds that a message may be on its way
    without any clock noticing, and `hidden` spans in which one may be for all of the span; `astray` databases, each
    with a span in which its wall clock was not right, so that its instants prove nothing of the dialogs that it had
    then;
    `is_over` whether everything was given the time to arrive; `copies` the name of what is one database for all, by
    each of its files, where it has several; `services` the service of each file, where that is known. Spans are
    monotonic seconds, and `utc_at_zero` UTC seconds at their 0.
    """

    held: Collection[Message] | None = None
    waiting: Collection[Message] = ()
    lateness: float = 2.0
    hidden: Sequence[Span] = ()
    astray: Sequence[tuple[str, Span]] = ()
    utc_at_zero: float = 0.0
    is_over: bool = True
    copies: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)


def verdict_of(kind: Kind, entry: Entry, why: str, *more: Entry) -> Verdict:
    """One about what an entry tells of, with the entries that prove it."""
    lines = tuple(dict.fromkeys((one.application, one.line) for one in (entry, *more)))
    number = entry.event.number if entry.event.what in (What.SENT, What.RECEIVED, What.FOUND, What.UNDONE) else -1
    return Verdict(kind, entry.application, entry.event.conversation, number, lines, why)
