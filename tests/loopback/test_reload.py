"""A running instance reads its configuration again: all of it holds or nothing, and nobody who is connected notices."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from broker import begin_dialog
from broker.catalog.check import check_running
from broker.catalog.execute import execute
from broker.daemon.instance import Instance, serve
from broker.ddl.parser import parse_script
from broker.errors import SettingsError
from broker.net.link import Link
from broker.routing.address import NetworkAddress
from broker.routing.lint import Lint
from broker.store.sqlite.inspect import backlog_of
from broker.store.sqlite.transaction import open_watch
from tests.support.certificates import make
from tests.support.command import run
from tests.support.loopback import raw, until
from tests.support.reloaded import File, Sections, plain, read_again

pytestmark = pytest.mark.usefixtures("guard")


@asynccontextmanager
async def running(directory: Path, **more: dict[str, object]) -> AsyncIterator[tuple[Instance, File]]:
    file = plain(directory, **more)
    async with serve(file.settings()) as instance:
        yield instance, file


@pytest.mark.promise("A reload fails")
async def test_a_reload_of_the_same_changes_nothing_and_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path) as (instance, file):
        before, listener = instance.settings, instance.listeners[0]

        done = await file.reload(instance)

        assert (False, []) == (done.changed, done.settings)
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
@pytest.mark.promise("A reload fails")
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
            await read_again(instance)

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


@pytest.mark.promise("A reload fails")
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

            done = await file.reload(instance, with_tls(tmp_path, authentication="certificate"))

            assert 0 == done.connections
            await until(lambda: not instance.peers.links)
        assert {"TlsRefusedError": 1} == dict(instance.peers.protocol_errors)


async def test_who_is_shut_out_or_let_in_because_certificates_are_no_longer_shown_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "m.sql").write_text("GRANT CONNECT ON ENDPOINT::near TO [CN=a];")
    secured = {name: dict(one) for name, one in with_tls(tmp_path, authentication="certificate").items()}
    async with running(tmp_path, routes={"files": ["m.sql"]}, **secured) as (instance, file):
        plain_text = {"endpoint": {"encryption": "disabled", "authentication": "none", "trust": []}}

        told = (await file.reload(instance, plain_text)).warnings

        assert [
            "msdb: peers show no certificates now: without a GRANT CONNECT TO [public] all are refused",
            "msdb: there is no GRANT SEND, and from now on all have it",
        ] == told[:2]


async def test_a_changed_script_is_carried_out_again_and_nothing_else(tmp_path: Path) -> None:
    """What it does not say any more stays, as at a start; what was made by hand in another database stays as well."""
    script = tmp_path / "routes.sql"
    script.write_text("CREATE ROUTE a WITH SERVICE_NAME = '//a', ADDRESS = 'tcp://127.0.0.1:9';")
    async with running(tmp_path, routes={"files": ["routes.sql"]}) as (instance, file):
        script.write_text("CREATE ROUTE b WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://127.0.0.1:9';")

        dry = await read_again(instance, is_dry_run=True)
        first, second = await file.reload(instance), await file.reload(instance)

        names = {route.name for route in instance.forwarder.routing_context.table}
        assert {"a", "b"} <= names
        assert [["route b created"]] * 2 == [dry.messages, first.messages]
        assert ((["msdb"], True), ([], False)) == (
            (first.databases, first.changed),
            (second.databases, second.changed),
        )


@pytest.mark.parametrize(
    ("database", "what", "also"),
    [
        ("msdb", "CONNECT ON ENDPOINT::near", ""),
        ("msdb", "SEND ON SERVICE::[//a]", ", acknowledgements and answers too"),
        ("a", "SEND ON SERVICE::[a*]", ""),
    ],
)
async def test_a_first_grant_that_shuts_out_all_others_and_the_last_one_that_goes_are_warned_of(
    tmp_path: Path, database: str, what: str, also: str
) -> None:
    script = tmp_path / "m.sql"
    script.write_text("")
    sections: dict[str, dict[str, object]] = {"routes": {"files": ["m.sql"]}, "databases.a": {"path": "a.db"}}
    async with running(tmp_path, **sections) as (instance, _file):
        told = []
        for text, is_dry_run in (("[CN=a]", True), ("[CN=a]", False), ("[CN=b]", False)):
            script.write_text(f"USE {database}; GRANT {what} TO {text};")
            told.append((await read_again(instance, is_dry_run=is_dry_run)).warnings)
        script.write_text(f"USE {database}; CREATE ROUTE l WITH ADDRESS = 'LOCAL';")
        for is_dry_run, is_pruning in ((False, False), (True, True), (False, True), (False, True)):
            done = await read_again(instance, is_dry_run=is_dry_run, is_pruning=is_pruning)
            told.append(done.warnings)

        one = what.partition(" ")[0]
        warning = f"{database}: all had {one}; from now on what no GRANT {one} TO [public] permits is refused{also}"
        opened = f"{database}: there is no GRANT {one}, and from now on all have it"
        assert [[warning], [warning], [], [], [opened], [opened], []] == told


async def test_where_certificates_are_shown_the_last_grant_that_goes_shuts_out_all(tmp_path: Path) -> None:
    script, route = tmp_path / "m.sql", "USE a; CREATE ROUTE l WITH ADDRESS = 'LOCAL';"
    script.write_text(f"{route} GRANT SEND ON SERVICE::[a*] TO [CN=a];")
    run("certs", "issue", "--database", "a", "--out", tmp_path)
    files = {"certificate": f"{tmp_path}/a.dialog.pem", "private_key": f"{tmp_path}/a.dialog.key"}
    shown: dict[str, object] = {"path": "a.db", **files}
    async with running(tmp_path, routes={"files": ["m.sql"]}, **{"databases.a": shown}) as (instance, _file):
        script.write_text(route)
        told = [(await read_again(instance, is_pruning=one)).warnings for one in (False, True, True)]

        assert [[], ["a: there is no GRANT SEND, and from now on all are refused"], []] == told


async def test_a_route_that_the_script_of_another_database_makes_is_no_dropped_one(tmp_path: Path) -> None:
    script = tmp_path / "m.sql"
    script.write_text("")
    sections: dict[str, dict[str, object]] = {"routes": {"files": ["m.sql"]}, "databases.a": {"path": "a.db"}}
    async with running(tmp_path, **sections) as (instance, _file):
        script.write_text("USE a; CREATE ROUTE [b] WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://127.0.0.1:9';")
        answers = [await read_again(instance), await read_again(instance)]

        assert "b" in {one.name for one in instance.catalog.databases["a"].table}
        assert [[], []] == [one.warnings for one in answers]


async def test_what_a_script_makes_and_was_dropped_stays_away_and_is_warned_of(tmp_path: Path) -> None:
    script, drop = tmp_path / "m.sql", "DROP ROUTE b; DENY SEND ON SERVICE::[//b] TO x;"
    route = "CREATE ROUTE [b] WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://127.0.0.1:9';"
    script.write_text(f"{route} GRANT SEND ON SERVICE::[//b] TO x, y;")
    async with running(tmp_path, routes={"files": ["m.sql"]}) as (instance, file):
        told = [await read_again(instance)]
        good = (await asyncio.to_thread(check_running, file.settings())).concerns
        await execute(instance.catalog, parse_script(drop), database="msdb")
        [gone] = [
            one.problem
            for one in (await asyncio.to_thread(check_running, file.settings())).concerns
            if one.lint is Lint.NOT_IN_FORCE
        ]
        told.append(await read_again(instance))
        there = {one.name for one in instance.catalog.msdb.table}
        script.write_text(f"{script.read_text()} ")
        told.append(await read_again(instance))

        assert "b" not in there
        assert "b" in {one.name for one in instance.catalog.msdb.table}
        assert [0, 2, 0] == [len(one.warnings) for one in told]
        grant = "GRANT SEND ON SERVICE::[//b] TO [x]"
        unchanged = "and its script has not changed: "
        for warning, what, again in zip(
            told[1].warnings, ("the route [b] was dropped", f"{grant} was revoked"), (route, f"{grant};"), strict=True
        ):
            assert warning.startswith(f"msdb: {what}, {unchanged}")
            assert warning.replace("CREATE ROUTE b ", "CREATE ROUTE [b] ").endswith(again)
        assert gone.startswith(f"the route [b], {grant} are in its scripts, and not in the running instance")
        assert Lint.NOT_IN_FORCE not in {one.lint for one in good}


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
        dry = await read_again(instance, is_dry_run=True, is_pruning=True)
        before = {one.name for one in instance.catalog.msdb.table}
        pruned = await read_again(instance, is_pruning=True)
        again = await read_again(instance, is_pruning=True)

        drops = ["DROP ROUTE [gone];", "DROP ROUTE [hand];", "REVOKE SEND ON SERVICE::[//s] FROM [public];"]
        expected = [f"USE [msdb]; {drop}" for drop in drops]
        assert [expected] * 3 == [sorted(one.unscripted) for one in (told, dry, pruned)]
        assert 1 == len([one for one in concerns if one.lint is Lint.NOT_IN_SCRIPTS])
        assert {"gone", "hand"} == before - {one.name for one in instance.catalog.msdb.table}
        assert ((), True, [], False) == (
            instance.catalog.msdb.rows.permissions,
            pruned.changed,
            again.unscripted,
            again.changed,
        )


class Shop:
    """An instance with a database and a service of its name, whose certificate a CA has signed."""

    def __init__(self, directory: Path, name: str, far: str) -> None:
        self.name, self.far, self.directory = name, far, directory
        self.certify("127.0.0.1")
        tls = {"certificate": str(directory / f"{name}.pem"), "private_key": str(directory / f"{name}.key")}
        (directory / f"{name}.sql").write_text(f"CREATE QUEUE Q; CREATE SERVICE [//{name}] ON QUEUE Q;")
        allowed = "GRANT CONNECT ON ENDPOINT::[*] TO [CN={0}]; GRANT SEND ON SERVICE::[*] TO [CN={0}];"
        (directory / f"{name}-msdb.sql").write_text(allowed.format(far))
        trusted = {"encryption": "required", "authentication": "certificate", "trust": [str(directory / "ca/ca.pem")]}
        changes: dict[str, dict[str, object]] = {
            "instance": {"name": name, "state_dir": str(directory / f"{name}-state")},
            "endpoint": {**tls, **trusted},
            "routes": {"files": [f"{name}-msdb.sql"]},
            f"databases.{name}": {"path": f"{name}.db", "scripts": [str(directory / f"{name}.sql")]},
        }
        self.settings = plain(directory, **changes).settings()
        self.instance: Instance

    def certify(self, host: str) -> None:
        """Put another certificate with another key in the place of the old one."""
        made = self.directory / "made"
        run("certs", "issue", self.name, "--host", host, "--ca", self.directory / "ca", "--out", made)
        for file in made.iterdir():
            file.replace(self.directory / file.name)

    @property
    def links(self) -> list[Link]:
        return list(self.instance.peers.links.values())

    async def renew(self, host: str) -> None:
        """The same while it runs, which finds that by itself."""
        self.certify(host)
        certificates = self.instance.certificates
        before = certificates.reloads
        while certificates.reloads == before:
            await certificates.poll()

    def send(self, body: str) -> None:
        with closing(sqlite3.connect(self.instance.endpoints[self.name].path)) as db, db:
            begin_dialog(db, from_service=f"//{self.name}", to_service=f"//{self.far}").send(body)

    def problem_at(self, address: NetworkAddress) -> str:
        return self.instance.peers.table.problem_of(address)

    @property
    def waiting(self) -> int:
        """Messages that the other one has not acknowledged."""
        with closing(open_watch(self.instance.endpoints[self.name].path)) as db:
            return backlog_of(db, 0.0).messages


async def test_a_certificate_for_a_wrong_host_that_is_put_right_leaves_one_connection_for_both_sides(
    tmp_path: Path,
) -> None:
    """A connection with the old certificate stays, and the other side makes one with the new: both keep the same."""
    run("certs", "init", tmp_path / "ca", "--name", "CA")
    orders, billing = Shop(tmp_path, "orders", "billing"), Shop(tmp_path, "billing", "orders")
    with capture_logs() as logs:
        async with serve(orders.settings) as orders.instance, serve(billing.settings) as billing.instance:
            addresses = {}
            for one, arbitration in ((orders, b"1"), (billing, b"2")):  # the first one's connections stay
                peers = one.instance.peers
                peers.hello = structs.replace(peers.hello, arbitration=arbitration * 16)
                addresses[one.name] = NetworkAddress("127.0.0.1", one.instance.listeners[0].port)
            for one in (orders, billing):
                way = f"CREATE ROUTE far WITH SERVICE_NAME = '//{one.far}', ADDRESS = '{addresses[one.far]}'"
                await execute(one.instance.catalog, parse_script(way), database=one.name)
            orders.send("before")
            await until(lambda: not orders.waiting)

            await orders.renew("elsewhere.example")
            for link in orders.links:
                link.close("the network is gone for a moment")
            orders.send("meanwhile")
            billing.send("meanwhile")
            await until(lambda: "elsewhere.example" in billing.problem_at(addresses["orders"]))
            await until(lambda: orders.links)
            await orders.renew("127.0.0.1")
            billing.instance.peers.dialer.retry_now()  # broker dialogs retry

            await until(lambda: not orders.waiting and not billing.waiting)
            await until(lambda: (1, 1) == (len(orders.links), len(billing.links)))
            settled = [entry["event"] for entry in logs].count("link online")
            for number in range(5):
                orders.send(str(number))
                billing.send(str(number))
                await until(lambda: not orders.waiting and not billing.waiting)

            assert settled == [entry["event"] for entry in logs].count("link online") <= 12
