"""Sections on time and capacity: latency by service, hop and route, drops over time, failovers, the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from broker.config.units import Quantity, count, duration, instant, share, size
from broker.pipeline.report.digest import Digest, Hold, RouteUse, Series, Spread, Timeline
from broker.pipeline.report.markup import (
    Child,
    Column,
    Html,
    details,
    element,
    join,
    more,
    name,
    number,
    section,
    table,
    way,
)
from broker.pipeline.report.plot import LogScale, bars, held, legend, step_words, time_axis

_SHOWN = 12
_RANGES_MAX = 60  # rows of a table with strips
_CARDS = 12
_LITTLE_ROOM = 0.2  # of the pool


class _Range(NamedTuple):
    """A row of a table with strips; `use` is of a route."""

    label: Html
    frames: int
    spread: Spread
    use: RouteUse | None = None


def latency_section(digest: Digest) -> Html:
    """Return the section on how long it took: end to end, at instances, on links and by route, all on one axis."""
    if not (digest.stations.rows or digest.routes.rows):
        return section("latency", "Latency", "No time is known of any frame.")
    groups: list[tuple[str, str, str, str, str, list[_Range]]] = [
        (
            *("End to end, by service", "From leaving the sender to delivery, messages."),
            *("services", "messages", "Latency from service to service"),
            [_Range(way(one.from_service, one.to_service), one.messages, one.total) for one in digest.journeys.rows],
        ),
        (
            *("At each instance", "From arrival to leaving; at the sender, in the transmission queue."),
            *("instance", "frames", "Latency at each instance"),
            [_Range(name(one.instance), one.frames, one.residence) for one in digest.stations.rows],
        ),
        (
            *("On each link", "From leaving one instance to arriving at the next."),
            *("link", "frames", "Latency on each link"),
            [_Range(way(one.from_instance, one.to_instance), one.frames, one.transit) for one in digest.links.rows],
        ),
        (
            *("By route", "Frames at the instance with the route, in the typical window; with the worst window."),
            *("route", "frames", "Latency by route"),
            [_Range(_route(one), one.frames, one.typical, one) for one in digest.routes.rows],
        ),
    ]
    scale = LogScale([one.spread for *_, rows in groups for one in rows])
    lead = (
        "Each strip runs from the median over the 95th to the 99th percentile; all of them share one logarithmic axis."
    )
    content = [
        join([element("h3", title), element("p", words, class_="faint"), _ranges(what, counted, rows, scale, caption)])
        for title, words, what, counted, caption, rows in groups
        if rows
    ]
    key = legend(("middle", "p50"), ("body", "to p95"), ("tail", "to p99"))
    return section("latency", "Latency", lead, key, *content)


def drops_section(digest: Digest) -> Html:
    """Return the section on drops: of what, why and when."""
    axis = digest.timeline
    if axis is None or not digest.drops:
        return section("drops", "Drops by reason", "No drops: every frame was forwarded or delivered.")
    total = sum(one.total for one in digest.drops)
    lead = join([count(total), f" frames were dropped, in steps of {step_words(axis)}. Each line has its own height."])
    columns = [Column("reason"), number("code", is_aside=True), number("frames"), _plot(axis)]
    rows = [
        (one.label, str(digest.codes.get(one.label) or ""), count(one.total), bars(one, axis, kind="drop"))
        for one in digest.drops
    ]
    shown = table(columns, rows, caption="Drops by reason over time")
    return section("drops", "Drops by reason", lead, shown, details("Drops as a table", _counts(digest.drops, axis)))


def failovers_section(digest: Digest) -> Html:
    """Return the section on failovers: when frames of a dialog took another next hop than before."""
    axis, lines = digest.timeline, digest.failovers
    if axis is None or not lines:
        return section("failovers", "Failovers", "No failovers: the frames of a dialog kept their next hop.")
    words = " times a frame left by another next hop than the one before it in its dialog and direction."
    rows = [(name(one.label), count(one.total), bars(one, axis, kind="move")) for one in lines]
    columns = [Column("instance"), number("failovers"), _plot(axis)]
    shown = table(columns, rows, caption="Failovers by instance over time")
    lead = join([count(sum(one.total for one in lines)), words])
    return section("failovers", "Failovers", lead, shown, details("Failovers as a table", _counts(lines, axis)))


def _plot(axis: Timeline) -> Column:
    return Column(time_axis(axis), style="plot")


def capacity_section(digest: Digest) -> Html:
    """Return the section on the amounts held at once, and the pool that they need."""
    axis, holds = digest.timeline, digest.holds
    if axis is None or not holds.rows:
        return section("capacity", "Capacity", "No instance held a frame.")
    first = holds.rows[0]
    lead = join(
        [
            name(first.instance),
            " held the most at once: ",
            size(first.peak_bytes),
            ". The dashed line is the size recommended for ",
            element("code", "message_forward_size"),
            "; each instance has its own height.",
        ]
    )
    ends = {one.instance for one in digest.stations.rows if one.frames == one.ends}
    idle = {one.instance for one in holds.rows} & ends
    rows = [replace(one, recommended_bytes=None, headroom=None) if one.instance in idle else one for one in holds.rows]
    cards = element("div", *(_card(one, axis) for one in rows[:_CARDS] if one.peaks), class_="cards")
    words = "Instances that forwarded nothing need no pool, and none is recommended for them."
    return section(
        "capacity",
        "Capacity",
        lead,
        element("p", words, class_="faint") if idle else None,
        cards,
        details("Capacity as a table", _holds(rows)),
        more(len(holds.rows), holds.total),
    )


def _card(hold: Hold, axis: Timeline) -> Html:
    top = max(hold.peak_bytes, hold.recommended_bytes or 0, 1)
    room = None
    if hold.headroom is not None:
        words = f"{share(hold.headroom, 1).text} headroom"
        room = element("span", words, class_="bad" if hold.headroom < _LITTLE_ROOM else "good")
    figures = element(
        "p",
        element("span", "peak ", element("b", size(hold.peak_bytes))),
        element("span", "recommended ", element("b", size(hold.recommended_bytes))) if hold.recommended_bytes else None,
        room,
        class_="figures",
    )
    plot = held(hold.peaks, top=round(top * 1.08), recommended=hold.recommended_bytes, what=hold.instance)
    return element("figure", element("figcaption", name(hold.instance)), figures, plot, time_axis(axis), class_="card")


def _holds(holds: Sequence[Hold]) -> Html:
    columns = [
        *(Column("instance"), number("peak"), Column("at", is_aside=True), number("frames")),
        *(number("p99", is_aside=True), number("recommended"), number("headroom")),
    ]
    rows = (
        (
            name(one.instance),
            size(one.peak_bytes),
            instant(one.peak_at),
            count(one.peak_frames),
            size(one.p99_bytes),
            size(one.recommended_bytes),
            share(one.headroom, 1).text if one.headroom is not None else Quantity("–"),  # noqa: RUF001 - unknown
        )
        for one in holds
    )
    return table(columns, rows, caption="Frames and bytes that instances held at once")


def _route(one: RouteUse) -> Html:
    route = name(one.route, "delivered here or no route")
    table_name = element("span", " ", one.route_table, class_="faint") if one.route_table else None
    return join([name(one.instance), " · ", route, table_name])


def _ranges(what: str, counted: str, rows: Sequence[_Range], scale: LogScale, caption: str) -> Html:
    """Return a table with strips: the first rows, and all of them once it is opened by a click."""
    has_worst = rows[0].use is not None
    columns = [
        *(Column(what), Column(scale.header, style="plot"), number("p50", is_aside=True), number("p95")),
        number("p99", is_aside=True),
        *([number("worst p99", is_aside=True)] if has_worst else []),
        number(counted, is_aside=True),
    ]
    cells: list[tuple[Child, ...]] = [
        (
            one.label,
            scale.strip(one.spread, caption),
            *(duration(rank) for rank in (one.spread.p50, one.spread.p95, one.spread.p99)),
            *([_worst(one.use)] if has_worst else []),
            count(one.frames),
        )
        for one in rows
    ]
    others = cells[_SHOWN:_RANGES_MAX]
    rest = table(columns, others, caption=f"{caption}, the others") if others else None
    shown = table(columns, cells[:_SHOWN], caption=caption)
    hidden = more(min(len(cells), _RANGES_MAX), len(cells))
    return element("div", shown, rest and details(f"{len(others)} more", rest), hidden, class_="ranges")


def _worst(use: RouteUse | None) -> Quantity:
    if use is None or use.worst_p99 is None:
        return Quantity("–")  # noqa: RUF001 - unknown
    worst = duration(use.worst_p99)
    return Quantity(worst.text, f"{use.worst_p99:,} µs in the window from {instant(use.worst_at).text} UTC")


def _counts(lines: Sequence[Series], axis: Timeline) -> Html:
    """Return the data of the lines as a table of figures: the buckets in which there is anything."""
    columns = [Column("from, UTC"), *(number(one.label) for one in lines)]
    rows = [
        (instant(axis.start_of(bucket)), *(count(one.points[bucket]) for one in lines))
        for bucket in range(axis.buckets)
        if any(one.points[bucket] for one in lines)
    ]
    return table(columns, rows, caption="Counts over time", is_plain=True)
