"""Tables of settings, of results of the pipeline, of warnings of `broker check`, and of promises with their tests."""

from __future__ import annotations

import re
import tomllib
from ast import literal_eval
from collections import defaultdict
from itertools import groupby
from pathlib import Path

from broker.config.schema import Setting, settings_of
from broker.config.settings import Settings
from broker.config.toml import dotted
from broker.pipeline.results import MEANINGS, RESULTS
from broker.routing import lint
from tests.chaos.faults.catalog import FAULTS, TRIED
from tools.pages.markers import table

_COLUMNS = ("Key", "Default", "Allowed", "Reload", "What it is", "Why")
_WARNINGS = Path(lint.__file__).with_name("lints.toml")
_PROMISING = {"delivery-guarantees.md": r"^### (.+)$", "operations.md": r"^## (?!The first minute)(.+)$"}
_BEYOND = ("Memory is bounded", "Only permitted peers connect, send and read")  # of docs/reliability.md
_ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"^@pytest\.mark\.promise\(([^()]+)\)\n(?:[@ )\]].*\n)*(?:async )?def (\w+)", re.MULTILINE)


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


def promises() -> str:
    """
    Return a row for each promise, with the tests whose marks name it and the faults that try it.

    Raises:
        ValueError: A promise has no test, a mark or a fault names no promise, or a fault is not named once.
    """
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted((_ROOT / "tests").rglob("test_*.py")):
        for keys, test in _MARK.findall(file.read_text(encoding="utf-8")):
            for key in literal_eval(f"[{keys}]"):
                tests[str(key)].append(f"`{file.relative_to(_ROOT)}::{test}`")
    links = {
        title: f"{page}#{re.sub('[^a-z0-9]+', '-', title.lower())}"
        for page, heading in _PROMISING.items()
        for title in re.findall(heading, (_ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    } | dict.fromkeys(_BEYOND, "reliability.md#what-is-promised")
    titles = {title.partition(".")[0] if title[0].isdigit() else title: title for title in links}
    wrong = [*(titles.keys() ^ tests.keys()), *(TRIED.keys() - links.keys())]
    if wrong or sorted(FAULTS) != sorted(" ".join(TRIED.values()).split()):
        raise ValueError(f"no test, or no promise: {wrong}; and each fault has to be in TRIED of its catalog once")
    rows = (
        (
            f"[{title}](../{links[title]})",
            "<br>".join(tests[key]),
            ", ".join(map("`{}`".format, TRIED.get(title, "").split())),
        )
        for key, title in titles.items()
    )
    return table(("Promise", "Tests", "Faults"), rows)
