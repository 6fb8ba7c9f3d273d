"""Figures as people see them."""

from __future__ import annotations

import pytest

from broker.bench.figures import FigureChange, Result, Row
from broker.cli.bench import readable, show, show_changes

RELAY = Row("forwarding", "256 B", "flood", "relay", "cpu_us", {"cpu_us": 0.5, "messages_s": 2_000_000.0}, 0.1, True)
GATEWAY = Row("forwarding", "256 B", "flood", "gateway", "cpu_us", {"cpu_us": 1.5, "messages_s": 666_666.6})
PING = Row("forwarding", "256 B", "ping", "gateway", "p50_us", {"p50_us": 31.25})
OWN = Row("memory", "", "MiB", "held", "value", {"value": 64.0})
RESULT = Result(
    {"cpu": "abacus"}, "2026-01-01T00:00:00+00:00", {"before": "0.1 0.2 0.3"}, (RELAY, GATEWAY, PING, OWN), ("beware",)
)


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (1.5, "1.5"), (31.26, "31.3"), (100.4, "100"), (2e6, "2,000,000")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert text == readable(value)


def test_machine_load_and_notes_stand_above_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT)

    lines = capsys.readouterr().out.splitlines()
    assert ["cpu abacus", "load averages before 0.1 0.2 0.3", "note: beware"] == lines[:3]


def test_each_benchmark_and_mode_has_a_table_with_ratios_to_the_yardstick(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT)

    text = capsys.readouterr().out
    titles = [line.strip() for line in text.splitlines() if line.strip().startswith(("forwarding,", "memory,"))]
    (gateway, *_) = [line for line in text.splitlines() if "gateway" in line]
    assert ["forwarding, flood", "forwarding, ping", "memory, MiB"] == titles
    assert ["256 B", "gateway", "1.5", "3.00", "666,667", "0%"] == [cell.strip() for cell in gateway.split("│")[1:-1]]


def test_changes_say_then_and_now_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show_changes([FigureChange(GATEWAY, 3.0, 1.5, 0.2), FigureChange(OWN, 1.0)], RESULT)

    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert "against that of 2026-01-01" in text
    assert ["forwarding, 256 B, flood, gateway", "1.50", "3.00", "20%", "WORSE, 2.00 times"] in rows
    assert ["memory, MiB, held", "", "1.00", "5%", "new"] in rows
