"""
The role of this instance for a mirrored database: its source, and the task that keeps it.

A role source decides the role, by the lock of the file or by a command. It does not know files, epochs or other
databases, and only the keeper acts on its answer. So another source (the state of a replicated PostgreSQL, a lease) is
one more class. The keeper is one task for each database with `mirroring`. It alone takes the database over and steps
down, so neither happens twice or at once. `broker.routing.mirrored` decides what to do; the port `Hosting` opens and
closes the database.

While another instance is the principal, the database file is not opened. A mirror only has to know the lock, and the
record that the principal writes next to the file (`broker.store.sqlite.role_file`). It checks both many times a second,
so a check is a few system calls: the lock file stays open, and the record is read when its file has changed. Once a
second everything is read again, for storage that shows changes late. Loop-only, except `RoleWatch.look`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from broker.config.settings import DatabaseSettings
from broker.errors import BrokerError, StatementError, StoreUnavailableError
from broker.files import mark_of
from broker.protocol.layout import show_guid
from broker.routing.mirrored import EPOCH_TOLD_MAX, Act, MirrorRole, OwnRole, OwnRoleStatus, RoleAnswer
from broker.store.sqlite.database import HELD, lock_path
from broker.store.sqlite.role_file import PrincipalRecord, read_principal, role_path
from broker.store.sqlite.transaction import LAPSED
from broker.supervision import SupervisedTask, Supervision

LOCK_INTERVAL = 0.05  # seconds between two attempts to take the lock: a principal that was killed is followed at once
REFRESH_SECONDS = 1.0  # after which a mirror reads everything again
REST_SECONDS = 5.0  # for which an instance that has stepped down leaves the database to its partner
RETRY_SECONDS = 1.0  # between two attempts when something is wrong
_OUTPUT_MAX_BYTES = 4096  # of a command: a role is one line
_PRINTED = re.compile(rb"\s*(?:(principal)(?:\s+(\d{1,19}))?|mirror)\s*")
_WHERE_TO_LOOK = "see the log and sys.database_mirroring of its partner for the reason"

log = structlog.get_logger(__name__)


def boot_time() -> float:
    """Seconds of a clock that goes on while this process is suspended, or the whole machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- role sources --------------------------------------------------------------------------------------------


class RoleSource(Protocol):
    """
    Decides the role.

    Attributes:
        name: As the views show it.
        interval: Seconds between two questions.
        hold: Seconds for which an answer confirms a principal.
        is_ours: Whether an administrator changes the roles here, with SET PARTNER FAILOVER.
    """

    name: str
    interval: float
    hold: float
    is_ours: bool

    async def ask(self) -> RoleAnswer:
        """Return the role that this instance should have now. Never fails: a problem is an answer. May be cancelled."""


class LockSource:
    """The instance that gets the lock of the file is the principal, so every one should try."""

    name = "lock"
    interval = LOCK_INTERVAL
    hold = float("inf")  # the lock itself confirms
    is_ours = True

    async def ask(self) -> RoleAnswer:
        """Try; the lock decides."""
        return RoleAnswer(MirrorRole.PRINCIPAL)


class CommandSource:
    """
    A program that prints the role, run again and again, without a shell.

    Args:
        command: The program and its arguments.
        interval: Seconds between two runs.
        hold: Seconds after which a run is ended, and for which its answer holds.
    """

    name = "command"
    is_ours = False

    def __init__(self, command: Sequence[str], *, interval: float, hold: float) -> None:
        self.interval = interval
        self.hold = hold
        self._command = command

    async def ask(self) -> RoleAnswer:
        """Run it once."""
        loop = asyncio.get_running_loop()
        run_once = loop.subprocess_exec(_Run, *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True)
        starting = loop.create_task(run_once)
        try:
            async with asyncio.timeout(self.hold):
                transport, run = await asyncio.shield(starting)
                await run.ended.wait()
                _kill_group(transport)  # what it has started may keep its output open
                await run.read.wait()
        except TimeoutError:
            return self._failed(f"has not ended within {self.hold:g} s")
        except (OSError, ValueError) as error:
            return self._failed(f"cannot be started: {getattr(error, 'strerror', None) or error}")
        finally:
            await _end(starting)
        code, output, complaint = transport.get_returncode(), run.printed[1], run.printed[2]
        if code:
            said = complaint.decode(errors="replace").strip()
            return self._failed(f"has failed with exit code {code}{': ' + said if said else ''}")
        return self._read(output)

    def _read(self, output: bytes) -> RoleAnswer:
        said = _PRINTED.fullmatch(output)
        if said is None:
            shown = output[:60].decode(errors="replace")
            return self._failed(f"printed {shown!r}, and should print principal, principal EPOCH or mirror")
        if said[1] is None:
            return RoleAnswer(MirrorRole.MIRROR)
        epoch = int(said[2] or 0)
        if epoch > EPOCH_TOLD_MAX:
            return self._failed(f"printed the epoch {epoch}, above which no instance could take over again")
        return RoleAnswer(MirrorRole.PRINCIPAL, epoch)

    def _failed(self, problem: str) -> RoleAnswer:
        return RoleAnswer(MirrorRole.UNKNOWN, problem=f"role_command {self._command[0]} {problem}")


def role_source(settings: DatabaseSettings) -> RoleSource | None:
    """The source of a database; None where this instance is always the principal."""
    if settings.mirroring == "lock":
        return LockSource()
    if settings.mirroring == "command":
        return CommandSource(settings.role_command, interval=settings.role_interval, hold=settings.role_timeout)
    return None


class _Run(asyncio.SubprocessProtocol):
    """
    One run of a program.

    Attributes:
        printed: The beginning of its output, by descriptor; the rest is read as well, so that it can end, and dropped.
        ended: Set once the program has ended.
        read: Set once no process can print further output.
    """

    def __init__(self) -> None:
        self.printed = {1: b"", 2: b""}
        self.ended = asyncio.Event()
        self.read = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.printed[fd] += data[: _OUTPUT_MAX_BYTES - len(self.printed[fd])]

    def process_exited(self) -> None:
        self.ended.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.read.set()


async def _end(starting: asyncio.Task[tuple[asyncio.SubprocessTransport, _Run]]) -> None:
    """End a program with all that it started; a start cannot be cancelled halfway, because its group is not known."""
    with contextlib.suppress(OSError, ValueError):  # it was not started
        transport, run = await starting
        _kill_group(transport)
        await run.ended.wait()
        transport.close()


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    """End the program and all that it started, which are one session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)


# --- the watch of a mirror -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sight:
    """
    The state of a database as seen from outside, without opening it.

    Attributes:
        is_held: Whether an instance has the lock.
        reign: The record of the principal; None when there is none, or when `problem` says why it cannot be read.
    """

    is_held: bool
    reign: PrincipalRecord | None
    problem: str = ""


class RoleWatch:
    """Watches the lock of a database file, and the record next to it, without opening the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1  # of the lock file
        self._lock_file = self._role_file = path
        self._refresh_at = float("-inf")
        self._mark: tuple[int, ...] = ()
        self._reign: PrincipalRecord | None = None
        self._problem = ""

    def look(self, *, asks_lock: bool) -> Sight:
        """
        Look once. For any thread, one at a time: storage may be slow.

        Args:
            asks_lock: Whether to try the lock. Without it a partner that tries the lock is not disturbed.
        """
        now = time.monotonic()
        is_due = now >= self._refresh_at
        if is_due:
            self._refresh_at = now + REFRESH_SECONDS
            self._lock_file, self._role_file = Path(lock_path(self._path)), role_path(self._path)
        mark = mark_of(self._role_file)
        if is_due or mark != self._mark:
            self._mark = mark
            self._read()
        return Sight(asks_lock and self._is_held(), self._reign, self._problem)

    def close(self) -> None:
        """Keep no file open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> None:
        try:
            self._reign, self._problem = read_principal(self._path), ""
        except StoreUnavailableError as error:
            self._reign, self._problem = None, str(error)

    def _is_held(self) -> bool:
        """Whether an instance has the lock; False when that is unknown: an attempt to take it then finds out why."""
        try:
            there = self._lock_file.stat()
            if self._descriptor < 0 or not os.path.samestat(there, os.fstat(self._descriptor)):
                self.close()  # it was removed or replaced
                self._descriptor = os.open(self._lock_file, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


# --- keeping the role ----------------------------------------------------------------------------------------


class Hosting(Protocol):
    """The port to the databases of the instance."""

    async def open(self, name: str, least_epoch: int) -> PrincipalRecord:
        """Take a database over and serve it. Raises BrokerError: nothing has changed then."""

    def refuse(self, name: str, broker_instance: bytes | None) -> None:
        """Reject all frames for a database from this moment on."""

    async def close(self, name: str) -> None:
        """After `refuse`: end what is under way, and give the file back."""

    def announce(self, broker_instance: bytes) -> None:
        """Report what this instance is for a broker instance to the peers that asked."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """An answer of the source, and when it was asked."""

    answer: RoleAnswer
    asked_at: float


class RoleKeeper:
    """
    Keeps the role of this instance for one database.

    Args:
        name: Of the database.
        path: Its file.
        source: Decides the role.
        hosting: Takes it over and gives it up.
        broker_instance: As configured, 16 bytes, or None.
        supervision: Keeps the task.
        clock: Seconds, by which answers and rests expire: `boot_time` in an instance; None is the loop's.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        source: RoleSource,
        hosting: Hosting,
        *,
        broker_instance: bytes | None = None,
        supervision: Supervision | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self._path = path
        self._hosting = hosting
        self._configured = self._broker_instance = broker_instance
        self._watch = RoleWatch(path)
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._own = OwnRole(hold=source.hold, now=self._clock())
        self._since = time.time()
        self._principal = ""
        self._taken_epoch = 0  # by this instance, the last time
        self._is_handing_over = False
        self._logged_problem = ""
        self._step_down_because = ""  # until that is done
        self._stepped_down_because = ""  # the last time
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._is_closing = False
        self._supervision = supervision or Supervision()
        self._task: SupervisedTask | None = None

    def use(self, source: RoleSource) -> None:
        """Ask this source from now on, which is of the same kind; at once."""
        self.source, self._own.hold = source, source.hold
        self._wake.set()

    @property
    def standing(self) -> OwnRoleStatus:
        """What this instance is for the database now; a principal whose confirmation has expired is a mirror."""
        own = self._own
        role = own.role if self.is_confirmed() else MirrorRole.MIRROR
        return OwnRoleStatus(
            broker_instance=self._broker_instance,
            role=role,
            epoch=own.epoch,
            since=self._since,
            source=self.source.name,
            problem=own.problem,
            principal=self._principal if own.role is MirrorRole.PRINCIPAL else self._partner,
            is_resting=own.role is MirrorRole.MIRROR and self._clock() < own.rests_until,
        )

    def is_confirmed(self) -> bool:
        """Whether this instance may act for the database now. For any thread. Cost: one look at the clock."""
        return self._own.is_confirmed(self._clock())

    @property
    def _partner(self) -> str:
        """The other instance that took the database over last; empty when that was this one."""
        return self._principal if self._own.epoch > self._taken_epoch else ""

    async def start(self) -> None:
        """
        Ask once, take the database over if the answer says so, and keep the role from then on.

        Raises:
            BrokerError: It should be taken over and cannot be, for another reason than that another instance has it.
        """
        await self._poll(is_start=True)
        log.info("database role", database=self.name, role=self._own.role.value, epoch=self._own.epoch)
        if not self._is_closing:  # as it may be by now
            self._task = self._supervision.keep(f"{self.name} role", self._keep)

    async def close(self) -> None:
        """End what is under way, and leave the database to the partner."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task.stop(is_cancelled=False)
        await self._leave("the instance stops")
        self._watch.close()
        async with self._changed:
            self._changed.notify_all()

    def on_demoted(self, problem: str) -> None:
        """The store has found that another instance owns the database: reject all frames, and step down."""
        if self._own.role is MirrorRole.PRINCIPAL and not self._is_closing:
            self._hosting.refuse(self.name, self._broker_instance)
            self._step_down(problem)

    # --- SET PARTNER FAILOVER ---

    def check_fail_over(self) -> None:
        """Whether an administrator may hand the database over, here and now. Raises StatementError."""
        if not self.source.is_ours:
            problem = f"the roles of {self.name!r} are decided by role_command: fail over where that gets them from"
            raise StatementError(50000, problem)
        if self._is_handing_over:
            problem = f"a failover of the database {self.name!r} is under way: wait until it has ended"
            raise StatementError(1470, problem)
        if self._own.role is not MirrorRole.PRINCIPAL:
            who = f", {self._partner!r}" if self._partner else ""
            problem = f"the database {self.name!r} is a mirror here: say this to its principal{who}"
            raise StatementError(1470, problem)

    async def fail_over(self) -> str:
        """
        Hand the database over, and wait until it has a principal again.

        Returns:
            A sentence that says which instance that is.

        Raises:
            StatementError: As `check_fail_over`.
        """
        self.check_fail_over()
        epoch = self._own.epoch
        self._is_handing_over = True
        self._step_down("handed over by SET PARTNER FAILOVER")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * REST_SECONDS), self._changed:
                    await self._changed.wait_for(lambda: self._own.epoch > epoch or self._is_closing)
        finally:
            self._is_handing_over = False
        if self._own.epoch == epoch:
            waited = "no instance has taken it over yet, and this one goes on trying"
            return f"database {self.name} handed over; {waited}; {_WHERE_TO_LOOK}"
        if self._own.role is MirrorRole.PRINCIPAL:
            waited = f"no instance took it over within {REST_SECONDS:g} s"
            again = f"so this instance is the principal again, epoch {self._own.epoch}"
            return f"database {self.name}: {waited}, {again}; {_WHERE_TO_LOOK}"
        return f"database {self.name} handed over: {self._principal} is the principal, epoch {self._own.epoch}"

    def _step_down(self, problem: str) -> None:
        self._step_down_because = problem
        self._wake.set()

    # --- the task ---

    async def _keep(self) -> None:
        is_well = True
        while not self._is_closing:
            is_settled = self.source.is_ours and self._own.role is MirrorRole.PRINCIPAL  # until it is woken
            pause = (None if is_settled else self.source.interval) if is_well else RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            if not self._is_closing:
                is_well = await self._poll_safely()

    async def _poll_safely(self) -> bool:
        """Poll; a bug is logged, and does not keep a mirror from taking over later."""
        try:
            await self._poll()
        except Exception as error:  # whatever it is, the next time may go well
            problem = f"keeping the role failed with {error!r}, and is tried again"
            if problem != self._logged_problem:
                log.exception("database role in doubt", database=self.name, problem=problem)
            self._own.problem = self._logged_problem = problem
            return False
        return True

    async def _poll(self, *, is_start: bool = False) -> None:
        """Once: ask, act on the answer, and read the record of the principal."""
        own, before = self._own, self.standing
        reply: _Reply | None = None  # that says to take it over
        if self._step_down_because:
            await self._leave(self._step_down_because)
        else:
            found = await self._ask()
            if found is None:
                return
            reply = found if await self._apply(found) is Act.TAKE else None
        if own.role is MirrorRole.MIRROR:
            sight = await asyncio.to_thread(self._watch.look, asks_lock=reply is not None and not is_start)
            if reply is not None and sight.is_held:
                self._on_kept_out(StoreUnavailableError(str(self._path), HELD))
            elif reply is not None:
                await self._take_over(reply, is_start=is_start)
            if own.role is MirrorRole.MIRROR:
                self._read_record(sight)
        if own.problem != self._logged_problem:
            self._logged_problem = own.problem
            if own.problem:
                log.warning("database role in doubt", database=self.name, role=own.role.value, problem=own.problem)
        now = self.standing
        if (now.role, now.epoch, now.principal) != (before.role, before.epoch, before.principal):
            async with self._changed:
                self._changed.notify_all()

    async def _apply(self, reply: _Reply) -> Act:
        """Apply an answer and return the resulting act; on STEP_DOWN this instance has already stepped down."""
        now = self._clock()
        has_lapsed = not self._own.is_confirmed(now)
        act = self._own.on_word(reply.answer, reply.asked_at, now)
        if act is Act.STEP_DOWN:
            lost = LAPSED if has_lapsed else f"not the principal any longer, as its {self.source.name} says"
            await self._leave(reply.answer.problem or lost)
        return act

    async def _ask(self) -> _Reply | None:
        """Ask the source; None when something else has to be done first, or the keeper closes."""
        asked_at = self._clock()
        if self.source.is_ours:
            return _Reply(await self.source.ask(), asked_at)  # at once
        asking = self._loop.create_task(self.source.ask())
        waking = self._loop.create_task(self._wake.wait())
        try:
            await asyncio.wait([asking, waking], return_when=asyncio.FIRST_COMPLETED)
            return None if self._is_closing or not asking.done() else _Reply(asking.result(), asked_at)
        finally:
            asking.cancel()
            waking.cancel()
            await asyncio.gather(asking, waking, return_exceptions=True)

    async def _take_over(self, reply: _Reply, *, is_start: bool) -> None:
        self._own.on_taking(reply.asked_at)
        try:
            reign = await self._hosting.open(self.name, reply.answer.epoch)
        except BrokerError as error:
            if is_start and not _is_held(error):
                raise
            self._on_kept_out(error)
            return
        if 2 * (self._clock() - reply.asked_at) > self.source.hold:  # a takeover may take longer than an answer holds
            again = await self._ask()
            reply = reply if again is None or again.answer.role is MirrorRole.UNKNOWN else again
        self._own.on_taken(reign.epoch, reply.asked_at)
        self._since, self._taken_epoch = reign.since, reign.epoch
        self._broker_instance, self._principal = reign.broker_instance.bytes, reign.principal
        log.info("database taken over", database=self.name, epoch=reign.epoch)
        if await self._apply(reply) is Act.STAY:
            self._announce()
            if not self.source.is_ours:
                self._wake.set()  # part of the time that the answer holds is over

    def _on_kept_out(self, error: BrokerError) -> None:
        is_well = _is_held(error) and self.source.is_ours  # else two sources of roles contradict each other
        problem = "" if is_well else str(error)
        self._own.on_kept_out(problem, self._clock(), pause=0.0 if is_well else RETRY_SECONDS)

    async def _leave(self, problem: str) -> None:
        """Step down: reject frames, announce it, then end what is under way."""
        if self._own.role is MirrorRole.PRINCIPAL:
            self._hosting.refuse(self.name, self._broker_instance)
            self._own.on_stepped_down(problem, self._clock(), rest=REST_SECONDS if self.source.is_ours else 0.0)
            self._since, self._logged_problem, self._stepped_down_because = time.time(), problem, problem
            self._announce()
            await self._hosting.close(self.name)
            log.warning("database demoted", database=self.name, epoch=self._own.epoch, reason=problem)
        self._step_down_because = ""

    def _read_record(self, sight: Sight) -> None:
        """Take in what the principal has written next to the file."""
        reign = sight.reign
        if reign is None:
            self._own.problem = sight.problem or self._own.problem
            return
        if self._configured is not None and reign.broker_instance.bytes != self._configured:
            found, ours = show_guid(reign.broker_instance), show_guid(self._configured)
            differs = f"it names the broker instance {found}, and the configuration {ours}: set the right one"
            hint = "remove the file if it is of another database; the next principal writes it again"
            self._own.problem = f"store {role_path(self._path)}: {differs}, or {hint}"
            return
        if self._own.problem == self._stepped_down_because and reign.epoch > self._own.epoch:
            self._own.problem = ""  # the partner has taken it over
        self._own.on_told(reign.epoch)
        is_new = reign.broker_instance.bytes != self._broker_instance
        self._broker_instance, self._principal = reign.broker_instance.bytes, reign.principal
        if is_new:
            self._hosting.refuse(self.name, self._broker_instance)
            self._announce()

    def _announce(self) -> None:
        if self._broker_instance is not None:
            self._hosting.announce(self._broker_instance)


def _is_held(error: BrokerError) -> bool:
    return isinstance(error, StoreUnavailableError) and error.problem == HELD
