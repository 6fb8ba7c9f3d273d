"""
Every page that is made of the code: the functions that make its parts, by the words of their markers.

To add a part, put two markers into a page and name its function here. A test fails when a committed page differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from broker.observe.message_catalogue import MessageChannel
from tools.pages import admin, api, commands, errors, figures, files, observe, tables
from tools.pages.example import Example
from tools.pages.markers import renew

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "api.md": {"api": api.names},
    "admin.md": {"operations": admin.operations},
    "cli.md": {"commands": commands.reference},
    "configuration.md": {"settings": tables.settings},
    "contributors/conformance.md": {group: partial(tables.conformance, group) for group in tables.CONFORMANCE},
    "contributors/promises.md": {"promises": tables.promises},
    "contributors/results.md": figures.RESULTS,
    "dispositions.md": {"dispositions": errors.dispositions},
    "errors/index.md": {
        "numbers": errors.numbers,
        "reasons": errors.reasons,
        "errors": errors.unnumbered,
        "setup": errors.setup,
    },
    "exit-codes.md": {"exit-codes": commands.exit_codes},
    "lints.md": {group: partial(tables.warnings, group) for group in ("table", "instance", "several")},
    "logs.md": {"events": observe.log_events},
    "metrics.md": {"metrics": observe.metrics, "labels": observe.labels},
    "performance.md": figures.PERFORMANCE,
    "pipeline-results.md": {"results": tables.results},
    "statements.md": {"numbers": partial(errors.raised, MessageChannel.STATEMENT)},
    "views.md": {"views": observe.views, "numbers": partial(errors.raised, MessageChannel.SELECT)},
}


def renewed(docs: Path, name: str) -> str:
    """
    Return a page with its parts made again.

    Raises:
        ValueError: The page lacks a marker.
    """
    page = (docs / name).read_text(encoding="utf-8")
    return renew(page, {word: make() for word, make in PARTS[name].items()})


def error_pages(docs: Path) -> dict[Path, str]:
    """Return the page of each number and reason, by path."""
    with tempfile.TemporaryDirectory() as directory, Example(Path(directory)) as example:
        return {docs / "errors" / name: text for name, text in errors.pages(example).items()}


def written(docs: Path) -> dict[Path, str]:
    """Return every page and file with its text, by path."""
    return files.files() | error_pages(docs) | {docs / name: renewed(docs, name) for name in PARTS}
