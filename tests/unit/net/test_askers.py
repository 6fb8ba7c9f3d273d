"""Who asked for a principal: answered at once, and told again when the role changes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.net.peers import ASKED_MAX, Askers
from broker.protocol.frame import Probe, ProbeReply, decode_link

BILLING, ORDERS = b"b" * 16, b"o" * 16


class Link:
    """A peer that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def say(self, frame: bytes) -> None:
        self.heard.append(decode_link(frame))


class Role:
    """What the instance is now."""

    def __init__(self) -> None:
        self.role, self.epoch = "mirror", 3

    def prove(self, probe: Probe) -> ProbeReply:
        return ProbeReply(probe.id, probe.broker_instance, self.role, self.epoch)


@pytest.fixture
def role() -> Role:
    return Role()


@pytest.fixture
def askers(role: Role) -> Askers:
    return Askers(role.prove)


def test_probe_is_answered_with_what_holds_now(askers: Askers) -> None:
    """The answer carries the id of the question."""
    link = Link()

    askers.answer(link, Probe(7, "//billing", BILLING))

    assert [ProbeReply(7, BILLING, "mirror", 3)] == link.heard
    assert askers.answered == 1


def test_change_of_role_is_told_to_all_that_asked_with_the_id_of_their_last_probe(askers: Askers, role: Role) -> None:
    """Whoever asked for something else, or not at all, hears nothing."""
    first, second, other = Link(), Link(), Link()
    for number in (1, 2):
        askers.answer(first, Probe(number, "//billing", BILLING))
    askers.answer(second, Probe(9, "//billing", BILLING))
    askers.answer(other, Probe(5, "//orders", ORDERS))
    for link in (first, second, other):
        link.heard.clear()
    role.role, role.epoch = "principal", 4

    askers.announce(BILLING)

    assert [ProbeReply(2, BILLING, "principal", 4)] == first.heard
    assert [ProbeReply(9, BILLING, "principal", 4)] == second.heard
    assert [] == other.heard


def test_link_that_is_gone_is_told_nothing(askers: Askers) -> None:
    """A link is forgotten, whether it asked or not."""
    link = Link()
    askers.answer(link, Probe(1, "//billing", BILLING))
    link.heard.clear()

    askers.forget(link)
    askers.forget(Link())
    askers.announce(BILLING)

    assert [] == link.heard


def test_peer_that_asks_for_ever_more_is_remembered_for_the_latest_only(askers: Askers) -> None:
    """Memory stays bounded: the one that was asked for the longest ago is forgotten, though it was answered."""
    link = Link()
    instances = [number.to_bytes(16, "big") for number in range(ASKED_MAX + 1)]
    for instance in (instances[0], *instances):
        askers.answer(link, Probe(1, "//x" * 4000, instance))
    assert len(link.heard) == ASKED_MAX + 2
    link.heard.clear()

    for instance in instances:
        askers.announce(instance)

    assert [reply.broker_instance for reply in link.heard] == instances[1:]
