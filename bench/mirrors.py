"""
Failing over a mirrored pair behind one gateway: for how long nothing is delivered.

An initiator, a gateway, and two instances that share one database. Applications send on several dialogs all the time
and receive at the target; each failover begins while messages are on their way. The partner claims when the transaction
is committed in which it takes the database over, as its log tells. What counts is what an application has received, so
commits, resends and the order of each dialog are in it. Beside it, as a yardstick, the way of a message from SEND to
RECEIVE in the same run while nobody fails over.
"""

import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

import broker
from bench.figures import Row, row_of
from examples.demo.topology import Daemon, Topology, wait_for

FAILOVERS, FULL_FAILOVERS = 5, 25
DIALOGS = 4
PAUSE_SECONDS = 0.01  # between two transactions of the sender, one message on each dialog
STEADY_SECONDS = 0.5  # of deliveries on all dialogs before a failover begins
PATIENCE = 60.0
TAKEN_OVER = "database taken over"  # the line of the log
QUEUE = "Inbox"
ORDERS, BILLING = "//bench/Orders", "//bench/Billing"
MODE = f"{DIALOGS} dialogs, one gateway"
YARDSTICK = "SEND to RECEIVE without a failover"
FIRST, EVERY, WHOLE = (
    "claim to first delivery",
    "claim to delivery on every dialog",
    "begin to first delivery after the claim",
)

Delivery = tuple[float, UUID, float]
"""When a message was received, of which conversation, and when it was sent. Shape: UTC seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One failover. Shape: seconds; `first`, `every` from the claim, `whole` from its begin; `usual` ways before it."""

    first: float
    every: float
    whole: float
    usual: Sequence[float]


def gap_of(deliveries: Sequence[Delivery], begun_at: float, claimed_at: float) -> Gap:
    """
    What a failover cost.

    Args:
        deliveries: In the order in which they came; some before the begin, and one on each dialog after the claim that
            was sent after the begin.
        begun_at: When it was begun, UTC seconds since 1970.
        claimed_at: When the partner had committed its takeover.
    """
    before = [one for one in deliveries if one[0] < begun_at]
    firsts: dict[UUID, float] = {}
    for at, conversation, sent_at in deliveries:
        if at >= claimed_at and sent_at >= begun_at:  # what was sent earlier may be the old one's
            firsts.setdefault(conversation, at)
    first = min(firsts.values())
    usual = [at - sent_at for at, _, sent_at in before]
    return Gap(first - claimed_at, max(firsts.values()) - claimed_at, first - begun_at, usual)


def rows_of(case: str, gaps: Sequence[Gap]) -> list[Row]:
    """Rows of one kind of failover, the yardstick first. Shape: `p50_ms` median, `max_ms` worst."""
    figures = {
        YARDSTICK: [way for gap in gaps for way in gap.usual],
        FIRST: [gap.first for gap in gaps],
        EVERY: [gap.every for gap in gaps],
        WHOLE: [gap.whole for gap in gaps],
    }
    rows = []
    for name, seconds in figures.items():
        row = row_of(
            ("mirrors", case, MODE, name), "p50_ms", [{"p50_ms": 1e3 * one} for one in seconds], yardstick=YARDSTICK
        )
        rows.append(replace(row, values=row.values | {"max_ms": 1e3 * max(seconds)}))
    return rows


def measure(
    *, is_full: bool = False, failovers: int | None = None, tell: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Rows of planned failovers, and of those after kill -9, so many of each."""
    count = failovers or (FULL_FAILOVERS if is_full else FAILOVERS)
    rows = []
    for case, fail in (("SET PARTNER FAILOVER", _hand_over), ("kill -9", _kill)):
        tell(f"{count} times {case}")
        with _pair() as pair:
            rows += rows_of(f"{case}, {count} times", [_fail_over(pair, fail) for _ in range(count)])
    return rows


@dataclass
class _Pair:
    """The daemons and their traffic. Shape: `partners` the principal first; `deliveries` since the last failover."""

    partners: list[Daemon]
    path: Path
    deliveries: list[Delivery] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def wait_for_all_dialogs(self, what: str, *, since: float, sent_since: float) -> None:
        """Until each dialog has delivered something after an instant that was sent after another."""

        def is_so() -> bool:
            if self.failures:
                raise self.failures[0]
            came = [one for one in list(self.deliveries) if one[0] >= since and one[2] >= sent_since]
            return len({conversation for _, conversation, _ in came}) == DIALOGS

        wait_for(is_so, seconds=PATIENCE, what=what)


@contextmanager
def _pair() -> Iterator[_Pair]:
    """Four daemons with throw-away files, and applications at work."""
    with tempfile.TemporaryDirectory() as name, Topology(Path(name) / "net") as net:
        path = Path(name) / "shared" / "billing.db"
        path.parent.mkdir()
        gateway = net.add("gateway", forwarding=True)
        sender = net.add("sender", databases=["orders"])
        settings = {"databases.billing": {"path": str(path), "mirroring": "lock"}}
        instance = str(uuid4())
        partners = [
            net.add(
                f"target-{number}", databases=["billing"], broker_instances={"billing": instance}, settings=settings
            )
            for number in (1, 2)
        ]
        first, second = (daemon.address for daemon in partners)
        there = f"SERVICE_NAME = '{BILLING}', BROKER_INSTANCE = '{instance}'"
        back = f"SERVICE_NAME = '{ORDERS}'"
        ways = [f"{there}, ADDRESS = '{first}', MIRROR_ADDRESS = '{second}'", f"{back}, ADDRESS = '{sender.address}'"]
        net.script("gateway", "msdb", "".join(f"CREATE ROUTE way{at} WITH {way};\n" for at, way in enumerate(ways)))
        net.script("sender", "orders", _script(ORDERS, there, gateway))
        for daemon in partners:
            net.script(daemon.name, "billing", _script(BILLING, back, gateway))
        net.start()
        if not partners[0].status()["databases"]:
            partners.reverse()
        pair = _Pair(partners, path)
        work = [(_send, sender.directory / "orders.db"), (_receive, path)]
        threads = [threading.Thread(target=_guarded, args=(pair, call, file), daemon=True) for call, file in work]
        for thread in threads:
            thread.start()
        try:
            yield pair
        finally:
            pair.is_over.set()
            for thread in threads:
                thread.join()


def _fail_over(pair: _Pair, fail: Callable[[Daemon], None]) -> Gap:
    """Once, with steady traffic before it; the partners change places."""
    steady_from = time.time()
    pair.wait_for_all_dialogs("steady traffic", since=steady_from, sent_since=steady_from + STEADY_SECONDS)
    old, new = pair.partners
    pair.deliveries[:] = [one for one in list(pair.deliveries) if one[2] >= steady_from]
    claims = len(_claims(new))
    begun_at = time.time()
    fail(old)
    wait_for(lambda: len(_claims(new)) > claims, seconds=PATIENCE, what=f"{new.name} principal: {new.last_words()}")
    claimed_at = _claims(new)[-1]
    pair.wait_for_all_dialogs("deliveries on all dialogs", since=claimed_at, sent_since=begun_at)
    gap = gap_of(list(pair.deliveries), begun_at, claimed_at)
    if not old.is_running:
        old.start()
    pair.partners.reverse()
    return gap


def _hand_over(principal: Daemon) -> None:
    principal.admin.sql("ALTER DATABASE billing SET PARTNER FAILOVER", None)


def _kill(principal: Daemon) -> None:
    principal.kill()


def _claims(daemon: Daemon) -> list[float]:
    """When it took the database over, UTC seconds since 1970, each time."""
    lines = daemon.log.read_text(encoding="utf-8").splitlines()
    found: list[Mapping[str, str]] = [json.loads(line) for line in lines if TAKEN_OVER in line]
    return [datetime.fromisoformat(line["ts"]).timestamp() for line in found if line["event"] == TAKEN_OVER]


def _script(service: str, far: str, gateway: Daemon) -> str:
    return (
        f"CREATE QUEUE {QUEUE}; CREATE SERVICE [{service}] ON QUEUE {QUEUE};\n"
        f"CREATE ROUTE way WITH {far}, ADDRESS = '{gateway.address}';"
    )


def _guarded(pair: _Pair, call: Callable[[_Pair, sqlite3.Connection], None], path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as db:
            call(pair, db)
    except BaseException as error:  # noqa: BLE001 - told by whoever waits
        pair.failures.append(error)


def _send(pair: _Pair, db: sqlite3.Connection) -> None:
    with db:
        dialogs = [broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING) for _ in range(DIALOGS)]
    while not pair.is_over.wait(PAUSE_SECONDS):
        with db:
            for dialog in dialogs:
                dialog.send(repr(time.time()))


def _receive(pair: _Pair, db: sqlite3.Connection) -> None:
    while not pair.is_over.is_set():
        with db:
            messages = broker.receive(db, queue=QUEUE, top=1000, wait=0.25)
        now = time.time()
        pair.deliveries += [(now, message.dialog.conversation_id, float(message.body)) for message in messages]
