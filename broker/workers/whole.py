"""
A gateway of several processes as the admin API and the metrics see it: one instance.

What belongs to the gateway is told by the supervisor, the rest is asked of the workers and added up. A question about
routing is answered with the best that any worker knows of each address; a worker that knows less finds out when it has
something to send there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.admin.explaining import Place, principal_of
from broker.admin.subject import tasks_part
from broker.control.catalog import MSDB, Catalog
from broker.control.config import Settings
from broker.control.permission import grants_of
from broker.control.reload import Reloads, reload_part
from broker.errors import StoreUnavailableError
from broker.net.drain import Drain
from broker.observe.count import Counts, add_counts, counts_of
from broker.observe.drop import add_drops
from broker.observe.label import Labels
from broker.observe.lag import LoopLag
from broker.observe.log_level import LogLevels
from broker.observe.logs import LogLevel
from broker.observe.metrics import READ_ON_THE_LOOP, Reading
from broker.observe.next_hop import add_next_hops
from broker.observe.query import Row, Snapshot
from broker.observe.run import reload_readers
from broker.observe.snapshot import endpoint_row
from broker.observe.status import loop_name, running_scripts, show_guid
from broker.observe.stored import UNACCOUNTED
from broker.observe.transport import add_transports, certificate_part, own_certificate_problem
from broker.observe.view import DATABASE_MIRRORING, DISPOSITIONS, MIRRORS
from broker.routing.choose import Health
from broker.routing.decide import Surroundings
from broker.routing.facts import Facts, Hosted
from broker.supervision import Supervision
from broker.workers.channel import WorkerFailedError
from broker.workers.message import Levels, WorkerReport
from broker.workers.tally import (
    LAG,
    add_addresses,
    add_forwarding,
    add_journals,
    add_samples,
    merge_pairs,
    merge_reached,
)

if TYPE_CHECKING:
    from broker.workers.slot import Slot
    from broker.workers.supervisor import Supervisor

ANSWER_SECONDS = 10.0  # for all workers to answer a SELECT
_FORWARDED_TOTAL, _HOPS = "broker_messages_forwarded_total", "broker_hop_duration_seconds"
_CONNECTIONS, _FORWARDED = "sys.dm_broker_connections", "sys.dm_broker_forwarded_messages"


class Whole:
    """The subject of the admin interface; see `broker.admin.subject`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.lag = LoopLag()
        self.log_levels = LogLevels()
        self._supervisor = supervisor

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._supervisor.settings

    @property
    def software(self) -> str:
        """Program and version."""
        return self._supervisor.software

    @property
    def catalog(self) -> Catalog:
        """Msdb alone."""
        return self._supervisor.catalog

    @property
    def is_ready(self) -> bool:
        """Whether at least one worker serves."""
        return self._supervisor.is_ready

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it begins to stop."""
        return self._supervisor.stopping

    @property
    def drain(self) -> Drain:
        """How it leaves."""
        return self._supervisor.drain

    async def set_log_level(self, component: str, level: LogLevel | None, seconds: float) -> None:
        """Another level of the log for a time, in the supervisor and in each worker that answers."""
        self.log_levels.change(component, level, seconds)
        asked = [slot.ask(Levels(component, level, seconds), None) for slot in self._supervisor.slots if slot.is_ready]
        await asyncio.gather(*asked, return_exceptions=True)

    @property
    def supervision(self) -> Supervision:
        """The tasks of the supervisor."""
        return self._supervisor.supervision

    @property
    def reloads(self) -> Reloads:
        """How it takes its configuration anew."""
        return self._supervisor.reloads

    @property
    def parts(self) -> Mapping[str, str]:
        """The workers, and what each told of itself last."""
        slots = self._supervisor.slots
        workers = {f"worker {slot.number}": slot.problem for slot in slots}
        for slot in slots:
            workers |= {} if slot.report is None else _parts_of_worker(slot.number, slot.report.status)
        rest = {**certificate_part(self._supervisor.certificates), **reload_part(self.reloads)}
        return workers | rest | tasks_part(self.supervision)

    @property
    def certificate_problem(self) -> str:
        """Why nobody can trust its certificate."""
        return own_certificate_problem(self._supervisor.certificates.security)

    def views(self) -> WholeViews:
        """The rows of all workers."""
        return WholeViews(self._supervisor)

    def backlog_paths(self) -> dict[str, Path]:
        """None: there are no conversations here."""
        return {}

    async def status(self) -> dict[str, Any]:
        """What an instance tells, and a line for each worker."""
        supervisor = self._supervisor
        reports = await self._reports()
        statuses = {number: report.status for number, report in reports.items()}
        endpoint = self.settings.endpoint
        kernels = sorted({one["kernel"] for one in statuses.values()})
        return {
            "name": self.settings.instance.name,
            "software": self.software,
            "broker_instance": show_guid(supervisor.broker_instance),
            "started_at": datetime.fromtimestamp(supervisor.started_at, UTC).isoformat(timespec="milliseconds"),
            "uptime_s": round(time.time() - supervisor.started_at, 3),
            "ready": supervisor.is_ready,
            "draining": supervisor.drain.told,
            "loop": loop_name(),
            "kernel": ", ".join(kernels),
            "listen": [f"{one.host}:{one.port}" for one in supervisor.listen],
            "transport": add_transports(one["transport"] for one in statuses.values()),
            "forwarding": {
                "enabled": endpoint.message_forwarding,
                **self._forwarding(reports.values()),
                "pool_limit_bytes": endpoint.message_forward_size,
            },
            "connections": [
                {"worker": number, **link} for number, one in statuses.items() for link in one["connections"]
            ],
            "addresses": add_addresses(one["addresses"] for one in statuses.values()),
            "waiting": add_next_hops(one["waiting"] for one in statuses.values()),
            "tasks": [
                *supervisor.supervision.status(),
                *({"worker": number, **task} for number, one in statuses.items() for task in one["tasks"]),
            ],
            "running_scripts": running_scripts(self.catalog),
            "mirrored_routes": [
                {"worker": number, **route} for number, one in statuses.items() for route in one["mirrored_routes"]
            ],
            "reload": self.reloads.status(),
            "journal": add_journals(one["journal"] for one in statuses.values()),
            "mirroring": {},
            "databases": {},
            "workers": [_worker(slot, statuses.get(slot.number)) for slot in supervisor.slots],
        }

    async def reading(self) -> Reading:
        """The metrics of all workers, added up."""
        supervisor = self._supervisor
        reports = list((await self._reports()).values())
        own: dict[str, list[tuple[Labels, float]]] = {
            "broker_uptime_seconds": [((), time.time() - supervisor.started_at)],
            "broker_ready": [((), float(supervisor.is_ready))],
            "broker_workers": [((), float(sum(not slot.problem for slot in supervisor.slots)))],
            **{name: read(supervisor) for name, read in reload_readers().items()},
            "broker_worker_restarts_total": [((), float(sum(slot.restarts for slot in supervisor.slots)))],
            "broker_forward_pool_limit_bytes": [((), float(self.settings.endpoint.message_forward_size))],
            "broker_build_info": reports[0].samples["broker_build_info"] if reports else [],
            UNACCOUNTED: [(("",), float(self._forwarding(reports)["unaccounted"]))],
            LAG: [((), self.lag.seconds)],
        }
        retired = [slot.retired.told() for slot in supervisor.slots]
        died = {"broker_task_failures_total": [((task,), n) for task, n in supervisor.supervision.failures.items()]}
        reached = merge_reached(report.reached for report in reports)
        down = {address for report in reports for address in report.down}
        return Reading(
            samples=add_samples([_NO_SAMPLES, died, *(report.samples for report in reports), *retired], own),
            tables=(self.catalog.msdb.table,),
            down=frozenset(address for address in down if reached[address][0] is not Health.CONNECTED),
            paths={},
        )

    def counts(self) -> Counts:
        """What the workers told last, and the dead ones."""
        slots = self._supervisor.slots
        told = [(slot.report.status["forwarding"], slot.report.samples) for slot in slots if slot.report is not None]
        told += [(slot.retired.forwarding, slot.retired.told()) for slot in slots]
        return add_counts(counts_of(forwarding, samples.get(_HOPS, ())) for forwarding, samples in told)

    def carried(self) -> Mapping[Labels, float]:
        """The same by route and next hop."""
        told = [slot.report.samples for slot in self._supervisor.slots if slot.report is not None]
        retired = [slot.retired.told() for slot in self._supervisor.slots]
        carried: dict[Labels, float] = {}
        for labels, frames in (one for samples in (*told, *retired) for one in samples.get(_FORWARDED_TOTAL, ())):
            carried[tuple(labels)] = carried.get(tuple(labels), 0) + frames
        return carried

    async def place(self) -> Place:
        """The gateway with the best health that any worker knows."""
        supervisor = self._supervisor
        reports = list((await self._reports()).values())
        reached = merge_reached(report.reached for report in reports)
        pairs = merge_pairs(report.pairs for report in reports)
        table = self.catalog.tables()[MSDB]
        here = Surroundings(
            table,
            Hosted(),
            lambda address: reached.get(address, (Health.UNTRIED, ""))[0],
            self.settings.endpoint.message_forwarding,
            msdb=table,
            own=supervisor.own.union(*(report.own for report in reports)),
            principals={pair: one.principal for pair, one in pairs.items() if one.principal is not None},
        )
        return Place(
            self.settings.instance.name,
            supervisor.broker_instance,
            here,
            {},
            lambda address: reached.get(address, (Health.UNTRIED, ""))[1],
            lambda pair: pairs[pair].told if pair in pairs else "",
            grants_of(self.settings, self.catalog.msdb.rows.permissions),
            principal_of(supervisor.certificates.security.own),
        )

    async def frozen(self) -> tuple[Place, list[Facts]]:
        """The same, which no worker changes any more, and what passed through any of them."""
        place = await self.place()
        passed: dict[Facts, None] = {}
        for slot in self._supervisor.slots:
            if slot.is_ready:
                try:
                    passed |= dict.fromkeys(await slot.passed(list[Facts]))
                except WorkerFailedError:  # it is about to be replaced, and remembers nothing then
                    continue
        return place, list(passed)

    async def settle(self) -> None:
        """Wait until every worker decides by what was committed."""
        await self._supervisor.settle()

    def _forwarding(self, reports: Iterable[WorkerReport]) -> dict[str, Any]:
        """The sums of those that live and those that are dead."""
        retired = [slot.retired.forwarding for slot in self._supervisor.slots]
        return add_forwarding([_NO_FORWARDING, *(one.status["forwarding"] for one in reports), *retired])

    async def _reports(self) -> dict[int, WorkerReport]:
        return await read_reports(self._supervisor.slots)


async def read_reports(slots: Iterable[Slot]) -> dict[int, WorkerReport]:
    """The last reports of the workers by number, brought up to date."""
    slots = list(slots)
    await asyncio.gather(*(slot.tell() for slot in slots))
    return {slot.number: slot.report for slot in slots if slot.report is not None}


class WholeViews:
    """The rows of all workers. Made on the loop; its methods are for other threads."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()

    def by_view(self) -> dict[str, Snapshot]:
        """What gives the rows of each view."""
        return {
            _CONNECTIONS: partial(self._rows, _CONNECTIONS),
            _FORWARDED: partial(self._rows, _FORWARDED),
            "sys.service_broker_endpoints": self._endpoints,
            DISPOSITIONS: self._dispositions,
            MIRRORS: partial(self._rows, MIRRORS),
            DATABASE_MIRRORING: list,
        }

    def transmission_statuses(self) -> Mapping[bytes, str]:
        """None: nothing is sent from here."""
        return {}

    def _rows(self, view: str) -> Iterable[Row]:
        """Those of every worker that serves; raises StoreUnavailableError when one does not answer."""
        slots = [slot for slot in self._supervisor.slots if slot.is_ready]

        async def ask() -> list[list[tuple[Any, ...]]]:
            return await asyncio.gather(*(slot.rows(view) for slot in slots))

        try:
            found = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(ANSWER_SECONDS)
        except WorkerFailedError as error:
            raise StoreUnavailableError(view, str(error)) from error
        return [row for rows in found for row in rows]

    def _dispositions(self) -> list[Row]:
        """What all of them dropped, and those that died."""
        lost: Counter[str] = Counter()
        for slot in self._supervisor.slots:
            lost.update(slot.retired.forwarding.get("dropped", {}))
        return add_drops([self._rows(DISPOSITIONS)], lost)

    def _endpoints(self) -> list[Row]:
        """The one endpoint that they share."""
        asked = asyncio.run_coroutine_threadsafe(read_reports(self._supervisor.slots), self._loop)
        reports = list(asked.result(ANSWER_SECONDS).values())
        forwarding = add_forwarding([_NO_FORWARDING, *(report.status["forwarding"] for report in reports)])
        row = endpoint_row(
            self._supervisor.settings,
            listen=[f"{one.host}:{one.port}" for one in self._supervisor.listen],
            advertise=reports[0].addresses if reports else (),
            pool_bytes=forwarding["pool_bytes"],
            pool_messages=forwarding["held"],
            own=self._supervisor.certificates.security.own,
        )
        return [row]


_NO_SAMPLES: Mapping[str, list[tuple[Labels, float]]] = {name: [] for name in READ_ON_THE_LOOP}
_NO_FORWARDING: Mapping[str, Any] = {
    "received": {},
    "forwarded": 0,
    "delivered": 0,
    "dropped": {},
    "held": 0,
    "pool_bytes": 0,
}


def _parts_of_worker(number: int, status: Mapping[str, Any]) -> dict[str, str]:
    """Its journal and the tasks in it that have died lately."""
    journal = {} if status["journal"] is None else {f"journal of worker {number}": status["journal"]["problem"]}
    died = [task for task in status["tasks"] if task["problem"]]
    return journal | {f"task {task['name']} of worker {number}": task["problem"] for task in died}


def _worker(slot: Slot, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """One worker in a line."""
    return {
        "worker": slot.number,
        "pid": slot.pid,
        "ready": slot.is_ready,
        "uptime_s": None if slot.pid is None else round(time.time() - slot.started_at, 3),
        "connections": 0 if status is None else len(status["connections"]),
        "held": 0 if status is None else status["forwarding"]["held"],
        "restarts": slot.restarts,
        "lost": slot.retired.lost,
        "uncounted_s": round(slot.retired.uncounted_s, 3),
        "problem": slot.problem,
    }
