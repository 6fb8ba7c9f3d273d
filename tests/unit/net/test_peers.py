"""The links of an instance: dialled, announced, duplicate, lost, drained, and closed when it stops."""

import asyncio
import errno
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from broker.config.settings import EndpointSettings, LimitSettings, Settings
from broker.flow import Disposition
from broker.net import peers as module
from broker.net.link import LINGER_SECONDS, Link, LinkState
from broker.net.peer_table import BACKOFF_FIRST
from broker.net.peers import ASKED_MAX, ENDS, REARM_SECONDS, TICK_SECONDS, largest_frame, refresh_narrow
from broker.net.tls import NO_SECURITY
from broker.protocol.frame import Fatal, GoAway, Ping, Probe, ProbeReply, Rejected, encode_link
from broker.protocol.layout import NO_GUID
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.peers import HIGHER, LOWER, NORTH, OWN, SOUTH, Neighbourhood, said, sent
from tests.support.played import PlayedLoop, PlayedSocket

# --- who asked for a role ---


BILLING, ORDERS = b"b" * 16, b"o" * 16


def fail(*_: object) -> None:
    raise AssertionError("a bug")


def answers(sock: PlayedSocket) -> list[ProbeReply]:
    return [one for one in said(sock) if isinstance(one, ProbeReply)]


async def test_change_of_role_reaches_all_that_asked_with_the_id_of_their_last_probe(near: Neighbourhood) -> None:
    """Every PROBE is answered at once; a peer that asked for something else, or is gone, hears nothing more."""
    near.role = "mirror"
    first, other, gone = (near.accept(arbitration=bytes([number]) * 16) for number in range(3))
    for sock, number, instance in ((first, 1, BILLING), (first, 2, BILLING), (other, 5, ORDERS), (gone, 9, BILLING)):
        sock.feed(encode_link(Probe(number, "//s", instance)))
    gone.end()
    near.role = "principal"

    near.peers.announce_role(BILLING)

    assert [(1, "mirror"), (2, "mirror"), (2, "principal")] == [(reply.id, reply.role) for reply in answers(first)]
    assert ([5], 1, 4) == (
        [one.id for one in answers(other)],
        len(answers(gone)),
        near.peers.probe_subscribers.answered,
    )
    assert set(near.links) == near.peers.probe_subscribers._probes.keys()


async def test_peer_that_asks_for_ever_more_is_remembered_for_the_latest_only(near: Neighbourhood) -> None:
    sock = near.accept()
    instances = [number.to_bytes(16, "big") for number in range(ASKED_MAX + 1)]
    for instance in (instances[0], *instances):
        sock.feed(encode_link(Probe(1, "//x", instance)))
    sock.written = b""

    for instance in instances:
        near.peers.announce_role(instance)

    assert [reply.broker_instance for reply in answers(sock)] == instances[1:]


# --- deferred work ---


async def test_many_wishes_are_one_turn_in_a_later_turn_of_the_loop(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    monkeypatch.setattr(near.forwarder, "work", turns.append)

    for _ in range(3):
        near.peers._schedule_work()
    assert [] == turns
    await asyncio.sleep(0.1)

    assert 1 == len(turns)


async def test_failures_of_one_kind_are_told_once_a_second(
    near: Neighbourhood, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        near.peers._report(None, ValueError("same again"))

    assert 1 == capsys.readouterr().out.count("pass went on without")


async def test_link_that_fails_in_a_pass_is_closed_behind_it_and_its_address_served_by_the_next(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    (link,) = near.links

    monkeypatch.setattr(link, "send", fail)
    frames = [near.send(NORTH, number) for number in range(3)]
    assert ([link], 3) == (near.links, near.forwarder.pool.frames)
    await asyncio.sleep(0.01)
    assert ([], True) == (near.links, broken.is_closed)
    wire = near.accept(addresses=[str(NORTH)], arbitration=b"2" * 16)

    assert b"".join(frames) == sent(wire)
    assert (3, 0) == (near.forwarder.forwarded, near.forwarder.unaccounted)


# --- fairness ---


async def test_crowd_ends_over_many_turns_and_in_order(near: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what is done for one of them fails."""
    socks = [near.accept(is_greeting=False) for _ in range(3 * ENDS)]
    monkeypatch.setattr(near.links[0], "close_after_eof", fail)

    def closed() -> list[bool]:
        return [sock.is_closed for sock in socks]

    for sock in socks:
        sock.end()
    assert ENDS - 1 == sum(closed())
    await asyncio.sleep(0)
    assert [True] * 2 * ENDS + [False] * ENDS == closed()
    socks.append(near.accept(is_greeting=False))
    socks[-1].end()
    assert 2 * ENDS == sum(closed())
    for _ in range(4):
        await asyncio.sleep(0)

    assert all(closed())


async def test_ticks_of_many_links_are_spread_over_turns(near: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VISIT_SECONDS", 0.0)
    ticked: list[Link] = []
    monkeypatch.setattr(Link, "tick", lambda link, _: ticked.append(link))
    socks = [near.accept(arbitration=bytes([number]) * 16) for number in range(10)]
    monkeypatch.setattr(near.links[0], "tick", fail)

    await asyncio.sleep(TICK_SECONDS)
    counts = [len(ticked)]
    while counts[-1] < 9:
        await asyncio.sleep(0)
        counts.append(len(ticked))

    assert (list(range(counts[0], 10)), True) == (sorted(set(counts)), counts[0] <= 1)
    assert [True] + [False] * 9 == [sock.is_closed for sock in socks]


async def test_readers_are_renewed_a_moment_later_some_in_a_turn(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REARMS", 2)
    renewed: list[Link] = []
    counts: list[int] = []

    def rearm(link: Link) -> None:
        renewed.append(link)
        near.loop.call_soon(lambda: counts.append(len(renewed)))

    monkeypatch.setattr(Link, "rearm_reader", rearm)
    for number in range(3):
        near.accept(arbitration=bytes([number]) * 16)
    assert [] == renewed
    await asyncio.sleep(2 * REARM_SECONDS)

    assert (near.links, [2, 2, 3]) == (renewed, counts)


async def dialled(near: Neighbourhood, address: NetworkAddress = NORTH, **hello: object) -> PlayedSocket:
    """A link that was dialled because a frame was held for the address."""
    near.reachable.add(address)
    near.send(address, 99)
    await asyncio.sleep(0)
    near.greet(near.socks[-1], **hello)
    return near.socks[-1]


# --- dialling ---


def told(near: Neighbourhood) -> tuple[AddressHealth, str]:
    """What is known of NORTH."""
    return near.peers.table.health_of(NORTH), near.peers.table.problem_of(NORTH)


async def test_held_frame_makes_its_address_be_dialled_and_leaves_when_hello_came(near: Neighbourhood) -> None:
    near.reachable.add(NORTH)
    frame = near.send(NORTH)
    assert (AddressHealth.UNTRIED, "") == told(near)
    await asyncio.sleep(0)
    (sock,) = near.socks
    assert ([OWN], b"", [(NORTH, 0.0)]) == (said(sock), sent(sock), near.dialled)

    near.greet(sock)

    assert (frame, (AddressHealth.CONNECTED, "")) == (sent(sock), told(near))
    assert [("tcp://10.0.0.1:4022", False)] == [(link.address, link.is_accept) for link in near.links]
    assert near.forwarder.unaccounted == 0


async def test_refused_address_is_tried_again_ever_less_often_while_frames_are_held(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.net.peer_table.SPREAD", 0.0)
    frame = near.send(NORTH)
    await asyncio.sleep(0)
    assert (AddressHealth.SUPPRESSED, "Connection refused") == told(near)

    await asyncio.sleep(2)
    times = [when for _, when in near.dialled]
    assert times == pytest.approx([0, BACKOFF_FIRST, 3 * BACKOFF_FIRST, 7 * BACKOFF_FIRST], abs=0.01)
    near.reachable.add(NORTH)
    await asyncio.sleep(5)
    near.greet(near.socks[0])

    assert (frame, (AddressHealth.CONNECTED, "")) == (sent(near.socks[0]), told(near))


async def test_nobody_is_dialled_when_nothing_waits_any_more(near: Neighbourhood) -> None:
    near.send(NORTH, time_to_live=1000)

    await asyncio.sleep(100)

    assert (True, (AddressHealth.UNTRIED, "")) == (near.dialled[-1][1] < 5, told(near))


@pytest.mark.parametrize(("reason", "seconds"), [("garbage", 1), ("end", 1), ("silence", 12)])
async def test_address_whose_handshake_fails_is_dialled_again_while_frames_are_held(
    reason: str, seconds: float, near: Neighbourhood
) -> None:
    near.reachable.add(NORTH)
    frame = near.send(NORTH)
    await asyncio.sleep(0)

    if reason == "garbage":
        near.socks[0].feed(b"SSH-2.0-OpenSSH\r\n")
    elif reason == "end":
        near.socks[0].end()
    await asyncio.sleep(seconds)
    near.greet(near.socks[1])

    assert 2 == len(near.dialled)
    assert frame == sent(near.socks[1])


async def test_who_speaks_something_else_is_remembered_as_refused_and_who_is_silent_is_not(near: Neighbourhood) -> None:
    for words in (b"\x16\x03\x01\x02\x00", b""):
        near.accept(is_greeting=False).feed(words)
    await asyncio.sleep(60)

    [(_, reason)] = near.peers.handshaker.refused
    assert "looks like TLS, and encryption is disabled here" in reason


def name_north(near: Neighbourhood) -> None:
    near.peers.dialer.on_routes([build_table([Route("north", NORTH)], now=datetime.now(UTC))])


@pytest.mark.parametrize("is_arbitrated", [True, False], ids=["survivor", "announcing"])
async def test_address_of_a_route_is_dialled_again_whoever_had_opened_the_lost_link(
    near: Neighbourhood, *, is_arbitrated: bool
) -> None:
    name_north(near)
    if is_arbitrated:
        ours = await dialled(near, arbitration=LOWER)
    theirs = near.accept(arbitration=LOWER, addresses=[] if is_arbitrated else [str(NORTH)])
    if is_arbitrated:
        ours.end()
    near.reachable.add(NORTH)
    before = len(near.dialled)

    theirs.end()
    assert (AddressHealth.SUPPRESSED, "closed by the peer") == told(near)
    await asyncio.sleep(2)

    assert before + 1 == len(near.dialled)


async def test_attempt_that_another_link_overtakes_is_not_made(near: Neighbourhood) -> None:
    near.send(NORTH)
    await asyncio.sleep(0)
    assert 1 == len(near.dialled)

    sock = near.accept(addresses=[str(NORTH)])
    await asyncio.sleep(5)

    assert (1, [sock]) == (len(near.dialled), near.socks)
    near.send(NORTH, 2)
    assert not near.peers.table.histories[NORTH].is_dialling


async def test_socket_that_fails_at_once_counts_as_a_failed_attempt(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.reachable.add(NORTH)
    make = near._socket

    def broken() -> PlayedSocket:
        sock = make()
        sock.problem = errno.EINVAL
        return sock

    monkeypatch.setattr(near, "_socket", broken)

    near.send(NORTH)
    await asyncio.sleep(0)

    assert ([], True, "Invalid argument") == (near.links, near.socks[0].is_closed, near.peers.table.problem_of(NORTH))


async def test_peer_that_has_our_instance_id_only_is_not_us_and_frames_wait_for_the_real_one(
    loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = Neighbourhood(loop, monkeypatch, instance=b"i" * 16)
    near.reachable.add(NORTH)
    frame = near.send(NORTH)
    await asyncio.sleep(0)

    near.greet(near.socks[0], instance=b"i" * 16)
    assert (set(), True) == (near.forwarder.routing_context.own, near.socks[0].is_closed)
    assert "another instance has our identity" == near.peers.table.problem_of(NORTH)
    await asyncio.sleep(1)
    near.greet(near.socks[1])

    assert (frame, {}) == (sent(near.socks[1]), near.forwarder.dropped)


async def test_address_that_leads_here_is_dialled_each_minute_and_is_the_peers_that_answers_then(
    near: Neighbourhood,
) -> None:
    """While it leads here nothing follows from it."""
    name_north(near)
    await dialled(near, arbitration=OWN.arbitration)
    before = near.forwarder.generation, near.rooms
    await asyncio.sleep(58)
    assert (1, {NORTH}) == (len(near.dialled), near.forwarder.routing_context.own)

    for seconds in (4, 62):
        await asyncio.sleep(seconds)
        near.greet(near.socks[-1], arbitration=OWN.arbitration)
    assert (3, {NORTH}) == (len(near.dialled), near.forwarder.routing_context.own)
    assert before == (near.forwarder.generation, near.rooms)
    await asyncio.sleep(62)
    near.greet(near.socks[-1])
    frame = near.send(NORTH)

    assert (4, set(), frame) == (len(near.dialled), near.forwarder.routing_context.own, sent(near.socks[-1]))


@pytest.mark.parametrize("by", ["a route", "a frame", "configuration"])
async def test_address_that_leads_here_is_forgotten_when_nobody_answers_there_unless_it_is_configured(
    by: str, loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = Neighbourhood(loop, monkeypatch, addresses=(str(NORTH),) if by == "configuration" else ())
    if by == "a route":
        name_north(near)
    await dialled(near, arbitration=OWN.arbitration)
    near.reachable.clear()

    await asyncio.sleep(77)

    assert ({NORTH} if by == "configuration" else set()) == near.forwarder.routing_context.own
    assert (by == "a route") == (len(near.dialled) > 1)


# --- links that others opened ---


async def test_dialogs_are_told_when_the_wanted_address_is_served_already(near: Neighbourhood) -> None:
    near.accept(addresses=[str(NORTH)])
    near.forwarder.table.outbox(NORTH)
    near.peers.request_link(NORTH)
    await asyncio.sleep(0)
    rooms = near.rooms

    near.peers.request_link(NORTH)
    assert near.forwarder.table.outboxes[NORTH].is_ready
    assert rooms == near.rooms
    await asyncio.sleep(0)

    assert rooms + 1 == near.rooms


async def test_stranger_that_comes_and_goes_makes_nobody_look_for_another_way(near: Neighbourhood) -> None:
    before = near.forwarder.generation, near.rooms

    near.accept(is_greeting=False).end()
    near.accept(is_greeting=False).feed(b"GET / HTTP/1.1\r\n\r\n")
    near.accept().end()

    assert before == (near.forwarder.generation, near.rooms)
    assert near.peers.protocol_errors == {"FrameTooLargeError": 1}


async def test_link_that_goes_leaves_nothing_behind(near: Neighbourhood) -> None:
    """Of what it announces only so much is believed."""
    table, asked = near.peers.table, NetworkAddress("10.2.0.1", 7)
    assert AddressHealth.UNTRIED is table.health_for_routing(asked)
    before = near.forwarder.generation
    sock = near.accept(addresses=[f"tcp://10.2.0.1:{port}" for port in range(1, 200)])
    assert before < near.forwarder.generation
    assert (AddressHealth.CONNECTED, 64) == (table.health_of(asked), len(table.known_addresses))
    before = near.forwarder.generation
    table.health_for_routing(asked)

    sock.end()

    assert ([], set(), AddressHealth.UNTRIED) == (near.links, table.known_addresses, table.health_of(asked))
    assert before < near.forwarder.generation


async def test_goaway_said_again_moves_the_deadline_and_is_logged_once(near: Neighbourhood) -> None:
    sock = near.accept()

    near.peers.request_link(SOUTH)  # is dialled, and says no HELLO
    with capture_logs() as logs:
        for _ in range(100):
            sock.feed(encode_link(GoAway(deadline_ms=1000)))
        await asyncio.sleep(0.5)
        near.peers.request_link(SOUTH)
        sock.feed(encode_link(GoAway(deadline_ms=2000)))
        await asyncio.sleep(1)

    assert (1, True) == (sum(entry["event"] == "peer is draining" for entry in logs), sock.shut)


# --- two links between the same pair ---


@pytest.mark.parametrize("arbitration", [LOWER, HIGHER])
@pytest.mark.parametrize("is_dialled_first", [True, False])
@pytest.mark.parametrize("addresses", [[], [str(NORTH)]], ids=["silent", "announcing"])
async def test_link_opened_by_the_lower_side_stays(
    arbitration: bytes, addresses: list[str], *, is_dialled_first: bool, near: Neighbourhood
) -> None:
    near.reachable.add(NORTH)
    first = near.send(NORTH, 1)
    await asyncio.sleep(0)
    ours = near.socks[0]
    theirs = near.accept(is_greeting=False)
    for sock in (ours, theirs) if is_dialled_first else (theirs, ours):
        near.greet(sock, arbitration=arbitration, addresses=addresses)
    stays, goes = (ours, theirs) if OWN.arbitration < arbitration else (theirs, ours)

    second = near.send(NORTH, 2)

    assert (True, False) == (goes.shut, stays.shut)
    assert first + second == sent(goes) + sent(stays)
    assert sent(stays).endswith(second)
    goes.end()
    assert [LinkState.LOGGED_IN] == [link.state for link in near.links]
    assert AddressHealth.CONNECTED is near.peers.table.health_of(NORTH)


# --- what peers say ---


async def test_fatal_closes_the_link_and_tells_why(near: Neighbourhood) -> None:
    sock = await dialled(near)

    sock.feed(encode_link(Fatal(code=1, text="go away")))

    assert ([], "FATAL from peer: go away") == (near.links, told(near)[1])


async def test_advice_is_handed_on(near: Neighbourhood) -> None:
    advice = Rejected(code=11289, reason="pool limit exceeded")

    near.accept().feed(encode_link(advice))

    assert [advice] == near.rejected


async def test_leaving_peer_is_sent_frames_until_its_address_is_served_again(near: Neighbourhood) -> None:
    leaving = await dialled(near)
    before = sent(leaving)

    leaving.feed(encode_link(GoAway(reason="upgrade", deadline_ms=500)))
    first = near.send(NORTH, 2)
    assert (before + first, (AddressHealth.LEAVING, "")) == (sent(leaving), told(near))
    await asyncio.sleep(0.05)
    near.greet(near.socks[-1], arbitration=HIGHER)
    second = near.send(NORTH, 3)
    await asyncio.sleep(0.2)

    assert (second, before + first) == (sent(near.socks[-1]), sent(leaving))
    assert (True, False, (AddressHealth.CONNECTED, "")) == (leaving.shut, leaving.is_closed, told(near))
    await asyncio.sleep(10.5)
    assert leaving.is_closed


# --- what is counted ---


async def test_frames_are_counted_by_the_name_of_the_peer_while_it_is_here_and_after(near: Neighbourhood) -> None:
    frame = near.send(SOUTH)
    for name in ("a", "a", "b"):
        near.accept(name=name, arbitration=NO_GUID).feed(frame)
    near.socks[0].end()
    near.accept(is_greeting=False)

    assert {"a": {0x10: 2}, "b": {0x10: 1}} == near.peers.frame_counts.totals(near.links)


# --- another way ---


def two_ways(near: Neighbourhood) -> Callable[[int], bytes]:
    """//far leads to NORTH and to SOUTH; what it returns sends a numbered frame there, and tells how it will leave."""
    routes = [Route("North", NORTH, remote_service_name="//far"), Route("South", SOUTH, remote_service_name="//far")]
    near.forwarder.set_routing(table=build_table(routes, now=datetime.now(UTC)), hosted=Hosted(), is_forwarding=True)

    return lambda number: near.send(NORTH, number, to_service="//far")


def holding(near: Neighbourhood) -> list[NetworkAddress]:
    """The addresses for which frames wait."""
    assert near.forwarder.unaccounted == 0
    return [address for address, outbox in near.forwarder.table.outboxes.items() if outbox.held]


@pytest.mark.promise("R3.5")
async def test_held_frames_leave_by_the_other_address_in_the_turn_in_which_theirs_is_lost(near: Neighbourhood) -> None:
    send = two_ways(near)
    socks = {
        address: near.accept(addresses=[str(address)], arbitration=bytes([n]) * 16)
        for n, address in enumerate((NORTH, SOUTH), 1)
    }
    for sock in socks.values():
        sock.room = 0
    frames = [send(number) for number in range(5)]
    (preferred,) = holding(near)
    (other,) = socks.keys() - {preferred}
    socks[other].room = 1 << 20

    socks[preferred].fail()

    assert (b"".join(frames), []) == (sent(socks[other]), holding(near))


async def test_held_frames_try_each_address_and_leave_by_the_one_that_answers(near: Neighbourhood) -> None:
    send = two_ways(near)
    first = send(1)
    (preferred,) = holding(near)
    (other,) = {NORTH, SOUTH} - {preferred}
    near.reachable.add(other)

    await asyncio.sleep(0.1)
    near.greet(near.socks[0])

    assert [preferred, other] == [address for address, _ in near.dialled[:2]]
    assert (first, []) == (sent(near.socks[0]), holding(near))


@pytest.mark.parametrize("is_served", [False, True])
async def test_peer_that_leaves_makes_every_address_that_leads_on_be_dialled_unless_it_is_served(
    near: Neighbourhood, *, is_served: bool
) -> None:
    send = two_ways(near)
    sock = near.accept(addresses=[str(NORTH)])
    send(1)
    if is_served:
        near.accept(addresses=[str(SOUTH)], arbitration=HIGHER)
    before = len(near.socks)
    near.reachable |= {NORTH, SOUTH}

    sock.feed(encode_link(GOAWAY))
    await asyncio.sleep(0)

    assert ({NORTH} if is_served else {NORTH, SOUTH}) == {address for address, _ in near.dialled}
    assert is_served is (SOUTH not in near.peers.table.histories)
    for attempt in near.socks[before:]:
        assert not sock.shut
        attempt.end()
        await asyncio.sleep(1.1)
    assert sock.shut


# --- reload ---


async def test_new_settings_hold_at_once_and_old_links_keep_what_they_agreed_on(near: Neighbourhood) -> None:
    peers, before = near.peers, near.peers.hello
    near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    [link] = near.links
    endpoint = EndpointSettings(max_frame=1 << 20, heartbeat=3.0, handshake_timeout=2.0, connect_timeout=3.0)
    settings = Settings(endpoint=endpoint, limits=LimitSettings(connections=7, handshakes=9))

    peers.apply(settings, ("tcp://new:1",), NO_SECURITY)

    hello = peers.hello
    assert (1 << 20, 3000, ("tcp://new:1",)) == (hello.max_frame, hello.heartbeat_ms, hello.addresses)
    assert (before.arbitration, before.instance) == (hello.arbitration, hello.instance)
    assert before.max_frame == link.connection.own.max_frame
    assert (2.0, 3.0) == (peers.handshaker.timeout, peers.dialer.seconds)
    assert (7, 9) == (peers.admission.most, peers.handshaker.handshakes.most)


async def test_largest_frame_and_narrow_links_follow_what_each_side_was_told(near: Neighbourhood) -> None:
    near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)
    [link] = near.links
    own = link.connection.own.max_frame

    assert [own, own, 2 * own] == [largest_frame([], own), largest_frame([link], 9), largest_frame([link], 2 * own)]
    for largest in (link.max_frame + 1, link.max_frame):
        refresh_narrow([link], largest)
        assert link.is_narrow is (largest > link.max_frame)


GOAWAY = GoAway(reason="upgrade", deadline_ms=5000)


async def stop(near: Neighbourhood, seconds: float = 5.0) -> float:
    """Stop; virtual seconds that it took."""
    begin = near.loop.time()
    await near.peers.close(reason="upgrade", seconds=seconds)
    assert ({}, {}, []) == (near.loop.readers, near.loop.writers, near.links)
    assert all(sock.is_closed for sock in near.socks)
    assert (0, 0) == (near.forwarder.pool.used_bytes, near.forwarder.unaccounted)
    return near.loop.time() - begin


# --- time ---


async def test_idle_link_is_kept_alive_and_a_silent_peer_is_not(near: Neighbourhood) -> None:
    alive, silent = near.accept(), near.accept(arbitration=b"q" * 16)

    for _ in range(20):
        await asyncio.sleep(5)
        alive.feed(encode_link(Ping(b"12345678")))

    assert (False, True) == (alive.is_closed, silent.is_closed)
    assert 2 <= sum(isinstance(frame, Ping) for frame in said(silent)) <= 4
    assert near.peers.protocol_errors == {"PeerSilentError": 1}


async def test_heartbeat_shorter_than_a_tick_is_kept(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    near = Neighbourhood(loop, monkeypatch, heartbeat_ms=200)
    sock = near.accept()

    await asyncio.sleep(3)

    assert sum(isinstance(frame, Ping) for frame in said(sock)) >= 3 / 0.3 - 1


async def test_our_own_standstill_is_not_taken_for_the_peers_silence(near: Neighbourhood, loop: PlayedLoop) -> None:
    sock = near.accept()
    await asyncio.sleep(0.5)

    loop._advance(60)
    await asyncio.sleep(0.6)
    sock.feed(encode_link(Ping(b"12345678")))
    await asyncio.sleep(5)

    assert not sock.is_closed


async def test_link_that_takes_more_is_given_what_is_held_and_dialogs_are_told(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH), str(SOUTH)])
    sock.room = 10
    frames = near.send(NORTH, 1), near.send(NORTH, 2)
    rooms = near.rooms

    sock.breathe(len(frames[0]))
    assert rooms == near.rooms
    sock.breathe()

    assert (b"".join(frames), rooms + 1) == (sent(sock), near.rooms)


# --- the end ---


async def test_peers_are_told_and_close_and_so_do_we(near: Neighbourhood) -> None:
    sock = near.accept()
    stranger = near.accept(is_greeting=False)

    closing = asyncio.ensure_future(stop(near))
    await asyncio.sleep(0.1)
    assert ([OWN, GOAWAY], [OWN], True) == (said(sock), said(stranger), sock.shut)
    sock.end()

    assert await closing < 0.2


async def test_what_is_held_for_a_link_leaves_before_the_end(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    sock.room = 0
    frame = near.send(NORTH)

    closing = asyncio.ensure_future(stop(near))
    await asyncio.sleep(2)
    assert not sock.shut
    sock.breathe()
    await asyncio.sleep(0.1)
    assert (frame, True) == (sent(sock), sock.shut)
    sock.end()

    assert await closing < 2.5
    assert near.forwarder.dropped == {}


@pytest.mark.parametrize(
    ("is_served", "is_waiting", "least"),
    [(True, True, 5.0 + LINGER_SECONDS), (False, True, 0.0), (True, False, LINGER_SECONDS)],
)
async def test_stopping_waits_for_what_a_link_may_still_take_and_for_the_peers_end(
    near: Neighbourhood, *, is_served: bool, is_waiting: bool, least: float
) -> None:
    if is_served:
        near.accept(addresses=[str(NORTH)]).room = 0 if is_waiting else 1 << 20
    if is_waiting:
        near.send(NORTH)
    await asyncio.sleep(0)

    assert least <= await stop(near) <= least + 0.2
    assert near.forwarder.dropped == ({Disposition.SHUTDOWN: 1} if is_waiting else {})


async def test_nobody_is_accepted_or_dialled_any_more(near: Neighbourhood, loop: PlayedLoop) -> None:
    await stop(near)
    sock = PlayedSocket(loop)

    near.peers.accept(sock, "tcp://10.9.9.9:40001")  # type: ignore[arg-type]
    near.peers.request_link(NORTH)
    await asyncio.sleep(1)

    assert (True, []) == (sock.is_closed, near.dialled)
