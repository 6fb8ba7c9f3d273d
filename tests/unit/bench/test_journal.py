"""What is measured of a journal; the measurement itself is tried in tests/loopback/test_journal.py."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker.bench import journal
from broker.bench.journal import FULL, IDLE_LOOKS, QUICK, SAMPLES, WITHOUT
from tests.support.asleep import sleep_by


def test_every_sample_is_measured_against_none_and_so_is_none() -> None:
    assert [None, None, 0.01, 1.0] == list(SAMPLES.values())
    assert WITHOUT == next(iter(SAMPLES))


def test_there_are_enough_dialogs_to_take_a_hundredth_of() -> None:
    assert {True} == {scenario.destinations >= 1000 for scenario in FULL}
    assert set(QUICK) <= set(FULL)


@pytest.mark.parametrize(
    ("spent_ms", "looks"),
    [((0, 1), 1), ((0, 60, 90, 91), 3), (range(0, 100 * (IDLE_LOOKS + 1), 100), IDLE_LOOKS)],
    ids=["idle", "writes on", "never ends"],
)
def test_next_turn_begins_when_the_writer_is_done(
    spent_ms: Iterable[int], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = (ms / 1000 for ms in spent_ms)
    slept: list[float] = []
    monkeypatch.setattr("broker.bench.journal.cpu_seconds", lambda _pid: next(seconds))
    sleep_by(monkeypatch, slept.append)

    journal._let_finish(1)

    assert looks == len(slept)
