"""
The connection of two instances that are being paired: until both have proved that they have the token, and after.

Whoever invites waits at a port of its own, with the certificate of its endpoint; whoever accepts connects there, looks
whether it is the certificate that the token names, and proves to have the token; then the other does. Nobody learns
anything from a proof that is wrong: the connection is closed without a word, and the invitation goes on waiting. The
first one that is right ends it: a token is good for one pairing.

All that is said is a MessagePack value behind its length, of a bounded size, within a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from broker.errors import PairingError
from broker.security.pairing import (
    HASH_BYTES,
    NONCE_BYTES,
    Meeting,
    Offer,
    OfferError,
    Partner,
    Token,
    accepting_proof,
    inviting_proof,
    is_accepting,
    is_inviting,
    offer_bytes,
    partner_of,
    read_offer,
)

ALPN = "sbrk-pair/1"
MESSAGE_MAX = 256 * 1024  # bytes; two offers of certificates fit
STRANGERS_MAX = 16  # connections that have proved nothing, at one time; the oldest makes room
PROOF_SECONDS = 10.0  # from a connection to its proof
LENGTH_BYTES = 4

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proof = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_T = TypeVar("_T")


class _Opening(msgspec.Struct, frozen=True):
    """What whoever invites says first."""

    nonce: _Nonce


class _Acceptance(msgspec.Struct, frozen=True):
    """What whoever accepts answers."""

    nonce: _Nonce
    offer: bytes
    proof: _Proof


class _Confirmation(msgspec.Struct, frozen=True):
    """What whoever invites answers to a right proof, and to no other."""

    offer: bytes
    proof: _Proof


@dataclass(frozen=True, slots=True)
class Invitation:
    """
    What an invitation needs.

    Shape: `host` and `port` to listen on, 0 for any; `certificate` and `private_key` of the endpoint; `seconds` until
    the token is worth nothing.
    """

    host: str
    port: int
    certificate: Path
    private_key: Path
    secret: bytes
    seconds: float


class Channel:
    """
    What both say to each other. Shape: `number` hexadecimal digits that only this meeting has.

    Every method raises PairingError: the other side has gone, says nothing, or what it says is none of this.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.number = ""

    async def say(self, value: msgspec.Struct) -> None:
        """Send one value."""
        data = msgspec.msgpack.encode(value)
        assert len(data) <= MESSAGE_MAX, "more than the other side takes"
        try:
            self._writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            await self._writer.drain()
        except OSError as error:
            raise PairingError(f"the other side has gone: {error.strerror or error}") from None

    async def hear(self, kind: type[_T], *, seconds: float) -> _T:
        """Wait for one value of a kind."""
        try:
            async with asyncio.timeout(seconds):
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                if length > MESSAGE_MAX:
                    raise PairingError(f"the other side says {length} bytes at once: no program of this release does")
                data = await self._reader.readexactly(length)
            return msgspec.msgpack.decode(data, type=kind)
        except TimeoutError:
            raise PairingError(f"the other side has said nothing for {seconds:g} s") from None
        except msgspec.MsgspecError as error:
            raise PairingError(f"what the other side says is not understood: {error}") from None
        except (asyncio.IncompleteReadError, OSError):
            raise PairingError("the other side has closed the connection; what it prints tells why") from None

    def abort(self) -> None:
        """End the connection at once: who waits for a value is told that the other side has gone."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    @property
    def certificate(self) -> bytes:
        """SHA-256 of what the other side shows; empty where it shows nothing."""
        tls: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True)
        return sha256(shown).digest() if shown else b""


# --- who invites --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def invited(
    invitation: Invitation, offer: Offer, *, on_waiting: Callable[[int], None], on_stranger: Callable[[str], None]
) -> AsyncIterator[tuple[Channel, Partner]]:
    """
    Wait until somebody comes who has the token.

    Args:
        invitation: Where and how long.
        offer: What this side says of itself.
        on_waiting: Told the port once it listens.
        on_stranger: Told of each connection that proved nothing, and why.

    Raises:
        PairingError: nobody came in time, or who came says of itself what is not right.
        OSError: the port is taken.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    context.load_cert_chain(invitation.certificate, invitation.private_key, password="")
    shown = sha256(_first_der(invitation.certificate)).digest()
    waiting = _Waiting(invitation.secret, shown, offer, on_stranger)
    server = await asyncio.start_server(
        waiting.admit,
        invitation.host,
        invitation.port,
        ssl=context,
        ssl_handshake_timeout=PROOF_SECONDS,
        limit=MESSAGE_MAX,
    )
    try:
        on_waiting(server.sockets[0].getsockname()[1])
        async with asyncio.timeout(invitation.seconds):
            channel, partner = await asyncio.shield(waiting.found)
    except TimeoutError:
        raise PairingError(f"nobody came within {invitation.seconds:g} s: make a new token") from None
    finally:
        waiting.end()
        server.close()
    try:
        yield channel, partner
    finally:
        await channel.close()


class _Waiting:
    """
    An invitation that waits. Shape: `found` who had the token, once somebody has.

    Args:
        secret: Of the token; used by the first who proves to have it.
        shown: SHA-256 of the certificate that is shown here.
        offer: What this side says of itself.
        on_stranger: Told of others.
    """

    def __init__(self, secret: bytes, shown: bytes, offer: Offer, on_stranger: Callable[[str], None]) -> None:
        self.found: asyncio.Future[tuple[Channel, Partner]] = asyncio.get_running_loop().create_future()
        self._secret, self._shown, self._offer = secret, shown, offer
        self._on_stranger = on_stranger
        self._is_used = False
        self._strangers: dict[Channel, None] = {}  # in the order in which they came

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody has connected."""
        channel, address = Channel(reader, writer), str(writer.get_extra_info("peername")[0])
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            oldest.abort()
            del self._strangers[oldest]
        self._strangers[channel] = None
        try:
            meeting, came = await self._hear_proof(channel)
        except PairingError as error:
            self._on_stranger(f"{address}: {error}")
            await channel.close()
            return
        finally:
            self._strangers.pop(channel, None)
        try:
            partner = await self._prove(channel, meeting, came)
        except (PairingError, OfferError) as error:
            await channel.close()
            self._over(PairingError(f"{address} has the token, and then: {error}"))
        else:
            self._over((channel, partner))

    def end(self) -> None:
        """The token is worth nothing from now on."""
        self._is_used = True
        self.found.cancel()

    def _over(self, outcome: tuple[Channel, Partner] | PairingError) -> None:
        if self.found.done():  # it has ended while somebody was still proving
            return
        if isinstance(outcome, PairingError):
            self.found.set_exception(outcome)
        else:
            self.found.set_result(outcome)

    async def _hear_proof(self, channel: Channel) -> tuple[Meeting, bytes]:
        """The offer of somebody who has the token, which is used then."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        await channel.say(_Opening(nonce))
        came = await channel.hear(_Acceptance, seconds=PROOF_SECONDS)
        meeting = Meeting(self._shown, nonce, came.nonce)
        if self._is_used or not is_accepting(came.proof, self._secret, meeting, came.offer):
            raise PairingError("it does not have this token, or not in time")
        self._is_used = True
        channel.number = _number(meeting)
        return meeting, came.offer

    async def _prove(self, channel: Channel, meeting: Meeting, came: bytes) -> Partner:
        partner = partner_of(read_offer(came))
        own = offer_bytes(self._offer)
        await channel.say(_Confirmation(own, inviting_proof(self._secret, meeting, own, came)))
        return partner


# --- who accepts --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def accepted(token: Token, offer: Offer) -> AsyncIterator[tuple[Channel, Partner]]:
    """
    Go where a token leads, and prove to have it.

    Raises:
        PairingError: nobody is there, somebody else is, or the token is not worth anything any more.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the token names the very certificate
    try:
        async with asyncio.timeout(PROOF_SECONDS):
            ends = await asyncio.open_connection(token.host, token.port, ssl=context, limit=MESSAGE_MAX)
    except (OSError, TimeoutError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        hint = "has the invitation ended, or does something between the two block that port?"
        raise PairingError(f"{token.host}:{token.port}: {reason}; {hint}") from None
    channel = Channel(*ends)
    try:
        if channel.certificate != token.certificate:
            raise PairingError(f"{token.host}:{token.port} does not show the certificate that the token names")
        yield channel, await _prove_accepting(channel, token, offer)
    finally:
        await channel.close()


async def _prove_accepting(channel: Channel, token: Token, offer: Offer) -> Partner:
    opening = await channel.hear(_Opening, seconds=PROOF_SECONDS)
    meeting = Meeting(token.certificate, opening.nonce, secrets.token_bytes(NONCE_BYTES))
    own = offer_bytes(offer)
    await channel.say(_Acceptance(meeting.accepting_nonce, own, accepting_proof(token.secret, meeting, own)))
    try:
        came = await channel.hear(_Confirmation, seconds=PROOF_SECONDS)
    except PairingError:
        raise PairingError("the other side does not take this token: it is wrong, used or expired") from None
    if not is_inviting(came.proof, token.secret, meeting, came.offer, own):
        raise PairingError("the other side does not have this token")
    try:
        partner = partner_of(read_offer(came.offer))
    except OfferError as error:
        raise PairingError(str(error)) from None
    if (partner.certificate, partner.identity.fingerprint) != (token.certificate, token.identity):
        raise PairingError("the other side says that it is somebody else than the token says")
    channel.number = _number(meeting)
    return partner


def _number(meeting: Meeting) -> str:
    return sha256(meeting.inviting_nonce + meeting.accepting_nonce).hexdigest()[:16]


def _first_der(path: Path) -> bytes:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = path.read_text(encoding="ascii", errors="replace")
    return ssl.PEM_cert_to_DER_cert(begin + text.partition(begin)[2].partition(end)[0] + end)
