"""Several workers look like one instance to those who ask."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.admin.subject import Subject
from broker.control.catalog import MSDB, Catalog, Database
from broker.control.certificate_watch import CertificateWatch
from broker.control.config import Settings
from broker.control.listen import ListenAddress
from broker.control.reload import Reloads
from broker.errors import StoreUnavailableError
from broker.net.certificate import Identity
from broker.net.drain import Bounds, Drain
from broker.net.tls import NO_SECURITY, Encryption, Security
from broker.observe.metrics import METRICS, Exposition
from broker.observe.view import DISPOSITIONS, make_row
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.facts import Facts
from broker.routing.route import MirroredPair, Route
from broker.routing.table import RouteChange
from broker.supervision import Supervision
from broker.workers.channel import WorkerFailedError
from broker.workers.leaving import SupervisorLeaver
from broker.workers.message import PairKnown, Reached, WorkerReport
from broker.workers.tally import LAG, Retired
from broker.workers.whole import Whole

FAR, GONE = NetworkAddress("far", 4022), NetworkAddress("gone", 4022)
TOLD_BY_THE_REST = {"broker_route_up", "broker_metrics_label_overflow_total"} | {
    metric.name for metric in METRICS if metric.name.startswith("broker_transmission_queue")
}
PAIR = MirroredPair("//far", UUID(int=1), FAR, GONE)
FACTS = Facts("//far", b"t" * 16, b"c" * 16, is_from_target=False)


def report(number: int) -> WorkerReport:
    """What the worker of this number tells: as many of everything."""
    forwarding = {"enabled": True, "received": {"message": number}, "forwarded": number, "delivered": 0}
    forwarding |= {"dropped": {}, "held": number, "pool_bytes": 100 * number, "pool_limit_bytes": 1, "unaccounted": 0}
    samples: dict[str, Any] = {metric.name: [] for metric in METRICS if metric.name not in TOLD_BY_THE_REST}
    samples |= {
        "broker_forward_pool_messages": [((), float(number))],
        "broker_build_info": [(("broker", "3.11", "uvloop", "python"), 1.0)],
        "broker_ready": [((), 1.0)],
        "broker_messages_forwarded_total": [(("far", str(FAR)), float(number))],
        "broker_hop_duration_seconds": [(("0.001",), float(number)), (("sum",), 0.5)],
        LAG: [((), number / 10)],
    }
    status = {
        "kernel": "python",
        "forwarding": forwarding,
        "transport": {
            "encryption": "disabled",
            "warnings": ["connections are not encrypted"],
            "certificates": [],
            "reloads": 0,
            "reload_failures": number,
            "problem": "",
            "handshakes": number,
            "connections_max": 100,
            "refused": {"connections": number},
        },
        "connections": [{"name": f"peer{number}"}],
        "addresses": {str(FAR): {"health": "untried", "problem": "", "held": number}},
        "waiting": [{"next_hop": str(FAR), "held": number, "held_bytes": 1, "oldest_s": 1.0, "why": f"says {number}"}],
        "mirrored_routes": [{"route": "pair", "epoch": number}],
        "tasks": [{"name": "looks", "running": True, "failures": number, "problem": ""}],
        "journal": {"directory": "/flows", "sample": 1.0, "records": number, "shed": 1, "problem": ""},
    }
    far = Reached(FAR, "CONNECTED", "") if number == 1 else Reached(FAR, "SUPPRESSED", "Connection refused")
    reached = [far, Reached(GONE, "SUPPRESSED", "timed out")]
    down = [GONE] if number == 1 else [FAR, GONE]
    pairs = [PairKnown(PAIR, FAR if number == 1 else None, number, f"as worker {number} knows")]
    return WorkerReport(status, samples, down, reached, ["tcp://g:4022"], [NetworkAddress(f"g{number}", 4022)], pairs)


class Slot:
    """A place with a played worker."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = 1000 + number
        self.restarts = number - 1
        self.is_ready = True
        self.started_at = 0.0
        self.report: WorkerReport | None = None
        self.retired = Retired()
        self.is_failing = False
        self.is_silent = False

    @property
    def problem(self) -> str:
        if not self.is_ready:
            return "does not serve at the moment"
        return "has not answered for 2 s" if self.is_silent else ""

    async def tell(self) -> None:
        if self.is_ready:
            self.report = report(self.number)

    async def rows(self, view: str) -> list[tuple[Any, ...]]:
        if self.is_failing:
            raise WorkerFailedError(self.number, "it has ended")
        if view == DISPOSITIONS:
            return [make_row(view, disposition="no route", frames=self.number)]
        return [make_row("sys.dm_broker_connections", peer_name=f"peer{self.number}")]

    async def passed(self, _kind: object) -> list[Facts]:
        if self.is_failing:
            raise WorkerFailedError(self.number, "it has ended")
        return [FACTS]


class Played:
    """A supervisor of two played workers."""

    def __init__(self, settings: Settings) -> None:
        database = Database(MSDB, b"i" * 16, None, lambda: pytest.fail("nobody reads a file"))
        change = RouteChange(None, Route("far", FAR, remote_service_name="//far"))
        database.table = database.table.changed([change])
        self.settings = settings
        self.software = "broker 1"
        self.started_at = 0.0
        self.stopping = asyncio.Event()
        self.listen = [ListenAddress("127.0.0.1", 4022)]
        self.slots = [Slot(1), Slot(2)]
        self.broker_instance = b"i" * 16
        self.catalog = Catalog({MSDB: database}, lambda: None)
        self.is_ready = True
        self.own = {NetworkAddress("g", 4022)}
        self.settled = 0
        self.certificates = CertificateWatch(settings)
        self.supervision = Supervision()
        self.certificates.security = NO_SECURITY
        self.reloads = Reloads(cast("Any", self))
        self.drain = Drain(SupervisorLeaver(cast("Any", self)), lambda: Bounds(0.0, 0.0))

    async def settle(self) -> None:
        self.settled += 1


@pytest.fixture
async def played(settings: Settings) -> Played:
    return Played(settings)


@pytest.fixture
async def whole(played: Played) -> Whole:
    supervisor: Any = played
    return Whole(supervisor)


async def test_whole_is_a_subject_of_the_admin_interface(whole: Whole, played: Played) -> None:
    subject: Subject = whole

    await subject.settle()

    assert (subject.settings, subject.software, subject.catalog) == (played.settings, "broker 1", played.catalog)
    assert (subject.is_ready, subject.stopping, subject.backlog_paths()) == (True, played.stopping, {})
    assert played.settled == 1


async def test_status_adds_up_and_has_a_line_for_each_worker(whole: Whole, played: Played) -> None:
    played.slots[0].retired.add(report(5), uncounted_s=0.25)

    status = await whole.status()

    assert status["forwarding"]["forwarded"] == 1 + 2 + 5
    assert status["forwarding"]["held"] == 3
    assert status["forwarding"]["dropped"] == {"lost with a worker": 5}
    assert status["forwarding"]["pool_limit_bytes"] == 64 * 2**20
    assert [(one["lost"], one["uncounted_s"]) for one in status["workers"]] == [(5, 0.25), (0, 0.0)]
    assert status["forwarding"]["enabled"] is True
    transport = status["transport"]
    assert (["connections are not encrypted"], {"connections": 3}) == (transport["warnings"], transport["refused"])
    assert (2, 3, 200) == tuple(transport[name] for name in ("reload_failures", "handshakes", "connections_max"))
    assert status["connections"] == [{"worker": 1, "name": "peer1"}, {"worker": 2, "name": "peer2"}]
    assert [(one["worker"], one["epoch"]) for one in status["mirrored_routes"]] == [(1, 1), (2, 2)]
    assert [(one["worker"], one["name"], one["failures"]) for one in status["tasks"]] == [
        (1, "looks", 1),
        (2, "looks", 2),
    ]
    assert (None, True, "") == (status["draining"], status["reload"]["successful"], status["reload"]["problem"])
    assert status["journal"] == {"directory": "/flows", "sample": 1.0, "records": 3, "shed": 2, "problem": ""}
    assert status["addresses"] == {str(FAR): {"health": "untried", "problem": "", "held": 3}}
    assert [(one["worker"], one["pid"], one["connections"], one["restarts"]) for one in status["workers"]] == [
        (1, 1001, 1, 0),
        (2, 1002, 1, 1),
    ]


async def test_status_without_any_worker_is_still_told(whole: Whole, played: Played) -> None:
    for slot in played.slots:
        slot.is_ready, slot.pid = False, None

    status = await whole.status()

    assert (status["forwarding"]["received"], status["connections"]) == ({}, [])
    assert [(one["ready"], one["uptime_s"], one["held"]) for one in status["workers"]] == [(False, None, 0)] * 2
    assert whole.parts == {
        **dict.fromkeys(("worker 1", "worker 2"), "does not serve at the moment"),
        "configuration": "",
    }


@pytest.mark.parametrize("is_there", [True, False])
async def test_every_metric_is_told(whole: Whole, played: Played, *, is_there: bool) -> None:
    for slot in played.slots:
        slot.is_ready = is_there

    if is_there:
        body, _ = Exposition().render(await whole.reading(), "")
        lines = body.decode().splitlines()

        assert "broker_forward_pool_messages 3.0" in lines
        assert "broker_event_loop_lag_seconds 0.2" in lines
        assert "broker_workers 2.0" in lines
        assert "broker_worker_restarts_total 1.0" in lines
        assert "broker_forward_pool_limit_bytes 6.7108864e+07" in lines
        assert sum(line.startswith("broker_build_info{") for line in lines) == 1
        assert 'broker_route_up{address="tcp://far:4022",route="far"} 1.0' in lines
    else:
        body, _ = Exposition().render(await whole.reading(), "")

        assert "broker_workers 0.0" in body.decode().splitlines()


async def test_one_truth_about_what_is_lost_and_what_is_unaccounted_for(whole: Whole, played: Played) -> None:
    played.slots[0].retired.add(report(5), uncounted_s=0.25)

    status = await whole.status()
    body, _ = Exposition().render(await whole.reading(), "")

    lines = body.decode().splitlines()
    difference = status["forwarding"]["unaccounted"]
    assert difference == 8 - 8 - 3 - 5, "played workers count the held ones as forwarded, too"
    assert f'broker_ledger_unaccounted_messages{{database=""}} {float(difference)}' in lines
    assert 'broker_messages_dropped_total{reason="lost with a worker"} 5.0' in lines


async def test_worker_that_does_not_answer_is_told(whole: Whole, played: Played) -> None:
    played.slots[1].is_silent = True

    status = await whole.status()
    body, _ = Exposition().render(await whole.reading(), "")

    assert ["", "has not answered for 2 s"] == [one["problem"] for one in status["workers"]]
    assert {"worker 1": "", "worker 2": "has not answered for 2 s"} == {
        name: problem for name, problem in whole.parts.items() if name.startswith("worker ")
    }
    assert "broker_workers 1.0" in body.decode().splitlines()


async def test_address_that_one_worker_reaches_is_not_down(whole: Whole) -> None:
    assert (await whole.reading()).down == {GONE}


async def test_place_has_the_best_that_any_worker_knows(whole: Whole) -> None:
    place = await whole.place()

    assert place.surroundings.health_of(FAR) is Health.CONNECTED
    assert place.surroundings.health_of(NetworkAddress("new", 1)) is Health.UNTRIED
    assert (place.problem_of(FAR), place.problem_of(GONE)) == ("", "timed out")
    assert place.surroundings.own == {NetworkAddress(host, 4022) for host in ("g", "g1", "g2")}
    assert [route.name for route in place.surroundings.msdb.routes("//far")] == ["far"]
    assert place.surroundings.principals == {PAIR: FAR}
    unknown = replace(PAIR, remote_service_name="//other")
    assert (place.pair_told(PAIR), place.pair_told(unknown)) == ("as worker 1 knows", "")


async def test_what_passed_through_any_worker_is_known_once(whole: Whole, played: Played) -> None:
    _, both = await whole.frozen()
    played.slots[1].is_failing = True
    _, one = await whole.frozen()

    assert (both, one) == ([FACTS], [FACTS])


async def test_rows_of_all_workers_are_one_view(whole: Whole) -> None:
    views = whole.views().by_view()

    rows = await asyncio.to_thread(lambda: list(views["sys.dm_broker_connections"]()))

    assert [[value for value in row if isinstance(value, str)] for row in rows] == [["peer1"], ["peer2"]]
    assert whole.views().transmission_statuses() == {}


async def test_drops_of_all_workers_and_of_dead_ones_are_one_row(whole: Whole, played: Played) -> None:
    played.slots[0].retired.forwarding = {"dropped": {"no route": 5}}
    views = whole.views().by_view()

    (row,) = await asyncio.to_thread(lambda: list(views["sys.dm_broker_dispositions"]()))

    assert ("no route", 1 + 2 + 5) == (row[0], row[3])


async def test_view_without_the_rows_of_a_worker_is_refused(whole: Whole, played: Played) -> None:
    """Rows that are left out would be a wrong answer."""
    played.slots[1].is_failing = True
    views = whole.views().by_view()

    with pytest.raises(StoreUnavailableError, match="worker 2: it has ended"):
        await asyncio.to_thread(views["sys.dm_broker_forwarded_messages"])


async def test_endpoint_is_one(whole: Whole) -> None:
    views = whole.views().by_view()

    (row,) = await asyncio.to_thread(lambda: list(views["sys.service_broker_endpoints"]()))

    assert {"g", "127.0.0.1:4022", "tcp://g:4022", 64, 300, 3} <= set(row)


async def test_certificate_of_the_gateway_and_its_files_are_parts_of_its_health(whole: Whole, played: Played) -> None:
    now = datetime.now(UTC)
    own = Identity("CN=gateway", "ab", (), now, now)
    played.certificates.security = Security(Encryption.REQUIRED, own=own)
    played.certificates.problem = "endpoint.trust: gone"

    assert "endpoint.trust: gone" == whole.parts["certificate files"]
    assert "the certificate of this instance has expired" in whole.certificate_problem


async def test_reload_that_has_failed_is_a_part_of_its_health(whole: Whole, played: Played) -> None:
    played.reloads.problem = "gateway.toml:3:1: wrong\n  |"

    assert "not reloaded: gateway.toml:3:1: wrong" == whole.parts["configuration"]
    assert played.reloads.problem == (await whole.status())["reload"]["problem"]


async def test_journal_and_tasks_of_a_worker_are_parts_of_the_health_of_the_whole(whole: Whole, played: Played) -> None:
    await whole.status()
    first, second = (cast("WorkerReport", slot.report).status for slot in played.slots)
    first["journal"]["problem"] = "No space left on device"
    second["tasks"][0]["problem"] = "has died 1 times"

    assert {
        "journal of worker 1": "No space left on device",
        "journal of worker 2": "",
        "task looks of worker 2": "has died 1 times",
    } == {name: problem for name, problem in whole.parts.items() if " of worker " in name}


async def test_tasks_of_the_supervisor_are_counted_beside_those_of_workers(whole: Whole, played: Played) -> None:
    played.supervision.note("routes")

    reading = await whole.reading()

    assert (("routes",), 1) in reading.samples["broker_task_failures_total"]


async def test_the_counts_of_every_second_are_those_that_workers_told_last(settings: Settings) -> None:
    """Nobody is asked for them."""
    supervisor = Played(settings)
    whole = Whole(supervisor)  # type: ignore[arg-type]  # played
    before = whole.counts()
    for slot in supervisor.slots:
        await slot.tell()

    counts = whole.counts()

    assert (0, 3, 3, 3.0) == (before.received, counts.received, counts.held, sum(counts.hops))
    assert {("far", str(FAR)): 3.0} == whole.carried()
