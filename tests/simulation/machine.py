"""
Processes, the machines they run on, and the sockets between them, all played on one virtual clock.

A process is known by the context that its callbacks run in. So it can be killed or stopped like a real one: what is due
in a process that is gone is never called, and what is due in one that stands still waits until it goes on. A connection
is what TCP makes of it: bytes arrive in order or not at all, a network that is cut holds them back until it is whole
again, the end of a process resets its connections, and a machine without power says nothing at all.

A hop that does harm is played where a story wants one: it loses, doubles, delays past others, or damages dialog frames,
each way, and leaves a connection's own frames alone.
"""

import asyncio
import errno
import inspect
import itertools
import os
import random
import socket
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from broker.protocol.frame import decode_dialog
from broker.protocol.layout import FIRST_DIALOG_KIND, PRELUDE, PRELUDE_BYTES
from tests.support.virtual_time import WALL_CLOCK, Planned, VirtualLoop

SYN_SECONDS = 1.0  # until a machine that was not reached is tried again
LONGEST_FRAME = 1 << 16  # bytes; no instance of a story takes as much
PORT = 4022

Accept = Callable[[Any, str], None]
"""Told of a socket that somebody has connected, and of its other end."""


Tamper = Callable[[str, str, bytes], list[bytes]]
"""What arrives at the far host of a dialog frame that the near one has sent."""


@dataclass(eq=False)
class Process:
    """
    A process of an operating system.

    Shape: `host` its machine; `off` seconds by which its wall clock is wrong; `withheld` what was due while it stood
    still; `tasks` that have begun in it.
    """

    host: str
    off: float = 0.0
    is_frozen: bool = False
    is_gone: bool = False
    withheld: list[Planned] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    sockets: "dict[PlayedEnd, None]" = field(default_factory=dict)
    context: Context = field(default_factory=copy_context)

    def __post_init__(self) -> None:
        self.context.run(OWNER.set, self)


OWNER: ContextVar[Process | None] = ContextVar("OWNER", default=None)


@dataclass(frozen=True)
class Road:
    """
    How bad the network is.

    Shape: `delay` seconds at most; `room` bytes of a connection that may be under way or unread; `crumb` bytes of one
    read at most; `loss`, `repeat`, `late` and `damage` chances for each dialog frame, `late` seconds at most a second.
    """

    delay: float = 0.005
    room: int = 1 << 18
    crumb: int = 1 << 18
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    damage: float = 0.0

    @property
    def is_hostile(self) -> bool:
        return bool(self.loss or self.repeat or self.late or self.damage)


class MachineLoop(VirtualLoop):
    def __init__(self) -> None:
        super().__init__()
        self.withholds = self._withholds
        self.set_task_factory(_begin)
        self.net: Net

    def wall_clock(self) -> float:
        owner = OWNER.get()
        return WALL_CLOCK + self._now + (0.0 if owner is None else owner.off)

    def forget_tasks(self) -> None:
        """Tasks of processes that are gone never end; nobody is to wait for them."""
        for task in asyncio.all_tasks(self) - {asyncio.current_task()}:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            asyncio.tasks._unregister_task(task)

    def played_sockets(self) -> AbstractContextManager[object]:
        """While this lasts the dialler of every instance makes sockets of this loop's network."""
        module = SimpleNamespace(socket=lambda *_: self.net.socket(), SOCK_STREAM=socket.SOCK_STREAM)
        return mock.patch("broker.net.dialer.socket", module)

    def thaw(self, process: Process) -> None:
        """It goes on with what was due meanwhile, as if no time had passed."""
        process.is_frozen = False
        self._ready.extend(process.withheld)
        process.withheld.clear()

    def _withholds(self, planned: Planned) -> bool:
        owner = planned.context.get(OWNER)
        if owner is None:
            return False
        if owner.is_frozen:
            owner.withheld.append(planned)
            return True
        return owner.is_gone

    # --- sockets and names, as asyncio has them ---

    def add_reader(self, fd: Any, callback: Callable[..., Any], *_args: Any) -> None:  # type: ignore[override]
        """Call back while something can be read. Raises NotImplementedError: a descriptor, which nobody plays."""
        if isinstance(fd, int):
            raise NotImplementedError
        fd.reader = callback
        fd.look()

    def remove_reader(self, fd: Any) -> bool:
        was, fd.reader = fd.reader, None
        return was is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *_args: Any) -> None:  # type: ignore[override]
        fd.writer = callback
        fd.look()

    def remove_writer(self, fd: Any) -> bool:
        was, fd.writer = fd.writer, None
        return was is not None

    async def getaddrinfo(self, host: Any, port: Any, **_how: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [(2, 1, 6, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self.net.connect(sock, address)


def _begin(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **how)
    owner = OWNER.get()
    if owner is not None:
        owner.tasks = [one for one in owner.tasks if not one.done()] if len(owner.tasks) > 200 else owner.tasks
        owner.tasks.append(task)
    return task


class PlayedEnd:
    """One end of a connection, as `socket.socket`; made by who dials, or for who is dialled."""

    def __init__(self, net: "Net", owner: Process) -> None:
        self.net = net
        self.owner = owner
        self.far: PlayedEnd | None = None
        self.port = 0
        self.reader: Callable[[], None] | None = None
        self.writer: Callable[[], None] | None = None
        self.held: list[bytes | OSError | None] = []  # arrived at a network that is cut
        self.unread = 0  # bytes that this end has sent and the far one has not read
        self.is_closed = False
        self._inbox = bytearray()
        self._has_ended = False
        self._problem: OSError | None = None
        self._free_at = 0.0
        self._partial = bytearray()
        self._is_due = False
        owner.sockets[self] = None

    # --- as a socket ---

    def getsockname(self) -> tuple[str, int]:
        """Nobody listens there."""
        return ("", 0)

    def setblocking(self, _flag: bool) -> None:  # noqa: FBT001 - the socket's own
        """It never waits."""

    def setsockopt(self, *_option: object) -> None:
        """None matters here."""

    def recv_into(self, view: memoryview) -> int:
        if self._inbox:
            size = min(len(view), len(self._inbox), self.net.crumb())
            view[:size] = self._inbox[:size]
            del self._inbox[:size]
            far = self.far
            assert far is not None
            far.unread -= size
            far.look()
            return size
        if self._problem is not None:
            raise self._problem
        if self._has_ended:
            return 0
        raise BlockingIOError

    def send(self, data: Any) -> int:
        if self._problem is not None:
            raise self._problem
        size = min(len(data), self.net.road.room - self.unread)
        if size <= 0:
            raise BlockingIOError
        self.unread += size
        self.net.carry(self, bytes(data[:size]))
        return size

    def shutdown(self, _how: int) -> None:
        self.post(None)

    def close(self) -> None:
        """Both directions are over; what was not read resets the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        self.reader = self.writer = None
        self.owner.sockets.pop(self, None)
        if self.far is not None:
            self.post(_reset() if self._inbox else None)

    # --- on the way ---

    def post(self, what: bytes | OSError | None, *, after: float = 0.0) -> None:
        """Let something arrive at the far end, in order: bytes, the end (None), or a reset; `after` out of order."""
        net = self.net
        at = max(self._free_at, net.loop.time() + net.delay())
        if after:
            at += after
        else:
            self._free_at = at
        net.loop.call_at(at, self._arrive, what, context=net.context)

    def _arrive(self, what: bytes | OSError | None) -> None:
        far = self.far
        assert far is not None
        if self.held or self.net.is_cut(self.owner.host, far.owner.host):
            self.held.append(what)
            self.net.holding[self] = None
        elif far.owner.host in self.net.dark:
            return
        elif far.is_closed or far.owner.is_gone:
            if isinstance(what, bytes):
                far.post(_reset())
        elif isinstance(what, bytes):
            far.hear(what)
        elif what is None:
            far.end()
        else:
            far.fail(what)

    def let_go(self) -> None:
        """The network is whole: what it held back arrives."""
        held, self.held = self.held, []
        for what in held:
            self._arrive(what)

    def hear(self, data: bytes) -> None:
        self._inbox += data
        self.look()

    def end(self) -> None:
        self._has_ended = True
        self.look()

    def fail(self, problem: OSError) -> None:
        self._problem = problem
        self.look()

    # --- readiness ---

    @property
    def can_read(self) -> bool:
        return bool(self._inbox) or self._has_ended or self._problem is not None

    @property
    def can_write(self) -> bool:
        return self._problem is not None or self.unread < self.net.road.room

    def look(self) -> None:
        is_wanted = (self.reader is not None and self.can_read) or (self.writer is not None and self.can_write)
        if is_wanted and not self._is_due and not self.is_closed:
            self._is_due = True
            self.net.loop.call_soon(self._call, context=self.owner.context)

    def _call(self) -> None:
        self._is_due = False
        if self.reader is not None and self.can_read:
            self.reader()
        if self.writer is not None and self.can_write:
            self.writer()
        self.look()


class Net:
    """
    All machines and what lies between them.

    Shape: `road` holds for what is sent from now on; `listeners` by host; `dark` machines without power; `cuts` how
    often a way (near, far) is cut now; `digest` of everything sent so far, and when; `carried` dialog frames by
    host; `nonsense` what was sent that is no frame, in words; `tamper` what somebody on the way makes of each one.
    """

    def __init__(self, loop: MachineLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.context = copy_context()
        self.road = Road()
        self.listeners: dict[str, tuple[Process, Accept]] = {}
        self.dark: set[str] = set()
        self.cuts: Counter[tuple[str, str]] = Counter()
        self.holding: dict[PlayedEnd, None] = {}
        self.digest = 0
        self.carried: Counter[str] = Counter()
        self.nonsense: list[str] = []
        self.tamper: Tamper | None = None
        self._ports = itertools.count(50_000)
        loop.net = self

    def delay(self) -> float:
        return self.chance.uniform(0.0002, self.road.delay)

    def crumb(self) -> int:
        most = self.road.crumb
        return most if most >= 1 << 18 else self.chance.randint(1, most)

    def is_cut(self, near: str, far: str) -> bool:
        return self.cuts[near, far] > 0

    def cut(self, ways: list[tuple[str, str]]) -> Callable[[], None]:
        """Let nothing arrive on these ways, until what is given back is called."""
        self.cuts.update(ways)

        def mend() -> None:
            self.cuts.subtract(ways)
            for end in [end for end in self.holding if end.far and not self.is_cut(end.owner.host, end.far.owner.host)]:
                del self.holding[end]
                end.let_go()

        return mend

    def socket(self) -> PlayedEnd:
        owner = OWNER.get()
        assert owner is not None
        return PlayedEnd(self, owner)

    async def connect(self, near: PlayedEnd, where: tuple[str, int]) -> None:
        host, here = where[0], near.owner.host
        await asyncio.sleep(self.delay())
        while not self._is_whole(here, host):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(SYN_SECONDS)
        listener = self.listeners.get(host)
        if listener is None:
            await asyncio.sleep(self.delay())
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        process, accept = listener
        far = PlayedEnd(self, process)
        near.far, far.far = far, near
        near.port, far.port = next(self._ports), PORT
        self.loop.call_soon(accept, far, f"tcp://{here}:{near.port}", context=process.context)
        await asyncio.sleep(self.delay())

    def _is_whole(self, near: str, far: str) -> bool:
        return not (self.is_cut(near, far) or self.is_cut(far, near) or {near, far} & self.dark)

    def reset(self, near: str, far: str) -> None:
        """Connections between these two are gone, and both know."""
        for process, _ in list(self.listeners.values()):
            for end in list(process.sockets):
                if end.far is not None and {end.owner.host, end.far.owner.host} == {near, far}:
                    end.fail(_reset())

    def end(self, process: Process, *, is_dark: bool) -> None:
        """A process is gone, and what it knew; of a machine without power nobody hears."""
        process.is_gone = True
        process.withheld.clear()
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it ends with its process
            work: Any = task.get_coro()
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()  # it has not even begun
        if self.listeners.get(process.host, (None,))[0] is process:
            del self.listeners[process.host]
        for end in list(process.sockets):
            end.is_closed = True
            end.reader = end.writer = None
            if end.far is not None and not is_dark:
                end.post(_reset())
        process.sockets.clear()

    # --- frames ---

    def carry(self, near: PlayedEnd, data: bytes) -> None:
        """What was sent, as it arrives."""
        assert near.far is not None
        self.digest = zlib.crc32(
            b"%d %s %d" % (self.loop.time() * 1e6, near.owner.host.encode(), len(data)), self.digest
        )
        partial = near._partial
        partial += data
        start, end, plain = 0, len(partial), 0
        while end - start >= PRELUDE_BYTES:
            length, kind = PRELUDE.unpack_from(partial, start)[:2]
            if not PRELUDE_BYTES <= length <= LONGEST_FRAME:
                self.nonsense.append(f"{near.owner.host} has sent what is no frame, {length} bytes long")
                near.post(bytes(partial[plain:]))
                partial.clear()
                return
            if start + length > end:
                break
            if kind >= FIRST_DIALOG_KIND:
                self.carried[near.owner.host] += 1
                if self.tamper is not None or self.road.is_hostile:
                    if start > plain:
                        near.post(bytes(partial[plain:start]))
                    self._meddle(near, bytes(partial[start : start + length]))
                    plain = start + length
            start += length
        if start > plain:
            near.post(bytes(partial[plain:start]))
        del partial[:start]

    def _meddle(self, near: PlayedEnd, frame: bytes) -> None:
        assert near.far is not None
        arriving = [frame] if self.tamper is None else self.tamper(near.owner.host, near.far.owner.host, frame)
        put = [(one, 0.0) for one in arriving]
        if self.road.is_hostile:
            put = [two for one in arriving for two in self._spoilt(one)]
        near.unread += sum(len(one) for one, _ in put) - len(frame)
        for one, after in put:
            near.post(one, after=after)
        if not put:
            near.look()

    def _spoilt(self, frame: bytes) -> list[tuple[bytes, float]]:
        """What arrives of a frame on a hostile road, each with the seconds by which it is late."""
        road, happens = self.road, self.chance.random
        copies = 2 if happens() < road.repeat else 1
        if happens() < road.loss:
            copies -= 1
        return [
            (self._damaged(frame) if happens() < road.damage else frame, happens() * road.late) for _ in range(copies)
        ]

    def _damaged(self, frame: bytes) -> bytes:
        _, body = decode_dialog(frame)
        if not body:
            return frame
        at = len(frame) - 1 - self.chance.randrange(len(body))
        return frame[:at] + bytes([frame[at] ^ 1 << self.chance.randrange(8)]) + frame[at + 1 :]


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
