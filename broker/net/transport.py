"""
Transports that carry the bytes of a link to and from its socket: plain, or through TLS.

A plain transport is the socket itself. A TLS transport reads ciphertext into a buffer that all of them share, and has
OpenSSL decrypt it straight into the forwarder's buffer. One read is limited to the bytes that fit there when decrypted.
So nothing readable is ever left inside, and a socket that still has bytes is readable by itself. Output is encrypted
several records at a time. Ciphertext that the socket does not accept at once is kept, `GATHER_BYTES` of it at most, and
counts as sent, because nothing else may overtake it.

OpenSSL works on memory only (a BIO pair). On a socket it needs two system calls to read a record. It also cannot send
its end without reading the peer's, which fails when the peer still sends.

Neither transport reads before it is asked to, nor waits. Loop-only.

Source: RFC 8446, sections 5 and 6.1; docs/contributors/decisions/0009-tls-works-on-memory.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import cast

from broker.errors import NO_TLS, NOT_TRUSTED, UNTRUSTED
from broker.forwarding.entry import Buffer
from broker.net.tls import Identity, add_to_peers

RECORD_BYTES = 16 * 1024  # of plain text in one TLS record at most
RECORD_MAX_BYTES = RECORD_BYTES + 256 + 5  # the same as ciphertext, with its head
FEED_BYTES = 32 * 1024  # ciphertext given to OpenSSL at once; it keeps a buffer of this size for each connection
GATHER_BYTES = 64 * 1024  # plain text encrypted for one system call

Callback = Callable[[], None]


class Transport(ABC):
    """
    The carrier of the bytes of one link, on a socket.

    Attributes:
        identity: The identity that the peer proved.
        chain: The proof of it: the peer's certificate, and those up to the one that is trusted.
        cipher: The TLS cipher suite, empty without TLS.
        recv_into: Reads into a buffer; returns the bytes read, 0 at the end. Raises OSError, BlockingIOError.
        send: Sends from a buffer; returns the bytes accepted. Raises OSError, BlockingIOError.
        holds: Whether it keeps bytes that it counted as sent, so that `send` has something to do.
    """

    identity: Identity | None = None
    chain: tuple[Identity, ...] = ()
    cipher = ""
    recv_into: Callable[[memoryview], int]
    send: Callable[[Buffer], int]
    holds = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @abstractmethod
    def shut(self) -> None:
        """Tell the peer that nothing more comes, after all that was sent. Raises OSError."""

    def set_nodelay(self) -> None:
        """Send small writes at once. Raises OSError."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Free the socket."""
        self._sock.close()

    def add_reader(self, callback: Callback) -> None:
        """Call back when something can be read, again and again."""
        self.renew_reader(callback)

    def renew_reader(self, callback: Callback) -> None:
        """
        Make sure that the callback of `add_reader` is still called; nothing happens when it is.

        When the system reports an error on a socket, uvloop calls back once and never again. If bytes had come before
        the error, that one call brings the bytes, and the error would stay unknown. Costs a microsecond.
        """
        self._watch(self._loop.add_reader, self._loop.remove_reader, callback)

    def remove_reader(self) -> None:
        """Stop calling back."""
        self._loop.remove_reader(self._sock)

    def add_writer(self, callback: Callback) -> None:
        """Call back when something can be sent, again and again."""
        self._watch(self._loop.add_writer, self._loop.remove_writer, callback)

    def remove_writer(self) -> None:
        """Stop calling back."""
        self._loop.remove_writer(self._sock)

    def _watch(self, add: Callable[..., object], remove: Callable[..., object], callback: Callback) -> None:
        try:
            add(self._sock, callback)
        except RuntimeError:  # uvloop has given the socket up, and forgets that once it is removed
            remove(self._sock)
            add(self._sock, callback)


class PlainTransport(Transport):
    """A socket as it is."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.recv_into, self.send = sock.recv_into, sock.send  # the link calls its socket directly

    def shut(self) -> None:
        """End our direction."""
        self._sock.shutdown(socket.SHUT_WR)


class TlsTransport(Transport):
    """
    A connection whose TLS handshake is complete.

    Args:
        sock: Carries ciphertext.
        tls: Encrypts and decrypts.
        incoming: Ciphertext for `tls`; its content arrived after the handshake.
        outgoing: Ciphertext from `tls`.
        chain: The identities that the peer proved, its own certificate first; empty when it was not asked.
        own: The certificate that was shown to the peer.
        scratch: A buffer as large as the largest read, shared by all transports: nothing stays in it.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        *,
        chain: tuple[Identity, ...],
        own: Identity | None,
        scratch: bytearray,
    ) -> None:
        super().__init__(sock)
        self.chain = chain
        self.identity = chain[0] if chain else None
        self._own = own
        cipher = tls.cipher()
        self.cipher = cipher[0] if cipher else ""
        self._tls = tls
        self._incoming, self._outgoing = incoming, outgoing
        self._scratch = memoryview(scratch)
        self._rest = memoryview(b"")
        self._is_early = incoming.pending > 0
        self._has_ended = False  # the peer has said so; the end of the socket may never come
        self._is_shut = False
        self._callback: Callback
        self._again: asyncio.Handle | None = None  # a read that is due although the socket has nothing

    @property
    def holds(self) -> bool:  # type: ignore[override]
        """Whether ciphertext waits for the socket."""
        return len(self._rest) > 0

    # --- receiving ---

    def add_reader(self, callback: Callback) -> None:
        """Also call once for input that does not make the socket readable: bytes with the handshake, or the end."""
        super().add_reader(callback)
        self._callback = callback
        if self._is_early or self._has_ended:
            self._again = self._loop.call_soon(callback)

    def remove_reader(self) -> None:
        """Also for what is due."""
        super().remove_reader()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def recv_into(self, view: memoryview) -> int:
        """
        Decrypt the bytes of one read.

        Args:
            view: Longer than `RECORD_MAX_BYTES`, and not longer than that and the scratch buffer together.

        Raises:
            BlockingIOError: nothing for the link has arrived.
            OSError: the connection can no longer be used; the message gives the reason.
        """
        if self._has_ended:
            return 0
        size = 0
        if not self._is_early:
            # Decrypted it is shorter, but one record may have begun in an earlier read.
            size = self._sock.recv_into(self._scratch[: len(view) - RECORD_MAX_BYTES])
            if size == 0:
                self._has_ended = True
                return 0
        self._is_early = False
        try:
            plain = self._decrypt(size, view)
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                self._push()  # the alert for the peer
            raise ConnectionError(explain(error, own=self._own)) from None
        if self._outgoing.pending:  # an answer to the peer's key update
            self._push()
        if plain == 0 and not self._has_ended:
            raise BlockingIOError
        if plain and self._has_ended:
            self._again = self._loop.call_soon(self._callback)
        return plain

    def _decrypt(self, size: int, view: memoryview) -> int:
        """Decrypt the first bytes of the scratch buffer, after those in `incoming`; return the bytes of plain text."""
        incoming, scratch = self._incoming, self._scratch
        read = cast("Callable[[int, memoryview], int]", self._tls.read)
        room, plain, fed = len(view), 0, 0
        while True:
            try:
                while incoming.pending:
                    got = read(room - plain, view[plain:])
                    if not got:
                        return self._end(plain)
                    plain += got
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:  # the same, once this side has ended as well
                return self._end(plain)
            if fed == size:
                return plain
            step = min(FEED_BYTES, size - fed)
            incoming.write(scratch[fed : fed + step])
            fed += step

    def _end(self, plain: int) -> int:
        """The peer has ended its direction; the link sees that with its next read."""
        self._has_ended = True
        self._incoming.read()  # bytes that arrived after the end are ignored
        return plain

    # --- sending ---

    def send(self, data: Buffer) -> int:
        """
        Encrypt and send; return the bytes that are sent or held.

        Raises:
            OSError: the connection can no longer be used.
        """
        if self._rest and not self._flush():
            return 0
        view = memoryview(data)
        at, end, outgoing, write = 0, len(view), self._outgoing, self._tls.write
        try:
            while at < end:
                at += write(view[at : at + GATHER_BYTES])
                if not self._send_out(outgoing.read()):
                    break
        except ssl.SSLError as error:
            raise ConnectionError(explain(error, own=self._own)) from None
        return at

    def _flush(self) -> bool:
        """Send the ciphertext that is held."""
        if self._rest and not self._send_out(self._rest):
            return False
        if self._is_shut:
            self._sock.shutdown(socket.SHUT_WR)
        return True

    def shut(self) -> None:
        """Send close_notify, and end our direction; the other one goes on."""
        # It is sent, and then the peer's own is expected, which is not there: all that came was decrypted before.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._is_shut = True
        self._push()
        if not self._rest:
            self._sock.shutdown(socket.SHUT_WR)

    def _push(self) -> None:
        """Send what OpenSSL has by itself."""
        own = self._outgoing.read()
        if not own:
            return
        if not self._rest:
            self._send_out(own)
            return
        if len(self._rest) + len(own) > 2 * GATHER_BYTES:
            raise ConnectionError("the peer asks for new TLS keys again and again, and does not read the answers")
        self._rest = memoryview(bytes(self._rest) + own)

    def _send_out(self, ciphertext: bytes | memoryview) -> bool:
        """Give ciphertext to the socket and hold what it does not accept; whether it accepted all."""
        try:
            sent = self._sock.send(ciphertext)
        except BlockingIOError:
            sent = 0
        if sent == len(ciphertext):
            self._rest = memoryview(b"")
            return True
        self._rest = memoryview(ciphertext)[sent:]
        return False


_SENTENCES = {
    "WRONG_VERSION_NUMBER": f"the peer {NO_TLS}",
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "UNSUPPORTED_PROTOCOL": f"the peer {NO_TLS} 1.3",
    "NO_PROTOCOLS_AVAILABLE": f"the peer {NO_TLS} 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate: set endpoint.certificate there",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer asks for a certificate: set endpoint.certificate",
    "TLSV1_ALERT_UNKNOWN_CA": f"the peer {NOT_TRUSTED}{{shown}}: add it to peers there, or its CA to trust",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses this instance's certificate{shown}: see its log",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this instance's certificate has expired{shown}: renew endpoint.certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses this instance's certificate{shown}: see its log",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer refuses this kind of certificate{shown}: see its log",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer has no cipher or key exchange in common with this instance",
    "TLSV1_ALERT_PROTOCOL_VERSION": f"the peer {NO_TLS} 1.3",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "the peer does not speak sbrk/1 over TLS",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "a TLS record was changed on its way",
}
_UNTRUSTED = f"the peer's {UNTRUSTED}{{shown}}, {{why}}: {{add}}"
_VERIFY_SENTENCES = {
    10: "the peer's certificate has expired{shown}: it has to be renewed there",
    26: "the peer's certificate is not made for this{shown}: its extended key usage has to allow clientAuth and "
    "serverAuth",
    9: "the peer's certificate is not valid yet{shown}: compare the clocks of both machines",
}


def explain(
    error: ssl.SSLError, chain: Sequence[Identity] = (), own: Identity | None = None, peers: Sequence[str] = ()
) -> str:
    """
    What OpenSSL found, as a sentence that says what to do and where.

    Args:
        error: Of the handshake, or of a record after it.
        chain: The certificates that the peer has shown, its own first, as far as they can be read.
        own: The certificate that the peer was shown.
        peers: The paths and patterns of `endpoint.peers`.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        sentence = _VERIFY_SENTENCES.get(error.verify_code, _UNTRUSTED).replace("{why}", error.verify_message)
        now = datetime.now(UTC)
        shown = next((one for one in chain if not one.not_before <= now < one.not_after), *chain[:1] or (None,))
        return _filled(sentence, shown).replace("{add}", add_to_peers(peers))
    if isinstance(error, ssl.SSLEOFError):
        return "the peer ended the connection in the middle of TLS"
    reason = error.reason or "unknown"
    sentence = _SENTENCES.get(reason) or f"TLS failed ({reason.lower().replace('_', ' ')})"
    return _filled(sentence, own)


def _filled(sentence: str, shown: Identity | None) -> str:
    return sentence.replace("{shown}", "" if shown is None else f" ({shown.label})")
