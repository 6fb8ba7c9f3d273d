"""
Whoever decides about the roles of a pair with a file for each partner, and copies the file: as docs/mirroring.md asks.

Nobody else is named before role_timeout has passed since the last `principal`, unless the former principal has heard
`mirror` and says that it is none, or is gone; then its file is copied, and then its partner is named. The application
on the file ends before that, and begins anew beside the new principal once that has the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from broker.client.dialog import Dialog
from broker.daemon.roles import RoleKeeper
from broker.protocol.frame import Probe, ProbeReply
from broker.routing.mirrored import MirrorRole, RoleAnswer
from broker.supervision import Supervision
from tests.simulation.application import Application
from tests.simulation.command_stall import StallingLoop, StallingStore
from tests.simulation.command_story import CommandStory
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.joined_story import PARTNERS
from tests.simulation.story import Deed, Habit
from tests.simulation.watched_store import WatchedStore

LOOK_SECONDS = 0.03  # between two looks whether something has come about


class MovingApplication(Application):
    """On the file of whoever is the principal. Shape: `is_away` while it is on none, and does nothing."""

    is_away = False

    def leave(self) -> None:
        """It ends."""
        if not self.is_away:
            self.is_away = True
            self.db.close()

    def enter(self, path: Path) -> None:
        """It begins anew, on this file."""
        self.leave()
        self.db = sqlite3.connect(path, isolation_level=None)
        self.is_away = False

    def find(self, conversation: uuid.UUID) -> Dialog | None:
        """None as well while it is away."""
        return None if self.is_away else super().find(conversation)

    def do(self, deed: Deed, dialog: Dialog) -> None:
        """Nothing while it is away."""
        if not self.is_away:
            super().do(deed, dialog)

    def read(self, habit: Habit, *, is_settling: bool) -> None:
        """Likewise."""
        if not self.is_away:
            super().read(habit, is_settling=is_settling)


class Arbiter:
    """
    Shape: `named` who is told `principal`, None while nobody is; `last` who was last, and whose file is the one that
    counts; `answer` seconds that the command takes at most now; `is_mute` while it fails; `problems` that were met.
    """

    def __init__(
        self,
        story: CommandStory,
        loop: StallingLoop,
        chance: random.Random,
        *,
        paths: Mapping[str, Path],
        application: MovingApplication,
        note: Callable[[str], None],
    ) -> None:
        self.story = story
        self.loop = loop
        self.chance = chance
        self.paths = paths
        self.application = application
        self.note = note
        self.instances: dict[str, Instance] = {}
        self.named: str | None = PARTNERS[0]
        self.last = PARTNERS[0]
        self.answer = story.answer
        self.is_mute = False
        self.problems: list[str] = []
        self._said_at = 0.0
        self._epoch = 1
        self._heard: set[str] = set()  # who has heard `mirror` behind the last `principal`

    # --- what it is asked ---

    def ask(self, name: str) -> asyncio.Future[RoleAnswer]:
        """What the command prints that this partner has started; nothing is kept from it by the partner's standing."""
        answer: asyncio.Future[RoleAnswer] = self.loop.create_future()
        self._later(partial(self._decide, name, answer))
        return answer

    def _later(self, do: Callable[[], None]) -> None:
        self.loop.call_later(self.chance.uniform(0.0, self.answer / 2), do, context=self.loop.net.context)

    def _decide(self, name: str, answer: asyncio.Future[RoleAnswer]) -> None:
        if self.is_mute and self.chance.random() < 0.8:
            if self.chance.random() < 0.5:
                return  # it does not end
            word = RoleAnswer(MirrorRole.UNKNOWN, problem="the command has failed")
        elif self.named == name:
            self._said_at = self.loop.time()
            self._heard.discard(name)
            word = RoleAnswer(MirrorRole.PRINCIPAL, self._epoch if self.story.is_told else 0)
        else:
            word = RoleAnswer(MirrorRole.MIRROR)
        self._later(partial(_give, answer, word))

    def on_heard(self, name: str, word: RoleAnswer) -> None:
        """A partner has heard it."""
        if word.role is MirrorRole.MIRROR:
            self._heard.add(name)

    # --- what it does ---

    async def fail_over(self) -> None:
        """The partner of the principal becomes it, unless that is under way."""
        if self.named is None:
            return
        old = self.named
        (new,) = (name for name in PARTNERS if name != old)
        self.named = None
        self.note(f"{old} is not to be the principal any more")
        self.application.leave()
        while not self._is_released(old):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(LOOK_SECONDS)
        self._epoch = max(self._epoch, _copy(self.paths[old], self.paths[new])) + 1
        self.named = self.last = new
        self._said_at = self.loop.time()
        self.note(f"{new} is to be the principal")

    def _is_released(self, old: str) -> bool:
        keeper = self.instances[old].keeper
        if keeper is None:
            return True  # it is gone
        has_stepped_down = old in self._heard and keeper.standing.role is not MirrorRole.PRINCIPAL
        return has_stepped_down or self.loop.time() > self._said_at + self.story.hold

    async def keep_application(self) -> None:
        """For ever: the application is on the file of whoever has been named, once that has taken it over."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            stall = self.loop.stall
            is_standing = stall is not None and stall.is_standing
            if self.application.is_away and self.named is not None and not is_standing:
                one = self.instances[self.named]
                if (
                    one.endpoint is not None
                    and one.keeper is not None
                    and one.keeper.standing.role is MirrorRole.PRINCIPAL
                ):
                    self.application.enter(self.paths[self.named])

    def check(self, name: str, what: str) -> None:
        """A partner does what only a principal may."""
        if self.last != name:
            self.problems.append(f"{name} {what} when {self.last} is the principal")


class PlayedCommand:
    """The source of roles of one partner. Shape: as `RoleSource`."""

    name = "command"
    is_ours = False

    def __init__(self, who: str, arbiter: Arbiter) -> None:
        self.interval = arbiter.story.interval
        self.hold = arbiter.story.hold
        self._who = who
        self._arbiter = arbiter

    async def ask(self) -> RoleAnswer:
        """Run it once."""
        try:
            async with asyncio.timeout(self.hold):
                word = await self._arbiter.ask(self._who)
        except TimeoutError:
            return RoleAnswer(MirrorRole.UNKNOWN, problem="the command has not ended in time")
        self._arbiter.on_heard(self._who, word)
        return word


class CommandInstance(Instance):
    """A partner whose role comes by a command."""

    def __init__(self, part: Part, around: Surroundings, broker_instance: bytes, arbiter: Arbiter) -> None:
        super().__init__(part, around, broker_instance)
        self.arbiter = arbiter

    def kill(self, *, is_dark: bool = False) -> None:
        """As of any instance; its keeper may have been asking, and never hears an answer."""
        tasks = list(self.process.tasks)
        super().kill(is_dark=is_dark)
        for task in tasks:
            _end_asking(task)

    def _make_keeper(self, path: Path, supervision: Supervision) -> RoleKeeper:
        return RoleKeeper(
            self.part.name,
            path,
            PlayedCommand(self.part.name, self.arbiter),
            self,
            broker_instance=self.broker_instance,
            supervision=supervision,
            clock=self.arbiter.loop.time,
        )

    def _host(self, store: WatchedStore, supervision: Supervision) -> None:
        super()._host(store, supervision)
        assert self.endpoint is not None
        assert self.keeper is not None
        assert isinstance(store, StallingStore)
        store.connection.is_confirmed = self.keeper.is_confirmed
        if not self.arbiter.story.may_stand_in_commit:
            store.on_stored = partial(self.arbiter.check, self.part.name, "stores something")

    def _prove(self, probe: Probe) -> ProbeReply:
        reply = super()._prove(probe)
        if reply.role == MirrorRole.PRINCIPAL.value:
            self.arbiter.check(self.part.name, "claims to be it")
        return reply


def _give(answer: asyncio.Future[RoleAnswer], word: RoleAnswer) -> None:
    if not answer.done():
        answer.set_result(word)


def _end_asking(task: asyncio.Task[None]) -> None:
    """Let nobody find a question later that will never be answered: what asks waits even while it ends."""
    work: Any = task.get_coro()
    while work is not None and getattr(work, "__name__", "") != "_ask":
        work = getattr(work, "cr_await", None)
    if work is not None:
        with contextlib.suppress(RuntimeError):
            work.close()
        work.close()


def _copy(source: Path, destination: Path) -> int:
    """What is committed in a file, in the place of another one; its epoch."""
    fresh = destination.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(fresh)) as new:
        old.backup(new)
        (epoch,) = new.execute("SELECT epoch FROM broker_database").fetchone()
    for suffix in ("-wal", "-shm"):
        Path(f"{destination}{suffix}").unlink(missing_ok=True)
    fresh.replace(destination)
    return int(epoch)
