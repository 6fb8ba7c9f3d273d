"""Tables of settings, of the results of the pipeline, and of the warnings of `broker check`."""

from __future__ import annotations

import tomllib
from itertools import groupby
from pathlib import Path

from broker.config.schema import Setting, settings_of
from broker.config.settings import Settings
from broker.config.toml import dotted
from broker.pipeline.results import MEANINGS, RESULTS
from broker.routing import lint
from tools.pages.markers import table

_COLUMNS = ("Key", "Default", "Allowed", "Reload", "What it is", "Why")
_WARNINGS = Path(lint.__file__).with_name("lints.toml")


def settings() -> str:
    """Return a heading and a table for each section, with a row for each key."""
    sections = groupby(settings_of(Settings), key=lambda one: one.path[:-1])
    return "\n\n".join(f"### `[{dotted(path)}]`\n\n{table(_COLUMNS, map(_cells, rows))}" for path, rows in sections)


def _cells(one: Setting) -> tuple[str, ...]:
    form = one.form
    allowed = f"{form.allowed} ({form.kind.unit})" if form.kind.unit else form.allowed
    default = one.default if one.default_is_said else f"`{one.default}`" if one.default else "required"
    return f"`{one.path[-1]}`", default, allowed, one.reload.value, one.description, one.why


def results() -> str:
    """Return a heading and a table for each result of the pipeline, with a row for each column."""
    parts = []
    for name, schema in RESULTS.items():
        rows = ((one.name, one.dataType.simpleString(), MEANINGS[name][one.name]) for one in schema)
        parts.append(f"### {name}\n\n{table(('Column', 'Type', ''), rows)}")
    return "\n\n".join(parts)


def warnings(group: str) -> str:
    """Return the table of one group of warnings."""
    texts = tomllib.loads(_WARNINGS.read_text(encoding="utf-8"))[group]
    rows = ((f"`{code}`", one["meaning"], one["remedy"]) for code, one in texts.items())
    return table(("Code", "What it means", "What to do"), rows)
