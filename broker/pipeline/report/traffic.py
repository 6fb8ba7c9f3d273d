"""Sections on where the frames went: the map, losses, loops and top talkers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from broker.config.units import count, duration, instant, plural, share, size
from broker.pipeline.report.digest import INCIDENT_GAP, Digest, LinkRow, LoopRow, Loss, Talker
from broker.pipeline.report.map import MAP_MAX, NARROW, WIDE, traffic_map
from broker.pipeline.report.markup import (
    Child,
    Column,
    Html,
    details,
    element,
    join,
    lost,
    more,
    name,
    number,
    section,
    table,
)
from broker.pipeline.report.plot import legend

_SHOWN = 12
_LINKS_MAX = 100  # rows of a table of links


def map_section(digest: Digest) -> Html:
    """Return the section on instances and links."""
    stations, links = digest.stations, digest.links
    if not stations.rows:
        return section("map", "Traffic map", "No frame was seen at any instance.")
    extent = digest.extent
    loss = (
        f"{plural(extent.lost, 'frame')} of all kinds, not messages alone,"
        f" {'was' if extent.lost == 1 else 'were'} lost on links{_nowhere(digest)}"
        if extent.lost
        else "no link is known to have lost a frame"
    )
    shown = f"The {MAP_MAX} instances with most frames are drawn. " if len(stations.rows) > MAP_MAX else ""
    lead = (
        f"{shown}Initiators are on the left, targets on the right; a lane is as wide as its frames, and traffic keeps"
        f" to the right. In all of this history {loss}.{_open(digest)}"
    )
    figures = [
        element("figure", traffic_map(stations.rows, links.rows, form), class_=f"scroll {kind}", tabindex=0)
        for kind, form in (("wide", WIDE), ("narrow", NARROW))
    ]
    key = legend(("well", "nothing lost"), ("ailing", "up to 1 % dropped or lost"), ("sick", "more than 1 %"))
    if any(station.is_unknown for station in stations.rows):
        lead += " A grey box is an instance of which there are no records, at the address where it was reached."
    return section(
        "map",
        "Traffic map",
        lead,
        *figures,
        key,
        details("Links as a table", _links(links.rows[:_LINKS_MAX]), more(len(links.rows[:_LINKS_MAX]), links.total)),
    )


def losses_section(digest: Digest) -> Html:
    """Return the section on transmissions lost between an instance and a next hop."""
    rows = digest.losses.rows
    if not rows:
        words = f"No transmission is known to be lost on a link.{_open(digest)}"
        return section("losses", "Losses by link", words)
    words = (
        " left an instance and were not seen again. The sender sends such a message again. Shares here are of all"
        f" frames that were at that instance, wherever they went; those of the map, of what left for one link."
        f"{_open(digest)}"
    )
    lead = join([plural(digest.extent.lost, "transmission"), words])
    rest = details("all links with losses", _losses(rows)) if len(rows) > _SHOWN else None
    return section("losses", "Losses by link", lead, _losses(rows[:_SHOWN]), rest, more(len(rows), digest.losses.total))


def loops_section(digest: Digest) -> Html:
    """Return the section on cycles, each with all frames in it."""
    rows = digest.loops.rows
    if not rows:
        return section("loops", "Loops", "No frame came to the same gateway twice.")
    cycles: dict[tuple[str, ...], list[LoopRow]] = {}
    for loop in rows:
        cycles.setdefault(cycle_of(loop.path), []).append(loop)
    ordered = sorted(cycles.items(), key=lambda one: (-sum(loop.frames for loop in one[1]), one[0]))
    least = "at least " if digest.loops.total > len(rows) else ""
    lead = (
        f"{plural(digest.extent.looped, 'frame')} came to a gateway again, in {least}{plural(len(cycles), 'circle')}."
    )
    shown, others = ordered[:_SHOWN], ordered[_SHOWN:]
    rest = details("the other circles", element("ol", *(_cycle(*one) for one in others), class_="loops"))
    ring = element("ol", *(_cycle(*one) for one in shown), class_="loops")
    return section("loops", "Loops", lead, ring, rest if others else None, more(len(rows), digest.loops.total))


def cycle_of(path: Sequence[str]) -> tuple[str, ...]:
    """The smallest circle in a way, from its least name on; the sender counts only when nothing else comes again."""
    for begin in (1, 0):
        circles = [
            tuple(path[place : path.index(path[place], place + 1)])
            for place in range(begin, len(path))
            if path[place] in path[place + 1 :]
        ]
        if circles:
            circle = min(circles, key=len)
            least = circle.index(min(circle))
            return circle[least:] + circle[:least]
    return tuple(path)


def talkers_section(digest: Digest) -> Html:
    """Return the section on the services and conversations that send most."""
    services, conversations = digest.services.rows, digest.conversations.rows
    if not services:
        return section("talkers", "Top talkers", "No service sent a message.")
    lead = "Messages by pair of services and by conversation, each direction by itself; those with most bytes first."
    return section(
        "talkers",
        "Top talkers",
        lead,
        element("h3", "Services"),
        _talkers(services[:_SHOWN], "Services that send most"),
        details("all pairs of services", _talkers(services, "All pairs of services"))
        if len(services) > _SHOWN
        else None,
        more(len(services), digest.services.total),
        element("h3", "Conversations"),
        _talkers(conversations, "Conversations that send most"),
    )


def _nowhere(digest: Digest) -> str:
    """Return the note that some losses are on no lane; empty without any."""
    frames = digest.extent.lost_nowhere
    if not frames:
        return ""
    return f" ({frames:,} sent to an address of an unknown instance: they are in no lane)"


def _open(digest: Digest) -> str:
    """Return the note on how many transmissions left too late to be judged; empty without any."""
    frames = digest.extent.under_way
    if not frames:
        return ""
    return f" Of {plural(frames, 'transmission')} it is not known yet: they left so late in this history."


def _links(links: tuple[LinkRow, ...]) -> Html:
    columns = [
        *(Column("from"), Column("to"), number("frames"), number("bytes", is_aside=True), number("p50", is_aside=True)),
        *(number("p95", is_aside=True), number("lost"), number("of what left for it")),
    ]
    rows = (
        (
            name(link.from_instance),
            name(link.to_instance),
            count(link.frames),
            size(link.bytes),
            duration(link.transit.p50),
            duration(link.transit.p95),
            lost(link.lost),
            share(link.lost, link.frames + link.lost),
        )
        for link in links
    )
    return table(columns, rows, caption="Links between instances: frames that arrived, and frames that were lost")


def _losses(losses: Sequence[Loss]) -> Html:
    columns = [
        *(Column("from"), Column("next hop"), Column("where that is", is_aside=True)),
        *(number("lost"), number("of all frames at “from”")),
    ]
    rows = (
        (
            name(loss.from_instance),
            name(loss.next_hop or None),
            name(loss.to_instance or None),
            lost(loss.lost),
            share(loss.lost, loss.frames),
        )
        for loss in losses
    )
    return table(columns, rows, caption="Transmissions lost between instances")


def _cycle(circle: tuple[str, ...], loops: Sequence[LoopRow]) -> Html:
    """The circle as a chain, with what became of the frames in it."""
    steps: list[Child] = [element("span", name(instance), class_="again") for instance in (*circle, circle[0])]
    chain = [part for step in steps for part in (" → ", step)][1:]
    ends = Counter[str]()
    for loop in loops:
        ends[f"{loop.end}: {loop.reason}" if loop.reason else loop.end] += loop.frames
    fate = ", ".join(f"{count(frames).text} {end}" for end, frames in ends.most_common())
    words = f"{plural(sum(ends.values()), 'frame')}: {fate}."
    times = [
        element("li", plural(frames, "frame"), " from ", instant(first), " to ", instant(last), " UTC")
        for first, last, frames in incidents(loops)
    ]
    shown = element("ul", *times, class_="faint") if times else None
    return element("li", element("p", *chain, class_="chain"), element("p", words, class_="faint"), shown)


def incidents(loops: Sequence[LoopRow]) -> list[tuple[datetime, datetime, int]]:
    """From when to when frames went round, and how many; a pause of `INCIDENT_GAP` begins another one."""
    found: list[tuple[datetime, datetime, int]] = []
    known = [(one.first_at, one.last_at, one.frames) for one in loops if one.first_at and one.last_at]
    for first, last, frames in sorted(known):
        if found and first - found[-1][1] <= INCIDENT_GAP:
            begun, ended, before = found.pop()
            found.append((begun, max(ended, last), before + frames))
        else:
            found.append((first, last, frames))
    return found


def _talkers(talkers: tuple[Talker, ...], caption: str) -> Html:
    most = max((one.bytes for one in talkers), default=1) or 1
    is_single = any(one.conversation for one in talkers)
    columns = [
        *(Column("from"), Column("to"), number("bytes"), Column("share of the first", is_aside=True, style="meter")),
        *(number("messages"), number("resent", is_aside=True)),
        Column("conversation" if is_single else "dialogs", is_number=not is_single, is_aside=True),
    ]
    rows = (
        (
            name(one.from_service),
            name(one.to_service),
            size(one.bytes),
            _meter(one.bytes / most),
            count(one.messages),
            count(one.resends),
            element("code", one.conversation) if one.conversation else count(one.dialogs),
        )
        for one in talkers
    )
    return table(columns, rows, caption=caption)


def _meter(part: float) -> Html:
    return element("span", element("span", style=f"width:{100 * part:.1f}%"), class_="meter", aria_hidden="true")
