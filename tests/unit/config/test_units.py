"""Numbers for people are read back as written, are short, and never say more or less than they mean."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.units import (
    UNKNOWN,
    Quantity,
    clock,
    count,
    duration,
    instant,
    parse_duration,
    parse_size,
    plural,
    render_duration,
    render_size,
    share,
    size,
)

DURATIONS = {"250ms": 0.25, "10s": 10.0, "5m": 300.0, "1h": 3600.0, "7d": 604800.0, "0s": 0.0, "8ms": 0.008}
FRACTIONS = {"1.5s": 1.5, "90s": 90.0, "0.5ms": 0.0005}
SIZES = {
    "64MiB": 64 << 20,
    "512KiB": 512 << 10,
    "3GiB": 3 << 30,
    "10MB": 10**7,
    "7KB": 7000,
    "5GB": 5 * 10**9,
    "65537": 65537,
    "0": 0,
}


def test_durations_and_sizes_are_read_and_written_alike() -> None:
    assert DURATIONS == {text: parse_duration(text) for text in DURATIONS}
    assert SIZES == {text: parse_size(text) for text in SIZES}
    assert list(DURATIONS) == [render_duration(seconds) for seconds in DURATIONS.values()]
    assert list(SIZES) == [render_size(octets) for octets in SIZES.values()]
    assert list(FRACTIONS.values()) == [parse_duration(text) for text in FRACTIONS]
    assert list(FRACTIONS.values()) == [parse_duration(render_duration(one)) for one in FRACTIONS.values()]


def test_what_is_no_duration_or_no_size_is_refused() -> None:
    for text in ("", "10", "s", "10 s", "-1s", "1S", "1w", "1e3s", ".5s", "1.s", "1sec", "٣s", "9" * 99):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
    for text in ("", "64 MiB", "64mib", "1TiB", "1.5MiB", "-1", "B", "MiB", "٣", "9" * 99):
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(text)


@given(st.integers(0, 10**14), st.integers(0, 10**17))
def test_every_number_survives_writing_and_reading(milliseconds: int, octets: int) -> None:
    seconds = parse_duration(f"{milliseconds % 10**12}ms")

    assert (seconds, octets) == (parse_duration(render_duration(seconds)), parse_size(render_size(octets)))


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (duration(0), "at once"),
        (duration(12_345), "12.3 ms"),
        (duration(999_999), "1,000 ms"),
        (duration(119_000_000), "119 s"),
        (duration(120_000_000), "2 min"),
        (duration(-2_000), "-2 ms"),
        (size(1_023), "1,023 B"),
        (size(1_536), "1.5 KiB"),
        (size(1 << 31), "2 GiB"),
        (count(9_999), "9,999"),
        (count(10_000), "10 k"),
        (count(1_234_567), "1.23 M"),
        (share(0, 5), "0 %"),
        (share(1, 3), "33.3 %"),
        (share(1, 10**6), "< 0.01 %"),
        (share(999_999, 10**6), "> 99.99 %"),
        (share(1, 0), UNKNOWN),
        *((unknown(None), UNKNOWN) for unknown in (duration, size, count, instant)),
    ],
)
def test_quantities_have_three_digits_and_a_unit(quantity: Quantity, text: str) -> None:
    assert text == quantity.text


def test_only_a_rounded_figure_has_the_exact_one() -> None:
    there = datetime(2026, 3, 1, 1, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))

    assert [Quantity("1.23 s", "1,234,567 µs"), Quantity("7 µs", "")] == [duration(1_234_567), duration(7)]
    assert Quantity("2026-03-01 00:00:00", "2026-03-01 00:00:00.000005 UTC") == instant(there)


@pytest.mark.parametrize(
    ("span", "text"),
    [(timedelta(minutes=5), "04:05:06"), (timedelta(days=1), "02 Mar 04:05"), (timedelta(days=9), "02 Mar")],
)
def test_marks_of_an_axis_are_no_finer_than_it_is_long(span: timedelta, text: str) -> None:
    assert text == clock(datetime(2026, 3, 2, 4, 5, 6, tzinfo=UTC), span=span)


def test_a_noun_follows_its_number() -> None:
    assert ["1 link", "2 links", "0 ways"] == [plural(1, "link"), plural(2, "link"), plural(0, "way", "ways")]
