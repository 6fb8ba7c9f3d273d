"""
How a story of dialogs is performed, whatever the instances and the network are, and what must have become of it.

When it has been told, everything gets well, and then everything that was promised must come true: each direction of
each dialog was delivered once and in order, both sides know that it is over, nothing is left in files or in memory, and
nobody says anything any more.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.store.sqlite.inspect import read_balance
from tests.simulation.application import Application, Side, carry_out, keep_reading
from tests.simulation.ending import check_direction, fragments_needed, is_nothing_left, maybe_end, rows_left
from tests.simulation.story import DAY, SIDES, Blow
from tests.simulation.watched_store import WatchedStore
from tests.support.virtual_time import VirtualLoop

QUIET_SECONDS = 120.0  # virtual; within which everything has to be over once the network is whole
SILENCE_SECONDS = 3.0  # ... and so long nobody says anything afterwards
FRAMES_FACTOR = 20  # frames sent for each that is needed, at most: above it somebody sends again and again
FRAMES_MORE = 400  # ... and for what time-outs and acknowledgements of a story with few messages cost
FAST_DIRECTORY = Path("/dev/shm")


@dataclass
class Outcome:
    """
    How it went.

    Shape: `frames` that both databases sent, `needed` the least there can be; `seconds` virtual; `history` in words;
    `members` nodes or instances, and `sides` by name and conversation id, as the story left them.
    """

    digest: int = 0
    frames: int = 0
    needed: int = 0
    seconds: float = 0.0
    history: list[str] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict, repr=False)
    sides: dict[str, dict[uuid.UUID, Side]] = field(default_factory=dict, repr=False)


def place() -> Path | None:
    """Where databases of stories are."""
    return FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None


def tuning(fragment_size: int) -> DialogTuning:
    """Of all databases of stories."""
    return DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=fragment_size)


def failing_store(chance: random.Random, kind: type[WatchedStore] = WatchedStore, **more: Any) -> type[WatchedStore]:
    """A class of its own, which fails by the chance of a story; not at first."""
    return type("_Store", (kind,), {"chance": chance, "failure": 0.0, **more})


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> list[Any]:
    """Cancel them, and wait; what they have raised."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def raise_first(results: Iterable[Any]) -> None:
    """What went wrong in a task that was not waited for."""
    for result in results:
        if isinstance(result, Exception):
            raise result


def forget_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Tasks of processes that are gone never end; nobody is to wait for them."""
    for task in asyncio.all_tasks(loop):
        if task is not asyncio.current_task():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            asyncio.tasks._unregister_task(task)


class Performance:
    """One performance of a story with a shop and a bank. Shape: `look_seconds` between two looks at the end."""

    look_seconds = 0.1
    fragment_size: int

    def __init__(self, story: Any, loop: VirtualLoop, chance: random.Random, outcome: Outcome) -> None:
        self.story = story
        self.loop = loop
        self.chance = chance
        self.outcome = outcome
        self.is_settling = False
        self.applications: dict[str, Application] = {}
        self.store = failing_store(chance)

    def note(self, what: str) -> None:
        """One line of the history."""
        self.outcome.history.append(f"{self.loop.time():8.3f} {what}")

    # --- what differs ---

    def start(self) -> None:
        """Everybody begins, and the network becomes as bad as the story says."""

    def lasting(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on for ever, beside reading."""
        return []

    async def strike(self, blow: Blow) -> None:
        """Something happens."""
        raise NotImplementedError

    def part(self) -> None:
        """All end."""
        raise NotImplementedError

    def get_well(self) -> None:
        """The network is whole."""
        raise NotImplementedError

    def is_sending(self) -> bool:
        """Whether anybody has something to send in memory."""
        raise NotImplementedError

    def is_known(self) -> bool:
        """Whether whoever has to know something at the end knows it."""
        return True

    def said(self) -> int:
        """A sum of all that was said so far: no more of it may come when all is over."""
        raise NotImplementedError

    def digest(self) -> int:
        """Of the story."""
        return self.said()

    def check_rest(self) -> int:
        """Of everybody, at the end; the frames that both databases sent."""
        raise NotImplementedError

    def check_now(self) -> None:
        """What must be true while it settles."""

    def tell_rest(self) -> None:
        """Into the history, what is left in memory."""

    # --- what is the same ---

    async def run(self) -> None:
        """All of it."""
        self.start()
        self.store.failure = self.story.store_failure
        shop = self.applications["shop"]
        dialogs = [
            begin_dialog(shop.db, from_service="Orders", to_service="Billing", lifetime=lifetime)
            for lifetime in self.story.lifetimes
        ]
        tasks = [asyncio.create_task(one) for one in (*map(self._read, SIDES), *self.lasting())]
        blows = [asyncio.create_task(self.strike(blow)) for blow in self.story.blows]
        try:
            await carry_out(self.story.deeds, dialogs, self.applications)
            await asyncio.gather(*blows)
            self.clear_up()
            await self.settle(dialogs)
        except BaseException:
            with suppress(AttributeError):
                self.tell_what_is_left()
            raise
        finally:
            self.outcome.seconds = self.loop.time()
            results = await ended([*tasks, *blows])
            self.part()
            for side in self.applications.values():
                side.db.close()
        raise_first(results)

    async def _read(self, name: str) -> None:
        await keep_reading(self.applications[name], self.story.habits[name], self.chance, lambda: self.is_settling)

    def clear_up(self) -> None:
        """Nothing bad happens any more."""
        self.note("the network is whole")
        self.get_well()
        self.store.failure = 0.0
        self.is_settling = True

    async def settle(self, dialogs: list[Dialog]) -> None:
        """Until all is over, and a while longer."""
        open_ones = list(dialogs)

        def is_ended() -> bool:
            open_ones[:] = [one for one in open_ones if not maybe_end(self.applications, one)]
            return not open_ones

        await self._until(is_ended, "dialogs are open")
        await self._until(self.is_quiet, "something is left")
        await self._until(self.is_known, "the principal is not known to all")
        await asyncio.sleep(0.5)
        before = self.said()
        self.outcome.digest = self.digest()
        await asyncio.sleep(SILENCE_SECONDS)
        assert before == self.said(), "somebody still sends when all is over"
        self.check(dialogs)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self.loop.time() + QUIET_SECONDS
        while not condition():
            self.check_now()
            assert self.loop.time() < deadline, f"{what} after {QUIET_SECONDS} s"
            await asyncio.sleep(self.look_seconds)

    def is_quiet(self) -> bool:
        """Whether nothing is left anywhere."""
        return is_nothing_left(self.applications) and not self.is_sending()

    def check(self, dialogs: list[Dialog]) -> None:
        """Everything promised has come true."""
        for number, dialog in enumerate(dialogs):
            ours, theirs = (self.applications[name].sides[dialog.conversation_id] for name in SIDES)
            has_failed = ours.has_failed or theirs.has_failed or self.story.lifetimes[number] < DAY
            check_direction(f"dialog {number}, shop to bank", ours, theirs, has_failed=has_failed)
            check_direction(f"dialog {number}, bank to shop", theirs, ours, has_failed=has_failed)
        assert len(self.applications["bank"].sides) <= len(dialogs), "the bank knows more dialogs than were begun"
        for side in self.applications.values():
            balance = read_balance(side.db)
            assert (balance.unaccounted, balance.held) == (0, 0), balance
        self.outcome.frames = self.check_rest()
        self.outcome.needed = fragments_needed(self.applications, self.fragment_size)
        assert self.outcome.frames <= FRAMES_FACTOR * self.outcome.needed + FRAMES_MORE, self.outcome

    def tell_what_is_left(self) -> None:
        """Into the history."""
        for line in rows_left(self.applications):
            self.note(line)
        self.tell_rest()
