"""
Stories of a pair whose roles come by a command, and whose partners have a file each: joined stories, and more.

All the time: nothing is stored by a partner once the other one is named, and none claims to be the principal then. At
the end everything that joined stories ask for has come true, in the file of the partner that was named last.
"""

import asyncio
import contextlib
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from broker.client.dialog import Dialog
from broker.daemon.roles import RoleKeeper
from broker.protocol.frame import Probe, ProbeReply
from broker.routing.mirrored import MirrorRole, RoleAnswer
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.database import FileWatch
from broker.store.sqlite.transaction import DaemonConnection
from broker.supervision import Supervision
from tests.simulation import joined
from tests.simulation.instance import Instance, Part, Surroundings
from tests.simulation.joined import OVER_SECONDS, PARTNERS, Belief, Blows, JoinedStory, Stage
from tests.simulation.machine import OWNER, MachineLoop, Process
from tests.simulation.performance import (
    DAY,
    Application,
    Blow,
    Deed,
    Habit,
    Outcome,
    WatchedStore,
    draw_deed,
    failing_store,
)
from tests.simulation.world import perform
from tests.support.dialog import copy_database

BLOWS = {  # what happens, and how often
    "fail_over": 4,  # planned: the principal hears `mirror`, its file is copied, and its partner is named
    "freeze": 2,  # the principal stands still between two steps of its loop
    "stall": 3,  # ... between two steps of a turn of its writer
    "overtake": 4,  # ... its partner is named meanwhile, and it goes on
    "overtake_turn": 6,  # ... within a turn
    "mute": 2,  # the command fails, or does not end
    "slow": 2,  # its answers take long, or come too late
    "kill": 2,  # as in joined stories
    "restart": 2,
    "cut": 2,
    "reset": 1,
}
ON_NEIGHBOURS = ("kill", "restart", "cut", "reset")
STEPS = 20  # of a turn, behind which a process stands still, at most; most turns have as many
FACTORS = (0.0, 0.3, 0.9, 1.3, 2.5)  # of role_timeout: how long a process stands still, and other things last


@dataclass(frozen=True)
class CommandStory(JoinedStory):
    """
    Shape: `hold` and `interval` seconds, role_timeout and role_interval; `answer` seconds that the command takes at
    most; `is_told` whether it prints an epoch; `may_stand_in_commit` what the product does not promise anything of.
    """

    hold: float = 2.0
    interval: float = 0.3
    answer: float = 0.1
    is_told: bool = True
    may_stand_in_commit: bool = False


def draw(seed: int) -> CommandStory:
    chance = random.Random(seed)
    pick = chance.choice
    drawn = joined.draw(chance.randrange(1 << 40))
    tiers = pick([(), (1,), (1,), (2,)])
    hold = pick([1.0, 2.0, 4.0])
    blows = [_blow(chance, replace(drawn, tiers=tiers, is_pair=True), hold) for _ in range(pick([1, 2, 3, 5]))]
    deeds = [_deed(chance, len(drawn.lifetimes)) for _ in range(pick([5, 15, 30]))]
    other = {"seed": seed, "tiers": tiers, "is_pair": True, "lifetimes": (DAY,) * len(drawn.lifetimes)}
    return CommandStory(
        **vars(drawn) | other | {"deeds": tuple(deeds), "blows": tuple(sorted(blows, key=lambda blow: blow.at))},
        hold=hold,
        interval=hold * pick([0.1, 0.2]),
        answer=hold * pick([0.01, 0.1, 0.3]),
        is_told=chance.random() < 0.5,
    )


def _deed(chance: random.Random, dialogs: int) -> Deed:
    """So that there is something to store for as long as something happens; dialogs end when all is over."""
    drawn = draw_deed(chance, dialogs)
    what = drawn.what if drawn.what in ("many", "rollback") else "send"
    return replace(drawn, after=chance.uniform(0.0, 0.6), what=what)


def _blow(chance: random.Random, story: JoinedStory, hold: float) -> Blow:
    (what,) = chance.choices(list(BLOWS), weights=list(BLOWS.values()))
    at, seconds = chance.uniform(0.0, OVER_SECONDS), hold * chance.choice(FACTORS)
    if what not in ON_NEIGHBOURS:
        return Blow(at, what, "", str(chance.randrange(STEPS)), seconds)
    rows = [["shop"], *story.rows, list(story.banks)]
    number = chance.randrange(len(rows) - 1)
    name, other = chance.sample([chance.choice(rows[number]), chance.choice(rows[number + 1])], 2)
    return Blow(at, what, name, other, seconds)


PATIENCE = 60.0  # real seconds for a step, behind which a story hangs


class Stall:
    """
    One stop. `run` and `go_on` are for the loop's thread, the others for that of the turn.

    Args:
        process: Which is to stand still in its next turn that stores something.
        steps: Of that turn, behind which it does: statements, and looks whether the file is still there.
        on_standing: Called at the instant at which it stands still: from then on others wait for its file.
        may_stand_in_commit: Else it goes on to the step behind a COMMIT.
    """

    def __init__(
        self, process: Process, steps: int, *, on_standing: Callable[[], None], may_stand_in_commit: bool = False
    ) -> None:
        self.process = process
        self._on_standing = on_standing
        self.has_begun = self.has_stood = self.is_over = False
        self._steps = steps
        self._may_stand_in_commit = may_stand_in_commit
        self._came = threading.Semaphore(0)
        self._go = threading.Event()
        self._thread: threading.Thread | None = None
        self._give: Callable[[], None] = lambda: None

    @property
    def is_standing(self) -> bool:
        """Whether it has been stopped, and has not ended its turn since."""
        return self.has_stood and not self.is_over

    def run(self, work: Callable[[], None], give: Callable[[], None]) -> None:
        """Work until it is done, which `give` tells, or has to stand still."""
        self.has_begun, self._give = True, give

        def do() -> None:
            try:
                work()
            finally:
                self.is_over = True
                self._came.release()

        self._thread = threading.Thread(target=copy_context().run, args=(do,), daemon=True)
        self._thread.start()
        self._wait()
        self.process.is_frozen = self.is_standing
        if self.is_standing:
            self._on_standing()

    def go_on(self) -> None:
        if self.is_standing:
            self._go.set()
            self._wait()

    def _wait(self) -> None:
        assert self._came.acquire(timeout=PATIENCE), "a turn that was stopped hangs"
        if self.is_over:
            self._give()

    def on_statement(self, statement: str) -> None:
        if statement != "COMMIT":
            self.on_step()
        elif self._may_stand_in_commit:
            self._steps = 0
            self.on_step()

    def on_step(self) -> None:
        self._steps -= 1
        if self._steps < 0 and not self.has_stood and threading.current_thread() is self._thread:
            self.has_stood = True
            self._came.release()
            self._go.wait()


class StallingLoop(MachineLoop):
    """Virtual time for processes that stand still also within a turn. Shape: `stall` what is to come, or lasts."""

    stall: Stall | None = None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it now; or a part of it, if its process is to stand still meanwhile."""
        stall = self.stall
        is_turn = args and isinstance(args[0], WriteBatch) and args[0].frames
        if stall is None or stall.has_begun or not is_turn or OWNER.get() is not stall.process:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[Any] = self.create_future()
        found: list[tuple[Callable[[Any], None], Any]] = []

        def work() -> None:
            try:
                found.append((future.set_result, func(*args)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                found.append((future.set_exception, error))

        def give() -> None:
            ((how, what),) = found
            self.call_later(self.executor_delay(), lambda: future.done() or how(what), context=stall.process.context)

        stall.run(work, give)
        return future


class StallingStore(WatchedStore):
    """
    As `WatchedStore`, and may stand still between any two steps of a turn.

    Shape: `loop` of the story; `on_stored` is told behind a COMMIT of frames, before anything else.
    """

    loop: StallingLoop

    def __init__(self, path: Path, connection: DaemonConnection, **how: Any) -> None:
        super().__init__(path, connection, **how)
        self.on_stored: Callable[[], None] = lambda: None
        self._file_watch = _Looks(self._file_watch, self)  # type: ignore[assignment]
        self._looks = 0
        self._has_frames = False

    def write_in_writer(self, batch: WriteBatch) -> WriteResult:
        self._looks, self._has_frames = 0, bool(batch.frames)
        stall = self.loop.stall
        if stall is not None:
            self.connection.set_trace_callback(stall.on_statement)
        try:
            return super().write_in_writer(batch)
        finally:
            self.connection.set_trace_callback(None)

    def look(self) -> None:
        """It has looked whether its file is there: before the transaction, and behind it."""
        self._looks += 1
        if self._looks == 2 and self._has_frames:
            self.on_stored()
        if self.loop.stall is not None:
            self.loop.stall.on_step()


class _Looks:
    """The looks of a store, which it is told of before they are taken."""

    def __init__(self, presence: FileWatch, store: StallingStore) -> None:
        self._file_watch = presence
        self._store = store

    def check(self) -> None:
        self._store.look()
        self._file_watch.check()


LOOK_SECONDS = 0.03  # between two looks whether something has come about


class MovingApplication(Application):
    """On the file of whoever is the principal. Shape: `is_away` while it is on none, and does nothing."""

    is_away = False

    def leave(self) -> None:
        if not self.is_away:
            self.is_away = True
            self.db.close()

    def enter(self, path: Path) -> None:
        self.leave()
        self.db = sqlite3.connect(path, isolation_level=None)
        self.is_away = False

    def find(self, conversation: uuid.UUID) -> Dialog | None:
        """None as well while it is away."""
        return None if self.is_away else super().find(conversation)

    def do(self, deed: Deed, dialog: Dialog) -> None:
        if not self.is_away:
            super().do(deed, dialog)

    def read(self, habit: Habit, *, is_settling: bool) -> None:
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
        epoch = copy_database(self.paths[old], self.paths[new], "SELECT epoch FROM broker_database")
        self._epoch = max(self._epoch, epoch) + 1
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
        try:
            async with asyncio.timeout(self.hold):
                word = await self._arbiter.ask(self._who)
        except TimeoutError:
            return RoleAnswer(MirrorRole.UNKNOWN, problem="the command has not ended in time")
        self._arbiter.on_heard(self._who, word)
        return word


class CommandInstance(Instance):
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
