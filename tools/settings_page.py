"""
The reference of all settings, made from the models, so that page and program cannot differ.

`docs/configuration.md` is written by hand around two markers; what stands between them is made here:

    python -m tools.settings_page docs/configuration.md

rewrites that part. A test fails when the committed page differs from what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby

from broker.config.schema import Setting, settings_of
from broker.config.settings import Settings
from broker.config.toml import dotted
from tools.marked import renew, rewrite


def render_reference() -> str:
    """Markdown: a heading and a table for each section, a row for each key."""
    sections = groupby(settings_of(Settings), key=lambda one: one.path[:-1])
    return "\n".join(_section(dotted(path), rows) for path, rows in sections).rstrip("\n")


def renew_page(page: str) -> str:
    """The page with the tables made anew. Raises ValueError: it lacks a marker."""
    return renew(page, {"settings": render_reference()}, "tools.settings_page")


def _section(name: str, rows: Iterable[Setting]) -> str:
    lines = [
        f"### `[{name}]`",
        "",
        "| Key | Default | Allowed | Reload | What it is | Why |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, rows), ""])


def _row(one: Setting) -> str:
    form = one.form
    allowed = f"{form.allowed} ({form.kind.unit})" if form.kind.unit else form.allowed
    default = one.default if one.default_is_said else f"`{one.default}`" if one.default else "required"
    cells = (f"`{one.path[-1]}`", default, allowed, one.reload.value, one.description, one.why)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    rewrite(sys.argv[1:], renew_page)
