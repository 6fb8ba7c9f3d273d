"""
Durable messages end to end: an application's transaction, its daemon, a gateway, the target's daemon, RECEIVE.

Everything shares the machine's cores, messages have 1 KiB, and every commit of applications and daemons waits for the
disk (`synchronous=FULL`). Beside each case, in the same run and on the same disk, the same rows written to a plain
SQLite table with the same commits: what the disk alone allows for one of the four times a message is written. Of each
case it is told as well what every process spent on a message, in CPU time and in syncs (`cost`): rates are shared with
whatever else the machine does, these are not.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import broker
from broker.bench.application import PAYLOAD, QUEUE, Child, consume, produce, reply, request, take, take_large
from broker.bench.cost import counting, spent, values_of
from broker.bench.machine import peak_mib
from broker.bench.result import Row, row_of
from broker.control.certificate_file import store_files
from broker.control.renewal import Pair
from broker.demo.topology import Daemon, Topology, wait_for
from broker.security.issue import Holder, Validity, issue_database
from broker.store.balance import unconfirmed

BATCH = 100
MESSAGES = 20_000
DIALOGS = 8
PARALLEL = 64
EXCHANGES = 3_000
BACKLOGS = (1_000, 20_000)
FULL_BACKLOGS = (1_000, 1_000_000)
LARGE_MIB, FULL_LARGE_MIB = 64, 1024
REPEATS = 3
CASE = "1 KiB, durable at both ends, 100 in a transaction"
SEALED_CASE = f"{CASE}, sealed and signed"
EXCHANGE_CASE = f"1 KiB, durable at both ends, {PARALLEL} dialogs, one transaction each"
MODE = "through a gateway"
YARDSTICK = "rows into a plain SQLite table"
PATIENCE = 60.0  # seconds in which something has to happen
FILL = 10_000  # messages in a transaction when a backlog is made


@dataclass(frozen=True, slots=True)
class Ends:
    """
    Two databases with a gateway between them.

    Shape: files of the databases; the daemons that have them open; `counts` of syncs, None where nobody counts.
    """

    gateway: Daemon
    sender: Daemon
    target: Daemon
    counts: Path | None

    @property
    def orders(self) -> Path:
        """The initiator's file."""
        return self.sender.directory / "orders.db"

    @property
    def billing(self) -> Path:
        """The target's file."""
        return self.target.directory / "billing.db"


@contextmanager
def ends(*, is_sealed: bool = False) -> Iterator[Ends]:
    """Three daemons with throw-away files, at work; dialogs are sealed and signed by both sides, or clear."""
    with counting() as counts, tempfile.TemporaryDirectory() as directory, Topology(Path(directory)) as net:
        gateway = net.add("gateway", forwarding=True)
        proof = _identities(Path(directory), "orders", "billing") if is_sealed else {}
        sender = net.add("sender", databases=["orders"], settings=proof.get("orders"))
        target = net.add("target", databases=["billing"], settings=proof.get("billing"))
        ways = _route("out", "//bench/Billing", target.address) + _route("back", "//bench/Orders", sender.address)
        net.script("gateway", "msdb", ways)
        orders = _service("//bench/Orders") + _route("out", "//bench/Billing", gateway.address)
        billing = _service("//bench/Billing") + _route("back", "//bench/Orders", gateway.address)
        if is_sealed:
            orders += "CREATE REMOTE SERVICE BINDING far TO SERVICE '//bench/Billing' WITH USER = billing;\n"
            billing += "GRANT SEND ON SERVICE::[//bench/Billing] TO orders;\n"
        net.script("sender", "orders", orders)
        net.script("target", "billing", billing)
        net.start()
        yield Ends(gateway, sender, target, counts)


def _identities(directory: Path, *databases: str) -> dict[str, dict[str, dict[str, object]]]:
    """For each database what its configuration says so that it has a certificate and knows all of them."""
    now = datetime.now(UTC)
    day = Validity(now - timedelta(hours=1), now + timedelta(days=1))
    pairs = {name: Pair(directory / f"{name}.pem", directory / f"{name}.key") for name in databases}
    for name, pair in pairs.items():
        store_files(pair.files(issue_database(Holder(name), day, None)), is_replacing=False)
    known = [str(pair.certificate) for pair in pairs.values()]
    return {
        name: {
            f"databases.{name}": {
                "certificate": str(pair.certificate),
                "private_key": str(pair.private_key),
                "peers": known,
            }
        }
        for name, pair in pairs.items()
    }


def begin(db: sqlite3.Connection, count: int) -> list[broker.Dialog]:
    """So many dialogs with the target."""
    with db:
        return [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing") for _ in range(count)
        ]


def end_to_end(messages: int, *, is_sealed: bool = False) -> dict[str, float]:
    """Messages a second from the first SEND to the last RECEIVE, and what they cost."""
    with (
        ends(is_sealed=is_sealed) as net,
        Child(produce, str(net.orders), messages, BATCH, DIALOGS) as source,
        Child(take, str(net.billing), messages, BATCH) as far,
    ):
        return _timed(net, source, far, messages, "messages_s")


def exchanges(count: int) -> dict[str, float]:
    """
    Exchanges a second, always PARALLEL of them under way, and what they cost.

    Each is three transactions: a request is sent; it is received and answered; the answer is received.
    """
    with (
        ends() as net,
        Child(request, str(net.orders), count, PARALLEL) as source,
        Child(reply, str(net.billing), count) as far,
    ):
        return _timed(net, source, far, count, "exchanges_s")


def _timed(net: Ends, source: Child, far: Child, count: int, name: str) -> dict[str, float]:
    """Both applications from the word to their results. Shape: `name` of the rate."""
    pids = {
        "sending": source.pid,
        "sender": net.sender.pid,
        "gateway": net.gateway.pid,
        "target": net.target.pid,
        "receiving": far.pid,
    }
    source.ready()
    far.ready()
    before, started = spent(pids, net.counts), time.monotonic()
    far.go()
    source.go()
    source.result()
    far.result()
    seconds, after = time.monotonic() - started, spent(pids, net.counts)
    return {name: count / seconds} | values_of(before, after, count, has_syncs=net.counts is not None)


def drain(messages: int) -> dict[str, float]:
    """
    Messages a second out of a transmission queue that was filled while the gateway was down, and out of the queue that
    they are in then, 100 in a transaction; what the daemons spent on the former.

    The clock begins with the first acknowledgement: what was held up until then was the link, not the queue.
    """
    with ends() as net, _connected(net.orders) as db, _connected(net.billing) as far:
        net.gateway.kill()
        dialogs = begin(db, DIALOGS)
        for start in range(0, messages, FILL):
            with db:
                for number, dialog in enumerate(dialogs):
                    dialog.send_many([PAYLOAD] * len(range(start + number, min(start + FILL, messages), DIALOGS)))
        net.gateway.start()

        def left() -> int:
            return unconfirmed(db)

        wait_for(lambda: left() < messages, seconds=PATIENCE, what="the first acknowledgement")
        pids = {"sender": net.sender.pid, "gateway": net.gateway.pid, "target": net.target.pid}
        before, started, first = spent(pids, net.counts), time.monotonic(), left()
        wait_for(lambda: left() == 0, seconds=PATIENCE + messages / 500, what="an empty transmission queue")
        drained, after = time.monotonic() - started, spent(pids, net.counts)
        cost = values_of(before, after, max(1, first), has_syncs=net.counts is not None)
        started = time.monotonic()
        consume(far, messages, BATCH)
        received_s = messages / (time.monotonic() - started)
        return {"messages_s": first / max(drained, 1e-3), "received_s": received_s} | cost


def large(mib: int) -> dict[str, float]:
    """MiB a second of one message from SEND to the last byte read at the target, and the memory each process took."""
    with ends() as net, _connected(net.orders) as db, Child(take_large, str(net.billing), mib) as child:
        child.ready()
        [dialog] = begin(db, 1)
        before = {name: peak_mib(daemon.pid) for name, daemon in (("sender", net.sender), ("target", net.target))}
        child.go()
        started = time.monotonic()
        piece = uuid.uuid4().bytes * 65_536
        with db:
            dialog.send(piece for _ in range(mib))
        application_mib = child.result()
        seconds = time.monotonic() - started
        return {
            "mib_s": mib / seconds,
            "seconds": seconds,
            "peak_mib": max(peak_mib(net.sender.pid), peak_mib(net.target.pid)),
            "grown_mib": max(peak_mib(net.sender.pid) - before["sender"], peak_mib(net.target.pid) - before["target"]),
            "reader_mib": application_mib,
        }


def plain_sqlite(rows: int, *, batch: int = BATCH, payload: bytes = PAYLOAD) -> dict[str, float]:
    """Rows a second into a plain table, so many with each commit; CPU time of each."""
    with tempfile.TemporaryDirectory() as directory:
        db = sqlite3.connect(Path(directory) / "plain.db")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB)")
        started, cpu = time.monotonic(), time.process_time()
        for start in range(0, rows, batch):
            with db:
                numbers = range(start, min(start + batch, rows))
                db.executemany("INSERT INTO message VALUES (?, ?)", [(number, payload) for number in numbers])
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        db.close()
    return {"rows_s": rows / seconds, "cpu_us": cpu / rows * 1e6}


def measure(
    *,
    is_full: bool = False,
    repeats: int = REPEATS,
    messages: int = MESSAGES,
    count: int = EXCHANGES,
    backlogs: tuple[int, ...] | None = None,
    mib: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Rows of every case, each with its yardstick. Shape: `messages` a multiple of `BATCH`."""
    backlogs = backlogs or (FULL_BACKLOGS if is_full else BACKLOGS)
    mib = mib or (FULL_LARGE_MIB if is_full else LARGE_MIB)
    cases = [
        _Case(CASE, MODE, "end to end", "messages_s", lambda: end_to_end(messages)),
        _Case(SEALED_CASE, MODE, "end to end", "messages_s", lambda: end_to_end(messages, is_sealed=True)),
        _Case(EXCHANGE_CASE, "request and reply", "exchanges", "exchanges_s", lambda: exchanges(count), 1),
        *(
            _Case(
                f"1 KiB, {backlog:,} messages queued",
                "drain",
                "transmission queue",
                "messages_s",
                partial(drain, backlog),
                is_long=backlog > MESSAGES,
            )
            for backlog in backlogs
        ),
    ]
    rows: list[Row] = []
    for case in cases:
        tell(case.name)
        rows += case.rows(repeats, messages if case.batch > 1 else count)
    name = f"one message of {mib:,} MiB"
    tell(name)
    return [*rows, row_of(("dialogs", name, "large", "end to end"), "mib_s", [large(mib)], yardstick="")]


@dataclass(frozen=True, slots=True)
class _Case:
    """What is measured. Shape: `run` gives one sample; `batch` rows in a commit beside it; `is_long` runs once."""

    name: str
    mode: str
    subject: str
    headline: str
    run: Callable[[], dict[str, float]]
    batch: int = BATCH
    is_long: bool = False

    def rows(self, repeats: int, rows: int) -> list[Row]:
        """The case and its yardstick, in turn."""
        samples: dict[str, list[dict[str, float]]] = {YARDSTICK: [], self.subject: []}
        for _ in range(1 if self.is_long else repeats):
            plain = plain_sqlite(rows, batch=self.batch)
            samples[YARDSTICK].append({self.headline: plain["rows_s"], "cpu_us": plain["cpu_us"]})
            samples[self.subject].append(self.run())
        key = ("dialogs", self.name, self.mode)
        return [row_of((*key, name), self.headline, taken, yardstick=YARDSTICK) for name, taken in samples.items()]


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, timeout=PATIENCE)
    try:
        yield db
    finally:
        db.close()


def _service(name: str) -> str:
    return f"CREATE QUEUE {QUEUE}; CREATE SERVICE [{name}] ON QUEUE {QUEUE};\n"


def _route(name: str, service: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{service}', ADDRESS = '{address}';\n"
