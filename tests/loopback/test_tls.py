"""Links over TLS on real sockets: who speaks it with whom, who is trusted, and what becomes of those who break it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from broker.net.quotas import PeerLimits
from broker.net.tls import ALPN, NO_SECURITY, Encryption, Security
from broker.net.transport import GATHER_BYTES
from broker.protocol.frame import Fatal, Hello, encode_link
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.certificates import DAY, SERVER_ONLY, Pair, authority, make, security
from tests.support.loopback import Instance, Raw, instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOOPBACK = ("127.0.0.1", "localhost")
DISABLED, SUPPORTED, REQUIRED = Encryption.DISABLED, Encryption.SUPPORTED, Encryption.REQUIRED


@pytest.fixture(scope="module")
def ca() -> Pair:
    return authority()


@pytest.fixture(scope="module")
def here(ca: Pair) -> Pair:
    """A certificate for this machine."""
    return make("here", *LOOPBACK, by=ca)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def endpoint(directory: Path, encryption: Encryption, pair: Pair, *trusted: Pair) -> Security:
    return (
        NO_SECURITY
        if encryption is DISABLED
        else security(directory, os.urandom(4).hex(), pair, *trusted, encryption=encryption)
    )


def ciphers(one: Instance) -> set[bool]:
    """Whether the links of an instance have TLS."""
    return {bool(link.transport.cipher) for link in one.peers.links.values()}


@asynccontextmanager
async def tls_raw(address: NetworkAddress, context: ssl.SSLContext) -> AsyncIterator[Any]:
    """A neighbour that speaks TLS by itself."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def stranger(*, alpn: str = ALPN) -> ssl.SSLContext:
    """A client that trusts everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


# --- who speaks TLS with whom ---


@pytest.mark.parametrize(
    ("dialling", "listening", "expected"),
    [
        (DISABLED, SUPPORTED, False),
        (DISABLED, REQUIRED, None),
        (SUPPORTED, DISABLED, False),
        (SUPPORTED, SUPPORTED, True),
        (SUPPORTED, REQUIRED, True),
        (REQUIRED, DISABLED, None),
        (REQUIRED, SUPPORTED, True),
        (REQUIRED, REQUIRED, True),
    ],
)
async def test_each_pair_of_settings_speaks_tls_plain_text_or_nothing(
    dialling: Encryption, listening: Encryption, *, expected: bool | None, tmp_path: Path, here: Pair
) -> None:
    async with (
        instance(security=endpoint(tmp_path, listening, here), service="//far") as far,
        instance(security=endpoint(tmp_path, dialling, here)) as near,
        instance() as feeder,
    ):
        near.route(far=far.address)
        near.peers.request_link(far.address)
        await until(
            lambda: (
                near.peers.table.health_of(far.address) is AddressHealth.CONNECTED
                or near.peers.table.problem_of(far.address)
            )
        )

        assert (expected is None) == bool(near.peers.table.problem_of(far.address))
        assert ({expected} if expected is not None else set()) == {
            bool(link.transport.cipher) for link in near.peers.links.values() if link.agreement
        }
        assert feeder.states() == []


async def test_three_instances_forward_over_tls_in_order(tmp_path: Path, ca: Pair, here: Pair) -> None:
    sides = [endpoint(tmp_path, SUPPORTED, here, ca) for _ in range(3)]
    async with (
        instance(security=sides[0], pool_bytes=1 << 24) as near,
        instance(security=sides[1], pool_bytes=1 << 24) as middle,
        instance(security=sides[2], service="//far") as far,
    ):
        middle.route(far=far.address)
        near.route(far=middle.address)
        async with raw(near.address, name="raw") as peer:
            await peer.say(*(message("//far", n, b"x" * (n * 397 % 40_000)) for n in range(300)))
            await until(lambda: len(far.delivered) == 300)

        assert list(range(300)) == numbers(far.delivered)
        assert {True} == ciphers(far)
        assert ["CN=here"] == [link.transport.identity.principal_name for link in far.peers.links.values()]  # type: ignore[union-attr]


async def test_plain_answer_is_remembered_for_a_while(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    async with instance() as far, instance(security=endpoint(tmp_path, SUPPORTED, here)) as near:
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED)
        for link in list(near.peers.links.values()):
            link.close("the test")
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED)

    assert 1 == [entry["event"] for entry in logs].count("peer has no TLS, dialling in plain text")


# --- who is trusted ---


@pytest.mark.parametrize(
    ("wrong", "is_near_wrong"),
    [(wrong, side) for wrong in ("other CA", "expired", "not yet") for side in (True, False)] + [("server only", True)],
)
async def test_certificate_that_is_not_trusted_ends_it_on_either_side(
    wrong: str, *, is_near_wrong: bool, tmp_path: Path, ca: Pair, here: Pair, logs: list[Any]
) -> None:
    bad = {
        "other CA": lambda: make("bad", *LOOPBACK, by=authority("another CA")),
        "expired": lambda: make("bad", *LOOPBACK, by=ca, ends=timedelta(seconds=-1)),
        "not yet": lambda: make("bad", *LOOPBACK, by=ca, begins=DAY / 2),
        "server only": lambda: make("bad", *LOOPBACK, by=ca, uses=SERVER_ONLY),  # which a server may well be
    }[wrong]()
    good = security(tmp_path, "good", here, ca)
    odd = security(tmp_path, "odd", here, ca)
    certificate, key = bad.store(tmp_path, "bad")
    for context in (odd.server, odd.client):
        assert context is not None
        context.load_cert_chain(certificate, key)
    async with (
        instance(security=good if is_near_wrong else odd, service="//far") as far,
        instance(security=odd if is_near_wrong else good) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.problem_of(far.address))
        judge = far if is_near_wrong else near
        await until(lambda: judge.peers.protocol_errors["TlsRefusedError"])

        assert near.peers.table.health_of(far.address) is not AddressHealth.CONNECTED
        assert not any(link.agreement for link in far.peers.links.values())
    said = " ".join(str(entry.get("reason")) for entry in logs)
    told = {"other CA": "not trusted", "expired": "expired", "not yet": "not valid yet", "server only": "clientAuth"}
    assert told[wrong] in said


async def test_peer_without_a_certificate_is_refused(tmp_path: Path, ca: Pair, here: Pair, logs: list[Any]) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as one:
        async with tls_raw(one.address, stranger()) as (reader, _):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        await until(lambda: one.peers.protocol_errors)

    assert "shows no certificate" in "".join(entry.get("reason", "") for entry in logs)


async def test_instance_that_asks_for_no_certificate_shows_its_own(tmp_path: Path, ca: Pair, here: Pair) -> None:
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as far,
        instance(security=endpoint(tmp_path, REQUIRED, here)) as near,
    ):
        near.peers.request_link(far.address)
        await until(
            lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED and far.states() == ["LOGGED_IN"]
        )

        assert [here.fingerprint] == [link.transport.identity.fingerprint for link in far.peers.links.values()]  # type: ignore[union-attr]
        assert [None] == [link.transport.identity for link in near.peers.links.values()]


async def test_certificate_for_another_host_is_refused_by_who_dials(tmp_path: Path, ca: Pair, here: Pair) -> None:
    elsewhere = make("elsewhere", "gateway.example", by=ca)
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, elsewhere, ca)) as far,
        instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.problem_of(far.address))

        assert "is for gateway.example and not for 127.0.0.1" in near.peers.table.problem_of(far.address)


async def test_exact_certificate_is_trusted_whatever_it_is_called(tmp_path: Path) -> None:
    one, other = make("one"), make("other")
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, one, other), service="//far") as far,
        instance(security=endpoint(tmp_path, REQUIRED, other, one)) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED)

        assert [other.fingerprint] == [link.transport.identity.fingerprint for link in far.peers.links.values()]  # type: ignore[union-attr]


@pytest.mark.parametrize("dials", ["forger", "victim"])
async def test_certificate_that_a_peer_has_issued_is_refused_whoever_dials(
    dials: str, tmp_path: Path, logs: list[Any]
) -> None:
    """The peer's own certificate says CA:TRUE, so OpenSSL takes it for an authority."""
    peer, victim = make("peer", *LOOPBACK, is_authority=True), make("victim", *LOOPBACK)
    forged = make("billing", *LOOPBACK, by=peer)
    sides = {
        "victim": security(tmp_path, "victim", victim, peers=[peer]),
        "forger": security(tmp_path, "forger", forged, peers=[victim]),
        "peer": security(tmp_path, "peer", peer, peers=[victim]),
    }
    async with (
        instance(security=sides["victim"]) as one,
        instance(security=sides["forger"]) as forger,
        instance(security=sides["peer"]) as honest,
    ):
        near, far = (forger, one) if dials == "forger" else (one, forger)
        near.peers.request_link(far.address)
        honest.peers.request_link(one.address)
        await until(lambda: one.peers.protocol_errors and one.states() == ["LOGGED_IN"])

        assert [peer.fingerprint] == [link.transport.identity.fingerprint for link in one.peers.links.values()]  # type: ignore[union-attr]
    refused = [entry["reason"] for entry in logs if entry["event"] == "connection refused"]
    assert "(CN=billing) was issued by CN=peer, which is trusted as a peer's own certificate" in refused[0]


@pytest.mark.parametrize("is_own", [True, False], ids=["our certificate", "another one"])
async def test_peer_with_our_ids_is_this_instance_only_with_our_certificate(
    *, is_own: bool, tmp_path: Path, ca: Pair, here: Pair
) -> None:
    pair = here if is_own else make("other", *LOOPBACK, by=ca)
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, pair, ca), arbitration=b"a" * 16) as far,
        instance(security=endpoint(tmp_path, REQUIRED, here, ca), arbitration=b"a" * 16) as near,
    ):
        near.peers.request_link(far.address)
        await until(lambda: near.peers.table.problem_of(far.address))

        assert ({far.address} if is_own else set()) == near.forwarder.routing_context.own


@pytest.mark.parametrize("is_covered", [True, False])
async def test_inbound_link_stands_in_for_an_address_only_if_its_certificate_covers_it(
    *, is_covered: bool, tmp_path: Path, ca: Pair, here: Pair
) -> None:
    guest = make("guest", *(LOOPBACK if is_covered else ("other.example",)), by=ca)
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as host,
        instance(security=endpoint(tmp_path, REQUIRED, guest, ca)) as near,
    ):
        near.peers.request_link(host.address)
        await until(lambda: host.states() == ["LOGGED_IN"])

        assert (AddressHealth.CONNECTED if is_covered else AddressHealth.UNTRIED) is host.peers.table.health_of(
            near.address
        )


@asynccontextmanager
async def neighbour(tmp_path: Path, ca: Pair, address: NetworkAddress, at: NetworkAddress) -> AsyncIterator[Instance]:
    """A peer with its own certificate for this machine, connected to `at`, that announces somebody else's address."""
    pair = make("neighbour", *LOOPBACK, by=ca)
    async with instance(security=endpoint(tmp_path, REQUIRED, pair, ca), service="//far") as one:
        one.peers.hello = msgspec.structs.replace(one.peers.hello, addresses=(str(address),))
        one.peers.request_link(at)
        await until(lambda: one.peers.table.health_of(at) is AddressHealth.CONNECTED)
        yield one


async def test_neighbour_does_not_get_what_is_for_a_peer_of_the_same_host_that_is_down(
    tmp_path: Path, ca: Pair, here: Pair
) -> None:
    peer = endpoint(tmp_path, REQUIRED, make("peer", *LOOPBACK, by=ca), ca)
    async with (
        instance(security=endpoint(tmp_path, SUPPORTED, here, ca)) as near,
        raw(near.address, name="source") as source,
    ):
        async with instance(security=peer, service="//far") as far:
            near.route(far=far.address)
            near.peers.request_link(far.address)
            await until(lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED)
        async with neighbour(tmp_path, ca, far.address, near.address) as other:
            assert near.peers.table.health_of(far.address) is not AddressHealth.CONNECTED
            await source.say(message("//far"))
            await until(lambda: near.forwarder.pool.frames)
            async with instance(security=peer, service="//far", port=far.address.port) as successor:
                await until(lambda: successor.delivered)

            assert [] == other.delivered


async def test_neighbour_that_came_first_loses_the_address_to_the_peer_that_answers_there_for_good(
    tmp_path: Path, ca: Pair, here: Pair
) -> None:
    peer = endpoint(tmp_path, REQUIRED, make("peer", *LOOPBACK, by=ca), ca)
    async with instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as near, AsyncExitStack() as stack:

        def serving() -> list[str]:
            return [link.peer_id for link in near.peers.links.values() if near.peers.table.addresses_served_by(link)]

        async with instance(security=peer) as far:
            near.peers.dialer.on_routes([build_table([Route("far", far.address)], now=datetime.now(UTC))])
            await stack.enter_async_context(neighbour(tmp_path, ca, far.address, near.address))
            await until(lambda: serving() == ["CN=peer"])
        await until(lambda: len(near.peers.links) == 1)

        assert [] == serving()


async def test_frames_of_a_peer_do_not_count_under_the_name_of_another_principal(
    tmp_path: Path, ca: Pair, here: Pair
) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here, ca)) as near, AsyncExitStack() as stack:
        for number, principal in enumerate(("peer", "neighbour")):
            pair = make(principal, *LOOPBACK, by=ca)
            one = await stack.enter_async_context(instance(security=endpoint(tmp_path, SUPPORTED, pair, ca)))
            one.peers.hello = msgspec.structs.replace(one.peers.hello, name="billing", addresses=())
            one.route(far=near.address)
            source = await stack.enter_async_context(raw(one.address, name="source"))
            await source.say(message("//far", number))
            await until(partial(lambda wanted: near.forwarder.received.total() == wanted, number + 1))

        assert {"billing": {0x10: 1}, "other": {0x10: 1}} == near.peers.received()
        assert {"billing", "other"} == {link.label for link in near.peers.links.values()}


# --- those who break it ---


async def test_plain_text_to_a_port_that_takes_tls_only_is_told_and_closed(
    tmp_path: Path, here: Pair, logs: list[Any]
) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here)) as one, raw(one.address, name="raw") as peer:
        fatal = await peer.hear(Fatal)
        await peer.end()

        assert (28035, True) == (fatal.code, "TLS only" in fatal.text)
        assert {"TlsRefusedError": 1} == one.peers.protocol_errors
    assert any("speaks plain text" in entry.get("reason", "") for entry in logs)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x00\x05hello", "TLS failed"),
        (b"SSH-2.0-x\r\n", "does not speak TLS"),
        (b"", "before it said anything"),
    ],
)
async def test_stranger_at_a_port_with_tls_is_named_in_the_log(
    words: bytes, told: str, tmp_path: Path, here: Pair, logs: list[Any]
) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here)) as one:
        async with raw(one.address) as peer:
            await peer.say(words)
            peer._sock.shutdown(socket.SHUT_WR)
            await peer.end_of_bytes()
        await until(lambda: one.peers.protocol_errors)
    assert told in "".join(entry.get("reason", "") for entry in logs)


@pytest.mark.parametrize("alpn", ["h2", ""])
async def test_peer_that_names_no_or_another_protocol_is_refused(
    alpn: str, tmp_path: Path, here: Pair, logs: list[Any]
) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here)) as one:
        async with tls_raw(one.address, stranger(alpn=alpn)) as (reader, _):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        await until(lambda: one.peers.protocol_errors)
    assert "ALPN" in "".join(entry.get("reason", "") for entry in logs)


async def test_tls_1_2_is_refused(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    context = stranger()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with instance(security=endpoint(tmp_path, REQUIRED, here)) as one:
        with pytest.raises(OSError, match=r"(?i)protocol"):
            async with tls_raw(one.address, context):
                pass
        await until(lambda: one.peers.protocol_errors)
    assert "TLS 1.3" in "".join(entry.get("reason", "") for entry in logs)


async def test_handshake_that_takes_too_long_is_closed(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, here), handshake=0.2) as one,
        raw(one.address) as silent,
        raw(one.address) as slow,
    ):
        await slow.say(b"\x16\x03")
        await silent.end()
        await slow.end()

    assert 2 == sum("not complete within 0.2 s" in entry.get("reason", "") for entry in logs)


async def test_oldest_handshake_makes_room(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, here), limits=PeerLimits(handshakes=8)) as one,
        raw(one.address) as first,
        raw(one.address) as second,
    ):
        await second.say(b"\x16")
        near = endpoint(tmp_path, REQUIRED, here)
        async with instance(security=near) as good:
            good.peers.request_link(one.address)
            await until(lambda: good.peers.table.health_of(one.address) is AddressHealth.CONNECTED)
            await first.end()

    assert any("too many TLS handshakes" in entry.get("reason", "") for entry in logs)


async def test_hundreds_of_aborted_handshakes_leave_nothing(tmp_path: Path, here: Pair) -> None:
    async with instance(security=endpoint(tmp_path, SUPPORTED, here)) as one:

        async def abort(count: int) -> None:
            for number in range(count):
                async with raw(one.address) as peer:
                    await peer.say((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x16", b"\x00", b"")[number % 4])
                    peer.reset()
            await until(lambda: not len(one.peers.handshaker.handshakes) and not one.peers.links)

        await abort(100)
        before = psutil.Process().memory_info().rss
        await abort(400)

        assert psutil.Process().memory_info().rss - before < 16 * 1024 * 1024
        assert one.peers.protocol_errors["TlsRefusedError"] >= 250


async def test_reset_in_the_middle_of_a_record_ends_the_link(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    async with instance(security=endpoint(tmp_path, REQUIRED, here)) as one:
        async with tls_raw(one.address, stranger()) as (_, writer):
            writer.write(encode_link(Hello(arbitration=os.urandom(16), name="raw")))
            await until(lambda: one.states() == ["LOGGED_IN"])
            bare = writer.transport.get_extra_info("socket")
            copy = socket.socket(fileno=os.dup(bare.fileno()))
            copy.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(copy, b"\x17\x03\x03\x40\x00half of a record")
            copy.close()
        await until(lambda: not one.peers.links)

    assert any(entry["event"] == "link closed" for entry in logs)


async def test_changed_record_ends_the_link(tmp_path: Path, here: Pair, logs: list[Any]) -> None:
    async with (
        instance(security=endpoint(tmp_path, REQUIRED, here)) as one,
        tls_raw(one.address, stranger()) as (_, writer),
    ):
        writer.write(encode_link(Hello(arbitration=os.urandom(16), name="raw")))
        await until(lambda: one.states() == ["LOGGED_IN"])
        copy = socket.socket(fileno=os.dup(writer.transport.get_extra_info("socket").fileno()))
        copy.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(copy, b"\x17\x03\x03\x00\x20" + bytes(32))
        copy.close()
        await until(lambda: not one.peers.links)

    assert any("was changed on its way" in entry.get("reason", "") for entry in logs)


# --- back-pressure and the end ---


async def test_reader_that_stalls_is_waited_for_and_gets_everything(tmp_path: Path, here: Pair) -> None:
    frames = [message("//far", n, os.urandom(30_000)) for n in range(200)]
    async with (
        instance(security=endpoint(tmp_path, SUPPORTED, here), pool_bytes=1 << 24) as one,
        raw(one.address, name="feeder") as feeder,
    ):
        context = stranger()
        address = NetworkAddress("9.9.9.9")
        one.route(far=address)
        async with tls_raw(one.address, context) as (reader, writer):
            writer.transport.pause_reading()
            hello = Hello(arbitration=os.urandom(16), name="slow", addresses=(str(address),), max_frame=1 << 20)
            writer.write(encode_link(hello))
            await until(lambda: one.states() == ["CONNECTED", "LOGGED_IN"] or one.states() == ["LOGGED_IN"] * 2)
            await feeder.say(*frames)
            link = next(link for link in one.peers.links.values() if link.peer_name == "slow")
            await until(lambda: link.is_blocked)
            assert len(link.transport._rest) <= GATHER_BYTES + 4096  # type: ignore[attr-defined]
            writer.transport.resume_reading()

            peer = Raw(socket.socket())
            while sum(frame[4] >= 0x10 for frame in peer.frames) < len(frames):
                peer.frames += peer._decoder.feed(await reader.read(1 << 16))
            peer.close()

    assert list(range(200)) == numbers([frame for frame in peer.frames if frame[4] >= 0x10])


async def test_drained_link_hears_the_peer_out_behind_its_own_end(tmp_path: Path, here: Pair) -> None:
    far_side, near_side = endpoint(tmp_path, REQUIRED, here), endpoint(tmp_path, REQUIRED, here)
    async with instance(security=far_side, service="//far") as far, instance(security=near_side) as near:
        near.route(far=far.address)
        near.peers.request_link(far.address)
        await until(
            lambda: near.peers.table.health_of(far.address) is AddressHealth.CONNECTED and far.states() == ["LOGGED_IN"]
        )
        [link], [back] = near.peers.links.values(), far.peers.links.values()
        frames = [message("//far", n, os.urandom(20_000)) for n in range(20)]

        back.drain()
        assert sum(link.send(frame) for frame in frames) == sum(map(len, frames))
        link.drain()
        await until(lambda: not near.peers.links and not far.peers.links)

        assert list(range(20)) == numbers(far.delivered)
        assert {"closed by the peer", "drained"} >= {link.reason, back.reason}
