"""What two HELLOs lead to, and which of two connections stays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.errors import HandshakeRefusedError
from broker.protocol.frame import Hello
from broker.protocol.layout import NO_GUID
from broker.protocol.link_state import Agreement, agree, stays

LOW, HIGH = b"\x01" + b"\xff" * 15, b"\x02" + b"\x00" * 15
OWN = Hello(instance=b"o" * 16, arbitration=LOW, name="own", max_frame=65536, heartbeat_ms=1000)
PEER = Hello(instance=b"p" * 16, arbitration=HIGH, name="peer", max_frame=131072, heartbeat_ms=2500)


def test_agreement_takes_the_limits_of_the_peer() -> None:
    expected = Agreement(version=1, send_max_frame=131072, peer_heartbeat=2.5, peer=PEER, is_self=False)

    assert expected == agree(OWN, PEER)


@pytest.mark.parametrize(
    ("own", "peer", "version"), [((1,), (1,), 1), ((1, 2), (2, 1), 2), ((1, 2, 3), (7, 2), 2), ((3, 1), (1, 1), 1)]
)
def test_highest_common_version_is_spoken(own: tuple[int, ...], peer: tuple[int, ...], version: int) -> None:
    assert version == agree(replace(OWN, versions=own), replace(PEER, versions=peer)).version
    assert version == agree(replace(PEER, versions=peer), replace(OWN, versions=own)).version


@pytest.mark.parametrize("max_frame", [4096, 16 * 1024 * 1024])
def test_max_frame_may_be_at_either_end_of_its_range(max_frame: int) -> None:
    assert max_frame == agree(OWN, replace(PEER, max_frame=max_frame)).send_max_frame


@pytest.mark.parametrize(
    ("heartbeat_ms", "seconds"),
    [(-1, 0.1), (0, 0.1), (100, 0.1), (15_000, 15.0), (3_600_000, 3600.0), (3_600_001, 3600.0), (2**64 - 1, 3600.0)],
)
def test_heartbeat_is_clamped(heartbeat_ms: int, seconds: float) -> None:
    assert seconds == agree(OWN, replace(PEER, heartbeat_ms=heartbeat_ms)).peer_heartbeat


@pytest.mark.parametrize(
    ("peer", "problem"),
    [
        (replace(PEER, protocol="amqp"), "the peer speaks 'amqp', not 'sbrk'"),
        (replace(PEER, protocol="x" * 10_000), "the peer speaks 'xxxxxxxx', not 'sbrk'"),
        (replace(PEER, versions=(2, 3)), "no version in common: the peer speaks 2, 3, this instance 1"),
        (replace(PEER, versions=()), "no version in common: the peer speaks none, this instance 1"),
        (
            replace(PEER, versions=tuple(range(2, 1000))),
            "no version in common: the peer speaks 2, 3, 4, 5, 6, 7, 8, 9, ..., this instance 1",
        ),
        (replace(PEER, max_frame=4095), "max_frame of 4095 bytes, not 4096 .. 16777216"),
        (replace(PEER, max_frame=16_777_217), "max_frame of 16777217 bytes, not 4096 .. 16777216"),
        (replace(PEER, max_frame=-1), "max_frame of -1 bytes, not 4096 .. 16777216"),
    ],
)
def test_hello_that_cannot_be_agreed_with_is_refused(peer: Hello, problem: str) -> None:
    with pytest.raises(HandshakeRefusedError) as caught:
        agree(OWN, peer)

    assert problem == caught.value.problem


@pytest.mark.parametrize(
    ("own", "peer", "is_self"), [(LOW, LOW, True), (LOW, HIGH, False), (NO_GUID, NO_GUID, False), (LOW, NO_GUID, False)]
)
def test_same_arbitration_id_is_this_very_process(own: bytes, peer: bytes, *, is_self: bool) -> None:
    assert is_self is agree(replace(OWN, arbitration=own), replace(PEER, arbitration=peer)).is_self


@pytest.mark.parametrize(("instance", "is_self"), [(b"o" * 16, True), (NO_GUID, False)])
def test_same_instance_is_another_process_of_it(instance: bytes, *, is_self: bool) -> None:
    assert is_self is agree(replace(OWN, instance=instance), replace(PEER, instance=instance)).is_self


@pytest.mark.parametrize(
    ("own", "peer", "opened_here", "expected"),
    [(LOW, HIGH, True, True), (LOW, HIGH, False, False), (HIGH, LOW, True, False), (HIGH, LOW, False, True)],
)
def test_connection_opened_by_the_lower_id_stays(own: bytes, peer: bytes, *, opened_here: bool, expected: bool) -> None:
    assert expected is stays(own, peer, opened_here=opened_here)


@pytest.mark.parametrize("opened_by_low", [True, False])
def test_both_sides_decide_alike(*, opened_by_low: bool) -> None:
    seen_by_low = stays(LOW, HIGH, opened_here=opened_by_low)
    seen_by_high = stays(HIGH, LOW, opened_here=not opened_by_low)

    assert seen_by_low is seen_by_high
