"""
What of the frames that arrive is believed, before anything is done with it: seals are opened here.

For the writer thread. A side that is secured takes sealed frames only, from its far principal, and frames that a
database of this very instance has sent, which never leave the process and are never sealed. Whatever else comes for it
is dropped and counted, whatever it says: it neither acknowledges nor ends anything.

A dialog that begins says how it is secured with the frame that begins it, and stays so. One that began inside this
instance may be sealed later, by its own initiator as its own binding says: one of its databases may have moved.

Source: docs/security.md; Service Broker documentation, "Service Broker Dialog Security".
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable

from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.protocol.layout import Flag
from broker.security.grants import Grants, PermissionRuling
from broker.security.principal import NOBODY
from broker.security.seal import SealRefusedError
from broker.security.session import DialogCredentials, KeySource, Opener, Secured
from broker.store.port import KeyEvidence, ReceiveResult
from broker.store.sqlite.metadata import permissions
from broker.store.sqlite.side import SideRow, Tombstone, load_secured, note_certificate, put_secured

FAILURES_MAX = 500  # seals of one origin that are broken within a second: what costs a tenth of it
Group = list[tuple[Header, bytes]]

_SEALED = int(Flag.SEALED)


class FrameVerifier:
    """The seals of one database. Used by its writer thread; `credentials` may be changed by anybody, as a whole."""

    def __init__(self, credentials: DialogCredentials) -> None:
        self.credentials = credentials
        self._opener = Opener(self.credentials)
        self._failures: Counter[object] = Counter()  # key packets that did not open within this second, by origin
        self._since = 0.0

    def batch(self, db: sqlite3.Connection, receipt: ReceiveResult, now: float) -> VerifiedBatch:
        """What is remembered for one batch of frames; UTC seconds since 1970."""
        if not 0 <= now - self._since < 1:
            self._since = now
            self._failures.clear()
        return VerifiedBatch(db, self._opener, self.credentials, self._failures, receipt, now)


class VerifiedBatch:
    """The frames of one batch. Shape: frames are known by the identity of their header."""

    def __init__(  # noqa: PLR0917 - parts of a gate, and of a batch
        self,
        db: sqlite3.Connection,
        opener: Opener,
        credentials: DialogCredentials,
        failures: Counter[object],
        receipt: ReceiveResult,
        now: float,
    ) -> None:
        self._db = db
        self._opener = opener
        self._is_identified = credentials.own is not None
        self._failures = failures
        self._receipt = receipt
        self._now = now
        self._sources: dict[int, KeySource] = {}
        self._heard: dict[int, KeyEvidence] = {}
        self._is_new: set[int] = set()
        self._inside: dict[int, Secured] = {}
        self._known_grants: Grants | None = None

    def note_inside(self, header: Header, secured: Secured) -> None:
        """A database of this instance has sent this frame; its dialog is secured so where its target keeps that."""
        self._inside[id(header)] = secured

    def open(self, header: Header, frame: bytes, body: bytes, origin: object = None) -> bytes | None:
        """What is in a sealed frame; None when it is not believed, and counted."""
        conversation, is_initiator = header.conversation_id, header.is_from_target
        try:
            opened = self._opener.open(
                header,
                frame,
                body,
                lambda: load_secured(self._db, conversation, is_initiator=is_initiator),
                self._now,
                is_trusting=self._failures[origin] < FAILURES_MAX,
            )
        except SealRefusedError as error:
            self._failures[origin] += error.disposition is Disposition.SEAL_BROKEN
            self._receipt.refuse(error.disposition, error.why, header)
            return None
        self._sources[id(header)] = opened.source
        if opened.is_new:
            self._is_new.add(id(header))
        self._heard[id(header)] = KeyEvidence(opened.echo, opened.key_id)
        return opened.body

    def believed(self, group: Group, known: SideRow | Tombstone | None) -> tuple[Group, Secured | None]:
        """
        The frames of one dialog and side that are believed; the others are counted.

        Args:
            group: In the order of arrival.
            known: The side for which they are, or what is left of it; None when nothing is known of it here.

        Returns:
            Those, and how they are secured.
        """
        secured = None if known is None else known.contact.secured
        if secured is None and not self._sources:
            return group, None
        if known is None:
            secured = self._beginning(group)
        elif secured is not None and secured.mode is None and not known.contact.is_initiator:
            secured = self._upgraded(group, known, secured)
        kept = [pair for pair in group if self._is_believed(pair[0], secured)]
        for one, _ in kept:
            if id(one) in self._heard:
                self._receipt.keys[one.conversation_id, one.is_from_target] = self._heard[id(one)]
        if kept and isinstance(known, SideRow):
            self._see(kept)
        return kept, secured

    def begin(self, side: SideRow, header: Header) -> None:
        """A side was made by this frame: it stays as it is secured."""
        source = self._sources.get(id(header))
        conversation = header.conversation_id
        if source is not None:
            found = source.who.fingerprint
            put_secured(self._db, conversation, source.secured, self._now, is_initiator=False, certificate=found)
        elif self._is_identified and id(header) in self._inside:
            secured = self._inside[id(header)]
            put_secured(self._db, conversation, secured, self._now, is_initiator=False)
            side.contact = side.contact.secured_as(secured)

    def objection(self, header: Header) -> str:
        """Why a frame may not begin a dialog, whoever sent it; empty when it may."""
        source = self._sources.get(id(header))
        if source is None or source.is_fresh(self._now):
            return ""
        return "its key packet is too old, or of the future, to begin a dialog: compare the clocks of both sides"

    def ruling(self, header: Header) -> PermissionRuling | None:
        """Whether its sender may send to the service, as the permissions of this database say; None = not asked."""
        if id(header) in self._inside:
            return None
        source = self._sources.get(id(header))
        return self._grants().send(NOBODY if source is None else source.who, header.to_service)

    def _grants(self) -> Grants:
        """
        The permissions of this database; a batch is one transaction, in which they stay.

        No `cached_property`: up to Python 3.11 that has one lock for all databases, held while this one is read.
        """
        if self._known_grants is None:
            rules, _ = permissions(self._db)
            self._known_grants = Grants(rules, is_default_deny=self._is_identified)
        return self._known_grants

    def _is_believed(self, header: Header, secured: Secured | None) -> bool:
        source = self._sources.get(id(header))
        if source is None:
            if secured is None or id(header) in self._inside:
                return True
            why = "its dialog began within this instance, and it came in clear from outside"
            if secured.mode is not None:
                why = "its dialog is sealed, and it is not"
            self._receipt.refuse(Disposition.NOT_SEALED, why, header)
            return False
        if secured is None or secured.mode is None:
            self._receipt.refuse(Disposition.NOT_SECURED, "its dialog is in clear, and it is sealed", header)
            return False
        if source.secured != secured:
            self._receipt.refuse(Disposition.SESSION_KEY_UNKNOWN, "its dialog is sealed for another", header)
            return False
        return True

    def _beginning(self, group: Group) -> Secured | None:
        """How a dialog that may begin is secured; frames from inside count first, then sealed ones, then clear ones."""
        inside = next((self._inside[id(one)] for one, _ in group if id(one) in self._inside), None)
        if inside is not None and self._is_identified:
            return inside
        return next((self._sources[id(one)].secured for one, _ in group if id(one) in self._sources), None)

    def _upgraded(self, group: Group, known: SideRow | Tombstone, secured: Secured) -> Secured:
        """A dialog that began inside: from the first frame on that its own initiator has sealed, it is sealed."""
        for header, _ in group:
            source = self._sources.get(id(header))
            if source is None or source.secured != secured.outside() or known.contact.objection(header) is not None:
                continue
            found = source.who.fingerprint
            put_secured(
                self._db, header.conversation_id, source.secured, self._now, is_initiator=False, certificate=found
            )
            known.contact = known.contact.secured_as(source.secured)
            if isinstance(known, SideRow):
                self._receipt.contacts[known.endpoint_id] = known.contact
            return source.secured
        return secured

    def _see(self, group: Iterable[tuple[Header, bytes]]) -> None:
        """Note the certificate that the far side proves to have, when it is another than before."""
        for header, _ in group:
            source = self._sources.get(id(header))
            if source is not None and source.who.fingerprint and id(header) in self._is_new:
                note_certificate(
                    self._db, header.conversation_id, source.who.fingerprint, is_initiator=header.is_from_target
                )
