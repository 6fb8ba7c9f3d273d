"""
Saying a script to an instance over real sockets, hearing everything it answers, and judging that by the protocol.

Whatever was said: what comes back is whole frames, HELLO first; PONGs are those of the PINGs, in their order; a link
ends with FATAL where the protocol says so, with one of the codes it names, and else not at all; advice is about frames
that were sent, and names a disposition; nothing is acknowledged that was not said, and no dialog is invented.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

from broker.errors import PeerError
from broker.flow import NUMBER
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import (
    Fatal,
    Fault,
    Hello,
    Ping,
    Pong,
    Rejected,
    decode_dialog,
    decode_fault,
    decode_link,
    encode_link,
)
from broker.protocol.layout import FIRST_DIALOG_KIND, Flag, FrameKind
from tests.fuzz.spoken import SILENT, Line, Script

SECONDS = 30.0  # for the last word of a link
LINGER_SECONDS = 0.15  # three times that after which a lone message is acknowledged
FAULTS = frozenset({-8408, -8428, -8430, -8437, -8457, -8462, -8470, -8490, -8494, -8495, -8498, -9616})
CODES = frozenset(NUMBER.values())
_AT_ONCE = struct.pack("ii", 1, 0)


class WrongAnswerError(AssertionError):
    """What came back is not what the protocol says."""


@dataclass(slots=True)
class Heard:
    """What came over one link. Shape: `was_reset` when the end of it may be lost."""

    data: bytearray = field(default_factory=bytearray)
    was_reset: bool = False


class _Link:
    """One connection of a script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = Heard()
        self.writer = writer
        self._reader = reader
        self._news = asyncio.Event()
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    async def _hear(self) -> None:
        try:
            while data := await self._reader.read(65_536):
                self.heard.data += data
                self._news.set()
        except ConnectionError:
            self.heard.was_reset = True
        self._news.set()

    async def say(self, data: bytes, any_: random.Random) -> None:
        """In as many pieces as it pleases; a link that has ended hears nothing any more."""
        if len(data) > 1 and any_.random() < 0.3:
            cut = any_.randint(1, len(data) - 1)
            self.writer.write(data[:cut])
            await asyncio.sleep(0)
            data = data[cut:]
        self.writer.write(data)
        await asyncio.sleep(0)

    async def until(self, word: bytes) -> None:
        """Until this has come, or the end."""
        async with asyncio.timeout(SECONDS):
            while word not in self.heard.data and not self._hearing.done():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        """Until the other side has closed."""
        async with asyncio.timeout(SECONDS):
            await self._hearing

    async def linger(self) -> None:
        """Long enough for what is answered once it is stored; that it comes is nobody's promise."""
        await asyncio.wait({self._hearing}, timeout=LINGER_SECONDS)

    def leave(self, *, at_once: bool) -> None:
        if at_once:
            sock: socket.socket = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._hearing.cancel()
        self.writer.transport.abort()


async def speak(script: Script, host: str, port: int, any_: random.Random) -> dict[int, Heard]:
    """
    Say all of it, and hear until each link has had its last word.

    Returns:
        What came, by link.

    Raises:
        TimeoutError: a link neither ends nor answers.
    """
    links: dict[int, _Link] = {}
    last: dict[int, Line] = {}
    try:
        for line in script.lines:
            if line.link not in links:
                links[line.link] = _Link(*await asyncio.open_connection(host, port))
            last[line.link] = line
            await links[line.link].say(line.data, any_)
        for number, link in links.items():
            await _finish(script, number, link, last[number], any_)
    finally:
        for link in links.values():
            link.leave(at_once=any_.random() < 0.5)
    return {number: link.heard for number, link in links.items()}


async def _finish(script: Script, number: int, link: _Link, line: Line, any_: random.Random) -> None:
    if line.ends:
        await link.end()
    elif line.is_last or number in script.leaving or number in script.restless:
        if not link.writer.is_closing() and any_.random() < 0.7:
            link.writer.write_eof()
            await link.end()
    else:
        payload = any_.randbytes(8)
        script.pings[number].append(payload)
        await link.say(encode_link(Ping(payload)), any_)
        await link.until(encode_link(Pong(payload)))
        if any_.random() < 0.3:
            await link.linger()


def judge(script: Script, answers: dict[int, Heard]) -> Counter[str]:
    """
    Hold what was heard to the protocol.

    Returns:
        What it was, counted.

    Raises:
        WrongAnswerError: it says where.
    """
    last = {line.link: line for line in script.lines}
    counts: Counter[str] = Counter(conversations=1, links=len(answers), frames=len(script.lines))
    for number, heard in answers.items():
        try:
            counts += _judge_link(script, number, heard, last[number])
        except (AssertionError, PeerError) as error:
            raise WrongAnswerError(f"link {number}: {type(error).__name__}: {error}") from error
    return counts


def _judge_link(script: Script, number: int, heard: Heard, last: Line) -> Counter[str]:
    decoder = FrameDecoder(1 << 24)
    frames = [bytes(frame) for frame in decoder.feed(bytes(heard.data))]
    decoder.feed(b"")  # tells what is wrong behind the frames that were whole
    is_quiet = bool(last.ends or last.is_last or number in script.leaving or number in script.restless)
    was_left = is_quiet and not last.ends  # perhaps before the answer came
    assert frames or heard.was_reset or was_left, "nothing was said, not even HELLO"
    assert not frames or frames[0][4] == FrameKind.HELLO, "HELLO does not come first"
    counts: Counter[str] = Counter()
    messages = [decode_link(frame) for frame in frames if frame[4] < FIRST_DIALOG_KIND]
    for frame in frames:
        counts[f"heard kind 0x{frame[4]:02x}"] += 1
        if frame[4] >= FIRST_DIALOG_KIND:
            _judge_dialog(script, frame)
    assert sum(isinstance(one, Hello) for one in messages) <= 1, "HELLO twice"
    for one in messages:
        if isinstance(one, Rejected):
            assert one.code in CODES, f"advice of no disposition: {one}"
            assert one.message in script.messages or not any(one.message), f"advice about what was not said: {one}"
            counts[f"REJECTED {one.code}"] += 1
    pongs = [one.payload for one in messages if isinstance(one, Pong)]
    assert pongs == script.pings[number][: len(pongs)], "PONG without its PING, or out of order"
    fatals = [one for one in messages if isinstance(one, Fatal)]
    allowed = last.ends | ({SILENT} if number in script.restless else set())
    for one in fatals:
        assert one is messages[-1], "something follows FATAL"
        assert one.code in allowed, f"{one}; what was said allows {sorted(allowed)}"
        counts[f"FATAL {one.code}"] += 1
    if last.ends and not heard.was_reset and number not in script.leaving:  # one that leaves may be closed before
        assert fatals, f"no FATAL, and {sorted(last.ends)} was due"
    elif not is_quiet and not heard.was_reset:
        assert pongs == script.pings[number], "a PING without its PONG"
    assert is_quiet or not heard.was_reset, "the link was reset, and nothing was wrong with it"
    return counts


def _judge_dialog(script: Script, frame: bytes) -> None:
    header, body = decode_dialog(frame)
    assert header.conversation_id in script.dialogs, f"a dialog of nobody: {header}"
    # An error answers whatever side a frame said it was of; all else is of the target.
    assert header.flags & Flag.FROM_TARGET or header.kind == FrameKind.FAULT, f"it is no answer: {header}"
    said = script.sent.get(header.conversation_id, (0, 0))
    assert (header.ack_sequence, header.ack_fragment) <= said, f"it acknowledges what was not said, {said}: {header}"
    if header.kind == FrameKind.FAULT:
        fault: Fault = decode_fault(body)
        assert fault.code in FAULTS, f"an undocumented error: {fault}"
