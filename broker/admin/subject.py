"""
What the admin API and the metrics are about: an instance, whether it runs in one process or in several.

`OneProcess` is an instance that lives in this very process; a gateway of several workers is in `broker.workers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from broker.admin.explaining import Place, running_place
from broker.control.catalog import Catalog
from broker.control.config import Settings
from broker.control.reload import Reloads, reload_part
from broker.net.drain import Drain
from broker.observe.count import Counts, read_counts
from broker.observe.instance import Running
from broker.observe.label import Labels
from broker.observe.lag import LoopLag
from broker.observe.log_level import LogLevels
from broker.observe.logs import LogLevel
from broker.observe.metrics import Reading, read_metrics_in_turns
from broker.observe.mirror import carried_by_way
from broker.observe.query import Snapshot
from broker.observe.snapshot import Snapshots
from broker.observe.status import backlog_paths, read_status
from broker.observe.transport import certificate_part, own_certificate_problem
from broker.routing.choose import Health
from broker.routing.facts import Facts
from broker.supervision import Supervision


class Views(Protocol):
    """What gives the rows that are in no file; asked by other threads than the loop's."""

    def by_view(self) -> dict[str, Snapshot]:
        """What gives the rows of each view."""

    def transmission_statuses(self) -> Mapping[bytes, str]:
        """What is known of each dialog that has something to send, by its conversation_handle."""


class Subject(Protocol):
    """
    The instance that is asked about, and changed through its catalog. Loop-only.

    Shape: `lag` of the loop that answers; `log_levels` what differs from the configured level of the log.
    """

    lag: LoopLag
    log_levels: LogLevels

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    @property
    def software(self) -> str:
        """Program and version."""

    @property
    def catalog(self) -> Catalog:
        """Its databases."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it begins to stop."""

    @property
    def reloads(self) -> Reloads:
        """How it takes its configuration anew."""

    @property
    def supervision(self) -> Supervision:
        """The tasks of this process that last as long as it does."""

    async def set_log_level(self, component: str, level: LogLevel | None, seconds: float) -> None:
        """Another level of the log for a time, in every process."""

    @property
    def drain(self) -> Drain:
        """How it leaves."""

    @property
    def parts(self) -> Mapping[str, str]:
        """What may fail without the whole, by name, with what is wrong with it; empty when nothing is."""

    @property
    def certificate_problem(self) -> str:
        """Why nobody can trust the certificate that it shows; empty while somebody can."""

    def views(self) -> Views:
        """The rows that are in no file."""

    def backlog_paths(self) -> dict[str, Path]:
        """The files in which messages wait, by database."""

    async def status(self) -> dict[str, Any]:
        """Everything about it but what is in the files."""

    async def reading(self) -> Reading:
        """Its metrics at this moment."""

    def counts(self) -> Counts:
        """The few numbers that are noted every second, as of now or shortly before."""

    def carried(self) -> Mapping[Labels, float]:
        """Frames by route and next hop since the start, as of now or shortly before."""

    async def place(self) -> Place:
        """What a question about routing needs to know; for the loop's own use."""

    async def frozen(self) -> tuple[Place, list[Facts]]:
        """The same for another thread, as it is at this moment, and what passed through lately."""

    async def settle(self) -> None:
        """Wait until every process decides by what was committed before."""


def tasks_part(supervision: Supervision) -> dict[str, str]:
    """The tasks that have died lately, for those who ask for health."""
    return {f"task {name}": problem for name, problem in supervision.problems.items() if problem}


class OneProcess:
    """An instance in this process."""

    def __init__(self, instance: Running) -> None:
        self.lag = LoopLag()
        self.log_levels = LogLevels()
        self._instance = instance

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._instance.settings

    @property
    def software(self) -> str:
        """Program and version."""
        return self._instance.software

    @property
    def catalog(self) -> Catalog:
        """Its databases."""
        return self._instance.catalog

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self._instance.is_ready

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it begins to stop."""
        return self._instance.stopping

    @property
    def drain(self) -> Drain:
        """How it leaves."""
        return self._instance.drain

    @property
    def reloads(self) -> Reloads:
        """How it takes its configuration anew."""
        return self._instance.reloads

    async def set_log_level(self, component: str, level: LogLevel | None, seconds: float) -> None:
        """Another level of the log for a time."""
        self.log_levels.change(component, level, seconds)

    @property
    def supervision(self) -> Supervision:
        """Its tasks."""
        return self._instance.supervision

    @property
    def parts(self) -> Mapping[str, str]:
        """
        The stores, and the roles of databases with a partner.

        As a gateway, and for its other databases, an instance works on without one.
        """
        stores = {f"store of {name}": endpoint.problem for name, endpoint in self._instance.endpoints.items()}
        standings = self._instance.standings().items()
        roles = {f"role of {name}": one.problem for name, one in standings if one.source != "off"}
        journal = {} if self._instance.journal is None else {"journal": str(self._instance.journal.status()["problem"])}
        rest = {**certificate_part(self._instance.certificates), **reload_part(self.reloads)}
        return stores | roles | rest | journal | tasks_part(self.supervision)

    @property
    def certificate_problem(self) -> str:
        """Why nobody can trust the certificate that it shows."""
        return own_certificate_problem(self._instance.certificates.security)

    def views(self) -> Snapshots:
        """The rows that are in no file."""
        return Snapshots(self._instance)

    def backlog_paths(self) -> dict[str, Path]:
        """The files in which messages wait, by database."""
        return backlog_paths(self._instance)

    async def status(self) -> dict[str, Any]:
        """Everything about it but what is in the files."""
        return read_status(self._instance)

    async def reading(self) -> Reading:
        """Its metrics at this moment."""
        return await read_metrics_in_turns(self._instance, self.lag)

    def counts(self) -> Counts:
        """The few numbers that are noted every second."""
        return read_counts(self._instance)

    def carried(self) -> Mapping[Labels, float]:
        """Frames by route and next hop since the start."""
        return carried_by_way(self._instance.forwarder)

    async def place(self) -> Place:
        """The instance as it is when it is looked at."""
        return running_place(self._instance)

    async def frozen(self) -> tuple[Place, list[Facts]]:
        """The instance as it is now, and what passed through lately."""
        place, peers = running_place(self._instance), self._instance.peers
        health = {address: peers.health_of(address) for address in peers.known_addresses}
        problems = {address: peers.problem_of(address) for address in health}
        told = {pair: place.pair_told(pair) for pair in self._instance.mirrors.in_use}
        here = replace(place.surroundings, health_of=lambda address: health.get(address, Health.UNTRIED))
        place = replace(
            place,
            surroundings=here,
            problem_of=lambda address: problems.get(address, ""),
            pair_told=lambda pair: told.get(pair, ""),
        )
        return place, list(self._instance.forwarder.passed)

    async def settle(self) -> None:
        """The table was swapped when the statement was carried out."""
