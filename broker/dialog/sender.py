"""A dialog with something to send, as the transmitter and its helpers know it."""

from __future__ import annotations

from dataclasses import dataclass

from broker.conversation.frames import Contact, Place
from broker.conversation.outbound import Held, Outbound
from broker.conversation.window import NEVER
from broker.dialog.frontier import Frontier
from broker.dialog.trips import Trips, note_trip
from broker.forwarding.outbox import Destination


@dataclass(slots=True, eq=False)
class Sender:
    """
    A dialog with something to send or unacknowledged; changed by the transmitter and its helpers only.

    Shape: `stored` what every frame acknowledges; `priority` 1 .. 10; `credit` bytes it may send in its turn, below 0
    when it has sent more than its share; `charged` bytes of it that count as loaded; `outlet` the link to which its
    frames in flight were given; `armed_at` when its alarm rings; `heard_at` when a round trip of it was measured last;
    `advice` what the next hop said of the last frame it refused; `hindrance` why its frames cannot be sealed, empty
    while they can; `next_hop` the address of `outlet`, None in this very instance.
    """

    endpoint_id: int
    contact: Contact
    outbound: Outbound
    stored: Place
    priority: int = 5
    credit: int = 0
    charged: int = 0
    is_loading: bool = False
    has_more: bool = True
    is_queued: bool = False
    armed_at: float = NEVER
    outlet: object = None
    heard_at: float = -NEVER
    advice: str = ""
    hindrance: str = ""
    next_hop: Destination | None = None

    @property
    def is_resting(self) -> bool:
        """Whether its fragments were unloaded for the sake of others until they are sent again."""
        return not self.outbound.loaded and self.outbound.resend_at != NEVER

    def turn_at(self, frontier: Frontier) -> float:
        """Until when it only stands in a line, as `Frontier` has it, though no longer than the longest wait."""
        sent_at, cap = self.outbound.sent_at, self.outbound.round_trip.backoff.cap
        return min(frontier.turn_at(self.contact.far_service, sent_at, self.heard_at), sent_at + cap)

    def acknowledge(
        self, place: Place, now: float, held_there: tuple[Held, ...], trips: Trips, frontier: Frontier
    ) -> int:
        """As `Outbound.acknowledge`; how long the answer took is noted under the next hop, and how far that got."""
        trip = self.outbound.round_trip
        trip.latest = None
        done = self.outbound.acknowledge(place, now, held_there)
        if trip.latest is not None:
            note_trip(trips, self.next_hop, trip.latest)
            frontier.note(self.contact.far_service, now - trip.latest, now)
            self.heard_at = now
        return done
