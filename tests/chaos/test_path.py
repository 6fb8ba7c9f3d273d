"""A way that was used once, and a gateway, are found when they carry nothing after a fault."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import DaemonUnreachableError
from examples.demo.topology import TimedOutError
from tests.chaos import path
from tests.chaos.path import Paths


class Daemon:
    def __init__(self, *peers: str) -> None:
        self.peers: tuple[str, ...] | None = peers
        self.held = [0]

    def status(self) -> dict[str, Any]:
        if self.peers is None:
            raise DaemonUnreachableError("admin.sock", "refused")
        opening = {"name": "parcel-1", "state": "CONNECTING"}
        forwarding = {"held": self.held.pop(0) if len(self.held) > 1 else self.held[0]}
        return {
            "forwarding": forwarding,
            "connections": [{"name": one, "state": "LOGGED_IN"} for one in self.peers] + [opening],
        }


class Traffic(Counter[str]):
    """Those of `growing` carry a frame more each time that somebody asks."""

    def __init__(self, *growing: str) -> None:
        super().__init__()
        self.growing = growing

    def sample(self) -> None:
        self.update(self.growing)

    def carried(self, name: str) -> int:
        return self[name]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "WHOLE_SECONDS", 0.0)


@pytest.fixture
def fleet() -> Any:
    daemons = {"gateway-1": Daemon("billing", "stock-2"), "gateway-2": Daemon("billing")}
    return SimpleNamespace(
        gateways=tuple(daemons), daemons=daemons, mirror="stock-2", traffic=Traffic("gateway-1", "gateway-2")
    )


def test_ways_that_are_online_and_gateways_that_carry_are_whole(fleet: Any) -> None:
    paths = Paths(fleet)

    assert {("gateway-1", "billing"), ("gateway-1", "stock-2"), ("gateway-2", "billing")} == paths.look()
    paths.wait_whole()


def test_a_way_that_was_online_once_and_is_so_no_more_is_told(fleet: Any) -> None:
    paths = Paths(fleet)
    paths.look()
    fleet.daemons["gateway-1"].peers = ()  # the mirror is not missed
    fleet.daemons["gateway-2"].peers = None

    with pytest.raises(TimedOutError, match=r"offline: gateway-1 and billing, gateway-2 and billing$"):
        paths.wait_whole()


def test_a_gateway_that_hands_on_nothing_is_told(fleet: Any) -> None:
    paths = Paths(fleet)
    paths.look()
    fleet.traffic.growing = ("gateway-1",)

    with pytest.raises(TimedOutError, match=r"s: handed on nothing: gateway-2$"):
        paths.wait_whole()


def test_ways_of_initiators_are_broken_off_until_every_gateway_is_used(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "WHOLE_SECONDS", 5.0)
    monkeypatch.setattr(path, "OPEN_SECONDS", 0.0)
    fleet.daemons["gateway-2"].peers = ()
    broken_off: list[tuple[str, str]] = []

    def reset(one: str, other: str) -> None:
        broken_off.append((one, other))
        fleet.daemons["gateway-2"].peers = ("initiator-1",)

    names = (*fleet.gateways, "initiator-1")
    fleet.network = SimpleNamespace(hosts={name: name for name in names}, reset=reset)
    fleet.initiators = [SimpleNamespace(hosts=("initiator-1",))]

    Paths(fleet).open()

    assert [("gateway-1", "initiator-1")] == broken_off


def test_a_gateway_that_nobody_comes_to_is_told(fleet: Any) -> None:
    fleet.daemons["gateway-2"].peers = ()
    fleet.initiators, fleet.network = [], SimpleNamespace(hosts=dict.fromkeys(fleet.gateways))

    with pytest.raises(TimedOutError, match=r"s: never gateway-2$"):
        Paths(fleet).open()


def test_copies_that_gateways_hold_have_their_time(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "EMPTY_SECONDS", 5.0)
    fleet.daemons["gateway-1"].peers = None
    holding = fleet.daemons["gateway-2"]
    holding.held = [3, 1, 0]

    Paths(fleet).wait_empty()

    assert [0] == holding.held


def test_what_a_gateway_holds_for_ever_is_left_to_the_drain(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "EMPTY_SECONDS", 0.0)
    fleet.daemons["gateway-2"].held = [1]

    Paths(fleet).wait_empty()

    assert [1] == fleet.daemons["gateway-2"].held
