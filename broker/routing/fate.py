"""What a change of routes may make of a conversation that is under way, in the words in which it is told."""

from __future__ import annotations

from enum import StrEnum


class Fate(StrEnum):
    """What becomes of a conversation, the harmless first."""

    KEEPS = "keeps its target"
    FINDS = "finds a route"
    STAYS_LOST = "stays without a route"
    OTHER_PATHS = "keeps its target, over other paths"
    MOVES = "moves"
    LOSES = "loses its route"
    FAILS = "loses its service here"


HARMFUL = frozenset({Fate.MOVES, Fate.LOSES, Fate.FAILS})
UNCHANGED = frozenset({Fate.KEEPS, Fate.STAYS_LOST})
