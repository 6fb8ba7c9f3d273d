"""
The receiving half: whose key opened a frame, and whether that may be believed for this side of this dialog.

A key is verified and unwrapped once and then kept by its id, so that in steady state a frame costs one AES-GCM. The
keys that are kept have a bound; the one that was not used for the longest goes first, and comes back with the key
packet of what is sent again. A signer who is no longer among the peers of the database is not believed any more: its
keys are forgotten with the first frame behind that.

- A target that has no row yet (it is about to begin, or nothing is known of it) takes a packet of anybody whom this
  database knows, or in anonymous mode of anybody at all. What it found may become its row.
- A target that began inside its instance takes what its initiator would have sent from elsewhere: signed by that
  principal, or with the secret of that anonymous dialog.
- A side in full mode takes packets of its far principal only, whichever certificate that has today.
- A target in anonymous mode takes no other secret than the one it began with: anybody could wrap one for it.
- An initiator in anonymous mode takes no packet: the target derives its keys.

A frame that begins a dialog has to have a fresh packet: a dialog that began and ended is remembered by its tombstone
for half an hour at least (`REPLAY_GUARD`), and a packet may begin one for half of that before and after its instant, so
nobody can begin it again when the tombstone is gone. Clocks of both sides may differ by ten minutes.

Instants are arguments, UTC seconds since 1970.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from broker.flow import Disposition
from broker.protocol.frame import Header
from broker.protocol.layout import Flag
from broker.security.identity import Signing
from broker.security.key_packet import Direction, KeyPacket, Mode, open_packet, read_packet
from broker.security.principal import NOBODY, Who, parse_principal
from broker.security.refusal import SealRefusedError
from broker.security.seal import Box, frame_key, open_frame, read_box
from broker.security.session import DialogCredentials, Secured

KEYS_MAX = 16_384  # kept, some 50 MB
FRESH_SECONDS = 15 * 60.0  # half of `broker.store.tombstone.REPLAY_GUARD`
_FROM_TARGET = int(Flag.FROM_TARGET)  # an enum's operators are slow


class KeySource(NamedTuple):
    """
    Where a frame came from, as its key proves.

    Shape: `secured` how the receiving side is, or becomes, secured; `who` the sender in full mode, NOBODY in anonymous;
    `made_at` of the packet, None where the key was derived.
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

    Shape: `key_id` it was sealed with, `is_new` when that was not known; `echo` what it named of the receiver's keys.
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
            secured: How the side is secured for which it is; None when there is no such row. Asked only where the
                key is not known yet.
            now: UTC seconds since 1970.
            is_trusting: Whether a key that is not known is looked for in the key packet, which costs some hundred
                microseconds.

        Raises:
            SealRefusedError: it is not believed; nothing was changed.
        """
        if self._credentials.peers is not self._peers:
            self._forget_strangers()
        box = read_box(body)
        name = (header.conversation_id, header.flags & _FROM_TARGET > 0, box.key_id)
        known = self._keys.get(name)
        if known is None and not is_trusting:
            problem = "too many seals from where it came were broken within this second"
            raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, problem)
        key, source = known or self._find_key(box, _direction(header), secured(), now)
        content = open_frame(key, box, frame, len(frame) - len(body))
        if known is None:
            self._keys[name] = (key, source)
            if len(self._keys) > self._keys_max:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(name)
        return Opened(content, box.key_id, box.echo, source, known is None)

    def _forget_strangers(self) -> None:
        """The peers are others: keys whose signer is not among them are not known any more."""
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
            raise SealRefusedError(Disposition.SESSION_KEY_UNKNOWN, "its key is not known (any more)")
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
        """The certificate of whoever signed a packet, when it may be believed for this side."""
        signing = self._credentials.peers.by_fingerprint(packet.signer)
        if signing is None:
            found = f"sha256:{packet.signer.hex()}"
            raise SealRefusedError(Disposition.SECURITY_UNRESOLVED, f"the signer's certificate is not known: {found}")
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


def _direction(header: Header) -> Direction:
    return Direction(
        header.conversation_id,
        header.is_from_target,
        header.to_service,
        header.from_service,
        header.from_broker_instance,
    )
