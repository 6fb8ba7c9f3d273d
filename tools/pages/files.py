"""Whole files that are made of the code: the schema of the settings, alerts for Kubernetes, a table of the model."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

from broker.config.settings import render_schema
from broker.routing.mirrored import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, MirrorEvent, MirrorSide, MirrorState

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
