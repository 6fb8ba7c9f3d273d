"""
What the applications did, counted for the books: what ledgers and journals say has to be that.

The ledger of a database counts each message that was sent in it, and each end of a dialog that was told to the far
side. The journal of a host has a row for each message that was delivered there; not so where something may have been
lost before it was written, as its process was killed or could not open a file, or stood still right behind a COMMIT
until it might not act any more, while its file was copied; or where it is removed in the meantime.
What one partner of a pair has taken is received at the other one when they have changed their roles.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from tests.chaos.bookkeeping import delivered, delivered_frames, read_sent
from tests.chaos.cast import Home
from tests.chaos.configuration import journal_of
from tests.chaos.fleet import Fleet
from tests.chaos.history import Entry, What

LOSSY = frozenset({"kill", "memory", "lost-principal", "descriptors", "failover-frozen", "failover-overtaken"})
KEPT_SECONDS = 2400.0  # journals are kept for an hour, and 256 MiB of them

Key = tuple[bytes, bool, int]
"""Conversation id, whether its target sent it, sequence number; of a message."""


class Accounts:
    """Of all phases of a run."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sent: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._received: defaultdict[str, dict[Key, float]] = defaultdict(dict)
        self._lossy: set[str] = set()

    def add(self, entries: Iterable[Entry], faults: Mapping[str, Collection[str]]) -> None:
        """What was done in a phase; hosts that a fault befell in it by the fault's name."""
        for name in LOSSY & faults.keys():
            self._lossy.update(faults[name])
        for entry in entries:
            event, home = entry.event, self._fleet.copies.get(entry.database, entry.database)
            self._sent[home] += event.what is What.SENT
            self._ended[home] += event.what is What.ENDED
            if event.what is What.RECEIVED:
                key = (uuid.UUID(event.conversation).bytes, event.is_initiator, event.number)
                self._received[home][key] = entry.at

    def ledger_faults(self) -> Iterator[str]:
        """Databases whose ledger says another number; everything has to be over."""
        for home in self._fleet.homes:
            told = read_sent(self._fleet.file(home, self._fleet.serving(home)))
            least, ends = self._sent[home.name], self._ended[home.name]
            if not least <= told <= least + ends:
                yield f"ledger of {home.name}: {told} sent, and {least} by its applications, who ended {ends} dialogs"

    def journal_faults(self) -> Iterator[str]:
        """Databases of which no journal knows a message that was received there; everything has to have ended."""
        oldest = time.monotonic() - KEPT_SECONDS
        for home in self._fleet.homes:
            wanted = {key for key, at in self._received[home.name].items() if at > oldest}
            known = self._delivered(home) if wanted else None
            if known is not None and (missing := wanted - known):
                conversation, _, number = min(missing)
                yield (
                    f"journal: {home.name}: {len(missing)} of {len(wanted)} messages that were received"
                    f" are not delivered there, such as {number} of dialog {uuid.UUID(bytes=conversation)}"
                )

    def twice(self) -> Iterator[str]:
        """Fragments that both partners of a pair with one file have delivered; one of them was a mirror then."""
        for home in self._fleet.homes if self._fleet.has_lock else ():
            told = [delivered_frames(journal_of(self._fleet, name)) for name in home.hosts]
            if len(told) > 1 and (both := set.intersection(*(one or set() for one in told))):
                conversation, _, number, _ = min(both)
                yield (
                    f"journal: {home.name}: both partners have delivered {len(both)} frames,"
                    f" such as {number} of dialog {uuid.UUID(bytes=conversation)}"
                )

    def _delivered(self, home: Home) -> set[Key] | None:
        """What the journals of its hosts know; None where one may have lost something."""
        told = [None if name in self._lossy else delivered(journal_of(self._fleet, name)) for name in home.hosts]
        known = [one for one in told if one is not None]
        return set().union(*known) if len(known) == len(told) else None
