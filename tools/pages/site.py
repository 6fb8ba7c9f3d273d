"""
Every page and file that is made of the code: the functions that make parts of a page, by the words of their markers.

To add a part, put two markers into a page and name its function here. A test fails when a committed page differs.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import indent

from broker.config.settings import render_schema
from broker.observe.message_catalogue import MessageChannel
from broker.routing.mirrored import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, MirrorEvent, MirrorSide, MirrorState
from tools.pages import admin, api, commands, errors, figures, observe, tables
from tools.pages.example import Example
from tools.pages.markers import renew

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "broker.rules.yml"
_OBJECT = """\
# The rules of deploy/prometheus/broker.rules.yml, made by python -m tools.pages.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: broker
spec:
"""
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


def files() -> dict[Path, str]:
    """Return the text of each file, by path."""
    rules = RULES.read_text(encoding="utf-8")
    bare = "".join(f"{line}\n" for line in rules.splitlines() if not line.startswith("#"))
    return {
        ROOT / "config" / "broker.schema.json": render_schema(),
        ROOT / "deploy" / "kubernetes" / "monitoring" / "rules.yaml": _OBJECT + indent(bare.lstrip("\n"), "  "),
        ROOT / "deploy" / "helm" / "broker" / "files" / "broker.rules.yml": rules,
        ROOT / "model" / "standing.pml": standing_pml(),
    }


def standing_pml() -> str:
    """Return the table of a mirrored route as Promela, with `hear(who, word)`, which changes `standing`."""
    lines = ["/* Made by python -m tools.pages of broker.routing.mirrored: change it there. */", ""]
    lines += [f"#define {one.name} {number}" for number, one in enumerate(MirrorState)]
    lines += [f"#define {one.name} {number}" for number, one in enumerate(MirrorEvent)]
    asking = " || ".join(f"standing == {one.name}" for one in MirrorState if one in ASKING)
    lines.append(f"#define is_asking ({asking})")
    principals = " || ".join(f"(standing == {one.name} && (who) == {side.value})" for one, side in PRINCIPAL.items())
    lines.append(f"#define is_principal_of(who) ({principals})")
    [(unused, first)] = [(before, after) for before, after in ON_USE.items() if before is not after]
    lines.append(f"#define begin_use() if :: standing == {unused.name} -> standing = {first.name} :: else fi")
    lines += ["", "inline hear(who, word) {", "    if"]
    for side in MirrorSide:
        for word in MirrorEvent:
            changes = [
                (before, after) for before in MirrorState if (after := TRANSITIONS[before, side, word]) is not before
            ]
            lines.append(f"    :: (who) == {side.value} && (word) == {word.name} ->")
            lines.append("        if")
            lines += [f"        :: standing == {before.name} -> standing = {after.name}" for before, after in changes]
            lines += ["        :: else", "        fi"]
    return "\n".join([*lines, "    fi", "}"]) + "\n"


def written(docs: Path) -> dict[Path, str]:
    """Return every page and file with its text, by path."""
    return files() | error_pages(docs) | {docs / name: renewed(docs, name) for name in PARTS}
