"""Databases come and go with their roles, whole or not at all."""

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from broker.catalog.catalog import MSDB, Catalog
from broker.catalog.database_files import make_directory, path_of
from broker.client.dialog import begin_dialog
from broker.config.settings import Settings
from broker.daemon import databases, roles
from broker.daemon.databases import Databases
from broker.dialog.status import PathProblem
from broker.errors import SettingError, StatementError, StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.forwarding.ring import Ring
from broker.protocol.frame import Probe, ProbeReply
from broker.routing.decide import AddressHealth
from broker.routing.mirrored import MirrorRole
from broker.store.sqlite.database import lock_store
from broker.store.sqlite.file_identity import RECORD
from broker.supervision import Supervision
from tests.support.dialog import far_initiator
from tests.support.loopback import until
from tests.support.visits import decode

ALONE = "11111111-1111-4111-8111-111111111111"
SHARED = "22222222-2222-4222-8222-222222222222"
TEXT = f"""
[instance]
name = "first"
state_dir = "state"
[routes]
files = ["msdb.sql"]
[databases.alone]
path = "alone.db"
broker_instance = "{ALONE}"
scripts = ["alone*.sql"]
[databases.orders]
path = "orders.db"
broker_instance = "{SHARED}"
scripts = ["orders.sql"]
mirroring = "lock"
"""
SERVICES = "CREATE QUEUE Inbox; CREATE SERVICE [//orders] ON QUEUE Inbox;"
SECONDS = 20.0


def made(settings: Settings, *announced: list[bytes]) -> Databases:
    return Databases(
        settings,
        problem_of_path=lambda _: PathProblem(),
        announce=[*announced, []][0].append,
        audit=lambda _path, _database: None,
        supervision=Supervision(),
    )


class Running:
    """As much of an instance as its databases need."""

    def __init__(self, settings: Settings) -> None:
        self.announced: list[bytes] = []
        self.changes = 0
        self.databases = made(settings, self.announced)
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
            deliver=self.databases.deliver,
            request_link=lambda _: None,
            health_of=lambda _: AddressHealth.UNTRIED,
        )
        self.databases.attach(self.forwarder)
        names = (MSDB, *self.databases.own)
        for name in names:
            self.databases.take(name)
        own = {name: self.databases.load(name) for name in names}
        self.catalog = Catalog(own, self._on_change)
        self.databases.bind(self.catalog)

    def _on_change(self) -> None:
        self.changes += 1
        tables = self.catalog.tables()
        for name, endpoint in self.databases.endpoints.items():
            endpoint.transmitter.table = tables[name]

    def prove(self, instance: str) -> ProbeReply:
        return self.databases.answer_probe(Probe(id=3, service="s", broker_instance=guid(instance)))


class Peer:
    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        self.advice: list[Disposition] = []

    def reject(self, _frame: Buffer, disposition: Disposition) -> None:
        self.advice.append(disposition)


def guid(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


@pytest.fixture
def settings(load: Callable[..., Settings], tmp_path: Path) -> Settings:
    (tmp_path / "orders.sql").write_text(SERVICES, encoding="utf-8")
    for name in ("msdb", "alone"):
        (tmp_path / f"{name}.sql").write_text("", encoding="utf-8")
    settings = load(TEXT)
    make_directory(settings.instance.state_dir)
    return settings


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Running]:
    instance = Running(settings)
    try:
        await instance.catalog.load()
        await instance.databases.start()
        yield instance
    finally:
        await instance.databases.hand_over()
        await instance.catalog.close()
        await instance.databases.close_all()


async def test_what_is_free_comes_with_its_scripts_and_is_told(settings: Settings) -> None:
    async with running(settings) as first:
        assert {"alone", "orders"} == first.databases.endpoints.keys()
        assert {"//orders"} == set(first.catalog.databases["orders"].rows.services)
        assert ({}, frozenset()) == (first.catalog.mirrors, first.catalog.hosted().mirrors)
        assert {guid(ALONE), guid(SHARED)} == first.catalog.hosted().services_of.keys()
        assert [guid(SHARED)] == first.announced
        told = [(reply.role, reply.epoch) for reply in map(first.prove, (ALONE, SHARED, SHARED[::-1]))]
        assert [("principal", 0), ("principal", 1), ("unknown", 0)] == told
        standing = first.databases.standings()["alone"]
        assert (MirrorRole.PRINCIPAL, "off", "") == (standing.role, standing.source, standing.problem)
        with pytest.raises(StatementError, match="is not mirrored") as caught:
            first.databases.check("alone")
        assert 1416 == caught.value.number


async def test_what_somebody_else_has_is_a_mirror_and_stays_closed(settings: Settings) -> None:
    lock = lock_store(path_of(settings, "orders"))

    async with running(settings) as second:
        assert {"alone"} == second.databases.endpoints.keys()
        assert {guid(SHARED)} == second.catalog.hosted().mirrors
        assert "mirror" == second.prove(SHARED).role
        assert not path_of(settings, "orders").exists()
        os.close(lock)
        await until(lambda: "orders" in second.databases.endpoints)
        assert frozenset() == second.catalog.hosted().mirrors


async def test_what_goes_is_refused_at_once_given_back_and_still_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "REST_SECONDS", 1.0)
    async with running(settings) as first:
        path = path_of(settings, "orders")
        with closing(sqlite3.connect(path, timeout=SECONDS)) as db, db:
            begin_dialog(db, from_service="//orders", to_service="//orders")
        first.databases.endpoints["orders"].delivered["//orders"] = 7
        handing_over = asyncio.create_task(first.databases.carry_out("orders"))
        await until(lambda: "orders" in first.catalog.mirrors)
        peer = Peer()
        ring = first.forwarder.ring = Ring(10_000, sample=0)
        frames = [far_initiator().message(number) for number in range(2)]

        first.databases.deliver(guid(SHARED), frames, peer)
        services = first.catalog.hosted().services_of
        await until(lambda: "orders" not in first.catalog.databases)
        told = await handing_over

        visits = [(record.entry, record.disposition) for record in decode(ring.take())]
        assert [(None, Disposition.DATABASE_IS_MIRROR)] * 2 == visits
        assert [Disposition.DATABASE_IS_MIRROR] * 2 == peer.advice
        assert 2 == first.databases.past.dropped[Disposition.DATABASE_IS_MIRROR]
        assert 7 == first.databases.past.delivered["//orders"]
        assert {guid(ALONE)} == services.keys()
        assert "so this instance is the principal again, epoch 2" in told
        assert {"alone", "orders"} == first.databases.endpoints.keys()
        assert [guid(SHARED)] * 3 == first.announced


async def test_who_stood_still_for_longer_than_its_role_holds_stores_nothing_any_more(
    load: Callable[..., Settings], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noticed by what comes, long before its keeper looks again."""
    now = 5000.0
    monkeypatch.setattr(databases, "boot_time", lambda: now)
    often = 'role_command = ["echo", "principal"]\nrole_interval = "50m"\nrole_timeout = "1h"'
    text = TEXT.replace('mirroring = "lock"', f'mirroring = "command"\n{often}')
    async with running(load(text)) as instance:
        path = path_of(settings, "orders")
        instance.databases.deliver(guid(SHARED), [far_initiator("//orders").message(0)], Peer())
        await until(lambda: _count(path) == 1)
        now += 3601.0

        instance.databases.deliver(guid(SHARED), [far_initiator("//orders").message(0)], Peer())
        claimed = instance.prove(SHARED).role
        await until(lambda: "orders" not in instance.catalog.databases)

        assert ("mirror", 1) == (claimed, _count(path))
        assert {guid(SHARED)} == instance.catalog.hosted().mirrors


def _count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        found: int = db.execute("SELECT count(*) FROM broker_message").fetchone()[0]
        return found


async def test_what_cannot_come_leaves_nothing_behind(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "orders.sql").write_text("CREATE SERVICE [//x] ON QUEUE None", encoding="utf-8")

    instance = Running(settings.replace(databases={"orders": settings.databases["orders"]}))
    await instance.catalog.load()
    with pytest.raises(StatementError):
        await instance.databases.start()
    closing_lock = lock_store(path_of(settings, "orders"))
    await instance.databases.close_all()

    assert {MSDB} == instance.catalog.databases.keys()
    assert {"orders"} == instance.catalog.mirrors.keys()
    os.close(closing_lock)


async def test_a_copy_of_another_database_does_not_come(settings: Settings) -> None:
    orders, alone = settings.databases["orders"], settings.databases["alone"]
    same = {"alone": alone, "orders": orders.replace(broker_instance=alone.broker_instance)}
    instance = Running(settings.replace(databases=same))
    await instance.catalog.load()
    (settings.instance.state_dir / RECORD).unlink()  # which would tell as well

    with pytest.raises(SettingError, match="error 9772"):
        await instance.databases.start()

    await instance.databases.close_all()


async def test_msdb_converses_once_it_is_told_to(settings: Settings) -> None:
    async with running(settings) as first:
        begun: list[Any] = [first.databases.converse_in_msdb(), first.databases.converse_in_msdb()]

        assert [first.databases.msdb, None] == begun
        assert first.databases.msdb is first.databases.endpoints[MSDB]


async def test_what_this_instance_alone_has_must_be_free_and_is_given_back(settings: Settings) -> None:
    instance_lock = lock_store(path_of(settings, "alone"))
    with pytest.raises(StoreUnavailableError, match="another daemon has it open"):
        made(settings).take("alone")

    os.close(instance_lock)
    databases = made(settings)
    databases.take("alone")
    await databases.close_all()
    os.close(lock_store(path_of(settings, "alone")))
