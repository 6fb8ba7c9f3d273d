"""
Who asked for the principal of what, so that a change of role here is told to whoever has to know it.

Every PROBE is answered at once. The peer that asked is told again, with the id of its last PROBE, when the role of that
broker instance changes here: it need not wait for the next time it asks. A link that is gone is told nothing; its peer
asks again. Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from broker.protocol.frame import Probe, ProbeReply, encode_link
from broker.protocol.layout import NAME_MAX_BYTES

ASKED_MAX = 64  # broker instances remembered of one link, the latest; some 50 KB

Prove = Callable[[Probe], ProbeReply]
"""What this instance is for a broker instance now; must not fail."""


class ProbeSubscriber(Protocol):
    """Whoever asks: a link."""

    def say(self, frame: bytes) -> None:
        """Send a link frame; shed while the peer does not read."""


class Askers:
    """Shape: `answered` PROBE frames answered since the start."""

    def __init__(self, prove: Prove) -> None:
        self.answered = 0
        self._prove = prove
        self._probes: dict[ProbeSubscriber, dict[bytes, Probe]] = {}  # by broker instance, the latest at the end

    def answer(self, asker: ProbeSubscriber, probe: Probe) -> None:
        """A peer asks: say what holds now, and remember whom to tell when it changes."""
        self.answered += 1
        probes = self._probes.setdefault(asker, {})
        probes.pop(probe.broker_instance, None)
        probes[probe.broker_instance] = msgspec.structs.replace(probe, service=probe.service[:NAME_MAX_BYTES])
        if len(probes) > ASKED_MAX:
            del probes[next(iter(probes))]
        asker.say(encode_link(self._prove(probe)))

    def announce(self, broker_instance: bytes) -> None:
        """What this instance is for a broker instance has changed: everybody who asked is answered anew."""
        for asker, probes in list(self._probes.items()):
            probe = probes.get(broker_instance)
            if probe is not None:
                asker.say(encode_link(self._prove(probe)))

    def forget(self, asker: ProbeSubscriber) -> None:
        """The link is gone."""
        self._probes.pop(asker, None)
