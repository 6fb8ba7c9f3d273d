"""
The judge: what the applications did, and what of it must not be.

Pure: histories in, verdicts out. It knows nothing of the system but what it promises: a message that was sent is
received once, in order, by the side that it is for, before the lifetime of its dialog is over, or both sides are told
that the dialog has failed; and it is not told so without a reason.

A message is known by its dialog, the side that sent it, and the digest of its body, which no two messages share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.history import Entry, What

LIFETIME_EXCEEDED = -8489

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
    without any clock noticing, and `hidden` spans in which one may be for all of the span; `astray` by database the
    span in which its wall clock was not right, so that its instants prove nothing of the dialogs that it had then;
    `is_over` whether everything was given the time to arrive; `copies` the name of what is one database for all, by
    each of its files, where it has several. Spans are monotonic seconds, and `utc_at_zero` UTC seconds at their 0.
    """

    held: Collection[Message] | None = None
    waiting: Collection[Message] = ()
    lateness: float = 2.0
    hidden: Sequence[Span] = ()
    astray: Mapping[str, Span] = field(default_factory=dict)
    utc_at_zero: float = 0.0
    is_over: bool = True
    copies: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Way:
    """One direction of a dialog."""

    sent: dict[str, Entry] = field(default_factory=dict)
    received: dict[str, Entry] = field(default_factory=dict)
    ended: Entry | None = None
    end: Entry | None = None


def judge(entries: Sequence[Entry], circumstances: Circumstances | None = None) -> list[Verdict]:
    """
    Everything that is wrong, in the order of its proof; empty when nothing is.

    Args:
        entries: Of all applications, by time.
        circumstances: What else is known.
    """
    return list(_Judge(entries, circumstances or Circumstances()).verdicts())


class _Judge:
    def __init__(self, entries: Sequence[Entry], known: Circumstances) -> None:
        self._entries = entries
        self._known = known
        self._began: dict[str, Entry] = {}
        self._ways: dict[tuple[str, bool], _Way] = defaultdict(_Way)
        self._errors: dict[str, list[Entry]] = defaultdict(list)
        self._roles: dict[str, str] = {}
        self._astray = set(self._dialogs_astray())

    def verdicts(self) -> Iterator[Verdict]:
        for (
            entry
        ) in self._entries:  # whoever receives has to find what was sent, whatever the clocks of two processes say
            event = entry.event
            if event.what is What.BEGAN:
                self._began[event.conversation] = entry
            elif event.what is What.SENT:
                self._way(entry, is_sender=True).sent[event.digest] = entry
            elif event.what is What.ENDED:
                self._way(entry, is_sender=True).ended = entry
        for entry in self._entries:
            yield from self._look(entry)
        if self._known.is_over:
            for (conversation, is_initiator), way in list(self._ways.items()):
                if conversation in self._began:
                    yield from self._missing(conversation, way, is_initiator=is_initiator)
            for conversation, errors in self._errors.items():
                if conversation in self._began:
                    yield from self._untold(conversation, errors)

    def _look(self, entry: Entry) -> Iterator[Verdict]:
        what = entry.event.what
        if what in (What.RECEIVED, What.END, What.ERROR) and self._roles.get(entry.database) == "mirror":
            yield _verdict(Kind.TO_MIRROR, entry, "received where the database is a mirror")
        if what is What.ROLE:
            self._roles[entry.database] = entry.event.note
        elif what is What.FOUND:
            yield _verdict(Kind.TO_MIRROR, entry, "stored where the database is a mirror")
        elif what is What.RECEIVED:
            yield from self._received(entry)
        elif what is What.END:
            yield from self._end(entry)
        elif what is What.ERROR:
            yield from self._error(entry)
            self._errors[entry.event.conversation].append(entry)

    def _received(self, entry: Entry) -> Iterator[Verdict]:
        event = entry.event
        way = self._way(entry, is_sender=False)
        sent = way.sent.get(event.digest)
        if event.conversation not in self._began:
            yield _verdict(Kind.INVENTED, entry, "nobody began this dialog")
        elif sent is None:
            yield _verdict(Kind.INVENTED, entry, "nobody sent this on this dialog")
        elif (first := way.received.get(event.digest)) is not None:
            yield _verdict(Kind.DOUBLED, sent, "received twice", first, entry)
        else:
            if event.number != sent.event.number:
                yield _verdict(Kind.MISNUMBERED, sent, f"received as message {event.number}", entry)
            yield from self._order(way, sent, entry)
            yield from self._lifetime(sent, entry)
            yield from self._place(way, entry)
            way.received[event.digest] = entry

    def _order(self, way: _Way, sent: Entry, entry: Entry) -> Iterator[Verdict]:
        before = next(reversed(way.received.values()), None)
        last = way.sent[before.event.digest] if before is not None else None
        if before is not None and last is not None and last.event.number > sent.event.number:
            yield _verdict(Kind.REORDERED, sent, f"received behind message {last.event.number}", before, entry)
        elif way.end is not None:
            yield _verdict(Kind.REORDERED, sent, "received behind the end of the dialog", way.end, entry)
        elif (error := self._failed_before(entry)) is not None:
            yield _verdict(Kind.REORDERED, sent, "stored when the dialog had failed there", error, entry)

    def _place(self, way: _Way, entry: Entry) -> Iterator[Verdict]:
        """A dialog stays with the database that had its first message."""
        first = next(iter(way.received.values()), entry)
        names = [self._known.copies.get(one.database, one.database) for one in (first, entry)]
        if names[0] != names[1]:
            yield _verdict(Kind.SPLIT, entry, f"{names[0]} has received this dialog before", first)

    def _lifetime(self, sent: Entry, entry: Entry) -> Iterator[Verdict]:
        began, known, stored_at = self._began[entry.event.conversation], self._known, entry.event.stored_at
        late, came_at = stored_at - began.event.until, stored_at - known.utc_at_zero
        hidden = sum(max(0.0, min(until, came_at) - max(since, sent.at)) for since, until in known.hidden)
        if entry.event.conversation not in self._astray and late > known.lateness + hidden:
            yield _verdict(Kind.LATE, sent, f"stored {late:.1f} s after the lifetime of its dialog", began, entry)

    def _end(self, entry: Entry) -> Iterator[Verdict]:
        way = self._way(entry, is_sender=False)
        if way.ended is None:
            yield _verdict(Kind.INVENTED, entry, "the far side has not ended this dialog")
        elif way.end is not None:
            yield _verdict(Kind.DOUBLED, way.ended, "its end was received twice", way.end, entry)
        elif (error := self._failed_before(entry)) is not None:
            yield _verdict(Kind.REORDERED, way.ended, "its end was stored when it had failed there", error, entry)
        way.end = entry

    def _error(self, entry: Entry) -> Iterator[Verdict]:
        began = self._began.get(entry.event.conversation)
        first = self._own_error(entry)
        if began is None:
            yield _verdict(Kind.INVENTED, entry, "nobody began this dialog")
        elif first is not None:
            yield _verdict(Kind.DOUBLED, entry, "an error of this dialog was received before", first)
        elif entry.event.number != LIFETIME_EXCEEDED:
            yield _verdict(Kind.FAILED, entry, f"error {entry.event.number}: {entry.event.note}", began)
        elif (
            entry.event.conversation not in self._astray
            and entry.event.stored_at < began.event.until - self._known.lateness
        ):
            early = began.event.until - entry.event.stored_at
            yield _verdict(Kind.FAILED, entry, f"error {LIFETIME_EXCEEDED} {early:.1f} s before its time", began)

    def _missing(self, conversation: str, way: _Way, *, is_initiator: bool) -> Iterator[Verdict]:
        """What was sent and not received. Who sent it has to know that the dialog failed; a gap is never right."""
        numbers = [way.sent[digest].event.number for digest in way.received]
        is_told = self._is_told(conversation, way, is_initiator=is_initiator) and way.end is None
        for digest, sent in way.sent.items():
            if digest in way.received or (is_told and sent.event.number > max(numbers, default=-1)):
                continue
            held, message = self._known.held, (conversation, is_initiator, sent.event.number)
            if message in self._known.waiting:
                continue
            if held is not None and message not in held:
                yield _verdict(Kind.GONE, sent, "its sender keeps it no more, and nobody has received it")
            else:
                yield _verdict(Kind.LOST, sent, "nobody has received it" + (held is not None) * ", its sender keeps it")
        is_expected = self._ways[conversation, not is_initiator].ended is None if way.ended is not None else False
        if way.ended is not None and is_expected and way.end is None and not is_told:
            yield _verdict(Kind.LOST, way.ended, "nobody has received the end of the dialog")

    def _is_told(self, conversation: str, way: _Way, *, is_initiator: bool) -> bool:
        """Whether a side knows that its dialog failed, or did not care: it had ended, and not because the other had."""
        errors = self._errors.get(conversation, ())
        has_ended = way.ended is not None and self._ways[conversation, not is_initiator].end is None
        return any(one.event.is_initiator is is_initiator for one in errors) or (bool(errors) and has_ended)

    def _untold(self, conversation: str, errors: Sequence[Entry]) -> Iterator[Verdict]:
        """Of a dialog that failed at one side the other side, if it ever came to be, has been told, or has ended."""
        for is_initiator in (True, False):
            onward, back = self._ways[conversation, is_initiator], self._ways[conversation, not is_initiator]
            is_there = is_initiator or bool(back.received) or back.end is not None
            is_over = onward.ended is not None or back.end is not None
            if is_there and not is_over and not any(one.event.is_initiator is is_initiator for one in errors):
                side = "initiator" if is_initiator else "target"
                yield _verdict(Kind.LOST, errors[0], f"its {side} was not told that it failed")

    def _own_error(self, entry: Entry) -> Entry | None:
        """The error that the side of this entry was told before."""
        told = self._errors.get(entry.event.conversation, ())
        return next((one for one in told if one.event.is_initiator is entry.event.is_initiator), None)

    def _failed_before(self, entry: Entry) -> Entry | None:
        """The error that its side was told, if it was stored before this: an error is received before what waits."""
        error = self._own_error(entry)
        is_astray = entry.event.conversation in self._astray
        return error if error is not None and not is_astray and error.event.stored_at < entry.event.stored_at else None

    def _dialogs_astray(self) -> Iterator[str]:
        """Those that a database had while its clock was not right."""
        lives: dict[str, list[Entry]] = defaultdict(list)
        for entry in self._entries:
            if entry.event.conversation:
                lives[entry.event.conversation].append(entry)
        slack = self._known.lateness
        for conversation, life in lives.items():
            begin, end = (pick(entry.at for entry in life) for pick in (min, max))
            spans = [self._known.astray[one] for one in {entry.database for entry in life} & set(self._known.astray)]
            if any(begin <= until + slack and since - slack <= end for since, until in spans):
                yield conversation

    def _way(self, entry: Entry, *, is_sender: bool) -> _Way:
        event = entry.event
        return self._ways[event.conversation, event.is_initiator is is_sender]


def _verdict(kind: Kind, entry: Entry, why: str, *more: Entry) -> Verdict:
    lines = tuple(dict.fromkeys((one.application, one.line) for one in (entry, *more)))
    number = entry.event.number if entry.event.what in (What.SENT, What.RECEIVED, What.FOUND) else -1
    return Verdict(kind, entry.application, entry.event.conversation, number, lines, why)
