"""The role of one database is kept: taken over when it is free, left when it is not, handed over when asked."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from broker.config.settings import Settings
from broker.daemon import roles
from broker.daemon.roles import CommandSource, LockSource, RoleKeeper, RoleWatch, Sight, role_source
from broker.errors import BrokerError, SettingError, StatementError, StoreUnavailableError
from broker.routing.mirrored import EPOCH_TOLD_MAX, MirrorRole, RoleAnswer
from broker.store.sqlite.database import HELD, lock_path, lock_store
from broker.store.sqlite.role_file import PrincipalRecord, read_principal, role_path, write_principal
from broker.store.sqlite.transaction import LAPSED
from broker.supervision import Supervision
from tests.support.loopback import until

INSTANCE = b"i" * 16


class Storage:
    """One file and its lock, which several instances try for; `log` what the keepers had their instances do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = ""
        self.epoch = 0
        self.error: BrokerError | None = None
        self.log: list[str] = []
        self.opens: Callable[[], object] = lambda: None


class Hosts:
    """The databases of one instance, as its keeper sees them."""

    def __init__(self, name: str, storage: Storage) -> None:
        self.name = name
        self.storage = storage

    async def open(self, name: str, least_epoch: int) -> PrincipalRecord:
        storage = self.storage
        if storage.error is not None:
            raise storage.error
        if storage.holder:
            raise StoreUnavailableError(name, HELD)
        storage.opens()
        storage.holder, storage.epoch = self.name, max(storage.epoch + 1, least_epoch)
        reign = PrincipalRecord(uuid.UUID(bytes=INSTANCE), storage.epoch, self.name, 1_800_000_000.0)
        write_principal(storage.path, reign)
        self._note("opens")
        return reign

    def refuse(self, _name: str, _broker_instance: bytes | None) -> None:
        self._note("refuses")

    async def close(self, _name: str) -> None:
        self.storage.holder = ""
        self._note("closes")

    def announce(self, broker_instance: bytes) -> None:
        assert broker_instance == INSTANCE
        self._note("announces")

    def _note(self, what: str) -> None:
        self.storage.log.append(f"{self.name} {what}")


class Said:
    """A source of roles that says what a test wants."""

    name = "command"
    interval = 0.005
    hold = 1000.0
    is_ours = False

    def __init__(self, word: RoleAnswer) -> None:
        self.word = word
        self.asked = 0
        self.thinks: Callable[[], object] = lambda: None

    async def ask(self) -> RoleAnswer:
        self.asked += 1
        said = self.word
        self.thinks()
        return said


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now

    def jump(self) -> None:
        """As if the process had stood still for longer than a word counts."""
        self.now += Said.hold + 1


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "orders.db")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "REST_SECONDS", 0.5)
    monkeypatch.setattr(roles, "RETRY_SECONDS", 0.01)


@asynccontextmanager
async def keeping(
    name: str, storage: Storage, source: Any = None, clock: Clock | None = None
) -> AsyncIterator[RoleKeeper]:
    keeper = RoleKeeper("orders", storage.path, source or LockSource(), Hosts(name, storage), clock=clock)
    await keeper.start()
    try:
        yield keeper
    finally:
        await keeper.close()


def role(keeper: RoleKeeper) -> tuple[MirrorRole, int]:
    return keeper.standing.role, keeper.standing.epoch


async def test_one_is_principal_and_the_other_is_told_by_whom_and_takes_over_what_is_free(storage: Storage) -> None:
    clock = Clock()
    async with keeping("a", storage, clock=clock) as first, keeping("b", storage) as second:
        clock.now += 1e9  # the lock does not expire
        mirror = second.standing
        assert ((MirrorRole.PRINCIPAL, 1), (MirrorRole.MIRROR, 1)) == (role(first), role(second))
        assert (INSTANCE, "a", "lock") == (mirror.broker_instance, mirror.principal, mirror.source)
        assert ["a opens", "a announces", "b refuses", "b announces"] == storage.log

        storage.holder = ""  # as if the first had been killed
        await until(lambda: role(second) == (MirrorRole.PRINCIPAL, 2))

        assert ["b opens", "b announces"] == storage.log[-2:]


async def test_what_is_handed_over_is_refused_announced_and_closed_in_this_order(storage: Storage) -> None:
    async with keeping("a", storage) as first, keeping("b", storage) as second:
        storage.log.clear()

        told = await first.fail_over()

        assert "database orders handed over: b is the principal, epoch 2" == told
        assert ["a refuses", "a announces", "a closes", "b opens", "b announces"] == storage.log
        assert ((MirrorRole.MIRROR, 2), (MirrorRole.PRINCIPAL, 2)) == (role(first), role(second))
        with pytest.raises(StatementError, match="say this to its principal, 'b'") as caught:
            await first.fail_over()
        assert 1470 == caught.value.number


async def test_whoever_handed_over_takes_over_at_once_when_the_new_principal_is_lost(storage: Storage) -> None:
    async with keeping("a", storage) as first, keeping("b", storage) as second:
        await first.fail_over()
        between = first.standing
        await second.close()
        rests_until = asyncio.get_running_loop().time() + roles.REST_SECONDS / 2

        await until(lambda: role(first) == (MirrorRole.PRINCIPAL, 3))

        assert (False, "", "b") == (between.is_resting, between.problem, between.principal)
        assert asyncio.get_running_loop().time() < rests_until


async def test_while_a_failover_is_under_way_another_one_is_refused_and_told_so(storage: Storage) -> None:
    async with keeping("a", storage) as alone:
        handing_over = asyncio.create_task(alone.fail_over())
        await asyncio.sleep(0)

        with pytest.raises(StatementError, match="a failover of the database 'orders' is under way") as at_once:
            await alone.fail_over()
        await until(lambda: alone.standing.is_resting)
        with pytest.raises(StatementError, match="a failover of the database 'orders' is under way"):
            alone.check_fail_over()

        assert 1470 == at_once.value.number
        assert "" == alone.standing.principal  # not this instance itself
        handing_over.cancel()
        await asyncio.gather(handing_over, return_exceptions=True)
        with pytest.raises(StatementError, match=r"is a mirror here: say this to its principal$"):
            alone.check_fail_over()


@pytest.mark.usefixtures("quick")
async def test_what_nobody_takes_over_comes_back(storage: Storage) -> None:
    async with keeping("a", storage) as alone:
        handing_over = asyncio.create_task(alone.fail_over())
        await until(lambda: alone.standing.role is MirrorRole.MIRROR)
        between = alone.standing

        told = await handing_over

        assert (True, "handed over by SET PARTNER FAILOVER") == (between.is_resting, between.problem)
        assert told.startswith("database orders: no instance took it over within 0.5 s, so this instance is the")
        assert ((MirrorRole.PRINCIPAL, 2), "") == (role(alone), alone.standing.problem)
        storage.error = StoreUnavailableError("orders.db", "the disk is full")
        assert "no instance has taken it over yet, and this one goes on trying" in await alone.fail_over()
        assert "store orders.db: the disk is full" == alone.standing.problem
        storage.error = None
        await until(lambda: alone.standing.role is MirrorRole.PRINCIPAL)


async def test_whoever_is_fenced_off_refuses_at_once_and_rests(storage: Storage) -> None:
    async with keeping("a", storage) as fenced:
        storage.log.clear()

        fenced.on_demoted("its epoch is 7")
        at_once = list(storage.log)
        await until(lambda: "a closes" in storage.log)

        standing = fenced.standing
        assert ["a refuses"] == at_once
        assert (MirrorRole.MIRROR, True, "its epoch is 7") == (standing.role, standing.is_resting, standing.problem)


@pytest.mark.parametrize("error", [StoreUnavailableError("orders.db", "full"), SettingError("a", "is a copy")])
async def test_what_stands_in_the_way_at_the_start_is_raised(storage: Storage, error: BrokerError) -> None:
    storage.error = error

    with pytest.raises(type(error)):
        async with keeping("a", storage):
            pass


@pytest.mark.usefixtures("quick")
async def test_what_stands_in_the_way_later_is_told_once_and_tried_again(storage: Storage) -> None:
    with structlog.testing.capture_logs() as logs:
        async with keeping("a", storage), keeping("b", storage) as second:
            storage.holder, storage.error = "", SettingError("databases.orders.path", "is a copy")
            await until(lambda: second.standing.problem)
            await asyncio.sleep(0.1)
            told = [one["problem"] for one in logs if one["event"] == "database role in doubt"]

            storage.error = None
            await until(lambda: role(second) == (MirrorRole.PRINCIPAL, 2))

            assert ["databases.orders.path: is a copy"] == told
            assert "" == second.standing.problem


async def test_a_word_of_another_makes_and_ends_a_principal(storage: Storage) -> None:
    source = Said(RoleAnswer(MirrorRole.MIRROR))
    async with keeping("a", storage, source) as keeper:
        source.word = RoleAnswer(MirrorRole.PRINCIPAL, 12)
        await until(lambda: role(keeper) == (MirrorRole.PRINCIPAL, 12))

        source.word = RoleAnswer(MirrorRole.PRINCIPAL, 15)  # somebody else was it in between
        await until(lambda: role(keeper) == (MirrorRole.PRINCIPAL, 15))
        source.word = RoleAnswer(MirrorRole.MIRROR)
        await until(lambda: keeper.standing.role is MirrorRole.MIRROR)

        assert not keeper.standing.is_resting
        with pytest.raises(StatementError, match="fail over where that gets them from") as caught:
            keeper.check_fail_over()
        assert 50000 == caught.value.number


async def test_whoever_stood_still_is_no_principal_from_then_on_and_takes_over_anew(storage: Storage) -> None:
    clock = Clock()
    with structlog.testing.capture_logs() as logs:
        async with keeping("a", storage, Said(RoleAnswer(MirrorRole.PRINCIPAL)), clock) as keeper:
            before = keeper.is_confirmed(), role(keeper)
            clock.jump()
            at_once = keeper.is_confirmed(), role(keeper)
            await until(lambda: role(keeper) == (MirrorRole.PRINCIPAL, 2))

            assert (True, (MirrorRole.PRINCIPAL, 1)) == before
            assert (False, (MirrorRole.MIRROR, 1)) == at_once
            assert ["a refuses", "a announces", "a closes", "a opens", "a announces"] == storage.log[2:]
    assert [LAPSED] == [one["reason"] for one in logs if one["event"] == "database demoted"][:1]


@pytest.mark.parametrize(
    ("word", "log"),
    [
        (RoleAnswer(MirrorRole.PRINCIPAL), ["a opens", "a announces"]),
        (RoleAnswer(MirrorRole.MIRROR), ["a opens", "a refuses", "a announces", "a closes"]),
        (RoleAnswer(MirrorRole.UNKNOWN), ["a opens", "a refuses", "a announces", "a closes"]),
    ],
)
async def test_a_takeover_that_took_longer_than_a_word_counts_is_confirmed_before_it_is_told(
    storage: Storage, word: RoleAnswer, log: list[str]
) -> None:
    clock, source = Clock(), Said(RoleAnswer(MirrorRole.PRINCIPAL))

    def take_long() -> None:
        clock.jump()
        source.word = word

    storage.opens = take_long
    async with keeping("a", storage, source, clock) as keeper:
        assert (word.role is MirrorRole.PRINCIPAL) == (keeper.standing.role is MirrorRole.PRINCIPAL)
        assert log == storage.log[: len(log)]


async def test_a_word_against_the_lock_is_a_problem(storage: Storage) -> None:
    async with keeping("a", storage), keeping("b", storage, Said(RoleAnswer(MirrorRole.PRINCIPAL))) as second:
        assert f"store orders: {HELD}" == second.standing.problem
        assert MirrorRole.MIRROR is second.standing.role


async def test_a_record_with_impossible_values_is_a_problem_and_not_believed(storage: Storage) -> None:
    async with keeping("a", storage), keeping("b", storage) as second:
        before = second.standing
        told = f'{{"broker_instance": "{uuid.UUID(int=7)}", "epoch": 1e999, "principal": "x", "since": Infinity}}'
        role_path(storage.path).write_text(told, encoding="utf-8")

        await until(lambda: "it does not hold what the principal wrote" in second.standing.problem)
        assert before == replace(second.standing, problem="")
        storage.holder = ""
        await until(lambda: role(second) == (MirrorRole.PRINCIPAL, 2))


async def test_the_configured_broker_instance_wins_and_the_difference_is_told(storage: Storage) -> None:
    async with keeping("a", storage):
        foreign = uuid.UUID(int=7)
        write_principal(storage.path, PrincipalRecord(foreign, 900, "stranger", 0.0))
        mirror = RoleKeeper("orders", storage.path, LockSource(), Hosts("b", storage), broker_instance=INSTANCE)
        await mirror.start()
        told = mirror.standing
        storage.holder = ""
        await until(lambda: role(mirror) == (MirrorRole.PRINCIPAL, 2))
        await mirror.close()

        assert (INSTANCE, 0, "") == (told.broker_instance, told.epoch, told.principal)
        assert f"orders.db.role: it names the broker instance {foreign}, and the configuration" in told.problem


@pytest.mark.usefixtures("quick")
async def test_a_bug_is_told_once_and_the_next_look_may_go_well(storage: Storage) -> None:
    source = Said(RoleAnswer(MirrorRole.MIRROR))
    with structlog.testing.capture_logs() as logs:
        async with keeping("a", storage, source) as keeper:
            source.word = "principal"  # type: ignore[assignment]
            await until(lambda: "keeping the role failed with AttributeError" in keeper.standing.problem)
            await asyncio.sleep(0.1)

            source.word = RoleAnswer(MirrorRole.PRINCIPAL)
            await until(lambda: keeper.standing.role is MirrorRole.PRINCIPAL)

            assert "" == keeper.standing.problem
            assert 1 == len([one for one in logs if one["log_level"] == "error"])


@pytest.mark.usefixtures("quick")
async def test_a_principal_that_fails_to_step_down_tries_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping("a", storage) as keeper:
        with monkeypatch.context() as patch:
            patch.setattr(Hosts, "refuse", None)
            keeper._step_down("a test says so")
            await until(lambda: "keeping the role failed" in keeper.standing.problem)

        await until(lambda: "a closes" in storage.log)
        assert (MirrorRole.MIRROR, "a test says so") == (keeper.standing.role, keeper.standing.problem)


async def test_closing_leaves_the_database_to_the_partner_once(storage: Storage) -> None:
    async with keeping("a", storage) as keeper:
        storage.log.clear()
        handing_over = asyncio.create_task(keeper.fail_over())
        await keeper.close()

        keeper.on_demoted("too late")
        await keeper.close()

        assert ["a refuses", "a announces", "a closes"] == storage.log
        assert MirrorRole.MIRROR is keeper.standing.role
        handing_over.cancel()


async def test_a_keeper_that_is_closed_while_it_starts_keeps_no_role(storage: Storage) -> None:
    class Silent(Said):
        async def ask(self) -> RoleAnswer:
            return await asyncio.Future()

    supervision, source = Supervision(), Silent(RoleAnswer(MirrorRole.MIRROR))
    keeper = RoleKeeper("orders", storage.path, source, Hosts("a", storage), supervision=supervision)
    starting = asyncio.create_task(keeper.start())
    await asyncio.sleep(0)
    await keeper.close()

    await starting

    assert {} == supervision.problems


# --- the sources ---


def shell(script: str, *, hold: float = 20.0) -> CommandSource:
    return CommandSource(["sh", "-c", script], interval=1.0, hold=hold)


def test_what_is_configured_is_what_is_asked(load: Callable[..., Settings]) -> None:
    text = '[instance]\nstate_dir = "s"\n[databases.a]\npath = "a"\n[databases.b]\npath = "b"\nmirroring = "lock"\n'
    command = '[databases.c]\npath = "c"\nmirroring = "command"\nrole_command = ["true"]\nrole_interval = "2s"\n'
    databases = load(text + command).databases

    asked = [role_source(databases[name]) for name in "abc"]

    assert [None, "lock", "command"] == [one and one.name for one in asked]
    assert isinstance(asked[2], CommandSource)
    assert (2.0, 10.0) == (asked[2].interval, asked[2].hold)


@pytest.mark.parametrize(
    ("printed", "epoch"),
    [
        ("principal", 0),
        (" principal 12 \n", 12),
        ("mirror", None),
        (f"principal {EPOCH_TOLD_MAX}", EPOCH_TOLD_MAX),
        ("principal; echo mirror", -1),
    ],
)
async def test_a_role_is_one_line_that_no_shell_has_read(printed: str, epoch: int | None) -> None:
    word = await CommandSource(["echo", printed], interval=1.0, hold=20.0).ask()

    role = MirrorRole.MIRROR if epoch is None else MirrorRole.UNKNOWN if epoch < 0 else MirrorRole.PRINCIPAL
    assert (role, max(epoch or 0, 0)) == (word.role, word.epoch)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["true"], "printed '', and should print principal, principal EPOCH or mirror"),
        (["echo", "Principal"], "printed 'Principal\\n', and should"),
        (["echo", "mirror 3"], "printed 'mirror 3\\n', and should"),
        (["echo", "principal -1"], "printed 'principal -1\\n', and should"),
        (["echo", "principal", str(10**30)], "printed 'principal 1000"),
        (["echo", "principal", str(EPOCH_TOLD_MAX + 1)], "above which no instance could take over"),
        (["sh", "-c", "echo principal; echo gone wrong >&2; exit 1"], "has failed with exit code 1: gone wrong"),
        (["echo", "mirror" * 20_000], "printed 'mirrormirror"),
        (["/none"], "cannot be started: No such file or directory"),
    ],
)
async def test_anything_else_says_nothing_and_why(command: list[str], problem: str) -> None:
    word = await CommandSource(command, interval=1.0, hold=20.0).ask()

    assert (MirrorRole.UNKNOWN, 0) == (word.role, word.epoch)
    assert problem in word.problem


@pytest.mark.parametrize(
    ("script", "hold", "epoch", "problem"),
    [
        ("sleep 600 & echo $! >{}; wait", 3.0, 0, "has not ended within 3 s"),
        ("echo principal 7; sleep 600 & echo $! >{}", 20.0, 7, ""),
        ("echo principal 7; sleep 600 >/dev/null 2>&1 & echo $! >{}", 20.0, 7, ""),
    ],
)
async def test_a_command_is_ended_with_what_it_started(
    tmp_path: Path, script: str, hold: float, epoch: int, problem: str
) -> None:
    started = tmp_path / "pid"

    word = await shell(script.format(started), hold=hold).ask()

    assert epoch == word.epoch
    assert problem in word.problem
    assert await is_gone(int(started.read_text()))


async def test_whoever_stops_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    asking = asyncio.create_task(shell(f"echo $$ >{started}; sleep 600").ask())
    await until(lambda: started.exists() and started.read_text())

    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    assert await is_gone(int(started.read_text()))


async def is_gone(pid: int) -> bool:
    """Whether a process ends, or is one that waits to be reaped by whoever adopted it."""
    for _ in range(1000):
        try:
            state = psutil.Process(pid).status()
        except psutil.NoSuchProcess:
            return True
        if state == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.01)
    return False


# --- what a mirror sees ---


REIGN = PrincipalRecord(uuid.UUID(bytes=b"i" * 16), 7, "first", 1_800_000_000.5)


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up anew but what has changed."""
    monkeypatch.setattr(roles, "REFRESH_SECONDS", 1e6)


@pytest.fixture
def path(storage: Storage) -> Path:
    return storage.path


@pytest.mark.usefixtures("rarely")
def test_a_lock_is_seen_while_it_is_held_and_never_kept_also_in_a_new_file(path: Path) -> None:
    watch, first = RoleWatch(path), lock_store(path)
    assert not watch.look(asks_lock=False).is_held  # a partner that tries it is not disturbed
    seen = [watch.look(asks_lock=True).is_held]

    Path(lock_path(path)).unlink()
    seen.append(watch.look(asks_lock=True).is_held)
    for _ in range(2):
        descriptor = lock_store(path)
        seen.append(watch.look(asks_lock=True).is_held)
        os.close(descriptor)
        seen.append(watch.look(asks_lock=True).is_held)

    assert [True, False, True, False, True, False] == seen
    os.close(lock_store(path))
    os.close(first)
    watch.close()


@pytest.mark.usefixtures("rarely")
def test_what_is_told_is_read_whenever_its_file_is_another_one_and_only_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RoleWatch(path)
    reads: list[Path] = []

    def read(one: Path) -> PrincipalRecord | None:
        reads.append(one)
        return read_principal(one)

    monkeypatch.setattr(roles, "read_principal", read)
    told = [watch.look(asks_lock=False).reign]

    write_principal(path, REIGN)
    told += [watch.look(asks_lock=False).reign for _ in range(3)]
    role_path(path).unlink()
    told += [watch.look(asks_lock=False).reign for _ in range(2)]

    assert [None, REIGN, REIGN, REIGN, None, None] == told
    assert 3 == len(reads)


@pytest.mark.usefixtures("rarely")
def test_what_is_told_and_damaged_is_a_problem_until_it_is_written_anew(path: Path) -> None:
    watch = RoleWatch(path)
    assert Sight(is_held=False, reign=None) == watch.look(asks_lock=True)
    assert [] == list(path.parent.iterdir())
    role_path(path).write_text("{", encoding="utf-8")

    damaged = watch.look(asks_lock=False)
    write_principal(path, REIGN)

    assert damaged.reign is None
    assert "it does not hold what the principal wrote" in damaged.problem
    assert Sight(is_held=False, reign=REIGN) == watch.look(asks_lock=False)


def test_what_shows_no_change_is_read_again_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "mark_of", lambda _: ())
    monkeypatch.setattr(roles, "REFRESH_SECONDS", 0.0)
    watch = RoleWatch(path)
    before = watch.look(asks_lock=False).reign

    write_principal(path, REIGN)

    assert (None, REIGN) == (before, watch.look(asks_lock=False).reign)
