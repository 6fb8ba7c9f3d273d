"""
Where the frames of a dialog wait: all in one queue, whatever address the next one would go to.

When several addresses lead to a service, health decides which of them a dialog takes, and health changes while frames
wait. What comes later for a dialog that has frames waiting here has to go behind them, and a second copy of one of them
is told by the queue that has the first. So each direction of a dialog that has frames waiting has a place, shared by
them: the outbox that they wait in. While a queue moves to another outbox, in slices, a dialog has frames in both; then
the place is the outbox that they leave, until the last of them has left it.

Only frames from outside have places: what a database here has sent takes the ways of its own dialogs.
"""

from __future__ import annotations

from broker.forwarding.way import Buffer, Sink
from broker.protocol.layout import CONVERSATION_AT, GUID_BYTES, ROUTE_KEY_AT, TO_SERVICE_AT, Flag

_FROM_TARGET = int(Flag.FROM_TARGET)  # as a plain number: `&` with an enum costs a microsecond, for each held frame


class DialogPlacement:
    """Shape: `key` of the dialog's direction; `count` frames that wait in `outbox`; `later` where the next ones do."""

    __slots__ = ("count", "key", "later", "outbox")

    def __init__(self, key: int, outbox: Sink) -> None:
        self.key = key
        self.outbox = outbox
        self.count = 0
        self.later: DialogPlacement | None = None


class DialogAffinity:
    """All places, by key. Loop-only; changed by outboxes alone."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[int, DialogPlacement] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def where(self, key: int) -> Sink | None:
        """Behind whose frames the next one of this dialog has to wait; None when none waits."""
        place = self._by_key.get(key)
        return None if place is None else place.outbox

    def enter(self, key: int, outbox: Sink, frames: int = 1) -> DialogPlacement:
        """Frames of this dialog begin to wait in an outbox."""
        place = self._by_key.get(key)
        if place is None:
            place = self._by_key[key] = DialogPlacement(key, outbox)
        while place.outbox is not outbox:
            if place.later is None:
                place.later = DialogPlacement(key, outbox)
            place = place.later
        place.count += frames
        return place

    def leave(self, place: DialogPlacement, frames: int = 1) -> None:
        """Frames that waited there do so no more."""
        place.count -= frames
        if place.count:
            return
        before = self._by_key[place.key]
        if before is not place:
            while before.later is not place:
                assert before.later is not None  # it was entered
                before = before.later
            before.later = place.later
        elif place.later is None:
            del self._by_key[place.key]
        else:
            self._by_key[place.key] = place.later


def key_of(route_key: bytes, conversation: bytes, *, is_from_target: bool) -> int:
    """Of a direction of a dialog: what decides its way. Python's hash, which is keyed: names come from peers."""
    return hash((route_key, conversation, is_from_target))


def place_key(frame: Buffer) -> int:
    """The same of a whole dialog frame."""
    key_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
    conversation = bytes(frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES])
    return hash((bytes(frame[ROUTE_KEY_AT:key_end]), conversation, bool(frame[5] & _FROM_TARGET)))
