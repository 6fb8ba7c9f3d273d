"""Time and capacity: latency, drops, failovers, the pool."""

from dataclasses import replace
from datetime import timedelta

from broker.pipeline.report.digest import Gap, Hold, Journey, Listing, Series, Spread
from broker.pipeline.report.page import capacity_section, drops_section, latency_section, overview
from tests.support.reported import AXIS, FIRST, digest


def held(instance: str = "gate", headroom: float | None = 0.1) -> str:
    """The section on capacity when one instance held something."""
    hold = Hold(instance, (100,) * AXIS.buckets, 100, 3, 50, FIRST, 4 << 20, headroom)
    return capacity_section(replace(digest(), holds=Listing((hold,), 1)))


def test_percentiles_have_the_number_of_frames_that_they_are_of() -> None:
    gate = replace(digest().stations.rows[0], frames=210, residence=Spread(1, 2, 3, 6))

    assert "6 of 210" in latency_section(replace(digest(), stations=Listing((gate,), 1)))


def test_no_time_at_all_is_in_words_and_off_the_axis() -> None:
    """A gateway passes most frames on in the pass that read them."""
    gate = replace(digest().stations.rows[0], residence=Spread(0, 0, 20_000))

    html = latency_section(replace(digest(), stations=Listing((gate,), 1), links=Listing(), routes=Listing()))

    assert "p50 at once, p95 at once, p99 20 ms" in html
    assert "“At once”: in the same pass" in html
    assert "0 µs<" not in html


def test_drops_have_reason_code_plot_and_the_times_with_any() -> None:
    points = tuple(7 if bucket == 4 else 0 for bucket in range(AXIS.buckets))

    html = drops_section(digest())
    one = drops_section(replace(digest(), drops=(Series("no route", points),)))

    assert all(words in html for words in ("pool limit exceeded", "11289", "Drops as a table"))
    assert 3 == html.count("<svg")
    assert 1 == one.count("2026-11-21 07:00:00</span></th>")
    assert "2026-11-21 06:45:00</span></th>" not in one


def test_capacity_has_the_recommendation_and_the_headroom_if_known() -> None:
    assert "4 MiB" in held()
    assert '<span class="bad">10 % headroom</span>' in held()
    assert "% headroom" not in held(headroom=None)


def test_times_in_which_an_instance_has_no_record_of_what_it_got_are_grey() -> None:
    """Not those in which nothing is known to have gone to it, nor on the plot of another instance."""
    begin = round(FIRST.timestamp()) * 1_000_000
    lost, idle = (begin - 1, begin + 3_600_000_000), (begin + 7_200_000_000, begin + 9_000_000_000)
    gaps = Listing((Gap("gate", 204, FIRST, FIRST + timedelta(seconds=1)), Gap("other", 1, FIRST, FIRST)), 2)
    facts = replace(digest().facts, holes={"gate": [lost, idle]})
    hold = Hold("gate", (100,) * AXIS.buckets, 100, 3, 50, FIRST, 4 << 20, None)
    found = replace(digest(), gaps=gaps, facts=facts, holds=Listing((hold, replace(hold, instance="other")), 2))

    for section in (capacity_section, overview):
        assert 1 == section(found).count('class="dark"')
        assert "is grey" in section(found)
        assert "is grey" not in section(digest())


def test_an_instance_that_forwards_nothing_is_recommended_no_pool() -> None:
    end = next(one.instance for one in digest().stations.rows if one.frames == one.ends)

    html = held(end)

    assert "4 MiB" not in html
    assert "headroom</span>" not in html
    assert "Instances that forwarded nothing need no pool" in html
    assert "need no pool" not in capacity_section(digest())


def test_unknown_latency_and_route_are_words() -> None:
    use = replace(digest().routes.rows[0], route=None, worst_p99=None)
    unknown = replace(digest(), journeys=Listing((Journey("a", "b", 1, Spread()),), 1), routes=Listing((use,), 1))

    html = latency_section(unknown)

    assert '<span class="faint">unknown</span>' in html
    assert "delivered here or no route" in html
