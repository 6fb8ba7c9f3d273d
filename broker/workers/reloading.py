"""
Other settings for a gateway of several processes: all workers make ready, then all of them change.

A worker that cannot make ready has refused for all: nothing has changed anywhere. From the moment at which the first
one changes there is no way back: one that fails then, or dies, is replaced by a process that begins with the new
settings, so for a moment some workers may live by the old ones while others live by the new.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from broker.admin.server import Change
from broker.control.certificates import security_of
from broker.control.config import Settings
from broker.control.listen import ListenAddress
from broker.control.reload import CarryOut
from broker.control.reload_change import Difference
from broker.errors import ListenFailedError, SettingError, SettingsError
from broker.net.listener import reserve
from broker.net.tls import Security
from broker.observe.logs import reconfigure_logging
from broker.reloading import explained, needs_security
from broker.workers.channel import WorkerFailedError

if TYPE_CHECKING:
    from broker.workers.message import Begin
    from broker.workers.supervisor import Supervisor


@dataclass(frozen=True, eq=False)
class Port:
    """A port that is kept for the workers, which share it. Shape: `address` as configured."""

    address: ListenAddress
    sock: socket.socket

    @property
    def bound(self) -> ListenAddress:
        """As it was bound."""
        host, port = self.sock.getsockname()[:2]
        return ListenAddress(host, port)


@dataclass(frozen=True, slots=True)
class _Ready:
    """What was made ready. Shape: `security` None where the files of the endpoint are the same."""

    settings: Settings
    ports: list[Port]
    security: Security | None
    admin: Change
    begin: Begin


async def make_workers_ready(
    gateway: Supervisor, settings: Settings, changed: Sequence[Difference], undo: AsyncExitStack
) -> CarryOut:
    """
    Make ready for these settings, here and in all workers that serve.

    Raises:
        SettingError, SettingsError, ListenFailedError: it cannot be; nothing has changed.
    """
    security = await asyncio.to_thread(security_of, settings) if needs_security(changed) else None
    ports = _reserved(gateway, settings, undo)
    admin = await gateway.admin.prepare(settings, undo)
    ready = _Ready(settings, ports, security, admin, gateway.begin_with(settings, ports))
    if changed:
        undo.push_async_callback(_abandon, gateway)
        told = await asyncio.gather(*(slot.prepare(ready.begin) for slot in gateway.slots), return_exceptions=True)
        failed = [one for one in told if isinstance(one, BaseException)]
        for error in failed:
            if not isinstance(error, WorkerFailedError):
                raise error
        if failed:
            hint = "correct it, or wait until the worker is replaced"
            raise SettingsError([SettingError("endpoint.workers", str(error), None, hint) for error in failed])
    return partial(_swap_in, gateway, ready, is_for_workers=bool(changed))


def _reserved(gateway: Supervisor, settings: Settings, undo: AsyncExitStack) -> list[Port]:
    """A port for each address: one that is kept already, else a new one."""
    left, ports = list(gateway.ports), []
    for address in settings.endpoint.listen:
        same = next((port for port in left if port.address == address), None)
        if same is not None:
            left.remove(same)
            ports.append(same)
            continue
        try:
            sock = reserve(address.host, address.port)
        except ListenFailedError as error:
            raise explained(error, address, [port.address for port in gateway.ports]) from error
        undo.callback(sock.close)
        ports.append(Port(address, sock))
    return ports


async def _abandon(gateway: Supervisor) -> None:
    await asyncio.gather(*(slot.abandon() for slot in gateway.slots))


async def _swap_in(gateway: Supervisor, ready: _Ready, *, is_for_workers: bool) -> None:
    """From now on these settings hold, for workers that fail to take them when they are replaced. Does not fail."""
    before, settings = gateway.settings, ready.settings
    gone = [port for port in gateway.ports if port not in ready.ports]
    gateway.settings, gateway.ports = settings, ready.ports
    if settings.observe != before.observe:
        observe = settings.observe
        reconfigure_logging(log_format=observe.log_format, level=observe.log_level, instance=settings.instance.name)
    if ready.security is not None:
        gateway.certificates.use(settings, ready.security)
    gateway.admin.carry_out(ready.admin)
    if is_for_workers:
        await asyncio.gather(*(slot.adopt(ready.begin) for slot in gateway.slots))
    for port in gone:
        port.sock.close()
