"""The interface of a running instance for this package and `broker.admin`; `broker.daemon.instance` implements it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from broker.catalog.catalog import Catalog
from broker.catalog.reload import Reloads
from broker.config.settings import Settings
from broker.dialog.endpoint import Endpoint, EndpointTotals
from broker.forwarding.forwarder import Forwarder
from broker.net.certificates import CertificateWatch
from broker.net.drain import Drain
from broker.net.listener import Listener
from broker.net.mirrors import Mirrors
from broker.net.peers import Peers
from broker.routing.mirrored import OwnRoleStatus
from broker.supervision import Supervision

if TYPE_CHECKING:
    from broker.journal.writer import Journal

TICK_SECONDS = 0.2
WINDOW_TICKS = 75  # 15 s: the usual time between two scrapes, so that no late tick falls between them


class LoopLag:
    """
    How late the event loop runs what is due: the one figure that shows a blocking call or a starved machine.

    A tick is asked for every TICK_SECONDS; by how much it is late is how long everything else in the loop had to wait.
    Loop-only. `run` keeps time until it is cancelled.
    """

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=WINDOW_TICKS)

    @property
    def seconds(self) -> float:
        """The worst of the last `WINDOW_TICKS` ticks."""
        return max(self._late, default=0.0)

    async def run(self) -> None:
        """Tick until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.record(loop.time() - due)

    def record(self, late: float) -> None:
        """One tick was so many seconds late; the loop's clock may be a little early."""
        self._late.append(max(0.0, late))


class Running(Protocol):
    """
    An instance, as far as a snapshot and the admin API read it. Loop-only; nothing here changes it.

    `broker_instance` has 16 bytes, `started_at` is UTC seconds since 1970; `journal` is None where none is kept.
    """

    name: str
    software: str
    started_at: float
    is_ready: bool
    stopping: asyncio.Event
    settings: Settings
    broker_instance: bytes
    catalog: Catalog
    forwarder: Forwarder
    peers: Peers
    mirrors: Mirrors
    lag: LoopLag
    listeners: list[Listener]
    endpoints: Mapping[str, Endpoint]
    supervision: Supervision
    certificates: CertificateWatch
    drain: Drain
    reloads: Reloads
    journal: Journal | None

    @property
    def past(self) -> EndpointTotals:
        """The totals of departed databases."""

    def standings(self) -> Mapping[str, OwnRoleStatus]:
        """The role of the instance for each of its databases, by name."""
