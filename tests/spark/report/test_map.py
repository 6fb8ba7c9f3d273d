"""The traffic map: instances in columns, links between them."""

import re
from dataclasses import replace

import pytest

from broker.pipeline.report.digest import NO_RECORD, LinkRow, Spread, StationRow
from broker.pipeline.report.map import NARROW, WIDE, Format, columns, health, traffic_map

SPREAD = Spread(1, 2, 3, 100)


def station(instance: str, position: float, *, is_end: bool = False, dropped: int = 0) -> StationRow:
    return StationRow(instance, 100, 1_000, 100 if is_end else 0, position, dropped, SPREAD)


def link(here: str, there: str, frames: int = 100, lost: int = 0, unrecorded: int = 0) -> LinkRow:
    return LinkRow(here, there, frames, 1_000, lost, SPREAD, unrecorded)


def test_columns_go_from_initiators_over_gateways_to_targets() -> None:
    stations = [
        station("target", 0.9, is_end=True),
        station("core", 0.66),
        station("edge-2", 0.33),
        station("edge-1", 0.35),
        station("source", 0.1, is_end=True),
    ]
    many = columns([station(f"g{n:02}", n / 40) for n in range(40)], [])

    assert [["source"], ["edge-1", "edge-2"], ["core"], ["target"]] == columns(stations, [])
    assert len(many) <= 5
    assert 40 == sum(map(len, many))


def test_a_link_is_sick_when_it_loses_more_than_one_in_a_hundred_and_unknown_without_most_records() -> None:
    """By how many frames were lost, and of how many one end has no record."""
    states = {
        (0, 0): "well",
        (1, 0): "ailing",
        (2, 0): "sick",
        (0, 50): "well",
        (0, 51): "unknown",
        (2, 98): "sick",
    }

    assert states == {(lost, unrecorded): health(link("a", "b", 100, lost, unrecorded)) for lost, unrecorded in states}


@pytest.mark.parametrize("form", [WIDE, NARROW])
def test_lanes_are_as_wide_as_their_traffic(form: Format) -> None:
    stations = [station("a", 0, is_end=True), station("b", 1, is_end=True)]

    svg = traffic_map(stations, [link("a", "b", 1_000), link("b", "a", 500)], form, 100)

    found = sorted(float(width) for width in re.findall(r'stroke-width="([\d.]+)"', svg))
    assert [form.lane_max / 2, form.lane_max] == found


def test_the_map_has_names_figures_and_losses() -> None:
    stations = [station("<b>", 0, is_end=True, dropped=3), station("b", 1, is_end=True)]

    svg = traffic_map(stations, [link("<b>", "b", 97, 3)], WIDE, 100)

    for words in ("&lt;b&gt;: 100 frames", "3 dropped", "&lt;b&gt; to b: 97 frames", ">3 %</text>"):
        assert words in svg
    assert "<b>" not in svg


def test_the_losses_of_a_link_are_beside_its_lanes() -> None:
    stations = [station("a", 0, is_end=True), station("b", 1, is_end=True)]

    svg = traffic_map(stations, [link("a", "b", 97, 3), link("b", "a", 96, 4)], WIDE, 100)

    there, back = sorted(float(y) for y in re.findall(r' y="([\d.]+)" class="loss', svg))
    lanes = [float(y) for y in re.findall(r' d="M[\d.]+ ([\d.]+)C', svg)]
    assert there < min(lanes) - WIDE.lane_max / 2
    assert back - 8 > max(lanes) + WIDE.lane_max / 2


def test_an_instance_without_records_has_a_look_of_its_own() -> None:
    gone = f"{NO_RECORD}tcp://127.0.0.1:4020"
    stations = [station("a", 0, is_end=True), station(gone, 0.5), station("b", 1, is_end=True)]

    svg = traffic_map(stations, [link("a", gone, unrecorded=100), link(gone, "b", unrecorded=100)], WIDE, 400)

    assert 1 == svg.count('class="station unknown"')
    assert "of which there are no records, reached at tcp://127.0.0.1:4020" in svg
    assert ">127.0.0.1:4020</text>" in svg
    assert ">100 · 25 %</text>" in svg
    assert 2 == svg.count('class="unknown"')
    assert "lost (" not in svg


def test_a_percentile_of_few_frames_is_not_beside_the_number_of_all() -> None:
    few = replace(station("gate", 0.5), frames=210, residence=Spread(1, 2, 3, 6))

    svg = traffic_map([few], [], WIDE, 210)

    assert ">210 · 6 measured</text>" in svg
    assert "p99 3 µs, 6 measured" in svg


def test_lanes_within_a_column_do_not_lie_on_one_another() -> None:
    """The farther apart the instances are, the farther out is the lane; and the two directions differ."""
    stations = [station(f"g{place}", 0.5) for place in range(3)]
    links = [link(one, other) for one, other in (("g0", "g1"), ("g1", "g0"), ("g1", "g2"), ("g0", "g2"), ("g2", "g0"))]

    svg = traffic_map(stations, links, WIDE, 100)

    paths = re.findall(r' d="M[\d.]+ ([\d.]+)C([\d.]+) [\d.]+ [\d.]+ ([\d.]+) ', svg)
    assert 5 == len(paths) == len({(min(a, b), max(a, b)) for a, _, b in paths})
    assert len({bow for _, bow, _ in paths}) >= 4


def test_links_to_instances_that_are_not_drawn_are_left_out() -> None:
    svg = traffic_map([station("a", 0, is_end=True)], [link("a", "elsewhere"), link("a", "a")], WIDE, 100)

    assert "stroke-width" not in svg
