"""
The frames that one database sends, each with an id of its own, sealed where they leave the instance.

Whether a frame is sealed is decided by how its side is secured and by its way: what a database of this very instance
takes stays in the process, and is never sealed. Loop-only.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from itertools import count

from msgspec import structs

from broker.conversation.frames import Contact, Fragment, Place, Seal, Travel, ack_frame, fault_frame, message_frame
from broker.conversation.outbound import Outgoing
from broker.forwarding.sink import DatabaseSink
from broker.forwarding.way import Way
from broker.security.key_packet import Mode
from broker.security.session import CannotSealError, Credentials, Sealer
from broker.store.receipt import Heard, Run
from broker.store.sending import left
from broker.wire.frame import Fault, decode_envelope, encode_envelope

SEALERS_MAX = 16_384  # dialogs whose keys are kept, some 50 MB; one above it makes a new key with its next frame
NO_BINDING, NO_CERTIFICATE = -9727, -9731  # the original's numbers


class Framing:
    """
    Makes frames.

    Shape: `credentials` of the database, and the `travel` of each frame; may be changed by anybody, each part as a
    whole.
    """

    def __init__(self, travel: Travel, credentials: Credentials) -> None:
        self.credentials = credentials
        self.travel = travel
        self._message_ids = (os.urandom(8), count(int.from_bytes(os.urandom(4), "big")))
        self._sealers: OrderedDict[tuple[bytes, bool], Sealer] = OrderedDict()

    def message_id(self) -> bytes:
        """An id for one transmission: eight bytes of this process, eight of a counter."""
        prefix, numbers = self._message_ids
        return prefix + next(numbers).to_bytes(8, "big")

    def message(self, contact: Contact, fragment: Fragment, seal: Seal | None) -> bytes:
        """One fragment of a message, sealed as `seal` gave it. Raises CannotSealError: not behind `seal`."""
        return message_frame(contact, self.travel, self.message_id(), fragment, seal)

    def body(self, fragment: Outgoing) -> bytes:
        """The body of a fragment as it goes out now: what is left of a lifetime shrinks while a message waits."""
        if not fragment.lifetime:
            return fragment.body
        envelope, payload = decode_envelope(fragment.body)
        now = max(time.time(), fragment.enqueued_at)
        return encode_envelope(structs.replace(envelope, lifetime=left(fragment.lifetime, now))) + payload

    def ack(
        self, contact: Contact, way: Way, stored: Place, held: tuple[Run, ...] = (), *, is_urgent: bool = True
    ) -> bytes | None:
        """An acknowledgement; None when it cannot be sealed: what is not acknowledged comes again."""
        try:
            seal = self.seal(contact, way, with_packet=is_urgent)
        except CannotSealError:
            return None
        return ack_frame(contact, self.travel, self.message_id(), stored, held, seal=seal)

    def fault(self, contact: Contact, way: Way, fault: Fault) -> bytes | None:
        """An error; None when it cannot be sealed: the far side would not believe it."""
        try:
            seal = self.seal(contact, way, with_packet=True)
        except CannotSealError:
            return None
        return fault_frame(contact, self.travel, self.message_id(), fault, seal)

    def seal(self, contact: Contact, way: Way, *, with_packet: bool) -> Seal | None:
        """
        How frames of this side are sealed on this way, now; None when they are not.

        Raises:
            CannotSealError: they have to be, and something is missing.
        """
        secured = contact.secured
        if secured is None or isinstance(way.sink, DatabaseSink):
            return None
        if secured.mode is None and not contact.is_initiator:  # it began inside; who has moved away will seal
            return None
        name = (contact.conversation_id, contact.is_initiator)
        sealer = self._sealers.get(name)
        if sealer is None or sealer.secured != secured:
            sealer = self._sealers[name] = Sealer(secured, contact.direction(), self.credentials, os.urandom)
            if len(self._sealers) > SEALERS_MAX:
                self._sealers.popitem(last=False)
        else:
            self._sealers.move_to_end(name)
        now = time.time()
        sealer.check(now)
        return Seal(sealer, now, with_packet)

    def heard(self, conversation_id: bytes, heard: Heard, *, is_initiator: bool) -> None:
        """A sealed frame came to this side, and was believed."""
        sealer = self._sealers.get((conversation_id, is_initiator))
        if sealer is not None:
            sealer.heard(*heard)

    def final(self, contact: Contact) -> Fault | None:
        """Why this side can never leave this instance, however long it waits; None when it can, or may some day."""
        secured = contact.secured
        if secured is None or not contact.is_initiator:
            return None
        if secured.mode is None:
            text = (
                "dialog security is not available for this conversation because there is no remote service binding for"
                f" the target service: CREATE REMOTE SERVICE BINDING name TO SERVICE '{contact.far_service}' WITH USER"
                " = [principal], or begin the dialog with encryption off"
            )
            return Fault(NO_BINDING, text)
        if secured.mode is Mode.FULL and self.credentials.own is None:
            text = (
                "dialog security is unavailable for this conversation because this database has no certificate: give it"
                " one (certificate, private_key), or make the remote service binding ANONYMOUS = ON"
            )
            return Fault(NO_CERTIFICATE, text)
        return None
