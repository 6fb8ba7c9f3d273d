"""Every line that the program may write to its log, read from its source: event, level, component and fields."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import broker

SOURCE = Path(broker.__file__).parent
LEVELS = ("debug", "info", "warning", "error")
_LEVEL_OF = {**dict(zip(LEVELS, LEVELS, strict=True)), "exception": "error", "rest_after": "error"}
_LOGGER = re.compile(r"^log\.|get_logger|\.rest_after$")
_APART = {"bench"}  # separate processes, without an operator


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
