"""
The frames that wait in one outbox: in the order of leaving, each copy once, the earliest deadline at hand.

A frame that came alone is one entry, frames that came together are one entry too (`Pack`), which is taken apart when
one of them has to leave by itself: its lifetime ends, it takes another way, or it is too large for the link. Deadlines
are a heap that is swept now and then, not a timer each; a frame that leaves stays in the heap until its time or until
such leftovers are a third of it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from broker.forwarding.held import Held, copy_key
from broker.forwarding.pack import Pack, Piece

NAME_BYTES = 8  # of a pack; no `copy_key` has this length

Apart: TypeAlias = dict[bytes, Held]
"""What is left of a pack that was taken apart, by copy key."""


class HeldQueue:
    """Held frames in the order in which they came, by `copy_key`. Shape: `len` frames."""

    __slots__ = ("_deadlines", "_entries", "_length", "_numbers", "_packed")

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Held | Pack | Apart] = OrderedDict()  # by copy key, or name of the pack
        self._packed: dict[bytes, bytes] = {}  # the names of packs, by copy key
        self._deadlines: list[tuple[float, bytes]] = []  # of frames by copy key, of packs by name
        self._length = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Held]:
        for piece in self.pieces():
            yield from piece.helds()

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries or key in self._packed

    def new_name(self) -> bytes:
        """One for another pack."""
        return next(self._numbers).to_bytes(NAME_BYTES, "big")

    def add(self, piece: Piece) -> None:
        """Put a frame, or several, at the end; no copy of any may be here. Cost: O(log n), and 0.1 us a frame."""
        if isinstance(piece, Held):
            name = copy_key(piece.frame)
        else:
            name = piece.name
            self._packed.update(dict.fromkeys(piece.keys, name))
        self._entries[name] = piece
        self._length += piece.frames
        heapq.heappush(self._deadlines, (piece.deadline, name))

    def pieces(self) -> Iterator[Piece]:
        """Everything in order, as it is held; nothing may be added or taken out meanwhile."""
        for entry in self._entries.values():
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def leaving(self, now: float, max_frame: int) -> Iterator[Piece]:
        """The same, but that a pack of which a frame is late, or larger than this, is taken apart."""
        for name, entry in self._entries.items():
            if isinstance(entry, Pack) and (entry.deadline <= now or entry.longest > max_frame):
                entry = self._take_apart(name)  # noqa: PLW2901 - the same frames
            if isinstance(entry, dict):
                yield from entry.values()
            else:
                yield entry

    def names(self) -> Iterator[tuple[Held | bytes, int]]:
        """Everything in order: frames that are held alone, names of packs, and how many frames that is."""
        for name, entry in self._entries.items():
            if isinstance(entry, Held):
                yield entry, 1
            else:
                yield name, len(entry) if isinstance(entry, dict) else entry.frames

    def apart(self, name: bytes) -> Apart:
        """What is left of a pack, taken apart now; not to be changed."""
        entry = self._entries.get(name)
        if isinstance(entry, Pack):
            entry = self._take_apart(name)
        return entry if isinstance(entry, dict) else {}

    def remove(self, held: Held) -> None:
        """Take a frame out, wherever it stands. Cost: O(1), leftovers among the deadlines included."""
        key = copy_key(held.frame)
        if key in self._packed:
            self._remove_from(self._packed.pop(key), key)
        else:
            del self._entries[key]
        self._length -= 1
        self._forget_deadlines()

    def remove_first(self, piece: Piece, frames: int) -> None:
        """Take out so many frames of a piece, from its front. Cost: as `remove`, 0.1 us a frame of a pack."""
        if isinstance(piece, Held):
            self.remove(piece)
            return
        for key in piece.keys[:frames]:
            del self._packed[key]
        if frames < piece.frames:
            self._entries[piece.name] = piece.behind(frames)
        else:
            del self._entries[piece.name]
        self._length -= frames
        self._forget_deadlines()

    def has(self, held: Held) -> bool:
        """Whether this very one, of those held by themselves, is here still, and not a later copy."""
        return self._by_itself(copy_key(held.frame)) is held

    def replace(self, held: Held, other: Held) -> None:
        """Put another one of the same frame where this one stands, which is held by itself."""
        key = copy_key(held.frame)
        if key in self._packed:
            self.apart(self._packed[key])[key] = other
        else:
            self._entries[key] = other

    def take_due(self, now: float, most: int) -> tuple[list[Held], int]:
        """
        Take out what has reached its deadline, the earliest first, so many at most.

        Returns:
            These, and how many frames were looked at for it: packs are taken apart as long as that is below `most`.

        Cost: O(log n) for each that is looked at.
        """
        due: list[Held] = []
        looked = 0
        while looked < most and self._deadlines and self._deadlines[0][0] <= now:
            deadline, name = heapq.heappop(self._deadlines)
            if isinstance(self._entries.get(name), Pack):
                looked += len(self._take_apart(name))
                continue
            held = self._by_itself(name)
            if held is not None and held.deadline == deadline:  # else it has left, and this may be a later copy
                if name in self._packed:
                    self._remove_from(self._packed.pop(name), name)
                else:
                    del self._entries[name]
                self._length -= 1
                due.append(held)
                looked += 1
        return due, looked

    def _by_itself(self, key: bytes) -> Held | None:
        """The frame with this copy key, unless it is in a pack."""
        entry = self._entries.get(self._packed.get(key, key))
        if isinstance(entry, dict):
            return entry.get(key)
        return entry if isinstance(entry, Held) else None

    def _take_apart(self, name: bytes) -> Apart:
        """Hold each frame of a pack by itself. Cost: some 2 us a frame."""
        pack = self._entries[name]
        assert isinstance(pack, Pack)
        apart = self._entries[name] = dict(zip(pack.keys, pack.helds(), strict=True))
        for key, held in apart.items():
            heapq.heappush(self._deadlines, (held.deadline, key))
        return apart

    def _remove_from(self, name: bytes, key: bytes) -> None:
        """Of a pack, which is taken apart."""
        apart = self.apart(name)
        del apart[key]
        if not apart:
            del self._entries[name]
        elif not len(apart) & len(apart) - 1:  # half of what there was: it needs no more memory than what is left
            self._entries[name] = dict(apart)

    def _forget_deadlines(self) -> None:
        """Leftovers, if there are many."""
        if 2 * len(self._deadlines) <= 3 * self._length:
            return
        self._deadlines = [(held.deadline, key) for key, held in self._alone()]
        self._deadlines += [(pack.deadline, name) for name, pack in self._entries.items() if isinstance(pack, Pack)]
        heapq.heapify(self._deadlines)

    def _alone(self) -> Iterator[tuple[bytes, Held]]:
        for name, entry in self._entries.items():
            if isinstance(entry, dict):
                yield from entry.items()
            elif isinstance(entry, Held):
                yield name, entry
