"""Counts of frames by name of the peer, those of closed links among them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.net.heard import OTHER_PEERS, Heard


@dataclass
class PlayedLink:
    peer_name: str
    received: Counter[int] = field(default_factory=Counter)
    agreement: object = object()


def test_open_and_closed_links_of_one_name_add_up() -> None:
    heard = Heard()
    closed: Any = PlayedLink("a", Counter({0x10: 2}))
    opened: Any = PlayedLink("a", Counter({0x10: 1, 0x11: 5}))
    for link in (closed, opened):
        heard.greet(link)

    heard.close(closed)

    assert {"a": {0x10: 3, 0x11: 5}} == heard.counts([opened])
    assert {"a": {0x10: 2}} == heard.counts([])


def test_link_that_has_not_said_hello_counts_nowhere() -> None:
    silent: Any = PlayedLink("", agreement=None)

    assert {} == Heard().counts([silent])


def test_names_past_the_bound_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.heard.PEER_NAMES_MAX", 1)
    heard = Heard()
    links: list[Any] = [PlayedLink(name, Counter({0x10: 1})) for name in "abc"]
    for link in links:
        heard.greet(link)
        heard.close(link)

    assert {"a": {0x10: 1}, OTHER_PEERS: {0x10: 2}} == heard.counts([])
