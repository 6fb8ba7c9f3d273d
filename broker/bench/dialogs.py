"""
Durable messages end to end: an application's transaction, its daemon, a gateway, the target's daemon, RECEIVE.

Everything shares the machine's cores. Messages of 1 KiB, 100 in a transaction at both ends, `synchronous=FULL` at both
ends. Beside it, in the same run, the same rows written to a plain SQLite table with the same commits: what the disk
alone allows for one of the four times a message is written.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import broker
from broker.bench.result import Row, row_of
from broker.demo.topology import Topology

PAYLOAD = b"x" * 1024
BATCH = 100
MESSAGES = 20_000
DIALOGS = 8
REPEATS = 3
CASE = "1 KiB, durable at both ends, 100 in a transaction"
MODE = "through a gateway"
YARDSTICK = "rows into a plain SQLite table"


def end_to_end(directory: Path, messages: int) -> float:
    """Messages a second from the first SEND to the last RECEIVE."""
    with Topology(directory) as net:
        gateway = net.add("gateway", forwarding=True)
        sender = net.add("sender", databases=["orders"])
        target = net.add("target", databases=["billing"])
        net.script(
            "gateway",
            "msdb",
            _route("out", "//bench/Billing", target.address) + _route("back", "//bench/Orders", sender.address),
        )
        net.script("sender", "orders", _service("//bench/Orders") + _route("out", "//bench/Billing", gateway.address))
        net.script("target", "billing", _service("//bench/Billing") + _route("back", "//bench/Orders", gateway.address))
        net.start()
        started = time.monotonic()
        thread = threading.Thread(target=_send, args=(sender.directory / "orders.db", messages))
        thread.start()
        received = 0
        with sqlite3.connect(target.directory / "billing.db", timeout=60) as db:
            while received < messages:
                with db:
                    received += len(broker.receive(db, queue="BenchQueue", top=BATCH, wait=30))
        seconds = time.monotonic() - started
        thread.join()
        db.close()
    return messages / seconds


def _send(path: Path, messages: int) -> None:
    db = sqlite3.connect(path, timeout=60)
    with db:
        dialogs = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing") for _ in range(DIALOGS)
        ]
    for start in range(0, messages, BATCH):
        with db:
            for number in range(start, start + BATCH):
                dialogs[number // BATCH % DIALOGS].send(PAYLOAD)
    db.close()


def plain_sqlite(directory: Path, messages: int) -> float:
    """Rows a second into a plain table, with the same commits."""
    db = sqlite3.connect(directory / "plain.db")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB)")
    started = time.monotonic()
    for start in range(0, messages, BATCH):
        with db:
            db.executemany("INSERT INTO message VALUES (?, ?)", [(n, PAYLOAD) for n in range(start, start + BATCH)])
    seconds = time.monotonic() - started
    db.close()
    return messages / seconds


def _service(name: str) -> str:
    return f"CREATE QUEUE BenchQueue; CREATE SERVICE [{name}] ON QUEUE BenchQueue;\n"


def _route(name: str, service: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{service}', ADDRESS = '{address}';\n"


def measure(*, repeats: int = REPEATS, messages: int = MESSAGES) -> list[Row]:
    """One row, and its yardstick. Shape: `messages` a multiple of `BATCH`."""
    samples: dict[str, list[dict[str, float]]] = {YARDSTICK: [], "end to end": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as directory:
            samples[YARDSTICK].append({"messages_s": plain_sqlite(Path(directory), messages)})
            samples["end to end"].append({"messages_s": end_to_end(Path(directory), messages)})
    return [
        row_of(("dialogs", CASE, MODE, name), "messages_s", taken, yardstick=YARDSTICK)
        for name, taken in samples.items()
    ]
