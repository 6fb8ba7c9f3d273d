"""What this package and `broker.admin` ask of a running instance: a `broker.daemon.instance.Instance`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
from broker.observe.loop_lag import LoopLag
from broker.routing.mirrored import OwnRoleStatus
from broker.supervision import Supervision


class Journalling(Protocol):
    """A journal as those who look at it see it."""

    def status(self) -> Mapping[str, Any]:
        """What there is to tell: a plain value."""


class Running(Protocol):
    """
    An instance as those who look at it see it. Loop-only; nobody here changes it.

    Shape: `broker_instance` 16 bytes; `started_at` UTC seconds; `endpoints` the user databases by name; `past` what
    databases counted that are not at work any more; `lag` of its loop.
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

    @property
    def supervision(self) -> Supervision:
        """The tasks that last as long as it does."""

    @property
    def certificates(self) -> CertificateWatch:
        """What the endpoint brings to TLS, and whether its files are in use."""

    @property
    def journal(self) -> Journalling | None:
        """What records visits of frames; None where nothing does."""

    @property
    def drain(self) -> Drain:
        """How it leaves."""

    @property
    def past(self) -> EndpointTotals:
        """What databases counted that have gone to a partner."""

    @property
    def reloads(self) -> Reloads:
        """How it takes its configuration anew."""

    def standings(self) -> Mapping[str, OwnRoleStatus]:
        """What this instance is for each of its databases, by name."""

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The databases at work, by name."""

    @property
    def listeners(self) -> Sequence[Listener]:
        """The bound ports."""
