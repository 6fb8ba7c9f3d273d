"""
Durable messages end to end: an application's transaction, its daemon, a gateway, the target's daemon, RECEIVE.

Everything shares the machine's cores, messages have 1 KiB, and every commit of applications and daemons waits for the
disk (`synchronous=FULL`). Beside each case, in the same run and on the same disk, the same rows written to a plain
SQLite table with the same commits: what the disk alone allows for one of the four times a message is written. Each
case also has the CPU time that every process spent on a message: unlike a rate, it does not depend on what else the
machine does.
"""

import multiprocessing
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import broker
from bench.figures import Row, cpu_seconds, peak_mib, row_of
from bench.forwarding import started
from broker.errors import BrokerError
from broker.security.certificate_files import Pair, store_files
from broker.security.issue import CertificateSubject, Validity, issue_database
from examples.demo.topology import Daemon, wait_for

# --- application ---
# Applications of the benchmark, each a separate process as applications are: one interpreter would share its lock.
#
# They say when they are ready, wait for the word, and give one value back.


QUEUE = "BenchQueue"
PAYLOAD = b"x" * 1024
WAIT = 60.0  # seconds for one message
RESULT_SECONDS = 3600.0
PIECE = 1024 * 1024  # bytes of a large message read at a time

Work = Callable[..., Any]
"""(connection to its database, what says ready and waits for the word, arguments) -> a number, or several."""


class ApplicationError(BrokerError):
    """A process of the benchmark ended without its result."""


class Child:
    """One application in a separate process. Use as a context; `ready`, `go`, `result`."""

    def __init__(self, work: Work, path: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(work, path, theirs, arguments), daemon=True)
        self._theirs = theirs

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive() and error is not None:
            self._process.kill()
        self._process.join()
        self._pipe.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> None:
        """Wait until it has connected and prepared. Raises ApplicationError."""
        self.result()

    def go(self) -> None:
        """Let it begin."""
        self._pipe.send(None)

    def result(self) -> Any:
        """What its work returned, when it is done. Raises ApplicationError."""
        try:
            if self._pipe.poll(RESULT_SECONDS):
                return self._pipe.recv()
        except EOFError:
            pass
        raise ApplicationError("an application of the benchmark ended without a result; its error is above")


def _main(work: Work, path: str, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    db = sqlite3.connect(path, timeout=WAIT)

    def begin() -> None:
        pipe.send(0.0)
        pipe.recv()

    pipe.send(work(db, begin, *arguments))
    db.close()


def produce(db: sqlite3.Connection, begin: Callable[[], None], messages: int, batch: int, dialogs: int) -> float:
    """Send so many messages, one transaction a batch, on several dialogs in turn."""
    with db:
        known = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing") for _ in range(dialogs)
        ]
    begin()
    for number in range(messages // batch):
        with db:
            dialog = known[number % dialogs]
            for _ in range(batch):
                dialog.send(PAYLOAD)
    return float(messages)


def consume(db: sqlite3.Connection, messages: int, batch: int) -> None:
    """Receive so many messages, one transaction a batch."""
    received = 0
    while received < messages:
        with db:
            taken = broker.receive(db, queue=QUEUE, top=batch, wait=WAIT)
        if not taken:
            raise ApplicationError(f"{received:,} of {messages:,} messages came")
        received += len(taken)


def take(db: sqlite3.Connection, begin: Callable[[], None], messages: int, batch: int) -> float:
    """Receive so many messages, as `consume`."""
    begin()
    consume(db, messages, batch)
    return float(messages)


def request(db: sqlite3.Connection, begin: Callable[[], None], count: int, parallel: int) -> float:
    """
    Run `count` exchanges, always `parallel` of them under way, each on a separate dialog.

    A request is sent in one transaction, its answer received in another.
    """
    with db:
        begun = [
            broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
            for _ in range(parallel)
        ]
    begin()
    for dialog in begun[:count]:
        with db:
            dialog.send(PAYLOAD)
    for answered in range(count):
        with db:
            [answer] = broker.receive(db, queue=QUEUE, top=1, wait=WAIT)
        if answered + parallel < count:
            with db:
                answer.dialog.send(PAYLOAD)
    return float(count)


def reply(db: sqlite3.Connection, begin: Callable[[], None], count: int) -> float:
    """Answer `count` requests, each received and answered in a separate transaction."""
    begin()
    for _ in range(count):
        with db:
            for request in broker.receive(db, queue=QUEUE, top=1, wait=WAIT):
                request.dialog.send(request.body)
    return float(count)


def take_large(db: sqlite3.Connection, begin: Callable[[], None], mib: int) -> float:
    """Receive one large message as a stream. Returns: peak MiB of this process."""
    begin()
    with db:
        [message] = broker.receive(db, queue=QUEUE, top=1, wait=RESULT_SECONDS)
        length = 0
        with message.open() as body:
            while piece := body.read(PIECE):
                length += len(piece)
    if length != mib * PIECE:
        raise ApplicationError(f"{length:,} bytes came of {mib:,} MiB")
    return peak_mib(multiprocessing.current_process().pid or 0)


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
    """Two databases with a gateway between them: the instances, and the files of the two databases."""

    gateway: Daemon
    sender: Daemon
    target: Daemon

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
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        proof = _identities(directory, "orders", "billing") if is_sealed else {}
        gateway = Daemon(directory / "gateway", "gateway", forwarding=True)
        sender = Daemon(directory / "sender", "sender", databases=["orders"], settings=proof.get("orders"))
        target = Daemon(directory / "target", "target", databases=["billing"], settings=proof.get("billing"))
        ways = _route("out", "//bench/Billing", target.address) + _route("back", "//bench/Orders", sender.address)
        gateway.script("msdb", ways)
        orders = _service("//bench/Orders") + _route("out", "//bench/Billing", gateway.address)
        billing = _service("//bench/Billing") + _route("back", "//bench/Orders", gateway.address)
        if is_sealed:
            orders += "CREATE REMOTE SERVICE BINDING far TO SERVICE '//bench/Billing' WITH USER = billing;\n"
            billing += "GRANT SEND ON SERVICE::[//bench/Billing] TO orders;\n"
        sender.script("orders", orders)
        target.script("billing", billing)
        with started(gateway, sender, target):
            yield Ends(gateway, sender, target)


def _identities(directory: Path, *databases: str) -> dict[str, dict[str, dict[str, object]]]:
    """For each database what its configuration says so that it has a certificate and knows all of them."""
    now = datetime.now(UTC)
    day = Validity(now - timedelta(hours=1), now + timedelta(days=1))
    pairs = {name: Pair(directory / f"{name}.pem", directory / f"{name}.key") for name in databases}
    for name, pair in pairs.items():
        store_files(pair.files(issue_database(CertificateSubject(name), day, None)), is_replacing=False)
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
    """Measure both applications from the word to their results; `name` is that of the rate."""
    pids = {
        "sending": source.pid,
        "sender": net.sender.pid,
        "gateway": net.gateway.pid,
        "target": net.target.pid,
        "receiving": far.pid,
    }
    source.ready()
    far.ready()
    before, began = spent(pids), time.monotonic()
    far.go()
    source.go()
    source.result()
    far.result()
    seconds, after = time.monotonic() - began, spent(pids)
    return {name: count / seconds} | cost(before, after, count)


def spent(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds of each process so far."""
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def cost(before: Mapping[str, float], after: Mapping[str, float], messages: int) -> dict[str, float]:
    """CPU microseconds a message: `cpu_us` of all processes together, `<name>_us` of each."""
    micros = {f"{name}_us": (after[name] - before[name]) / messages * 1e6 for name in after}
    return {"cpu_us": sum(micros.values())} | micros


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
            query = "SELECT coalesce(sum(send_sequence - acknowledged_sequence), 0) FROM broker_conversation"
            return int(db.execute(query).fetchone()[0])

        wait_for(lambda: left() < messages, seconds=PATIENCE, what="the first acknowledgement")
        pids = {"sender": net.sender.pid, "gateway": net.gateway.pid, "target": net.target.pid}
        before, began, first = spent(pids), time.monotonic(), left()
        wait_for(lambda: left() == 0, seconds=PATIENCE + messages / 500, what="an empty transmission queue")
        drained, after = time.monotonic() - began, spent(pids)
        spending = cost(before, after, max(1, first))
        began = time.monotonic()
        consume(far, messages, BATCH)
        received_s = messages / (time.monotonic() - began)
        return {"messages_s": first / max(drained, 1e-3), "received_s": received_s} | spending


def large(mib: int) -> dict[str, float]:
    """MiB a second of one message from SEND to the last byte read at the target, and the memory each process took."""
    with ends() as net, _connected(net.orders) as db, Child(take_large, str(net.billing), mib) as child:
        child.ready()
        [dialog] = begin(db, 1)
        before = {name: peak_mib(daemon.pid) for name, daemon in (("sender", net.sender), ("target", net.target))}
        child.go()
        began = time.monotonic()
        piece = uuid.uuid4().bytes * 65_536
        with db:
            dialog.send(piece for _ in range(mib))
        application_mib = child.result()
        seconds = time.monotonic() - began
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
        began, cpu = time.monotonic(), time.process_time()
        for start in range(0, rows, batch):
            with db:
                numbers = range(start, min(start + batch, rows))
                db.executemany("INSERT INTO message VALUES (?, ?)", [(number, payload) for number in numbers])
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
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
    """Return the rows of every case, each with its yardstick; `messages` is a multiple of `BATCH`."""
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
    """A measured case: `run` gives one sample; `batch` is rows in a commit of its yardstick; `is_long` runs once."""

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
