"""Every door that strangers' bytes come in by, by name."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from tests.fuzz import live, operator, peer, word
from tests.fuzz.target import Target

GROUPS: tuple[ModuleType, ...] = (peer, operator, word, live)


@cache
def targets() -> dict[str, Target]:
    """All targets; those that run servers last."""
    found = [target for group in GROUPS for target in group.targets()]
    assert len(found) == len({target.name for target in found}), "each has a name of its own"
    return {target.name: target for target in found}


def inputs(target: Target) -> list[bytes]:
    """What a target sets out from, and what was kept for it."""
    return [*target.seeds(), *(path.read_bytes() for path in target.corpus())]


def close() -> None:
    """End whatever targets have started."""
    live.close()
