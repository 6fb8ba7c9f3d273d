"""Two links to one process from both sides are found, however many others there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from broker.net.link import LinkState
from broker.net.peer_table import Processes
from broker.protocol.layout import NO_GUID
from broker.protocol.link_state import Agreement, agree
from tests.support.peers import HIGHER, LOWER, OWN, PEER


class Played:
    """As much of a link as this is about."""

    def __init__(self, arbitration: bytes, *, is_accept: bool, proved: str) -> None:
        self.state = LinkState.LOGGED_IN
        self.transport = SimpleNamespace(identity=SimpleNamespace(fingerprint=proved) if proved else None)
        self.is_accept = is_accept
        self.agreement: Agreement | None = agree(OWN, msgspec.structs.replace(PEER, arbitration=arbitration))


def link(arbitration: bytes, *, is_accept: bool, proved: str = "") -> Any:
    return Played(arbitration, is_accept=is_accept, proved=proved)


def test_rival_is_opened_by_the_other_side_and_open() -> None:
    processes = Processes()
    ours, theirs = link(HIGHER, is_accept=False), link(HIGHER, is_accept=True)
    another = link(LOWER, is_accept=True)
    for one in (theirs, another):
        processes.add(one)

    assert theirs is processes.rival_of(ours)
    assert None is processes.rival_of(link(HIGHER, is_accept=True))
    theirs.state = LinkState.DRAINING  # type: ignore[union-attr]
    assert None is processes.rival_of(ours)


def test_whoever_shows_another_certificate_is_another_process() -> None:
    """A HELLO may claim the arbitration id of somebody else."""
    processes = Processes()
    ours = link(HIGHER, is_accept=False, proved="billing")
    processes.add(ours)

    assert None is processes.rival_of(link(HIGHER, is_accept=True, proved="mallory"))
    assert None is processes.rival_of(link(HIGHER, is_accept=True))
    assert ours is processes.rival_of(link(HIGHER, is_accept=True, proved="billing"))


def test_process_without_a_name_has_no_rival() -> None:
    processes = Processes()
    processes.add(link(NO_GUID, is_accept=True))

    assert None is processes.rival_of(link(NO_GUID, is_accept=False))


def test_link_that_is_gone_is_forgotten_wherever_it_was() -> None:
    processes = Processes()
    one, never = link(HIGHER, is_accept=True), link(HIGHER, is_accept=True)
    stranger = link(HIGHER, is_accept=True)
    stranger.agreement = None
    processes.add(one)

    for gone in (one, one, never, stranger):
        processes.remove(gone)

    assert None is processes.rival_of(link(HIGHER, is_accept=False))
    assert {} == processes._links
