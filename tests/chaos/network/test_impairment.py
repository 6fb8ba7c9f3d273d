"""Impairments are values that say what is wrong with them, and what a network must be able to do for them."""

from __future__ import annotations

import pytest

from tests.chaos.network.impairment import CUT, WHOLE, Fault, Impairment


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"loss": 1.5}, "loss"),
        ({"duplication": -0.1}, "duplication"),
        ({"reordering": 2.0}, "reordering"),
        ({"delay": -1.0}, "delay"),
        ({"jitter": -1.0}, "jitter"),
        ({"rate": 0.0}, "rate"),
        ({"mtu": 67}, "mtu"),
    ],
)
def test_a_field_out_of_its_range_is_named(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        Impairment(**wrong)  # type: ignore[arg-type]


def test_an_impairment_names_its_faults() -> None:
    everything = Impairment(
        is_cut=True, delay=0.1, jitter=0.1, loss=0.1, duplication=0.1, reordering=0.1, rate=1.0, mtu=68
    )

    of_the_way = {Fault.CUT, Fault.DELAY, Fault.LOSS, Fault.DUPLICATION, Fault.REORDERING, Fault.RATE, Fault.MTU}
    assert of_the_way == everything.faults
    assert {Fault.CUT} == CUT.faults
    assert {Fault.DELAY} == Impairment(jitter=0.1).faults
    assert set() == WHOLE.faults
