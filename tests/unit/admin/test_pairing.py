"""One side of a pairing: what it sees of the other endpoint, and that both sides see the same lines."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.admin import pairing
from broker.admin.client import AdminClient
from broker.admin.pairing import Line, Pairing, replace_check
from broker.control.listen import ListenAddress
from broker.control.load import load_settings
from broker.control.pairing import Side, own_offer
from broker.daemon import serve
from broker.net.tls import ALPN
from broker.routing.address import NetworkAddress
from broker.security.pairing import Partner, partner_of
from examples.demo.topology import free_port
from tests.support.paired import settings_of


def side_of(name: str, directory: Path, port: int = 4022) -> Side:
    sections = settings_of(name, directory)
    lines = ["[instance]", f'name = "{name}"', 'state_dir = "."']
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items())]
    (directory / "broker.toml").write_text("\n".join(lines))
    settings = load_settings(directory / "broker.toml", environ={})
    return Side(settings, name, f"//shop/{name}", NetworkAddress("127.0.0.1", port))


@contextmanager
def listening(shows: Side | None, trusts: Partner | None, *, says: bytes = b"\0") -> Iterator[int]:
    """An endpoint that takes one connection after the other, with TLS unless it shows nobody's certificate."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = None
        if shows is not None:
            endpoint = shows.settings.endpoint
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols([ALPN])
            context.load_cert_chain(str(endpoint.certificate), str(endpoint.private_key))
            context.verify_mode = ssl.CERT_REQUIRED
            if trusts is not None:
                context.load_verify_locations(cadata=trusts.offer.certificate)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with plain, suppress(OSError):
                        if context is None:
                            plain.recv(1000)
                            continue
                        with context.wrap_socket(plain, server_side=True) as tls:
                            tls.sendall(says)
                            tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def orders(tmp_path: Path) -> Side:
    return side_of("orders", tmp_path / "orders")


@pytest.fixture
def billing(tmp_path: Path) -> Side:
    return side_of("billing", tmp_path / "billing")


def partner(side: Side, port: int = 4022) -> Partner:
    return partner_of(msgspec.structs.replace(own_offer(side), address=f"tcp://127.0.0.1:{port}"))


def seen(monkeypatch: pytest.MonkeyPatch, side: Side, other: Partner) -> list[tuple[str, bool, str]]:
    """What this side sees of the other endpoint, without waiting for it to change."""
    monkeypatch.setattr(pairing, "REACH_SECONDS", -1.0)
    nobody: Any = None
    one = Pairing(side, other, nobody, AdminClient(Path("none")), is_inviting=True, show=nobody)
    return [(line.check, line.is_good, line.told) for line in one._reach()]


def test_endpoint_that_shows_the_right_certificate_and_takes_ours_is_good(
    monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side
) -> None:
    with listening(billing, partner(orders)) as port:
        endpoint, identity = seen(monkeypatch, orders, partner(billing, port))

    assert ("endpoint", True, f"tcp://127.0.0.1:{port} answers with TLS 1.3") == endpoint
    assert ("identity", True) == identity[:2]
    assert identity[2].startswith("CN=billing, sha256:")


def test_endpoint_that_does_not_take_ours_yet_is_told(
    monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side
) -> None:
    with listening(billing, None) as port:
        endpoint, identity = seen(monkeypatch, orders, partner(billing, port))

    assert endpoint[1]
    assert ("identity", False) == identity[:2]
    assert "does not take the certificate of this side" in identity[2]


def test_endpoint_that_ends_without_a_word_is_told(
    monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side
) -> None:
    with listening(billing, partner(orders), says=b"") as port:
        _, identity = seen(monkeypatch, orders, partner(billing, port))

    assert ("identity", False) == identity[:2]


def test_somebody_else_at_the_address_is_told(monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side) -> None:
    with listening(orders, partner(orders)) as port:
        endpoint, identity = seen(monkeypatch, orders, partner(billing, port))

    assert endpoint[1]
    assert not identity[1]
    assert "shows another certificate than the one that was exchanged" in identity[2]


def test_endpoint_without_tls_is_told(monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side) -> None:
    with listening(None, None) as port:
        lines = seen(monkeypatch, orders, partner(billing, port))

    assert not lines[-1][1]


def test_nobody_at_the_address_is_told(monkeypatch: pytest.MonkeyPatch, orders: Side, billing: Side) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    assert [("endpoint", False, f"tcp://127.0.0.1:{port}: Connection refused")] == seen(
        monkeypatch, orders, partner(billing, port)
    )


class Queue:
    """One end of a channel in memory. Says to `there`, hears from `here`."""

    def __init__(self, here: asyncio.Queue[Any], there: asyncio.Queue[Any]) -> None:
        self.number, self._here, self._there = "ab12", here, there

    async def say(self, value: Any) -> None:
        await self._there.put(value)

    async def hear(self, kind: type, *, seconds: float) -> Any:
        return await asyncio.wait_for(self._here.get(), seconds)


async def test_lines_of_both_are_shown_by_both_and_one_that_is_bad_ends_both(orders: Side, billing: Side) -> None:
    shown: dict[str, list[tuple[str, str, bool]]] = {"orders": [], "billing": []}
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]
    sides = {}
    for side, other, (here, there) in ((orders, billing, queues), (billing, orders, reversed(queues))):
        name = side.settings.instance.name

        def show(instance: str, line: Line, name: str = name) -> None:
            shown[name].append((instance, line.check, line.is_good))

        channel: Any = Queue(here, there)
        sides[name] = Pairing(side, partner(other), channel, AdminClient(Path("none")), is_inviting=True, show=show)

    first = await asyncio.gather(
        sides["orders"]._share((Line("route there", is_good=True, told=""),)),
        sides["billing"]._share((Line("route there", is_good=True, told=""),)),
    )
    second = await asyncio.gather(
        sides["orders"]._share((Line("x", is_good=False, told=""),)), sides["billing"]._share(())
    )

    assert [True, True, False, False] == [*first, *second]
    assert [("orders", "route there", True), ("billing", "route back", True), ("orders", "x", False)] == shown["orders"]
    assert [("billing", "route there", True), ("orders", "route back", True), ("orders", "x", False)] == shown[
        "billing"
    ]


async def test_side_whose_daemon_does_not_run_says_so_to_both(orders: Side, billing: Side, tmp_path: Path) -> None:
    shown: list[tuple[str, bool, str]] = []
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]
    channel: Any = Queue(queues[0], queues[1])
    one = Pairing(
        orders,
        partner(billing),
        channel,
        AdminClient(tmp_path / "none.sock"),
        is_inviting=True,
        show=lambda _, line: shown.append((line.check, line.is_good, line.told)),
    )
    await queues[0].put(pairing._Step(()))

    assert not await one.run()

    assert [("problem", False)] == [line[:2] for line in shown]
    assert "no daemon answers on" in shown[0][2]
    assert ["orders.pem"] == [path.name for path in (tmp_path / "orders" / "tls" / "peers").iterdir()]
    assert shown[0][2] == (await queues[1].get()).lines[0].told


def test_line_has_another_name_for_the_other_side() -> None:
    line = Line("route there", is_good=True, told="x")

    assert Line("route back", is_good=True, told="x") == replace_check(line, "route there", "route back")
    assert line == replace_check(line, "other", "route back")


# --- both sides, with daemons that run ----------------------------------------------------------------------


@dataclass
class Both:
    """Two instances that run, and what each of them has been shown."""

    sides: dict[str, Side]
    shown: dict[str, list[tuple[str, str, bool, str]]] = field(default_factory=lambda: {"orders": [], "billing": []})

    async def pair(self) -> list[bool]:
        """Whether each of them takes it for done."""
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]
        inviting, accepting = self._run("orders", "billing", queues), self._run("billing", "orders", queues[::-1])
        return list(await asyncio.gather(inviting, accepting))

    async def _run(self, name: str, other: str, queues: list[asyncio.Queue[Any]]) -> bool:
        def show(instance: str, line: Line) -> None:
            self.shown[name].append((instance, line.check, line.is_good, line.told))

        side, channel = self.sides[name], Queue(*queues)
        far = partner_of(own_offer(self.sides[other]))
        client = AdminClient(side.settings.admin.socket)
        return await Pairing(side, far, channel, client, name == "orders", show).run()  # type: ignore[arg-type]

    def bad(self) -> set[tuple[str, str, str]]:
        """The lines that are not good, whoever was shown them."""
        return {
            (instance, check, told)
            for lines in self.shown.values()
            for instance, check, is_good, told in lines
            if not is_good
        }

    def ask(self, name: str, question: str) -> list[list[Any]]:
        rows: list[list[Any]] = AdminClient(self.sides[name].settings.admin.socket).sql(question, name)["rows"]
        return rows

    def say(self, name: str, statement: str, database: str = "msdb") -> None:
        AdminClient(self.sides[name].settings.admin.socket).sql(statement, database)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    async with AsyncExitStack() as stack:
        sides = {}
        for name in ("orders", "billing"):
            port = free_port()
            side = side_of(name, tmp_path / name, port)
            listening_on = side.settings.endpoint.with_values({"listen": (ListenAddress("127.0.0.1", port),)})
            observe = side.settings.observe.with_values({"listen": None})
            settings = side.settings.with_values({"endpoint": listening_on, "observe": observe})
            (tmp_path / name / "scripts.d" / "services.sql").write_text(
                f"CREATE QUEUE Inbox; CREATE SERVICE [{side.service}] ON QUEUE Inbox;"
            )
            await stack.enter_async_context(serve(settings))
            sides[name] = replace(side, settings=settings)
        yield Both(sides)


async def test_two_instances_are_paired_and_again(both: Both) -> None:
    for _ in range(2):
        assert [True, True] == await both.pair(), both.bad()

    expected = {"statements", "certificates", "endpoint", "identity", "route there", "route back", "permission"}
    for lines in both.shown.values():
        assert expected | {"binding", "sealed round trip"} == {check for _, check, _, _ in lines}
        assert {"orders", "billing"} == {instance for instance, check, _, _ in lines if check == "sealed round trip"}
    for name, far in (("orders", "billing"), ("billing", "orders")):
        bound = await asyncio.to_thread(
            both.ask, name, "SELECT remote_service_name, remote_principal_name FROM sys.remote_service_bindings"
        )
        assert [[f"//shop/{far}", f"CN={far}"]] == bound
        assert [["Inbox"]] == await asyncio.to_thread(both.ask, name, "SELECT name FROM sys.service_queues")


async def test_route_of_somebody_else_is_in_the_way(both: Both) -> None:
    route = "CREATE ROUTE Mine WITH SERVICE_NAME = '//shop/billing', ADDRESS = 'tcp://other.example'"
    await asyncio.to_thread(both.say, "orders", route, "orders")

    assert [False, False] == await both.pair()

    told = "the route [Mine] leads to //shop/billing already: DROP ROUTE [Mine], then pair again"
    assert {("orders", "statements", told)} == both.bad()


async def test_name_with_permissions_of_somebody_else_is_refused(both: Both) -> None:
    await asyncio.to_thread(both.say, "billing", "GRANT CONNECT ON ENDPOINT::[*] TO [CN=orders]")

    assert [False, False] == await both.pair()

    [(instance, check, told)] = both.bad()
    assert ("billing", "problem") == (instance, check)
    assert "CN=orders has permissions here already, as CN=orders" in told


async def test_permission_that_is_denied_is_told(both: Both) -> None:
    await asyncio.to_thread(both.say, "orders", "DENY SEND ON SERVICE::[*] TO [CN=billing]")

    assert [False, False] == await both.pair()

    told = "DENY SEND ON SERVICE::[*] TO [CN=billing] in msdb is about CN=billing: REVOKE it, then pair again"
    assert {("orders", "statements", told)} == both.bad()
    assert [] == await asyncio.to_thread(both.ask, "orders", "SELECT name FROM sys.remote_service_bindings")


@pytest.mark.parametrize(
    ("database", "statement", "told"),
    [
        ("msdb", "DENY CONNECT ON ENDPOINT::[*] TO [CN=billing]", "DENY CONNECT ON ENDPOINT::[*] TO [CN=billing]"),
        (
            "msdb",
            "DENY SEND ON SERVICE::[//shop/orders] TO [bill*]",
            "DENY SEND ON SERVICE::[//shop/orders] TO [bill*]",
        ),
        ("orders", "DENY SEND ON SERVICE::[//shop/*] TO [public]", "DENY SEND ON SERVICE::[//shop/*] TO [public]"),
        ("orders", "CREATE SERVICE [//shop/billing] ON QUEUE Inbox", "is a service of the database orders here"),
        (
            "msdb",
            "CREATE ROUTE Mine WITH SERVICE_NAME = '//shop/billing', ADDRESS = 'tcp://other.example'",
            "the route [Mine] of msdb leads to //shop/billing at tcp://other.example",
        ),
        (
            "orders",
            "CREATE REMOTE SERVICE BINDING [Mine] TO SERVICE '//shop/billing' WITH USER = [CN=somebody]",
            "the binding [Mine] seals //shop/billing to CN=somebody already, and the other side is CN=billing",
        ),
    ],
    ids=["connect", "send", "send to the database", "service here", "route of msdb", "binding"],
)
async def test_what_pairing_would_lift_or_take_over_is_refused_before_any_change(
    both: Both, database: str, statement: str, told: str
) -> None:
    await asyncio.to_thread(both.say, "orders", statement, database)
    question = "SELECT grantee_name, state_desc FROM sys.server_permissions"
    before = await asyncio.to_thread(both.ask, "orders", question)

    assert [False, False] == await both.pair()

    [bad] = both.bad()
    assert ("orders", "statements") == bad[:2]
    assert told in bad[2]
    assert before == await asyncio.to_thread(both.ask, "orders", question)
    trusted = both.sides["orders"].settings.endpoint.trust[0].removesuffix("*.pem")
    assert ["orders.pem"] == await asyncio.to_thread(os.listdir, trusted)


async def test_message_that_does_not_come_is_told_with_the_reason(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "TRIAL_SECONDS", 3.0)
    await asyncio.to_thread(both.say, "orders", "DENY SEND ON SERVICE::[//broker/pair/*] TO [CN=billing]")

    assert [False, False] == await both.pair()

    bad = {(instance, check): told for instance, check, told in both.bad()}
    assert {("orders", "sealed round trip"), ("billing", "sealed round trip")} == set(bad)
    assert "no message came within 3 s" in bad["orders", "sealed round trip"]
    assert "no answer came within 3 s" in bad["billing", "sealed round trip"]
    assert "not permitted" in bad["billing", "sealed round trip"]
    for name in ("orders", "billing"):
        assert [["Inbox"]] == await asyncio.to_thread(both.ask, name, "SELECT name FROM sys.service_queues")
