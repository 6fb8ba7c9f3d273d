"""A daemon that takes more and more is found in a long run, and in no short one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.possession import LEAST_LOOKS, Possessions

MIB = 1 << 20


def looked(looks: int, *, descriptors: int = 0, memory: int = 0, names: tuple[str, ...] = ()) -> Possessions:
    """At a daemon that takes so much more at each look; later looks find this process."""
    daemons = {"gateway-1": SimpleNamespace(pid=os.getpid()), "gone": SimpleNamespace(pid=-1)}
    fleet: Any = SimpleNamespace(names=names, daemons=daemons)
    made = Possessions(fleet)
    for number in range(looks):
        made.add("gateway-1", 70 + number * descriptors, 110 * MIB + number * memory)
    return made


@pytest.mark.parametrize(
    ("looks", "growth", "told"),
    [
        (LEAST_LOOKS, {}, []),
        (LEAST_LOOKS, {"descriptors": 1}, []),
        (LEAST_LOOKS, {"descriptors": 2}, ["gateway-1 has grown: 169 descriptors, 89 in the beginning"]),
        (LEAST_LOOKS, {"memory": 4 * MIB}, ["gateway-1 has grown: 308 MiB, 148 in the beginning"]),
        (LEAST_LOOKS - 1, {"descriptors": 100}, []),
    ],
)
def test_growth_is_told_when_there_were_looks_enough(looks: int, growth: dict[str, Any], told: list[str]) -> None:
    assert told == list(looked(looks, **growth).grown())


def test_a_daemon_is_asked_for_what_it_has() -> None:
    made = looked(LEAST_LOOKS, names=("gateway-1", "gone"))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]

    for _ in range(LEAST_LOOKS):
        made.look()
    for one in taken:
        os.close(one)

    assert "descriptors, 70 in the beginning" in next(made.grown())
