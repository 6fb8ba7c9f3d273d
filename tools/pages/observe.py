"""Views, metrics and events of the log: the sections and tables of docs/views.md, docs/metrics.md and docs/logs.md."""

import ast
import gc
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

import broker
from broker.observe import views as memory_views
from broker.observe.metrics import METRICS, MetricDefinition
from broker.observe.views import MEMORY_VIEWS
from broker.store.sqlite.views import FILE_VIEWS, QUEUE
from tools.pages.markers import table

_TEXTS = Path(memory_views.__file__).parent
QUEUE_ITSELF = "A queue itself"
SOURCE = Path(broker.__file__).parent
LEVELS = ("debug", "info", "warning", "error")
_LEVEL_OF = {**dict(zip(LEVELS, LEVELS, strict=True)), "exception": "error", "rest_after": "error"}
_LOGGER = re.compile(r"^log\.|get_logger|\.rest_after$")
_APART = {"bench"}  # separate processes, without an operator


class ViewText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The text of one view.

    Attributes:
        is_instance: Whether its rows are the same for every database.
        columns: Meaning by name, of columns that the original has.
        own: The same of the others.
        more: Markdown after the table.
    """

    about: str
    is_instance: bool = False
    columns: Mapping[str, str] = {}
    own: Mapping[str, str] = {}
    more: str = ""


def views() -> str:
    """
    Return a section with a table of columns for each view.

    Raises:
        ValueError: The columns of a view are not those that have a text.
    """
    texts = {name: msgspec.convert(text, ViewText) for name, text in _read("views.toml").items()}
    columns = {name: list(view.columns) for name, view in FILE_VIEWS.items()} | {QUEUE_ITSELF: list(QUEUE.columns)}
    columns |= {name: list(names) for name, names in MEMORY_VIEWS.items()}
    if texts.keys() != columns.keys():
        raise ValueError(f"views without text, or texts without view: {sorted(texts.keys() ^ columns.keys())}")
    return "\n\n".join("\n\n".join(_view(name, text, columns[name])) for name, text in texts.items())


def _view(name: str, text: ViewText, columns: list[str]) -> Iterator[str]:
    if sorted(columns) != sorted([*text.columns, *text.own]):
        differing = sorted({*columns} ^ {*text.columns, *text.own})
        raise ValueError(f"{name}: in broker/observe/views.toml a text is missing, or one too many, for {differing}")
    yield f"## {name}"
    yield f"*Instance.* {text.about}" if text.is_instance else text.about
    rows = ((f"*`{one}`*", text.own[one]) if one in text.own else (f"`{one}`", text.columns[one]) for one in columns)
    yield table(("Column", "Meaning"), rows)
    if text.more:
        yield text.more.strip()


def metrics() -> str:
    """Return the table of metrics, in the order of a scrape."""
    return table(("Metric", "Type", "What it is"), ((f"`{_labelled(one)}`", one.kind, one.help) for one in METRICS))


def _labelled(metric: MetricDefinition) -> str:
    return f"{metric.name}{{{','.join(metric.labels)}}}" if metric.labels else metric.name


def labels() -> str:
    """
    Return the table of labels.

    Raises:
        ValueError: The labels of the metrics are not those that have a text.
    """
    texts, used = _read("metric_labels.toml"), {label for one in METRICS for label in one.labels} | {"le"}
    if texts.keys() != used:
        raise ValueError(f"labels without text, or texts without label: {sorted(texts.keys() ^ used)}")
    return table(("Label", "Values"), ((f"`{label}`", text) for label, text in texts.items()))


def log_events() -> str:
    """
    Return the table of events, the most serious first.

    Raises:
        ValueError: The events of the source are not those that have a meaning.
    """
    texts, known = _read("log_events.toml"), events()
    if texts["meanings"].keys() != known.keys():
        raise ValueError(f"events without text, or texts without event: {texts['meanings'].keys() ^ known.keys()}")
    rows = []
    for event, one in known.items():
        fields = one.fields - {"**"} | {*texts["passed_on"].get(event, ())}
        levels = sorted(one.levels, key=LEVELS.index, reverse=True)
        cells = (f"`{event}`", ", ".join(levels), _names(one.components), _names(fields), texts["meanings"][event])
        rows.append((-LEVELS.index(levels[0]), cells))
    columns = ("Event", "Level", "Component", "Fields", "What it means, and what to do")
    return table(columns, (cells for _, cells in sorted(rows)))


class LogEvent(NamedTuple):
    """One kind of line, with every level, component and field that it may have."""

    levels: set[str]
    components: set[str]
    fields: set[str]


@cache
def events() -> dict[str, LogEvent]:
    """Return every event, over all calls."""
    found: defaultdict[str, LogEvent] = defaultdict(lambda: LogEvent(set(), set(), set()))
    for module in sorted(SOURCE.rglob("*.py")):
        component = module.relative_to(SOURCE).parts[0].removesuffix(".py")
        if component not in _APART:
            for call, level in log_calls(parse(module)):
                for event in texts_of(call):
                    found[event].levels.add(level)
                    found[event].components.add(component)
                    # `**` where more are passed on; the traceback has a separate column
                    found[event].fields.update({one.arg or "**" for one in call.keywords} - {"exc_info"})
    return dict(found)


def parse(module: Path) -> ast.Module:
    """Return a module as a tree, without garbage collection: CPython 3.11 fails if that parses something meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(module.read_text(encoding="utf-8"))
    finally:
        if was_on:
            gc.enable()


def log_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that write to the log, each with its level; with one of two levels, twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for one in (node.func.body, node.func.orelse) if isinstance(node.func, ast.IfExp) else (node.func,):
                if isinstance(one, ast.Attribute) and one.attr in _LEVEL_OF and _LOGGER.search(ast.unparse(one)):
                    yield node, _LEVEL_OF[one.attr]


def texts_of(call: ast.Call) -> list[str]:
    """Return the events that a call may have."""
    first = call.args[0]
    parts = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_TEXTS / name).read_text(encoding="utf-8"))
