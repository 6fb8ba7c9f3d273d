"""
The judge: what the applications did, and what of it must not be.

Pure: histories in, verdicts out. It knows nothing of the system but what it promises: a message that was sent is
received once, in order, by the side that it is for, before the lifetime of its dialog is over, or both sides are told
that the dialog has failed; and it is not told so without a reason.

A message is known by its dialog, the side that sent it, and the digest of its body, which no two messages share. What
is promised is asked of what the applications did: the order is that in which they sent, the lifetime the one that they
asked for, by their own clocks. What the system says of numbers, lifetimes and instants has to agree with that.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
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


LEVELS = {What.TIMER: 12, What.ERROR: 11}  # above all priorities


class Asides:
    """
    Args:
        began: The beginning of each dialog, when it is known.
    """

    def __init__(self, began: Mapping[str, Entry]) -> None:
        self._began = began
        self._calls: dict[tuple[str, float], tuple[int, Entry]] = {}
        self._groups: dict[str, Entry] = {}  # the first entry of each group of a target
        self._targets: dict[str, Entry] = {}  # and of each dialog there

    def begun(self, entry: Entry) -> Iterator[Verdict]:
        """What is wrong with the beginning of a dialog."""
        event = entry.event
        if event.asked_group and event.asked_group != event.group:
            yield verdict_of(Kind.GROUP, entry, f"{event.group}, and {event.asked_group} was asked for")

    def look(self, entry: Entry, sent: Entry | None) -> Iterator[Verdict]:
        """
        What is wrong with something that came.

        Args:
            entry: That it did.
            sent: That it was sent; None when it was not, or is no message.
        """
        event, began = entry.event, self._began.get(entry.event.conversation)
        if sent is not None and event.what is What.RECEIVED and sent.event.beside != event.beside:
            yield verdict_of(Kind.BESIDE, sent, f"{event.beside} instead of {sent.event.beside}", entry)
        if began is not None and 0 not in (asked := (began.event.priority, event.priority)) and asked[0] != asked[1]:
            yield verdict_of(Kind.PRIORITY, entry, f"{asked[1]} instead of {asked[0]}", began)
        yield from self._group(entry, began)
        yield from self._turn(entry)

    def _group(self, entry: Entry, began: Entry | None) -> Iterator[Verdict]:
        event = entry.event
        if event.asked_group and event.asked_group != event.group:
            yield verdict_of(Kind.GROUP, entry, f"of {event.group}, when {event.asked_group} was asked for")
        if not event.group:
            return
        if event.is_initiator:
            if began is not None and began.event.group and began.event.group != event.group:
                yield verdict_of(Kind.GROUP, entry, f"{event.group}, and it began in {began.event.group}", began)
            return
        first = self._targets.setdefault(event.conversation, entry)
        if first.event.group != event.group:
            yield verdict_of(Kind.GROUP, entry, f"{event.group}, and {first.event.group} before", first)
        other = self._groups.setdefault(event.group, entry)
        if other.event.conversation != event.conversation:
            yield verdict_of(Kind.GROUP, entry, f"it is that of dialog {other.event.conversation}", other)

    def _turn(self, entry: Entry) -> Iterator[Verdict]:
        event = entry.event
        level, key = LEVELS.get(event.what, event.priority), (entry.application, event.call)
        before = self._calls.get(key)
        if event.call and level:
            self._calls[key] = level, entry
            if before is not None and before[0] < level:
                yield verdict_of(Kind.URGENCY, before[1], f"{before[0]} before {level} in one RECEIVE", entry)


LATE_SECONDS = 30.0  # behind its time: a side that ends later has had it, whatever befell its daemon

Side = tuple[str, bool]
"""Conversation id, whether it is the initiator's."""


class Timers:
    """
    Args:
        utc_at_zero: UTC seconds at which the monotonic clock was 0.
        unsettled: Dialogs that a database had while its clock was not right, or a while later.
    """

    def __init__(self, utc_at_zero: float, unsettled: Collection[str]) -> None:
        self._utc_at_zero = utc_at_zero
        self._unsettled = unsettled
        self._set: defaultdict[Side, list[Entry]] = defaultdict(list)
        self._fired: Counter[Side] = Counter()

    def set(self, entry: Entry) -> None:
        """One is set."""
        self._set[entry.event.side].append(entry)

    def fired(self, entry: Entry) -> Iterator[Verdict]:
        """One has come."""
        event, count = entry.event, self._fired[entry.event.side]
        known = [one for one in self._set[event.side] if one.at <= entry.at]
        if not known:
            yield verdict_of(Kind.INVENTED, entry, "nobody had set a timer")
            return
        if count >= len(known):
            yield verdict_of(Kind.DOUBLED, entry, "a timer that has come before", known[-1])
            return
        self._fired[event.side] += 1
        early = known[count].event.until - min(event.stored_at, event.until)
        if event.conversation not in self._unsettled and early > CLOCK_SECONDS:
            yield verdict_of(Kind.EARLY, entry, f"{early:.1f} s", known[count])

    def lost(self, over: Mapping[Side, Entry], failed: Collection[Side]) -> Iterator[Verdict]:
        """
        Those that have not come, when everything is over.

        Args:
            over: The end of each side that its application has ended.
            failed: Sides that were told that their dialog failed, which ends its timer.
        """
        for side, settings in self._set.items():
            for setting in settings[self._fired[side] :]:
                due, end = setting.event.until_most, over.get(side)
                is_brief = end is not None and end.at + self._utc_at_zero < due + LATE_SECONDS
                if not is_brief and side not in failed and side[0] not in self._unsettled:
                    yield verdict_of(Kind.LOST, setting, "its timer has never come")


LIFETIME_EXCEEDED, PEER_GONE = -8489, -8462
CAME = (What.RECEIVED, What.END, What.ERROR, What.TIMER)
TOLD_SECONDS = CLOCK_SECONDS + 1.0  # a target is told a lifetime in whole seconds, so its own may be shorter
SETTLE_SECONDS = 60.0  # behind a clock's jump forward nothing is ended for so long
COMMIT_SECONDS = 12.0  # from the instant that a daemon notes until its commit, on a machine that hardly goes on


@dataclass(slots=True)
class _Way:
    """
    One direction of a dialog, and what the side that sends in it did at last.

    Shape: `places` by digest, how many were sent before; `count` of what was sent; `undone` what was rolled back.
    """

    sent: dict[str, Entry] = field(default_factory=dict)
    undone: dict[str, Entry] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    count: int = 0
    received: dict[str, Entry] = field(default_factory=dict)
    ended: Entry | None = None
    cleaned: Entry | None = None
    end: Entry | None = None

    @property
    def over(self) -> Entry | None:
        """Its side ended it, in any way."""
        return self.cleaned or self.ended


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
        self._astray = set(self._dialogs_astray(0.0))
        self._unsettled = set(self._dialogs_astray(SETTLE_SECONDS))
        self._asides = Asides(self._began)
        self._timers = Timers(known.utc_at_zero, self._unsettled)

    def verdicts(self) -> Iterator[Verdict]:
        # Whoever receives has to find what was sent, whatever the clocks of two processes say.
        for entry in self._entries:
            yield from self._do(entry)
        for entry in self._entries:
            yield from self._look(entry)
        if self._known.is_over:
            for (conversation, is_initiator), way in list(self._ways.items()):
                if conversation in self._began:
                    yield from self._missing(conversation, way, is_initiator=is_initiator)
                    yield from self._unaware(conversation, way, is_initiator=is_initiator)
            for conversation, errors in self._errors.items():
                if conversation in self._began:
                    yield from self._untold(conversation, errors)
            over = {key: way.over for key, way in self._ways.items() if way.over is not None}
            yield from self._timers.lost(over, {one.event.side for errors in self._errors.values() for one in errors})

    def _do(self, entry: Entry) -> Iterator[Verdict]:
        """What an application did itself; of that only what it was told meanwhile can be wrong."""
        event = entry.event
        if event.what is What.BEGAN:
            self._began[event.conversation] = entry
            more, unsure = event.said_until - event.until, event.until_most - event.until
            if event.conversation not in self._astray and not -CLOCK_SECONDS <= more <= unsure + CLOCK_SECONDS:
                yield verdict_of(Kind.LIFETIME, entry, f"it is told one that is {more:+.1f} s longer")
            yield from self._asides.begun(entry)
        elif event.what is What.SENT:
            way = self._way(entry, is_sender=True)
            if event.number != way.count:
                yield verdict_of(Kind.MISNUMBERED, entry, f"it is message {way.count} of its side")
            way.sent[event.digest], way.places[event.digest] = entry, way.count
            way.count += 1
        elif event.what is What.UNDONE:
            self._way(entry, is_sender=True).undone[event.digest] = entry
        elif event.what is What.ENDED:
            self._way(entry, is_sender=True).ended = entry
        elif event.what is What.CLEANED:
            self._way(entry, is_sender=True).cleaned = entry
        elif event.what is What.SET:
            self._timers.set(entry)

    def _look(self, entry: Entry) -> Iterator[Verdict]:
        what = entry.event.what
        if what in CAME:
            if self._roles.get(entry.database) == "mirror":
                yield verdict_of(Kind.TO_MIRROR, entry, "received where the database is a mirror")
            own = self._way(entry, is_sender=True).cleaned
            if own is not None and (own.application, own.line < entry.line) == (entry.application, True):
                yield verdict_of(Kind.REORDERED, entry, "received behind its own end WITH CLEANUP", own)
            yield from self._asides.look(entry, self._way(entry, is_sender=False).sent.get(entry.event.digest))
        if what is What.ROLE:
            self._roles[entry.database] = entry.event.note
        elif what is What.FOUND:
            what_of_it = f": {entry.event.note}" if entry.event.note else ""
            yield verdict_of(Kind.TO_MIRROR, entry, f"stored where the database is a mirror{what_of_it}")
        elif what is What.RECEIVED:
            yield from self._received(entry)
        elif what is What.END:
            yield from self._end(entry)
        elif what is What.ERROR:
            yield from self._error(entry)
            self._errors[entry.event.conversation].append(entry)
        elif what is What.TIMER:
            yield from self._timers.fired(entry)

    def _received(self, entry: Entry) -> Iterator[Verdict]:
        event = entry.event
        way = self._way(entry, is_sender=False)
        sent = way.sent.get(event.digest)
        if sent is None and (undone := way.undone.get(event.digest)) is not None:
            yield verdict_of(Kind.UNDONE, undone, "received, though it was rolled back", entry)
        elif event.conversation not in self._began:
            yield verdict_of(Kind.INVENTED, entry, "nobody began this dialog")
        elif sent is None:
            yield verdict_of(Kind.INVENTED, entry, "nobody sent this on this dialog")
        elif (first := way.received.get(event.digest)) is not None:
            yield verdict_of(Kind.DOUBLED, sent, "received twice", first, entry)
        else:
            if event.number != sent.event.number:
                yield verdict_of(Kind.MISNUMBERED, sent, f"received as message {event.number}", entry)
            yield from self._order(way, sent, entry)
            yield from self._lifetime(sent, entry)
            yield from self._place(entry)
            way.received[event.digest] = entry

    def _order(self, way: _Way, sent: Entry, entry: Entry) -> Iterator[Verdict]:
        before = next(reversed(way.received.values()), None)
        last = way.places[before.event.digest] if before is not None else -1
        if before is not None and last > way.places[entry.event.digest]:
            yield verdict_of(Kind.REORDERED, sent, f"received behind message {last}", before, entry)
        elif way.end is not None:
            yield verdict_of(Kind.REORDERED, sent, "received behind the end of the dialog", way.end, entry)
        elif (error := self._failed_before(entry)) is not None:
            yield verdict_of(Kind.REORDERED, sent, "stored when the dialog had failed there", error, entry)

    def _place(self, entry: Entry) -> Iterator[Verdict]:
        """
        A dialog is for the database that began it, and for one that has the service it was begun to; and it stays with
        the one that had its first message.
        """
        began, here = self._began[entry.event.conversation], self._name(entry)
        if entry.event.is_initiator:
            if here != self._name(began):
                yield verdict_of(Kind.MISDELIVERED, entry, f"{self._name(began)} began this dialog", began)
            return
        asked, has = began.event.note.partition(" ")[0], self._known.services.get(entry.database)
        if has not in (None, asked):
            yield verdict_of(Kind.MISDELIVERED, entry, f"it is for {asked}, and {here} has {has}", began)
        first = next(iter(self._way(entry, is_sender=False).received.values()), entry)
        if self._name(first) != here:
            yield verdict_of(Kind.SPLIT, entry, f"{self._name(first)} has received this dialog before", first)

    def _name(self, entry: Entry) -> str:
        return self._known.copies.get(entry.database, entry.database)

    def _lifetime(self, sent: Entry, entry: Entry) -> Iterator[Verdict]:
        """By when it was stored, as the daemon says; and as far as its sender and its receiver know better."""
        began, known, event = self._began[entry.event.conversation], self._known, entry.event
        if event.conversation in self._unsettled:
            return
        said = event.stored_at - known.utc_at_zero
        for came_at, slack, who in (
            (said, 0.0, "as its daemon says"),
            (max(sent.at, event.idle_at), COMMIT_SECONDS, "at the earliest"),
        ):
            late = came_at + known.utc_at_zero - began.event.until_most
            hidden = sum(max(0.0, min(until, came_at) - max(since, sent.at)) for since, until in known.hidden)
            if late > known.lateness + slack + hidden:
                yield verdict_of(
                    Kind.LATE, sent, f"stored {late:.1f} s after its dialog's lifetime, {who}", began, entry
                )
                return

    def _end(self, entry: Entry) -> Iterator[Verdict]:
        way = self._way(entry, is_sender=False)
        if way.ended is None or way.ended.event.number >= 0:
            yield verdict_of(Kind.INVENTED, entry, "the far side has not ended this dialog, or with an error")
        elif way.end is not None:
            yield verdict_of(Kind.DOUBLED, way.ended, "its end was received twice", way.end, entry)
        elif (error := self._failed_before(entry)) is not None:
            yield verdict_of(Kind.REORDERED, way.ended, "its end was stored when it had failed there", error, entry)
        if way.ended is not None and entry.event.conversation in self._began:
            yield from self._lifetime(way.ended, entry)
            yield from self._place(entry)
        way.end = entry

    def _error(self, entry: Entry) -> Iterator[Verdict]:
        began = self._began.get(entry.event.conversation)
        first = self._own_error(entry)
        if began is None:
            yield verdict_of(Kind.INVENTED, entry, "nobody began this dialog")
        elif first is not None:
            yield verdict_of(Kind.DOUBLED, entry, "an error of this dialog was received before", first)
        elif entry.event.number == LIFETIME_EXCEEDED:
            slack = CLOCK_SECONDS if entry.event.is_initiator else TOLD_SECONDS
            early = began.event.until - entry.event.stored_at
            if entry.event.conversation not in self._astray and early > slack:
                yield verdict_of(Kind.FAILED, entry, f"error {LIFETIME_EXCEEDED} {early:.1f} s before its time", began)
        elif entry.event.number == PEER_GONE and (cleaned := self._way(entry, is_sender=False).cleaned) is not None:
            if entry.at < cleaned.at:
                yield verdict_of(Kind.FAILED, entry, "told that the far side has forgotten it before it had", cleaned)
        else:
            ended = self._way(entry, is_sender=False).ended
            if ended is None or (ended.event.number, ended.event.note) != (entry.event.number, entry.event.note):
                yield verdict_of(Kind.FAILED, entry, f"error {entry.event.number}: {entry.event.note}", began)
            else:
                yield from self._lifetime(ended, entry)
        if began is not None:
            yield from self._place(entry)

    def _missing(self, conversation: str, way: _Way, *, is_initiator: bool) -> Iterator[Verdict]:
        """What was sent and not received. Who sent it has to know that the dialog failed; a gap is never right."""
        places = [way.places[digest] for digest in way.received]
        far = self._ways[conversation, not is_initiator]
        is_told = self._is_told(conversation, way, is_initiator=is_initiator) and way.end is None
        is_told = is_told or self._is_left(conversation, way, far, is_initiator=is_initiator)
        for digest, sent in way.sent.items():
            if digest in way.received or (is_told and way.places[digest] > max(places, default=-1)):
                continue
            held, message = self._known.held, (conversation, is_initiator, sent.event.number)
            if message in self._known.waiting:
                continue
            if held is not None and message not in held:
                yield verdict_of(Kind.GONE, sent, "its sender keeps it no more, and nobody has received it")
            else:
                yield verdict_of(
                    Kind.LOST, sent, "nobody has received it" + (held is not None) * ", its sender keeps it"
                )
        if way.ended is not None and far.over is None and way.end is None and not is_told:
            yield verdict_of(Kind.LOST, way.ended, "nobody has received the end of the dialog")

    def _is_told(self, conversation: str, way: _Way, *, is_initiator: bool) -> bool:
        """
        Whether a side knows that its dialog failed, or did not care: it had ended, and not because the other had. An
        error with which the other side has ended excuses nothing: it comes behind everything that was sent.
        """
        if is_initiator and self._outlives(conversation):
            return True
        errors = [one for one in self._errors.get(conversation, ()) if one.event.number < 0]
        has_ended = way.ended is not None and self._ways[conversation, not is_initiator].end is None
        return any(one.event.is_initiator is is_initiator for one in errors) or (bool(errors) and has_ended)

    def _is_left(self, conversation: str, way: _Way, far: _Way, *, is_initiator: bool) -> bool:
        """
        Whether what its side sent last need not have come: one of the two sides has forgotten the dialog; or it is the
        target's, and the initiator has ended of its own accord. A target ends only when it has everything.
        """
        if way.end is not None:
            return False
        was_told = any(one.event.is_initiator for one in self._errors.get(conversation, ()))
        return bool(way.cleaned or far.cleaned) or (not is_initiator and far.ended is not None and not was_told)

    def _unaware(self, conversation: str, way: _Way, *, is_initiator: bool) -> Iterator[Verdict]:
        """A side whose far side has forgotten the dialog, if it ever came to be, has been told that it failed."""
        far = self._ways[conversation, not is_initiator]
        is_there = bool(way.received) and way.end is None and far.over is None
        errors = self._errors.get(conversation, ())
        if (
            way.cleaned is not None
            and is_there
            and not any(one.event.is_initiator is not is_initiator for one in errors)
        ):
            side = "target" if is_initiator else "initiator"
            yield verdict_of(Kind.LOST, way.cleaned, f"its {side} was never told that it failed")

    def _untold(self, conversation: str, errors: Sequence[Entry]) -> Iterator[Verdict]:
        """Of a dialog that failed at one side the other side, if it ever came to be, has been told, or has ended."""
        for is_initiator in (True, False):
            onward, back = self._ways[conversation, is_initiator], self._ways[conversation, not is_initiator]
            is_there = is_initiator or bool(back.received) or back.end is not None
            is_over = onward.over is not None or back.end is not None
            if is_initiator and self._outlives(conversation):
                continue
            if is_there and not is_over and not any(one.event.is_initiator is is_initiator for one in errors):
                side = "initiator" if is_initiator else "target"
                yield verdict_of(Kind.LOST, errors[0], f"its {side} was not told that it failed")

    def _outlives(self, conversation: str) -> bool:
        """
        Whether an initiator need not know yet that its dialog failed: it began while its clock was ahead, so its
        lifetime is not over by the clock that is right again; that of the target is, and each tells its own alone.
        """
        if conversation not in self._astray or conversation not in self._began:
            return False
        errors = self._errors.get(conversation, ())
        is_over_there = any(one.event.number == LIFETIME_EXCEEDED and not one.event.is_initiator for one in errors)
        now = max(entry.at for entry in self._entries) + self._known.utc_at_zero
        return is_over_there and self._began[conversation].event.until > now

    def _own_error(self, entry: Entry) -> Entry | None:
        """The error that the side of this entry was told before."""
        told = self._errors.get(entry.event.conversation, ())
        return next((one for one in told if one.event.is_initiator is entry.event.is_initiator), None)

    def _failed_before(self, entry: Entry) -> Entry | None:
        """The error that its side was told, if it was stored before this: an error is received before what waits."""
        error = self._own_error(entry)
        is_astray = entry.event.conversation in self._astray
        return error if error is not None and not is_astray and error.event.stored_at < entry.event.stored_at else None

    def _dialogs_astray(self, behind: float) -> Iterator[str]:
        """Those that a database had while its clock was not right, or for so many seconds behind."""
        lives: dict[str, list[Entry]] = defaultdict(list)
        for entry in self._entries:
            if entry.event.conversation:
                lives[entry.event.conversation].append(entry)
        slack = self._known.lateness
        for conversation, life in lives.items():
            begin, end = (pick(entry.at for entry in life) for pick in (min, max))
            databases = {entry.database for entry in life}
            spans = [span for database, span in self._known.astray if database in databases]
            if any(begin <= until + behind + slack and since - slack <= end for since, until in spans):
                yield conversation

    def _way(self, entry: Entry, *, is_sender: bool) -> _Way:
        event = entry.event
        return self._ways[event.conversation, event.is_initiator is is_sender]
