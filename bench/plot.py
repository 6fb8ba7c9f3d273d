"""
Bar charts of a stored result as SVG, for docs/performance.md.

    python -m bench.plot RESULT.json [docs/performance]

Drawn by hand: a few rectangles and words do not need a library for plots among what a developer has to install. Like
the pictures of docs/pictures, a chart has a title and a description for those who cannot see it, and dark colours.
"""

import sys
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from bench.figures import Result, Row, load, yardsticks
from bench.forwarding import FLOOD, PING
from bench.report import readable

DIRECTORY = Path(__file__).parents[1] / "docs" / "performance"
WIDTH, LABEL_WIDTH, VALUE_WIDTH = 860, 330, 70
BAR, GAP, TOP = 16, 12, 44
COLOURS = ("#84909d", "#5b8db8", "#c1572b", "#2f8f5b", "#7a5ba6")
PLAIN = "256 B"  # the case on which destinations, connections and rates are varied

_DRAWING = """\
<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' role='img'\
 aria-labelledby='title desc'>
<title id='title'>{title}</title>
<desc id='desc'>{description}</desc>
<style>
text {{ font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 12px; fill: #1f2328 }}
.paper {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
.paper {{ fill: #0d1117 }}
}}
</style>
<rect class='paper' width='{width}' height='{height}'/>
{parts}
</svg>
"""

Groups = dict[str, dict[str, float]]
"""Label of a group -> name of a series -> value."""


def drawing(title: str, description: str, height: int, parts: Iterable[str]) -> str:
    """An SVG of WIDTH pixels that follows the colour mode of the page around it."""
    return _DRAWING.format(
        width=WIDTH, height=height, title=escape(title), description=escape(description), parts="\n".join(parts)
    )


def chart(title: str, unit: str, groups: Groups) -> str:
    """Horizontal bars in groups, on one linear scale from 0, every bar with its value."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = dict(zip(series, COLOURS * len(series), strict=False))
    top = max(value for group in groups.values() for value in group.values())
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / top
    parts = [_text(12, 22, f"{title} ({unit})", "font-weight='bold'")]
    y = TOP
    for name in series:
        parts += [_bar(LABEL_WIDTH, y, 12, colours[name]), _text(LABEL_WIDTH + 20, y + 11, name)]
        y += 18
    y += GAP
    for label, group in groups.items():
        middle = y + len(group) * BAR / 2 + 4
        parts.append(_text(LABEL_WIDTH - 10, middle, label, "text-anchor='end'"))
        for name, value in group.items():
            width = max(1.0, value * scale)
            parts += [
                _bar(LABEL_WIDTH, y, width, colours[name]),
                _text(LABEL_WIDTH + width + 6, y + 11, readable(value)),
            ]
            y += BAR
        y += GAP
    values = (
        f"{label}: " + "; ".join(f"{name} {readable(value)}" for name, value in group.items())
        for label, group in groups.items()
    )
    return drawing(f"{title} ({unit})", ". ".join(values), y, parts)


def by_size(result: Result) -> str:
    """CPU time relative to the relay, one destination and one connection."""
    sticks = yardsticks(result.rows)
    rows = [row for row in _forwarding(result, FLOOD) if ", " not in row.case]
    groups = _grouped(rows, lambda row: row.case, lambda row: row.figure / sticks[row.key[:3]].figure)
    return chart("CPU time of the hop for each message, by payload", "times that of the relay", groups)


def by_load(result: Result) -> str:
    """CPU time at one size, by destinations and connections."""
    rows = [row for row in _forwarding(result, FLOOD) if row.case.split(", ")[0] == PLAIN]
    groups = _grouped(rows, lambda row: row.case.partition(", ")[2] or "1 destination", lambda row: row.figure)
    return chart(f"CPU time of the hop for each message of {PLAIN}", "microseconds", groups)


def latency(result: Result) -> str:
    """Median latency of one message in flight, by payload."""
    rows = [row for row in _forwarding(result, PING) if ", " not in row.case]
    groups = _grouped(rows, lambda row: row.case, lambda row: row.values["p50_us"])
    return chart("From sender to receiver, one message in flight, median", "microseconds", groups)


def main() -> None:
    """Write the plots for which a stored result has rows."""
    result = load(Path(sys.argv[1]))
    directory = Path(sys.argv[2]) if len(sys.argv) > 2 else DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    plots = {"cpu-by-payload": (by_size, FLOOD), "cpu-by-load": (by_load, FLOOD), "latency": (latency, PING)}
    for name, (draw, mode) in plots.items():
        if _forwarding(result, mode):
            path = directory / f"{name}.svg"
            path.write_text(draw(result), encoding="utf-8")
            print(path)


def _forwarding(result: Result, mode: str) -> list[Row]:
    return [row for row in result.rows if row.bench == "forwarding" and row.mode == mode]


def _grouped(rows: Iterable[Row], label: Callable[[Row], str], value: Callable[[Row], float]) -> Groups:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(label(row), {})[row.subject] = value(row)
    return groups


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f"<rect x='{x:.0f}' y='{y:.0f}' width='{width:.1f}' height='{BAR - 3}' fill='{colour}'/>"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' {more}>{escape(text)}</text>"


if __name__ == "__main__":
    main()
