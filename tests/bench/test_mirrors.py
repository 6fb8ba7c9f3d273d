"""The benchmark of failovers, as short as can be."""

import pytest

from bench import mirrors


@pytest.mark.timeout(180)
def test_failovers_of_either_kind_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "STEADY_SECONDS", 0.1)

    rows = mirrors.measure(failovers=2)

    assert ["SET PARTNER FAILOVER, 2 times", "kill -9, 2 times"] == list(dict.fromkeys(row.case for row in rows))
    assert 8 == len(rows) == len({row.key for row in rows})
    for row in rows:
        assert 0 < row.values["p50_ms"] <= row.values["max_ms"]
