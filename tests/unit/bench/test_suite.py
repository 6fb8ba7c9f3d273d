"""One run of several benchmarks."""

from __future__ import annotations

import pytest

from broker.bench import dialogs, forwarding, suite
from broker.bench.figures import Row

ROWS = {name: Row(name, "case", "mode", "subject", "cpu_us", {"cpu_us": 1.0}) for name in suite.BENCHES}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the benchmarks were asked for; none of them measures anything."""
    seen: list[object] = []

    def forward(scenarios: object, *, tell: suite.Tell) -> list[Row]:
        tell("a scenario")
        seen.append(scenarios)
        return [ROWS["forwarding"]]

    def talk(*, is_full: bool, tell: suite.Tell) -> list[Row]:
        assert not is_full
        tell(dialogs.CASE)
        return [ROWS["dialogs"]]

    monkeypatch.setattr(dialogs, "measure", talk)
    monkeypatch.setattr(forwarding, "measure", forward)
    monkeypatch.setattr(forwarding, "notes", lambda: ("a note",))
    return seen


def benches(*names: str) -> dict[str, suite.Bench]:
    return {name: suite.BENCHES[name] for name in names}


def test_benchmarks_run_in_their_order_and_tell_how_far_they_are(asked: list[object]) -> None:
    told: list[str] = []

    result = suite.run(benches("dialogs", "forwarding"), is_full=False, tell=told.append)

    assert (ROWS["dialogs"], ROWS["forwarding"]) == result.rows
    assert [f"dialogs: {dialogs.CASE}", "forwarding: a scenario"] == told


@pytest.mark.parametrize(("is_full", "scenarios"), [(False, forwarding.QUICK), (True, forwarding.FULL)])
def test_everything_is_measured_when_wanted(asked: list[object], *, is_full: bool, scenarios: object) -> None:
    suite.run(benches("forwarding"), is_full=is_full, tell=lambda _: None)

    assert [scenarios] == asked


def test_a_result_holds_machine_load_and_the_notes_of_what_was_run(asked: list[object]) -> None:
    with_notes = suite.run(benches("forwarding"), is_full=False, tell=lambda _: None)
    without = suite.run(benches("dialogs"), is_full=False, tell=lambda _: None)

    assert {"before", "after"} == set(with_notes.load)
    assert "python" in with_notes.machine
    assert (("a note",), ()) == (with_notes.notes, without.notes)
