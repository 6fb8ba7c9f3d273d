"""
What `broker top` shows: one snapshot of `GET /v1/events`, as lines for a terminal of any size.

Pure. Colour only repeats what a word says, so a terminal without colour shows the same. The head is always there: who
it is, whether all is well or what to do, what comes in and goes out, what is held, the ledger, and as of when. Below it
is one panel, which can be scrolled.

Shape: a snapshot is told in docs/status-page.md; what one lacks is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from broker.cli.top_text import Column, age, count, cut, of_rows, rate, size, span, table, text

STALE_SECONDS = 5.0  # after which a snapshot is told to be old
_FLOWS = {"GONE": "bad", "down": "bad", "stalled": "bad", "blocked": "notice", "opening": "notice", "leaving": "notice"}
_LEVELS = {"good": "green", "notice": "yellow", "bad": "bold red"}

Pulse = Mapping[str, Any]
Row = Mapping[str, Any]


class Line(NamedTuple):
    """One line. Shape: `style` as rich and `broker.observe.terminal` have it; `stands_out` from, to."""

    plain: str = ""
    style: str = ""
    stands_out: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Look:
    """
    What the person at the terminal wants to see, and how things stand with the daemon.

    Shape: `panel` a key of `PANELS`; `offset` lines that are scrolled away; `age_s` of the snapshot, as this machine
    counts; `problem` why none comes, "" while they come.
    """

    panel: str = "all"
    offset: int = 0
    is_paused: bool = False
    age_s: float = 0.0
    problem: str = ""


def screen(pulse: Pulse | None, look: Look, *, width: int, height: int) -> list[Line]:
    """The lines of a full screen: the head, the panel, and the keys at the bottom."""
    head = _head(pulse, look, width)
    tabs = _tabs(look.panel, width)
    body = [] if pulse is None else PANELS[look.panel](pulse, width)
    room = max(1, height - len(head) - 3)
    offset = max(0, min(look.offset, len(body) - room))
    visible = body[offset : offset + room]
    below = len(body) - offset - len(visible)
    keys = "q quit  p pause  1-7 or left, right: panel  up, down: scroll"
    if below:
        keys = f"{below} more lines below; {keys}"
    blank = [Line()] * (room - len(visible))
    return [*head, tabs, *visible, *blank, Line(), Line(cut(keys, width), style="dim")][:height]


def page(pulse: Pulse | None, look: Look, *, width: int) -> list[Line]:
    """The same for what is no terminal: the head and every panel, whole."""
    lines = _head(pulse, look, width)
    if pulse is not None:
        for name, panel in PANELS.items():
            if name != "all":
                lines += [Line(), *panel(pulse, width)]
    return lines


# --- the head ---


def _head(pulse: Pulse | None, look: Look, width: int) -> list[Line]:
    if pulse is None:
        told = f"no answer yet: {look.problem}" if look.problem else "waiting for the first snapshot"
        return [Line(cut(text(told), width), style="bold red" if look.problem else "")]
    level = pulse["verdict"]["level"]
    lines = [_identity(pulse, look, width), *_news(pulse, look, width)]
    sentence = text(pulse["verdict"]["sentence"])
    lines += [Line(line, style=_LEVELS[level]) for line in _folded(f"{level.upper()}: {sentence}", width, most=3)]
    lines += [Line(cut(line, width)) for line in _numbers(pulse)]
    ledger = pulse["ledger"]
    style = "bold red" if ledger["unaccounted"] else ""
    return [*lines, Line(cut(f"ledger  {text(ledger['sentence'])}", width), style=style)]


def _identity(pulse: Pulse, look: Look, width: int) -> Line:
    instance = pulse["instance"]
    as_of = pulse["at"][:19].replace("T", " ")
    words = [
        text(instance["name"]),
        instance["state"].upper(),
        f"up {span(instance['uptime_s'])}",
        f"as of {as_of} UTC",
    ]
    if look.is_paused:
        words.append("PAUSED")
    return Line(cut("  ".join(words), width), style="bold")


def _news(pulse: Pulse, look: Look, width: int) -> list[Line]:
    """What makes the rest untrue or short-lived."""
    lines = []
    if look.problem or (look.age_s > STALE_SECONDS and not look.is_paused):
        why = f": {text(look.problem)}" if look.problem else ""
        told = f"NO NEWS for {span(look.age_s)}{why}; what follows is old, and this goes on by itself"
        lines += [Line(line, style="bold red") for line in _folded(told, width, most=2)]
    draining = pulse.get("draining")
    if draining:
        told = draining.get("sentence", "") if isinstance(draining, Mapping) else ""
        lines.append(Line(cut(f"DRAINING{': ' if told else ''}{text(told) if told else ''}", width), style="yellow"))
    return lines


def _numbers(pulse: Pulse) -> list[str]:
    rates, totals, pool, latency = (pulse[name] for name in ("rates", "totals", "pool", "latency"))
    names = {"received": "in", "forwarded": "out", "delivered": "delivered", "dropped": "dropped"}
    frames = "  ".join(f"{word} {rate(rates[name])}/s" for name, word in names.items())
    moved = f"{size(rates['bytes_received'])}/s in, {size(rates['bytes_sent'])}/s out"
    late = f"  loop {span(latency.get('loop_lag_s'))} late"
    hop = latency.get("hop_p99_s")
    used = 100 * pool["bytes"] // max(1, pool["limit_bytes"])
    held = f"held    {count(pool['frames'])} frames, {size(pool['bytes'])} of {size(pool['limit_bytes'])} ({used} %)"
    lines = [f"frames  {frames}  ({moved})", f"{held}{late}{'' if hop is None else f'  hop p99 {span(hop)}'}"]
    if totals["sent"] or pulse["databases"]["count"]:
        lines.append(f"dialogs sent {rate(rates['sent'])}/s  acknowledged {rate(rates['acknowledged'])}/s")
    return lines


def _tabs(panel: str, width: int) -> Line:
    words = [f"[{number} {name}]" if name == panel else f" {number} {name} " for number, name in enumerate(PANELS, 1)]
    if sum(map(len, words)) > width:
        words = [word if word.startswith("[") else f"{number} " for number, word in enumerate(words, 1)]
    line = cut("".join(words), width)
    at = line.find("[")
    return Line(line, style="dim", stands_out=(at, line.find("]") + 1) if at >= 0 else (0, 0))


def _folded(sentence: str, width: int, *, most: int) -> list[str]:
    """A sentence over several lines, broken between words; what does not fit into `most` lines is cut."""
    lines = [""]
    for word in sentence.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) == most:
            lines[-1] = longer
            break
        else:
            lines.append(f"  {word}")
    return [cut(line, width) for line in lines]


# --- the panels ---


def _all(pulse: Pulse, width: int) -> list[Line]:
    """What needs attention, and the biggest of everything."""
    lines: list[Line] = []
    for finding in pulse["verdict"]["findings"][:5]:
        do = f": {text(finding['do'])}" if finding["do"] else ""
        lines += [
            Line(line, style=_LEVELS[finding["level"]])
            for line in _folded(f"! {text(finding['what'])}{do}", width, most=3)
        ]
    for build, most in ((_links, 5), (_waiting, 6), (_drops, 6), (_databases, 4), (_mirrors, 3), (_routes, 5)):
        section = build(pulse, width)
        if len(section) > 1:
            lines += section[: most + 2]
    return lines


def _links(pulse: Pulse, width: int) -> list[Line]:
    folded = pulse["peers"]
    rows = [
        {
            **row,
            "way": "from" if row["direction"] == "in" else "to",
            "state": "GONE" if row.get("gone_s") is not None else row.get("flow") or row["state"],
            "ago": row["gone_s"] if row.get("gone_s") is not None else _between(row.get("last_progress"), pulse["at"]),
            "reason": row.get("flow_reason") or row.get("slowed_by"),
        }
        for row in folded["rows"]
    ]
    columns = [
        of_rows(rows, "", "way"),
        of_rows(rows, "peer", "name"),
        of_rows(rows, "state", "state"),
        of_rows(rows, "frames in/s", "frames_received_s", rate),
        of_rows(rows, "in/s", "bytes_received_s", size),
        of_rows(rows, "out/s", "bytes_sent_s", size),
        of_rows(rows, "progress", "ago", span),
        of_rows(rows, "why", "reason"),
        of_rows(rows, "round trip", "round_trip_ms", _milliseconds),
        of_rows(rows, "address", "address"),
        of_rows(rows, "principal", "principal"),
    ]
    states = [_FLOWS.get(row["state"], "") for row in rows]
    return _section("Links", folded, columns, width, states)


def _routes(pulse: Pulse, width: int) -> list[Line]:
    routes, hops = pulse["routes"], pulse["next_hops"]
    rows = hops["rows"]
    columns = [
        of_rows(rows, "next hop", "address"),
        of_rows(rows, "health", "health"),
        of_rows(rows, "frames/s", "frames_s", rate),
        of_rows(rows, "held", "held", count),
        of_rows(rows, "bytes held", "held_bytes", size),
        of_rows(rows, "problem", "problem"),
    ]
    lines = _section("Next hops", hops, columns, width, ["bad" if row["problem"] else "" for row in rows])
    rows = routes["rows"]
    columns = [
        of_rows(rows, "route", "route"),
        of_rows(rows, "next hop", "next_hop"),
        of_rows(rows, "frames/s", "frames_s", rate),
        of_rows(rows, "frames", "frames", count),
    ]
    return lines + _section("Routes in use", routes, columns, width)


def _waiting(pulse: Pulse, width: int) -> list[Line]:
    folded = pulse["waiting"]
    rows = folded["rows"]
    columns = [
        of_rows(rows, "waits for", "name"),
        of_rows(rows, "messages", "messages", count),
        of_rows(rows, "bytes", "bytes", size),
        of_rows(rows, "oldest", "oldest_s", age),
        of_rows(rows, "next", "next"),
    ]
    return _explained("What waits, and why", folded, columns, width, [text(row["why"]) for row in rows])


def _drops(pulse: Pulse, width: int) -> list[Line]:
    folded = pulse["drops"]
    rows = folded["rows"]
    columns = [
        of_rows(rows, "dropped", "reason"),
        of_rows(rows, "frames/s", "frames_s", rate),
        of_rows(rows, "frames", "frames", count),
        of_rows(rows, "last, UTC", "last_time"),
        of_rows(rows, "to service", "to_service_name"),
        of_rows(rows, "in", "database"),
    ]
    why = [_of_drop(row) for row in rows]
    return _explained("Dropped, by reason, each with its last one", folded, columns, width, why)


def _of_drop(row: Row) -> str:
    """What is known of the last frame of a reason, and what to do."""
    asked = f"broker why {row['conversation_id']}" if row["conversation_id"] else ""
    return "; ".join(text(one) for one in (row["detail"], row.get("do"), asked) if one)


def _databases(pulse: Pulse, width: int) -> list[Line]:
    folded = pulse["databases"]
    rows = folded["rows"]
    columns = [
        of_rows(rows, "database", "name"),
        of_rows(rows, "sent/s", "sent_s", rate),
        of_rows(rows, "acked/s", "acknowledged_s", rate),
        of_rows(rows, "delivered/s", "delivered_s", rate),
        of_rows(rows, "waiting", "waiting_messages", count),
        of_rows(rows, "oldest", "oldest_waiting_s", age),
        of_rows(rows, "quarantined", "quarantined", count),
        of_rows(rows, "role", "role"),
        of_rows(rows, "problem", "problem"),
        of_rows(rows, "ledger", "ledger"),
    ]
    styles = ["bad" if row["problem"] else "notice" if row.get("quarantined") else "" for row in rows]
    lines = _section("Databases", folded, columns, width, styles)
    queues = [{"database": row["name"], **queue} for row in rows for queue in row.get("queues") or ()]
    if queues:
        columns = [
            of_rows(queues, "queue", "name"),
            of_rows(queues, "of", "database"),
            of_rows(queues, "ready", "ready", count),
            of_rows(queues, "oldest", "oldest_s", age),
            of_rows(queues, "quarantined", "quarantined", count),
            Column("status", ["ON" if queue["is_receive_enabled"] else "OFF" for queue in queues]),
        ]
        styles = ["" if queue["is_receive_enabled"] else "bad" for queue in queues]
        lines += _section("Queues", {"count": len(queues), "folded": {"count": 0}}, columns, width, styles)
    return lines


def _mirrors(pulse: Pulse, width: int) -> list[Line]:
    rows = pulse["mirrors"]
    columns = [
        of_rows(rows, "mirrored route", "route"),
        of_rows(rows, "state", "state"),
        of_rows(rows, "principal", "principal"),
        of_rows(rows, "held", "held", count),
        of_rows(rows, "epoch", "epoch", count),
        of_rows(rows, "service", "service"),
        of_rows(rows, "alarm", "alarm"),
    ]
    styles = ["" if row.get("state") == "OPERATIONAL" and not row.get("alarm") else "bad" for row in rows]
    return _section("Mirrored routes", {"count": len(rows), "folded": {"count": 0}}, columns, width, styles)


PANELS: Mapping[str, Callable[[Pulse, int], list[Line]]] = {
    "all": _all,
    "links": _links,
    "routes": _routes,
    "waiting": _waiting,
    "drops": _drops,
    "databases": _databases,
    "mirrors": _mirrors,
}


def _section(title: str, folded: Row, columns: Sequence[Column], width: int, levels: Sequence[str] = ()) -> list[Line]:
    """A heading, the titles, a line for each row, and how many are not told. Without rows the heading alone."""
    hidden = folded["folded"]["count"]
    heading = f"{title}: {count(folded['count'])}"
    if not columns[0].cells:
        return [Line(cut(f"{title}: none", width), style="bold")]
    titles, *lines = table(columns, width)
    styles = [_LEVELS.get(level, "") for level in levels] or [""] * len(lines)
    body = [Line(line, style=style) for line, style in zip(lines, styles, strict=True)]
    more = [Line(cut(f"and {count(hidden)} more", width), style="dim")] if hidden else []
    return [Line(cut(heading, width), style="bold"), Line(titles, style="dim"), *body, *more]


def _explained(title: str, folded: Row, columns: Sequence[Column], width: int, sentences: Sequence[str]) -> list[Line]:
    """A section in which each row has a sentence below it."""
    told = _section(title, folded, columns, width, ["notice"] * len(sentences))
    heads, rows, more = told[:2], told[2 : 2 + len(sentences)], told[2 + len(sentences) :]
    for line, sentence in zip(rows, sentences, strict=True):
        heads += [line, *(Line(f"  {part}") for part in _folded(sentence, width - 2, most=3) if sentence)]
    return heads + more


def _between(earlier: str | None, later: str) -> float | None:
    """Seconds between two instants that the daemon told; None when the first is not known."""
    if not earlier:
        return None
    return max(0.0, (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds())


def _milliseconds(value: float | None) -> str:
    return span(None if value is None else value / 1000)
