"""
What a plan would have done to the history of an instance, as it is read in a terminal.

The marks are those of `broker.observe.planned`: `!` harm, `·` a change without any, `?` what could not be found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker.observe.line import Line
from broker.routing.fate import HARMFUL, Fate

ROWS_SHOWN = 10  # of each list; -o json has more


def history_lines(history: Mapping[str, Any]) -> Iterator[Line]:
    """Lines; `history` as `broker.cli.history` gives it."""
    yield Line("In the history", style="bold")
    yield Line("a conversation counts in each direction, and again when it has found its target", indent=2)
    for sentence in history["files"]:
        yield Line(sentence, indent=2)
    for fate in reversed(Fate):
        if fate.value in history["fates"]:
            yield _numbers(history["fates"][fate.value], fate.value, "red" if fate in HARMFUL else "")
    for why, counts in history["unplanned"].items():
        yield _numbers(counts, f"cannot be told: {why}", "yellow")
    yield from _changes(history)
    yield from _load(history)
    yield from _unused(history)


def history_harm(history: Mapping[str, Any]) -> list[str]:
    """What is wrong, in parts of a sentence."""
    said = []
    harmed, loops = history["harmed"]["conversations"], history["loops"]["conversations"]
    if harmed:
        said.append(f"in the history up to {_count(harmed, 'conversation')} would have been harmed")
    if loops:
        said.append(f"in the history up to {_count(loops, 'conversation')} would have gone round")
    return said


def _numbers(counts: Mapping[str, int], words: str, style: str) -> Line:
    conversations, frames = counts["conversations"], counts["frames"]
    return Line(f"{conversations:>10,} in {frames:>11,} frames  {words}", style=style, is_table=True)


def _changes(history: Mapping[str, Any]) -> Iterator[Line]:
    for one in history["changes"][:ROWS_SHOWN]:
        mark, style = ("!", "red") if one["is_harm"] or one["is_loop"] else ("·", "")
        where = "in transit" if one["database"] is None else f"of {one['database']}"
        round_about = ", and goes round" if one["is_loop"] else ""
        counts = f"{_count(one['conversations'], 'conversation')}, {_count(one['frames'], 'frame')}"
        yield Line("")
        yield Line(f"{counts} {where}, to {one['to_service']}: {one['fate']}{round_about}", 2, mark, style)
        yield Line(f"was:       {_way(one, 'before')}", indent=4)
        yield Line(f"would be:  {_way(one, 'after')}", indent=4)
    more = len(history["changes"][ROWS_SHOWN:]) + history["more_changes"]
    if more:
        yield Line("")
        yield Line(f"and {_count(more, 'more change')}", indent=2)


def _way(one: Mapping[str, Any], when: str) -> str:
    route, places = one[f"route_{when}"], one[f"next_{when}"]
    by = f" by route {route}" if route else ""
    return f"{one[f'outcome_{when}']}{' to ' + ' or '.join(places) if places else ''}{by}"


def _load(history: Mapping[str, Any]) -> Iterator[Line]:
    if not history["load"]:
        return
    yield Line("")
    yield Line("Frames to each next hop, now and then", indent=2)
    for one in history["load"][:ROWS_SHOWN]:
        hop = one["next_hop"] or "nowhere"
        yield Line(f"{one['frames_before']:>12,}  {one['frames_after']:>12,}  {hop}", is_table=True)
    if len(history["load"]) > ROWS_SHOWN:
        yield Line(f"and {len(history['load']) - ROWS_SHOWN:,} more", indent=2)


def _unused(history: Mapping[str, Any]) -> Iterator[Line]:
    count = len(history["unused"]) + history["more_unused"]
    if not count:
        return
    names = ", ".join(f"{one['route_table']}.{one['route']}" for one in history["unused"][:ROWS_SHOWN])
    more = f" and {count - ROWS_SHOWN:,} more" if count > ROWS_SHOWN else ""
    yield Line("")
    yield Line(f"Routes that nothing in it would use: {names}{more}", indent=2)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
