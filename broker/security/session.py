"""
The two halves of a secured dialog: the `Sealer` of the frames that a side sends, and a database's `Opener` of those
that it receives.

*Sending.* A key lives for KEY_SECONDS or KEY_FRAMES at most, and only in the process that drew it. Its packet goes with
every frame until the far side has named the key in a frame that it sends. Afterwards it goes when the caller asks for
it: with resends and answers to duplicates, so that a far side that has lost its memory gets it back. As long as the far
side has not named the key, a new packet is made every REWRAP_SECONDS, for only a fresh one begins a dialog
(FRESH_SECONDS). In full mode a key is also over when the certificate that it is wrapped for is no longer among the
peers of the database, or when this database has another signing certificate. In anonymous mode there is one secret for
both directions of a dialog. The initiator sends it; the target, which has no certificate to wrap a secret for, derives
its keys from it.

*Receiving.* A key is verified and unwrapped once and then kept by its id, so in steady state a frame costs one AES-GCM.
At the bound the key that was not used for the longest is evicted; it is restored by the key packet of a resend. When a
signer is no longer among the peers of the database, its keys are forgotten with the next frame.

- A target that has no row yet (it is about to begin, or nothing is known of it) accepts a packet of every peer that
  this database knows, or in anonymous mode of any sender. The result may become its row.
- A target that began inside its instance accepts what its initiator would have sent from elsewhere: signed by that
  principal, or with the secret of that anonymous dialog.
- A side in full mode accepts packets of its far principal only, whichever certificate that has today.
- A target in anonymous mode accepts no other secret than the one it began with: any sender could wrap one for it.
- An initiator in anonymous mode accepts no packet: the target derives its keys.

A frame that begins a dialog must have a fresh packet. A dialog that began and ended is remembered by its tombstone for
half an hour at least (`REPLAY_GUARD`). A packet may begin one for half of that before and after its instant, so it
cannot be replayed when the tombstone is gone. Clocks of both sides may differ by ten minutes.

Instants are arguments, UTC seconds since 1970, and so is the source of random bytes.

Source: Service Broker documentation, "Service Broker Dialog Security".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from broker.flow import Disposition
from broker.protocol.frame import Header, encode_head
from broker.protocol.layout import Flag
from broker.security.identity import KnownPeers, OwnIdentity, Sealing, Signing
from broker.security.principal import NOBODY, Who, parse_principal
from broker.security.seal import (
    ECHO_BYTES,
    KEY_ID_BYTES,
    NO_ECHO,
    TAG_BYTES,
    Box,
    Direction,
    KeyPacket,
    SealRefusedError,
    clear_part,
    direction_of,
    frame_key,
    make_packet,
    open_frame,
    open_packet,
    read_box,
    read_packet,
    seal,
)
from broker.security.secured import SECRET_BYTES, Mode, Secured

KEY_SECONDS = 24 * 3600.0
KEY_FRAMES = 2**26  # far below what GCM allows for one key
REWRAP_SECONDS = 5 * 60.0  # well within the time for which a packet may begin a dialog
KEYS_MAX = 16_384  # kept, some 50 MB
FRESH_SECONDS = 15 * 60.0  # half of `broker.store.sqlite.side.REPLAY_GUARD`
_FROM_TARGET = int(Flag.FROM_TARGET)  # an enum's operators are slow
Draw = Callable[[int], bytes]
"""So many random bytes."""


@dataclass(slots=True)
class DialogCredentials:
    """The certificates of a database and of the peers that it knows; `own` is None when it has no certificate."""

    own: OwnIdentity | None = None
    peers: KnownPeers = field(default_factory=KnownPeers)

    @property
    def principal(self) -> str | None:
        """Who the database is; None when it cannot prove it."""
        return None if self.own is None else self.own.signing.who.name


SIGNER_UNKNOWN = "the signer's certificate is not known: sha256:"  # status looks whether it is known by now


class CannotSealError(Exception):
    """A frame cannot be sealed now; the sentence says what is missing, and nothing is sent."""


class Sealer:
    """
    Seals the frames of one side of a dialog. Changed by its methods only.

    Attributes:
        far: The far side's certificate that the key is wrapped for, None before the first frame and where a key is
            derived.
    """

    def __init__(self, secured: Secured, direction: Direction, credentials: DialogCredentials, draw: Draw) -> None:
        self.secured = secured
        self.far: Sealing | None = None
        self._direction = direction
        self._credentials = credentials
        self._draw = draw
        self._far_signer = b""  # fingerprint of whose `far` is
        self._own_signer = b""  # fingerprint of the signer of the packet, empty in anonymous mode
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
        key = self.check(now)
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
        elif echo == NO_ECHO:  # it has no key, or has it no longer
            self._has_arrived = False

    def check(self, now: float) -> AESGCM:
        """The key by which a frame can be sealed now; raises CannotSealError where none can."""
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


class KeySource(NamedTuple):
    """
    Where a frame came from, as its key proves.

    Attributes:
        secured: How the receiving side is, or becomes, secured.
        who: The sender in full mode, NOBODY in anonymous.
        made_at: Of the packet, None where the key was derived.
    """

    secured: Secured
    who: Who = NOBODY
    made_at: float | None = None

    def is_fresh(self, now: float) -> bool:
        """Whether it may begin a dialog."""
        return self.made_at is not None and abs(now - self.made_at) < FRESH_SECONDS


class Opened(NamedTuple):
    """
    A frame that was verified.

    Attributes:
        key_id: The id of the key that sealed it.
        echo: The beginning of the id of the receiver's key that it named.
        is_new: True when that key was not known.
    """

    body: bytes
    key_id: bytes
    echo: bytes
    source: KeySource
    is_new: bool


class Opener:
    """The keys of the frames that come to one database. Used by one thread."""

    def __init__(self, credentials: DialogCredentials, *, keys_max: int = KEYS_MAX) -> None:
        self._credentials = credentials
        self._keys_max = keys_max
        self._peers = credentials.peers  # by whom the keys were looked through
        self._keys: OrderedDict[tuple[bytes, bool, bytes], tuple[AESGCM, KeySource]] = OrderedDict()

    def open(
        self,
        header: Header,
        frame: bytes,
        body: bytes,
        secured: Callable[[], Secured | None],
        now: float,
        *,
        is_trusting: bool = True,
    ) -> Opened:
        """
        Verify and open one sealed frame.

        Args:
            header: Of the frame.
            frame: All of it as it arrived.
            body: Of the frame, the sealed box.
            secured: Returns how the receiving side is secured; None when there is no such row. Called only where the
                key is not known yet.
            now: UTC seconds since 1970.
            is_trusting: Whether a key that is not known is searched in the key packet, which costs some hundred
                microseconds.

        Raises:
            SealRefusedError: the frame is not accepted; nothing was changed.
        """
        if self._credentials.peers is not self._peers:
            self._forget_strangers()
        box = read_box(body)
        name = (header.conversation_id, header.flags & _FROM_TARGET > 0, box.key_id)
        known = self._keys.get(name)
        if known is None and not is_trusting:
            problem = "too many seals from where it came were broken within this second"
            raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, problem)
        key, source = known or self._find_key(box, direction_of(header), secured(), now)
        content = open_frame(key, box, frame, len(frame) - len(body))
        if known is None:
            self._keys[name] = (key, source)
            if len(self._keys) > self._keys_max:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(name)
        return Opened(content, box.key_id, box.echo, source, known is None)

    def _forget_strangers(self) -> None:
        """Forget the keys whose signer is not among the peers, which have changed."""
        self._peers = self._credentials.peers
        known = {signing.who.fingerprint for signing in self._peers.known.values()}
        for name, (_, source) in list(self._keys.items()):
            if source.secured.mode is Mode.FULL and source.who.fingerprint not in known:
                del self._keys[name]

    def _find_key(
        self, box: Box, direction: Direction, secured: Secured | None, now: float
    ) -> tuple[AESGCM, KeySource]:
        is_for_initiator = direction.is_from_target
        if secured is not None:
            secured = secured.outside()
            if secured is None:
                problem = "this dialog stays within the instance in which it began"
                raise SealRefusedError(Disposition.NOT_SECURED, problem)
        if secured is None and is_for_initiator:
            raise SealRefusedError(Disposition.NOT_SECURED, "this side of the dialog is in clear")
        if secured is not None and secured.mode is Mode.ANONYMOUS and (is_for_initiator or not box.packet):
            return frame_key(secured.secret, direction, box.key_id), KeySource(secured)
        if not box.packet:
            raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, "its key is not known, or no longer")
        packet = read_packet(box.packet)
        if secured is not None and packet.mode is not secured.mode:
            raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, f"the dialog is secured as {secured.mode}")
        own = self._credentials.own
        if own is None:
            raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, "this database has no certificate")
        signing = None if packet.mode is Mode.ANONYMOUS else self._signer(packet, secured, now)
        secret = open_packet(packet, direction, box.key_id, own, sender=None if signing is None else signing.key)
        source = _source(packet, secret, signing, secured)
        return frame_key(secret, direction, box.key_id), source

    def _signer(self, packet: KeyPacket, secured: Secured | None, now: float) -> Signing:
        """Return the certificate of the signer of a packet, if this side may accept it."""
        signing = self._credentials.peers.by_fingerprint(packet.signer)
        if signing is None:
            raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, f"{SIGNER_UNKNOWN}{packet.signer.hex()}")
        if not signing.is_valid_at(now):
            raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, f"{signing.who.name} is not valid today")
        if secured is not None and not parse_principal(secured.far_principal).covers(signing.who):
            what = f"it is signed by {signing.who.name}, and the dialog is with {secured.far_principal}"
            raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, what)
        return signing


def _source(packet: KeyPacket, secret: bytes, signing: Signing | None, secured: Secured | None) -> KeySource:
    if signing is not None:
        found = secured or Secured(Mode.FULL, signing.who.name)
        return KeySource(found, signing.who, packet.made_at)
    found = Secured(Mode.ANONYMOUS, secret=secret)
    if secured is not None and secured.secret != secret:
        raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, "the dialog began with another secret")
    return KeySource(secured or found, NOBODY, packet.made_at)
