"""The tables of all settings in docs/configuration.md, made of the models."""

from __future__ import annotations

from itertools import groupby

from broker.config.schema import Setting, settings_of
from broker.config.settings import Settings
from broker.config.toml import dotted
from tools.pages.markers import table

_COLUMNS = ("Key", "Default", "Allowed", "Reload", "What it is", "Why")


def settings() -> str:
    """Return a heading and a table for each section, with a row for each key."""
    sections = groupby(settings_of(Settings), key=lambda one: one.path[:-1])
    return "\n\n".join(f"### `[{dotted(path)}]`\n\n{table(_COLUMNS, map(_cells, rows))}" for path, rows in sections)


def _cells(one: Setting) -> tuple[str, ...]:
    form = one.form
    allowed = f"{form.allowed} ({form.kind.unit})" if form.kind.unit else form.allowed
    default = one.default if one.default_is_said else f"`{one.default}`" if one.default else "required"
    return f"`{one.path[-1]}`", default, allowed, one.reload.value, one.description, one.why
