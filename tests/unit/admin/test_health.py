"""The port of observation: the three questions of an orchestrator, and scrapes that share a text."""

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec.structs import replace

from broker.admin.health import WITHHELD, Scrapes, checks_of, observe_app
from broker.daemon.instance import Instance
from broker.dialog.endpoint import Endpoint
from broker.net.peer_table import DialHistory
from broker.net.tls import Encryption, Identity, Security
from broker.observe.instance import LoopLag
from broker.observe.snapshot import read_snapshot
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirrorRole, OwnRoleStatus
from broker.store.sqlite.write_lock import LockHolder, LockWait, WriteWaits
from tests.support.admin import ask

Get: TypeAlias = Callable[[str], Awaitable[tuple[int, str]]]


@pytest.fixture
def get(instance: Instance) -> Get:
    """Asks the port of observation: path -> status and text."""

    async def getting(path: str) -> tuple[int, str]:
        assert instance.admin.observe_address is not None
        answer = await ask(instance.admin.observe_address, "GET", path)
        return answer.status, answer.body.decode()

    return getting


async def test_instance_that_serves_is_well_until_it_ends(get: Get, instance: Instance) -> None:
    assert {(200, "ok\n")} == {(await get(path)) for path in ("/livez", "/readyz", "/startupz", "/healthz")}
    instance.is_ready = False
    instance.stopping.set()

    answers = {path: (await get(path))[0] for path in ("/livez", "/readyz", "/startupz")}
    _, text = await get("/readyz?verbose")

    assert {"/livez": 200, "/readyz": 503, "/startupz": 200} == answers
    assert "[-] ready\n[-] not stopping\n[+] store of orders\n[+] configuration\nfailed\n" == text


def bad(instance: Instance) -> list[str]:
    """The checks of readiness that are not good."""
    return [str(check) for check in checks_of(instance)["/readyz"]() if not check.is_good]


async def test_parts_that_fail_are_told_and_stop_nothing_but_where_no_store_works(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.endpoints["orders"].problem = "disk I/O error"
    standing = OwnRoleStatus(None, MirrorRole.MIRROR, 1, 0.0, "lock", problem="the storage is gone")
    monkeypatch.setattr(instance, "standings", lambda: {"orders": standing})

    parts = ["[!] store of orders: disk I/O error", "[!] role of orders: the storage is gone"]
    assert parts == bad(instance)
    endpoint = replace(instance.settings.endpoint, message_forwarding=False)
    monkeypatch.setattr(instance, "settings", replace(instance.settings, endpoint=endpoint))
    assert ["[-] a store works: none does: disk I/O error", *parts] == bad(instance)
    assert not read_snapshot(instance, ()).is_ready


@pytest.mark.parametrize("is_forwarding", [True, False])
async def test_a_full_disk_is_told_before_a_store_has_failed_on_it(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, *, is_forwarding: bool
) -> None:
    disk = os.statvfs_result((4096, 4096, 1 << 20, 4, 4, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    endpoint = replace(instance.settings.endpoint, message_forwarding=is_forwarding)
    monkeypatch.setattr(instance, "settings", replace(instance.settings, endpoint=endpoint))

    marks = [line.partition(": the disk of ")[0] for line in bad(instance)]

    assert [*["[-] a store works: none does"] * (not is_forwarding), "[!] store of orders"] == marks
    assert is_forwarding == read_snapshot(instance, ()).is_ready


async def test_a_held_write_lock_is_a_warning_with_its_holder(
    get: Get, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = WriteWaits(present=LockWait(0.0, 12.3, LockHolder(7, "python3")))
    monkeypatch.setattr(Endpoint, "write_waits", waits)

    status, text = await get("/readyz?verbose")

    line = "[!] store of orders: process 7 (python3) has kept a write transaction open for 12 s"
    assert (200, True) == (status, line in text.splitlines())


async def test_a_database_made_in_place_of_a_lost_one_is_told(instance: Instance) -> None:
    record = instance.settings.instance.state_dir / "databases.json"
    seen = json.loads(record.read_text())
    (key,) = [key for key, one in seen.items() if one["path"] == str(instance.endpoints["orders"].path)]
    seen[key]["replaced"] = "LOST"
    record.write_text(json.dumps(seen))

    [told] = bad(instance)
    assert told.startswith("[!] file of orders: ")
    assert "of broker instance LOST" in told


async def test_the_status_page_is_looked_for_at_the_wrong_port(get: Get, instance: Instance) -> None:
    assert instance.settings.admin.listen is not None
    status, text = await get("/")

    assert (404, True) == (status, f"no status page: it is on port {instance.settings.admin.listen.port}" in text)


async def test_instance_whose_own_certificate_has_expired_is_not_ready(instance: Instance) -> None:
    now = datetime.now(UTC)
    own = Identity("CN=one", "ab", (), now, now)
    instance.certificates.security = Security(Encryption.REQUIRED, own=own)
    instance.certificates.problem = "endpoint.certificate: gone"

    expired, gone = bad(instance)
    assert expired.startswith("[-] certificate: the certificate of this instance has expired")
    assert "[!] certificate files: endpoint.certificate: gone" == gone
    assert not read_snapshot(instance, ()).is_ready


# --- one check, and without one ---


# A path, and what is answered while the instance stops.
ALONE = {
    "/readyz/ready": (200, "ok\n"),
    "/readyz/not-stopping": (503, "failed\n"),
    "/readyz/not%20stopping?verbose": (503, "[-] not stopping\nfailed\n"),
    "/healthz/not-stopping": (503, "failed\n"),
    "/livez/loop": (200, "ok\n"),
    "/startupz/started": (200, "ok\n"),
    "/readyz?exclude=not+stopping": (200, "ok\n"),
    "/readyz?exclude=ready": (503, "failed\n"),
    "/readyz?exclude=not-stopping&exclude=ready&verbose": (200, "[+] store of orders\n[+] configuration\nok\n"),
    "/startupz?verbose&exclude=nothing": (200, "[+] started\n[!] exclude: no check here has the name 'nothing'\nok\n"),
}


async def test_check_is_asked_alone_or_left_out(get: Get, instance: Instance) -> None:
    instance.stopping.set()

    assert ALONE == {path: (await get(path)) for path in ALONE}


async def test_check_that_is_not_there_is_not_found(get: Get) -> None:
    assert [404] * 3 == [(await get(path))[0] for path in ("/readyz/nothing", "/livez/ready", "/readyz/")]


async def test_task_that_has_died_is_told_and_bad_when_it_is_asked_alone(get: Get, instance: Instance) -> None:
    next(task for task in asyncio.all_tasks() if task.get_name() == "peers tick").cancel()
    await asyncio.sleep(0.01)

    status, text = await get("/readyz?verbose")

    assert [200, 503] == [status, (await get("/readyz/task-peers-tick"))[0]]
    assert "[!] task peers tick: has died 1 times, the last time of: it was cancelled" in text
    assert 1 == instance.supervision.failures["peers tick"]


@pytest.mark.parametrize(
    ("address", "headers", "is_told"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("10.0.0.7", {}, False),
        ("", {}, False),
        ("127.0.0.1", {"Host": "127.0.0.1:9423"}, True),
        ("127.0.0.1", {"Host": "localhost"}, True),
        ("127.0.0.1", {"Host": "evil.example:9423"}, False),  # of a page whose name leads here
        ("127.0.0.1", {"Host": "localhost", "X-Forwarded-For": "192.0.2.7"}, False),
    ],
)
async def test_reason_is_told_to_this_machine_alone(
    instance: Instance, address: str, headers: dict[str, str], *, is_told: bool
) -> None:
    instance.endpoints["orders"].problem = "cannot open /var/lib/broker/orders.db"
    routes: list[Any] = list(observe_app(instance, Executor()).router.routes())
    handler = next(route.handler for route in routes if route.resource.canonical == "/readyz")
    asked = make_mocked_request("GET", "/readyz?verbose", headers=headers, transport=_transport(address))

    text = (await handler(asked)).text

    assert (is_told, not is_told) == ("/var/lib" in text, f"[!] store of orders: {WITHHELD}" in text)


def _transport(address: str) -> Any:
    return SimpleNamespace(get_extra_info=lambda name, default=None: (address, 1) if name == "peername" else default)


@pytest.mark.promise("A healthy instance is restarted by its probe")
async def test_peer_that_is_gone_does_not_make_an_instance_unready(get: Get, instance: Instance) -> None:
    attempts: Any = instance.peers.table.histories
    attempts[NetworkAddress("127.0.0.1", 1)] = DialHistory(failures=9, problem="refused")

    status, text = await get("/readyz?verbose")

    assert (status, "refused" in text) == (200, False)


async def test_livez_looks_at_nothing_but_the_loop() -> None:
    """Whoever hears no ends the process: what it cannot help must have no say."""
    instance: Any = SimpleNamespace(lag=LoopLag())

    assert [check.name for check in checks_of(instance)["/livez"]()] == ["loop"]


# --- scrapes ---


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


@pytest.fixture
async def scrapes(instance: Instance, executor: ThreadPoolExecutor) -> Scrapes:
    return Scrapes(instance, executor)


@pytest.mark.promise("A metric has the label value other")
async def test_storm_of_scrapes_makes_two_texts(scrapes: Scrapes, executor: ThreadPoolExecutor) -> None:
    """The first is under way when the others come, and they share the second."""
    gate = threading.Event()
    executor.submit(gate.wait)
    first = asyncio.create_task(scrapes.text(""))
    for _ in range(2):
        await asyncio.sleep(0)

    others = [asyncio.create_task(scrapes.text("")) for _ in range(100)]
    await asyncio.sleep(0)
    gate.set()
    texts = await asyncio.gather(first, *others)

    assert 2 == len({id(body) for body, _ in texts})


async def test_text_is_as_of_after_the_request(scrapes: Scrapes, instance: Instance) -> None:
    await scrapes.text("")
    instance.is_ready = False

    body, _ = await scrapes.text("")

    assert b"\nbroker_ready 0.0\n" in body


async def test_who_goes_away_takes_nobody_s_text(scrapes: Scrapes, executor: ThreadPoolExecutor) -> None:
    gate = threading.Event()
    executor.submit(gate.wait)
    one, other = (asyncio.create_task(scrapes.text("")) for _ in range(2))
    await asyncio.sleep(0)

    one.cancel()
    gate.set()
    body, _ = await other

    assert b"broker_ready" in body
