"""Tables of settings, results of the pipeline, warnings of `broker check`, and promises and rules with their tests."""

import re
import tomllib
from ast import literal_eval
from collections import defaultdict
from functools import cache
from itertools import groupby
from pathlib import Path

from broker.config.schema import Setting, settings_of
from broker.config.settings import Settings
from broker.config.toml import dotted
from broker.pipeline.results import MEANINGS, RESULTS
from broker.routing import lint
from tests.chaos.faults.catalog import FAULTS, TRIED
from tests.unit.routing.test_acceptance import CASES
from tools.pages.markers import table

_COLUMNS = ("Key", "Default", "Allowed", "Reload", "What it is", "Why")
_WARNINGS = Path(lint.__file__).with_name("lints.toml")
_PROMISING = {"delivery-guarantees.md": r"^### (.+)$", "operations.md": r"^## (?!The first minute)(.+)$"}
_BEYOND = ("Memory is bounded", "Only permitted peers connect, send and read")  # of docs/reliability.md
_ROOT = Path(__file__).parents[2]
CONFORMANCE = tomllib.loads((_ROOT / "tests" / "conformance.toml").read_text(encoding="utf-8"))
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
    """Return a row for each promise, with the tests whose marks name it and the faults that try it."""
    rows = (
        (link, "<br>".join(_tests()[key]), ", ".join(map("`{}`".format, TRIED.get(key, "").split())))
        for key, link in _promised().items()
    )
    return table(("Promise", "Tests", "Faults"), rows)


def conformance(group: str) -> str:
    """Return the table of one group of rules, cases or sentences, with the tests whose marks name them."""
    rows = (
        (key, one["says"], "<br>".join(_tests()[key]), one.get("choice", "")) for key, one in CONFORMANCE[group].items()
    )
    return table(("Mark", "What it says", "Test", "Our choice"), rows)


def _promised() -> dict[str, str]:
    """Return a link to each promise, by the name that marks have for it."""
    places = {
        title: f"{page}#{re.sub('[^a-z0-9]+', '-', title.lower())}"
        for page, heading in _PROMISING.items()
        for title in re.findall(heading, (_ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    } | dict.fromkeys(_BEYOND, "reliability.md#what-is-promised")
    return {re.sub(r"^(\d+)\..*", r"\1", title): f"[{title}](../{place})" for title, place in places.items()}


@cache
def _tests() -> dict[str, list[str]]:
    """
    Return the tests of each promise, and of each row of conformance.

    Raises:
        ValueError: One has no test; a mark, a case or a fault names none; or a fault is not named once.
    """
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted((_ROOT / "tests").rglob("test_*.py")):
        for keys, test in _MARK.findall(file.read_text(encoding="utf-8")):
            for key in literal_eval(f"[{keys}]"):
                tests[str(key)].append(f"`{file.relative_to(_ROOT)}::{test}`")
    rows = {key: one.get("cases") for group in CONFORMANCE.values() for key, one in group.items()}
    for key, cases in rows.items():
        if cases:
            tests[key].append(f"`tests/unit/routing/test_acceptance.py::test_case[{cases}]`")
    wrong = tests.keys() ^ {*rows, *_promised()} | TRIED.keys() - _promised().keys()
    wrong |= {*", ".join(filter(None, rows.values())).split(", ")} - {case[0] for case in CASES}
    if wrong or sorted(FAULTS) != sorted(" ".join(TRIED.values()).split()):
        raise ValueError(f"no test, or no promise: {wrong}; and each fault has to be in TRIED of its catalog once")
    return tests
