"""Which module imports which, wherever in its text, and the rings they make."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(slots=True)
class Imports:
    """What one module imports of its package, inside functions too. Shape: full names of modules."""

    at_run_time: set[str] = field(default_factory=set)
    for_types: set[str] = field(default_factory=set)


@cache
def imports_of(root: Path, package: str) -> Mapping[str, Imports]:
    """Every module of a package below `root`, by its full name."""
    paths = {_name(path.relative_to(root)): path for path in (root / package).rglob("*.py")}
    return {name: _imports(ast.parse(path.read_text(encoding="utf-8")), set(paths)) for name, path in paths.items()}


def rings(graph: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """The largest sets of more than one node that all lead to each other, each in the order of the alphabet."""
    reached = {node: _reached(graph, node) for node in graph}
    found = {
        frozenset(other for other in seen if node in reached[other]) for node, seen in reached.items() if node in seen
    }
    return sorted(sorted(ring) for ring in found)


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, known: set[str]) -> Imports:
    found = Imports()
    for node, is_for_types in _walk(tree, is_for_types=False):
        named = {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{name}" for name in named}
            named = full & known or {str(node.module)}
        (found.for_types if is_for_types else found.at_run_time).update(named & known)
    return found


def _walk(node: ast.AST, *, is_for_types: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_for_types
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _walk(child, is_for_types=True)
        else:
            yield from _walk(child, is_for_types=is_for_types)


def _reached(graph: Mapping[str, AbstractSet[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph[node]
    return seen
