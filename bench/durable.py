"""
A durable message as its application feels it: latency of one, and the rate of many processes.

Application, daemon, gateway, daemon and application are a process each, messages have 1 KiB, every commit waits for
the disk (`synchronous=FULL`), and what the first call imports is imported before the clock starts. Next to each case,
in the same run and on the same disk, the median of a bare commit: one row of 1 KiB in a transaction. A message needs
three such commits one after another, a request with its reply five.
"""

import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import broker
from bench.dialogs import (
    BATCH,
    MESSAGES,
    PAYLOAD,
    QUEUE,
    WAIT,
    ApplicationError,
    Child,
    Ends,
    cost,
    end_to_end,
    ends,
    spent,
)
from bench.figures import Row, cpu_seconds, row_of

SINGLES, FULL_SINGLES = 300, 1000
EXCHANGES, FULL_EXCHANGES = 3_200, 9_600  # of all processes together
ASKERS = (8, 32)
WARM_UP = 3  # messages or exchanges of each process before the clock starts
PAUSE_SECONDS = 0.02  # between two single messages: applications are cold, as between two requests of users
COMMITS = 200
REST_SECONDS = 10.0
FULL_REPEATS = 3
YARDSTICK = "bare commit"
STAMP = struct.Struct(">d")  # monotonic seconds at which SEND began, at the beginning of a body


# --- applications, each in its own process ---


def send_singles(db: sqlite3.Connection, begin: Callable[[], None], count: int) -> None:
    """Send so many messages, each in its transaction, with a pause after each."""
    with db:
        dialog = broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            begin()
        now = time.monotonic()
        with db:
            dialog.send(STAMP.pack(now) + PAYLOAD[STAMP.size :])
        time.sleep(PAUSE_SECONDS)


def receive_singles(db: sqlite3.Connection, begin: Callable[[], None], count: int) -> list[float]:
    """Receive so many messages, each in its transaction; seconds from the beginning of SEND to the end of RECEIVE."""
    begin()
    seconds = []
    for _ in range(WARM_UP + count):
        with db:
            [message] = broker.receive(db, queue=QUEUE, top=1, wait=WAIT)
        seconds.append(time.monotonic() - STAMP.unpack_from(message.body)[0])
    return seconds[WARM_UP:]


def ask(db: sqlite3.Connection, begin: Callable[[], None], count: int, pause: float) -> list[float]:
    """Send so many requests on one dialog and receive the reply of each; seconds that each took."""
    with db:
        dialog = broker.begin_dialog(db, from_service="//bench/Orders", to_service="//bench/Billing")
    seconds = []
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            begin()
        began = time.monotonic()
        with db:
            dialog.send(PAYLOAD)
        with db:
            answers = broker.receive(db, queue=QUEUE, top=1, wait=WAIT, conversation=dialog)
        if not answers:
            raise ApplicationError(f"no reply within {WAIT:g} s")
        seconds.append(time.monotonic() - began)
        if pause:
            time.sleep(pause)
    return seconds[WARM_UP:]


def reply(db: sqlite3.Connection, begin: Callable[[], None], count: int) -> None:
    """Reply to so many requests; those that wait together are received and answered in one transaction."""
    begin()
    while count > 0:
        with db:
            requests = broker.receive(db, queue=QUEUE, top=BATCH, wait=WAIT)
            for request in requests:
                request.dialog.send(request.body)
        if not requests:
            raise ApplicationError(f"{count:,} requests did not arrive within {WAIT:g} s")
        count -= len(requests)


# --- cases ---


def bare_commit() -> float:
    """Median seconds of a commit of one row, one after another, on the disk of the databases."""
    with tempfile.TemporaryDirectory() as directory:
        db = sqlite3.connect(Path(directory) / "plain.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB)")
        seconds = []
        for _ in range(COMMITS):
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO message (body) VALUES (?)", (PAYLOAD,))
            began = time.monotonic()
            db.execute("COMMIT")
            seconds.append(time.monotonic() - began)
        db.close()
    return median(seconds)


def one_way(count: int) -> dict[str, float]:
    """Latency of single messages, one at a time, from the beginning of SEND to the end of RECEIVE."""
    with (
        ends() as net,
        Child(send_singles, str(net.orders), count) as source,
        Child(receive_singles, str(net.billing), count) as far,
    ):
        far.ready()
        far.go()
        source.ready()
        source.go()
        source.result()
        return _latency(far.result())


def exchanges(askers: int, count: int) -> dict[str, float]:
    """Latency and rate of requests with their replies, each process with one at a time on its own dialog."""
    each, pause = count // askers, PAUSE_SECONDS if askers == 1 else 0.0
    with ends() as net, ExitStack() as stack:
        far = stack.enter_context(Child(reply, str(net.billing), (WARM_UP + each) * askers))
        sources = [stack.enter_context(Child(ask, str(net.orders), each, pause)) for _ in range(askers)]
        far.ready()
        far.go()
        for source in sources:
            source.ready()
        pids = _pids(net, far, sources)
        before, began = spent(pids), time.monotonic()
        for source in sources:
            source.go()
        seconds = [one for source in sources for one in source.result()]
        rate, after = len(seconds) / (time.monotonic() - began), spent(pids)
    figures = _latency(seconds)
    if askers == 1:
        return figures
    micros = cost(before, after, len(seconds))
    asking = sum([micros.pop(name) for name in list(micros) if name.startswith("asker")])
    return {"exchanges_s": rate} | figures | micros | {"asking_us": asking}


def at_rest() -> dict[str, float]:
    """CPU time of a daemon whose database is at rest, in percent of a core."""
    with ends() as net:
        time.sleep(2.0)  # links are open, what the start left is done
        before, began = cpu_seconds(net.sender.pid), time.monotonic()
        time.sleep(REST_SECONDS)
        return {"busy_pct": 100 * (cpu_seconds(net.sender.pid) - before) / (time.monotonic() - began)}


def measure(*, is_full: bool = False, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Rows of every case, each with its yardstick."""
    singles, total = (FULL_SINGLES, FULL_EXCHANGES) if is_full else (SINGLES, EXCHANGES)
    cases: list[tuple[str, str, Callable[[], dict[str, float]]]] = [
        ("one way", "p50_us", lambda: one_way(singles)),
        ("request and reply", "p50_us", lambda: exchanges(1, singles)),
        *(
            (f"{askers} processes that ask", "exchanges_s", lambda askers=askers: exchanges(askers, total))
            for askers in ASKERS
        ),
        (f"flood, {BATCH} a transaction", "messages_s", lambda: end_to_end(MESSAGES)),
        ("daemon at rest", "busy_pct", at_rest),
    ]
    rows: list[Row] = []
    for case, headline, run in cases:
        tell(case)
        samples: dict[str, list[dict[str, float]]] = {YARDSTICK: [], "through a gateway": []}
        for _ in range(FULL_REPEATS if is_full else 1):
            commit = bare_commit()
            samples[YARDSTICK].append({headline: 1 / commit if headline.endswith("_s") else commit * 1e6})
            samples["through a gateway"].append(run())
        if headline == "busy_pct":
            del samples[YARDSTICK]
        key = ("durable", case, "1 KiB, durable at both ends")
        rows += [row_of((*key, name), headline, taken, yardstick=YARDSTICK) for name, taken in samples.items()]
    return rows


def _pids(net: Ends, far: Child, sources: Sequence[Child]) -> dict[str, int]:
    pids = {"gateway": net.gateway.pid, "sender": net.sender.pid, "target": net.target.pid, "replying": far.pid}
    return pids | {f"asker {number}": source.pid for number, source in enumerate(sources)}


def _latency(seconds: list[float]) -> dict[str, float]:
    return {"p50_us": median(seconds) * 1e6, "p99_us": quantiles(seconds, n=100, method="inclusive")[98] * 1e6}
