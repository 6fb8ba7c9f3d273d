"""
Tables of the stored results of benchmarks, from docs/performance/*.json, in the pages of figures.

A test fails when a file of results is on no page.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Row, load, yardsticks
from bench.report import head, readable

DIRECTORY = Path(__file__).parents[2] / "docs" / "performance"
_NUMBER = re.compile(r"(?![\d,.]+ [a-zA-Z])[\d.]")
_SPREAD_SHOWN = 0.005  # below it a spread is 0 %
_LIST_SHOWN = 10  # longer ones are what a graph is drawn from


def compared(name: str, mode: str, *, only: str = "", without: str = "") -> str:
    """
    Return a table of headlines with their spread and ratio to the yardstick: a line for each case, a column a subject.

    Args:
        name: File of results without its suffix.
        mode: Of the rows.
        only: Pattern that a case has to match from its beginning.
        without: Pattern of cases to leave out.
    """
    result = load(DIRECTORY / f"{name}.json")
    rows = [row for row in result.rows if row.mode == mode and re.match(only, row.case)]
    rows = [row for row in rows if not without or not re.search(without, row.case)]
    sticks, subjects = yardsticks(rows), list(dict.fromkeys(row.subject for row in rows))
    table = []
    for case in dict.fromkeys(row.case for row in rows):
        cells = {row.subject: _figure(row, sticks.get(row.key[:3])) for row in rows if row.case == case}
        table.append([case, *(cells.get(subject, "") for subject in subjects)])
    return _table(name, [_column(rows[0].headline), *subjects], table)


def listed(name: str, mode: str, values: str = "") -> str:
    """
    Return a table with a line for each case and subject, and a column for each value.

    Args:
        name: File of results without its suffix.
        mode: Of the rows.
        values: Names of the values to show, all of them if empty.
    """
    rows = [row for row in load(DIRECTORY / f"{name}.json").rows if row.mode == mode]
    names = values.split() or list(dict.fromkeys(value for row in rows for value in row.values))
    has_cases = len({row.case for row in rows}) > 1
    table = []
    for row in rows:
        cells = (readable(row.values[value]) if value in row.values else "" for value in names)
        table.append([*([row.case] if has_cases else []), row.subject, *cells])
    columns = [*(["case", ""] if has_cases else [rows[0].case]), *map(_column, names)]
    return _table(name, columns, table)


def fleet(name: str) -> str:
    """Return the numbers of a simulated fleet, one a line."""
    stored = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    date = str(stored.pop("date")).partition("T")[0]
    lines = [f"| {key} | {value} |" for key, value in _flat("", stored)]
    return "\n".join([_caption(name, date), "", "| | |", "|---|---:|", *lines])


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{path}: {key}" if path else str(key), inner)
    elif isinstance(value, list):
        if len(value) <= _LIST_SHOWN:
            yield path, ", ".join(map(str, value)) or "none"
    else:
        yield path, f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


def _figure(row: Row, stick: Row | None) -> str:
    spread = f" ± {row.spread:.0%}" if row.spread >= _SPREAD_SHOWN else ""
    ratio = "" if stick is None or stick is row else f" ({row.figure / stick.figure:.1f})"
    return f"{readable(row.figure)}{spread}{ratio}"


def _table(name: str, columns: list[str], rows: list[list[str]]) -> str:
    result = load(DIRECTORY / f"{name}.json")
    cpu = result.machine["cpu"].replace("(R)", "").replace(" Processor", "")
    load_average = f"load {result.load['before'].split()[0]} before, {result.load['after'].split()[0]} after"
    texts = sum(not any(_NUMBER.match(row[at]) for row in rows) for at in range(len(columns)))
    lines = [
        _caption(name, f"{result.at[:10]}, {result.machine['cores']} cores of an {cpu}, {load_average}"),
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * texts}{'---:|' * (len(columns) - texts)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", line) for line in lines)


def _column(value: str) -> str:
    return head(value).replace("mib", "MiB").replace("kib", "KiB").replace("cpu", "CPU").replace(" us", " µs")


def _caption(name: str, about: str) -> str:
    return f"*`docs/performance/{name}.json`: {about}*"


PERFORMANCE: dict[str, Callable[[], str]] = {
    "forwarding-size": partial(compared, "forwarding", "flood", without=","),
    "forwarding-load": partial(compared, "forwarding", "flood", only="256 B, "),
    "peers": partial(compared, "peers", "flood"),
    "latency-ping": partial(compared, "latency", "ping"),
    "dialogs": partial(compared, "dialogs", "through a gateway"),
    "replies": partial(compared, "dialogs", "request and reply"),
    "backlog": partial(compared, "dialogs", "drain"),
    "large": partial(listed, "dialogs", "large"),
    "durable": partial(listed, "durable", "1 KiB, durable at both ends", "p50_us p99_us exchanges_s messages_s"),
    "change": partial(compared, "change", "flood, 10 changes a second"),
    "change-start": partial(compared, "change", "a start"),
    "change-miss": partial(compared, "change", "a miss"),
    "journal-flood": partial(compared, "journal", "flood"),
    "mirrors": partial(listed, "mirrors", "4 dialogs, one gateway"),
    "pipeline-first": partial(compared, "pipeline", "20,000,000 records, first pass"),
    "pipeline-second": partial(compared, "pipeline", "20,000,000 records, second pass"),
}
RESULTS: dict[str, Callable[[], str]] = {
    "faults-lock": partial(listed, "faults-lock", "phases"),
    "faults-command": partial(listed, "faults-command", "phases"),
    "fleets": partial(fleet, "fleets"),
    "knee": partial(listed, "saturation", "knee", "messages_s p50_us p99_us"),
    "overload-fates": partial(listed, "overload", "what became of it"),
    "overload-windows": partial(
        listed, "overload", "windows", "messages_s refused_pct p50_us p99_us peak_mib limit_mib admin_ms"
    ),
    "overload-recovery": partial(listed, "overload", "recovery"),
    "connections": partial(listed, "connections", "states"),
    "open-dialogs": partial(listed, "open-dialogs", "phases"),
    "day": partial(listed, "day", "the whole day"),
    "day-hours": partial(listed, "day", "hours", "messages_s p50_ms p99_ms"),
}
