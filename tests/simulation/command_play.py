"""
Play a story of a pair with a file for each partner: the joined stage, with roles that come by a command.

All the time: nothing is stored by a partner once the other one is named, and none claims to be the principal then. At
the end everything that joined stories ask for has come true, in the file of whoever was named last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from broker.client.dialog import Dialog
from tests.simulation.command_pair import LOOK_SECONDS, Arbiter, CommandInstance, MovingApplication
from tests.simulation.command_stall import Stall, StallingLoop, StallingStore
from tests.simulation.command_story import CommandStory
from tests.simulation.instance import Instance, Part
from tests.simulation.joined_blows import Blows
from tests.simulation.joined_play import Stage, perform
from tests.simulation.joined_story import PARTNERS
from tests.simulation.joined_watch import Belief
from tests.simulation.performance import Outcome, failing_store
from tests.simulation.story import Blow

TURN_SECONDS = 3.0  # within which a turn to be stopped in has to come
AFTERMATH = 4.0  # of role_timeout: the longest answer, and the rest of what it confirms
EVER = 1 << 30  # steps; nowhere but in COMMIT
STANDING_SECONDS = 20.0  # for a failover to be through before a process goes on, at most


def play(story: CommandStory) -> Outcome:
    """
    Tell it from beginning to end.

    Raises:
        AssertionError, or whatever went wrong in it; the history so far is in its `__notes__`.
    """
    return perform(story, CommandStage, StallingLoop())


class CommandStage(Stage):
    """One performance."""

    def __init__(
        self, story: CommandStory, loop: StallingLoop, chance: random.Random, directory: Path, outcome: Outcome
    ) -> None:
        self.files = {name: directory / name / "bank.db" for name in PARTNERS}
        super().__init__(story, loop, chance, directory, outcome)
        self.store = failing_store(chance, StallingStore, loop=loop)
        self.around = replace(self.around, store=self.store)
        plain = self.applications["bank"]
        plain.db.close()
        self.bank = MovingApplication("bank", self.files[PARTNERS[0]], chance, self.note)
        self.applications["bank"] = self.bank
        self.arbiter = Arbiter(story, loop, chance, paths=self.files, application=self.bank, note=self.note)
        self.arbiter.instances = self.instances
        for name in PARTNERS:
            one = self.instances[name]
            self.instances[name] = CommandInstance(one.part, self.around, one.broker_instance, self.arbiter)
        self.blows = CommandBlows(story, self.arbiter, self.instances)

    def _parts(self) -> list[Part]:
        """Each partner has a file of its own; both begin with the same."""
        for path in self.files.values():
            path.parent.mkdir()
            with contextlib.closing(sqlite3.connect(self.paths["bank"])) as old:
                old.execute("VACUUM INTO ?", (str(path),))
        return [replace(part, path=self.files.get(part.name, part.path)) for part in super()._parts()]

    async def run(self) -> None:
        """All of it."""
        keeping = asyncio.create_task(self.arbiter.keep_application())
        try:
            await super().run()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            if isinstance(self.loop, StallingLoop) and self.loop.stall is not None:
                self.loop.stall.go_on()
            assert self.arbiter.problems == [], self.arbiter.problems[0]

    def clear_up(self) -> None:
        super().clear_up()
        self.arbiter.is_mute, self.arbiter.answer = False, 0.01

    async def settle(self, dialogs: list[Dialog]) -> None:
        """Answers that are on their way still come late, and the principal may lapse once more."""
        await asyncio.sleep(AFTERMATH * self.arbiter.story.hold)
        await super().settle(dialogs)

    def is_quiet(self) -> bool:
        return not self.bank.is_away and super().is_quiet()

    def is_known(self) -> bool:
        principal = self.blows.maybe_principal()
        return principal is not None and principal.part.name == self.arbiter.named and super().is_known()

    def check(self, dialogs: list[Dialog]) -> None:
        failed = [name for name, one in self.applications.items() for side in one.sides.values() if side.has_failed]
        assert failed == [], f"a dialog has failed at {failed[0]}, and nobody has ended any with an error"
        super().check(dialogs)

    def tell_what_is_left(self) -> None:
        if self.bank.is_away:
            self.bank.enter(self.files[self.arbiter.last])
        super().tell_what_is_left()


class CommandBlows(Blows):
    """What happens to the pair, beside what happens to all."""

    def __init__(self, story: CommandStory, arbiter: Arbiter, instances: dict[str, Instance]) -> None:
        super().__init__(story, arbiter.loop.net, instances, arbiter.note)
        self._arbiter = arbiter
        self._hold = story.hold
        self._may_stand_in_commit = story.may_stand_in_commit

    def _check_gone(self, name: str, _beliefs: list[Belief] | None, since: float) -> None:
        self.watch.silent(name, since)  # nobody follows before it is named

    async def _fail_over(self, _blow: Blow, _since: float) -> None:
        with self.watch.befall(PARTNERS):
            await self._arbiter.fail_over()

    async def _freeze(self, blow: Blow, _since: float) -> None:
        await self._stop(blow, is_overtaken=False)

    async def _overtake(self, blow: Blow, _since: float) -> None:
        await self._stop(blow, is_overtaken=True)

    async def _stop(self, blow: Blow, *, is_overtaken: bool) -> None:
        with self._principal() as principal:
            if principal is not None:
                principal.process.is_frozen = True
                await self._stand(blow, is_overtaken=is_overtaken)
                self._arbiter.loop.thaw(principal.process)

    async def _stall(self, blow: Blow, _since: float) -> None:
        await self._stop_in_turn(blow, is_overtaken=False)

    async def _overtake_turn(self, blow: Blow, _since: float) -> None:
        await self._stop_in_turn(blow, is_overtaken=True)

    async def _stop_in_turn(self, blow: Blow, *, is_overtaken: bool) -> None:
        loop = self._arbiter.loop
        with self._principal() as principal:
            if principal is None or loop.stall is not None:
                return
            deadline = loop.time() + TURN_SECONDS
            while loop.stall is None or not loop.stall.has_stood:  # a turn may have too few steps
                loop.stall = stall = self._stall_of(principal, int(blow.other))
                while not stall.has_begun and loop.time() < deadline:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.005)
                if loop.time() >= deadline:
                    break
            if stall.is_standing:
                self._note(f"{principal.part.name} stands still in a turn")
                await self._stand(blow, is_overtaken=is_overtaken)
                stall.go_on()
                loop.thaw(principal.process)
            loop.stall = None

    def _stall_of(self, principal: Instance, steps: int) -> Stall:
        leave = self._arbiter.application.leave  # as one that waits for the file for so long
        if self._may_stand_in_commit:
            return Stall(principal.process, EVER, on_standing=leave, may_stand_in_commit=True)
        return Stall(principal.process, steps, on_standing=leave)

    @contextlib.contextmanager
    def _principal(self) -> Iterator[Instance | None]:
        """The principal, which nothing else befalls meanwhile; None when that cannot be."""
        principal = self.maybe_principal()
        if principal is None or self._busy[principal.part.name] or principal.process.is_frozen:
            yield None
            return
        name = principal.part.name
        self._busy[name] += 1
        with self.watch.befall(PARTNERS):
            yield principal
        self._busy[name] -= 1

    async def _stand(self, blow: Blow, *, is_overtaken: bool) -> None:
        """It stands still; when it is overtaken, until its partner has been named and for a while longer."""
        if is_overtaken:
            failing = asyncio.create_task(self._arbiter.fail_over())
            await asyncio.wait([failing], timeout=STANDING_SECONDS)
        await asyncio.sleep(blow.seconds)

    async def _mute(self, blow: Blow, _since: float) -> None:
        self._arbiter.is_mute = True
        await asyncio.sleep(blow.seconds)
        self._arbiter.is_mute = False

    async def _slow(self, blow: Blow, _since: float) -> None:
        usual, self._arbiter.answer = self._arbiter.answer, 2.5 * self._hold
        await asyncio.sleep(max(LOOK_SECONDS, blow.seconds))
        self._arbiter.answer = usual
