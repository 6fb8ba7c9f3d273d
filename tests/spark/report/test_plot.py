"""Plots show what the figures say."""

import re
from datetime import UTC, datetime

from broker.pipeline.report.digest import Hold, Series, Spread, Timeline
from broker.pipeline.report.markup import LogScale, bars, held, parts, shade

AXIS = Timeline(datetime(2026, 3, 1, 12, tzinfo=UTC), 300, 4)


def heights(svg: str) -> list[float]:
    """How high each step of the first path is."""
    [path] = re.findall(r'<path d="(M0[^"]*)"', svg)
    return [round(30 - float(y), 1) for y in re.findall(r"V([\d.]+)H", path)]


def test_the_axis_of_times_is_logarithmic_and_holds_all_of_them() -> None:
    scale = LogScale([Spread(10, 100, 1_000), Spread()])

    places = [scale.x(one) for one in (10, 100, 1_000)]
    assert 0 < places[0] < places[1] < places[2] < 100
    assert round(places[1] - places[0], 6) == round(places[2] - places[1], 6)
    assert ["10 µs", "100 µs", "1 ms"] == [words for _, words in scale.ticks]
    assert (0, scale.ticks) == (scale.x(0), LogScale([Spread(0, 10, 1_000)]).ticks)


def test_a_strip_has_its_percentiles_as_a_title() -> None:
    strip = LogScale([Spread(10, 100, 1_000)]).strip(Spread(10, 100, 1_000), "gate")

    assert "<title>gate: p50 10 µs, p95 100 µs, p99 1 ms</title>" in strip
    assert 'role="img"' in strip
    assert '<span class="faint">unknown</span>' == LogScale([]).strip(Spread(), "gate")


def test_bars_are_as_high_as_their_counts_and_none_vanishes() -> None:
    svg = bars(Series("no route", (0, 50, 100, 1)), AXIS, kind="drop")

    assert [0, 15, 30, 0.8] == heights(svg)
    assert "no route: 151 in all, at most 100 in 5 min, at 2026-03-01 12:10:00" in svg


def test_what_was_held_is_drawn_below_the_recommendation() -> None:
    svg = held(Hold("gate", (None, 512), 512, 1, 512, None, 1_024, None), ())

    assert [0, 13.9] == heights(svg)
    assert 'y1="2.2" y2="2.2" class="mark"' in svg
    assert "gate: at most 512 B held at once, 1 KiB recommended" in svg


def test_a_time_is_shaded_where_it_lies_on_the_axis() -> None:
    begin = round(AXIS.first_at.timestamp())

    [part, all_] = (shade(AXIS, start * 10**6, end * 10**6) for start, end in ((begin + 300, begin + 600), (-1, 2**40)))

    assert 'x="25" y="0" width="25" height="30" class="dark"' in part
    assert 'x="0" y="0" width="100"' in all_


def test_parts_fill_the_whole_and_the_least_of_them_is_seen() -> None:
    svg = parts([("delivered", 10**6, "good"), ("missing", 1, "bad"), ("under way", 0, "warn")], "sent")

    shares = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert 2 == len(shares)
    assert 99.8 < sum(shares) < 100.2
    assert shares[1] > 0.9
