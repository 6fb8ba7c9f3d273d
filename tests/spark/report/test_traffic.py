"""Where the frames went: map, losses, loops, talkers."""

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.pipeline.report.digest import NO_RECORD, Listing
from broker.pipeline.report.page import cycle_of, incidents, loops_section, losses_section, map_section
from tests.support.reported import digest


def test_the_map_is_wide_and_narrow_with_its_table_and_its_losses() -> None:
    html = map_section(digest())

    assert all(f'class="scroll {kind}"' in html for kind in ("wide", "narrow"))
    assert "Links as a table" in html
    assert "of what left for it" in html
    assert f"{digest().extent.lost:,} frames of all kinds, not messages alone, were lost on links." in html


def test_of_links_to_an_instance_without_records_no_loss_is_told() -> None:
    gone = f"{NO_RECORD}tcp://gone:1"
    one = replace(digest().stations.rows[0], instance=gone), digest().links.rows[0]
    one = one[0], replace(one[1], to_instance=gone, lost=0, unrecorded=one[1].frames)

    html = map_section(replace(digest(), stations=Listing(one[:1], 1), links=Listing(one[1:], 1)))

    assert "not known</span>" in html
    assert 2 == html.count('<td class="number">–</td>')  # noqa: RUF001 - lost, and its share


def test_sums_are_not_those_of_the_rows_that_are_shown() -> None:
    extent = replace(digest().extent, lost=9_876, looped=900)
    more = replace(digest(), extent=extent, loops=replace(digest().loops, total=201))

    assert "9,876 transmissions left for an instance that keeps a journal" in losses_section(more)
    assert "9,876 frames" in map_section(more)
    assert "900 frames came to a gateway again, in at least 1 circle" in loops_section(more)


def test_frames_in_one_circle_are_one_entry_however_they_ended() -> None:
    one = digest().loops.rows[0]
    other = replace(one, path=("far", one.path[2], one.path[1], one.path[2]), frames=2, end="lost", reason=None)

    html = loops_section(digest())
    both = loops_section(replace(digest(), loops=Listing((one, other), 2), extent=replace(digest().extent, looped=50)))

    assert "48 frames came to a gateway again, in 1 circle" in html
    assert 3 == html.count('class="again"')
    assert "50 frames came to a gateway again, in 1 circle" in both
    assert "48 dropped: hops exhausted, 2 lost" in both


def test_incidents_in_one_circle_are_listed_one_by_one() -> None:
    """An hour lies between them; the second has two ways that overlap."""
    one = digest().loops.rows[0]
    assert one.first_at is not None
    assert one.last_at is not None
    later, last = one.first_at + timedelta(hours=1), one.last_at + timedelta(hours=1)
    other = replace(one, frames=5, first_at=later, last_at=last)
    third = replace(other, path=(*one.path, one.path[1]), frames=2, last_at=last + timedelta(minutes=3))

    html = loops_section(replace(digest(), loops=Listing((one, other, third), 3)))

    assert [(one.first_at, one.last_at, 48), (later, last + timedelta(minutes=3), 7)] == incidents([third, other, one])
    assert 2 == html.count(" UTC</li>")


@pytest.mark.parametrize(
    ("path", "circle"),
    [
        ("sbaba", "ab"),
        ("sabab", "ab"),
        ("scabc", "abc"),
        ("sxabcabcx", "abc"),
        ("saa", "a"),
        ("sas", "as"),
        ("abc", "abc"),
    ],
)
def test_the_circle_of_a_way_is_the_same_wherever_it_was_entered(path: str, circle: str) -> None:
    assert tuple(circle) == cycle_of(tuple(path))


def test_what_left_too_late_to_be_called_lost_is_mentioned() -> None:
    extent = replace(digest().extent, under_way=3)

    for lossy in (digest().losses, Listing()):
        found = replace(digest(), losses=lossy, extent=extent)
        assert "Of 3 transmissions it is not known yet" in losses_section(found)
        assert "Of 3 transmissions it is not known yet" in map_section(found)


def test_that_no_loss_is_known_does_not_stand_alone_where_records_are_missing() -> None:
    found = replace(digest(), losses=Listing(), extent=replace(digest().extent, lost=0, unrecorded=204))

    for section in (map_section, losses_section):
        assert "Of 204 transmissions an instance that they went to has no record." in section(found)
