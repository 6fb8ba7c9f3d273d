"""
What the judge asks of conversation timers: each comes once for each time that it is set, and not before its time.

One is set only when the one before has come, so those of a side come in the order in which they were set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from tests.chaos.history import Entry
from tests.chaos.verdict import CLOCK_SECONDS, Kind, Verdict, verdict_of

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
