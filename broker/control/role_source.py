"""
Who says which role this instance has for a database: the lock of its file, or a command.

The interface is one question. A source knows nothing of files, epochs or other databases, and what it says is only
acted upon by the keeper of the role, so another source (the state of a replicated PostgreSQL, a lease) is one class.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Sequence
from typing import Protocol

from broker.control.config import DatabaseSettings
from broker.routing.mirrored import EPOCH_TOLD_MAX, MirrorRole, RoleAnswer

LOCK_INTERVAL = 0.05  # seconds between two attempts to take the lock: a principal that was killed is followed at once
_OUTPUT_MAX_BYTES = 4096  # of a command: a role is one line
_SAID = re.compile(rb"\s*(?:(principal)(?:\s+(\d{1,19}))?|mirror)\s*")


class RoleSource(Protocol):
    """
    Whoever decides about the roles.

    Shape: `name` as the views tell it; `interval` seconds between two questions; `hold` seconds for which an answer
    confirms a principal; `is_ours` whether an administrator changes the roles here, with SET PARTNER FAILOVER.
    """

    name: str
    interval: float
    hold: float
    is_ours: bool

    async def ask(self) -> RoleAnswer:
        """What this instance should be now. Never fails: what goes wrong is a word as well. May be cancelled."""


class LockSource:
    """Whoever gets the lock of the file is the principal, so everybody should try."""

    name = "lock"
    interval = LOCK_INTERVAL
    hold = float("inf")  # whoever has the lock needs nobody's word
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
        try:
            transport, run = await loop.subprocess_exec(
                _Run, *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return self._failed(f"cannot be started: {getattr(error, 'strerror', None) or error}")
        try:
            async with asyncio.timeout(self.hold):
                await run.ended.wait()
                _kill_group(transport)  # what it leaves behind may keep its output open
                await run.read.wait()
        except TimeoutError:
            return self._failed(f"has not ended within {self.hold:g} s")
        finally:
            _kill_group(transport)
            await run.ended.wait()
            transport.close()
        code, output, complaint = transport.get_returncode(), run.printed[1], run.printed[2]
        if code:
            said = complaint.decode(errors="replace").strip()
            return self._failed(f"has failed with exit code {code}{': ' + said if said else ''}")
        return self._read(output)

    def _read(self, output: bytes) -> RoleAnswer:
        said = _SAID.fullmatch(output)
        if said is None:
            shown = output[:60].decode(errors="replace")
            return self._failed(f"printed {shown!r}, and should print principal, principal EPOCH or mirror")
        if said[1] is None:
            return RoleAnswer(MirrorRole.MIRROR)
        epoch = int(said[2] or 0)
        if epoch > EPOCH_TOLD_MAX:
            return self._failed(f"printed the epoch {epoch}, above which nobody could take over any more")
        return RoleAnswer(MirrorRole.PRINCIPAL, epoch)

    def _failed(self, problem: str) -> RoleAnswer:
        return RoleAnswer(MirrorRole.UNKNOWN, problem=f"role_command {self._command[0]} {problem}")


def role_source(settings: DatabaseSettings) -> RoleSource | None:
    """The source that a database asks; None where this instance is always the principal."""
    if settings.mirroring == "lock":
        return LockSource()
    if settings.mirroring == "command":
        return CommandSource(settings.role_command, interval=settings.role_interval, hold=settings.role_timeout)
    return None


class _Run(asyncio.SubprocessProtocol):
    """
    One run of a program.

    Shape: `printed` the beginning of what it prints, by descriptor; the rest is read as well, so that it can end, and
    not kept. `ended` once the program has, `read` once nobody can print any more.
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


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    """The program is no more, nor what it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)
