"""Throughput and latency of durable messages between two databases of running instances, from SEND to RECEIVE."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from struct import Struct

import broker
from broker.bench.forwarding import Figures, MeasurementError, figures

INITIATOR, TARGET, QUEUE = "//bench/Initiator", "//bench/Target", "BenchQueue"
SINGLES = 100
PAUSE_SECONDS = 0.02  # between two of the single messages
WAIT_SECONDS = 30.0  # for the next message
STAMP = Struct(">d")  # when the message was sent, at the beginning of its body


def measure(initiator: Path, target: Path, *, messages: int, payload: int, batch: int, dialogs: int) -> list[Figures]:
    """
    Measure a flood, and then the latency of single messages, each in its own transaction.

    Args:
        initiator: A database file with the service `INITIATOR`.
        target: One with the service `TARGET` on the queue `QUEUE`; may be the same file.
        messages: Of the flood.
        payload: Bytes of each, at least those of `STAMP`.
        batch: Messages in a transaction, at both ends.
        dialogs: Over which the messages are spread.

    Raises:
        ConversationError: a service or queue is missing.
        MeasurementError: messages that did not arrive.
    """
    filling = bytes(payload - STAMP.size)
    with closing(sqlite3.connect(target, timeout=WAIT_SECONDS)) as far:
        broker.get_conversation_group(far, queue=QUEUE)  # fails here rather than in the other process
        far.rollback()
    with (
        closing(sqlite3.connect(initiator, timeout=WAIT_SECONDS)) as db,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as receiver,
    ):
        with db:
            begun = [broker.begin_dialog(db, from_service=INITIATOR, to_service=TARGET) for _ in range(dialogs)]

        def send(number: int, count: int) -> None:
            with db:
                begun[number % dialogs].send_many([STAMP.pack(time.time()) + filling] * count)

        try:
            for number in range(dialogs):
                send(number, 1)  # links are opened, routes are found
            receiver.submit(_receive, target, dialogs, batch).result()
            arrivals = receiver.submit(_receive, target, messages, batch)
            began = time.time()
            for number, first in enumerate(range(0, messages, batch)):
                send(number, min(batch, messages - first))
            flood = arrivals.result()
            arrivals = receiver.submit(_receive, target, SINGLES, batch)
            for number in range(SINGLES):
                time.sleep(PAUSE_SECONDS)
                send(number, 1)
            singles = arrivals.result()
        finally:
            with db:
                for dialog in begun:
                    dialog.end()
        receiver.submit(_receive, target, 0, batch, dialogs).result()
    messages_s = messages / (flood[-1][1] - began)
    return [
        figures("flood", messages, messages_s=messages_s, mib_s=messages_s * payload / 2**20),
        figures("single", SINGLES, latencies=[(received - sent) * 1e6 for sent, received in singles]),
    ]


def _receive(path: Path, count: int, batch: int, ends: int = 0) -> list[tuple[float, float]]:
    """Receive so many messages, and answer so many ends of dialogs; when each message was sent and received."""
    times: list[tuple[float, float]] = []
    with closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as db:
        while len(times) < count or ends > 0:
            with db:
                received = broker.receive(db, queue=QUEUE, top=batch, wait=WAIT_SECONDS)
                now = time.time()
                for message in received:
                    if message.is_end or message.is_error:
                        message.dialog.end()
                        ends -= 1
                    else:
                        times.append((STAMP.unpack_from(message.body)[0], now))
            if not received:
                raise MeasurementError(
                    f"{len(times):,} of {count:,} messages arrived, then none for {WAIT_SECONDS:g} s:"
                    " ask broker why for the reason"
                )
    return times
