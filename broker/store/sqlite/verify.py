"""
Which of the frames that arrive are authentic, decided before anything is done with them.

A secured side accepts sealed frames of its far principal, and frames from databases of this instance, which never leave
the process. All others are dropped and counted, whatever they claim: they neither acknowledge nor end anything. A
dialog's security is set by its first frame and stays; one that began inside the instance is upgraded by its first
sealed frame, as a database may move. For the writer thread.

Source: docs/protocol.md, section 10; Service Broker documentation, "Service Broker Dialog Security".
"""

from __future__ import annotations

import sqlite3
from collections import Counter

from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.security.grants import Grants, PermissionRuling
from broker.security.principal import NOBODY
from broker.security.seal import SealRefusedError
from broker.security.secured import Secured
from broker.security.session import DialogCredentials, KeySource, Opened, Opener
from broker.store.port import KeyEvidence, ReceiveResult
from broker.store.sqlite.metadata import permissions
from broker.store.sqlite.session_keys import load_secured, note_certificate, put_secured
from broker.store.sqlite.side import SideRow, Tombstone

FAILURES_MAX = 500  # broken seals of one origin within a second: what costs a tenth of it

FrameGroup = list[tuple[Header, bytes]]
"""Frames of one dialog and side, in the order of arrival: header and body. A frame is known by its header object."""


class FrameVerifier:
    """
    The seals of one database; keeps opened keys between batches.

    Attributes:
        credentials: Of the database; may change in place.
        opener: Of sealed frames.
        failures: Key packets that did not open within the present second, by origin.
    """

    def __init__(self, credentials: DialogCredentials) -> None:
        self.credentials = credentials
        self.opener = Opener(credentials)
        self.failures: Counter[object] = Counter()
        self._since = 0.0

    def batch(self, db: sqlite3.Connection, result: ReceiveResult, now: float) -> VerifiedBatch:
        """For one batch of frames; UTC seconds since 1970."""
        if not 0 <= now - self._since < 1:
            self._since = now
            self.failures.clear()
        return VerifiedBatch(db, self, result, now)


class VerifiedBatch:
    """The frames of one batch, by the identity of their headers, which the caller keeps as long as this."""

    def __init__(self, db: sqlite3.Connection, verifier: FrameVerifier, result: ReceiveResult, now: float) -> None:
        self._db = db
        self._verifier = verifier
        self._is_identified = verifier.credentials.own is not None
        self._result = result
        self._now = now
        self._opened: dict[int, Opened] = {}
        self._inside: dict[int, Secured] = {}
        self._known_grants: Grants | None = None

    def mark_inside(self, header: Header, secured: Secured) -> None:
        """A database of this instance has sent this frame; its dialog is secured so where its target keeps that."""
        self._inside[id(header)] = secured

    def open(self, header: Header, frame: bytes, body: bytes, origin: object = None) -> bytes | None:
        """Return what is in a sealed frame; None when it is not authentic, and counted."""
        conversation, is_initiator = header.conversation_id, header.is_from_target
        failures = self._verifier.failures
        try:
            opened = self._opened[id(header)] = self._verifier.opener.open(
                header,
                frame,
                body,
                lambda: load_secured(self._db, conversation, is_initiator=is_initiator),
                self._now,
                is_trusting=failures[origin] < FAILURES_MAX,
            )
        except SealRefusedError as error:
            failures[origin] += error.disposition is Disposition.SEAL_BROKEN
            self._result.refuse(error.disposition, error.why, header)
            return None
        return opened.body

    def accepted(self, group: FrameGroup, known: SideRow | Tombstone | None) -> tuple[FrameGroup, Secured | None]:
        """
        Return the frames of one dialog and side that are authentic, and how they are secured; the others are counted.

        Args:
            group: In the order of arrival.
            known: The side for which they are, or what is left of it; None when nothing is known of it here.
        """
        secured = None if known is None else known.contact.secured
        if secured is None and not self._opened:
            return group, None
        if known is None:
            secured = self._first_secured(group)
        elif secured is not None and secured.mode is None and not known.contact.is_initiator:
            secured = self._upgrade(group, known, secured)
        kept = [pair for pair in group if self._is_authentic(pair[0], secured)]
        for header, _ in kept:
            opened = self._opened.get(id(header))
            if opened is None:
                continue
            side = header.conversation_id, header.is_from_target
            self._result.keys[side] = KeyEvidence(opened.echo, opened.key_id)
            if isinstance(known, SideRow) and opened.source.who.fingerprint and opened.is_new:
                note_certificate(self._db, side[0], opened.source.who.fingerprint, is_initiator=side[1])
        return kept, secured

    def on_begun(self, side: SideRow, header: Header) -> None:
        """A side was made by this frame: it stays as it is secured."""
        source = self._source(header)
        if source is not None:
            self._put(header, source)
        elif self._is_identified and id(header) in self._inside:
            secured = self._inside[id(header)]
            put_secured(self._db, header.conversation_id, secured, self._now, is_initiator=False)
            side.contact = side.contact.secured_as(secured)

    def why_stale(self, header: Header) -> str:
        """Why the key packet of a frame may not begin a dialog, regardless of its sender; empty when it may."""
        source = self._source(header)
        if source is None or source.is_fresh(self._now):
            return ""
        return "its key packet is too old, or of the future, to begin a dialog: compare the clocks of both sides"

    def ruling(self, header: Header) -> PermissionRuling | None:
        """Whether its sender may send to the service, by the permissions of this database; None = not checked."""
        if id(header) in self._inside:
            return None
        source = self._source(header)
        return self._grants().send(NOBODY if source is None else source.who, header.to_service)

    def _first_secured(self, group: FrameGroup) -> Secured | None:
        """How a dialog that may begin is secured; frames from inside count first, then sealed ones, then clear ones."""
        inside = next((self._inside[id(one)] for one, _ in group if id(one) in self._inside), None)
        if inside is not None and self._is_identified:
            return inside
        return next((source.secured for one, _ in group if (source := self._source(one)) is not None), None)

    def _upgrade(self, group: FrameGroup, known: SideRow | Tombstone, secured: Secured) -> Secured:
        """A dialog that began inside: from the first frame on that its own initiator has sealed, it is sealed."""
        for header, _ in group:
            source = self._source(header)
            if source is None or source.secured != secured.outside() or known.contact.why_refused(header) is not None:
                continue
            self._put(header, source)
            known.contact = known.contact.secured_as(source.secured)
            if isinstance(known, SideRow):
                self._result.contacts[known.endpoint_id] = known.contact
            return source.secured
        return secured

    def _is_authentic(self, header: Header, secured: Secured | None) -> bool:
        source = self._source(header)
        if source is None:
            if secured is None or id(header) in self._inside:
                return True
            why = "its dialog began within this instance, and it came in clear from outside"
            if secured.mode is not None:
                why = "its dialog is sealed, and it is not"
            disposition = Disposition.NOT_SEALED
        elif secured is None or secured.mode is None:
            disposition, why = Disposition.NOT_SECURED, "its dialog is in clear, and it is sealed"
        elif source.secured != secured:
            disposition, why = Disposition.SESSION_KEY_UNKNOWN, "its dialog is sealed for another"
        else:
            return True
        self._result.refuse(disposition, why, header)
        return False

    def _source(self, header: Header) -> KeySource | None:
        """Where the key of a frame is from; None when it is not sealed."""
        opened = self._opened.get(id(header))
        return None if opened is None else opened.source

    def _put(self, header: Header, source: KeySource) -> None:
        certificate = source.who.fingerprint
        secured = source.secured
        put_secured(self._db, header.conversation_id, secured, self._now, is_initiator=False, certificate=certificate)

    def _grants(self) -> Grants:
        """
        The permissions of this database; a batch is one transaction, in which they stay.

        No `cached_property`: up to Python 3.11 that has one lock for all databases, held while this one is read.
        """
        if self._known_grants is None:
            rules, _ = permissions(self._db)
            self._known_grants = Grants(rules, is_default_deny=self._is_identified)
        return self._known_grants
