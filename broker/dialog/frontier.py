"""
How far the acknowledgements of a service have got: who sent later than that waits for its turn, not for what is lost.

What dialogs send to a service is stored there in about the order in which it was sent. While acknowledgements come in,
and all of them are of frames that were sent before those of a dialog, that dialog stands in a line, at the far side or
here, where answers wait to be stored as well. To send again would only make the line longer, for all of them: with
100,000 open dialogs each frame was sent four times. So a time-out waits until something that was sent later has been
acknowledged, or until nothing at all has been for a while. Who is alone there has its own time-out and no other.

Source: RFC 8985, which concludes so within one connection; RFC 9040, what connections to one place share.
"""

from __future__ import annotations

from broker.conversation.window import NEVER

SILENCE = 1.0  # seconds without any acknowledgement of the service after which it does not move
SERVICES_MAX = 10_000  # remembered; of another one nothing is known until it is heard of again


class Frontier:
    """By far service: when what was acknowledged had been sent, at the latest, and when that was heard. Loop-only."""

    def __init__(self) -> None:
        self._by_service: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._by_service)

    def note(self, service: str, sent_at: float, now: float) -> None:
        """A frame that was sent once only was acknowledged: of another one nobody knows which copy it was."""
        furthest, _ = self._by_service.pop(service, (-NEVER, now))
        self._by_service[service] = (max(furthest, sent_at), now)
        if len(self._by_service) > SERVICES_MAX:
            del self._by_service[next(iter(self._by_service))]  # who was not heard of for longest

    def turn_at(self, service: str, sent_at: float, heard_at: float) -> float:
        """
        Until when a dialog waits, beside its own time-out; -NEVER when that alone decides.

        Args:
            service: The far one.
            sent_at: When it sent what is not acknowledged.
            heard_at: When it was acknowledged something last: that is no sign of others in the line.
        """
        furthest, moved_at = self._by_service.get(service, (NEVER, -NEVER))
        return moved_at + SILENCE if furthest < sent_at and moved_at > max(sent_at, heard_at) else -NEVER
