"""
The judge of a fleet whose dialogs are stored: what has come of each message, by the applications' own exact records.

A body begins with a number of its own, so one that has come twice, in a wrong order, or that nobody has committed, is
told apart from one that is missing.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from broker.client.dialog import Dialog
from tests.simulation.application import Application
from tests.simulation.joined_watch import Belief, Watch
from tests.simulation.watched_store import WatchedStore

NUMBER_BYTES = 8
TOLD_LINES = 300  # of what happened last
AGAIN_SECONDS = 5.0  # until held frames are looked at again, once some were held too long


class Diary:
    """What has happened, in words: a sum of all of it, and its last lines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.sum = 0
        self.lines: deque[str] = deque(maxlen=TOLD_LINES)
        self._clock = clock

    def note(self, what: str) -> None:
        """One line."""
        line = f"{self._clock():8.3f} {what}"
        self.sum = zlib.crc32(line.encode(), self.sum)
        self.lines.append(line)


class Said:
    """What instances log, counted; `errors` but for those of a store that was made to fail."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.errors: list[Any] = []

    def __call__(self, _logger: Any, method: str, event: Any) -> Any:
        """As a processor of structlog."""
        self.events[event["event"]] += 1
        if method in {"error", "critical", "exception"} and event["event"] != "store failed":
            self.errors.append(event)
        raise structlog.DropEvent


class Clerk(Application):
    """An application whose bodies can be told apart. Shape: `numbers` of all bodies of the fleet so far."""

    numbers: Iterator[int]

    def __init__(self, numbers: Iterator[int], name: str, path: Path, chance: random.Random, diary: Diary) -> None:
        super().__init__(name, path, chance, diary.note)
        self.numbers = numbers

    def body(self, size: int) -> bytes:
        """Its number, and what chance adds."""
        filling = self._random.randbytes(size - NUMBER_BYTES) if size > NUMBER_BYTES else b""
        return next(self.numbers).to_bytes(NUMBER_BYTES) + filling


class FleetStore(WatchedStore):
    """A database of the fleet. Shape: `problems` of all of them, what has gone wrong in a turn."""

    problems: list[str]

    def write_in_writer(self, batch: Any) -> Any:
        """As `WatchedStore`; what is found in it is found at once, though its task is begun anew."""
        try:
            return super().write_in_writer(batch)
        except AssertionError as error:
            self.problems.append(f"{self.path.name}: {error}")
            raise


class FleetWatch(Watch):
    """What has to be true while it lasts is noted where it is not, and the fleet goes on. Shape: `noted` in words."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.noted: list[str] = []

    def check_silence(self, near: str, far: str, since: float, *, own: int) -> None:
        """As `Watch`."""
        self._note(lambda: super(FleetWatch, self).check_silence(near, far, since, own=own))

    def check_followed(self, beliefs: Iterable[Belief], heir: str, since: float, *, own: int = 0) -> None:
        """As `Watch`."""
        self._note(lambda: super(FleetWatch, self).check_followed(beliefs, heir, since, own=own))

    async def hold_to_ways(self) -> None:
        """As `Watch`, for ever."""
        while True:
            try:
                await super().hold_to_ways()
            except AssertionError as error:
                self.noted.append(str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    def _note(self, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self.noted.append(f"{self._clock():.3f}: {error}")


@dataclass(frozen=True)
class Talk:
    """A dialog and both applications."""

    dialog: Dialog
    shop: Clerk
    bank: Clerk

    @property
    def sides(self) -> dict[str, Application]:
        """As `maybe_end` asks."""
        return {"shop": self.shop, "bank": self.bank}

    def directions(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """What was sent and what has come, there and back."""
        ours, theirs = (one.sides[self.dialog.conversation_id] for one in (self.shop, self.bank))
        yield ours.sent, theirs.got
        yield theirs.sent, ours.got


def judge(talks: Iterable[Talk], *, is_over: bool) -> Counter[str]:
    """What is wrong, by its name; what has not come yet is lost only when all is over, or later ones have come."""
    wrong: Counter[str] = Counter()
    for talk in talks:
        for sent, got in talk.directions():
            if got != sent[: len(got)] or (is_over and len(got) < len(sent)):
                wrong += told_apart(sent, got, is_over=is_over)
    return wrong


def told_apart(sent: list[bytes], got: list[bytes], *, is_over: bool) -> Counter[str]:
    """Of one direction of a dialog: messages that are doubled, invented, out of order, or lost."""
    wrong: Counter[str] = Counter()
    places = {body: place for place, body in enumerate(sent)}
    seen: set[int] = set()
    newest = -1
    for body in got:
        place = places.get(body)
        if place is None:
            wrong["invented"] += 1
        elif place in seen:
            wrong["doubled"] += 1
        else:
            wrong["out of order"] += place < newest
            newest = max(newest, place)
            seen.add(place)
    wrong["lost"] = len(set(range(len(sent) if is_over else newest)) - seen)
    return +wrong


def counted(talks: Iterable[Talk]) -> tuple[int, int, int]:
    """Messages to banks, messages to shops, and a sum over all that has come."""
    there = back = total = 0
    for talk in talks:
        (_, to_bank), (_, to_shop) = talk.directions()
        there, back = there + len(to_bank), back + len(to_shop)
        for body in (*to_bank, *to_shop):
            total = zlib.crc32(body, total)
    return there, back, total
