"""The settings of a drain, and those that are probably not meant."""

from __future__ import annotations

import pytest

from broker.config.consistency import drain_oddities, setting_warnings
from broker.config.settings import DrainSettings, Settings


def settings(announce: float, timeout: float) -> Settings:
    return Settings().with_values({"drain": DrainSettings().with_values({"announce": announce, "timeout": timeout})})


def test_drain_ends_before_kubernetes_kills() -> None:
    assert (5.0, 25.0) == (Settings().drain.announce, Settings().drain.timeout)


@pytest.mark.parametrize(
    ("announce", "timeout", "expected"),
    [(5.0, 25.0, []), (0.0, 0.0, []), (5.0, 0.0, []), (5.0, 5.0, ["announce"]), (30.0, 25.0, ["announce"])],
)
def test_announcement_that_takes_all_of_the_time_is_unwise(
    announce: float, timeout: float, expected: list[str]
) -> None:
    found = list(drain_oddities(settings(announce, timeout)))

    assert expected == [finding.path[1] for finding in found]


def test_unwise_drain_is_among_the_warnings() -> None:
    warned = [warning.key for warning in setting_warnings(settings(30.0, 25.0))]

    assert "drain.announce" in warned
