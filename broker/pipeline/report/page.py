"""
The page of the report: one HTML file, readable without a network, made of the digest.

It has no scripts and asks for nothing; its policy forbids both. The same digest gives the same bytes. Its sections are
functions of the digest: input and ledger; where the frames went, as the map, losses, loops, top talkers; time and
capacity, as latency by service, hop and route, drops over time, failovers, the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.resources import files
from operator import itemgetter
from typing import Any, NamedTuple

from broker.config.units import UNKNOWN, Quantity, count, duration, instant, plural, share, size
from broker.flow import NUMBER
from broker.pipeline.report.digest import (
    INCIDENT_GAP,
    NO_RECORD,
    Digest,
    Gap,
    Hold,
    Imbalance,
    InputFacts,
    LedgerTotal,
    LinkRow,
    Listing,
    LoopRow,
    RouteUse,
    Series,
    Spread,
    Talker,
    Timeline,
)
from broker.pipeline.report.map import MAP_MAX, NARROW, WIDE, traffic_map
from broker.pipeline.report.markup import (
    Child,
    Column,
    Html,
    LogScale,
    bars,
    details,
    element,
    held,
    join,
    legend,
    lost,
    more,
    name,
    number,
    parts,
    section,
    shade,
    step_words,
    table,
    time_axis,
    way,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHOWN = 12  # rows and cards before a click
_LINKS_MAX = 100  # rows of a table of links
_RANGES_MAX = 60  # rows of a table with strips
_LITTLE_ROOM = 0.2  # of the pool
_AT_INSTANCES = (
    "From arrival to leaving; at the sender, in the transmission queue. “At once”: in the same pass over what the"
    " instance had read, for which it looks at its clock once. Its metric broker_hop_duration_seconds has these times."
)
_UNITS = (
    " A transmission, one frame sent once, makes a record at each instance on its way, and one more when its message is"
    " acknowledged. Charts count frames at all instances, the ledger transmissions of messages only."
)
_BY_ROUTE = (
    "At the instance with the route. Results have percentiles of each window, not of all frames. In order of p99, half"
    " of the frames left in windows up to the middle one. “Worst p99” is that of the slowest window."
)


def first_rows(columns: Sequence[Column], rows: Sequence[Any], caption: str, total: int, **of: str) -> Html:
    """Return a table of the first rows, and one of the others once it is opened by a click; `total` is of all."""
    others = rows[_SHOWN:]
    rest = table(columns, others, caption=f"{caption}, the others") if others else None
    hidden = more(len(rows), total)
    shown = table(columns, rows[:_SHOWN], caption=caption)
    return element("div", shown, rest and details(f"{len(others)} more", rest), hidden, **of)


# --- what was read, what cannot be known, and whether the ledger adds up ---


def tiles(*entries: tuple[str, Child]) -> Html:
    """Return figures with their names, side by side."""
    return element(
        "dl",
        *(element("div", element("dt", words), element("dd", figure)) for words, figure in entries),
        class_="tiles",
    )


def verdict(balance: LedgerTotal | None) -> tuple[str, str]:
    """Return whether the ledger adds up: the class of its colour, and words."""
    if balance is None:
        return "quiet", "No messages, so no ledger"
    if balance.adds_up is None:
        return "quiet", "No sender keeps a journal, so no ledger"
    if not balance.adds_up:
        if not balance.doubled and not balance.invented:
            return "bad", f"{plural(balance.missing, 'message')} missing or failed"
        return "bad", "The ledger does not add up"
    if balance.under_way:
        return "good", f"The ledger adds up so far, {count(balance.under_way).text} under way"
    return "good", "The ledger adds up"


def overview(digest: Digest) -> Html:
    """Return the section on the input that was read."""
    facts = digest.facts
    if not facts.records:
        return section("overview", "Input", f"No records were found in {facts.flows or 'the journal'}.")
    first, last = digest.extent.first_at, digest.extent.last_at
    span = last - first if first and last else None
    figures = tiles(
        ("records", count(facts.records)),
        ("files", count(facts.files)),
        ("instances", count(facts.instances)),
        ("transmissions", count(digest.extent.transmissions)),
        ("from first to last frame", duration(span / timedelta(microseconds=1)) if span else None),
        ("sample of dialogs", _sample(facts)),
    )
    rest = "Windows of the charts that began before it are left out."
    period = (f". Only the time {facts.period} was asked for. {rest}" if facts.period else ".") + _UNITS
    lead = join(["Read from ", name(facts.flows), ", with frames ", *_times(first, last), period])
    return section("overview", "Input", lead, figures, _traffic(digest), _unknown(digest))


def ledger(digest: Digest) -> Html:
    """Return the section on what was sent, and what became of it."""
    balance = digest.balance
    if balance is None:
        return section("ledger", "Ledger", "No messages were sent, so there is nothing to add up.")
    terms = (
        (balance.delivered, "delivered", "good"),
        (balance.acknowledged, "acknowledged", "calm"),
        (balance.under_way, "under way", "warn"),
        (balance.missing, "missing or failed", "bad"),
    )
    also = ((balance.untold, "from senders without a journal", "warn"), (balance.invented, "never sent", "bad"))
    sum_ = element(
        "p",
        _term(balance.sent, "sent", ""),
        *(join([" + ", _term(*term)]) for term in also if term[0]),
        *(join([" = " if place == 0 else " + ", _term(*term)]) for place, term in enumerate(terms)),
        class_="equation",
    )
    wrong = tiles(
        ("delivered twice", lost(balance.doubled)),
        ("never sent", lost(balance.invented)),
        ("transmissions", count(balance.transmissions)),
        ("resent", count(balance.resent)),
        ("drops of messages", count(balance.dropped)),
        ("not seen again: lost, or not known", count(balance.lost)),
        ("duplicates refused", count(balance.duplicates)),
    )
    bar = parts(
        [(words, number, kind) for number, words, kind in terms],
        f"Of {plural(sum(number for number, *_ in terms), 'message')}",
    )
    key = legend(*((kind, words) for number, words, kind in terms if number))
    return section("ledger", "Ledger", _lead(digest, balance), sum_, bar, key, wrong, _imbalances(digest))


def _lead(digest: Digest, balance: LedgerTotal) -> str:
    if balance.adds_up is None:
        return "No instance that sends keeps a journal: whether anything is missing is not known."
    open_ends = (
        " Journals do not show that a dialog ended by an error, by its lifetime or WITH CLEANUP. Messages that had not"
        " arrived by then are missing here, or under way if that was late in this history, and failed in the view"
        " sys.dm_broker_ledger of its database."
    ) * bool(balance.missing or balance.under_way)
    if balance.adds_up:
        fates = (
            (1, "delivered"),
            (balance.acknowledged, "acknowledged"),
            (balance.under_way, "too late to judge"),
        )
        words = f"Every message that was sent is {' or '.join(fate for number, fate in fates if number)}"
        if not balance.acknowledged:
            return f"{words}, and none was delivered twice.{open_ends}"
        unseen = f"of {plural(balance.acknowledged, 'message')} no journal has the delivery"
        return f"{words}, and none is known to be delivered twice; {unseen}.{open_ends}"
    wrong = digest.imbalances.total
    return f"{plural(wrong, 'dialog does', 'dialogs do')} not add up; each direction counts for itself.{open_ends}"


def _imbalances(digest: Digest) -> Html | None:
    if not digest.imbalances.rows:
        return None
    columns = [
        Column("dialog and first problems", _dialog),
        number("missing", lambda one: lost(one.missing)),
        number("doubled", lambda one: lost(one.doubled)),
        number("never sent", lambda one: lost(one.invented)),
    ]
    found = digest.imbalances
    shown = first_rows(columns, found.rows, "Dialogs that do not add up", found.total)
    return element("div", element("h3", "What does not add up"), shown)


def _dialog(one: Imbalance) -> Html:
    """Everything that is long in one cell, which wraps: nothing is off the screen, however narrow that is."""
    lines = (
        way(one.from_service, one.to_service),
        element("code", one.conversation),
        element("span", "; ".join(one.problems), class_="faint"),
    )
    return element("div", *(element("div", line) for line in lines))


def _term(number: int, words: str, kind: str) -> Html:
    colour = kind if number else "nothing"
    return element("span", element("b", f"{number:,}", class_=colour or None), f" {words}", class_="term")


def _sample(facts: InputFacts) -> Child:
    if not facts.samples:
        return Quantity("unknown")
    least, most = (share(one, 1).text for one in (facts.samples[0], facts.samples[-1]))
    return least if least == most else f"{least} to {most}"


def _traffic(digest: Digest) -> Html | None:
    axis = digest.timeline
    if axis is None:
        return None
    dark = _dark(digest, axis)
    plot = bars(digest.traffic, axis, kind="flow", dark=dark)
    most = max(digest.traffic.points, default=0)
    grey = " Where it is grey, an instance has no record of frames that it got." * bool(dark)
    words = f"Frames at all instances, in steps of {step_words(axis)}; the highest is "
    caption = join([words, count(most), ".", grey])
    return element("figure", plot, time_axis(axis), element("figcaption", caption), class_="wide-bars")


def _dark(digest: Digest, axis: Timeline, instance: str | None = None) -> list[Html]:
    """Return the times in which the journal of an instance, or of any, has a hole, and frames went to it."""
    return [
        shade(axis, start, end)
        for gap in digest.gaps.rows
        if instance in {None, gap.instance} and gap.first_at and gap.last_at
        for start, end in digest.facts.holes.get(gap.instance, ())
        if start <= gap.last_at.timestamp() * 1e6 and gap.first_at.timestamp() * 1e6 <= end
    ]


def _times(first: datetime | None, last: datetime | None) -> tuple[Child, ...]:
    """From when to when, or at which second."""
    start, end = instant(first), instant(last)
    return ("at ", start, " UTC") if start.text == end.text else ("from ", start, " to ", end, " UTC")


def _unknown(digest: Digest) -> Html | None:
    """Return the note on what the journals leave open; it precedes any figure that it affects."""
    found = list(_gaps(digest))
    if not found:
        return None
    entries = element("ul", *(element("li", one) for one in found))
    return element("div", element("h3", "What is not known"), entries, class_="note")


def _gaps(digest: Digest) -> Iterator[Child]:
    yield from (f"{words}." for words in digest.facts.troubles if not words.startswith(" "))
    files = [element("li", words.strip()) for words in digest.facts.troubles if words.startswith(" ")]
    if files:
        yield details("The files that were left out", element("ul", *files))
    extent = digest.extent
    if extent.unsent:
        words = "arrived whose sender keeps no journal, or none that goes so far back."
        yield f"{_of_all(extent.unsent, extent.transmissions)} {words}"
    gaps = [_gap(one, extent.transmissions) for one in digest.gaps.rows]
    yield from gaps[:_SHOWN]
    if digest.gaps.total > _SHOWN:
        yield details("the other instances", element("ul", *(element("li", one) for one in gaps[_SHOWN:])))
    if extent.unknown_links:
        words = (
            "crossed a link between instances whose clocks contradict each other: times between such two are left out,"
            " in both directions."
        )
        yield f"{plural(extent.unknown_links, 'transmission')} {words}"
    if digest.balance is not None and digest.balance.acknowledged:
        words = "only the acknowledgement is known, and not whether they were delivered twice."
        yield f"Of {plural(digest.balance.acknowledged, 'message')} {words}"


def _of_all(frames: int, transmissions: int) -> str:
    return f"{plural(frames, 'transmission')} ({share(frames, transmissions).text} of all)"


def _gap(gap: Gap, transmissions: int) -> Html:
    address = gap.instance.removeprefix(NO_RECORD)
    if address == gap.instance:
        words = ": it has no record of them, because it died before it wrote, or because some of its files are missing."
    else:
        words = ": no journal of an instance there was read. Those that were seen nowhere after do not count as lost."
    went = _of_all(gap.frames, transmissions), " went to ", name(address), " "
    return join([*went, *_times(gap.first_at, gap.last_at), words])


# --- where the frames went ---


def map_section(digest: Digest) -> Html:
    """Return the section on instances and links."""
    stations, links = digest.stations, digest.links
    if not stations.rows:
        return section("map", "Traffic map", "No frame was seen at any instance.")
    extent, total = digest.extent, digest.extent.transmissions
    loss = (
        f"{plural(extent.lost, 'frame')} of all kinds, not messages alone,"
        f" {'was' if extent.lost == 1 else 'were'} lost on links"
        if extent.lost
        else "no link is known to have lost a frame"
    )
    shown = f"The {MAP_MAX} instances with most frames are drawn. " if len(stations.rows) > MAP_MAX else ""
    lead = (
        f"{shown}Initiators are on the left, targets on the right; a lane is as wide as its frames, and traffic keeps"
        f" to the right. In all of this history {loss}.{_open(digest)}"
    )
    figures = [
        element("figure", traffic_map(stations.rows, links.rows, form, total), class_=f"scroll {kind}", tabindex=0)
        for kind, form in (("wide", WIDE), ("narrow", NARROW))
    ]
    key = [("well", "nothing lost"), ("ailing", "up to 1 % dropped or lost"), ("sick", "more than 1 %")]
    if any(station.is_unknown for station in stations.rows):
        key.append(("unknown", "not known"))
        lead += " A grey box is an instance of which there are no records, at the address where it was reached,"
        lead += " with its share of all transmissions."
        lead += " Frames that it sent itself have no lane from there." * bool(extent.unsent)
    return section(
        "map",
        "Traffic map",
        lead,
        *figures,
        legend(*key),
        details("Links as a table", _links(links.rows[:_LINKS_MAX]), more(len(links.rows[:_LINKS_MAX]), links.total)),
    )


def losses_section(digest: Digest) -> Html:
    """Return the section on transmissions lost between an instance and a next hop."""
    found = digest.losses
    if not found.rows:
        words = f"No transmission is known to be lost on a link.{_open(digest)}"
        return section("losses", "Losses by link", words)
    words = (
        " left for an instance that keeps a journal and were not seen again. A sender sends a message again until it is"
        " acknowledged, but not an acknowledgement. Under the map, the table of links has what part of all that left"
        f" for an instance this is.{_open(digest)}"
    )
    lead = join([plural(digest.extent.lost, "transmission"), words])
    columns = [
        Column("from", lambda loss: name(loss.from_instance)),
        Column("next hop", lambda loss: name(loss.next_hop)),
        Column("where that is", lambda loss: name(loss.to_instance), is_aside=True),
        number("lost", lambda loss: lost(loss.lost)),
    ]
    shown = first_rows(columns, found.rows, "Transmissions lost between instances", found.total)
    return section("losses", "Losses by link", lead, shown)


def loops_section(digest: Digest) -> Html:
    """Return the section on cycles, each with all frames in it."""
    rows = digest.loops.rows
    if not rows:
        return section("loops", "Loops", "No journal has a frame that came to the same gateway twice.")
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
    services, conversations = digest.services, digest.conversations
    if not services.rows:
        return section("talkers", "Top talkers", "No service sent a message.")
    lead = "Messages by pair of services and by conversation, each direction by itself; those with most bytes first."
    return section(
        "talkers",
        "Top talkers",
        lead,
        element("h3", "Services"),
        _talkers(services, "Services that send most"),
        element("h3", "Conversations"),
        _talkers(conversations, "Conversations that send most"),
    )


def _open(digest: Digest) -> str:
    """Return the notes on how many transmissions cannot be judged: they left too late, or a record is missing."""
    notes = (
        (digest.extent.under_way, "it is not known yet: they left so late in this history."),
        (digest.extent.unrecorded, "an instance that they went to has no record."),
    )
    return "".join(f" Of {plural(frames, 'transmission')} {words}" for frames, words in notes if frames)


def _links(links: tuple[LinkRow, ...]) -> Html:
    columns = [
        Column("from", lambda link: name(link.from_instance)),
        Column("to", lambda link: name(link.to_instance)),
        number("frames", lambda link: count(link.frames)),
        number("bytes", lambda link: size(link.bytes), is_aside=True),
        number("without a record at one end", lambda link: count(link.unrecorded), is_aside=True),
        number("lost", lambda link: UNKNOWN if link.is_unknown else lost(link.lost)),
        number("of what left for it", lambda link: share(link.lost, 0 if link.is_unknown else link.frames + link.lost)),
    ]
    return table(columns, links, caption="Links between instances: frames that arrived, and frames that were lost")


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
        element("li", plural(frames, "frame"), " ", *_times(first, last)) for first, last, frames in incidents(loops)
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


def _talkers(talkers: Listing[Talker], caption: str) -> Html:
    most = max((one.bytes for one in talkers.rows), default=1) or 1
    columns = [
        Column("from", lambda one: name(one.from_service)),
        Column("to", lambda one: name(one.to_service)),
        number("bytes", lambda one: size(one.bytes)),
        Column("share of the first", lambda one: _meter(one.bytes / most), is_aside=True, style="meter"),
        number("messages", lambda one: count(one.messages)),
        number("resent", lambda one: count(one.resends), is_aside=True),
        Column("conversation", lambda one: element("code", one.conversation), is_aside=True)
        if any(one.conversation for one in talkers.rows)
        else number("dialogs", lambda one: count(one.dialogs), is_aside=True),
    ]
    return first_rows(columns, talkers.rows, caption, talkers.total)


def _meter(part: float) -> Html:
    return element("span", element("span", style=f"width:{100 * part:.1f}%"), class_="meter", aria_hidden="true")


# --- time and capacity ---


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
            *("End to end, by service", "From leaving the sender to delivery, of messages known to have arrived."),
            *("services", "messages", "Latency from service to service"),
            [_Range(way(one.from_service, one.to_service), one.messages, one.total) for one in digest.journeys.rows],
        ),
        (
            *("At each instance", _AT_INSTANCES),
            *("instance", "frames", "Latency at each instance"),
            [_Range(name(one.instance), one.frames, one.residence) for one in digest.stations.rows],
        ),
        (
            *("On each link", "From leaving one instance to arriving at the next."),
            *("link", "frames", "Latency on each link"),
            [_Range(way(one.from_instance, one.to_instance), one.frames, one.transit) for one in digest.links.rows],
        ),
        (
            *("By route, in the middle window", _BY_ROUTE),
            *("route", "frames", "Latency by route"),
            [_Range(_route(one), one.frames, one.typical, one) for one in digest.routes.rows],
        ),
    ]
    scale = LogScale([one.spread for *_, rows in groups for one in rows])
    lead = (
        "Each strip runs from the median over the 95th to the 99th percentile; all of them share one logarithmic axis."
        " “4 of 208”: of 208 frames that passed, 4 were measured."
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
        return section(
            "drops", "Drops by reason", "No journal has a drop: every frame there was forwarded or delivered."
        )
    total, codes = sum(one.total for one in digest.drops), {str(reason): number for reason, number in NUMBER.items()}
    words = f" frames of all kinds, not messages alone, were dropped, in steps of {step_words(axis)}."
    lead = join([count(total), words, " Each line has its own height."])
    columns = [
        Column("reason", lambda one: one.label),
        number("code", lambda one: str(codes.get(one.label, "")), is_aside=True),
        *_plotted("frames", axis, "drop"),
    ]
    shown = table(columns, digest.drops, caption="Drops by reason over time")
    return section("drops", "Drops by reason", lead, shown, details("Drops as a table", _counts(digest.drops, axis)))


def failovers_section(digest: Digest) -> Html:
    """Return the section on failovers: when frames of a dialog took another next hop than before."""
    axis, lines = digest.timeline, digest.failovers
    if axis is None or not lines:
        return section("failovers", "Failovers", "No failovers: the frames of a dialog kept their next hop.")
    words = " times a frame left by another next hop than the one before it in its dialog and direction."
    columns = [Column("instance", lambda one: name(one.label)), *_plotted("failovers", axis, "move")]
    shown = table(columns, lines, caption="Failovers by instance over time")
    lead = join([count(sum(one.total for one in lines)), words])
    return section("failovers", "Failovers", lead, shown, details("Failovers as a table", _counts(lines, axis)))


def _plotted(title: str, axis: Timeline, kind: str) -> tuple[Column, Column]:
    """The total of a series and its plot."""
    plot = Column(time_axis(axis), lambda one: bars(one, axis, kind=kind), style="plot")
    return number(title, lambda one: count(one.total)), plot


def capacity_section(digest: Digest) -> Html:
    """Return the section on the amounts held at once, and the pool that they need."""
    axis, holds = digest.timeline, digest.holds
    if axis is None or not holds.rows:
        return section("capacity", "Capacity", "No journal has a frame that an instance held.")
    first = holds.rows[0]
    dark = [_dark(digest, axis, one.instance) for one in holds.rows[:_SHOWN]]
    grey = " Where a plot is grey, the instance has no record of frames that it got: it may have held and need more."
    most = name(first.instance), " held the most at once: ", size(first.peak_bytes), ". The dashed line is the size"
    rest = f"; each instance has its own height.{grey * any(dark)}"
    lead = join([*most, " recommended for ", element("code", "message_forward_size"), rest])
    ends = {one.instance for one in digest.stations.rows if one.frames == one.ends}
    idle = {one.instance for one in holds.rows} & ends
    rows = [replace(one, recommended_bytes=None, headroom=None) if one.instance in idle else one for one in holds.rows]
    shown = [_card(one, axis, times) for one, times in zip(rows, dark, strict=False) if one.peaks]
    words = "Instances that forwarded nothing need no pool, and none is recommended for them."
    return section(
        "capacity",
        "Capacity",
        lead,
        element("p", words, class_="faint") if idle else None,
        element("div", *shown, class_="cards"),
        details("Capacity as a table", _holds(rows)),
        more(len(holds.rows), holds.total),
    )


def _card(hold: Hold, axis: Timeline, dark: Sequence[Html]) -> Html:
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
    title = element("figcaption", name(hold.instance))
    return element("figure", title, figures, held(hold, dark), time_axis(axis), class_="card")


def _holds(holds: Sequence[Hold]) -> Html:
    columns = [
        Column("instance", lambda one: name(one.instance)),
        number("peak", lambda one: size(one.peak_bytes)),
        Column("at", lambda one: instant(one.peak_at), is_aside=True),
        number("frames", lambda one: count(one.peak_frames)),
        number("p99", lambda one: size(one.p99_bytes), is_aside=True),
        number("recommended", lambda one: size(one.recommended_bytes)),
        number("headroom", lambda one: UNKNOWN if one.headroom is None else share(one.headroom, 1).text),
    ]
    return table(columns, holds, caption="Frames and bytes that instances held at once")


def _route(one: RouteUse) -> Html:
    route = name(one.route, "delivered here or no route")
    table_name = element("span", " ", one.route_table, class_="faint") if one.route_table else None
    return join([name(one.instance), " · ", route, table_name])


def _ranges(what: str, counted: str, rows: Sequence[_Range], scale: LogScale, caption: str) -> Html:
    """Return a table with strips: the first rows, and all of them once it is opened by a click."""
    worst = number("worst p99", lambda one: _worst(one.use), is_aside=True)
    columns = [
        Column(what, lambda one: one.label),
        Column(scale.header, lambda one: scale.strip(one.spread, caption), style="plot"),
        number("p50", lambda one: duration(one.spread.p50), is_aside=True),
        number("p95", lambda one: duration(one.spread.p95)),
        number("p99", lambda one: duration(one.spread.p99), is_aside=True),
        *([worst] if rows[0].use is not None else []),
        number(counted, _measured, is_aside=True),
    ]
    return first_rows(columns, rows[:_RANGES_MAX], caption, len(rows), class_="ranges")


def _measured(one: _Range) -> Quantity:
    """How many frames percentiles are of, and of how many there are."""
    measured, frames = one.spread.measured, one.frames
    words = f"{count(measured).text} of {count(frames).text}"
    return count(frames) if measured == frames else Quantity(words, share(measured, frames).exact)


def _worst(use: RouteUse | None) -> Quantity:
    if use is None or use.worst_p99 is None:
        return Quantity(UNKNOWN)
    worst = duration(use.worst_p99)
    return Quantity(worst.text, f"{use.worst_p99:,} µs in the window from {instant(use.worst_at).text} UTC")


def _counts(lines: Sequence[Series], axis: Timeline) -> Html:
    """Return the data of the lines as a table of figures: the buckets in which there is anything."""
    counts = (number(one.label, itemgetter(place)) for place, one in enumerate(lines, 1))
    buckets = [bucket for bucket in range(axis.buckets) if any(one.points[bucket] for one in lines)]
    rows = [(instant(axis.start_of(one)), *(count(line.points[one]) for line in lines)) for one in buckets]
    return table([Column("from, UTC", itemgetter(0)), *counts], rows, caption="Counts over time", is_plain=True)


# --- the page ---

_SECTIONS = (
    *(overview, ledger, map_section, latency_section, drops_section, loops_section, losses_section),
    *(capacity_section, talkers_section, failovers_section),
)


def page(digest: Digest) -> str:
    """The digest as HTML."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", "Flow report"),
        Html(f"<style>{style()}</style>"),
    )
    last = digest.extent.last_at
    history = f"history up to {instant(last).text} UTC" if last else None
    body = element(
        "body",
        _header(digest),
        element("main", *(make(digest) for make in _SECTIONS)),
        element("footer", f"broker {digest.facts.version} · " if digest.facts.version else None, history),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def style() -> str:
    """Return the style sheet: for light and dark, narrow and wide, screen and paper."""
    return files("broker.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")


def _header(digest: Digest) -> Html:
    kind, words = verdict(digest.balance)
    sections = ("ledger", "map", "latency", "drops", "loops", "losses", "capacity", "talkers", "failovers")
    return element(
        "header",
        element("h1", "Flow report"),
        element("p", words, class_=f"verdict {kind}"),
        element("nav", *(element("a", one.title(), href=f"#{one}") for one in sections), aria_label="Sections"),
    )
