"""Numbers for people are read back as written, are short, and never say more or less than they mean."""

from __future__ import annotations

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
    assert seconds == parse_duration(text) == parse_duration(render_duration(seconds))


@pytest.mark.parametrize(
    "text", ["", "10", "s", "10 s", "-1s", "1S", "1w", "1e3s", ".5s", "1.s", "1sec", "٣s", "9" * 99]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "64 MiB", "64mib", "1TiB", "1.5MiB", "-1", "B", "MiB", "٣", "9" * 99])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 10**14))
def test_every_number_of_milliseconds_survives_writing_and_reading(milliseconds: int) -> None:
    seconds = parse_duration(f"{milliseconds % 10**12}ms")

    assert seconds == parse_duration(render_duration(seconds))


@given(st.integers(0, 10**17))
def test_every_size_survives_writing_and_reading(count: int) -> None:
    assert count == parse_size(render_size(count))


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_000, "1 ms"),
        (12_345, "12.3 ms"),
        (999_999, "1,000 ms"),
        (1_500_000, "1.5 s"),
        (119_000_000, "119 s"),
        (120_000_000, "2 min"),
        (7_200_000_000, "2 h"),
        (-2_000, "-2 ms"),
    ],
)
def test_durations_have_three_digits_and_a_unit(microseconds: int, text: str) -> None:
    assert text == duration(microseconds).text


@pytest.mark.parametrize(("octets", "text"), [(0, "0 B"), (1_023, "1,023 B"), (1_536, "1.5 KiB"), (1 << 31, "2 GiB")])
def test_sizes_are_in_powers_of_1024(octets: int, text: str) -> None:
    assert text == size(octets).text


@pytest.mark.parametrize(("number", "text"), [(9_999, "9,999"), (10_000, "10 k"), (1_234_567, "1.23 M")])
def test_counts_are_whole_below_ten_thousand(number: int, text: str) -> None:
    assert text == count(number).text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0 %"),
        (1, 3, "33.3 %"),
        (1, 10**6, "< 0.01 %"),
        (999_999, 10**6, "> 99.99 %"),
        (5, 5, "100 %"),
        (1, 0, UNKNOWN),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(part: int, whole: int, text: str) -> None:
    assert text == share(part, whole).text


def test_the_exact_figure_stands_beside_a_rounded_one_only() -> None:
    assert [Quantity("1.23 s", "1,234,567 µs"), Quantity("7 µs", "")] == [duration(1_234_567), duration(7)]


def test_what_nobody_knows_is_a_dash() -> None:
    assert {UNKNOWN} == {quantity(None).text for quantity in (duration, size, count, instant)}


def test_an_instant_is_told_in_utc() -> None:
    there = datetime(2026, 3, 1, 1, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))

    assert Quantity("2026-03-01 00:00:00", "2026-03-01 00:00:00.000005 UTC") == instant(there)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(minutes=5), "04:05:06"),
        (timedelta(hours=2), "04:05"),
        (timedelta(days=1), "02 Mar 04:05"),
        (timedelta(days=9), "02 Mar"),
    ],
)
def test_marks_of_an_axis_are_no_finer_than_it_is_long(span: timedelta, text: str) -> None:
    assert text == clock(datetime(2026, 3, 2, 4, 5, 6, tzinfo=UTC), span=span)


def test_a_noun_follows_its_number() -> None:
    assert ["1 link", "2 links", "0 ways"] == [plural(1, "link"), plural(2, "link"), plural(0, "way", "ways")]
