"""
A plan as it is read in a terminal: which routes change, what becomes of conversations under way, and loops.

Marks in front of a route as in a diff: `+` made, `-` dropped, `~` altered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.observe.explained import Line, print_lines
from broker.observe.glance import readable

CONSEQUENCES_SHOWN = 20  # in a terminal; all that there are, with -o json
EDITS_SHOWN = 50

_PROPERTIES = ("remote_service_name", "broker_instance", "address", "mirror_address", "weight", "lifetime")


def render_plan(plan: Mapping[str, Any], loops: Sequence[Mapping[str, Any]]) -> None:
    """Print a plan, as `/v1/plan` answers it, and the loops that were found by following it."""
    print_lines(plan_lines(plan, loops))


def plan_lines(plan: Mapping[str, Any], loops: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """What is printed."""
    yield Line("routes", style="bold")
    for edit in plan["edits"][:EDITS_SHOWN]:
        yield from _edit(edit)
    more = len(plan["edits"]) - EDITS_SHOWN
    if more > 0 or plan["more_edits"]:
        yield Line(f"and {more:,} more" if not plan["more_edits"] else "and many more", indent=2)
    if not plan["edits"] and not plan["more_edits"]:
        yield Line("nothing changes", indent=2)
    yield Line("conversations under way", style="bold")
    for fate, count in plan["fates"].items():
        yield Line(f"{count:8,}  {fate}", indent=2, is_table=True)
    if not plan["fates"]:
        yield Line("there are none", indent=2)
    for one in plan["consequences"][:CONSEQUENCES_SHOWN]:
        yield from _consequence(one)
    if len(plan["consequences"]) > CONSEQUENCES_SHOWN:
        yield Line("more of them with -o json", indent=2)
    for loop in loops:
        appears = "stays" if loop["was_there"] else "appears"
        yield Line(f"a loop {appears}, for {readable(loop['to_service'])}: {readable(loop['path'])}", style="bold")
    yield Line("")
    yield Line(_verdict(plan, loops), style="bold")


def _edit(edit: Mapping[str, Any]) -> Iterator[Line]:
    before, after = edit["before"], edit["after"]
    mark = "+" if before is None else "-" if after is None else "~"
    name = f"{readable(edit['database'])}: {readable(edit['name'])}"
    if before is not None and after is not None:
        changed = [
            f"{key} {_value(before[key])} -> {_value(after[key])}" for key in _PROPERTIES if before[key] != after[key]
        ]
        yield Line(f"{name}, {', '.join(changed)}", indent=2, mark=mark)
        return
    route = after if before is None else before
    told = [readable(str(route[key])) for key in _PROPERTIES[:4] if route[key] is not None]
    yield Line(f"{name}, {', '.join(told)}", indent=2, mark=mark)


def _consequence(one: Mapping[str, Any]) -> Iterator[Line]:
    mark = "!" if one["is_harm"] else " "
    text = f"{readable(one['flow'])} in {readable(one['database'])}, {readable(one['to_service'])}: {one['fate']}"
    yield Line(text, indent=2, mark=mark)
    yield Line(f"now {readable(one['before'])}", indent=6)
    yield Line(f"then {readable(one['after'])}", indent=6)


def _verdict(plan: Mapping[str, Any], loops: Sequence[Mapping[str, Any]]) -> str:
    new_loops = sum(not loop["was_there"] for loop in loops)
    harms = []
    if plan["harmed"]:
        harms.append(f"{plan['harmed']:,} conversations that have sent would move or lose their route")
    if new_loops:
        harms.append(f"{new_loops} {'loop appears' if new_loops == 1 else 'loops appear'}")
    return "; ".join(harms) if harms else "no conversation that has sent would move or lose its route"


def _value(value: Any) -> str:
    return "none" if value is None else readable(str(value))
