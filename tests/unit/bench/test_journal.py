"""What is measured of a journal; the measurement itself is tried in tests/loopback/test_journal.py."""

from __future__ import annotations

from broker.bench.journal import FULL, QUICK, SAMPLES, WITHOUT


def test_every_sample_is_measured_against_none() -> None:
    assert [None, 0.01, 1.0] == list(SAMPLES.values())
    assert WITHOUT == next(iter(SAMPLES))


def test_there_are_enough_dialogs_to_take_a_hundredth_of() -> None:
    assert {True} == {scenario.destinations >= 1000 for scenario in FULL}
    assert set(QUICK) <= set(FULL)
