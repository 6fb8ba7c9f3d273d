from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.units import parse_duration, parse_size, render_duration, render_size

DURATIONS = [
    ("250ms", 0.25),
    ("10s", 10.0),
    ("5m", 300.0),
    ("1h", 3600.0),
    ("7d", 604800.0),
    ("0s", 0.0),
    ("8ms", 0.008),
]
SIZES = [
    ("64MiB", 64 << 20),
    ("512KiB", 512 << 10),
    ("3GiB", 3 << 30),
    ("10MB", 10**7),
    ("7KB", 7000),
    ("5GB", 5 * 10**9),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_duration_is_read_and_written_alike(text: str, seconds: float) -> None:
    assert (seconds, text) == (parse_duration(text), render_duration(seconds))


@pytest.mark.parametrize(("text", "count"), [*SIZES, ("65537", 65537), ("0", 0)])
def test_size_is_read_and_written_alike(text: str, count: int) -> None:
    assert (count, text) == (parse_size(text), render_size(count))


@pytest.mark.parametrize(("text", "seconds"), [("1.5s", 1.5), ("90s", 90.0), ("0.5ms", 0.0005)])
def test_duration_may_have_a_fraction(text: str, seconds: float) -> None:
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "10 s", "-1s", "1S", "1w", "1e3s", ".5s", "1.s", "1sec", "٣s", "9" * 99]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "64 MiB", "64mib", "1TiB", "1.5MiB", "-1", "B", "MiB", "٣", "9" * 99])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@given(st.integers(0, 10**14))
def test_every_number_of_milliseconds_survives_writing_and_reading(milliseconds: int) -> None:
    seconds = parse_duration(f"{milliseconds % 10**12}ms")

    assert seconds == parse_duration(render_duration(seconds))


@given(st.integers(0, 10**17))
def test_every_size_survives_writing_and_reading(count: int) -> None:
    assert count == parse_size(render_size(count))


def test_a_fraction_of_a_millisecond_is_written_in_milliseconds() -> None:
    assert render_duration(0.0005) == "0.5ms"
