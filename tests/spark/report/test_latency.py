"""Time and room: latency, drops, failovers, capacity."""

from __future__ import annotations

from dataclasses import replace

from broker.pipeline.report.digest import Hold, Journey, Listing, Series, Spread
from broker.pipeline.report.latency import capacity_section, drops_section, failovers_section, latency_section
from tests.support.reported import AXIS, FIRST, digest


def test_latency_is_told_end_to_end_by_instance_link_and_route() -> None:
    html = latency_section(digest())

    for title in ("End to end, by service", "At each instance", "On each link", "By route"):
        assert title in html
    assert "worst p99" in html


def test_a_latency_that_nobody_knows_is_no_zero() -> None:
    unknown = replace(digest(), journeys=Listing((Journey("a", "b", 1, Spread()),), 1))

    html = latency_section(unknown)

    assert '<span class="faint">unknown</span>' in html


def test_a_route_without_a_name_is_told_in_words() -> None:
    use = replace(digest().routes.rows[0], route=None, worst_p99=None)

    html = latency_section(replace(digest(), routes=Listing((use,), 1)))

    assert "delivered here or no route" in html


def test_drops_have_their_reason_code_and_time() -> None:
    html = drops_section(digest())

    assert "pool limit exceeded" in html
    assert "11289" in html
    assert 3 == html.count("<svg")
    assert "Drops as a table" in html


def test_the_table_of_drops_has_the_times_at_which_there_were_any() -> None:
    points = tuple(7 if bucket == 4 else 0 for bucket in range(AXIS.buckets))

    html = drops_section(replace(digest(), drops=(Series("no route", points),)))

    assert 1 == html.count("2026-11-21 07:00:00</span></th>")
    assert "2026-11-21 06:45:00</span></th>" not in html


def test_failovers_are_by_instance() -> None:
    html = failovers_section(digest())

    assert "gateway-north" in html
    assert "times a frame left by another next hop" in html


def test_capacity_tells_the_recommendation_and_little_headroom() -> None:
    hold = Hold("gate", (100,) * AXIS.buckets, 100, 3, 50, FIRST, 4 << 20, 0.1)

    html = capacity_section(replace(digest(), holds=Listing((hold,), 1)))

    assert "4 MiB" in html
    assert '<span class="bad">10 % headroom</span>' in html


def test_an_instance_that_forwards_nothing_is_recommended_no_pool() -> None:
    """What it drops was held for a moment; a size that is made of that would be read as advice."""
    end = next(one.instance for one in digest().stations.rows if one.frames == one.ends)
    hold = Hold(end, (100,) * AXIS.buckets, 100, 3, 50, FIRST, 4 << 20, 0.1)

    html = capacity_section(replace(digest(), holds=Listing((hold,), 1)))

    assert "4 MiB" not in html
    assert "headroom</span>" not in html
    assert "Instances that forwarded nothing need no pool" in html
    assert "need no pool" not in capacity_section(digest())


def test_capacity_without_the_size_of_the_pool_tells_no_headroom() -> None:
    hold = Hold("gate", (100,) * AXIS.buckets, 100, 3, 50, FIRST, 4 << 20, None)

    html = capacity_section(replace(digest(), holds=Listing((hold,), 1)))

    assert "% headroom" not in html
