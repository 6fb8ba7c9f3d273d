"""A running instance reads its configuration again: all of it holds or nothing, and nobody who is connected notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.catalog.check import check_running
from broker.catalog.execute import execute
from broker.daemon.instance import Instance, serve
from broker.ddl.parser import parse_script
from broker.errors import SettingsError
from broker.routing.address import NetworkAddress
from broker.routing.lint import Lint
from tests.support.certificates import make
from tests.support.loopback import raw, until
from tests.support.reloaded import File, Sections, plain

pytestmark = pytest.mark.usefixtures("guard")


@asynccontextmanager
async def running(directory: Path, **more: dict[str, object]) -> AsyncIterator[tuple[Instance, File]]:
    file = plain(directory, **more)
    async with serve(file.settings()) as instance:
        yield instance, file


async def test_a_reload_of_the_same_changes_nothing_and_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path) as (instance, file):
        before, listener = instance.settings, instance.listeners[0]

        done = await file.reload(instance)

        assert (False, []) == (done.has_changed, done.changes)
        assert (before, listener) == (instance.settings, instance.listeners[0])
        assert (1, 0, True) == (instance.reloads.succeeded, instance.reloads.failed, instance.reloads.is_successful)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[endpoint]\nlisten = ["127.0.0.1:0"', "broker.toml:2:"),
        ("[endpoint]\nmax_hops = 0\nheartbeat = 3\n", "endpoint.max_hops"),
        ("[endpoint]\nmax_hop = 3\n", 'did you mean "max_hops"'),
        ('[endpoint]\nencryption = "required"\ncertificate = "one.pem"\n', "there is no private_key"),
        ('[routes]\nfiles = ["none.sql"]\n', "routes.files[0]"),
        ('[routes]\nfiles = ["bad.sql"]\n', "bad.sql:2:"),
        ('[admin]\nlisten = "0.0.0.0:0"\n', "there is no TLS"),
        ("[journal]\nsample = 2.0\n", "journal.sample"),
    ],
    ids=["cut", "values", "name", "certificate-without-key", "no-script", "bad-script", "admin", "journal"],
)
async def test_a_configuration_that_is_wrong_changes_nothing_and_is_told_with_its_place(
    tmp_path: Path, text: str, told: str
) -> None:
    make("one", "127.0.0.1").store(tmp_path, "one")
    (tmp_path / "bad.sql").write_text("CREATE ROUTE good WITH ADDRESS = 'LOCAL';\nCREATE ROUTE bad WITH ADRESS = 'x';")
    async with running(tmp_path) as (instance, file):
        before = instance.settings
        routes = sorted(route.name for route in instance.catalog.msdb.table)
        file.path.write_text(text)

        with pytest.raises(SettingsError) as caught:
            await instance.reloads.reload()

        reloads = instance.reloads
        assert told in str(caught.value)
        assert (before, routes) == (instance.settings, sorted(route.name for route in instance.catalog.msdb.table))
        assert (False, 1, True) == (reloads.is_successful, reloads.failed, bool(reloads.problem))
        assert (True, "") == ((await file.reload(instance)) is not None and reloads.is_successful, reloads.problem)


async def test_a_connection_goes_on_when_the_port_it_came_through_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as (instance, file):
        old = instance.listeners[0].port
        async with raw(NetworkAddress("127.0.0.1", old)) as neighbour:
            await until(lambda: instance.peers.links)
            [link] = instance.peers.links.values()

            await file.reload(instance, {"endpoint": {"listen": ["localhost:0"]}})

            assert [link] == list(instance.peers.links.values())
            assert old != instance.listeners[0].port
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", old)
            async with raw(NetworkAddress("127.0.0.1", instance.listeners[0].port)):
                await until(lambda: len(instance.peers.links) == 2)
            del neighbour


async def test_connections_go_on_with_what_was_agreed_and_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as (instance, file):
        async with raw(NetworkAddress("127.0.0.1", instance.listeners[0].port)):
            await until(lambda: instance.peers.links)

            done = await file.reload(instance, {"endpoint": {"heartbeat": "3s"}})

            assert (1, 1) == (done.connections, instance.reloads.connections_as_before)
            async with raw(NetworkAddress("127.0.0.1", instance.listeners[0].port)):
                await until(lambda: len(instance.peers.links) == 2)
                assert 1 == instance.reloads.connections_as_before
        await until(lambda: not instance.peers.links)
        assert 0 == instance.reloads.connections_as_before


def with_tls(directory: Path, **more: str) -> Sections:
    certificate, key = make("one", "127.0.0.1").store(directory, "one")
    tls = {"encryption": "required", "certificate": str(certificate), "private_key": str(key)}
    return {"endpoint": tls | {"trust": [str(certificate)]} | more}


async def test_who_has_not_proved_who_it_is_is_closed_once_everybody_has_to(tmp_path: Path) -> None:
    async with running(tmp_path) as (instance, file):
        async with raw(NetworkAddress("127.0.0.1", instance.listeners[0].port), arbitration=b"1" * 16):
            await until(lambda: instance.peers.links)

            await file.reload(instance, with_tls(tmp_path, authentication="certificate"))

            await until(lambda: not instance.peers.links)
        assert {"TlsRefusedError": 1} == dict(instance.peers.protocol_errors)


async def test_a_changed_script_is_carried_out_again_and_nothing_else(tmp_path: Path) -> None:
    """What it does not say any more stays, as at a start; what was made by hand in another database stays as well."""
    script = tmp_path / "routes.sql"
    script.write_text("CREATE ROUTE a WITH SERVICE_NAME = '//a', ADDRESS = 'tcp://127.0.0.1:9';")
    async with running(tmp_path, routes={"files": ["routes.sql"]}) as (instance, file):
        script.write_text("CREATE ROUTE b WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://127.0.0.1:9';")

        first, second = await file.reload(instance), await file.reload(instance)

        names = {route.name for route in instance.forwarder.routing_context.table}
        assert {"a", "b"} <= names
        assert ((["msdb"], True), ([], False)) == (
            (first.databases, first.has_changed),
            (second.databases, second.has_changed),
        )


async def test_what_no_script_names_is_named_and_pruned_on_demand(tmp_path: Path) -> None:
    """Nothing that the program or a partner has made is among it, and nothing that a guard only looks for."""
    script, route = tmp_path / "m.sql", "CREATE ROUTE [{}] WITH SERVICE_NAME = '//{}', ADDRESS = 'tcp://127.0.0.1:9';"
    kept = (
        f"{route.format('a', 'a')} IF NOT EXISTS (SELECT * FROM sys.routes WHERE name = 'b') {route.format('b', 'b')}"
    )
    by_hand = "".join(route.format(name, name) for name in ("b", "hand", "partner:x:y"))
    late = "CREATE ROUTE late WITH SERVICE_NAME = '//l', ADDRESS = 'tcp://127.0.0.1:9', LIFETIME = 600;"
    script.write_text(f"{route.format('gone', 'g')} GRANT SEND ON SERVICE::[//s] TO public;")
    async with running(tmp_path, routes={"files": ["m.sql"]}) as (instance, file):
        await execute(instance.catalog, parse_script(by_hand + late), database="msdb")
        script.write_text(kept)

        told = await file.reload(instance)
        concerns = (await asyncio.to_thread(check_running, file.settings())).concerns
        dry = await instance.reloads.reload(is_dry_run=True, is_pruning=True)
        before = {one.name for one in instance.catalog.msdb.table}
        pruned = await instance.reloads.reload(is_pruning=True)
        again = await instance.reloads.reload(is_pruning=True)

        drops = ["DROP ROUTE [gone];", "DROP ROUTE [hand];", "REVOKE SEND ON SERVICE::[//s] FROM [public];"]
        expected = [f"USE [msdb]; {drop}" for drop in drops]
        assert [expected] * 3 == [sorted(one.unscripted) for one in (told, dry, pruned)]
        assert 3 == len([one for one in concerns if one.lint is Lint.NOT_IN_SCRIPTS])
        assert {"gone", "hand"} == before - {one.name for one in instance.catalog.msdb.table}
        assert ((), True, [], False) == (
            instance.catalog.msdb.rows.permissions,
            pruned.has_changed,
            again.unscripted,
            again.has_changed,
        )
