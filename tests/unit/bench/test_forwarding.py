"""What is measured, and what a reader is told of the machine; the measurement itself is tried in tests/loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from broker.bench import forwarding
from broker.bench.forwarding import (
    FULL,
    QUICK,
    FramesLostError,
    Hop,
    Scenario,
    make_pair,
    mode_name,
    notes,
    route_script,
    tls_environ,
)
from broker.config.load import load_settings
from broker.ddl.parser import parse_script
from broker.ddl.statements import CreateRoute
from broker.net.certificates import certificate_warnings, security_of

# --- test_certificate ---
# The throw-away certificate of a benchmark is one that an endpoint takes.


def test_gateway_takes_the_pair_as_its_environment_says(tmp_path: Path) -> None:
    settings = load_settings(None, environ=tls_environ(make_pair(tmp_path)))

    assert "CN=bench" == security_of(settings).own.principal_name  # type: ignore[union-attr]
    assert [] == certificate_warnings(settings)


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (Scenario(64), "64 B"),
        (Scenario(16 * 1024, destinations=1000, next_hops=4), "16,384 B, 1,000 destinations, 4 next hops"),
        (Scenario(256, connections=1000), "256 B, 1,000 connections"),
        (Scenario(1024, is_tls=True), "1,024 B, TLS"),
        (Scenario(256, connections=100, is_tls=True), "256 B, 100 connections, TLS"),
    ],
)
def test_a_scenario_is_called_by_what_is_not_one(scenario: Scenario, name: str) -> None:
    assert name == scenario.name


@pytest.mark.parametrize("scenarios", [QUICK, FULL], ids=["quick", "full"])
def test_no_two_scenarios_have_the_same_name(scenarios: tuple[Scenario, ...]) -> None:
    assert len(scenarios) == len({scenario.name for scenario in scenarios})


def test_everything_of_the_quick_form_is_in_the_full_one() -> None:
    full = {scenario.name: set(scenario.modes) for scenario in FULL}

    assert [] == [scenario.name for scenario in QUICK if not set(scenario.modes) <= full.get(scenario.name, set())]


def test_a_rate_is_named_by_its_number() -> None:
    assert ["flood", "20,000 a second"] == [mode_name(mode) for mode in ("flood", 20_000)]


def test_the_reader_is_told_what_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "can_speak_tls", lambda: False)
    monkeypatch.setattr(forwarding, "CORES", [0])

    tls, cores = notes()

    assert "built without TLS" in tls
    assert "libssl-dev" in tls
    assert "One core only" in cores


def test_a_machine_that_lacks_nothing_needs_no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "can_speak_tls", lambda: True)
    monkeypatch.setattr(forwarding, "CORES", [0, 1])

    assert () == notes()


# --- test_hop ---
# What hops are made of; that they move frames is tried in tests/loopback.


class FakeDaemon:
    """A gateway that tells of its forwarding."""

    def __init__(self, held: int, dropped: dict[str, int]) -> None:
        self._told = {"forwarding": {"held": held, "dropped": dropped}}

    def status(self) -> dict[str, Any]:
        return self._told


def hop_with(daemon: FakeDaemon | None) -> Hop:
    return Hop("gateway", (1,), 2, (3,), daemon=cast("Any", daemon))


def test_routes_lead_over_the_ports_in_turn() -> None:
    text = route_script(["//a", "//b", "//c"], [20_001, 20_002])

    routes = [statement for statement in parse_script(text) if isinstance(statement, CreateRoute)]
    assert ["//a", "//b", "//c"] == [route.properties.service_name for route in routes]
    assert [f"tcp://127.0.0.1:{port}" for port in (20_001, 20_002, 20_001)] == [
        route.properties.address for route in routes
    ]


@pytest.mark.parametrize(("held", "dropped"), [(1, {}), (0, {"no route": 2})])
def test_a_gateway_that_kept_or_lost_a_frame_is_found_out(held: int, dropped: dict[str, int]) -> None:
    with pytest.raises(FramesLostError, match=rf"^gateway: {held} frames held, dropped: "):
        hop_with(FakeDaemon(held, dropped)).check()


def test_a_gateway_that_forwarded_everything_is_in_order() -> None:
    hop_with(FakeDaemon(0, {})).check()


def test_a_relay_has_nothing_to_tell() -> None:
    hop_with(None).check()
