"""The tables of the warnings of `broker check` in docs/lints.md, from their catalogue."""

from __future__ import annotations

import tomllib
from pathlib import Path

from broker.routing import lint
from tools.pages.markers import table

_TEXTS = Path(lint.__file__).with_name("lints.toml")


def warnings(group: str) -> str:
    """Return the table of one group of warnings."""
    texts = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))[group]
    rows = ((f"`{code}`", one["meaning"], one["remedy"]) for code, one in texts.items())
    return table(("Code", "What it means", "What to do"), rows)
