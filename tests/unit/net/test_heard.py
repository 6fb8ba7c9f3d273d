"""Labels of peers in metrics, and counts of frames by them, those of closed links among them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from broker.net.peer_table import OTHER_PEERS, PeerFrameCounts


def link(name: str, principal: str = "", received: dict[int, int] | None = None) -> Any:
    identity = SimpleNamespace(principal_name=principal) if principal else None
    return SimpleNamespace(
        peer_name=name, label="", received=Counter(received or {}), transport=SimpleNamespace(identity=identity)
    )


def labels(heard: PeerFrameCounts, *links: Any) -> list[str]:
    for one in links:
        heard.greet(one)
    return [one.label for one in links]


def test_open_and_closed_links_of_one_name_add_up() -> None:
    heard = PeerFrameCounts()
    closed, opened = link("a", received={0x10: 2}), link("a", received={0x10: 1, 0x11: 5})
    labels(heard, closed, opened)

    heard.close(closed)

    assert {"a": {0x10: 3, 0x11: 5}} == heard.counts([opened])
    assert {"a": {0x10: 2}} == heard.counts([])


def test_link_that_has_not_said_hello_counts_nowhere() -> None:
    assert {} == PeerFrameCounts().counts([link("")])


def test_peer_without_a_name_is_not_counted_as_a_database_here() -> None:
    assert [OTHER_PEERS] == labels(PeerFrameCounts(), link(""))


def test_names_past_the_bound_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_table.PEER_NAMES_MAX", 1)
    heard = PeerFrameCounts()
    for one in [link(name, received={0x10: 1}) for name in "abc"]:
        heard.greet(one)
        heard.close(one)

    assert {"a": {0x10: 1}, OTHER_PEERS: {0x10: 2}} == heard.counts([])


def test_names_of_one_principal_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_table.NAMES_EACH_MAX", 2)
    heard = PeerFrameCounts()

    assert ["a", "b", OTHER_PEERS, "a"] == labels(heard, *(link(name, "CN=many") for name in "abca"))
    assert ["c"] == labels(heard, link("c", "CN=other"))


def test_name_belongs_to_the_principal_that_came_with_it_first() -> None:
    heard = PeerFrameCounts()

    assert ["a", OTHER_PEERS, OTHER_PEERS, "a"] == labels(
        heard, link("a", "CN=first"), link("a", "CN=second"), link("a"), link("a", "CN=first")
    )


def test_name_of_peers_that_prove_nothing_goes_to_whoever_proves_something() -> None:
    assert ["a", "a", "a", OTHER_PEERS] == labels(
        PeerFrameCounts(), link("a"), link("a"), link("a", "CN=first"), link("a")
    )
