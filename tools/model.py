"""
The table of a mirrored route as Promela, so that the model checks the very table that runs.

    python -m tools.model model/standing.pml
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker.routing.mirrored import ASKING, ON_USE, PRINCIPAL, TRANSITIONS, MirrorEvent, MirrorSide, MirrorState

HEAD = "/* Made by python -m tools.model of broker.routing.mirrored: change it there. */\n\n"


def standing_pml() -> str:
    """The states and words as numbers, and `hear(who, word)`, which changes `standing`."""
    lines = [f"#define {one.name} {number}" for number, one in enumerate(MirrorState)]
    lines += [f"#define {one.name} {number}" for number, one in enumerate(MirrorEvent)]
    lines.append(f"#define is_asking ({_any_of(ASKING)})")
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
    lines += ["    fi", "}"]
    return HEAD + "\n".join(lines) + "\n"


def _any_of(standings: frozenset[MirrorState]) -> str:
    return " || ".join(f"standing == {one.name}" for one in MirrorState if one in standings)


def main(arguments: list[str]) -> None:
    """Write it where the argument says."""
    [path] = arguments
    Path(path).write_text(standing_pml(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
