"""What is measured, and what a reader is told of the machine; the measurement itself is tried in tests/loopback."""

from __future__ import annotations

import pytest

from broker.bench import forwarding
from broker.bench.forwarding import FULL, QUICK, Scenario, mode_name, notes


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
