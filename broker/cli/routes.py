"""
`broker routes plan`: shows what a script of routes would do, before it runs.

In a terminal, a plan begins with the changed routes and ends with the verdict. Marks before a route are those of a diff
(`+` created, `-` dropped, `~` altered), `!` is harm, `?` is unknown. Conversations with the same change are one entry.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from broker.admin.client import AdminClient
from broker.admin.trace import Directory, ask, follow_plan
from broker.catalog.catalog import MSDB
from broker.cli.access import admin_client, credentials
from broker.cli.exit_codes import ExitCode
from broker.cli.options import INPUT, Config, Group, Output, Socket, Where
from broker.cli.output import TextLine, print_lines, show_json
from broker.cli.sql import SCRIPT_SECONDS
from broker.config.units import counted, duration
from broker.ddl.lexer import decode_script
from broker.observe.explain import ExplainAnswer
from broker.routing.address import LOCAL
from broker.routing.plan import HARMFUL, UNCHANGED, Fate

# In a terminal; -o json has more.
EDITS_SHOWN = 50
GROUPS_SHOWN = 20
WAYS_SHOWN = 10
TRANSIT_COUNTED = "those that go the same way count as one, and one whose target became known as two"

_PROPERTIES = {
    "remote_service_name": "service",
    "broker_instance": "broker instance",
    "address": "address",
    "mirror_address": "mirror",
    "weight": "weight",
    "lifetime": "expires",
}
_LEFT_OUT = {
    "remote_service_name": "any service",
    "broker_instance": "any",
    "mirror_address": "none",
    "lifetime": "never",
}
_WOULD = {
    Fate.KEEPS: "keep {its} target",
    Fate.FINDS: "find a route",
    Fate.STAYS_LOST: "stay without a route",
    Fate.OTHER_PATHS: "keep {its} target, over other paths",
    Fate.MOVES: "move",
    Fate.LOSES: "lose {its} route",
    Fate.FAILS: "lose {its} service here",
}


@click.group(cls=Group)
def routes() -> None:
    """
    Plan a change of routes.

    Examples:
        broker routes plan new-routes.sql -c config/gateway.toml
        broker routes plan new-routes.sql -d orders --through
    """


@routes.command()
@click.option(
    "-d", "--database", help="Database in which the script begins; by default the only user database, or msdb."
)
@click.option("--through", is_flag=True, help="Follow changed routes over the next instances, and find loops.")
@click.option("--accept-harm", is_flag=True, help="Exit with 0 whatever would happen.")
@click.argument("script", type=INPUT)
def plan(
    config: Config,
    socket: Socket,
    output: Output,
    where: Where,
    script: Path,
    *,
    database: str | None,
    through: bool,
    accept_harm: bool,
) -> NoReturn:
    """
    Show what a script would do to routes and conversations.

    SCRIPT is a file, or - for standard input; the running instance tries it and changes nothing. A gateway knows the
    conversations that passed through it lately. Exit codes: 0 no harm; 1 the script would be refused; 3 it names what
    does not exist; 4 daemon unreachable; 6 a conversation that has sent would move, or lose route, service or
    permission, or a loop appears.

    Examples:
        broker routes plan new-routes.sql -c config/gateway.toml --through
        broker routes plan new.sql -d orders --through && broker sql -d orders < new.sql
    """
    if where and not through:
        raise click.UsageError("--admin says where --through asks: add it")
    # Patient: many conversations take a while, and so does a script before this one.
    client = admin_client(config, socket, timeout=SCRIPT_SECONDS)
    source, data = ("<stdin>", sys.stdin.buffer.read()) if str(script) == "-" else (str(script), script.read_bytes())
    text = decode_script(data, source=source)
    request = {"script": text, "database": database, "source": source, "arrivals": through}
    answer = client.request("POST", "/v1/plan", request)
    arrivals, more = answer.pop("arrivals"), answer.pop("more_arrivals")
    answer["followed"] = _follow(client, arrivals, where, is_all=not more) if through else None
    if output == "json":
        show_json(answer)
    else:
        print_lines(plan_lines(answer | {"gap": transit_gap(client, answer)}))
    sys.exit(ExitCode.HARMFUL if _harm(answer) and not accept_harm else 0)


def _follow(client: AdminClient, arrivals: list[Any], where: Where, *, is_all: bool) -> dict[str, Any]:
    """The paths of messages after the planning instance."""
    first = msgspec.convert(arrivals, list[ExplainAnswer])
    directory = Directory(where, credentials=credentials())
    for answer in first[:1]:
        directory.learn(client, answer)
    followed = follow_plan(first, lambda request: ask(client, request), directory.explain)
    found: dict[str, Any] = msgspec.to_builtins(followed)
    return found | {"count": len(first), "is_all": is_all}


def transit_gap(client: AdminClient, plan: Mapping[str, Any]) -> str:
    """Which dialogs in transit a plan does not know; empty if it drops or alters no route that leads arrivals on."""
    before = (edit["before"] for edit in plan.get("edits", ()) if edit["database"] == MSDB)
    if not any(route is not None and route["address"] != LOCAL for route in before):
        return ""
    uptime = duration(1e6 * client.request("GET", "/v1/status")["uptime_s"]).text
    return f"of those in transit, at most what passed since the start {uptime} ago is known"


def plan_lines(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    """
    A plan in a terminal.

    Args:
        plan: The answer of `/v1/plan`, with `followed` instead of the arrivals: their paths, or None; perhaps with
            the `gap` of `transit_gap`.
    """
    yield from _edits(plan)
    yield TextLine("")
    yield from _fates(plan)
    yield from _consequences(plan)
    yield from _refused(plan)
    yield from _expired(plan)
    if plan["followed"] is not None:
        yield TextLine("")
        yield from _ways(plan["followed"])
    yield TextLine("")
    harm = _harm(plan)
    yield TextLine(harm or _harmless(plan), style="bold red" if harm else "bold")


def _edits(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    edits, more = plan["edits"], plan["more_edits"]
    for database, some in groupby(edits[:EDITS_SHOWN], itemgetter("database")):
        yield TextLine(f"Routes of {database}", style="bold")
        yield from map(_edit, some)
    if not edits:
        yield TextLine("Routes", style="bold")
    if more is None:
        yield TextLine("more than 10,000 changes, which are too many to list", indent=2)
    elif len(edits) + more > EDITS_SHOWN:
        yield TextLine(f"and {len(edits) + more - EDITS_SHOWN:,} more", indent=2)
    elif not edits:
        yield TextLine("nothing changes", indent=2)


def _edit(edit: Mapping[str, Any]) -> TextLine:
    before, after = edit["before"], edit["after"]
    if before is None:
        return TextLine(f"{edit['name']}: {_described(after)}", indent=2, mark="+", style="green")
    if after is None:
        return TextLine(f"{edit['name']}: {_described(before)}", indent=2, mark="-", style="red")
    changes = [
        f"{word} {_value(key, before[key])} -> {_value(key, after[key])}"
        for key, word in _PROPERTIES.items()
        if before[key] != after[key]
    ]
    return TextLine(f"{edit['name']}: {', '.join(changes)}", indent=2, mark="~", style="yellow")


def _described(route: Mapping[str, Any]) -> str:
    service = route["remote_service_name"]
    usual = {"broker_instance": None, "mirror_address": None, "weight": 1, "lifetime": None}
    unusual = [f"{_PROPERTIES[key]} {_value(key, route[key])}" for key, value in usual.items() if route[key] != value]
    return ", ".join([f"{_value('remote_service_name', service)} -> {route['address']}", *unusual])


def _value(key: str, value: Any) -> str:
    if value is None:
        return _LEFT_OUT[key]
    return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S} UTC" if key == "lifetime" else str(value)


def _fates(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    yield TextLine("Conversations under way", style="bold")
    yield from _fate_counts(plan["fates"])
    if not plan["fates"]:
        yield TextLine("none is known" if plan.get("gap") else "there are none", indent=2)
    if plan["passing"]:
        yield TextLine(f"{plan['passing']:,} of them in transit ({TRANSIT_COUNTED})", indent=2)
    if gap := plan.get("gap"):
        yield TextLine(gap, indent=2, mark="?", style="yellow")


def _consequences(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    """The changed conversations, grouped by their change."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in plan["consequences"]:
        groups.setdefault(tuple(one[key] for key in one if key != "conversation"), []).append(one)
    for some in list(groups.values())[:GROUPS_SHOWN]:
        yield TextLine("")
        mark, style = ("!", "red") if some[0]["is_harm"] else ("·", "")
        yield TextLine(_described_group(some), indent=2, mark=mark, style=style)
        yield TextLine(f"now:  {some[0]['before']}", indent=4)
        yield TextLine(f"then: {some[0]['after']}", indent=4)
    changed = sum(count for fate, count in plan["fates"].items() if fate not in UNCHANGED)
    shown = sum(len(some) for some in list(groups.values())[:GROUPS_SHOWN])
    if changed > shown:
        yield TextLine("")
        yield TextLine(f"and {changed - shown:,} more that change", indent=2)


def _refused(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    if (refused := plan.get("refused")) is None:
        return
    yield TextLine("")
    yield TextLine("Permissions", style="bold")
    for sentence in refused[:GROUPS_SHOWN]:
        yield TextLine(sentence, indent=2, mark="!", style="red")
    if len(refused) > GROUPS_SHOWN:
        yield TextLine(f"and {len(refused) - GROUPS_SHOWN:,} more", indent=2)
    others = "peers that are not connected, and permissions in user databases, are not judged"
    after = "after the script, broker explain --to SERVICE --peer PEER shows each"
    yield TextLine(f"{others}; {after}", indent=2, mark="?", style="yellow")


def _expired(plan: Mapping[str, Any]) -> Iterator[TextLine]:
    """The changes when the routes with a LIFETIME have expired, if there are any."""
    expired = plan["expired"]
    news = {fate: count for fate, count in (expired["fates"] if expired else {}).items() if fate not in UNCHANGED}
    if expired is None or not news:
        return
    yield TextLine("")
    yield TextLine(f"When the last LIFETIME has ended, at {_value('lifetime', expired['at'])}", style="bold")
    yield from _fate_counts(news)


def _fate_counts(fates: Mapping[str, int]) -> Iterator[TextLine]:
    """A line for each fate, the worst first."""
    for fate in reversed(Fate):
        count = fates.get(fate.value, 0)
        if count:
            style = "red" if fate in HARMFUL else ""
            yield TextLine(f"{count:>8,}  would {_words(fate, count)}", style=style, is_table=True)


def _described_group(group: list[Mapping[str, Any]]) -> str:
    one, count = group[0], len(group)
    fate = _words(Fate(one["fate"]), count)
    where = "in transit" if one["database"] is None else f"of {one['database']}"
    if one["conversation"] is None:
        return f"{where}, to {one['to_service']}: would {fate}"
    if count == 1:
        return f"{one['conversation']} {where}, to {one['to_service']}: would {fate}"
    return f"{count:,} {where}, to {one['to_service']}: would {fate}; the first is {one['conversation']}"


def _words(fate: Fate, count: int) -> str:
    return _WOULD[fate].format(its="its" if count == 1 else "their")


def _ways(followed: Mapping[str, Any]) -> Iterator[TextLine]:
    yield TextLine("Over the next instances", style="bold")
    loops, unknown = followed["loops"], followed["unknown"]
    for loop in loops[:WAYS_SHOWN]:
        today = "; it is there today" if loop["was_there"] else ""
        yield TextLine(f"to {loop['to_service']}: {loop['path']}{today}", indent=2, mark="!", style="red")
    if len(loops) > WAYS_SHOWN:
        yield TextLine(f"and {counted(len(loops) - WAYS_SHOWN, 'more loop')}", indent=2)
    if not loops:
        yield TextLine(f"{counted(followed['count'], 'service')} followed, no loop found", indent=2)
    for sentence in unknown[:WAYS_SHOWN]:
        yield TextLine(sentence, indent=2, mark="?", style="yellow")
    if len(unknown) > WAYS_SHOWN:
        yield TextLine(f"and {counted(len(unknown) - WAYS_SHOWN, 'more way')} whose end is not known", indent=2)
    if not followed["is_all"]:
        yield TextLine("there are more services than were followed", indent=2, mark="?", style="yellow")


def _harm(plan: Mapping[str, Any]) -> str:
    """The harm that the script does, in one sentence; empty when there is none."""
    harms = []
    about = "about " if plan["passing"] else ""
    if plan["harmed"]:
        has, its = ("has", "its") if plan["harmed"] == 1 else ("have", "their")
        count = f"{about}{counted(plan['harmed'], 'conversation')}"
        harms.append(f"{count} that {has} sent would move, or lose {its} route or service")
    expired = plan["expired"]
    if expired is not None and expired["harmed"] > plan["harmed"]:
        harms.append(f"{counted(expired['harmed'], 'conversation')} when the last LIFETIME has ended")
    new = sum(not loop["was_there"] for loop in plan["followed"]["loops"]) if plan["followed"] else 0
    if plan.get("refused"):
        harms.append("peers would be refused")
    if new:
        harms.append(f"{counted(new, 'loop')} would appear")
    return f"harm: {'; '.join(harms)}" if harms else ""


def _harmless(plan: Mapping[str, Any]) -> str:
    followed, known = plan["followed"], " is known" if plan.get("gap") else ""
    kept = "no conversation that has sent would move, or lose its route or service"
    if plan.get("refused") is None:
        kept = f"no harm{known}: {kept}"
    else:
        kept = f"no harm to conversations and connected peers{known}: {kept}, and no such peer would be refused"
    if followed is None:
        return kept
    is_all = followed["is_all"] and not followed["unknown"]
    return f"{kept}; no loop would appear{'' if is_all else ', as far as is known'}"
