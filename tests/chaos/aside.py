"""
What the judge asks of the things beside a body: type and headers, priority, conversation group, and whose turn it was.

A message is received with the type and the headers that it was sent with, and with the priority of its dialog, which
is that of its contract. The dialogs that an initiator has related have one conversation group there, and at a target
each has its own. One RECEIVE gives what is more urgent first: a timer, an error, then by priority.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.chaos.history import Entry, What
from tests.chaos.verdict import Kind, Verdict, verdict_of

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
