"""
What of the transmission queue is in memory: as much as windows ask for, and never more than LOADED_MAX_BYTES.

The bound holds for all dialogs of a database together, whatever the size of their messages, as fragments are loaded.
Who cannot send, or waits for the answer of a far side that has been silent, makes room when others need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.dialog.sender import Sender
from broker.store.sending import Loaded, Want

LOADED_MAX_BYTES = 64 * 1024 * 1024  # bodies in memory, all dialogs together
LOAD_BYTES = 1024 * 1024  # bodies loaded for one dialog at a time: a turn of the writer thread stays short
TURN_WANTS = 1000  # dialogs that one turn loads for, likewise: what is found and what has come waits for its end
ENVELOPE_MAX = 64 * 1024  # what fragment 0 may have beside its payload; names have 512 bytes at most


class Loading:
    """
    Who wants what loaded. Loop-only.

    Shape: `loaded_bytes` the sum of what all senders are charged for; `senders` the transmitter's own; `waits`
    tells whether one has no way to send.
    """

    def __init__(self, senders: Mapping[int, Sender], fragment_size: int, *, waits: Callable[[int], bool]) -> None:
        self.loaded_bytes = 0
        self._senders = senders
        self._fragment_bytes = fragment_size + ENVELOPE_MAX
        self._fragment_size = fragment_size
        self._waits = waits
        self._hungry: dict[int, None] = {}  # senders whose window asks for more and that are not loading, in order

    def __bool__(self) -> bool:
        """Whether anybody wants anything."""
        return bool(self._hungry)

    @property
    def max_bytes(self) -> int:
        """How much more may be loaded, all dialogs together; one fragment always fits where there is none."""
        return max(0 if self.loaded_bytes else self._fragment_bytes, LOADED_MAX_BYTES - self.loaded_bytes)

    def look(self, sender: Sender) -> None:
        """See whether a sender wants more loaded."""
        if sender.has_more and not sender.is_loading and not sender.is_resting:
            frames, size = sender.outbound.room
            if frames and (size >= self._fragment_size or not sender.outbound.loaded):
                self._hungry[sender.endpoint_id] = None

    def wants(self) -> list[Want]:
        """What to load in the next turn, for those who have waited longest; none while there is no room."""
        if self._hungry and self.max_bytes < self._fragment_bytes:
            self._relieve()
        if not self.max_bytes:
            return []
        wants: list[Want] = []
        looked_at: list[int] = []
        for endpoint_id in self._hungry:
            if len(wants) == TURN_WANTS:
                break
            looked_at.append(endpoint_id)
            sender = self._senders[endpoint_id]
            if sender.is_resting:
                continue
            sender.is_loading = True
            frames, size = sender.outbound.room
            wants.append(Want(endpoint_id, sender.outbound.load_from, max(1, frames), min(size, LOAD_BYTES)))
        for endpoint_id in looked_at:
            del self._hungry[endpoint_id]
        return wants

    def loaded(self, sender: Sender, loaded: Loaded) -> bool:
        """What was asked for has come; False when it belongs behind something that was unloaded meanwhile."""
        sender.is_loading = False
        if loaded.want.place != sender.outbound.load_from:
            return False
        for fragment in loaded.fragments:
            sender.outbound.offer(fragment)
        self.charge(sender)
        sender.has_more = not loaded.is_all
        return True

    def unwanted(self, want: Want) -> None:
        """The store failed, or there was no room: what was asked for has to be asked for again."""
        sender = self._senders.get(want.endpoint_id)
        if sender is not None:
            sender.is_loading = False
            self._hungry[want.endpoint_id] = None

    def charge(self, sender: Sender) -> None:
        """Count what is loaded for a sender now."""
        size = sender.outbound.loaded_bytes
        self.loaded_bytes += size - sender.charged
        sender.charged = size

    def time_out(self, sender: Sender) -> None:
        """No acknowledgement came in time: its fragments are loaded again from the first unacknowledged one."""
        sender.outbound.time_out()
        sender.has_more = True
        self.charge(sender)

    def forget(self, sender: Sender) -> None:
        """The sender is no more."""
        self.loaded_bytes -= sender.charged
        sender.charged = 0
        self._hungry.pop(sender.endpoint_id, None)

    def clear(self) -> None:
        """Nobody wants anything."""
        self._hungry.clear()

    def _relieve(self) -> None:
        """Who has no way to send, or hears nothing, must not keep those from loading who have nothing at all."""
        if all(self._senders[endpoint_id].outbound.loaded for endpoint_id in self._hungry):
            return
        for sender in self._senders.values():
            outbound = sender.outbound
            if not outbound.loaded:
                continue
            if not outbound.in_flight and self._waits(sender.endpoint_id):
                outbound.unload()
            elif outbound.round_trip.attempts:
                outbound.rest()
            else:
                continue
            sender.has_more = True
            self.charge(sender)
