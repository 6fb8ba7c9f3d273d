"""
Questions and answers between two processes over a stream socket: each a length of four bytes and MessagePack.

The asking side (`Asker`) may have many questions under way; the answering side (`answer_all`) works on them at the same
time and answers each when it is done. The end of the stream ends both: every question under way has then failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec
import structlog

from broker.errors import BrokerError, ResourceError
from broker.workers.message import Answered, Asked, Question

LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode

log = structlog.get_logger(__name__)


class WorkerFailedError(ResourceError):
    """A worker that does not do what it was asked, or is gone. Shape: `worker` its number; `problem` a clause."""

    def __init__(self, worker: int, problem: str) -> None:
        super().__init__(worker, problem)
        self.worker = worker
        self.problem = problem

    def __str__(self) -> str:
        return f"worker {self.worker}: {self.problem}"


class Asker:
    """
    The asking side of one socket. Loop-only.

    Args:
        worker: The number of the worker on the other side, for errors.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, sock: socket.socket) -> None:
        """From now on the other side is the one of this socket, which belongs to this object."""
        self._reader, self._writer = await asyncio.open_connection(sock=sock)

    async def run(self) -> None:
        """Take answers until the other side ends; the socket is closed then."""
        decode = msgspec.msgpack.Decoder(Answered).decode
        try:
            while (data := await _read(self._reader)) is not None:
                self._take(decode(data))
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(WorkerFailedError(self._worker, "it has ended"))
            self._waiting.clear()

    async def ask(self, question: Question, answer: Any, *, seconds: float) -> Any:
        """
        The answer to a question, as a value of the type `answer`.

        Raises:
            WorkerFailedError: the other side refuses, ends, or does not answer in time.
        """
        if self._writer is None:
            raise WorkerFailedError(self._worker, "it is not there")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            _write(self._writer, _encode(Asked(number, question)))
            async with asyncio.timeout(seconds):
                raw = await future
        except TimeoutError:
            raise WorkerFailedError(self._worker, f"no answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
        return await asyncio.to_thread(msgspec.msgpack.decode, raw, type=answer)

    def _take(self, answered: Answered) -> None:
        future = self._waiting.get(answered.number)
        if future is None or future.done():
            return
        if answered.problem:
            future.set_exception(WorkerFailedError(self._worker, answered.problem))
        else:
            future.set_result(answered.answer)


Answering = Callable[[Question], Awaitable[bytes]]
"""Gives the answer as MessagePack; what it raises is the problem."""


async def answer_all(sock: socket.socket, answering: Answering) -> None:
    """Answer questions until the other side ends, or this is cancelled; the socket is closed then."""
    reader, writer = await asyncio.open_connection(sock=sock)
    decode = msgspec.msgpack.Decoder(Asked).decode
    try:
        async with asyncio.TaskGroup() as tasks:
            while (data := await _read(reader)) is not None:
                tasks.create_task(_answer(writer, decode(data), answering))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(writer: asyncio.StreamWriter, asked: Asked, answering: Answering) -> None:
    try:
        answered = Answered(asked.number, msgspec.Raw(await answering(asked.question)))
    except Exception as error:  # it ends this question only, and is told to who asked
        if not isinstance(error, BrokerError):
            log.exception("question failed", question=type(asked.question).__name__)
        answered = Answered(asked.number, problem=str(error) or type(error).__name__)
    _write(writer, _encode(answered))
    with contextlib.suppress(OSError):  # who asked is gone
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """One message; None at the end of the stream."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(LENGTH.pack(len(data)))
    writer.write(data)
