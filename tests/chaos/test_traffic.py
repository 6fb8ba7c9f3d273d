"""Who carried what, as daemons tell it; and a fault is drawn among those who carry."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.cast import STOCK
from tests.chaos.faults.catalog import FAULTS
from tests.chaos.faults.fault import Fault
from tests.chaos.fleet import Fleet
from tests.chaos.traffic import Traffic

GATEWAYS = ("gateway-1", "gateway-2")
ENDS = ("initiator-1", "initiator-2", "billing", *STOCK, "parcel-1", "parcel-2")


def metrics(resent: int = 0, **frames: int) -> str:
    """What a daemon tells; `frames` by whom they were handed to, with _ for -."""
    handed = [
        f'broker_messages_forwarded_total{{route="any",peer="tcp://{name.replace("_", "-")}:4022"}} {count}'
        for name, count in frames.items()
    ]
    more = [f'broker_retransmits_total{{peer="x"}} {resent}', "broker_duplicates_total 3", 'broker_up{peer="y"} 1']
    return "\n".join(["# HELP", *handed, *more])


@pytest.fixture
def fleet() -> Any:
    """Of two gateways, of which nobody asks anything."""

    def neighbours(name: str) -> list[str]:
        return list(ENDS if name in GATEWAYS else GATEWAYS)

    def address(near: str, far: str) -> str:
        return f"tcp://{far}:4022"

    hosts = dict.fromkeys((*GATEWAYS, *ENDS), "")
    made = SimpleNamespace(
        gateways=GATEWAYS, names=tuple(hosts), mirror=STOCK[1], principal=STOCK[0], network=SimpleNamespace(hosts=hosts)
    )
    made.neighbours, made.address = neighbours, address
    made.traffic = Traffic(cast("Fleet", made))
    return made


def test_a_gateway_has_carried_what_it_handed_on_and_others_what_was_handed_to_them_as_well(fleet: Fleet) -> None:
    fleet.traffic.add("gateway-1", metrics(billing=5, initiator_1=4))
    fleet.traffic.add("initiator-1", metrics(gateway_1=7))

    assert (9, 11, 5, 0) == tuple(
        fleet.traffic.carried(one) for one in ("gateway-1", "initiator-1", "billing", "gateway-2")
    )
    assert (11, 5, 0) == tuple(
        fleet.traffic.between("gateway-1", one) for one in ("initiator-1", "billing", "parcel-1")
    )


def test_only_the_growth_counts_and_a_daemon_that_began_anew_counts_from_nothing(fleet: Fleet) -> None:
    for told in (metrics(resent=1, billing=10), "", metrics(resent=4, billing=12), metrics(resent=0, billing=5)):
        fleet.traffic.add("gateway-1", told)

    assert 17 == fleet.traffic.carried("gateway-1")
    assert (4, 3) == (fleet.traffic.resent, fleet.traffic.duplicates)


def test_a_phase_begins_with_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.traffic.add("gateway-1", metrics(billing=10))
    monkeypatch.setattr(Traffic, "_metrics", lambda _, name: metrics(billing=15) if name == "gateway-1" else "")

    fleet.traffic.begin()

    assert 0 == fleet.traffic.carried("gateway-1")
    fleet.traffic.add("gateway-1", metrics(billing=16))
    assert 1 == fleet.traffic.carried("gateway-1")


def drawn(fleet: Fleet, name: str, times: int = 60) -> list[Fault]:
    return [FAULTS[name](fleet, random.Random(seed), set(fleet.names)) for seed in range(times)]


def test_a_victim_is_one_that_carries_or_the_mirror(fleet: Fleet) -> None:
    fleet.traffic.add("gateway-2", metrics(billing=5, stock_1=2))

    kills, resets = drawn(fleet, "kill"), drawn(fleet, "reset")

    assert {"gateway-2", "billing", STOCK[0], STOCK[1]} == {victim for one in kills for victim in one.victims}
    assert {("gateway-2", "billing"), ("gateway-2", STOCK[0])} == {way for one in resets for way in one.ways}
    assert all(one.is_felt for one in (*kills, *resets))


def test_a_fault_of_what_carries_nothing_is_not_felt(fleet: Fleet) -> None:
    [kill] = drawn(fleet, "delay", 1)

    before = kill.is_felt
    fleet.traffic.add(next(iter(kill.victims)), metrics(billing=1))

    assert (False, True) == (before, kill.is_felt)
    assert 1 == kill.frames


def test_a_fault_of_everybody_is_felt(fleet: Fleet) -> None:
    [rotation] = drawn(fleet, "rotation", 1)

    assert (None, True) == (rotation.frames, rotation.is_felt)
