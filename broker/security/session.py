"""
The sending half of a secured dialog: which key seals its next frame, and when the key packet goes with it.

A key lives for KEY_SECONDS or KEY_FRAMES at most, and only in the process that drew it. Its packet goes with every
frame until the far side has named the key in a frame of its own, and afterwards with whatever the caller wants it:
what is sent a second time and answers to duplicates, so that a far side that has lost its memory gets it back. As long
as the far side has not named the key, a new packet is made every REWRAP_SECONDS, for only a fresh one begins a dialog
(`broker.security.opening.FRESH_SECONDS`). In full mode a key is also over when the certificate that it is wrapped for
is no longer among the peers of the database, or when this database has another signing certificate.

In anonymous mode there is one secret for both directions of a dialog. The initiator sends it; the target, which cannot
know whom to wrap a secret for, derives its keys from it.

Instants are arguments, UTC seconds since 1970, and so is the source of random bytes.

Source: Service Broker documentation, "Service Broker Dialog Security".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from broker.protocol.frame import Header, encode_head
from broker.security.identity import KnownPeers, OwnIdentity, Sealing
from broker.security.key_packet import KEY_ID_BYTES, SECRET_BYTES, Direction, Mode, make_packet
from broker.security.principal import parse_principal
from broker.security.seal import ECHO_BYTES, NO_ECHO, TAG_BYTES, clear_part, frame_key, seal

KEY_SECONDS = 24 * 3600.0
KEY_FRAMES = 2**26  # far below what GCM allows for one key
REWRAP_SECONDS = 5 * 60.0  # well within the time for which a packet may begin a dialog

Draw = Callable[[int], bytes]
"""So many random bytes."""


@dataclass(frozen=True, slots=True)
class Secured:
    """
    How one side of a dialog is secured, for as long as it lives.

    Shape: `mode` None for a dialog within this instance: at the initiator security was asked for and there was no
    binding; at the target the other two are those of its initiator, empty when it may never leave. `far_principal` who
    alone has the other side; `secret` of an anonymous dialog, 32 bytes.
    """

    mode: Mode | None
    far_principal: str = ""
    secret: bytes = field(default=b"", repr=False)

    def outside(self) -> Secured | None:
        """How frames from outside this instance have to be sealed; None when none are believed."""
        if self.mode is not None:
            return self
        if self.secret:
            return Secured(Mode.ANONYMOUS, secret=self.secret)
        return Secured(Mode.FULL, self.far_principal) if self.far_principal else None


@dataclass(slots=True)
class DialogCredentials:
    """What a database can prove, and whom it knows. Shape: `own` None when it has no certificate."""

    own: OwnIdentity | None = None
    peers: KnownPeers = field(default_factory=KnownPeers)

    @property
    def principal(self) -> str | None:
        """Who the database is; None when it cannot prove it."""
        return None if self.own is None else self.own.signing.who.name


class CannotSealError(Exception):
    """A frame cannot be sealed now; the sentence says what is missing, and nothing is sent."""


class Sealer:
    """
    Seals the frames of one side of a dialog. Changed by its methods only.

    Shape: `far` the far side's certificate that the key is wrapped for, None before the first frame and where a key is
    derived.
    """

    def __init__(self, secured: Secured, direction: Direction, credentials: DialogCredentials, draw: Draw) -> None:
        self.secured = secured
        self.far: Sealing | None = None
        self._direction = direction
        self._credentials = credentials
        self._draw = draw
        self._far_signer = b""  # fingerprint of whose `far` is
        self._own_signer = b""  # fingerprint of who signed the packet, empty when nobody did
        self._peers = credentials.peers  # among whom the two were last found
        self._key: AESGCM | None = None
        self._key_id = bytes(KEY_ID_BYTES)
        self._made_at = 0.0
        self._frames = 0
        self._packet = b""
        self._echo = NO_ECHO
        self._has_arrived = False  # the far side has named this key
        self._has_ever_arrived = False  # or one before it

    def seal(self, header: Header, body: bytes, now: float, *, with_packet: bool = False) -> bytes:
        """
        A whole frame.

        Args:
            header: Flag SEALED set, hop_count, time_consumed and body_checksum 0.
            body: What is sealed.
            now: UTC seconds since 1970.
            with_packet: Whether the key packet shall go with it even if the far side has it.

        Cost: some microseconds; some hundred when a key has to be made.

        Raises:
            CannotSealError: a certificate is missing or not valid today.
        """
        key = self._usable_key(now)
        packet = self._packet if with_packet or not self._has_arrived else b""
        clear, nonce = clear_part(self._key_id, self._echo, self._frames, packet)
        self._frames += 1
        head = encode_head(header, len(clear) + len(body) + TAG_BYTES) + clear
        return seal(key, nonce, head, body)

    def heard(self, echo: bytes, key_id: bytes) -> None:
        """
        An authentic frame came from the far side.

        Args:
            echo: The beginning of the id of our key that it named.
            key_id: Of the key it was sealed with.
        """
        self._echo = key_id[:ECHO_BYTES]
        if echo == self._key_id[:ECHO_BYTES] and self._key is not None:
            self._has_arrived = self._has_ever_arrived = True
        elif echo == NO_ECHO:  # it has none, or none any more
            self._has_arrived = False

    def check(self, now: float) -> None:
        """See whether a frame can be sealed now. Raises CannotSealError."""
        self._usable_key(now)

    def _usable_key(self, now: float) -> AESGCM:
        age = now - self._made_at
        limit = KEY_SECONDS if self._has_arrived or not self._packet else REWRAP_SECONDS
        if self._key is None or self._frames >= KEY_FRAMES or not -REWRAP_SECONDS <= age < limit:
            return self._renew(now)
        own = self._credentials.own
        if self._own_signer and own is not None and own.signing.fingerprint != self._own_signer:
            return self._renew(now)
        if self._credentials.peers is not self._peers and not self._is_far_known():
            return self._renew(now)
        return self._key

    def _is_far_known(self) -> bool:
        """Whether what the key is wrapped for is among the peers, which are others now; asked in full mode alone."""
        peers = self._credentials.peers
        if self.secured.mode is Mode.FULL and self.far is not None:
            signing = peers.by_fingerprint(self._far_signer)
            if signing is None or self.far.fingerprint not in {one.fingerprint for one in signing.sealing}:
                return False
        self._peers = peers
        return True

    def _renew(self, now: float) -> AESGCM:
        secured, credentials = self.secured, self._credentials
        signer = None
        secret = secured.secret
        if secured.mode is Mode.FULL:
            signer = self._signer(now)
            secret = self._draw(SECRET_BYTES)
        elif secured.mode is None:
            raise CannotSealError("there is no remote service binding")
        key_id, packet = self._draw(KEY_ID_BYTES), b""
        if secured.mode is Mode.FULL or not self._direction.is_from_target:
            principal = parse_principal(secured.far_principal)
            found = credentials.peers.named(principal, now)
            if found is not None:
                self._far_signer, self.far = found[0].fingerprint, found[1]
                self._peers = credentials.peers
                packet = make_packet(self._direction, key_id, secret, self.far, made_at=int(now), signer=signer)
            elif secured.mode is Mode.FULL or not self._has_ever_arrived:
                raise CannotSealError(credentials.peers.missing(principal, now))
        key = frame_key(secret, self._direction, key_id)
        self._key, self._key_id, self._packet = key, key_id, packet
        self._own_signer = b"" if signer is None else signer.signing.fingerprint
        self._made_at, self._frames, self._has_arrived = now, 0, False
        return key

    def _signer(self, now: float) -> OwnIdentity:
        own = self._credentials.own
        if own is None:
            raise CannotSealError("this database has no certificate")
        if not own.signing.is_valid_at(now):
            raise CannotSealError(f"the certificate of this database, {own.signing.who.name}, is not valid today")
        return own
