"""Throughput and latency of a running gateway: sends frames to it, and listens where it forwards them."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from statistics import quantiles
from typing import Any, TypeVar
from uuid import uuid4

from broker.errors import BrokerError
from broker.net.tls import NO_SECURITY, Security
from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import Fatal, Header, Hello, Rejected, decode_link, encode_dialog, encode_link
from broker.protocol.layout import FIRST_DIALOG_KIND, KIND_AT, MAX_FRAME, MESSAGE_ID_AT, SEQUENCE_AT, Flag, FrameKind
from broker.routing.address import NetworkAddress

SERVICE = "//bench/Target"
PINGS = 1000
BLOCK = 64  # frames written at a time
WINDOW_BYTES = 1 << 20  # that have not arrived yet: less than what the gateway's sockets hold, so it keeps no frames
WAIT_SECONDS = 10.0  # for the next frame
HEARTBEAT_MS = 3_600_000  # the longest: this process answers no PING

_T = TypeVar("_T")
Figures = dict[str, float | str | None]


class MeasurementError(BrokerError):
    """A gateway that cannot be measured as it is."""


class _Frames:
    """Frames to one service that differ in message id and sequence number: a gateway drops copies."""

    def __init__(self, payload: int) -> None:
        frame = encode_dialog(
            Header(
                kind=FrameKind.MESSAGE,
                flags=Flag.LAST_FRAGMENT,
                message_id=uuid4().bytes,
                conversation_id=uuid4().bytes,
                to_service=SERVICE,
                from_service="//bench/Initiator",
                from_broker_instance=uuid4().bytes,
                to_broker_instance=bytes(16),
                sequence_number=0,
            ),
            os.urandom(payload),
        )
        self.bytes = len(frame)
        self._block = bytearray(frame * BLOCK)
        self._number = 0

    def take(self, count: int) -> bytes:
        """Return the next frames, at most `BLOCK`."""
        for start in range(0, count * self.bytes, self.bytes):
            struct.pack_into(">Q", self._block, start + MESSAGE_ID_AT, self._number)
            struct.pack_into(">Q", self._block, start + SEQUENCE_AT, self._number)
            self._number += 1
        return bytes(self._block[: count * self.bytes])


class _Receiver:
    """Counts the dialog frames that the gateway forwards."""

    def __init__(self) -> None:
        self.count = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._has_arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the gateway, until it ends."""
        self.writers.append(writer)
        writer.write(_hello())
        frames = FrameDecoder(MAX_FRAME)
        while data := await reader.read(1 << 18):
            self.count += sum(frame[KIND_AT] >= FIRST_DIALOG_KIND for frame in frames.feed(data))
            self._has_arrived.set()

    async def wait(self, count: int) -> None:
        """
        Wait until so many frames have arrived, however many it were before.

        Raises:
            TimeoutError: no frame arrived for `WAIT_SECONDS`.
        """
        while self.count < count:
            self._has_arrived.clear()
            await asyncio.wait_for(self._has_arrived.wait(), WAIT_SECONDS)


async def measure(
    gateway: NetworkAddress,
    listen: NetworkAddress,
    *,
    messages: int,
    payload: int,
    connections: int,
    security: Security = NO_SECURITY,
) -> list[Figures]:
    """
    Measure a flood, and then the latency of one message in flight.

    Args:
        gateway: Has a route of `SERVICE` to `listen`.
        listen: Where the gateway connects to.
        messages: Of the flood.
        payload: Bytes of each.
        connections: To the gateway.
        security: Certificate and trust of both sides, where the gateway encrypts.

    Raises:
        MeasurementError: a connection that was refused or closed, or messages that did not arrive.
    """
    hint = (
        f"create this route on the gateway: CREATE ROUTE bench WITH SERVICE_NAME = '{SERVICE}', ADDRESS = '{listen}';"
    )
    receiver = _Receiver()
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        server = await asyncio.start_server(receiver.serve, listen.host, listen.port, ssl=security.server)
    except OSError as error:
        raise MeasurementError(f"cannot listen on {listen}: {error.strerror}") from error
    try:
        for _ in range(connections):
            streams.append(await asyncio.open_connection(gateway.host, gateway.port, ssl=security.client))
            streams[-1][1].write(_hello())
        writers = [writer for _, writer in streams]
        work = _measure(writers, receiver, _Frames(payload), messages)
        return await _first(work, *(_watch(reader, hint) for reader, _ in streams))
    except TimeoutError:
        raise MeasurementError(
            f"{receiver.count:,} messages arrived at {listen}, then none for {WAIT_SECONDS:g} s: {hint}"
        ) from None
    except OSError as error:
        raise MeasurementError(f"{gateway}: {error.strerror or error}") from error
    finally:
        server.close()
        for writer in (*receiver.writers, *(writer for _, writer in streams)):
            writer.close()
            with suppress(OSError):  # how it ended is of no interest any longer
                await writer.wait_closed()


async def _first(first: Coroutine[Any, Any, _T], *others: Coroutine[Any, Any, None]) -> _T:
    """Return the result of the first one, unless another one raises before; cancel those that still run."""
    wanted = asyncio.ensure_future(first)
    tasks = [wanted, *map(asyncio.ensure_future, others)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {wanted}:
            task.result()
        return await wanted
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(reader: asyncio.StreamReader, hint: str) -> None:
    """Raise MeasurementError when the gateway rejects a frame or closes the connection."""
    frames = FrameDecoder(MAX_FRAME)
    while data := await reader.read(1 << 16):
        for frame in frames.feed(data):
            message = decode_link(frame)
            if isinstance(message, Rejected):
                raise MeasurementError(f"the gateway rejects messages, {message.reason!r}: {hint}")
            if isinstance(message, Fatal):
                raise MeasurementError(f"the gateway closes the connection: {message.code} {message.text}")
    raise MeasurementError("the gateway closed the connection: its log has the reason")


async def _measure(
    writers: Sequence[asyncio.StreamWriter], receiver: _Receiver, frames: _Frames, messages: int
) -> list[Figures]:
    window = max(1, WINDOW_BYTES // frames.bytes)

    async def send(count: int, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.take(count))
        await writer.drain()

    await send(1, writers[0])  # the gateway connects to us
    await receiver.wait(1)
    began, sent = time.perf_counter(), 0
    while sent < messages:
        count = min(BLOCK, window, messages - sent)
        await receiver.wait(1 + sent + count - window)
        await send(count, writers[sent // BLOCK % len(writers)])
        sent += count
    await receiver.wait(1 + messages)
    seconds = time.perf_counter() - began
    latencies = []
    for number in range(PINGS):
        sent_at = time.perf_counter()
        await send(1, writers[number % len(writers)])
        await receiver.wait(2 + messages + number)
        latencies.append((time.perf_counter() - sent_at) * 1e6)
    mib_s = messages * frames.bytes / seconds / 2**20
    return [
        figures("flood", messages, messages_s=messages / seconds, mib_s=mib_s),
        figures("one in flight", PINGS, latencies=latencies),
    ]


def figures(
    mode: str,
    messages: int,
    *,
    messages_s: float | None = None,
    mib_s: float | None = None,
    latencies: Sequence[float] = (),
) -> Figures:
    """Return one row of figures; `latencies` are in microseconds, none or at least two."""
    parts: Sequence[float | None] = quantiles(latencies, n=100, method="inclusive") if latencies else [None] * 99
    return {
        "mode": mode,
        "messages": messages,
        "messages_s": messages_s,
        "mib_s": mib_s,
        "p50_us": parts[49],
        "p99_us": parts[98],
        "max_us": max(latencies, default=None),
    }


def _hello() -> bytes:
    return encode_link(
        Hello(instance=uuid4().bytes, arbitration=uuid4().bytes, name="bench", heartbeat_ms=HEARTBEAT_MS)
    )
