"""
The traffic map: instances as boxes in columns from initiators to targets, links as lanes between them.

A lane is as wide as its share of the frames, and traffic keeps to the right, so the two directions of a link lie next
to each other. The columns follow the positions of instances on the paths through them; within a column instances are
put near their neighbours. The same input gives the same map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.config.units import count, duration, share, size
from broker.pipeline.report.digest import NO_RECORD, LinkRow, StationRow
from broker.pipeline.report.markup import Html, element

MAP_MAX = 60  # instances that are drawn
_SWEEPS = 6
_SPREAD = 0.17  # of the way: instances that lie this near are one column
_COLUMNS_MAX = 5  # of gateways
_LABELLED_MAX = 12
_SICK = 0.01  # share of frames lost at which a link is shown as bad


@dataclass(frozen=True, slots=True)
class Format:
    """The sizes of a map, in CSS pixels."""

    width: float
    box_min: float
    box_max: float
    box_height: float
    pitch: float
    gap: float
    lane_max: float
    character: float  # width of one, about
    least_scale: float  # of its width that it may shrink to; where there is less room it scrolls
    has_figures: bool


# The widest map, seven columns, fits a window of 1000: its text of 11 and 13 pixels is then 8 and 9.4.
WIDE = Format(960.0, 120.0, 190.0, 44.0, 58.0, 70.0, 12.0, 8.0, 0.72, has_figures=True)
NARROW = Format(330.0, 60.0, 120.0, 40.0, 50.0, 22.0, 7.0, 7.4, 1.0, has_figures=False)


@dataclass(frozen=True, slots=True)
class _Box:
    column: int
    x: float
    y: float  # its middle
    width: float


def columns(stations: Sequence[StationRow], links: Sequence[LinkRow]) -> list[list[str]]:
    """The names by column, from top to bottom."""
    ends = [one for one in stations if 2 * one.ends >= one.frames]
    gateways = sorted(
        (one for one in stations if 2 * one.ends < one.frames), key=lambda one: (one.position, one.instance)
    )
    left = sorted(one.instance for one in ends if one.position < 0.5)
    right = sorted(one.instance for one in ends if one.position >= 0.5)
    found = [column for column in (left, *_clusters(gateways), right) if column]
    weights = {(one.from_instance, one.to_instance): one.frames + one.lost for one in links}
    for sweep in range(_SWEEPS):
        order = range(1, len(found)) if sweep % 2 == 0 else range(len(found) - 2, -1, -1)
        for here in order:
            _sort_near(found[here], found[here - 1 if sweep % 2 == 0 else here + 1], weights)
    return found


def traffic_map(stations: Sequence[StationRow], links: Sequence[LinkRow], form: Format, transmissions: int) -> Html:
    """Return the map as SVG: the `MAP_MAX` instances with most frames, and the links between them."""
    stations = stations[:MAP_MAX]
    known = {one.instance: one for one in stations}
    links = [
        one
        for one in links
        if one.from_instance in known and one.to_instance in known and one.from_instance != one.to_instance
    ]
    boxes, width, height = _places(columns(stations, links), form)
    ports = _ports(boxes, links, form)
    within = [(boxes[one.from_instance], boxes[one.to_instance]) for one in links]
    whole = max([width, *(a.x + a.width + _bow(a, b, form) for a, b in within if a.column == b.column)])
    most = max((one.frames for one in links), default=1) or 1
    lanes = [_lane(one, boxes, ports, most, form) for one in sorted(links, key=lambda one: one.frames)]
    words = f"Traffic map: {len(stations)} instances, {len(links)} links; the tables below have the same figures"
    return element(
        "svg",
        element("title", "Traffic map"),
        element("desc", words),
        element("g", *lanes, class_="lanes"),
        *(_loss(link, boxes, ports, most, form) for link in (_worst(links) if form.has_figures else ())),
        *(_station(known[instance], box, form, transmissions) for instance, box in boxes.items()),
        viewBox=f"0 0 {whole:.0f} {height:.0f}",
        style=f"min-width:{width * form.least_scale:.0f}px",
        role="img",
        aria_label=words,
        class_="map",
    )


def health(link: LinkRow) -> str:
    """A link's state as the class of its colour."""
    if not link.lost:
        return "unknown" if link.is_unknown else "well"
    return "sick" if link.lost > _SICK * (link.frames + link.lost) else "ailing"


def _clusters(gateways: Sequence[StationRow]) -> list[list[str]]:
    """Group gateways by their positions on their paths; wider columns rather than too many."""
    spread = _SPREAD
    while True:
        found: list[list[StationRow]] = []
        for one in gateways:
            if found and one.position - found[-1][0].position <= spread:
                found[-1].append(one)
            else:
                found.append([one])
        if len(found) <= _COLUMNS_MAX:
            return [sorted(one.instance for one in column) for column in found]
        spread *= 1.5


def _sort_near(column: list[str], other: Sequence[str], weights: Mapping[tuple[str, str], int]) -> None:
    """Sort a column by the middle of its neighbours in another one; an instance without any stays about where it is."""
    middles = {}
    for place, name in enumerate(column):
        pulls = [weights.get((name, far), 0) + weights.get((far, name), 0) for far in other]
        whole = sum(pulls)
        own = (place + 0.5) / len(column)
        middles[name] = (
            sum(pull * (rank + 0.5) for rank, pull in enumerate(pulls)) / whole / len(other) if whole else own
        )
    column.sort(key=lambda name: (round(middles[name], 9), name))


def _places(found: Sequence[Sequence[str]], form: Format) -> tuple[dict[str, _Box], float, float]:
    """Boxes by name, and the width and height of all."""
    number = max(1, len(found))
    box = min(form.box_max, max(form.box_min, (form.width - form.gap * (number - 1)) / number))
    width = max(form.width, number * box + (number - 1) * form.gap)
    step = (width - box) / max(1, number - 1)
    height = form.pitch * max((len(column) for column in found), default=1) + 8
    return (
        {
            name: _Box(place, place * step, height * (rank + 0.5) / len(column), box)
            for place, column in enumerate(found)
            for rank, name in enumerate(column)
        },
        width,
        height,
    )


def _ports(boxes: Mapping[str, _Box], links: Sequence[LinkRow], form: Format) -> dict[tuple[str, str], float]:
    """At which height the link to a neighbour begins, by name and neighbour."""
    neighbours: dict[tuple[str, bool], set[str]] = {}
    for one in links:
        for name, far in ((one.from_instance, one.to_instance), (one.to_instance, one.from_instance)):
            is_right = boxes[far].column >= boxes[name].column
            neighbours.setdefault((name, is_right), set()).add(far)
    found = {}
    for (name, _), fars in neighbours.items():
        ordered = sorted(fars, key=lambda far: (boxes[far].y, far))
        for rank, far in enumerate(ordered):
            off = ((rank + 0.5) / len(ordered) - 0.5) * form.box_height * 0.8
            found[name, far] = boxes[name].y + off
    return found


def _lane(
    link: LinkRow, boxes: Mapping[str, _Box], ports: Mapping[tuple[str, str], float], most: int, form: Format
) -> Html:
    start, end = boxes[link.from_instance], boxes[link.to_instance]
    width, side = _keeping_right(link, start, end, most, form)
    y1, y2 = ports[link.from_instance, link.to_instance] + side, ports[link.to_instance, link.from_instance] + side
    if start.column == end.column:
        x = start.x + start.width
        bow = x + _bow(start, end, form) - side
        path = f"M{x:.1f} {y1:.1f}C{bow:.1f} {y1:.1f} {bow:.1f} {y2:.1f} {x:.1f} {y2:.1f}"
    else:
        x1 = start.x + (start.width if side > 0 else 0)
        x2 = end.x + (0 if side > 0 else end.width)
        middle = (x1 + x2) / 2
        path = f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    gone = f"{count(link.lost).text} lost ({share(link.lost, link.frames + link.lost).text})"
    words = (
        f"{link.from_instance} to {link.to_instance}: {count(link.frames).text} frames, {size(link.bytes).text},"
        f" p95 {duration(link.transit.p95).text} of {count(link.transit.measured).text},"
        f" {'losses not known' if link.is_unknown else gone}"
    )
    return element("g", element("title", words), element("path", d=path, stroke_width=width, class_=health(link)))


def _keeping_right(link: LinkRow, start: _Box, end: _Box, most: int, form: Format) -> tuple[float, float]:
    """The width of a lane, and how far its middle is off that of both directions: traffic keeps to the right."""
    width = max(1.5, form.lane_max * link.frames / most)
    goes_right = end.column > start.column or (end.column == start.column and end.y > start.y)
    return width, (width / 2 + 0.75) * (1 if goes_right else -1)


def _bow(start: _Box, end: _Box, form: Format) -> float:
    """How far a lane within a column stands out: the farther its ends are apart, the more, so that it goes round."""
    return min(form.gap, 36.0) * min(0.7 + 0.5 * abs(start.y - end.y) / form.pitch, 3.0)


def _worst(links: Sequence[LinkRow]) -> list[LinkRow]:
    """The links that lost the greatest part; only so many, or the map is all words."""
    lossy = [one for one in links if one.lost]
    return sorted(lossy, key=lambda one: -one.lost / (one.frames + one.lost))[:_LABELLED_MAX]


def _loss(
    link: LinkRow, boxes: Mapping[str, _Box], ports: Mapping[tuple[str, str], float], most: int, form: Format
) -> Html:
    """Label the lane with the loss, on its outer side: colour alone must not be what shows the state of a link."""
    start, end = boxes[link.from_instance], boxes[link.to_instance]
    y = (ports[link.from_instance, link.to_instance] + ports[link.to_instance, link.from_instance]) / 2
    width, side = _keeping_right(link, start, end, most, form)
    off = side + (width / 2 + 12 if side > 0 else -width / 2 - 4)
    x = (start.x + end.x + start.width) / 2 if start.column != end.column else start.x + start.width + 24
    return element(
        "text", share(link.lost, link.frames + link.lost).text, x=x, y=y + off, class_=f"loss {health(link)}"
    )


def _station(station: StationRow, box: _Box, form: Format, transmissions: int) -> Html:
    here, gone, title, state = station.residence, station.dropped + station.lost, station.instance, ""
    p95, measured = f"p95 {duration(here.p95).text}", f"{count(here.measured).text} measured"
    second = p95 if 2 * here.measured >= station.frames else measured
    words = (
        f"{station.instance}: {count(station.frames).text} frames, {size(station.bytes).text},"
        f" residence p50 {duration(here.p50).text}, {p95}, p99 {duration(here.p99).text}, {measured},"
        f" {count(station.dropped).text} dropped here, {count(station.lost).text} lost on their way from here"
    )
    if gone:
        how = " or ".join(["dropped"] * bool(station.dropped) + ["lost"] * bool(station.lost))
        second, state = f"{count(gone).text} {how}", " sick" if gone > _SICK * station.frames else " ailing"
    if station.is_unknown:
        address, state = station.instance.removeprefix(NO_RECORD), " unknown"
        title, second = address.removeprefix("tcp://"), share(station.frames, transmissions).text
        words = (
            f"{count(station.frames).text} frames, {second} of all transmissions, went to an instance of which there"
            f" are no records, reached at {address}"
        )
    second = second if form.has_figures else ""
    middle, line = box.width / 2, form.box_height / 2
    lines = [
        element("text", _cut(title, box.width, form), x=middle, y=line - 4, class_="title"),
        element(
            "text",
            count(station.frames).text,
            " · " if second else None,
            element("tspan", second, class_=state.strip()) if gone else second,
            x=middle,
            y=line + 12,
        ),
    ]
    inner = element("rect", x=0.5, y=0.5, width=box.width - 1, height=form.box_height - 1, rx=8)
    return element(
        "svg",
        element("title", words),
        inner,
        *lines,
        x=box.x,
        y=box.y - form.box_height / 2,
        width=box.width,
        height=form.box_height,
        class_=f"station{state}",
    )


def _cut(text: str, width: float, form: Format) -> str:
    """As much of a name as fits, beginning and end: names differ by their ends. Its tooltip has all of it."""
    most = max(5, int((width - 8) / form.character))
    head = most // 2 - 1
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"
