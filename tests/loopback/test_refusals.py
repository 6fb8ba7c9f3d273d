"""
Each way in which TLS does not come about, over real sockets: what our log says, and what the peer is told.

With TLS 1.3 who dials believes in the connection before the other side has judged its certificate; so what is wrong
with it is in the log of who judged, and reaches the one who dialled as an alert, which it tells as a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.net.tls import ALPN, NO_SECURITY, Encryption, Security, load_security
from broker.protocol.frame import Fatal
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from tests.support.certificates import DAY, Pair, authority, make, security
from tests.support.loopback import SECONDS, instance, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOOPBACK = ("127.0.0.1", "localhost")


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def reasons(logs: list[Any]) -> str:
    return "\n".join(str(entry.get("reason", "")) for entry in logs)


@dataclass(frozen=True)
class Sides:
    """A CA, and two endpoints that it made certificates for. Shape: `bad` is put in the place of one of them."""

    directory: Path
    ca: Pair

    def good(self, name: str) -> Security:
        return security(self.directory, name, make(name, *LOOPBACK, by=self.ca), self.ca)

    def bad(self, pair: Pair) -> Security:
        """An endpoint that is good but for its certificate, which nobody could load today."""
        found = security(self.directory, "bad", make("bad", *LOOPBACK, by=self.ca), self.ca)
        certificate, key = pair.store(self.directory, "worse")
        for context in (found.server, found.client):
            assert context is not None
            context.load_cert_chain(certificate, key)
        return found


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(tmp_path, authority())


Make = Callable[[Sides], Pair]
WRONG: dict[str, tuple[Make, str, str]] = {
    "a CA that nobody trusts": (
        lambda _: make("bad", *LOOPBACK, by=authority("another CA")),
        "the peer's certificate is not trusted",
        "the peer does not trust this instance's certificate: add it to peers there, or its CA to trust",
    ),
    "expired": (
        lambda sides: make("bad", *LOOPBACK, by=sides.ca, ends=timedelta(seconds=-1)),
        "the peer's certificate has expired: it has to be renewed there",
        "this instance's certificate has expired: renew endpoint.certificate",
    ),
    "not valid yet": (
        lambda sides: make("bad", *LOOPBACK, by=sides.ca, begins=DAY / 2),
        "the peer's certificate is not valid yet: compare the clocks of both machines",
        "the peer refuses this instance's certificate: see its log",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_dialler_with_a_wrong_certificate_is_refused_and_told(wrong: str, sides: Sides, logs: list[Any]) -> None:
    pair, ours, theirs = WRONG[wrong]
    async with instance(security=sides.good("far")) as far, instance(security=sides.bad(pair(sides))) as near:
        near.peers.request_link(far.address)
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"] and near.peers.table.problem_of(far.address))

        assert theirs in near.peers.table.problem_of(far.address)
        assert [] == far.states()
    assert ours in reasons([entry for entry in logs if entry["event"] == "connection refused"])


@pytest.mark.parametrize("wrong", WRONG)
async def test_listener_with_a_wrong_certificate_is_refused_and_told(wrong: str, sides: Sides, logs: list[Any]) -> None:
    pair, ours, theirs = WRONG[wrong]
    async with instance(security=sides.bad(pair(sides))) as far, instance(security=sides.good("near")) as near:
        near.peers.request_link(far.address)
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"] and near.peers.table.problem_of(far.address))

        assert ours in near.peers.table.problem_of(far.address)
        assert AddressHealth.CONNECTED is not near.peers.table.health_of(far.address)
    assert theirs in reasons(logs)


async def test_listener_that_is_somebody_else_is_refused_by_who_dials(sides: Sides, logs: list[Any]) -> None:
    elsewhere = security(sides.directory, "elsewhere", make("elsewhere", "b.example", by=sides.ca), sides.ca)
    async with instance(security=elsewhere) as far, instance(security=sides.good("near")) as near:
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.problem_of(far.address))

        told = "the certificate of the peer (CN=elsewhere) is for b.example and not for 127.0.0.1"
        assert told in near.peers.table.problem_of(far.address)
    assert told in reasons(logs)


async def test_swapped_certificates_are_refused_as_each_is_for_the_other_host(sides: Sides) -> None:
    pairs = [make(name, name, by=sides.ca) for name in ("a.example", "b.example")]
    first, second = (security(sides.directory, str(n), pair, sides.ca) for n, pair in enumerate(reversed(pairs)))
    async with instance(security=first) as one, instance(security=second) as other:
        one.peers.request_link(other.address)
        other.peers.request_link(one.address)
        await until(lambda: one.peers.table.problem_of(other.address) and other.peers.table.problem_of(one.address))

        assert "(CN=a.example) is for a.example and not for 127.0.0.1" in one.peers.table.problem_of(other.address)
        assert "(CN=b.example) is for b.example and not for 127.0.0.1" in other.peers.table.problem_of(one.address)


async def test_key_that_is_not_the_certificates_cannot_be_shown(sides: Sides, tmp_path: Path) -> None:
    ours, theirs = make("ours", *LOOPBACK, by=sides.ca), make("theirs", *LOOPBACK, by=sides.ca)
    stolen = Pair(theirs.certificate, ours.key)

    with pytest.raises(Exception, match="is not the key of"):
        security(tmp_path, "stolen", stolen, sides.ca)


# --- downgrades ---


async def test_plain_client_at_a_port_that_takes_tls_only(sides: Sides, logs: list[Any]) -> None:
    async with instance(security=sides.good("far")) as far, raw(far.address, name="plain") as peer:
        fatal = await peer.hear(Fatal)
        await peer.end()

    assert (28035, "this endpoint takes TLS only: set encryption") == (fatal.code, fatal.text)
    assert "the peer speaks plain text, and this endpoint takes TLS only" in reasons(logs)


async def test_plain_listener_is_not_dialled_in_plain_text_where_tls_is_required(sides: Sides, logs: list[Any]) -> None:
    async with instance(security=NO_SECURITY) as far, instance(security=sides.good("near")) as near:
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.problem_of(far.address))

        assert "the peer speaks plain text" in near.peers.table.problem_of(far.address)
        assert [] == near.states()
    assert "the peer speaks plain text: set encryption there" in reasons(logs)


def stranger(*, alpn: str = ALPN, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = most
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


async def test_client_that_speaks_tls_1_2(sides: Sides, logs: list[Any]) -> None:
    async with instance(security=sides.good("far")) as far:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.open_connection(far.address.host, far.address.port, ssl=stranger(most=ssl.TLSVersion.TLSv1_2))
        await until(lambda: far.peers.protocol_errors)

    assert "the peer does not speak TLS 1.3" in reasons(logs)


async def test_client_that_names_no_protocol(sides: Sides, tmp_path: Path, logs: list[Any]) -> None:
    context = stranger(alpn="")
    context.load_cert_chain(*make("silent", *LOOPBACK, by=sides.ca).store(tmp_path, "silent"))
    async with instance(security=sides.good("far")) as far:
        _, writer = await asyncio.open_connection(far.address.host, far.address.port, ssl=context)
        await until(lambda: far.peers.protocol_errors)
        writer.transport.abort()
        await asyncio.sleep(0)

    assert f"the peer does not name {ALPN} as its protocol (ALPN)" in reasons(logs)


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[NetworkAddress]:
    """Somebody who listens with TLS of their own, for one connection; on OpenSSL's own sockets, which send alerts."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.settimeout(SECONDS)

        def serve() -> None:
            sock, _ = port.accept()
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
                tls.recv(1)

        serving = asyncio.create_task(asyncio.to_thread(serve))
        yield NetworkAddress("127.0.0.1", port.getsockname()[1])
        await serving


@pytest.mark.parametrize("kind", ["TLS 1.2", "no ALPN", "another protocol"])
async def test_listener_that_speaks_less(kind: str, sides: Sides, tmp_path: Path, logs: list[Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make("far", *LOOPBACK, by=sides.ca).store(tmp_path, "less"))
    if kind == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if kind != "no ALPN":
        context.set_alpn_protocols([ALPN if kind == "TLS 1.2" else "h2"])
    async with listening(context) as address, instance(security=sides.good("near")) as near:
        near.peers.request_link(address)
        await until(lambda: near.peers.table.problem_of(address))

        told = "TLS 1.3" if kind == "TLS 1.2" else "(ALPN)"
        assert told in near.peers.table.problem_of(address)
        assert [] == near.states()
    assert told in reasons(logs)


# --- trust that is taken away ---


def without(one: Security, directory: Path, pair: Pair, *trusted: Pair) -> Security:
    """What the endpoint brings once its trust files name others."""
    found = security(directory, "anew", pair, *trusted)
    assert found.pinned != one.pinned
    return found


async def test_removed_ca_ends_open_links_tells_them_and_lets_nobody_in_again(
    sides: Sides, tmp_path: Path, logs: list[Any]
) -> None:
    other, pair = authority("other CA"), make("far", *LOOPBACK, by=sides.ca)
    both = security(tmp_path, "far", pair, sides.ca, other)
    guest = security(tmp_path, "guest", make("guest", *LOOPBACK, by=other), sides.ca, other)
    async with (
        instance(security=both) as far,
        instance(security=sides.good("near")) as near,
        instance(security=guest) as left,
    ):
        for one in (near, left):
            one.peers.request_link(far.address)
            await until(lambda one=one: one.peers.table.health_of(far.address) is AddressHealth.CONNECTED)  # type: ignore[misc]
        await until(lambda: ["LOGGED_IN", "LOGGED_IN"] == far.states())

        far.peers.handshaker.secure(without(both, tmp_path, pair, sides.ca), far.peers.links.values())
        await until(lambda: left.peers.table.problem_of(far.address))

        assert "your certificate is not trusted any more" in left.peers.table.problem_of(far.address)
        assert AddressHealth.CONNECTED is near.peers.table.health_of(far.address)
        await until(lambda: ["LOGGED_IN"] == far.states())
        left.peers.request_link(far.address)
        await until(lambda: "does not trust this instance's" in left.peers.table.problem_of(far.address))
    assert "the peer's certificate is not trusted" in reasons(logs)


async def test_peer_whose_own_certificate_was_trusted_is_let_go_with_it(tmp_path: Path) -> None:
    ours, theirs, others = make("ours"), make("theirs"), make("others")
    before = security(tmp_path, "ours", ours, theirs)
    async with (
        instance(security=before) as far,
        instance(security=security(tmp_path, "theirs", theirs, ours)) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: ["LOGGED_IN"] == far.states())

        far.peers.handshaker.secure(without(before, tmp_path, ours, others), far.peers.links.values())
        await until(lambda: near.peers.table.problem_of(far.address))

        assert "not trusted any more" in near.peers.table.problem_of(far.address)


async def test_handshake_that_began_before_trust_was_taken_away_does_not_get_in(
    sides: Sides, tmp_path: Path, logs: list[Any]
) -> None:
    pair = make("far", *LOOPBACK, by=sides.ca)
    before = security(tmp_path, "far", pair, sides.ca)
    context = stranger()
    context.load_cert_chain(*make("slow", *LOOPBACK, by=sides.ca).store(tmp_path, "slow"))
    async with instance(security=before) as far, raw(far.address) as peer:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        await peer.say(outgoing.read())
        while outgoing.pending == 0:
            incoming.write(await asyncio.get_running_loop().sock_recv(peer._sock, 1 << 16))
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                continue

        far.peers.handshaker.secure(without(before, tmp_path, pair, authority("other CA")), [])
        await peer.say(outgoing.read())
        await until(lambda: far.peers.protocol_errors["TlsRefusedError"])

        assert [] == far.states()
    assert "the peer's certificate is not trusted any more" in reasons(logs)


async def test_new_certificate_is_shown_to_new_links_and_old_links_stay(sides: Sides, tmp_path: Path) -> None:
    async with (
        instance(security=sides.good("far")) as far,
        instance(security=sides.good("first")) as first,
        instance(security=sides.good("second")) as second,
    ):
        first.peers.request_link(far.address)
        await until(lambda: ["LOGGED_IN"] == far.states())
        renewed = make("renewed", *LOOPBACK, by=sides.ca)

        far.peers.handshaker.secure(security(tmp_path, "new", renewed, sides.ca), far.peers.links.values())
        second.peers.request_link(far.address)
        await until(lambda: ["LOGGED_IN", "LOGGED_IN"] == far.states())

        shown = [one.transport.identity for peer in (first, second) for one in peer.peers.links.values()]
        assert ["CN=far", "CN=renewed"] == [one.principal_name for one in shown if one is not None]


async def test_link_knows_by_which_chain_its_peer_was_verified(tmp_path: Path) -> None:
    root = authority("root")
    between = make("between", by=root, is_authority=True)
    leaf = make("leaf", *LOOPBACK, by=between)
    chained = Pair(leaf.certificate, leaf.key)
    near_side = security(tmp_path, "near", chained, root)
    (tmp_path / "near.pem").write_bytes(leaf.pem + between.pem)
    near_side = load_security(
        Encryption.REQUIRED,
        certificate=tmp_path / "near.pem",
        private_key=tmp_path / "near.key",
        trust=[str(tmp_path / "near.trust")],
        is_authenticating=True,
    )
    async with (
        instance(security=security(tmp_path, "far", make("far", *LOOPBACK, by=root), root)) as far,
        instance(security=near_side) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: ["LOGGED_IN"] == far.states())

        [link] = far.peers.links.values()
        assert ["CN=leaf", "CN=between", "CN=root"] == [one.principal_name for one in link.transport.chain]
        assert ["CN=between"] == [one.principal_name for one in near_side.own_chain]
