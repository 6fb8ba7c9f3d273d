"""Sampling is by dialog, the same everywhere, and as frequent as asked for, however ids are made."""

from __future__ import annotations

import pytest

from broker.forwarding import ring as module
from broker.forwarding.ring import Sample, mix

COUNT = 4000


@pytest.mark.parametrize(
    ("conversation_id", "expected"),
    [
        (bytes(16), 0x48218226FF3CD4BF),
        (bytes(range(16)), 0xF271C405951A95E2),
        (b"\xff" * 16, 0x4650BC0EB3312E23),
    ],
)
def test_mix_is_what_the_format_says(conversation_id: bytes, expected: int) -> None:
    assert expected == mix(conversation_id)


def test_mix_is_two_steps_of_splitmix64() -> None:
    """The first output of SplitMix64 for the seed 0 is well known; a second half equal to it leaves nothing."""
    first_output = 0xE220A8397B1DCDAF

    assert mix(bytes(8) + first_output.to_bytes(8, "big")) == 0


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: n.to_bytes(16, "big"),
        lambda n: n.to_bytes(16, "little"),
        lambda n: n.to_bytes(8, "big") * 2,
        lambda n: (n << 64 | n ^ 0xFFFF).to_bytes(16, "big"),
        lambda n: n.to_bytes(4, "big") + b"\x40" + bytes(11),
    ],
)
def test_sample_is_as_large_as_asked_for_whatever_the_ids_look_like(fraction: float, make: object) -> None:
    sample = Sample(fraction)

    hits = sum(make(n) in sample for n in range(COUNT))  # type: ignore[operator]

    deviation = (COUNT * fraction * (1 - fraction)) ** 0.5
    assert abs(hits - COUNT * fraction) < 5 * deviation


def test_larger_sample_keeps_what_a_smaller_one_does() -> None:
    ids = [n.to_bytes(16, "big") for n in range(COUNT)]
    small, large = ({each for each in ids if each in Sample(fraction)} for fraction in (0.1, 0.3))

    assert small < large


def test_bounds_are_nothing_and_everything() -> None:
    ids = [bytes(16), bytes(8) + (0xE220A8397B1DCDAF).to_bytes(8, "big"), b"\xff" * 16]

    assert [False] * 3 == [each in Sample(0) for each in ids]
    assert [True] * 3 == [each in Sample(1) for each in ids]
    assert [False, True, False] == [each in Sample(2**-53) for each in ids]  # the mix of one of them is 0


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_what_is_no_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(AssertionError, match=r"0 \.\. 1"):
        Sample(fraction)


def test_verdicts_are_the_same_when_they_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [n.to_bytes(16, "big") for n in range(50)]
    expected = [each in Sample(0.5) for each in ids]
    monkeypatch.setattr(module, "KNOWN_MAX", 7)
    sample = Sample(0.5)

    assert [expected] * 2 == [[each in sample for each in ids] for _ in range(2)]
    assert len(sample._known) <= 7
