"""Every line that the program may write to its log, read from its source: event, level, component and fields."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import broker

SOURCE = Path(broker.__file__).parent
LEVELS = ("debug", "info", "warning", "error")
_APART = {"bench"}  # processes of its own, without an operator


class LogEvent(NamedTuple):
    """One kind of line, with every level, component and field that it may have."""

    event: str
    levels: frozenset[str]
    components: frozenset[str]
    fields: frozenset[str]


@cache
def events() -> dict[str, LogEvent]:
    """Return every event, over all calls."""
    levels: defaultdict[str, set[str]] = defaultdict(set)
    components: defaultdict[str, set[str]] = defaultdict(set)
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for module in sorted(SOURCE.rglob("*.py")):
        component = module.relative_to(SOURCE).parts[0].removesuffix(".py")
        if component not in _APART:
            for event, level, names in _calls(module):
                levels[event].add(level)
                components[event].add(component)
                fields[event] |= names
    return {
        event: LogEvent(event, frozenset(levels[event]), frozenset(components[event]), frozenset(fields[event]))
        for event in levels
    }


def parse(module: Path) -> ast.Module:
    """Return a module as a tree, without garbage collection: CPython 3.11 fails if that parses something meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(module.read_text(encoding="utf-8"))
    finally:
        if was_on:
            gc.enable()


def _calls(module: Path) -> Iterator[tuple[str, str, set[str]]]:
    tree = parse(module)
    for call in log_calls(tree):
        for event in texts_of(call):
            yield event, _level(call), _fields(call)
    chosen = _chosen(tree)
    for node in ast.walk(tree):  # calls that pass an event on, or whose level was chosen before
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called, first = ast.unparse(node.func), node.args[0].value
            if not isinstance(first, str):
                continue
            event = first
            if called in chosen:
                yield from ((event, level, _fields(node)) for level in chosen[called])
            elif called.endswith("limited_log.warning"):
                yield event, "warning", _fields(node)
            elif called.endswith(".rest_after"):
                yield event, "error", {"database", "queue", "reason", "pause_s"}


def _chosen(tree: ast.AST) -> dict[str, set[str]]:
    """Return names like `write = log.warning if ... else log.info`, each with both levels."""
    return {
        ast.unparse(node.targets[0]): {one.attr for one in (node.value.body, node.value.orelse)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.IfExp)
        and isinstance(node.value.body, ast.Attribute)
        and isinstance(node.value.orelse, ast.Attribute)
        and node.value.body.attr in LEVELS
        and node.value.orelse.attr in LEVELS
    }


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that write to the log."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in (*LEVELS, "exception", "critical")
            and (ast.unparse(node.func.value) == "log" or "get_logger" in ast.unparse(node.func.value))
        ):
            yield node


def texts_of(call: ast.Call) -> list[str]:
    """Return the events that a call may have."""
    first = call.args[0]
    parts = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _level(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return "error" if call.func.attr == "exception" else call.func.attr


def _fields(call: ast.Call) -> set[str]:
    """Fields by name, and `**` where more are passed on. The traceback has a separate column."""
    return {keyword.arg or "**" for keyword in call.keywords} - {"exc_info"}
